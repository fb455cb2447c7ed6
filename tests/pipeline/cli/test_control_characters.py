"""No character that a terminal obeys comes out of a file: names that hold one are refused, anything else is escaped."""

from __future__ import annotations

import json
import shutil
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfl.pipeline.cli.main import _say_warning, main
from anchorfl.pipeline.storage.run_record import read_metadata, read_records
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.sweep.html import Block, html, markdown
from tests.runs import SMALL

EVIL = ["\x1b]0;pwned\x07", "a\nproblems: none found", "\u202elebal", "\r", "\x00", "\x9b2J", "\u2066x"]


def plain(capsys):
    """Return all that was said; nothing in it moves a cursor."""
    said = "".join(capsys.readouterr())
    assert all(line.isprintable() for line in said.split("\n"))
    return said


def write(path, **columns):
    rows = {"height": [float(i % 7) for i in range(60)], "kind": ["ash" if i % 2 else "elm" for i in range(60)]}
    table = pa.table(rows | columns)
    pq.write_table(table, path)


@pytest.mark.parametrize("evil", EVIL)
def test_names_of_columns_and_classes_are_refused(here, capsys, evil):
    write(here / "columns.parquet", **{evil: [1.0] * 60})
    write(here / "classes.parquet", kind=[evil if i % 2 else "elm" for i in range(60)])
    (here / "names.txt").write_text(f"0\t{evil}\n1\tb\n")
    write(here / "numbers.parquet", kind=[i % 2 for i in range(60)])
    for file, *more in (["columns.parquet"], ["classes.parquet"], ["numbers.parquet", "--class_names", "names.txt"]):
        assert main(["data", "check", file, "--label_columns", "kind", *more]) == 2
        said = plain(capsys)
        assert said.count("\n") == 1


@pytest.mark.parametrize("evil", EVIL)
def test_cells_are_escaped(here, capsys, evil):
    """Clients, and paths of images in a report, a warning and a run that leaves such rows out."""
    write(here / "clients.parquet", who=[evil if i % 3 else "me" for i in range(60)])
    main(["data", "check", "clients.parquet", "--label_columns", "kind", "--client_column", "who"])
    assert "\nproblems: none found" not in plain(capsys), "the table has equal rows in training and test"
    write(here / "images.parquet", image=[f"{evil}{i}.png" for i in range(60)])
    options = ["--label_columns", "kind", "--input_columns", "image"]
    assert main(["data", "check", "images.parquet", *options, "--on_bad_row", "skip"]) == 2
    plain(capsys)
    task = [option.replace("--", "--task.") for option in options]
    assert main(["run", "--task.file", "images.parquet", *task, "--task.on_bad_row", "skip", *SMALL]) == 2
    plain(capsys)


@pytest.mark.parametrize("evil", EVIL)
def test_a_preset_is_refused(here, capsys, evil):
    (here / "evil.toml").write_text(f'extends = "digits/fedavg"\noutput = {json.dumps(evil)}\n')
    assert main(["run", "evil.toml", *SMALL]) == 2
    assert "output = " in plain(capsys)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("control") / "run"
    assert main(["run", "digits/fedavg", *SMALL, "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("evil", EVIL)
def test_a_run_folder_and_a_model_of_somebody_else_are_refused(here, capsys, whole_run, evil):
    shutil.copytree(whole_run, here / "run")
    for name, field in (("run.json", "name"), ("model/model.json", "class_names")):
        content = json.loads((here / "run" / name).read_text())
        value = evil if field == "name" else [evil, *content[field][1:]]
        (here / "run" / name).write_text(json.dumps(content | {field: value}))
    (here / "samples.csv").write_text(",".join(f"p{i}" for i in range(64)) + "\n" + ",".join(["1"] * 64) + "\n")
    capsys.readouterr()
    with pytest.raises(InputError, match="control characters"):
        read_metadata(here / "run")
    assert main(["compare", "run"]) == 2
    assert main(["predict", "run", "samples.csv"]) == 2
    plain(capsys)
    lines = (here / "run" / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["per_class"] = {"test/f1": {evil: 1.0}}
    (here / "run" / "metrics.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    with pytest.raises(InputError, match="control characters"):
        read_records(here / "run")


@pytest.mark.parametrize("evil", EVIL)
def test_pages_and_warnings_are_escaped(tmp_path, capsys, evil):
    block = Block(evil, rows=[["head", evil], ["1", evil]], paragraphs=[f"failed: {evil}"])
    for page in (html(evil, [block]), markdown(evil, [block], tmp_path)):
        assert all(line.isprintable() for line in page.split("\n"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _say_warning
        warnings.warn(f"Glyph missing: {evil}", stacklevel=1)
    assert plain(capsys).count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--tracking.run_name", "a\tb"), ("--tracking.experiment", "x\u200f"), ("--output", "a\tb")]
)
def test_in_the_names_of_a_run_they_are_refused_before_it_trains(tmp_path, monkeypatch, capsys, option, value):
    """Its record could not be read again."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "digits/fedavg", "--tracking.uri", "none", option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds control characters" in line
    assert not list(tmp_path.iterdir())
