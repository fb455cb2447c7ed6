"""Options that do not fit the data or each other: one line, before anything is made of them."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment
from tests.runs import quiet


@pytest.mark.parametrize(
    ("method", "data", "width", "near"),
    [("fedavg", "toy-single", 10, 8), ("fedavg", "toy-single", 1, 4), ("fedlgt", "toy-multi", 30, 28)],
)
def test_a_width_that_no_heads_divide_is_refused(method, data, width, near):
    model = {"width": width, "heads": 4}
    line = rf"model.width = {width} is no multiple of model.heads = 4: set it to {near}, or --model.heads to a divisor"
    with pytest.raises(InputError, match=line):
        make_run_spec(small_experiment(method, data, model=model), quiet)


def test_a_network_without_attention_takes_any_width():
    assert make_run_spec(small_experiment("fedavg", "toy-multi", model={"width": 10, "heads": 4}), quiet).model()
