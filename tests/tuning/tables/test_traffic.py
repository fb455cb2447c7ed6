"""Communication in the way of FedALC's Table IV, against its printed figures (which round the rows first)."""

from __future__ import annotations

import pytest

from anchorfl.tuning.tables.statistics import counted_traffic

RESNET = 23_000_000
"""What the table takes for ResNet-50."""


@pytest.mark.parametrize(
    ("classes", "width", "rounds", "fixed", "down", "up"),
    [
        (1628, 512, 100, False, 2940, 2300.4),  # FLAIR
        (1628, 512, 100, True, 2306.4, 2300),
        (20, 512, 300, False, 6924, 6901.2),  # VOC
        (20, 512, 300, True, 6900.1, 6900),
        (80, 2048, 100, True, 2301.3, 2300),  # COCO, whose rows have 2048 values in this table
    ],
)
def test_printed_figures(classes, width, rounds, fixed, down, up):
    got = counted_traffic(RESNET, classes, width, rounds, fixed=fixed)
    assert got == pytest.approx((down, up), rel=2e-3)
