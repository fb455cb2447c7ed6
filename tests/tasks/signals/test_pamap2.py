"""PAMAP2: what the synthetic files hold comes back in windows, what is wrong with a file is named."""

from __future__ import annotations

import gzip
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.raw_files import status
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.pamap2 import (
    CLASSES,
    COLUMNS,
    FEATURES,
    OPTIONAL,
    PROTOCOL,
    STEPS,
    TABLE_NAMES,
    _interpolate,
    fit,
    pamap2,
    pamap2_optional,
    read,
    read_optional,
)
from anchorfl.tasks.signals.recordings import Recording
from anchorfl.tasks.signals.series import encode_series
from anchorfl.tasks.synthetic.pamap2 import OPTIONAL_SUBJECTS, SUBJECTS
from tests.tasks import minutes
from tests.tasks.raw_tables import left_out

F = len(FEATURES)


@pytest.fixture
def recordings(made_up):
    return made_up("pamap2", 1000, 7)


@pytest.fixture
def folder(recordings, tmp_path):
    """Return a copy of two recordings that a test may spoil."""
    raw = tmp_path / "raw"
    (raw / "Protocol").mkdir(parents=True)
    for subject in (101, 102):
        shutil.copy(recordings / "Protocol" / f"subject{subject}.dat", raw / "Protocol")
    return raw


def options(**changed):
    return TaskOptions(name="pamap2", **changed)


def lines_of(path):
    return path.read_text().splitlines()


def edit(path, line, change):
    """Change the fields of one line (from 1) of a file."""
    lines = lines_of(path)
    fields = lines[line - 1].split(" ")
    change(fields)
    lines[line - 1] = " ".join(fields)
    path.write_text("\n".join(lines) + "\n")


put = partial(minutes.put, columns=COLUMNS)


def expected(path):
    """Return activity and [100, 52] readings of every window, by plain loops."""
    rows = [[float(text) for text in line.split(" ")] for line in lines_of(path)]
    for f in range(2, 2 + F):
        there = [row for row in rows if row[f] == row[f]]
        filled = np.interp([row[0] for row in rows], [row[0] for row in there], [row[f] for row in there])
        for row, value in zip(rows, filled.tolist(), strict=True):
            row[f] = value
    found, begin = [], 0
    while begin < len(rows):
        part = rows[begin : begin + STEPS]
        same = next((n for n, row in enumerate(part) if row[1] != part[0][1]), len(part))
        if same == STEPS and part[0][1] != 0:
            found.append((int(part[0][1]), np.array(part)[:, 2:]))
            begin += STEPS
        else:  # too short, so the rest of this activity is no window
            begin += same if same < STEPS else 1
    return found


def test_the_synthetic_steps_come_back_in_windows(recordings):
    table = read(recordings, options())
    assert table["row"].to_pylist() == list(range(table.num_rows))
    assert set(table["labels"].combine_chunks().flatten().to_pylist()) == set(range(len(CLASSES)))
    row = 0
    for subject in SUBJECTS:
        for activity, readings in expected(recordings / "Protocol" / f"subject{subject}.dat"):
            line = table.slice(row, 1)
            assert line["labels"].to_pylist() == [[list(PROTOCOL).index(activity)]]
            assert line["subject"].to_pylist() == [str(subject)]
            values = line["readings"].combine_chunks().flatten().to_numpy()
            assert np.allclose(values.reshape(STEPS, F), readings, rtol=1e-5, atol=1e-6)
            row += 1
    assert row == table.num_rows


def test_the_optional_task_has_all_activities_and_both_recordings(recordings):
    table = read_optional(recordings, options())
    task = pamap2_optional()
    assert task.class_names == CLASSES + tuple(OPTIONAL.values())
    assert set(table["labels"].combine_chunks().flatten().to_pylist()) == set(range(18))
    protocol = read(recordings, options())
    assert table.slice(0, protocol.num_rows)["labels"].equals(protocol["labels"])
    optional = table.slice(protocol.num_rows)
    assert sorted(set(optional["subject"].to_pylist())) == [str(subject) for subject in OPTIONAL_SUBJECTS]
    assert min(optional["labels"].combine_chunks().flatten().to_pylist()) == len(CLASSES)


