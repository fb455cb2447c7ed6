"""Every kind of complaint of tyro, in our words or its own: an upgrade that draws one otherwise fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
import tyro

from anchorfl.pipeline.config.tyro_errors import call_tyro, one_line_of
from anchorfl.tasks.errors import InputError


@dataclass(frozen=True)
class Section:
    rounds: int = 3
    share: float | None = None
    kind: Literal["one", "two"] = "one"
    deep: bool = True

    def __post_init__(self):
        if self.rounds < 1:
            raise ValueError(f"section.rounds = {self.rounds}: must be at least 1")


@dataclass(frozen=True)
class Options:
    section: Section = field(default_factory=Section)
    seed: int = 0


@dataclass(frozen=True)
class Needy:
    need: int


def parse(kind, arguments):
    config = (tyro.conf.FlagConversionOff,)
    return call_tyro(lambda: tyro.cli(kind, args=arguments, prog="anchorfl", use_underscores=True, config=config))


def test_what_is_right_comes_back():
    assert parse(Options, ["--section.rounds", "5", "--seed", "2"]) == Options(Section(5), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--section.rounds", "many"],
            "section.rounds = 'many': must be a whole number",
        ),
        (["--section.rounds", "a b"], "section.rounds = 'a b': must be a whole number"),
        (["--section.rounds", "it's"], "section.rounds = \"it's\": must be a whole number"),
        (["--section.rounds", ""], "section.rounds = '': must be a whole number"),
        (
            ["--section.share", "x"],
            "section.share = 'x': must be None or a number",
        ),
        (["--section.kind", "three"],
         "section.kind = 'three': one of one, two"),
        (["--section.deep", "maybe"],
         "section.deep = 'maybe': one of True, False"),
        (["--seed"], "--seed: give a value behind it"),
        (["--sed", "3"],
         "Unrecognized options Unrecognized options: --sed, 3 Perhaps you meant: --seed INT (default: 0)"),
        (["more"], "Unrecognized options Unrecognized options: more"),
        (["--section.rounds", "0"], "section.rounds = 0: must be at least 1"),
    ],
)  # fmt: skip
def test_a_complaint_is_one_line(arguments, message):
    with pytest.raises(InputError) as error:
        parse(Options, arguments)
    assert str(error.value) == message


def test_a_lacking_option_is_one_line():
    with pytest.raises(InputError) as error:
        parse(Needy, [])
    assert str(error.value) == "Required options Missing from anchorfl: --need INT (required)"


def test_an_option_that_names_itself_is_not_named_by_its_table():
    panel = "Value error Error parsing SweepOptions: --trials 0: must be at least 1"
    assert one_line_of(panel) == "--trials 0: must be at least 1"


def test_help_is_no_complaint(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Options, ["--help"])
    assert stop.value.code == 0
    assert "--section.rounds" in capsys.readouterr().out


def test_frame_colors_rules_and_footer_go():
    frame = "\x1b[31m╭─ Error ─╮\x1b[0m\n│ no such │\n│ option  │\n│ ------- │\n╰─────────╯\n"
    panel = frame + "For full helptext, run anchorfl --help\n"
    assert one_line_of(panel) == "Error no such option"
