"""anchorfl recommend: shapes by hand, the nearest settings, the list and its commands."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchorfl.pipeline.config.presets import preset_names, read_preset, shipped
from anchorfl.pipeline.run.assemble import from_words
from anchorfl.pipeline.run.prepare import prepare_data
from anchorfl.tasks.contract import Objective
from anchorfl.tuning import commands
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables import recommend
from anchorfl.tuning.tables.recommend import (
    ADDS,
    FAR,
    NEAREST,
    SHAPES,
    Setting,
    Shape,
    by_distance,
    candidates,
    nearest_settings,
    read_settings,
    shape_of,
    shape_of_experiment,
    shapes_of,
    shapes_text,
)  # fmt: skip
from tests.processes import ROOT
from tests.runs import quiet

TABLE = ["--task.label_columns", "kind", "--task.clients", "6"]


@pytest.fixture
def flowers(tmp_path, monkeypatch):
    """Write a single-label table and stand in its folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    kind_N = np.arange(240) % 4
    lines = [f"{k + rng.normal():.3f},{-k + rng.normal():.3f},{'abcd'[k]}" for k in kind_N]
    Path("flowers.csv").write_text("\n".join(["size,height,kind", *lines]) + "\n")
    return ["flowers.csv", *TABLE]


@pytest.fixture
def tags(tmp_path, monkeypatch):
    """Write a multi-label table and stand in its folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    tags_NC = rng.random((240, 5)) < 0.4
    lines = [f"{rng.normal():.3f}," + ",".join(str(int(t)) for t in row) for row in tags_NC]
    Path("tags.csv").write_text("\n".join(["size,a,b,c,d,e", *lines]) + "\n")
    return ["tags.csv", "--task.label_columns", "a,b,c,d,e", "--task.clients", "6"]


def data_of(words):
    e = from_words("", ["--task.file", *words, "--method.name", "fedavg"], "anchorfl run", quiet).experiment
    return prepare_data(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial")), quiet)


@pytest.mark.parametrize(
    "words",
    [
        ["--task.partition", "k_classes", "--task.classes_per_client", "2"],
        ["--task.partition", "dirichlet", "--task.beta", "0.3"],
        ["--task.partition", "one_class", "--task.clients", "4"],
        ["--task.client_classes", '[["a"],["b"],["a","b"],["a"],["b"],["c","d"]]'],
    ],
)
def test_a_shape_is_that_of_the_rows(flowers, words):
    """From the rows themselves, which the command does not open where a row has one label."""
    data = data_of([*flowers, *words])
    shape = shape_of(data)
    labeled, rows, known, skew, one_class = 0, 0, [], [], []
    for client, classes in enumerate(data.manifest.classes):
        seen = data.client(client, Objective("single"))
        count_C = (seen.y_NC.numpy() * (seen.weight_NC.numpy() > 0)).sum(0)[list(classes)]
        labeled, rows = labeled + count_C.sum(), rows + len(seen)
        known.append(len(classes) / 4)
        one_class.append(len(classes) == 1 and bool((count_C == len(seen)).all()))
        share = count_C[count_C > 0] / max(1, count_C.sum())
        skew.append(1 - np.exp(-(share * np.log(share)).sum()) / len(classes) if len(share) else 0)
    assert (shape.labels, shape.clients, shape.classes) == ("single", len(known), 4)
    assert shape.known == pytest.approx(np.mean(known))
    assert shape.labeled == pytest.approx(labeled / rows)
    expected = sum(share * data.manifest.examples[client] for client, share in enumerate(known))
    assert shape.missing == pytest.approx(max(0, 1 - labeled / expected))
    assert shape.skew == pytest.approx(np.mean(skew))
    assert shape.one_class == pytest.approx(np.mean(one_class))
    assert shape.one_class == 1 or "one_class" not in words
    assert shape.rows == pytest.approx(rows / len(known))
    assert shape.uncovered == 4 - len(set().union(*data.manifest.classes))


def test_options_of_training_do_not_matter(flowers):
    e = from_words("", ["--task.file", *flowers, "--method.name", "fedavg"], "anchorfl run", quiet).experiment
    timed = dataclasses.replace(e, federation=dataclasses.replace(e.federation, deadline=60.0))
    assert shape_of_experiment(timed) == shape_of_experiment(e)


def test_a_class_that_nobody_identifies_is_counted(flowers):
    words = [*flowers, "--task.partition", "k_classes", "--task.cover", "any"]
    words += ["--task.client_classes", '[["a"],["b"],["a","b"],["a"],["b"],["c"]]', "--task.classes_per_client", "2"]
    shape = shape_of(data_of(words))
    assert shape.uncovered == 1
    assert "4 classes, 1 of them identified by nobody" in shape.text


@pytest.mark.parametrize(
    "words", [["--task.classes_per_client", "2"], ["--task.partition", "iid", "--task.hidden_labels", "0.5"]]
)
def test_multi_label_shapes(tags, words):
    data = data_of([*tags, *words])
    shape = shape_of(data)
    known = [data.client(client, Objective("multi")).known_NC.numpy() for client in range(6)]
    assert shape.labels == "multi"
    assert shape.labeled == pytest.approx(np.concatenate(known).mean())
    assert "multi-label, 6 clients, 5 classes" in shape.text
    assert f"{shape.labeled:.0%} of the labels are known" in shape.text
    assert shape.missing == pytest.approx(0 if "iid" not in words else 1 - shape.labeled)


def test_no_label_is_missing_where_the_largest_client_knows_few(tmp_path, monkeypatch):
    """Cells are empty where a client does not know the label: a mean over clients is none over rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = ["size,ward,a,b,c,d,e"]
    for ward, rows in (("A", 300), ("B", 30), ("C", 30)):
        for _ in range(rows):
            tags = [str(int(tag)) for tag in rng.random(5) < 0.4]
            lines.append(f"{rng.normal():.3f},{ward}," + ",".join([*tags[:1], *[""] * 4] if ward == "A" else tags))
    Path("wards.csv").write_text("\n".join(lines) + "\n")
    shape = shape_of(data_of(["wards.csv", "--task.label_columns", "a,b,c,d,e", "--task.client_column", "ward"]))
    assert shape.known == pytest.approx((0.2 + 1 + 1) / 3)
    assert shape.labeled < shape.known - 0.3
    assert shape.missing == pytest.approx(0, abs=0.01)


