"""docs/fidelity.md against the tree: every point of the papers stands once, and every place that it names exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/fidelity.md").read_text(encoding="utf-8")
POINTS = 227
STATUSES = ("built", "deviation", "open", "no code")


def rows() -> list[list[str]]:
    """Return the cells of every point: number, paper, status, places, note."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_point_stands_once_and_in_order():
    assert [int(row[0]) for row in rows()] == list(range(1, POINTS + 1))
    assert {len(row) for row in rows()} == {5}


def test_the_counts_are_those_of_the_rows():
    found = dict(re.findall(r"^\| (built|deviation|open|no code|all) \| (\d+) \|", PAGE, flags=re.MULTILINE))
    counts = Counter(row[2] for row in rows())
    assert {status: int(number) for status, number in found.items()} == counts | {"all": POINTS}
    assert set(counts) <= set(STATUSES)


def test_every_place_exists_and_holds_the_name():
    missing = []
    for number, _, status, where, _ in rows():
        places = re.findall(r"`([^`]+)`", where)
        if not places and status in ("built", "deviation"):
            missing.append(f"{number}: no place")
        for place in places:
            path, _, name = place.partition("::")
            file = ROOT / path
            if not file.is_file():
                missing.append(f"{number}: {path} is not there")
            elif name and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", file.read_text(encoding="utf-8")):
                missing.append(f"{number}: {name} is not in {path}")
    assert not missing, "\n".join(missing)


def test_what_differs_or_is_open_says_so():
    """A deviation names a document or says in its note what differs; an open point says why."""
    silent = [
        row[0]
        for row in rows()
        if (row[2] == "deviation" and not row[4] and "docs/" not in row[3]) or (row[2] == "open" and not row[4])
    ]
    assert silent == []
