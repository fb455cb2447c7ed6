"""Documents against the repository: paths, links and names exist, the drawing is current, the code runs."""

from __future__ import annotations

import ast
import os
import re
import sys
import types
from pathlib import Path

import pytest

import anchorfl
from benchmarks import house

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "models", "pipeline", "src", "tasks", "tests", "tuning")
HISTORY = {"CHANGELOG.md"}
"""Documents that name files as they were."""
MADE_UP = {"tasks/signals/gestures.py"}
"""The data set that docs/adding-a-data-set.md builds."""
PATH = re.compile(rf"(?<![\w/.:-])(?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:py|md|toml|csv|png|svg)\b")
LINK = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
FUNCTION = re.compile(r"`((?:models|pipeline|tasks|tuning)/[\w/]+\.py)`(?: \||:) `([\w.]+)`")
BESIDE = re.compile(r"`(\w+\.py)`")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.DOTALL | re.MULTILINE)


def documents():
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        for top, folders, files in os.walk(ROOT / folder):  # which does not follow the links in src
            folders[:] = [name for name in folders if not name.startswith((".", "__"))]
            found += [Path(top) / name for name in files if name.endswith(".md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.name not in HISTORY)


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def anchors(document):
    """Return the names by which GitHub finds the headings of a document."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text_of(document)), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", documents())
def test_paths_exist_and_links_lead_somewhere(document):
    text = text_of(document)
    wrong = [path for path in sorted({*PATH.findall(text)} - MADE_UP) if not (ROOT / path).exists()]
    for groups in LINK.findall(FENCE.sub("", text)):
        link = groups[0] or groups[1]
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / document).parent / file if file else ROOT / document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong, f"{document} names what is not there: {', '.join(wrong)}"


@pytest.mark.parametrize("document", documents())
def test_benchmarks_and_targets_of_make_exist(document):
    text, targets = text_of(document), re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)
    named = {f"benchmarks/{name}.py" for name in re.findall(r"python -m benchmarks\.(\w+)", text)}
    assert not {path for path in named if not (ROOT / path).exists() and "NAME" not in path}
    assert {*re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)} <= {*targets}


def test_pages_that_the_code_points_to_exist():
    files = [path for top in FOLDERS for path in (ROOT / top).rglob("*.py") if "tests/product" not in path.as_posix()]
    wrong = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in files
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.(?:md|png|svg)", path.read_text(encoding="utf-8"))
        if not (ROOT / page).exists()
    }
    assert not wrong


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 150


def defined_in(file):
    """Functions, classes and methods (``Class.method``) of a Python file."""
    names = set()
    for node in ast.walk(ast.parse(text_of(file))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_functions_that_the_architecture_follows_exist():
    pairs = FUNCTION.findall(text_of("docs/architecture.md"))
    assert len(pairs) > 30
    wrong = [f"{file}: {name}" for file, name in pairs if name not in defined_in(file)]
    assert not wrong, f"docs/architecture.md follows functions that are not there: {', '.join(wrong)}"


def packages():
    """Return every folder of the four packages that holds Python files, and the two folders beside the packages."""
    inside = [f.parent for top in ("models", "pipeline", "tasks", "tuning") for f in (ROOT / top).rglob("__init__.py")]
    return ["benchmarks", "tests", *sorted(folder.relative_to(ROOT).as_posix() for folder in inside)]


@pytest.mark.parametrize("folder", packages())
def test_every_folder_says_in_a_few_lines_what_is_in_it(folder):
    text = text_of(f"{folder}/README.md")
    assert len(text.splitlines()) <= 15
    wrong = [name for name in BESIDE.findall(text) if not (ROOT / folder / name).exists()]
    assert not wrong, f"{folder}/README.md names what is not in its folder: {', '.join(wrong)}"


def test_the_drawing_of_the_house_is_current():
    assert house.DRAWING.read_text(encoding="utf-8") == house.svg(), "python -m benchmarks.house draws it again"


def small_runs(monkeypatch, **more):
    """Have runs of Python take one process and one short round in this test, but else what they are given."""
    small = {"federation.rounds": 1, "federation.epochs": 1, "cluster.executor": "serial", "tracking.uri": "none"}
    read = anchorfl.read_preset
    monkeypatch.setattr(
        anchorfl, "read_preset", lambda name, given, **how: read(name, (given or {}) | small | more, **how)
    )


def test_the_lines_of_python_in_the_readme_run(tmp_path, monkeypatch):
    code = re.search(r"<!-- example: python -->\n```python\n(.*?)```", text_of("README.md"), re.DOTALL)[1]
    small_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert names["run"].folder == Path("runs/mine")
    assert next(iter(names["probabilities"])) == "zero"


def test_the_page_about_python_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """But for its sweep, which is Ray's: tests/ray/test_sweep.py. A line that is an expression gives something."""
    small_runs(monkeypatch, **{"federation.rounds": 2})
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", types.ModuleType("page"))
    for block in re.findall(r"```python\n(.*?)```", text_of("docs/python.md"), re.DOTALL):
        if "anchorfl.sweep(" in block:
            compile(block, "page", "exec")
            continue
        for node in ast.parse(block).body:
            if isinstance(node, ast.Expr):
                eval(compile(ast.Expression(node.value), "page", "eval"), names)
            else:
                exec(compile(ast.Module([node], []), "page", "exec"), names)
    out = capsys.readouterr().out
    assert "round 1/2" not in out  # quiet
    assert "Run('runs/early'): digits-fedavg, seed 0, 2 of 2 rounds" in out
    assert re.search(r"digits +fedalign", out)
    assert "ash" in out
