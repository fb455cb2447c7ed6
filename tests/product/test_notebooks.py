"""The notebooks of ``docs/notebooks/``: small, kept without outputs, and each runs from top to bottom."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import matplotlib as mpl
import optuna
import pytest
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
WRITE = "%%writefile "


def read(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run a notebook's cells in an empty folder and return its names. What a cell ends with is shown, as in Jupyter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written, backend = [], mpl.get_backend()
    mpl.use("Agg")

    def run(name):
        names = {"__name__": name}
        for number, cell in enumerate(read(name)["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] != "code":
                continue
            if source.startswith(WRITE):
                line, _, code = source.partition("\n")
                written.append(Path(line.removeprefix(WRITE)))
                written[-1].write_text(code, encoding="utf-8")
                continue
            for node in ast.parse(source).body:
                where = f"{name}, cell {number}"
                if isinstance(node, ast.Expr):
                    shown = eval(compile(ast.Expression(node.value), where, "eval"), names)
                    getattr(shown, "_repr_html_", shown.__repr__)()
                else:
                    exec(compile(ast.Module([node], []), where, "exec"), names)
        return names

    yield run
    plt.close("all")
    mpl.use(backend)
    for file in written:
        sys.modules.pop(file.stem, None)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_has_no_outputs(name):
    notebook = read(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert 5 < len(notebook["cells"]) <= 12
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_to_pages(name):
    text = "".join(line for cell in read(name)["cells"] for line in cell["source"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_the_page_about_python_names_every_notebook():
    page = (FOLDER.parent / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(notebooks/([\w-]+)\.ipynb\)", page)) == NAMES


def test_own_table(execute, capsys):
    names = execute("own-table")
    held = names["run"].partition()
    assert (held[held["rows"] > 0].groupby("client")["class"].nunique() == 2).all()
    assert list(names["run"].predict(names["new"])) == list(names["kinds"])
    assert len(names["run"].curve()) == 5
    assert capsys.readouterr().out == ""


def test_write_a_method(execute, capsys):
    names = execute("write-a-method")
    assert 15 <= len([line for line in Path("fedlc.py").read_text().splitlines() if line]) <= 25
    fedavg, fedlc = names["fedavg"], names["fedlc"]
    assert fedavg.experiment.method.weighting == fedlc.experiment.method.weighting
    assert fedavg.checksum != fedlc.checksum
    assert re.search(r"digits +fedlc", capsys.readouterr().out)


@pytest.mark.ray
@pytest.mark.apart
def test_read_a_sweep(execute, capsys):
    names = execute("read-a-sweep")
    assert sorted(names["table"]["optimizer.lr"]) == [1e-4, 1e-3, 1e-2]
    assert names["table"].index[0] == names["sweep"].best.number
    assert names["table"]["score"].is_monotonic_decreasing
    assert f"trial {names['sweep'].best.number}: " in capsys.readouterr().out
    assert all(Path("runs/sweep/report", name).exists() for name in ("report.html", "best.toml"))
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("runs/sweep/optuna.log"))
    best = optuna.load_study(study_name="sweep", storage=storage).best_trial
    assert (best.number, best.params) == (names["sweep"].best.number, names["sweep"].best.point)
