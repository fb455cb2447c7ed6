"""The end of a run: the selected round's late test scores, and records that a kill kept from their end."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.algorithm.options import OptimizerOptions, in_round
from anchorfl.pipeline.config.federation import quorum_size
from anchorfl.pipeline.results.compare import load_run
from anchorfl.pipeline.run import lifecycle as running
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_record import FINAL_SCORES, read_metadata, read_records, with_final_scores
from anchorfl.tasks.errors import InputError
from tests.runs import quiet


def test_the_late_test_scores_of_the_selected_round_are_recorded(experiment, tmp_path):
    """One test in all, of the round that validation chose: it stands in the run's records, and nowhere else."""
    e = experiment(evaluation={"model_selection": "best_validation", "test": "last"})
    result = run(e, tmp_path / "run", quiet)
    assert all("test/f1_macro" not in r.metrics for r in read_records(tmp_path / "run")[0])
    chosen = json.loads((tmp_path / "run" / "result.json").read_text())["round"]
    tested = [r for r in with_final_scores(tmp_path / "run") if "test/f1_macro" in r.metrics]
    assert [r.round for r in tested] == [chosen]
    assert tested[0].metrics["test/f1_macro"] == result.scores["test"]["f1_macro"]
    assert set(tested[0].per_class) >= {"test/f1", "validation/f1"}
    values = load_run(tmp_path / "run").values
    assert values["f1_best"] == values["f1_last"] == result.scores["test"]["f1_macro"]
    assert FINAL_SCORES in read_metadata(tmp_path / "run")["artifacts"]


def test_another_round_than_the_best_is_not_called_the_best(experiment, tmp_path):
    """The last round alone is tested; where validation was better before, there is no test score of the best."""
    run(experiment(evaluation={"test": "last"}), tmp_path / "run", quiet)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, score in zip(lines, (0.1, 0.9, 0.6, 0.5), strict=True):
        line["metrics"]["validation/f1_macro"] = score
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = load_run(tmp_path / "run").values
    assert values["f1_last"] is not None
    assert values["f1_best"] is None


def test_resuming_a_finished_run_closes_its_record_and_sends_the_rest(experiment, tmp_path, monkeypatch):
    """As after a kill between the result and the end of the record."""
    folder, sent = tmp_path / "run", []
    result = run(experiment(), folder, quiet)
    write_json(folder / "run.json", read_metadata(folder) | {"status": "RUNNING"})
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(running, "store_uri", lambda uri, where: "http://127.0.0.1:1")
    monkeypatch.setattr(running, "send", lambda where, uri: sent.append((where, uri)))
    assert resume(folder, quiet).checksum == result.checksum
    about = read_metadata(folder)
    assert about["status"] == "FINISHED"
    assert about["ended"] >= about["begun"]
    assert sent == [(folder, "http://127.0.0.1:1")]

    def away(where, uri):
        raise InputError("MLflow at http://127.0.0.1:1 took 0 rounds, then: refused")

    monkeypatch.setattr(running, "send", away)
    said = []
    resume(folder, said.append)
    assert said[-1] == (
        f"MLflow at http://127.0.0.1:1 took 0 rounds, then: refused; send it later with: anchorfl sync {folder}"
        " --uri http://127.0.0.1:1"
    )
    assert json.loads((folder / "config.json").read_text()) == config


def test_selection_without_a_validation_row_is_refused_before_training(experiment, tmp_path):
    e = experiment(evaluation={"model_selection": "best_validation"})
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, validation=0.001))
    with pytest.raises(InputError, match=r"needs validation rows, and task.validation = 0.001 of these data is none"):
        run(e, tmp_path / "run", quiet)


@pytest.mark.parametrize(
    ("quorum", "selected", "count"),
    [(0.28, 25, 7), (0.56, 25, 14), (0.14, 50, 7), (0.07, 100, 7), (0.5, 5, 3), (0.01, 5, 1), (1.0, 8, 8)],
)
def test_a_quorum_is_met_by_its_share(quorum, selected, count):
    assert quorum_size(quorum, selected) == count


def test_rates_of_a_methods_own_decay_as_the_options():
    """FedAlign has a rate for either encoder in place of ``optimizer.lr``."""
    options = OptimizerOptions(lr=0.5, lr_decay=0.5)
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    assert make(in_round(options, 5), parameter).param_groups[0]["lr"] == 0.5**5
    assert make(in_round(options, 5), parameter, 0.001, 5).param_groups[0]["lr"] == 0.001 * 0.5**4
    assert make(in_round(options, 5), parameter, 0.001).param_groups[0]["lr"] == 0.001


def test_a_run_does_not_go_on_with_data_that_are_prepared_otherwise(experiment, tmp_path):
    """As after a new version: the rows would be others, and nobody would see it."""
    folder, e = tmp_path / "run", experiment()
    run(e, folder, quiet)
    (folder / "result.json").unlink()
    about = read_metadata(folder)
    run(e, folder, quiet)  # the same data: it goes on
    (folder / "result.json").unlink()
    write_json(folder / "run.json", about | {"tags": about["tags"] | {"partition_digest": "another"}})
    with pytest.raises(InputError, match=r"prepared otherwise now \(partition_digest differs\)"):
        run(e, folder, quiet)
    assert read_metadata(folder)["tags"]["partition_digest"] == "another"
