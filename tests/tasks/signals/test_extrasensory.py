"""ExtraSensory: what the synthetic files hold comes back in sequences; the counts of the real files."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.model_selection import KFold, train_test_split

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_table import canonicalize_options
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.signals import extrasensory as module
from anchorfl.tasks.signals.extrasensory import GAP, STEPS, extrasensory, fit, read
from anchorfl.tasks.signals.extrasensory_columns import CLASSES, COLUMNS, FEATURES, GROUPS, LABELS, TABLE_NAMES
from anchorfl.tasks.signals.series import REAL, encode_series
from tests.tasks.minutes import files, lines_of, options, same

F = len(FEATURES)


def expected(path):
    """Return the sequences of one file, minute by minute: labels 0, 1 or None, and the features of each minute."""
    header, *rows = csv.reader(lines_of(path))
    assert tuple(header) == COLUMNS
    found, last = [], None
    for row in rows:
        label = [None if text in ("", "nan") else int(float(text)) for text in row[1 + F : -1]]
        if 1 not in label:
            last = None
            continue
        time, feature = float(row[0]), [float(text or "nan") for text in row[1 : 1 + F]]
        if last is None or time - last >= GAP or label != found[-1][0] or len(found[-1][1]) == STEPS:
            found.append((label, []))
        found[-1][1].append(feature)
        last = time
    return found


def test_the_minutes_of_the_twin_come_back_in_sequences(es_twin):
    table = read(es_twin, options())
    assert table["row"].to_pylist() == list(range(table.num_rows))
    row = 0
    for path in files(es_twin):
        for label, features in expected(path):
            line = table.slice(row, 1)
            assert line["labels"].to_pylist() == [[c for c, y in enumerate(label) if y == 1]]
            assert line["known"].to_pylist() == [[c for c, y in enumerate(label) if y is not None]]
            assert line["subject"].to_pylist() == [path.name.partition(".")[0]]
            readings = line["readings"].combine_chunks().flatten().to_numpy()
            assert np.array_equal(readings, np.array(features, dtype=np.float32).ravel(), equal_nan=True)
            row += 1
    assert row == table.num_rows
    length_N = pc.list_value_length(table["readings"]).to_numpy() // F
    assert set(length_N) == set(range(1, STEPS + 1))
    assert np.isnan(table["readings"].combine_chunks().flatten().to_numpy()).any()
    assert set(table["labels"].combine_chunks().flatten().to_pylist()) == set(range(len(CLASSES)))


def test_a_fold_tests_its_users_whatever_else_and_rows_do_not_depend_on_it(es_twin):
    tested, first = set(), read(es_twin, options())
    for fold in range(5):
        table = read(es_twin, options(fold=fold))
        users = {
            split: set(table.filter(pc.equal(table["split"], split))["subject"].to_pylist())
            for split in ("train", "test")
        }
        published = {
            line for path in es_twin.glob(f"cv_5_folds/fold_{fold}_test_*") for line in path.read_text().split()
        }
        assert users["test"] == published
        assert not users["test"] & users["train"]
        assert same(table.drop_columns(["split"]), first.drop_columns(["split"]))
        tested |= users["test"]
    assert len(tested) == 10


def test_folds_of_sequences_keep_the_pieces_of_a_sequence_together(es_twin):
    tables = [read(es_twin, options(variant="sequences", fold=fold)) for fold in range(5)]
    tested_FN = np.array([np.array(table["split"]) == "test" for table in tables])
    assert (tested_FN.sum(0) == 1).all(), "every row is tested in one fold"
    fold_N = tested_FN.argmax(0)
    same_N, user_N = [], []
    for path in files(es_twin):
        rows = [row for row in csv.DictReader(lines_of(path)) if any(row[f"label:{n}"] in ("1", "1.0") for n in LABELS)]
        last = None
        for row in rows:  # which minutes stand in one sequence, whatever its length
            label = [row[f"label:{n}"] for n in LABELS]
            same_N.append(last is not None and float(row["timestamp"]) - last[0] < GAP and label == last[1])
            last = float(row["timestamp"]), label
        user_N += [path.name] * len(rows)
    length_N = pc.list_value_length(tables[0]["readings"]).to_numpy() // F
    fold_S = np.repeat(fold_N, length_N)
    assert len(fold_S) == len(same_N)
    assert (fold_S[1:] == fold_S[:-1])[np.array(same_N[1:])].all(), "a cut sequence is in one fold"
    assert len(set(zip(user_N, fold_S.tolist(), strict=True))) > len(files(es_twin)), "users are on both sides"
    share_F = tested_FN.mean(1)
    assert (abs(share_F - 0.2) < 0.08).all()
    assert same(tables[0].drop_columns(["split"]), read(es_twin, options()).drop_columns(["split"]))


def test_a_sequence_is_on_one_side_of_the_validation_split(es_twin, tmp_path):
    made = options(root=str(es_twin), cache=str(tmp_path), clients=3, partition="categories", validation=0.25)
    table = read(es_twin, made)
    sequence_of = dict(zip(table["row"].to_pylist(), table["piece_of"].to_pylist(), strict=True))
    assert len(set(sequence_of.values())) < len(sequence_of), "some sequence is cut"
    for piece in range(1, table.num_rows):  # pieces of a sequence follow each other, whole but for the last
        if table["piece_of"][piece] == table["piece_of"][piece - 1]:
            assert table["labels"][piece] == table["labels"][piece - 1]
            assert len(table["readings"][piece - 1]) == STEPS * F
    for where in ("server", "clients"):
        plan = prepare(extrasensory(), replace(made, validation_from=where), 1, engine="local").plan()
        parts = [*(client.rows for client in plan.clients), plan.validation]
        sides = [{sequence_of[row] for row in part.tolist()} for part in parts]
        training = {sequence_of[r] for r in table.filter(pc.equal(table["split"], "train"))["row"].to_pylist()}
        assert sum(map(len, sides)) == len(set().union(*sides)) == len(training)


def test_folds_may_be_drawn_by_the_seed_of_the_run(es_twin, tmp_path):
    """As FedAlign's authors: scikit-learn's KFold over whole sequences, anew for each seed."""
    base = options(variant="sequences", fold=-1, root=str(es_twin), cache=str(tmp_path), partition="iid", clients=2)
    own = replace(base, split_seed=None)
    assert canonicalize_options(extrasensory(), own, 4321) == replace(base, fold=1, split_seed=4321)
    tested = [prepare(extrasensory(), own, seed, engine="local").manifest for seed in (5, 10)]  # both test fold 0
    assert tested[0].raw_digest == tested[1].raw_digest
    rows = [read(es_twin, replace(base, fold=0, split_seed=seed)).column("split").to_pylist() for seed in (5, 10, 5)]
    assert rows[0] == rows[2] != rows[1]
    assert [m.test for m in tested] == [split.count("test") for split in rows[:2]]
    table = read(es_twin, replace(base, fold=0))
    sequences = 1 + max(table["piece_of"].to_pylist())
    for fold, (_, tested_Q) in enumerate(KFold(5, shuffle=True, random_state=5).split(range(sequences))):
        of_fold = read(es_twin, replace(base, fold=fold, split_seed=5))
        rows = of_fold.filter(pc.equal(of_fold["split"], "test"))
        assert set(rows["piece_of"].to_pylist()) == set(tested_Q.tolist())
    with pytest.raises(InputError, match="split_seed = 4294967296: KFold's seeds lie below"):
        read(es_twin, replace(base, fold=0, split_seed=1 << 32))
    with pytest.raises(InputError, match="split_seed = -2: must be at least 0"):
        canonicalize_options(extrasensory(), replace(base, split_seed=-2), 0)


DRAWN = ["digits", "cal500", "kvasir-v2", "ham10000", "pbc", "femnist", "pamap2"]


@pytest.mark.parametrize("name", DRAWN)
def test_any_split_that_is_drawn_may_be_another(made_up, name):
    """By its seed, and by nothing else; -1 is the data set's own."""
    task = find_task(name)
    folder = None if name == "digits" else made_up(name, 600 if name == "femnist" else 80, 1)
    base = TaskOptions(name=name)
    tables = [task.read(folder, replace(base, split_seed=seed)) for seed in (-1, 5, 6, 5)]
    rows = [dict(zip(t["row"].to_pylist(), t["split"].to_pylist(), strict=True)) for t in tables]
    assert rows[1] == rows[3]
    assert rows[0] == dict(zip(*(task.read(folder, base)[c].to_pylist() for c in ("row", "split")), strict=True))
    assert rows[0] != rows[1] != rows[2]
    with pytest.raises(ValueError, match="canonicalize_options"):
        task.read(folder, replace(base, split_seed=None))


