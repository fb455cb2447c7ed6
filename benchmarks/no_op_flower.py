"""Rounds of Flower's engine without training: ``bench_engine.py`` calls this in an environment of Flower's own.

    flwr/bin/python benchmarks/no_op_flower.py CLIENTS POPULATION MEGABYTES ROUNDS

Clients load the weights as a state dict and send them back; FedAvg on the server; two at a time, one CPU each, as
Flower's simulation gives them out. Ten tensors make the megabytes.
"""

from __future__ import annotations

import json
import sys
import time

import psutil
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SLOTS, TENSORS = 2, 10
CLIENTS, POPULATION, ROUNDS = (int(word) for word in (sys.argv[1], sys.argv[2], sys.argv[4]))
VALUES = int(float(sys.argv[3]) * 1e6 / 4 / TENSORS)

client_app = ClientApp()


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.zeros(VALUES) for _ in range(TENSORS)])


@client_app.train()
def train(message, context):
    network = Network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round begins and ends."""

    def __init__(self, **options):
        super().__init__(**options)
        self.began, self.taken, self.first = 0.0, [], 0.0

    def configure_train(self, server_round, arrays, config, grid):
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        answered = sum(not reply.has_error() for reply in replies)
        if answered != CLIENTS:
            raise RuntimeError(f"round {server_round}: {answered} of {CLIENTS} clients answered")
        found = super().aggregate_train(server_round, replies)
        self.taken.append(time.perf_counter() - self.began)
        self.first = self.first or time.time() - psutil.Process().create_time()
        if server_round == ROUNDS:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            pss = sum(p.memory_full_info().pss for p in family if p.is_running())
            line = {"case": "flower", "seconds": self.taken, "first": self.first, "bytes": 4 * VALUES * TENSORS}
            print(json.dumps(line | {"pss": pss}), flush=True)
        return found


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    share = CLIENTS / POPULATION
    strategy = Timed(
        fraction_train=share, min_train_nodes=CLIENTS, min_available_nodes=POPULATION, fraction_evaluate=0.0
    )
    strategy.start(grid, ArrayRecord(Network().state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    resources = {"init_args": {"num_cpus": SLOTS}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, POPULATION, backend_config=resources)
