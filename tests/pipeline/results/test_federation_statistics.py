"""A federation in numbers: against counts of its rows, and beside what a paper says of it."""

from __future__ import annotations

import numpy as np
import pytest

from anchorfl.pipeline.config.preset_files import read_paper, read_toml
from anchorfl.pipeline.config.presets import shipped
from anchorfl.pipeline.results.federation_statistics import published_statistics, statistics_of, statistics_table
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task


@pytest.mark.parametrize(("partition", "clients"), [("k_classes", 4), ("one_class", 0)])
def test_every_number_is_that_of_the_rows(tmp_path, partition, clients):
    task = find_task("toy-multi")
    options = TaskOptions(name="toy-multi", clients=clients, partition=partition, cache=str(tmp_path), validation=0.2)
    data = prepare(task, options, 3, engine="local")
    objective = Objective("multi")
    raw = task.read(None, options)
    y_NC = np.zeros((raw.num_rows, 5), dtype=bool)
    for i, labels in enumerate(raw["labels"].to_pylist()):
        y_NC[i, labels] = True
    if partition == "one_class":  # rows without a class are with nobody
        test_N, used_N = np.array(raw["split"]) == "test", y_NC.any(1)
        held = data.split("validation", objective).y_NC.numpy()
        training = (used_N & ~test_N).sum() - held.any(1).sum()
    else:
        training = sum(data.manifest.examples)
    got = statistics_of(data)
    assert got["training_rows"] == training
    assert (got["clients"], got["classes"]) == (len(data.manifest.examples), 5)
    assert (got["validation_rows"], got["test_rows"]) == (data.manifest.validation, data.manifest.test)
    assert ("features" in got) == (data.manifest.spec.kind == "sparse")
    assert got["rows_per_client"] == pytest.approx(np.mean(data.manifest.examples))
    assert got["classes_per_client"] == (1 if partition == "one_class" else 3)
    assert got["imbalance"] == pytest.approx(y_NC.sum(0).min() / y_NC.sum(0).max())
    assert "published" not in statistics_table(data, {})
    lines = statistics_table(data, {"classes": 7, "rows_per_client": 1234.5}).splitlines()
    assert [line.split()[-1] for line in lines] == ["published", "-", "7", "-", "-", "-", "1,234.5", "-", "-"]


def test_the_paper_of_a_preset_says_what_its_table_has():
    assert published_statistics("r8-8/fedalign")["imbalance"] == 0.0130
    assert published_statistics("r8-8-redrawn/moon") == published_statistics("r8-8/fedalign")
    assert published_statistics("pbc-0.05/fedbm")["training_rows"] == 11959  # for both beta
    for none in ("digits/fedavg", "digits", "", "own.toml"):
        assert published_statistics(none) == {}
    papers = [paper for name, paper in shipped().papers.items() if name != "suite"]  # the project's own
    assert len(papers) == 3
    for paper in papers:
        assert {label.partition(",")[0] for label in paper.data} <= {*paper.statistics, *paper.beside} | {
            label.partition(",")[0] for label in paper.beside
        }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("R8-9 = { classes = 8 }", r"no key 'R8-9' in \[statistics\] \(did you mean 'R8-8'\?\)"),
        ("R8-8 = { classes_ = 8 }", r"no key 'classes_' in \[statistics.'R8-8'\] \(did you mean 'classes'\?\)"),
        ("R8-8 = { classes = '8' }", r"statistics.'R8-8'.classes = '8': must be a number"),
    ],
)
def test_statistics_are_read_strictly(tmp_path, line, message):
    path = tmp_path / "paper.toml"
    path.write_text(
        "title = 'T'\npublished = 'T'\nseeds = [0]\n[data]\nR8-8 = 'r8-8'\n[rows.a.method]\nname = 'fedavg'\n"
        f"[statistics]\n{line}\n"
    )
    with pytest.raises(InputError, match=message):
        read_paper(path, read_toml(path))