@pytest.mark.parametrize(("name", "clients"), [("es-15/fedalign", 15), ("es-25/fedalign", 25)])
def test_the_presets_have_the_class_sets_of_the_authors_code(name, clients):
    """All 51 classes, each with one client, in halves of the categories that scikit-learn draws."""
    for seed, sets in json.loads(read_preset(name).task.client_classes).items():
        groups = sorted(
            ([c for c in CLASSES if c in members] for members in GROUPS.values()), key=lambda g: CLASSES.index(g[0])
        )
        while len(groups) < clients:
            largest = max(groups, key=len)
            groups = [g for g in groups if g != largest]
            groups += train_test_split(largest, train_size=0.5, random_state=int(seed))
        assert {frozenset(part) for part in sets} == {frozenset(group) for group in groups}
        assert sorted(c for part in sets for c in part) == sorted(CLASSES)


def test_without_published_folds_whole_users_are_drawn(folder):
    shutil.rmtree(folder / "cv_5_folds")
    tests = []
    for fold in range(5):
        table = read(folder, options(fold=fold))
        chosen = table.filter(pc.equal(table["split"], "test"))["subject"]
        tests += pc.unique(chosen).to_pylist()
        assert same(table, read(folder, options(fold=fold)))
    assert len(tests) == len(set(tests)) == 10