SHAPE = Shape(
    labels="single", clients=8, classes=10, known=0.3, labeled=0.3, missing=0.0, skew=0.1, one_class=0.0, rows=100.0,
    uncovered=0,
)  # fmt: skip


def test_distances():
    assert SHAPE.distance(SHAPE) == 0
    for changed, distance in [
        ({"known": 0.5}, 0.2),
        ({"labeled": 1.0}, 0.7),
        ({"missing": 0.5}, 0.5),
        ({"skew": 0.0}, 0.2),
        ({"one_class": 1.0}, 1.0),
        ({"rows": 10_000.0}, 0.5),
        ({"classes": 1000}, 0.5),
        ({"uncovered": 2}, 0.5),
        ({"clients": 900}, 0.0),
    ]:
        other = dataclasses.replace(SHAPE, **changed)
        assert SHAPE.distance(other) == pytest.approx(distance) == other.distance(SHAPE)


def test_the_nearest_are_of_the_same_kind_and_not_far_behind_the_first():
    def setting(name, **changed):
        return Setting(name, name, dataclasses.replace(SHAPE, **changed), {})

    def near(every):
        return [s.name for s in nearest_settings(SHAPE, by_distance(SHAPE, every))]

    every = [setting("far", known=0.95), setting("b", known=0.4), setting("a"), setting("multi", labels="multi")]
    assert near(every) == ["a", "b"]
    more = [setting(str(i), known=0.3 + i / 100) for i in range(6, 0, -1)]
    assert near(more) == ["1", "2", "3"]
    assert NEAREST == 3