def test_a_fifth_of_the_windows_is_tested_by_class_and_always_the_same(recordings):
    table = read(recordings, options(fold=3, clients=7))
    test = table.filter(pc.equal(table["split"], "test"))
    assert test.num_rows == round(0.2 * table.num_rows)
    tested = test["subject"].to_pylist()
    left = table.filter(pc.equal(table["split"], "train"))["subject"].to_pylist()
    assert len(set(tested) & set(left)) > len(SUBJECTS) / 2, "windows are drawn, not subjects"
    every, chosen = (
        np.bincount(t["labels"].combine_chunks().flatten().to_numpy(), minlength=12) for t in (table, test)
    )
    assert np.abs(chosen - 0.2 * every).max() <= 1
    assert table.equals(read(recordings, options()))


def test_prepared_windows_are_scaled(recordings, tmp_path):
    made = options(root=str(recordings), cache=str(tmp_path), clients=3, classes_per_client=5, validation=0.25)
    prepared = prepare(pamap2(), made, 1, engine="local")
    assert prepared.manifest.spec.shape == (STEPS, F)
    parts = [prepared.client(client, Objective("single")).x for client in range(3)]
    every = np.concatenate([part.numpy() for part in parts]).reshape(-1, F)
    assert np.allclose(every.mean(0), 0, atol=1e-3)
    assert np.allclose(every.std(0), 1, atol=1e-3)
    assert prepared.split("test", Objective("single")).x.shape[1:] == (STEPS, F)


def test_the_preset_gives_every_person_five_of_its_own_activities(recordings, folder, tmp_path):
    """FedAlign: a subject is a client; one who has fewer activities identifies them all."""
    for raw, subjects in ((recordings, 9), (folder, 2)):
        task = replace(
            read_preset("pamap2-9/fedalign").task, root=str(raw), cache=str(tmp_path), clients=subjects, validation=0
        )
        prepared = prepare(pamap2(), task, 4321, engine="local")
        table = read(raw, task)
        train = table.filter(pc.equal(table["split"], "train"))
        assert {len(classes) for classes in prepared.manifest.classes} == {5}
        for client, subject in enumerate(sorted(set(train["subject"].to_pylist()))):
            own = train.filter(pc.equal(train["subject"], subject))
            held = set(own["labels"].combine_chunks().flatten().to_pylist())
            assert set(prepared.manifest.classes[client]) <= held
            assert prepared.manifest.examples[client] == own.num_rows