def test_prepared_the_clients_know_what_the_files_say(es_twin, tmp_path):
    made = options(root=str(es_twin), cache=str(tmp_path), clients=3, partition="iid", validation=0.25)
    prepared = prepare(extrasensory(), made, 1, engine="local")
    assert prepared.manifest.spec.shape == (STEPS, F)
    test = prepared.split("test", Objective("multi"))
    table = read(es_twin, made)
    rows = table.filter(pc.equal(table["split"], "test"))
    assert test.x.shape == (rows.num_rows, STEPS, F)
    assert test.known_NC.sum(1).int().tolist() == pc.list_value_length(rows["known"]).to_pylist()
    assert 0 < test.known_NC.mean() < 1
    length_N = pc.list_value_length(rows["readings"]).to_numpy() // F
    assert np.array_equal((test.x != 0).any(2).sum(1).numpy(), length_N)
    scaled = prepared.client(0, Objective("multi")).x
    real = scaled[(scaled != 0).any(2)]
    assert abs(real.mean()) < 0.1
    assert 0.8 < real.std() < 1.1


def test_scaling_is_imputing_and_standardising_the_training_minutes(es_twin):
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = read(es_twin, options())
    train = table.filter(pc.equal(table["split"], "train"))
    spec = fit(train, options())
    minutes_SF, every_SF = (
        part["readings"].combine_chunks().flatten().to_numpy().reshape(-1, F).astype(np.float64)
        for part in (train, table)
    )
    scaler = make_pipeline(SimpleImputer(), StandardScaler()).fit(minutes_SF)
    encoded = encode_series(table, spec)["x"].combine_chunks().flatten().to_numpy().reshape(-1, F)
    real = encoded[encoded.any(1)]
    assert np.allclose(real, scaler.transform(every_SF), atol=1e-4)


