"""A partition as a picture: what is blue, grey and white, and that the picture is the same twice."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from anchorfl.pipeline.results.partition_plot import draw_partition
from anchorfl.tasks.ingest.class_histogram import ClassHistogram, class_counts
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    options = TaskOptions(name="toy-single", clients=3, classes_per_client=2, cache=cache)
    return prepare(find_task("toy-single"), options, 1, engine="local")


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"), dtype=int)


def test_the_same_federation_gives_the_same_bytes_and_another_plan_others(prepared, tmp_path):
    manifest, held = prepared.manifest, prepared.class_histogram()
    for name in ("a", "b"):
        draw_partition(manifest, held, tmp_path / f"{name}.png", "toy")
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert all(len(classes) == 2 for classes in manifest.classes)
    draw_partition(replace(manifest, classes=((0,), (1,), (2,))), held, tmp_path / "c.png", "toy")
    assert (tmp_path / "c.png").read_bytes() != (tmp_path / "a.png").read_bytes()


def test_identified_cells_are_blue_and_the_others_grey(prepared, tmp_path):
    """All of one kind: the picture has no color of the other."""
    manifest = prepared.manifest
    every = tuple(range(len(manifest.class_names)))
    for name, classes, blue in (("all", every, True), ("none", (), False)):
        draw_partition(replace(manifest, classes=(classes,) * 3), prepared.class_histogram(), tmp_path / f"{name}.png")
        part = pixels(tmp_path / f"{name}.png")
        cells = part[part.shape[0] // 5 : part.shape[0] * 3 // 5, part.shape[1] // 8 : part.shape[1] * 2 // 5]
        bluish = (cells[..., 2] - cells[..., 0] > 40).mean()
        assert (bluish > 0.5) == blue, (name, bluish)
        assert blue or bluish < 0.02


def words(path):
    """Return the texts of a figure: matplotlib writes each before its outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_axes_have_names_and_whole_numbers(prepared, tmp_path):
    """Clients have the names that the user's table gives them; ranks and rows are whole."""
    manifest = replace(prepared.manifest, client_names=("north", "south", "$east$"))
    classes = len(manifest.class_names)
    for name, rows in (("even", (128, 131)), ("uneven", (3, 900))):
        counts = np.tile(np.linspace(*rows, classes), 3).astype(int)
        held = ClassHistogram(np.repeat(np.arange(3), classes), np.tile(np.arange(classes), 3), counts)
        draw_partition(manifest, held, tmp_path / f"{name}.png")
    even, uneven = (words(tmp_path / f"{name}.svg") for name in ("even", "uneven"))
    assert {"north", "south", "$east$", *manifest.class_names} <= {*even}
    assert not [word for word in even if re.fullmatch(r"\d+\.\d+", word)]
    assert "0" in even  # of classes of like size the axis of the rows begins at 0
    assert not [word for word in even if "10^" in word]
    assert even.count("0") == 1  # no class has rank 0
    assert [word for word in uneven if "10^" in word]  # a logarithmic axis


def test_thousands_of_clients_and_classes_are_drawn_and_of_millions_the_rows_of_each_class(prepared, tmp_path):
    many = replace(
        prepared.manifest,
        examples=(4,) * 2000,
        classes=tuple((c % 1000,) for c in range(2000)),
        class_names=tuple(f"class {c}" for c in range(1001)),
    )
    held = ClassHistogram(
        np.repeat(np.arange(2000), 2), np.array([[c % 1000, 1000] for c in range(2000)]).ravel(), np.tile([3, 1], 2000)
    )
    draw_partition(many, held, tmp_path / "many.png")
    assert pixels(tmp_path / "many.png").shape[0] > 500
    more = replace(many, class_names=tuple(f"class {c}" for c in range(3000)))
    draw_partition(more, held, tmp_path / "more.png", "millions")
    shown = words(tmp_path / "more.svg")
    assert "client" not in shown
    assert {"rank of the class", "rows of all clients", "millions"} <= {*shown}


def test_a_row_that_several_clients_share_counts_once_a_class(prepared):
    """``one_class``: rows of both classes are with both clients; each class has the rows of its own client."""
    options = replace(prepared.manifest.options, partition="one_class")
    two = replace(
        prepared.manifest, options=options, examples=(3, 2), classes=((0,), (1,)), class_names=("a", "b"),
        counts=(((0, 3),), ((1, 2),)),
    )  # fmt: skip
    held = ClassHistogram(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([3, 1, 1, 2]))
    assert class_counts(two, held).tolist() == [3, 2]
    assert class_counts(prepared.manifest, held).tolist()[:2] == [4, 3]
