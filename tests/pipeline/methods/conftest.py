"""A small federation on the network of FedBM's tables, for the tests of BatchNorm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorfl.models.options import ModelOptions


@pytest.fixture(scope="session")
def residual(experiment):
    """Return a maker of experiments: digits, 5 clients with 4 of the 10 classes each, 2 of them in each of 2 rounds, on
    a small residual network; keywords are of the model.
    """

    def make(method="fedavg", norm="batch", *, options=None, **model):
        e = experiment(
            method, "digits", options=options, federation={"rounds": 2, "clients_per_round": 2, "epochs": 1},
            optimizer={"name": "sgd", "momentum": 0.9, "skip_zero_rows": False, "microbatch_tokens": 0,
            "batch_size": 64},
        )  # fmt: skip
        network = ModelOptions(**{"network": "resnet8", "width": 64, "norm": norm} | model)
        return replace(e, model=network, task=replace(e.task, clients=5, classes_per_client=4))

    return make