def test_padding_is_zero_and_a_real_step_never_is():
    spec = InputSpec("series", (3, 2), mean=(1.0, 5.0), std=(2.0, 1.0))
    nan = float("nan")
    rows = [[1, 5, nan, None, 3, 4], [3, 6, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [5.0, 5.0]]
    table = pa.table({"row": range(4), "readings": pa.array(rows, pa.list_(pa.float64()))})
    encoded = encode_series(table, spec)
    x = np.array(encoded["x"].to_pylist(), dtype=np.float32).reshape(4, 3, 2)
    small = np.float32(REAL)
    assert x[0].tolist() == [[small, 0], [small, 0], [1, -1]]
    assert x[1].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert x[2].tolist() == [[-0.5, -5], [0, 0], [0, 0]]
    assert x[3].tolist() == [[2, 0], [0, 0], [0, 0]]
    for start in range(4):
        assert encode_series(table.slice(start, 1), spec)["x"].to_pylist() == [encoded["x"][start].as_py()]
    assert encode_series(table.slice(0, 0), spec).num_rows == 0
    for bad in ([], [1.0], [1.0] * 8):
        table = pa.table({"row": [7], "readings": pa.array([bad], pa.list_(pa.float64()))})
        with pytest.raises(InputError, match=f"row 7 has {len(bad)} readings; give 1 to 3 steps of 2 each"):
            encode_series(table, spec)


def test_classes_are_in_one_group_each():
    assert sorted(name for members in GROUPS.values() for name in members) == sorted(CLASSES)
    assert {group: len(members) for group, members in GROUPS.items()} == {
        **{"posture": 6, "phone": 4, "companion": 2, "location": 16, "activity": 23}
    }
    assert len(set(CLASSES)) == len(LABELS) == 51
    assert len(COLUMNS) == 278


@pytest.fixture
def real(data_folder):
    if not list(data_folder.glob("extrasensory/*.features_labels.csv.gz")):
        pytest.skip(f"no ExtraSensory below {data_folder}; set ANCHORFL_DATA")
    return data_folder / "extrasensory"


COUNTS = {"indoors": 4936, "stairs going up": 5}


@pytest.mark.data
def test_the_real_data_have_the_counts_of_the_docstring(real):
    if len(files(real)) != 16:
        pytest.skip("the counts are those of 16 users")
    text = " ".join(str(module.__doc__).split())
    table = read(real, options())
    minutes = sum(gzip.decompress(path.read_bytes()).count(b"\n") - 1 for path in files(real))
    used = int(pc.sum(pc.list_value_length(table["readings"])).as_py()) // F
    assert f"{minutes} minutes, {used} with a positive label, {table.num_rows} sequences" in text
    assert f"of {used / table.num_rows:.1f} minutes on average" in text
    count_C = np.bincount(table["labels"].combine_chunks().flatten().to_numpy(), minlength=len(CLASSES))
    assert {name for name, count in zip(CLASSES, count_C, strict=True) if not count} == {"at a bar", "beach"}
    assert {name: count_C[CLASSES.index(name)] for name in COUNTS} == COUNTS
    assert skipped(table) == (0, [])


@pytest.mark.data
def test_a_real_fold_tests_three_users_or_four(real):
    sizes = []
    for fold in (3, 4):
        table = read(real, options(fold=fold))
        sizes.append(len(pc.unique(table.filter(pc.equal(table["split"], "test"))["subject"])))
    assert sizes == [3, 4]


@pytest.mark.data
def test_every_class_has_a_row_in_the_co_occurrence_table(cooccurrence_names):
    assert sorted(TABLE_NAMES[name] for name in CLASSES) == sorted(cooccurrence_names("extrasensory"))


def test_a_step_of_zeros_inside_a_row_is_no_padding():
    rows = pa.table({"row": [0], "readings": pa.array([[2.0, 0.0, 3.0]], pa.list_(pa.float64()))})
    encoded = encode_series(rows, InputSpec("series", (3, 1), mean=(1.0,), std=(1.0,)))
    assert encoded["x"].to_pylist() == [[1, -1, 2]]
