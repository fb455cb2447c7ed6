"""``anchorfl export flower`` and ``nvflare``: an experiment as an app of another framework."""

from __future__ import annotations

import shlex
from pathlib import Path

from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError

FORM = "anchorfl export flower|nvflare PRESET [--output FOLDER] [--option value ...] [--section.option value ...]"

RUN = {
    "flower": "flwr run . local-simulation --stream",
    "nvflare": "nvflare simulator . -w workspace -n {clients} -t 2",
}
"""What runs an app of each framework."""


def export(words: list[str]) -> int:
    """Write an app; return 0. InputError: another framework, or an experiment that has no such app."""
    if not words or words[0] in ("-h", "--help"):
        say(
            f"usage: {FORM}\n\nWrite the folder of an app for Flower or NVFlare that gives the bits of 'anchorfl run'"
            " (docs/flower.md, docs/nvflare.md)."
        )
        return 0
    what, *rest = words
    if what not in RUN:
        raise InputError(f"export {what}: there are {', '.join(RUN)}; {FORM}")
    from anchorfl.pipeline.config.experiment import data_and_method, plugins_of
    from anchorfl.pipeline.config.idle_options import check_idle
    from anchorfl.pipeline.config.overrides import typed_options
    from anchorfl.pipeline.export.apps import write_app
    from anchorfl.pipeline.run.assemble import from_words
    from anchorfl.tasks.plugins import dotted_name, packages_of

    preset = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    experiment = from_words(preset, rest, f"anchorfl export {what}").experiment
    check_idle(typed_options(rest), [experiment])
    name = data_and_method(experiment)
    folder = Path(experiment.output or f"{what}-{name}")
    say("\n".join(map(str, write_app(what, folder, name, experiment))))
    for of in plugins_of(experiment).values():
        packages = " and ".join(packages_of(of))
        say(f"to install wherever it runs, as anchorfl is: {packages or 'a package'} with {dotted_name(of)}")
    command = RUN[what].format(clients=experiment.task.clients)
    say(f"run it where its framework is (docs/{what}.md): cd {shlex.quote(str(folder))} && {command}")
    return 0
