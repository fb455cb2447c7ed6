"""Clients that answer in each round under Flower, of 10, where the process of one dies.

    python -m venv flwr && flwr/bin/pip install "flwr[simulation]==1.41.0" torch
    FLWR_TELEMETRY_ENABLED=0 flwr/bin/python benchmarks/crash_scenario_flower.py [--repeat 3]

The scenario of ``crash_scenario.py``, which needs Flower and not this project: 10 clients, all of them in each of 8
rounds, 2 actors of one CPU, a tenth of a second of work each; the process of client 3 dies in round 2. FedAvg as
Flower ships it, asked for nothing but all clients and no evaluation; its own handling of replies counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

CLIENTS, ROUNDS, SLOTS, DYING, ROUND, WORK_S = 10, 8, 2, 3, 2, 0.1

client_app = ClientApp()


@client_app.train()
def train(message, context):
    time.sleep(WORK_S)
    if context.node_config["partition-id"] == DYING and message.content["config"]["server-round"] == ROUND:
        os._exit(1)
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content=content, reply_to=message)


class Counting(FedAvg):
    """FedAvg that notes how many replies of a round carry weights."""

    def __init__(self, counts, **options):
        super().__init__(**options)
        self.counts = counts

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.counts.append(sum(not reply.has_error() for reply in replies))
        return super().aggregate_train(server_round, replies)


def once():
    """Run once in this process; print clients answering per round."""
    counts: list[int] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid, context):
        strategy = Counting(counts, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord({"w": torch.zeros(100)}), num_rounds=ROUNDS)

    resources = {"init_args": {"num_cpus": SLOTS}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=resources)
    print(json.dumps({"answering": counts}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs, each in a process of its own; 0: one, in this one")
    options = parser.parse_args()
    if not options.repeat:
        once()
        return
    for _ in range(options.repeat):
        subprocess.run([sys.executable, __file__, "--repeat", "0"], check=True)
    versions = {name: version(name) for name in ("flwr", "ray", "torch")}
    print(json.dumps(versions | {"python": platform.python_version()}))


if __name__ == "__main__":
    main()