def test_how_far_is_counted_from_the_nearest_on():
    """The nearest one lies at 1/4; one at 5/8 is asked, as it is less than a half behind, and one at 3/4 is not."""

    def setting(name, known, **changed):
        return Setting(name, name, dataclasses.replace(SHAPE, known=known, **changed), {})

    shape = dataclasses.replace(SHAPE, known=0.25)
    every = [setting("3/4", 1.0), setting("5/8", 0.875), setting("none", 0.25, labels="multi"), setting("1/4", 0.5)]
    ordered = by_distance(shape, every)
    assert [s.name for s in ordered] == ["1/4", "5/8", "3/4"]
    assert [s.name for s in nearest_settings(shape, ordered)] == ["1/4", "5/8"]


@pytest.mark.parametrize("pictures", [False, True])
def test_the_nearest_setting_lends_its_presets(flowers, monkeypatch, pictures):
    """To numbers the nearest one whose rows are neither photographs nor texts, even if one of these is as the table is;
    to pictures the nearest of all but texts.
    """
    words = ["--task.file", *flowers]
    if pictures:
        for k in range(40):
            Image.fromarray(np.full((8, 8), k, dtype=np.uint8)).save(f"{k}.png")
        lines = [f"{k}.png,{'abcd'[k % 4]}" for k in range(40)]
        Path("cells.csv").write_text("\n".join(["picture,kind", *lines]) + "\n")
        words[1] = "cells.csv"
    settings = read_settings()
    of_pictures = [s for s in settings if s.federation.startswith(("suite-pbc", "suite-ham10000"))]
    of_texts = [s for s in settings if s.federation.startswith("suite-r8")]
    assert (len(of_pictures), len(of_texts)) == (6, 3)
    lending = [s for s in settings if s not in of_texts and (pictures or s not in of_pictures)]
    for itself in [*of_pictures, *of_texts, settings[2], settings[-3]]:
        shape = itself.shape
        lenders = [s for s in lending if s.shape.labels == shape.labels]
        lender = min(lenders, key=lambda s: shape.distance(s.shape))
        assert (lender == itself) == (itself in lending)
        monkeypatch.setattr(recommend, "shape_of_experiment", lambda _, shape=shape: shape)
        got, near, found = recommend._asked(words)
        assert (got, near[0]) == (shape, itself)
        assert found
        assert {c.preset.partition("/")[0] for c in found} == {lender.federation}


def test_methods_of_equal_rank_stand_in_the_order_of_their_names():
    """And the score of a row in every near setting stands with its sd, where it has one."""
    first, _ = named("suite-digits-masks-2")
    figure = first.scores["fedavg"]
    rows = {name: dataclasses.replace(figure, mean=mean, sd=sd) for name, mean, sd in (
        ("scaffold", "70.00", ""), ("moon", "80.00", ""), ("feddyn", "70.00", "1.50"), ("fedavg", "60.00", ""),
    )}  # fmt: skip
    found = candidates([dataclasses.replace(first, scores=rows)], "iid", first)
    assert [(c.row, c.mean_rank, c.scores) for c in found] == [
        ("moon", 1.0, ("80.00",)), ("feddyn", 2.5, ("70.00 ± 1.50",)),
        ("scaffold", 2.5, ("70.00",)), ("fedavg", 4.0, ("60.00",)),
    ]  # fmt: skip


def test_a_method_that_the_lender_has_no_preset_of_is_not_proposed():
    first, every = named("suite-digits-masks-2")
    lender = dataclasses.replace(every[1], scores={r: f for r, f in every[1].scores.items() if r != "fedpu"})
    rows = {c.row for c in candidates([first], "iid", every[1])}
    assert rows - {c.row for c in candidates([first], "iid", lender)} == {"fedpu"}


def named(federation):
    """Return a setting, and all by their distance from it."""
    settings = read_settings()
    setting = next(s for s in settings if s.federation == federation)
    return setting, by_distance(setting.shape, settings)


