"""A peer's task on pfl-research: ``peer_tasks.py`` calls this in an environment of pfl's own.

pfl/bin/python benchmarks/peer_tasks_pfl.py TASK ROUNDS
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import psutil
import torch
from peer_network import LR, TASKS, WIDTH, clients_of, encoder, images
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

TASK, ROUNDS = TASKS[sys.argv[1]], int(sys.argv[2])


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = encoder(TASK)
        self.head = torch.nn.Linear(WIDTH, TASK.outputs)

    def loss(self, x, y):
        self.train()
        return torch.nn.functional.cross_entropy(self.head(self.encoder(x)), y)

    def metrics(self, x, y):
        return {}


class Timed(TrainingProcessCallback):
    """Seconds, on the clock and of CPU, from the end of one round to the end of the next."""

    def __init__(self):
        self.taken, self.cpu, self.began, self.used = [], [], time.perf_counter(), time.process_time()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now, used = time.perf_counter(), time.process_time()
        self.taken.append(now - self.began)
        self.cpu.append(used - self.used)
        self.began, self.used = now, used
        return False, Metrics()


def user(client):
    x, label_N = images(TASK, client)
    return Dataset(raw_data=[torch.from_numpy(x), torch.from_numpy(label_N)])


def main():
    torch.set_num_threads(1)
    order = itertools.chain.from_iterable(clients_of(TASK, round_) for round_ in itertools.count(1))
    users = FederatedDataset(user, lambda: next(order))
    network = Network()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    timed = Timed()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS + 1, train_cohort_size=TASK.selected,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=TASK.batch),
        callbacks=[timed],
        send_metrics_to_platform=False,
    )  # fmt: skip
    pss = psutil.Process().memory_full_info().pss
    print(json.dumps({"case": "pfl", "seconds": timed.taken, "cpu": timed.cpu, "pss": pss}), flush=True)


if __name__ == "__main__":
    main()
