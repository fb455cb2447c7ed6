"""A trial's point as a preset that is ready to run."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from typing import Any

from anchorfl.pipeline.config.schema import from_tree, to_toml
from anchorfl.tuning.search.results import Sweep, Trial, seeds_text
from anchorfl.tuning.search.search_space import PRESET, Value


def best_preset(sweep: Sweep, trial: Trial, text: str) -> str:
    """Return the preset's TOML text with a scored trial's values in place of its own; a head says whence they come."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    chosen = tomllib.loads(text)
    for name, value in trial.point.items():
        if name == PRESET:
            continue  # the text is of the chosen one
        section, _, key = (name if "." in name else f"method.{name}").rpartition(".")
        lines = _put(lines, section, key, value)
        chosen.setdefault(section, {})[key] = value
    if not _says("\n".join(lines), chosen):
        lines = to_toml(from_tree(chosen)).splitlines()
    score = 100 * statistics.fmean(trial.scores(sweep.rule))
    head = [
        f"# {trial.point.get(PRESET, sweep.preset)} with the point"
        f" {f'that {sweep.name} chose' if trial == sweep.best else f'on the front of {sweep.name}'}:"
        f" trial {trial.number} of {len(sweep.trials)}.",
        f"# Validation {sweep.metric} {score:.2f} ({sweep.rule}, round {trial.rounds},"
        f" {seeds_text(sorted(trial.curves))}).",
    ]
    return "\n".join([*head, *lines]).rstrip() + "\n"


def _says(text: str, tree: dict[str, Any]) -> bool:
    """Return whether a text is TOML that says this. Tables may be written in ways that no replaced line fits."""
    try:
        return tomllib.loads(text) == tree
    except tomllib.TOMLDecodeError:
        return False


def _put(lines: list[str], section: str, key: str, value: Value) -> list[str]:
    """Set ``key`` in a table; a remark behind the old value stays, a missing key or table is added."""
    starts = [i for i, line in enumerate(lines) if line.strip() == f"[{section}]"]
    if not starts:
        return [*lines, "", f"[{section}]", f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    first = starts[0] + 1
    last = next((i for i in range(first, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    for i in range(first, last):
        match = re.fullmatch(rf"(\s*){re.escape(key)}\s*=[^#\"']*(?:\"[^\"]*\"|'[^']*')?\s*(#.*)?", lines[i])
        if match:
            remark = f"  {match[2]}" if match[2] else ""
            return [*lines[:i], f"{match[1]}{key} = {json.dumps(value, ensure_ascii=False)}{remark}", *lines[i + 1 :]]
    while last > first and not lines[last - 1].strip():
        last -= 1
    return [*lines[:last], f"{key} = {json.dumps(value, ensure_ascii=False)}", *lines[last:]]
