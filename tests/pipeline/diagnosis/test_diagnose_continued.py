"""``anchorfl diagnose`` on runs that continue: one that was interrupted, and one with records in MLflow."""

from __future__ import annotations

import dataclasses
import json

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.diagnosis.diagnose import diagnose
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.testing import stopped_before
from tests.pipeline.diagnosed import QUICK, table
from tests.runs import quiet


def test_an_interrupted_run_that_kept_nothing(experiment, finished_run, tmp_path):
    """Its last completed round is there; diagnosed and resumed, it ends as one that was never looked at."""
    e = experiment("fedalign")
    with stopped_before(2):
        run(e, tmp_path / "parts", quiet)
    said = []
    diagnose(tmp_path / "parts", QUICK, said.append)
    assert any("only round 1 is there" in line and "--evaluation.save_state_every 1" in line for line in said)
    assert {r["round"] for r in table(tmp_path / "parts/diagnosis/divergence.csv")} == {"1"}
    assert resume(tmp_path / "parts", quiet).checksum == finished_run(e).checksum
    assert "diagnosis" in json.loads((tmp_path / "parts/run.json").read_text())["artifacts"]


def test_mlflow_gets_numbers_and_figures_once(experiment, tmp_path):
    import mlflow

    e = dataclasses.replace(experiment("fedavg", evaluation={"save_state_every": 2}), tracking=TrackingOptions())
    folder = tmp_path / "runs" / "one"
    run(e, folder, quiet)
    assert diagnose(folder, QUICK, quiet)[-1] == "MLflow has the diagnosis"
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment_id = client.get_experiment_by_name("toy-single").experiment_id
    (found,) = client.search_runs([experiment_id])

    def steps(key):
        return [row.step for row in client.get_metric_history(found.info.run_id, key)]

    assert steps("diagnosis/a_distance/pair") == [2, 3]
    assert steps("diagnosis/agreement/match/a_b") == [3]
    assert {"diagnosis/divergence.csv", "diagnosis/divergence.png", "diagnosis/representations.png"} <= {
        f.path for f in client.list_artifacts(found.info.run_id, "diagnosis")
    }
    before = steps("sync/round_complete")
    diagnose(folder, QUICK, quiet)  # the same numbers at another time of day
    assert send(folder) == 0
    assert steps("diagnosis/a_distance/pair") == [2, 3]
    assert steps("sync/round_complete") == before == [0, 1, 2, 3]
