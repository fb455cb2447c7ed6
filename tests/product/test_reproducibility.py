"""The pages with results say what the kept records and the published tables say, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tuning.tables.papers import paper_of
from anchorfl.tuning.tables.published import rows_of
from benchmarks.reproducibility import (
    ARCHIVES,
    BLOCK,
    KEPT,
    RANKS,
    RUNS,
    TOP,
    Records,
    diagram,
    made,
    main,
    pages,
    summary,
    wrapped,
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(tmp_path_factory.mktemp("kept"))


def test_every_block_is_what_the_kept_records_say(records):
    """And no archive is forgotten."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert made(text, records) == text, f"{page.name}: run python -m benchmarks.reproducibility"
    of_validation = {"searches-suite", "searches-digits", "anchor-parts"}
    archives = {path.name.partition(".")[0] for path in ARCHIVES.glob("*.tar.xz")} - of_validation
    assert archives == {name for kept in KEPT.values() for name in kept.archives} | {name for name, _ in RUNS.values()}


def test_the_diagram_of_ranks_is_of_the_kept_records(records):
    assert RANKS.read_text(encoding="utf-8") == diagram(records, "suite"), "run python -m benchmarks.reproducibility"


def test_no_run_of_a_kept_table_is_missing(records):
    for name, kept in KEPT.items():
        table = records.table(name)
        assert {run.digest for run in table.runs} == set(table.finished), f"{name}: anchorfl table {kept.arguments}"


def test_figures_of_redrawn_sets_are_not_taken_for_the_papers_own(records):
    """FedAlign's that have not been run: MIMIC-III-10 and PAMAP2-9 whole."""
    (line,) = [line for line in summary(records).splitlines() if "not run yet" in line][:1]
    left = [row for row in rows_of(paper_of("fedalign")) if row.data in ("MIMIC-III-10", "PAMAP2-9")]
    assert f"| not run yet | {sum(len(row.figures) for row in left)} |" in line


def test_a_block_is_written_anew_and_prose_is_left(records):
    text = "Prose.\n\n<!-- made: seeds r8-8-redrawn-again -->\nold\n<!-- end -->\n\n| typed | 1 |\n"
    new = made(text, records)
    assert new.startswith("Prose.\n\n<!-- made: seeds r8-8-redrawn-again -->\n")
    assert new.endswith("<!-- end -->\n\n| typed | 1 |\n")
    assert "| FedAlign | macro F1 | 83.87 | 83.87 |" in new
    assert "old" not in new
    assert made(new, records) == new


@pytest.mark.parametrize(
    "words", ["nothing r8-8-redrawn", "seeds nothing", "seeds r8-8-redrawn other=1", "swings r8-8-redrawn"]
)
def test_a_block_that_no_view_understands_is_named(words, records):
    with pytest.raises(InputError, match=re.escape(f"<!-- made: {words} -->")):
        made(f"<!-- made: {words} -->\n<!-- end -->\n", records)


def test_check_names_the_page_that_differs_and_writes_nothing(tmp_path, monkeypatch, capsys, records):
    monkeypatch.setattr("benchmarks.reproducibility.Records", lambda folder: records)  # which has the archives unpacked
    page = tmp_path / "page.md"
    page.write_text("<!-- made: seeds r8-8-redrawn-again -->\n<!-- end -->\n")
    monkeypatch.setattr("benchmarks.reproducibility.TOP", tmp_path)
    monkeypatch.setattr("benchmarks.reproducibility.pages", lambda: [page])
    monkeypatch.setattr(sys, "argv", ["reproducibility", "--check"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("page.md: ")
    assert said.count("\n") == 1
    assert page.read_text() == "<!-- made: seeds r8-8-redrawn-again -->\n<!-- end -->\n"
    monkeypatch.setattr(sys, "argv", ["reproducibility"])
    main()
    assert "83.87" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["reproducibility", "--check"])
    main()


def test_lines_break_at_plain_spaces_alone():
    assert wrapped("a bb ccc", 4) == ["a bb", "ccc"]
    assert wrapped("a bb\N{NO-BREAK SPACE}ccc", 4) == ["a", "bb\N{NO-BREAK SPACE}ccc"]


def anchors(text):
    """Headings as GitHub's pages name them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_to_and_from_the_results_lead_somewhere():
    """Every link of the pages with results is checked, and of the others those to these."""
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git clone: the Markdown files are not known")
    results = pages()
    for page in [TOP / name for name in tracked.stdout.split()]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if "://" in link or not ({page, target} & set(results)):
                continue
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def test_no_line_of_prose_is_too_wide():
    """Tables and commands may be wider."""
    for page in pages():
        text = re.sub(r"```.*?```", "", BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)
        wide = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
        assert not wide, f"{page.name}: {wide[0]}"
