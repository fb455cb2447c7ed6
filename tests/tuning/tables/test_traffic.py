"""Communication in the way of FedALC's Table IV, against its printed figures (which round the rows first)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.published import published_traffic
from anchorfl.tuning.tables.statistics import counted_traffic, counted_traffic_of

RESNET = 23_000_000
"""What the table takes for ResNet-50."""


FEDALC = PAPERS["fedalc"]


@pytest.mark.parametrize("label", ["FedALC", "FedALC-fixed"])
@pytest.mark.parametrize(
    ("data", "classes", "width", "rounds"),
    [("FLAIR", 1628, 512, 100), ("VOC07", 20, 512, 300), ("VOC12", 20, 512, 300), ("COCO", 80, 2048, 100)],
)
def test_printed_figures(data, label, classes, width, rounds):
    """The paper rounds the rows' size, COCO's 1.25 MB to 1.3. What it prints for a client of FedALC on COCO is not what
    the rule gives.
    """
    got = counted_traffic(RESNET, classes, width, rounds, fixed=label == "FedALC-fixed")
    printed = published_traffic(FEDALC, data, label)
    if (data, label) == ("COCO", "FedALC"):
        assert (got[1], printed[1]) == (pytest.approx(2301.6, abs=0.1), 2316)
        got, printed = got[:1], printed[:1]
    assert got == pytest.approx(printed, rel=2.1e-3)


def test_a_row_without_printed_traffic_has_none():
    assert published_traffic(FEDALC, "Bibtex", "FedALC") is None
    assert published_traffic(PAPERS["fedalign"], "R8-8", "FedAlign") is None


def test_fixed_rows_of_several_hash_tables_are_counted_once_and_not_sent():
    params = {"model.width": 16, "hash_tables": 2, "class_embedding_lr": 0.0, "task.clients": 5, "federation.rounds": 3}
    counted = counted_traffic_of(SimpleNamespace(params=params), 1000 * 4 / 1e6)
    assert counted == counted_traffic(1000, 5, 32, 3, fixed=True)
