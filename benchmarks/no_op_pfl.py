"""Rounds of pfl-research's engine without training: ``bench_engine.py`` calls this in an environment of pfl's own.

    pfl/bin/python benchmarks/no_op_pfl.py CLIENTS POPULATION MEGABYTES ROUNDS

Users load the weights and take no step; their differences are summed in float32 and added to the model. Ten tensors
make the megabytes; one thread, as our serial executor. The environment: pfl 0.6 with what it needs, torch, psutil.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import numpy as np
import psutil
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

TENSORS = 10
CLIENTS, POPULATION, ROUNDS = (int(word) for word in (sys.argv[1], sys.argv[2], sys.argv[4]))
VALUES = int(float(sys.argv[3]) * 1e6 / 4 / TENSORS)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.zeros(VALUES) for _ in range(TENSORS)])

    def loss(self, x, y):
        raise RuntimeError("no user takes a step")

    def metrics(self, x, y):
        return {}


class Timed(TrainingProcessCallback):
    """Seconds from the end of one round to the end of the next."""

    def __init__(self):
        self.taken, self.first, self.began = [], 0.0, time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = time.perf_counter()
        self.taken.append(now - self.began)
        self.began = now
        self.first = self.first or time.time() - psutil.Process().create_time()
        return False, Metrics()


def user(_):
    return Dataset(raw_data=[np.zeros((1, 1), np.float32), np.zeros(1, np.int64)])


def main():
    torch.set_num_threads(1)
    turn = itertools.cycle(range(POPULATION))
    users = FederatedDataset(user, lambda: next(turn))
    network = Network()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    timed = Timed()
    # no epoch: the user's model is loaded, differenced and summed, and nothing else
    local = NNTrainHyperParams(local_learning_rate=0.1, local_num_epochs=0, local_batch_size=None)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS + 1, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        local,
        callbacks=[timed],
        send_metrics_to_platform=False,
    )
    pss = psutil.Process().memory_full_info().pss
    line = {"case": "pfl", "seconds": timed.taken, "first": timed.first, "bytes": 4 * VALUES * TENSORS, "pss": pss}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
