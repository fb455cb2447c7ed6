"""Names of a user's table or folder in Markdown: a browser shows them, and runs none."""

from __future__ import annotations

import dataclasses

from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.markdown import markdown_table, plain_markdown
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.tuning.sweep.html import Block, markdown
from tests.runs import quiet

SCRIPT = "<script>alert(1)</script>"


def test_a_tag_does_not_open_and_a_comparison_stays():
    for text in (SCRIPT, "<img src=x onerror=y>", "</td>", "<!-- x", "<?x"):
        assert "<" not in plain_markdown(text)
    assert plain_markdown("p < 0.05, a <= b") == "p < 0.05, a <= b"


def test_a_name_is_no_link_and_no_picture():
    name = "![x](https://evil.example/p.png) [click](javascript:alert(1)) [a][b]"
    assert plain_markdown(name) == name.replace("](", r"\](").replace("][", r"\][")
    assert plain_markdown("a[1], b [2]") == "a[1], b [2]"


def test_a_cell_stays_in_its_place():
    assert markdown_table([["a"], ["x|y\nz"]]) == "| a |\n| --- |\n| x\\|y\\nz |"


def test_reports_hold_no_tag(experiment, tmp_path):
    e = experiment()
    run(dataclasses.replace(e, tracking=dataclasses.replace(e.tracking, run_name=SCRIPT)), tmp_path / "run", quiet)
    assert "<script" not in compare([tmp_path / "run"], None).markdown
    block = Block(SCRIPT, [["name"], [SCRIPT]], paragraphs=[SCRIPT])
    assert "<script" not in markdown(SCRIPT, [block], tmp_path)
