"""Every input that once did something else than being read or refused in one line, kept as it was found, and its
nearest kin: run folders, models, sweeps, clusters. What was found in presets
stands as examples in test_options.py.
"""

from __future__ import annotations

import argparse
import json
import shutil

import pytest
from safetensors.torch import save

from anchorfl.models.start import StartError, read_start
from anchorfl.pipeline.cli.main import run_main
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.predict import model_of, predict
from anchorfl.pipeline.run.lifecycle import resume
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.run_folder import read_experiment
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import nearest
from anchorfl.tuning.clusters import check
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.sweep.final_runs import read_final_runs
from anchorfl.tuning.sweep.plan import load_plan
from tests.fuzz.found import file, refused
from tests.fuzz.mutations import DEEP
from tests.fuzz.promise import keep
from tests.fuzz.runs import finished, quiet, seal, unfinished

# ------------------------------------------------------------------------------------------------------- run folders


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("done"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return unfinished(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def run(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"checksum": 1}', "[" * DEEP, '{"a":' * DEEP, "9" * 5000])
def test_json_that_is_none_or_something_else(run, text):
    """ValueError, AttributeError, KeyError, RecursionError."""
    for name, read in (
        ("result.json", lambda: resume(run, quiet)),
        ("config.json", lambda: read_experiment(run)),
        ("run.json", lambda: compare([run], None)),
        ("model/model.json", lambda: predict(model_of(run), run / "none.txt")),
        ("checkpoint/checkpoint.json", lambda: Checkpoints(run).load()),
    ):
        before = (run / name).read_bytes()
        (run / name).write_text(text)
        refused(read, name.rpartition("/")[2])
        (run / name).write_bytes(before)


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "values",
    [
        {"model": {}, "head": "none"},
        {"head": "label", "class_embedding_width": 10**12},
        {"parts": 10**9, "head": "cosine"},
        {"head": "frame", "class_names": ["a"]},
        {"kind": []},
        {"class_names": ["a"] * 7},
        {"input": {"kind": "tokens", "shape": [10**12], "vocabulary": ["a"]}},
        {"input": {"kind": "series", "shape": [3]}},
        {"input": {"kind": "image", "shape": [3, 10**5, 10**5], "levels": 10**9}},
        {"task": "no-task"},
    ],
)
def test_a_model_that_is_described_wrongly(run, values):
    """KeyError, TypeError, and a network of terabytes."""
    changed(run / "model/model.json", **values)
    file(run, "texts.txt", "a b\n")
    refused(lambda: predict(model_of(run), run / "texts.txt"), "task" if "task" in values else "model.json")


def test_a_model_of_any_width(run):
    about = json.loads((run / "model/model.json").read_text())
    for width in (0, -1, 10**9, 10**18, 10**30):
        changed(run / "model/model.json", model=about["model"] | {"width": width, "feedforward": width})
        refused(lambda: predict(model_of(run), run / "texts.txt"), "model.json")


ENTRY = {"sha256": "0", "parts": ["state"], "written": 1}


@pytest.mark.parametrize(
    "values",
    [
        {"files": {"../../elsewhere.safetensors": ENTRY}},
        {"files": {"/etc/passwd": ENTRY}},
        {"files": {"a\x00b": ENTRY}},
        {"files": {"": ENTRY}},
        {"files": {"..": ENTRY}},
        {"files": {"state-000002.safetensors": {"sha256": "0"}}},
        {"files": {"state-000002.safetensors": {**ENTRY, "parts": "state"}}},
        {"files": []},
        {"files": {}},
        {"notes": {"round": "2"}},
        {"notes": {"other": 2}},
        {"notes": {"round": -7}, "round": -7},
        {"notes": {"round": 2, "best_round": 9}},
        {"round": 10**30},
    ],
)
def test_a_checkpoint_that_names_other_things(stopped, tmp_path, values):
    """Files elsewhere were read, and KeyError and TypeError came of what was missing."""
    folder = shutil.copytree(stopped, tmp_path / "run")
    changed(folder / "checkpoint/checkpoint.json", **values)
    seal(folder / "checkpoint/checkpoint.json")
    refused(lambda: resume(folder, quiet), "checkpoint.json")


def test_records_that_disagree_on_the_classes(run):
    """KeyError in the table per class."""
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    first = next(iter(line["per_class"]))
    line["per_class"][first].popitem()
    lines = [json.dumps(line)] * 2
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    refused(lambda: read_records(run), "metrics.jsonl")


def test_a_round_that_is_no_whole_number(run):
    """It overflowed in the curves."""
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[1]) | {"round": 1e308}
    (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    refused(lambda: read_records(run), "metrics.jsonl")


@pytest.mark.parametrize("where", ["metrics", "per_class"])
def test_a_score_that_no_run_can_have(run, where):
    """As a percentage it overflowed in the curves."""
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    if where == "metrics":
        line["metrics"]["test/f1_macro"] = 1e308
    else:
        line["per_class"]["test/f1"] = dict.fromkeys(line["per_class"]["test/f1"], -1e308)
    (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    refused(lambda: read_records(run), "metrics.jsonl")
    refused(lambda: compare([run], run / "made"), "metrics.jsonl")


def test_tensors_of_unknown_types(tmp_path):
    """KeyError."""
    import torch

    data = save({"a": torch.zeros(4, dtype=torch.uint8)})
    for kind in (b'"F4"', b'"F8_E8M0"', b'"U8 "'):
        with pytest.raises(StartError, match=r"w\.safetensors"):
            read_start(file(tmp_path, "w.safetensors", data.replace(b'"U8"', kind)))


@pytest.mark.parametrize("line", ['{"round": 1e999}', '{"round": ' + "9" * 400 + "}", "[" * DEEP, "[]", "1"])
def test_records_of_no_round(run, line):
    """OverflowError, RecursionError."""
    path = run / "metrics.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    refused(lambda: read_records(run), "metrics.jsonl: line 1")


def test_a_message_is_one_line_of_plain_text(tmp_path, capsys):
    """Text of a file is quoted, and could move the cursor or fill the screen."""
    name = "\x1b[2J\r\n" + "a" * 5000
    path = file(tmp_path, "a.toml", f"extends = {json.dumps(name)}\n")
    assert run_main(["run", str(path)]) == 2
    said = capsys.readouterr().err.removesuffix("\n")
    assert said.isprintable()
    assert len(said) < 2000


def test_the_nearest_to_a_word_of_megabytes():
    """The search takes the square of its length."""
    keep("findings", lambda: nearest("ab" * 500_000, ["ab" * 1000] * 100))


# ------------------------------------------------------------------------------------------------ sweeps and clusters


@pytest.mark.parametrize(
    "lines",
    [
        ["[]"],
        ["null"],
        ['{"event": []}'],
        ['{"event": "result", "trial": 0, "round": 1, "record": {}, "time": 0}'],
        ['{"event": "suggest", "trial": 5, "point": {}, "time": 0}'],
        ['{"event": "suggest", "trial": 0, "point": 5, "time": 0}'],
        ['{"event": "start", "time": "now", "versions": {}}'],
        ['{"event": "suggest", "trial": 0, "point": {}, "time": Infinity}'],
        ["[" * DEEP],
    ],
)
def test_events_that_cannot_be(tmp_path, lines):
    path = file(tmp_path, "ledger.jsonl", "\n".join(lines) + "\n")
    refused(lambda: Ledger(path), "ledger.jsonl:1")


@pytest.mark.parametrize(
    "record",
    [
        '{"score": 0.5, "scores": {"x": 0.5}}', '{"score": 0.5, "scores": {}}', '{"score": NaN, "scores": {"0": 0.5}}',
        '{"score": 0.5, "scores": {"0": NaN}}', '{"score": 0.5, "scores": {"0": 1e308}}',
        '{"score": 0.5, "scores": {"0": 0.5}, "expense": Infinity}',
    ],
)  # fmt: skip
def test_rounds_of_a_trial_that_cannot_be(tmp_path, record):
    """ValueError, AttributeError, OverflowError."""
    first = '{"event": "suggest", "trial": 0, "point": {}, "time": 0}'
    for round_, of in ((1, record), (0, '{"score": 0.5, "scores": {"0": 0.5}}')):
        event = f'{{"event": "result", "trial": 0, "round": {round_}, "record": {of}, "time": 0}}'
        path = file(tmp_path, "ledger.jsonl", f"{first}\n{event}\n")
        refused(lambda path=path: Ledger(path), "ledger.jsonl:2")


@pytest.mark.parametrize("text", ["{}", "[]", '{"options": 1}', "[" * DEEP])
def test_a_sweep_that_was_never_asked_for(tmp_path, text):
    file(tmp_path, "sweep.json", text)
    refused(lambda: load_plan(tmp_path, {}), "sweep.json")


@pytest.mark.parametrize("scores", [{}, {"": {"f1_macro": 0.5}}, {"test": {}}])
def test_a_final_run_without_scores_of_the_test_split(tmp_path, scores):
    """KeyError."""
    place = tmp_path / "trial-0001-seed-5"
    place.mkdir()
    file(place, "result.json", json.dumps({"rounds": 2, "scores": scores, "seconds": 2.0}))
    refused(lambda: read_final_runs(tmp_path, "trial-0001", {5: "d"}), "result.json")


ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1\n",
        "a: 2001-99-99\n",
        "a: &a [*a]\n",
        "a0: &a0 [1, 2]\n" + ALIASES,
        "[" * 2000,
        "a: !!int x\n",
        "a: !!python/object/apply:os.system ['true']\n",
        "\x00",
        "{",
        "a: " + "9" * 5000,
    ],
)
def test_yaml_that_is_no_cluster(tmp_path, text, capsys):
    """TypeError, ValueError, RecursionError, and aliases that make gigabytes of a kilobyte."""
    parser = argparse.ArgumentParser()
    check.arguments(parser)
    options = parser.parse_args([str(file(tmp_path, "c.yaml", text))])
    codes = []
    keep("findings", lambda: codes.append(check.check(options)))
    assert codes in ([2], [])
    for line in capsys.readouterr().err.splitlines():
        assert "c.yaml" in line
