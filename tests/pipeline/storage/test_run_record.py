"""A run folder says what the run is and what every round gave, whatever stopped the run."""

import json
from dataclasses import replace

import pytest

from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_folder import new_folder
from anchorfl.pipeline.storage.run_record import (
    FINAL_SCORES,
    RoundRecord,
    RunInfo,
    read_metadata,
    read_records,
    with_final_scores,
    write_final_scores,
)
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.record import TableRecord
from tests.runs import quiet


def info_of(folder, **changes):
    what = {"name": "run", "experiment": "digits", "params": {"method": "fedavg", "seed": 0}}
    return RunInfo(**(what | {"folder": folder} | changes))


def record(number, **extra):
    return RoundRecord(
        number, 1_700_000_000.0 + number, {"test/f1_macro": number / 10} | extra, {"test/f1": {"zero": 0.5}}
    )


def test_another_run_in_an_old_folder_is_a_new_run(tmp_path):
    first, again, other = JsonLines(tmp_path), JsonLines(tmp_path), JsonLines(tmp_path)
    ids = []
    for tracker, seed in ((first, 0), (again, 0), (other, 1)):
        tracker.begin(info_of(tmp_path, params={"seed": seed}))
        ids.append(json.loads((tmp_path / "run.json").read_text())["id"])
        tracker.round(record(0))
        tracker.end("FINISHED")
    assert ids[0] == ids[1] != ids[2]
    assert len(read_records(tmp_path)[0]) == 1


def test_a_run_killed_before_its_first_round_keeps_its_identity_under_a_newer_version(tmp_path):
    """A newer version has parameters that the old run.json does not know."""
    ids = []
    for params in ({"seed": 0, "lr": 0.1}, {"seed": 0, "lr": 0.1, "new": "x"}, {"seed": 0, "lr": 0.2, "new": "x"}, {}):
        JsonLines(tmp_path).begin(info_of(tmp_path, params=params))
        ids.append(json.loads((tmp_path / "run.json").read_text())["id"])
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("digest", ["data_digest", "partition_digest"])
def test_a_run_begun_again_on_other_data_is_a_new_run(tmp_path, digest):
    """Such as one that was stopped in its first rounds, to correct the table: MLflow had rounds of both in one run."""
    ids = []
    for value in ("a", "a", "b"):
        JsonLines(tmp_path).begin(info_of(tmp_path, tags={"config_digest": "d", digest: value}))
        ids.append(json.loads((tmp_path / "run.json").read_text())["id"])
    assert ids[0] == ids[1] != ids[2]
    JsonLines(tmp_path, 2).begin(info_of(tmp_path, tags={"config_digest": "d", digest: "c"}))
    assert json.loads((tmp_path / "run.json").read_text())["id"] == ids[2], "its checkpoint was held against the data"


def test_options_of_the_same_digest_are_the_same_run(tmp_path):
    """Such as a sweep that was killed before its first trial ended, and goes on with more trials, or another place."""
    tags = {"config_digest": "d", "kind": "sweep"}
    first = info_of(tmp_path, params={"trials": 3}, tags=tags)
    ids = []
    for info in (first, info_of(tmp_path, params={"trials": 9}, tags=tags),
                 info_of(tmp_path, params={"trials": 9}, tags=tags | {"config_digest": "e"})):  # fmt: skip
        JsonLines(tmp_path).begin(info)
        ids.append(read_metadata(tmp_path)["id"])
    assert ids[0] == ids[1]
    assert ids[2] == ids[1], "the same parameters"
    JsonLines(tmp_path).begin(info_of(tmp_path, params={"trials": 1}, tags=tags))
    assert read_metadata(tmp_path)["id"] != ids[2]


def test_a_run_takes_no_folder_of_another_kind(tmp_path, experiment):
    """Its record would be written over; neither does a table take a sweep's."""
    JsonLines(tmp_path / "s").begin(info_of(tmp_path / "s", tags={"kind": "sweep"}))
    before = (tmp_path / "s/run.json").read_bytes()
    e = experiment()
    with pytest.raises(InputError, match=r"s is a sweep's: give another folder"):
        new_folder(replace(e, output=str(tmp_path / "s")))
    with pytest.raises(InputError, match=r"s is a sweep's: give another folder"):
        run(e, tmp_path / "s", quiet)
    with pytest.raises(InputError, match=r"s is a sweep's: give another folder"):
        TableRecord(tmp_path / "s", tmp_path, "none", {"table": "suite"}, quiet)
    assert (tmp_path / "s/run.json").read_bytes() == before


def test_what_json_cannot_write_survives(tmp_path):
    tracker = JsonLines(tmp_path)
    tracker.begin(info_of(tmp_path))
    tracker.round(record(0, a=float("nan"), b=float("-inf")))
    tracker.end("FINISHED")
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)  # strict readers can read it
    metrics = read_records(tmp_path)[0][0].metrics
    assert metrics["a"] != metrics["a"]
    assert metrics["b"] == float("-inf")
    text = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text("{broken}\n" + text)
    with pytest.raises(InputError, match="line 1"):
        read_records(tmp_path)


def test_late_scores_of_another_run(tmp_path):
    """Those of other classes are damage; a new run in the folder does not take over those of the old one."""
    tracker = JsonLines(tmp_path)
    tracker.begin(info_of(tmp_path))
    tracker.round(record(0))
    write_final_scores(tmp_path, RoundRecord(0, 1.0, {"test/f1_macro": 0.9}, {"test/recall": {"zero": 0.25}}))
    assert with_final_scores(tmp_path)[0].per_class == {"test/f1": {"zero": 0.5}, "test/recall": {"zero": 0.25}}
    write_final_scores(tmp_path, RoundRecord(0, 1.0, {"test/f1_macro": 0.9}, {"test/recall": {"one": 0.25}}))
    with pytest.raises(
        InputError, match=r"final_scores/metrics.jsonl has scores of other classes than the run: delete"
    ):
        with_final_scores(tmp_path)
    JsonLines(tmp_path, resume_at=1).begin(info_of(tmp_path))
    assert (tmp_path / FINAL_SCORES).exists()
    JsonLines(tmp_path).begin(info_of(tmp_path, params={"seed": 1}))
    assert not (tmp_path / FINAL_SCORES).exists()


def test_a_half_line_is_dropped_and_replaced(tmp_path):
    tracker = JsonLines(tmp_path)
    tracker.begin(info_of(tmp_path))
    for number in range(3):
        tracker.round(record(number))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "time": 1.0, "met')
    records, offset = read_records(tmp_path)
    assert records == [record(number) for number in range(3)]
    assert read_records(tmp_path, offset) == ([], offset)
    again = JsonLines(tmp_path, resume_at=3)
    again.begin(info_of(tmp_path))
    again.round(record(3))
    assert [kept.round for kept in read_records(tmp_path)[0]] == [0, 1, 2, 3]


def test_artifacts_are_noted_once_and_must_be_there(tmp_path):
    folder = tmp_path / "run"
    tracker = JsonLines(folder)
    tracker.begin(info_of(folder))
    (folder / "inside.txt").touch()
    (tmp_path / "outside.txt").touch()
    for path in (folder / "inside.txt", folder / "inside.txt"):
        tracker.artifact(path)
    with pytest.raises(ValueError, match="outside"):
        tracker.artifact(tmp_path / "outside.txt")
    assert json.loads((folder / "run.json").read_text())["artifacts"] == ["inside.txt"]
    with pytest.raises(FileNotFoundError):
        tracker.artifact(folder / "nothing")
