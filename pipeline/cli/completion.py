"""``anchorfl completion``: what a shell needs to complete commands, presets and options by the TAB key.

The script holds the words themselves, so that TAB starts no Python; after an update it is written anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from anchorfl.pipeline.terminal import say

SHELLS = "bash", "zsh"
OF_PRESETS = "run", "sweep", "probe", "export"
"""Commands that take presets and ``--section.option``."""
OF_OPTIONS = "table", "benchmark", "recommend"
"""Commands that take ``--section.option`` and no preset."""
SCRIPT = """{zsh}_anchorfl() {{
    local words="{commands}" presets="{presets}" options="{options}"
    if ((COMP_CWORD > 1)); then
        case ${{COMP_WORDS[1]}} in
{cases}
            *) words="" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o bashdefault -o default -F _anchorfl anchorfl
"""
"""Where no word fits, the shell completes files: presets of one's own, run folders."""
ZSH = "autoload -U +X compinit bashcompinit\n((${+functions[compdef]})) || compinit\nbashcompinit\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = 'now: eval "$(anchorfl completion bash)"; always: put that line into ~/.bashrc (zsh: ~/.zshrc)'
    parser.add_argument("shell", choices=SHELLS)


def completion(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> int:
    """Print the script. parsers: of the commands, by name."""
    from anchorfl.pipeline.config.presets import preset_names

    say(script(shell, parsers, preset_names(), option_names()).rstrip("\n"))
    return 0


def script(
    shell: str, parsers: Mapping[str, argparse.ArgumentParser], presets: Collection[str], options: Collection[str]
) -> str:
    """Return the script for a shell."""
    cases = []
    for name, parser in parsers.items():
        words = [word for action in parser._actions for word in (*action.option_strings, *_choices(action))]
        words += ["$options"] if name in (*OF_PRESETS, *OF_OPTIONS) else []
        words += ["$presets"] if name in OF_PRESETS else []
        words += {"presets": ["$presets"], "run": ["--print"], "export": ["flower", "nvflare"]}.get(name, [])
        cases.append(f'            {name}) words="{" ".join(words)}" ;;')
    return SCRIPT.format(
        zsh=ZSH if shell == "zsh" else "", commands=" ".join(parsers), presets=" ".join(presets),
        options=" ".join(f"--{name}" for name in options), cases="\n".join(cases),
    )  # fmt: skip


def option_names() -> list[str]:
    """Return the dotted names of all options of a run, of every shipped method."""
    from anchorfl.pipeline.config.presets import read_preset
    from anchorfl.pipeline.config.schema import options_of
    from anchorfl.pipeline.methods import METHODS

    names = dict.fromkeys(n for n in options_of(read_preset("digits/fedavg")) if not n.startswith("method."))
    kinds: list[Any] = list(METHODS.values())
    of_methods = sorted({f"method.{f.name}" for kind in kinds for f in fields(kind) if f.init})
    return [*names, "method.name", *of_methods]


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or () if not action.option_strings]
