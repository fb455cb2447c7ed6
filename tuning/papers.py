"""The papers whose tables are run again."""

from __future__ import annotations

from tasks.contract import InputError
from tasks.sources import nearest
from tuning.tables import MACRO_ACCURACY, MACRO_F1, MAP, P_AT_1, P_AT_3, P_AT_5, Paper

LAMBDAS = (1, 10, 100, 150, 200, 500)
"""Of FedALC's Tables V and VI."""
PAPERS: dict[str, Paper] = {
    "fedalign": Paper(
        title="FedAlign (KDD 2023)",
        published="FedAlign",
        tables=("2", "3"),
        own="FedAlign",
        data={
            "ES-5": "es-5",
            "ES-15": "es-15",
            "ES-25": "es-25",
            "MIMIC-III-10": "mimic3-10",
            "PAMAP2-9": "pamap2-9",
            "R8-8": "r8-8",
        },
        methods={
            "FedAvg": "fedavg",
            "FedProx(mu=0.001)": "fedprox-1e-3",
            "FedProx(mu=0.0001)": "fedprox-1e-4",
            "MOON": "moon",
            "SCAFFOLD": "scaffold",
            "FedPU": "fedpu",
            "FedRS(alpha=0.5)": "fedrs-0.5",
            "FedRS(alpha=0.9)": "fedrs-0.9",
            "FedAlign": "fedalign",
            "FedAlign w/o AL": "fedalign-no-al",
            "FedAlign w/o SE": "fedalign-no-se",
            "FedAlign w/o AT": "fedalign-no-at",
        },
        metrics=(MACRO_F1, MACRO_ACCURACY),
        seeds=(4321, 4322, 4323, 4324, 4325),
    ),
    "fedalc": Paper(
        title="FedALC (2025)",
        published="FedALC",
        tables=("III", "V", "VI", "VII"),
        own="FedALC",
        data={
            "COCO": "coco14",
            "VOC12": "voc12",
            "VOC07": "voc07",
            "FLAIR": "flair",
            "EURLex": "eurlex",
            "Bibtex": "bibtex",
            "AmazonCat": "amazoncat",
            "Amazon670K": "amazon670k",
            "WikiLSHTC": "wikilshtc",
        },
        methods={
            "FLAG": "flag",
            "FedMLH": "fedmlh",
            "FedAvg": "fedavg",
            "FedAvg-fixed": "fedavg-fixed",
            "FedAwS": "fedaws",
            **{f"FedAwS(lambda={v})": f"fedaws-{v}" for v in LAMBDAS},
            "FedALC": "fedalc",
            **{f"FedALC(lambda={v})": f"fedalc-{v}" for v in LAMBDAS},
            "FedALC-fixed": "fedalc-fixed",
        },
        metrics=(P_AT_1, P_AT_3, P_AT_5, MAP),
        seeds=(0, 1, 2, 3, 4),
        in_label=("lambda",),
        given=("K",),
        quoted=("SLEEC",),
        convention=True,
        beside=dict.fromkeys(("COCO", "VOC12", "VOC07", "FLAIR"), ("FedAvg",))
        | dict.fromkeys(("EURLex", "Bibtex", "AmazonCat", "Amazon670K", "WikiLSHTC"), ("FedAvg-fixed", "FedALC-fixed")),
    ),
}
"""By the name that ``anchorfl table`` takes."""


def paper_of(name: str) -> Paper:
    """The paper of that name. InputError with those that there are."""
    if name not in PAPERS:
        raise InputError(f"no table {name!r}{nearest(name, PAPERS)}; there are: {', '.join(PAPERS)}")
    return PAPERS[name]
