"""Figures as files: PNG and SVG, the same bytes twice, and whole or not at all."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.results import picture


def figure():
    made = picture.new_figure(3, 2)
    ax = made.subplots()
    ax.plot([1, 2, 3], [1, 4, 9], label="a")
    ax.fill_between([1, 2, 3], [0, 3, 8], [2, 5, 10], hatch="//")
    ax.set_title(picture.short("costs $5 or $6, and " + "more" * 20))
    return made


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    """Also without SOURCE_DATE_EPOCH: neither a date nor a random id is in the files."""
    first, second = (picture.save(figure(), tmp_path / f"{name}.png") for name in ("a", "b"))
    assert [path.name for path in first] == ["a.png", "a.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert "costs $5 or $6" in first[1].read_text()


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path, monkeypatch):
    png, svg = picture.save(figure(), tmp_path / "a.png")
    old = png.read_bytes(), svg.read_bytes()
    broken = figure()
    monkeypatch.setattr(broken, "savefig", lambda stream, **_: stream.write(b"half") / 0)
    with pytest.raises(ZeroDivisionError):
        picture.save(broken, png)
    assert (png.read_bytes(), svg.read_bytes()) == old
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg"}
