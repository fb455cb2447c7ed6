"""What a terminal shows: no row of debris, tables that fit, and nothing that a file could do to it."""

import io
import re

import pytest

from anchorfl.pipeline import terminal
from tests.screen import in_terminal, rows_of

ROWS = [
    ["run", "seed", "F1", "verdict"],
    ["a-rather-long-name-of-a-run", "0", "94.43", "below"],
    ["b", "12", "5.00", "-"],
]


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal_of(monkeypatch):
    """Return a maker of terminals of so many columns."""

    def make(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        return Screen()

    return make


@pytest.mark.ray
@pytest.mark.apart
def test_two_runs_in_80_columns_leave_no_debris(tmp_path):
    """As ``make run`` shows them, in fewer rounds, with client actors."""
    words = ["run", "digits/fedavg", "digits/fedalign", "--federation.rounds", "3", "--tracking.uri", "none"]
    words += ["--cluster.clients_per_actor", "5"]
    code, text = in_terminal(words, tmp_path)
    assert code == 0, text
    assert " busy, " in text, "there was a live line"
    rows = rows_of(text, 80)
    assert not [row for row in rows if " busy, " in row]
    rounds = [row for row in rows if row.startswith("round ")]
    assert [int(re.match(r"round +(\d+)/3  test F1 ", row).group(1)) for row in rounds] == [*range(4), *range(4)]
    assert all("left" in row and "loss" in row for row in rounds if "initial weights" not in row)
    lines = rows_of(text, 10_000)
    too_wide = [line for line in lines if len(line) > 80 and str(tmp_path) not in line]
    assert not too_wide
    head = next(row for row in rows if row.startswith("run "))
    assert "F1 best" in head


def test_a_live_line_is_cut_and_replaced(terminal_of):
    out = terminal_of(40)
    terminal.say_live("a" * 100, out)
    terminal.say_live("b" * 30, out)
    terminal.say("done", file=out)
    terminal.say("next", file=out)
    assert rows_of(out.getvalue(), 40) == ["done", "next", ""]


def test_no_live_line_where_there_is_no_terminal(monkeypatch, terminal_of):
    out = io.StringIO()
    terminal.say_live("round 1", out)
    assert out.getvalue() == ""
    dumb = terminal_of(80)
    monkeypatch.setenv("TERM", "dumb")
    terminal.say_live("round 1", dumb)
    assert dumb.getvalue() == ""


def test_the_least_important_parts_of_a_line_go_first():
    assert terminal.fitted(["round 1", "0:01 left", "loss 0.1"], None) == "round 1  0:01 left  loss 0.1"
    assert terminal.fitted(["round 1", "0:01 left", "loss 0.1"], 20) == "round 1  0:01 left"
    assert terminal.fitted(["a long head of a line", "b"], 10) == "a long head of a line"


@pytest.mark.parametrize("columns", [None, 79, 40, 20])
def test_a_table_fits_and_loses_nothing(columns):
    text = terminal.table(ROWS, columns, right=["seed", "F1"], ruled=True)
    assert columns is None or max(map(len, text.splitlines())) <= columns
    joined = "".join(text.split())
    assert all("".join(cell.split()) in joined for row in ROWS for cell in row[1:])
    if columns is None:
        assert text.splitlines()[2:] == [
            "a-rather-long-name-of-a-run     0  94.43  below",
            "b                              12   5.00  -",
        ]
    else:
        assert len(text.split("\n\n")) == {79: 1, 40: 2, 20: 3}[columns]


@pytest.mark.parametrize("text", ["\x1b[2J", "\x07", "a\rb", "\x00", "\u202ereversed", "\u2028", "\udc80"])
def test_nothing_that_a_terminal_obeys_is_printed(capsys, text):
    terminal.say(f"class {text}!")
    terminal.say_error(f"class {text}!")
    shown = capsys.readouterr()
    for line in (shown.out, shown.err):
        assert line.startswith("class ")
        assert line.endswith("!\n")
        assert line[:-1].isprintable()
        assert line.isascii()
