"""The documentation site builds strictly, shows what a code host shows of its files, and loads nothing from afar."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

import anchorfl
from anchorfl.pipeline.methods import METHODS
from tests.product.test_documents import small_runs

pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install 'anchorfl[docs]'")
ROOT = Path(__file__).parents[2]
SOURCES = {path.name: path for path in ROOT.glob("*.md")} | {
    path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")
}
"""Markdown files by their place on the site."""
SHOWN = {"h1", "h2", "h3", "h4", "li", "tr", "td", "th", "pre", "code", "em", "strong", "img", "summary"}
LOADED = re.compile(r"<(?:script|img|source|iframe|link)\b[^>]*?\b(?:src|srcset|href)=\"?([^\" >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site where no address but this machine's can be reached."""
    folder = tmp_path_factory.mktemp("site")
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)], cwd=ROOT, check=False,
        capture_output=True, text=True, timeout=300, env=os.environ | proxies | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr  # a broken link or a page without a place is an error
    return folder


def shown(html):
    """Return how many of each element that a reader sees there are."""
    return Counter(tag for tag in re.findall(r"<([a-z]+[1-6]?)\b", html) if tag in SHOWN)


def page_of(site, source):
    return site / re.sub(r"README\.md$", "index.md", source).replace(".md", ".html")


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_a_page_shows_what_a_code_host_shows(site, source):
    """As many headings, items, cells and pieces of code as by CommonMark with tables, and all that it shows is here."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    read = markdown_it.MarkdownIt("gfm-like", {"linkify": False})
    html = page_of(site, source).read_text(encoding="utf-8")
    article = html[html.index("<article") : html.index("</article>")]
    assert shown(article) == shown(read.render(SOURCES[source].read_text(encoding="utf-8")))
    assert f'href="{os.path.relpath(page_of(site, source), site)}"' in (site / "index.html").read_text()  # navigation


def test_no_page_loads_anything_from_afar(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(SOURCES)
    for page in pages:
        for target in LOADED.findall(page.read_text(encoding="utf-8")):
            assert not re.match(r"(?:[a-z]+:)?//", target), f"{page.name} loads {target}"
            assert page.name == "404.html" or (page.parent / target.partition("?")[0]).exists(), (page.name, target)
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_has_every_public_name_with_its_docstring(site):
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    names = [f"anchorfl.{name}" for name in anchorfl.__all__ if name != "__version__"]
    names += ["anchorfl.Method.contribution", "anchorfl.ClientTrainer.penalty", "anchorfl.Run.to_pandas"]
    names += ["anchorfl.testing.check_method", "anchorfl.pipeline.tracking.tracker.Tracker.artifact"]
    assert [name for name in names if f'id="{name}"' not in text] == []
    assert "A frozen dataclass of hyper-parameters and five verbs" in text


def test_the_search_finds_pages_by_their_words(site):
    assert '"location":"methods/fedproto.html"' in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_in_the_table_and_has_a_page_with_what_readers_look_for(method):
    table = SOURCES["methods/README.md"].read_text(encoding="utf-8")
    page = re.search(rf"\[`{method}`\]\(([a-z]+\.md)", table)[1]
    text = SOURCES[f"methods/{page}"].read_text(encoding="utf-8")
    assert re.search(r"\(https://(?:arxiv|doi)\.org/|, 20\d\d\b", text)
    assert "| Option of `[method]` | Default | What |" in text
    shared = SOURCES["methods/fedaws.md"].read_text(encoding="utf-8") if METHODS[method].supports.one_class else ""
    assert [field.name for field in fields(METHODS[method]) if not re.search(rf"\b{field.name}\b", text + shared)] == []
    assert re.search(r"[Bb]ytes|`communication/", text)
    assert "[Published beside ours](../../REPRODUCIBILITY.md)" in text or "No table of the three papers has it." in text


def test_the_gallery_has_every_picture_and_commands():
    text = SOURCES["gallery.md"].read_text(encoding="utf-8")
    pictures = {f"images/{path.name}" for path in (ROOT / "docs" / "images").iterdir()}
    assert {*re.findall(r"images/[\w.-]+", text.replace("docs/images/", ""))} >= pictures


def test_our_side_of_the_experiment_in_four_libraries_runs(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", SOURCES["coming-from.md"].read_text(encoding="utf-8"), re.DOTALL)[-1]
    small_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert names["run"].folder.is_dir()
    assert len(names["run"].to_pandas()) == 2  # before round 1, and after it
