"""Synthetic PAMAP2: made-up recordings of 9 subjects. Each activity has a level, a rhythm and a strength of its own in
every measure, so that windows can be told apart; with the gaps and the slow heart rate of the real files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.signals.pamap2 import FEATURES, OPTIONAL, PROTOCOL, STEPS, TRANSIENT

RATE = 100
"""Samples per second."""
HEART_EVERY = 11
"""Samples between two of the heart rate: about 9 Hz."""
SUBJECTS = range(101, 110)
OPTIONAL_SUBJECTS = (101, 105, 106, 108, 109)
NAN_SHARE = 0.003
"""Share of the lines in which a sensor's measures are missing."""
DECIMALS = 5
_SENSOR = 17


def write(folder: Path, rows: int, seed: int) -> None:
    """Write ``Protocol/subject101.dat`` to ``subject109.dat`` and five of ``Optional``.

    ``Protocol`` has ``rows`` lines or a few more; each activity of each subject has at least 120 lines.
    """
    rng = np.random.default_rng([seed, 231])
    shape = (max(PROTOCOL) + 1, len(FEATURES))
    level_AF, strength_AF = rng.normal(0, 2, shape), rng.uniform(0.2, 2, shape)
    pace_A = rng.uniform(0.5, 4, shape[0])
    each = max(120, -(-rows // (len(SUBJECTS) * (len(PROTOCOL) + 1))))
    for part, subjects, activities in (("Protocol", SUBJECTS, PROTOCOL), ("Optional", OPTIONAL_SUBJECTS, OPTIONAL)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for subject in subjects:
            id_N = _activities(activities, each, rng)
            time_N = 5 + np.arange(len(id_N)) / RATE
            wave_N = np.sin(2 * np.pi * pace_A[id_N] * time_N + rng.uniform(0, 6))
            value_NF = level_AF[id_N] + rng.normal(0, 0.3, len(FEATURES)) + strength_AF[id_N] * wave_N[:, None]
            value_NF += rng.normal(0, 0.3, value_NF.shape)
            value_NF[:, 0] = np.round(90 + 12 * level_AF[id_N, 0] + 3 * wave_N)
            _write(folder / part / f"subject{subject}.dat", time_N, id_N, _with_gaps(value_NF, rng))


def _activities(activities: Iterable[int], each: int, rng: np.random.Generator) -> Any:
    """Return the activity of every line: each once, of different length, with something in between."""
    parts = list[Any]()
    for number in activities:
        # a rest of less than a window at the end of every activity
        parts.append(np.full(each // (10 * STEPS) * STEPS + int(rng.integers(10, 40)), TRANSIENT))
        parts.append(np.full(each + int(rng.integers(1, STEPS)), number))
    return np.concatenate([*parts, np.full(20, TRANSIENT)])


def _with_gaps(value_NF: Any, rng: np.random.Generator) -> Any:
    """Keep the heart rate at every eleventh line, from the sixth on; let sensors miss some lines, each for itself."""
    value_NF[np.arange(len(value_NF)) % HEART_EVERY != 5, 0] = np.nan
    for sensor in range(3):
        lost = rng.random(len(value_NF)) < NAN_SHARE
        lost[:2] = sensor == 1  # at the very beginning, too
        value_NF[lost, 1 + sensor * _SENSOR : 1 + (sensor + 1) * _SENSOR] = np.nan
    return value_NF


def _write(path: Path, time_N: Any, id_N: Any, value_NF: Any) -> None:
    lines = (
        f"{time:.2f} {number} " + " ".join("NaN" if text == "nan" else text for text in row)
        for time, number, row in zip(time_N, id_N, np.char.mod(f"%.{DECIMALS}g", value_NF), strict=True)
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