def test_files_may_lie_in_the_folder_itself_or_deeper_or_be_packed(folder, tmp_path):
    before = read(folder, options())
    flat = tmp_path / "flat"
    shutil.copytree(folder / "Protocol", flat)
    assert read(flat, options()).equals(before)
    deep = tmp_path / "deep"
    shutil.copytree(folder, deep / "PAMAP2_Dataset")
    path = deep / "PAMAP2_Dataset" / "Protocol" / "subject102.dat"
    path.with_name("subject102.dat.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read(deep, options()).equals(before)
    for root in (folder, flat, deep):
        assert status(pamap2(), options(root=str(root))).found
        assert not status(pamap2_optional(), options(root=str(root))).found


BAD = [
    (lambda f: f.pop(), "53 fields, but 54 are needed; correct or remove the line"),
    (lambda f: f.append("NaN"), "55 fields, but 54 are needed; correct or remove the line"),
    (put("activity id", "9"), "9 in column 'activity id' is no activity of Protocol: there are 1 lying, 2 sitting, 3 "),
    (put("activity id", "1.5"), "1.5 in column 'activity id' is no activity of Protocol: there are"),
    (put("activity id", "NaN"), "nan in column 'activity id' is no activity of Protocol: there are"),
    (put("hand temperature", "warm"), "'warm' in column 'hand temperature' is no number; correct it or remove"),
    (put("ankle orientation 4", "-inf"), "the value in column 'ankle orientation 4' is not finite or too large"),
    (put("timestamp", "NaN"), "no number in column 'timestamp'; fill it in or remove the line"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_bad_row_is_named_or_left_out(folder, change, message):
    path, line = folder / "Protocol" / "subject102.dat", 77
    edit(path, line, change)
    table = left_out(lambda **more: read(folder, options(**more)), f"{path}:{line}: {message}")
    lines = lines_of(path)
    path.write_text("\n".join([*lines[: line - 1], *lines[line:]]))
    assert table.equals(read(folder, options()))


def test_a_timestamp_that_stands_twice_is_named(folder):
    path = folder / "Protocol" / "subject101.dat"
    first = lines_of(path)[9].split(" ")[0]
    edit(path, 11, put("timestamp", first))
    message = f"{path}:11: timestamp {float(first):g} stands twice for this subject, first in line 10; keep one of the"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder, options())


def test_a_measure_that_is_never_there_becomes_the_mean_of_the_training_rows(folder):
    for path in folder.glob("Protocol/*.dat"):
        rows = [line.split(" ") for line in lines_of(path)]
        place = COLUMNS.index("heart rate")
        path.write_text("".join(" ".join([*row[:place], "NaN", *row[place + 1 :]]) + "\n" for row in rows))
        if path.name == "subject102.dat":
            continue
        path.write_text("".join(" ".join([*row[:place], "80", *row[place + 1 :]]) + "\n" for row in rows))
    table = read(folder, options())
    x_NLF = encode_series(table, fit(table, options()))["x"].combine_chunks().flatten().to_numpy().reshape(-1, STEPS, F)
    assert not x_NLF[..., 0].any()
    assert encode_series(table.slice(0, 0), fit(table, options())).num_rows == 0


def test_damaged_and_misplaced_files_are_named(folder):
    path = folder / "Protocol" / "subject102.dat"
    packed = path.with_name("subject102.dat.gz")
    packed.write_bytes(gzip.compress(path.read_bytes())[:-20])
    with pytest.raises(
        InputError, match=r"a recording of subject 102 is in .*102\.dat already; keep one of the two files"
    ):
        read(folder, options())
    path.unlink()
    with pytest.raises(InputError, match=r"subject102\.dat\.gz:\d+: the gzip file is damaged or cut short near"):
        read(folder, options())
    packed.unlink()
    path.write_text("")
    with pytest.raises(InputError, match=r"subject102\.dat: the file is empty; get it again"):
        read(folder, options())
    path.rename(path.with_name("subject10x.dat"))
    with pytest.raises(InputError, match=r"subject10x\.dat: no recording of a subject; name it subject101\.dat"):
        read(folder, options())
    (folder / "Protocol").rename(folder / "Optional")
    with pytest.raises(InputError, match=r"only recordings of Optional are here; put subject101\.dat"):
        read(folder, options())
    with pytest.raises(InputError, match=r"no file \*\*/Protocol/subject10\*\.dat there; set \[task\] root"):
        read_optional(folder, options())


def test_recordings_without_a_whole_window_are_refused(folder):
    for path in folder.glob("Protocol/*.dat"):
        path.write_text("".join(f"{line}\n" for line in lines_of(path)[:60]))
    with pytest.raises(InputError, match="Protocol: no recording has 100 steps of one activity in a row"):
        read(folder, options())


@pytest.mark.data
def test_every_class_has_a_row_in_the_co_occurrence_table(cooccurrence_names):
    assert [TABLE_NAMES[name] for name in CLASSES] == cooccurrence_names("pamap2")


@pytest.mark.data
def test_the_real_recordings_give_about_the_windows_of_the_paper(data_folder):
    """FedAlign's table 1: 9 clients of 1287 training windows, which are 60 % of all."""
    if not list(data_folder.glob("pamap2/**/subject10*.dat")):
        pytest.skip(f"no PAMAP2 below {data_folder}: its files have not been at hand")
    table = read(data_folder / "pamap2", options())
    assert table.num_rows == pytest.approx(9 * 1287 / 0.6, rel=0.02)
    assert len(pc.unique(table["subject"])) == 9


def test_readings_are_interpolated_by_their_times():
    value_DN = np.array([[1, 1, 1], [0, np.nan, 4]], np.float32)
    steps = Recording(Path("x"), ("id", "f"), np.array([0.0, 1, 4]), value_DN, np.arange(3))
    _interpolate(steps)
    assert steps.value_DN[1].tolist() == [0, 1, 4]


def test_a_subject_that_is_there_twice_is_refused(made_up, tmp_path):
    source = made_up("pamap2", 1000, 7) / "Protocol" / "subject101.dat"
    (tmp_path / "old").mkdir()
    for place in (tmp_path, tmp_path / "old"):
        shutil.copy(source, place)
    with pytest.raises(InputError, match="a recording of subject 101 is in"):
        read(tmp_path, TaskOptions(name="pamap2"))
