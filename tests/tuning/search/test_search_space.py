"""Search spaces: what methods declare, what --space says, and what it may not say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.pipeline.methods import METHODS
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.search_space import SPACES, Choice, Range, describe, parse, resolve, space_of

HELD = Path(__file__).parent / "spaces.json"
NUMBERS = st.floats(min_value=1e-6, max_value=99.9, allow_nan=False).map(lambda x: float(f"{x:.6g}"))


def test_every_method_declares_a_space():
    assert set(SPACES) == set(METHODS)
    for declared in SPACES.values():
        assert declared.space
        assert declared.warm_up >= 1
        assert all(d.reason for d in declared.space.values())


@pytest.mark.parametrize("spec", ["int:log:1:100:4", "int:1:9:3", "log:0.1:10:5", "tail:90:99:5", "0:1:2"])
def test_a_text_comes_back(spec):
    assert describe(parse(spec)) == spec


def test_whole_numbers_on_a_log_scale_are_those():
    assert parse("int:log:1:100:3").grid() == [1, 10, 100]


@pytest.mark.parametrize("other", ["method.q1=90:95", "q1=90:95"])
def test_an_option_has_one_name_in_a_space(other):
    """The later of two would be trained, and the other one reported."""
    e = read_preset("digits/fedalign")
    with pytest.raises(InputError, match="twice"):
        space_of(e, ["q1=95:99", other])


@pytest.mark.parametrize(
    ("spec", "line"), [("0:1:999999999", "at most 10000"), ("0:1:1", "at least 2"), ("0:1:99999999999", "not under")]
)
def test_a_grid_has_a_size(spec, line):
    with pytest.raises(ValueError, match=line):
        parse(spec)
    with pytest.raises(ValueError, match="no whole numbers"):
        Range(90, 99, "tail", integer=True)


def spaces_now():
    """Return every declared space as ``--space`` takes it, and the rounds of a trial at least."""
    texts = {name: {option: describe(d) for option, d in one.space.items()} for name, one in SPACES.items()}
    return {name: space | {"warm_up": SPACES[name].warm_up} for name, space in texts.items()}


def test_spaces_are_those_of_the_version_before():
    """A sweep without ``--space`` finds another point in another space: say so in CHANGELOG.md, then
    ``python -m tests.tuning.search.test_search_space`` writes the file anew.
    """
    assert spaces_now() == json.loads(HELD.read_text())


@pytest.mark.parametrize("name", preset_names())
def test_presets_lie_inside_the_space_of_their_method(name):
    e = read_preset(name)
    for key, dimension in SPACES[e.method.name].space.items():
        section, _, option = resolve(e, key).rpartition(".")
        value = getattr(getattr(e, section), option)
        is_fixed = name.endswith("/fedavg-fixed")  # another method by its class_embedding_lr of 0
        assert dimension.holds(value) or (is_fixed and key == "class_embedding_lr" and value == 0), key


@given(NUMBERS, NUMBERS, st.sampled_from(["linear", "log", "tail"]), st.integers(2, 9))
def test_describe_and_parse_are_inverse(a, b, scale, steps):
    if a == b:
        return
    dimension = Range(min(a, b), max(a, b), scale, steps=steps)
    assert parse(describe(dimension)) == dimension


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("95:99.9", Range(95, 99.9)),
        ("log:0.1:1000:5", Range(0.1, 1000, "log", steps=5)),
        ("tail:90:99.9:4", Range(90, 99.9, "tail", steps=4)),
        ("int:1:5", Range(1, 5, integer=True)),
        ("0.1,1,10", Choice((0.1, 1, 10))),
        ("cosine, dot", Choice(("cosine", "dot"))),
        ("true,false", Choice((True, False))),
    ],
)
def test_what_the_texts_mean(text, value):
    assert parse(text) == value


def test_whole_numbers_stay_inside_a_range_with_broken_ends():
    wide = Range(2.5, 7.5, integer=True)
    assert [wide.value(inner) for inner in (2.5, 2.6, 5.2, 7.4, 7.5)] == [3, 3, 5, 7, 7]
    assert {type(value) for value in wide.grid()} == {int}


def test_grids_are_even_in_their_scale():
    assert Range(0, 8, steps=5).grid() == [0, 2, 4, 6, 8]
    assert Range(0.1, 1000, "log", steps=5).grid() == [0.1, 1, 10, 100, 1000]
    assert Range(90, 99.9, "tail", steps=3).grid() == [90, 99, 99.9]
    assert Range(1, 3, integer=True, steps=5).grid() == [1, 2, 3]  # no value twice


@given(NUMBERS, NUMBERS, st.sampled_from(["linear", "log", "tail"]), st.floats(0, 1))
def test_rounding_stays_inside(a, b, scale, share):
    """A value is rounded for people to read, and never leaves its range for that."""
    if a == b:
        return
    dimension = Range(min(a, b), max(a, b), scale)
    low, high = sorted((dimension.inner(dimension.low), dimension.inner(dimension.high)))
    value = dimension.value(low + share * (high - low))
    assert dimension.low <= value <= dimension.high


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (["alfa=1:2"], "--space alfa: no such option (did you mean 'alpha'?)"),
        (["lr=1:2"], "--space lr: no such option (did you mean 'optimizer.lr'?)"),
        (["q1"], "--space 'q1': write name=..."),
        (["q1=1:2", "q1=3:4"], "--space names q1 twice"),
        (["q1=9:3"], "--space q1: 9:3: low must be below high"),
        (["alpha=log:0:3"], "low must be above 0"),
        (["q1=tail:90:100"], "high must be below 100"),
        (["q1=a:b"], "'a' is no number"),
        (["q1=1,1"], "give different values"),
        (["q1=log:1:2:3:4"], "is not understood"),
        (["q1=1:9:1"], "a grid needs at least 2 points"),
        (["task.clients=1,2"], "made once, before a sweep"),
        (["seed=1,2"], "made once, before a sweep"),
        (["class_embeddings.width=1,2"], "made once, before a sweep"),
        (["federation.rounds=1,2"], "made once, before a sweep"),
    ],
)
def test_bad_spaces_are_named(experiment, given_, message):
    with pytest.raises(InputError) as error:
        space_of(experiment("fedalign"), given_)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_without_a_space_is_named(experiment, monkeypatch):
    monkeypatch.delitem(SPACES, "fedavg")
    with pytest.raises(InputError, match=r"'fedavg' declares no search space.*--space"):
        space_of(experiment("fedavg"))
    assert list(space_of(experiment("fedavg"), ["optimizer.lr=1e-4,1e-3"])) == ["optimizer.lr"]


def test_names_of_other_sections(experiment):
    space = space_of(experiment("fedalign"), ["optimizer.weight_decay=log:1e-4:1e-2", "alpha=1,2"])
    assert list(space) == ["optimizer.weight_decay", "alpha"]
    assert resolve(experiment("fedalign"), "alpha") == "method.alpha"
    assert math.isclose(space["optimizer.weight_decay"].grid()[2], 1e-3)


if __name__ == "__main__":
    HELD.write_text(json.dumps(spaces_now(), indent=1, sort_keys=True) + "\n")
