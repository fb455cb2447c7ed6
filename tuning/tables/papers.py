"""The papers whose tables are run again."""

from __future__ import annotations

from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tuning.tables.published import ACCURACY, MACRO_ACCURACY, MACRO_F1, MAP, P_AT_1, P_AT_3, P_AT_5, Paper

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
    "fedbm": Paper(
        title="FedBM (2025)",
        published="FedBM",
        tables=("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"),
        own="FedBM",
        data={
            **{
                f"{name}, beta={beta}": f"{name.lower()}-{beta}"
                for name in ("OCT-C8", "Kvasir-v2", "HAM10000", "PBC")
                for beta in ("0.05", "0.1")
            },
            "FEMNIST, by-user": "femnist",
        },
        methods={
            "Central": "central",
            "FedAvg": "fedavg",
            "FedDyn": "feddyn",
            "FedProx": "fedprox",
            "FedRep": "fedrep",
            "FedROD": "fedrod",
            "FedNH": "fednh",
            "FedProto": "fedproto",
            "FedETF": "fedetf",
            "SCAFFOLD": "scaffold",
            "FedBM": "fedbm",
            "FedBM w/o LKCC": "fedbm-no-lkcc",
            "FedBM w/o CGDE": "fedbm-no-cgde",
            "LKCC (25%)": "lkcc-25",
            "LKCC (50%)": "lkcc-50",
            "LKCC (75%)": "lkcc-75",
            "LKCC (100%)": "lkcc-100",
            "Baseline": "baseline",
            "Random (Freezing)": "frozen-random",
            "Embedding (Averaging)": "frozen-mean",
            "Embedding (Distribution)": "frozen-distribution",
            "FedBM w/o Concept Conditions": "fedbm-no-concepts",
            "FedBM w/o L_div": "fedbm-no-div",
            "FedBM w/o L_dis": "fedbm-no-dis",
            "FedBM lambda_div=0.1": "fedbm-div-0.1",
            "FedBM lambda_div=1.0": "fedbm-div-1",
            "FedBM lambda_div=10": "fedbm-div-10",
            "FedBM lambda_dis=0.1": "fedbm-dis-0.1",
            "FedBM lambda_dis=1": "fedbm-dis-1",
            "FedBM lambda_dis=10": "fedbm-dis-10",
            "FedBM plm=Bert": "fedbm-bert",
            "FedBM plm=RoBERTa": "fedbm-roberta",
            "FedBM plm=BiomedCLIP": "fedbm-biomedclip",
        },
        metrics=(ACCURACY, MACRO_F1),
        seeds=(0, 1, 2),
        reported="best_sum",
        beside=dict.fromkeys(
            (*(f"{name}, beta={beta}" for name in ("HAM10000", "PBC") for beta in ("0.05", "0.1")), "FEMNIST, by-user"),
            ("FedBM w/o LKCC", "FedBM w/o CGDE"),
        ),
    ),
}
"""By the name that ``anchorfl table`` takes."""


def paper_of(name: str) -> Paper:
    """The paper of that name. InputError with those that there are."""
    if name not in PAPERS:
        raise InputError(f"no table {name!r}{nearest(name, PAPERS)}; there are: {', '.join(PAPERS)}")
    return PAPERS[name]
