"""Hooks of mkdocs.yml: the pages at the top of the repository, the reference from docstrings, links as a site has them.

The Markdown is written for a code host. There, a link may lead to any file of the repository; here, it leads to the
page made of that file, or becomes plain text where the site has no such page.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "REPRODUCIBILITY.md", "SECURITY.md")
"""Pages of the site that stand beside docs/."""
CONTRACTS = ("Method", "ClientTrainer", "Task", "EncoderSpec", "Callback")
"""Public names that plug-ins implement."""
TRACKER = "anchorfl.pipeline.tracking.tracker.Tracker"
STYLE = """
.md-grid { max-width: 84rem; } /* our tables are wide */
.md-typeset td code { word-break: normal; }
.md-typeset h2.doc-heading { border-top: 1px solid var(--md-default-fg-color--lightest); padding-top: 1rem; }
"""
FENCE = re.compile(r"^([ ]*)(`{3,}|~{3,}).*?^\1\2[`~]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^][]|\[[^]]*\])*)\]\((?P<target>[^()\s]+)\)")
ROW = re.compile(r"^ *\|.*$", re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
ATTRIBUTE = re.compile(r'(?P<name>\b(?:src|srcset|href))="(?P<target>[^"]+)"')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    files.append(File.generated(config, "site.css", content=STYLE))
    for name in TOP:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with links that hold on the site, and details whose Markdown is read."""
    place = page.file.src_uri if page.file.src_uri in TOP else f"docs/{page.file.src_uri}"

    def site_target(target: str) -> str:
        """Return a link's target on the site; empty: the site has none."""
        if re.match(r"[a-z]+:|#", target):
            return target
        path, mark, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        pages = [found.removeprefix("docs/"), f"{found}/README.md".removeprefix("docs/")]
        known = next((uri for uri in pages if (found.startswith("docs/") or uri in TOP) and uri in files.src_uris), "")
        return posixpath.relpath(known, posixpath.dirname(page.file.src_uri) or ".") + mark + anchor if known else ""

    def link(found: re.Match[str]) -> str:
        target = site_target(found["target"])
        return f"{found['picture']}[{found['text']}]({target})" if target else found["text"]

    def attribute(found: re.Match[str]) -> str:
        return f'{found["name"]}="{site_target(found["target"])}"'

    def prose(text: str) -> str:
        text = text.replace("<details>", '<details markdown="1">')
        text = ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
        return ATTRIBUTE.sub(attribute, LINK.sub(link, text))

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [prose(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, prose(markdown[end:])])


def reference() -> dict[str, str]:
    """Return the pages of the reference, for mkdocstrings to fill from docstrings; nothing is imported."""
    names = [name for name in public_names("__init__.py") if name != "__version__"]
    testing = sorted(public_names("testing.py"))
    return {
        "anchorfl": blocks(
            "anchorfl", [f"anchorfl.{name}" for name in names if name not in CONTRACTS], "[From Python](../python.md)"
        ),
        "contracts": blocks(
            "Contracts of plug-ins", [*(f"anchorfl.{name}" for name in CONTRACTS), TRACKER],
            "[Plug-ins](../plug-ins.md), [a method](../adding-a-method.md), [a data set](../adding-a-data-set.md)",
        ),
        "testing": blocks(
            "anchorfl.testing", [f"anchorfl.testing.{name}" for name in testing], "[Plug-ins](../plug-ins.md)"
        ),
    }  # fmt: skip


def public_names(file: str) -> list[str]:
    """Return what a module of src/anchorfl lists in ``__all__``, or else its functions without an underscore."""
    tree = ast.parse((ROOT / "src" / "anchorfl" / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


def blocks(title: str, names: list[str], guide: str) -> str:
    """Return a page of the reference: a title, a way to the guide, and a block for every name."""
    return "\n\n".join([f"# {title}", f"With examples: {guide}.", *(f"::: {name}" for name in names)]) + "\n"