@pytest.mark.parametrize("federation", ["suite-digits-masks-2", "suite-scene-masks-3"])  # without and with ties
def test_candidates_are_ranked_by_their_mean_rank(federation):
    """Among those that are listed."""
    setting, every = named(federation)
    first, *others = nearest_settings(setting.shape, every)
    assert others
    more = {"fedaws": dataclasses.replace(first.scores["fedavg"], mean="99.99")}
    near = [dataclasses.replace(first, scores={**first.scores, **more}), *others]
    found = candidates(near, "k_classes", setting)
    rows = [candidate.row for candidate in found]
    assert set(rows) == set(first.scores)
    for candidate in found:
        ranks = []
        for setting in near:
            means = [float(setting.scores[row].mean) for row in rows]
            mine = float(setting.scores[candidate.row].mean)
            ranks.append(sum(other > mine for other in means) + (means.count(mine) + 1) / 2)
        assert candidate.mean_rank == pytest.approx(np.mean(ranks))
        assert read_preset(candidate.preset).method.name == candidate.row
    assert [c.mean_rank for c in found] == sorted(c.mean_rank for c in found)


@pytest.mark.parametrize(
    ("federation", "first"), [("suite-digits-one-class", "scaffold"), ("suite-scene-one-class", "fedalign")]
)
def test_where_each_client_has_one_class_such_settings_alone_are_asked(federation, first):
    """Methods with a client for each class would else be left out, which other settings do not have."""
    setting, every = named(federation)
    assert nearest_settings(setting.shape, every) == [setting]
    found = candidates([setting], "one_class", setting)
    assert found[0].row == first
    assert {c.row for c in found} == set(setting.scores) & ADDS.keys()
    by_column = candidates([setting], "subjects", setting)  # clients are somebody's, each has one class all the same
    assert {"fedalc-fixed", "flag"} & {c.row for c in found}
    assert not {"fedalc-fixed", "flag"} & {c.row for c in by_column}


@pytest.mark.parametrize("federation", ["suite-digits-masks-2", "suite-scene-masks-2"])
def test_no_other_setting_has_a_client_for_each_class_among_the_nearest(federation):
    setting, every = named(federation)
    few = dataclasses.replace(setting.shape, known=0.1)  # one class of ten each, and rows of the others
    assert not any(s.shape.one_class == 1 for s in nearest_settings(few, every))


@pytest.mark.parametrize("labeled", [0.5, 0.7])
def test_rows_without_a_label_whose_classes_are_known_are_far_from_those_of_other_classes(labeled):
    """There they are none of the client's classes, here nearly all are."""
    setting, every = named("suite-digits-masks-5")
    half = dataclasses.replace(setting.shape, known=1.0, labeled=labeled, missing=1 - labeled)
    assert by_distance(half, every)[0].shape.distance(half) > FAR


