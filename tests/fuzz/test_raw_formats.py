"""Raw files of the data sets, from made-up valid ones: all the way to prepared data."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.synthetic import SYNTHETIC
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK

ROWS = {"flair": 30, "femnist": 50, "r8": 28, "pamap2": 9, "mimic3-50": 60, "extrasensory": 60}
OPTIONS = {"mimic3-50": {"variant": "own", "min_count": 1}, "r8": {"min_count": 1}}
FORMATS = {
    "r8": ("*stemmed.txt",),
    "extrasensory": ("*",),
    "pamap2": ("*",),
    "mimic3-50": ("*",),
    "bibtex": ("*",),
    "eurlex-4k": ("*",),
    "scene": ("*",),
    "delicious": ("*",),
    "birds": ("*",),
    "voc2007": ("*",),
    "coco2014": ("*",),
    "flair": ("*",),
    "ham10000": ("*",),
    "pbc": ("*",),
    "dermamnist": ("*_128.npz",),
    "femnist": ("*",),
    "oct-c8": ("*",),
}


def read(name, folder, made, **more):
    options = {"image_size": 8, "validation": 0.0, "clients": 2, "partition": "iid", "min_positives": 1}
    options |= OPTIONS.get(name, {}) | more
    task = TaskOptions(name=name, root=str(folder), cache=str(made), **options)
    prepare(find_task(name), task, 1, engine="local")


def write(name, folder):
    SYNTHETIC[name](folder, ROWS.get(name, 24), 3)


PARSERS = [Parser(name, partial(write, name), partial(read, name), files) for name, files in FORMATS.items()]


@QUICK
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))
