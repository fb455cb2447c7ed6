"""The papers whose tables are run again.

Which data sets and methods a paper has, its title and its seeds stand in its file of ``tuning/presets``; how its tables
are read stands here.
"""

from __future__ import annotations

from typing import Any

from anchorfl.pipeline.config.presets import shipped
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tuning.tables.published import ACCURACY, MACRO_ACCURACY, MACRO_F1, MAP, P_AT_1, P_AT_3, P_AT_5, Paper


def _paper(name: str, **fields: Any) -> Paper:
    """Return the paper of a file of presets, with further fields."""
    file = shipped().papers[name]
    presets: dict[str, list[str]] = {label: [] for label in file.data}
    labels = {federation: label for label, federation in file.data.items()}
    for preset in shipped().presets.values():
        if preset.paper is file and preset.published:
            presets[labels[preset.federation.name]].append(preset.published)
    return Paper(
        title=file.title,
        published=file.published,
        seeds=file.seeds,
        data=file.data,
        beside=file.beside,
        methods={row.published: row_name for row_name, row in file.rows.items() if row.published},
        presets={label: tuple(methods) for label, methods in presets.items()},
        **fields,
    )


PAPERS: dict[str, Paper] = {
    "fedalign": _paper(
        "fedalign",
        tables=("2", "3"),
        proposed_method="FedAlign",
        metrics=(MACRO_F1, MACRO_ACCURACY),
        preprint="FedAlign (preprint)",
    ),
    "fedalc": _paper(
        "fedalc",
        tables=("III", "V", "VI", "VII"),
        proposed_method="FedALC",
        metrics=(P_AT_1, P_AT_3, P_AT_5, MAP),
        method_settings=("lambda",),
        shared_settings=("K",),
        quoted=("SLEEC",),
        traffic_table="IV",
    ),
    "fedbm": _paper(
        "fedbm",
        tables=("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"),
        proposed_method="FedBM",
        metrics=(ACCURACY, MACRO_F1),
        reported="best_sum",
    ),
    "suite": _paper(
        "suite",
        tables=(),
        proposed_method="Anchor",
        metrics=(MACRO_F1, ACCURACY),
        reported="last5",
    ),
}
"""Name that ``anchorfl table`` takes -> paper."""


def paper_of(name: str) -> Paper:
    """Return the paper of that name. InputError with those that there are."""
    if name not in PAPERS:
        raise InputError(f"no table {name!r}{nearest(name, PAPERS)}; there are: {', '.join(PAPERS)}")
    return PAPERS[name]
