"""``anchorfl export flower``: an experiment as an app of another framework."""

from __future__ import annotations

from pathlib import Path

from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError

FORM = "anchorfl export flower PRESET [--output FOLDER] [--option value ...] [--section.option value ...]"


def export(words: list[str]) -> int:
    """Write an app; return 0. InputError: another framework, or an experiment that has no such app."""
    if not words or words[0] in ("-h", "--help"):
        say(
            f"usage: {FORM}\n\nWrite the folder of a Flower app that gives the bits of 'anchorfl run' (docs/flower.md)."
        )
        return 0
    what, *rest = words
    if what != "flower":
        raise InputError(f"export {what}: there is flower; {FORM}")
    from anchorfl.pipeline.config.experiment import data_and_method
    from anchorfl.pipeline.export.flower_app import write_app
    from anchorfl.pipeline.run.assemble import from_words

    preset = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    experiment = from_words(preset, rest, "anchorfl export flower").experiment
    name = data_and_method(experiment)
    folder = Path(experiment.output or f"flower-{name}")
    say("\n".join(map(str, write_app(folder, name, experiment))))
    say(f"run it where Flower is (docs/flower.md): cd {folder} && flwr run . local-simulation --stream")
    return 0