def test_rows_that_know_all_their_labels_are_far_from_settings_where_these_are_missing(tags, capsys):
    assert main(["recommend", *tags, "--task.partition", "iid", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["table"]["labeled"] == 1
    assert found["settings"][0]["distance"] > FAR


def test_the_presets_of_photographs_are_for_photographs(flowers, tmp_path, capsys):
    """They train for an epoch a round, at rates that were found for a convolutional network."""
    words = ["--task.partition", "iid", "--task.clients", "6", "--json"]
    assert main(["recommend", *flowers, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"][0]["federation"].startswith(("suite-pbc", "suite-ham10000"))
    assert all(m["preset"].startswith("suite-digits") for m in found["methods"])
    rng = np.random.default_rng(2)
    lines = [f"{k}.png,{'abcd'[k % 4]}" for k in range(120)]
    for k in range(120):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / f"{k}.png")
    Path("cells.csv").write_text("\n".join(["picture,kind", *lines]) + "\n")
    assert main(["recommend", "cells.csv", "--task.label_columns", "kind", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {m["preset"].partition("/")[0] for m in found["methods"]} == {found["settings"][0]["federation"]}


def test_the_file_has_every_setting():
    """``python -m benchmarks.suite_shapes`` writes it."""
    text = SHAPES.read_text(encoding="utf-8")
    assert shapes_text(shapes_of(text)) == text
    assert list(shapes_of(text)) == list(shipped().papers["suite"].data.values())
    assert {s.federation for s in read_settings()} <= shapes_of(text).keys()


@pytest.mark.parametrize("federation", ["suite-digits-masks-2", "suite-digits-skew-masks"])
def test_the_file_is_what_the_data_give(federation):
    shape = shape_of_experiment(read_preset(f"{federation}/anchor"))
    kept = shapes_of(SHAPES.read_text(encoding="utf-8"))[federation]
    for name, value in dataclasses.asdict(shape).items():
        assert getattr(kept, name) == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value), name


def test_what_a_method_adds_is_what_the_page_says():
    page = (ROOT / "docs/methods/README.md").read_text()
    for row, adds in ADDS.items():
        (said,) = re.findall(rf"^\| \[`{row}`\]\(.*\|(.*)\|$", page, re.M)
        assert said.strip() == ("" if row == "fedavg" else adds)
    assert set(ADDS) == set(shipped().papers["suite"].rows)


def test_the_command_trains_what_is_recommended(flowers, capsys):
    """What it prints is what ``anchorfl run`` takes; the test split stays unseen."""
    flowers += ["--task.partition", "k_classes", "--task.classes_per_client", "2"]
    assert main(["recommend", *flowers, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"][:2] == ["anchorfl", "run"]
    presets = found["command"][2:6]
    assert presets == [method["preset"] for method in found["methods"]]
    assert set(presets) <= set(preset_names())
    assert found["table"]["known"] == pytest.approx(0.5)
    assert [s["distance"] for s in found["settings"]] == sorted(s["distance"] for s in found["settings"])
    assert main(["recommend", *flowers]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith("single-label, 6 clients, 4 classes")
    assert shlex.split(shown.splitlines()[-1]) == found["command"]
    for method in found["methods"]:
        assert all(text in shown for text in (method["shown"], method["reason"], *method["scores"]))
    words = [*found["command"][2:3], *found["command"][6:], "--federation.rounds", "1", "--cluster.executor", "serial"]
    assert main(["run", *words, "--tracking.uri", "none", "--output", "out"]) == 0
    assert set(json.loads(Path("out/result.json").read_text())["scores"]) == {"validation"}


def test_multi_label_tables_get_multi_label_settings(tags, capsys):
    assert main(["recommend", *tags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {s["labels"] for s in found["settings"]} == {"multi"}


def test_a_race_is_a_sweep_over_presets(flowers, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(commands, "sweep", lambda words: asked.append(words) or 0)
    assert main(["recommend", *flowers, "--try", "3"]) == 0
    assert "mean rank" in capsys.readouterr().out
    plan, _ = commands._planned(*commands._split(asked[0]))
    assert len(plan.experiments) == plan.options.trials == 3
    assert (plan.options.searcher, plan.options.scheduler, plan.options.finals) == ("grid", "asha", 0)
    assert plan.experiment.task.file == "flowers.csv"
    assert main(["recommend", *flowers, "--try", "2", "--seeds", "3", "--rule", "last", "--finals", "1"]) == 0
    plan, _ = commands._planned(*commands._split(asked[1]))
    assert (plan.options.seeds, plan.options.rule, plan.options.finals) == (3, "last", 1)  # as they were given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.csv", *TABLE], "nowhere.csv"),
        (["--seed", "3"], "recommend needs a table of your own: anchorfl recommend FILE --task.label_columns COLUMNS"),
        (["flowers.csv", *TABLE, "--try", "1"], "--try 1: how many methods to train against each other, at least 2"),
        (["flowers.csv", *TABLE, "--try", "all"], "--try"),
        (["flowers.csv", *TABLE, "--tasks.clients", "3"], "no option --tasks.clients"),
        (
            ["flowers.csv", *TABLE, "--method.name", "fedpu"],
            "recommend compares methods: leave out options of [method]",
        ),
    ],
)
def test_bad_calls_are_one_line(flowers, capsys, words, message):
    assert main(["recommend", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in said
    assert said.startswith("anchorfl: ")


def test_help(capsys):
    assert main(["recommend", "--help"]) == 0
    assert "usage: anchorfl recommend FILE" in capsys.readouterr().out
