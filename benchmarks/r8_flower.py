"""R8-8's training by hand in Flower's simulation: ``bench_rounds.py`` calls this in an environment of Flower's own.

    flwr/bin/python benchmarks/r8_flower.py CLIENTS.pt plain|fast|bfloat16 ROUNDS

Two clients at a time, one CPU each, as Flower's simulation gives them out; every actor reads the file once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

FILE, WAY, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
HERE = str(Path(__file__).resolve().parent)
client_app, server_app = ClientApp(), ServerApp()


def by_hand():
    """Return the module by hand, the clients and a network, loaded once in a process."""
    sys.path.insert(0, HERE)
    import r8_by_hand

    if not hasattr(r8_by_hand, "LOADED"):
        torch.set_num_threads(1)
        about = torch.load(FILE, weights_only=True)
        kind = r8_by_hand.Plain if WAY == "plain" else r8_by_hand.Fast
        r8_by_hand.LOADED = about, kind(about["vocabulary"], about["length"], about["classes"])
    return (r8_by_hand, *r8_by_hand.LOADED)


@client_app.train()
def train(message, context):
    made, about, model = by_hand()
    round_, place = message.content["config"]["server-round"], int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    # whichever nodes were drawn: the n-th of them trains the n-th client of the round, as in every other way
    rows = about["clients"][about["chosen"][round_ - 1][place % len(about["chosen"][0])]]
    made.train(model, rows, torch.randperm(len(rows["x"])), WAY)
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round begins and ends."""

    taken: list[float]
    began: float

    def configure_train(self, server_round, arrays, config, grid):
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if failed := sum(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: {failed} clients failed")
        found = super().aggregate_train(server_round, replies)
        self.taken.append(time.perf_counter() - self.began)
        if server_round == ROUNDS:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            pss = sum(p.memory_full_info().pss for p in family if p.is_running())
            print(json.dumps({"case": f"flower {WAY}", "seconds": self.taken, "pss": pss}), flush=True)
        return found


@server_app.main()
def main(grid, context):
    _, about, model = by_hand()
    clients = len(about["chosen"][0])
    strategy = Timed(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    strategy.taken = []
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    # as many nodes as clients of a round, so that each of them trains one
    nodes = len(torch.load(FILE, weights_only=True)["chosen"][0])
    run_simulation(server_app, client_app, nodes, backend_config=resources)
