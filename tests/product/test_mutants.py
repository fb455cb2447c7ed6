"""The mutation run: its changes, its draw by a seed, and that its reasons are of today's code."""

from __future__ import annotations

import ast
import tomllib

from benchmarks.mutants import CORE, REASONS, core, draw, key_of, mutants_of
from benchmarks.mutations import mutated, mutations

SOURCE = '''
def first(rows: list[int], most: int = 3) -> list[int]:
    """Return the first rows."""
    if not rows or most < 1:
        raise ValueError("most = 3: must be at least 1")
    print("rows", len(rows))
    return sorted(rows[:most], key=abs)
'''


def test_the_changes_of_a_function():
    found = {f"{m.before} -> {m.after}" for m in mutations(ast.parse(SOURCE))}
    assert found == {
        "3 -> 4", "3 -> 2",
        "not rows or most < 1 -> not rows and most < 1", "not rows or most < 1 -> most < 1",
        "not rows or most < 1 -> not rows", "not rows or most < 1 -> not (not rows or most < 1)",
        "not rows -> rows", "most < 1 -> most <= 1", "most < 1 -> most >= 1", "1 -> 2", "1 -> 0",
        "raise ValueError('most = 3: must be at least 1') -> pass",
        "return sorted(rows[:most], key=abs) -> return None",
        "sorted(rows[:most], key=abs) -> sorted(rows[:most])", "sorted(rows[:most], key=abs) -> rows[:most]",
        "rows[:most] -> rows[:]",
    }  # fmt: skip


def test_each_change_is_made_alone():
    texts = [ast.unparse(mutated(SOURCE, number)) for number in range(len(mutations(ast.parse(SOURCE))))]
    assert len(set(texts)) == len(texts)
    assert ast.unparse(ast.parse(SOURCE)) not in texts


def test_a_draw_follows_from_its_seed():
    files = core(["tasks/metrics/*"])
    assert draw(files, 20, 0) == draw(files, 20, 0) != draw(files, 20, 1)
    assert len({mutant.key for mutant in draw(files, 20, 0)}) == 20


def test_every_reason_is_of_a_change_that_the_core_still_has():
    reasons = tomllib.loads(REASONS.read_text()).get("survivor", [])
    known = {mutant.key for file in {one["file"] for one in reasons} for mutant in mutants_of(file)}
    assert [one for one in reasons if key_of(one) not in known or not one["reason"]] == []
    assert {one["file"] for one in reasons} <= {*core(CORE)}
