"""Steps of local training on a GPU: milliseconds, kernels, copies and waits of each, and how much of it the GPU works.

    python -m benchmarks.gpu_steps [--device cuda] [--repeats 5] [--steps 20] [--only resnet8] [--lanes]

Made-up rows of the sizes of the data sets: R8-8's texts (685 of 5 to 200 words), digits, PBC's images of 28 pixels.
A client trains for ``--steps`` steps; wall time is the median of the repeats, divided by the steps. Kernels and copies
are counted by torch's profiler in one more repeat; *busy* is their time by wall time without the profiler. Each case is
also run without CUDA graphs (*eager*), and the two give the same bits or it says so. ``--lanes``: clients side by side.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.contract import AveragingTrainer, ServerState
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.training.client import device_for
from anchorfl.pipeline.training.local_training import TrainingSpec, begin_fit, end_fit, fit, local_steps
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.pipeline.training.side_by_side import Lanes
from anchorfl.tasks.contract import Card, ClientData, Objective
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD, Scaling

ADAM = OptimizerOptions()
SGD = OptimizerOptions(
    name="sgd", lr=0.01, momentum=0.9, weight_decay=5e-4, batch_size=8, skip_zero_rows=False, microbatch_tokens=0
)
RESNET18 = ModelOptions(network="resnet18", norm="batch", width=512, stem="small")
RESNET8 = ModelOptions(network="resnet8", norm="batch", width=64, stem="small")
CASES = {
    "text, batch 128": ("text", ModelOptions(), ADAM),
    "text, batch 128, one piece": ("text", ModelOptions(), replace(ADAM, microbatch_tokens=0)),
    "digits, batch 32": ("digits", ModelOptions(width=64, dropout=0.25), replace(ADAM, batch_size=32)),
    "resnet8, batch 8": ("images", RESNET8, SGD),
    "resnet18, batch 8": ("images", RESNET18, SGD),
    "resnet18, batch 8, bfloat16": ("images", RESNET18, replace(SGD, precision="bfloat16")),
    "resnet18, batch 32": ("images", RESNET18, replace(SGD, batch_size=32)),
}


CLIENTS = 16
"""That train side by side, or one by one."""


def rows(kind: str, count: int) -> tuple[ClientData, tuple[int, ...]]:
    """Return made-up rows, and the shape of one."""
    rng = torch.Generator().manual_seed(0)
    classes = 10 if kind == "digits" else 8
    y_NC = F.one_hot(torch.randint(classes, (count,), generator=rng), classes).float()
    known_NC = torch.ones(count, classes)
    if kind == "digits":
        x = torch.rand(count, 1, 8, 8, generator=rng)
        return ClientData(x, y_NC, known_NC, y_NC), tuple(x.shape[1:])
    if kind == "images":
        x = torch.randint(256, (count, 3, 28, 28), generator=rng).to(torch.uint8)
        return ClientData(x, y_NC, known_NC, y_NC, None, Scaling.of(255, IMAGENET_MEAN, IMAGENET_STD)), (3, 28, 28)
    length_N = (torch.exp(0.75 * torch.randn(count, generator=rng) + 4.19)).long().clamp(5, 200)
    word = torch.randint(1, 720, (count, 200), generator=rng, dtype=torch.int32)
    x = word * (torch.arange(200) < length_N[:, None])
    return ClientData(x, y_NC, known_NC, y_NC, length_N), (200,)


class Case:
    """A client's training, as a run calls it; its rows and the broadcast are on the device already."""

    def __init__(self, kind: str, model: ModelOptions, optimizer: OptimizerOptions, steps: int, device: torch.device):
        per_epoch = 5 if kind == "text" else 20
        count = min(685, per_epoch * optimizer.batch_size) if kind == "text" else per_epoch * optimizer.batch_size
        data, shape = rows(kind, count)
        self.steps = steps
        moved = {n: getattr(data, n).to(device) for n in ("x", "y_NC", "known_NC", "weight_NC")}
        self.data = replace(data, **moved, scaling=data.scaling.to(device))
        classes = data.y_NC.shape[1]
        self.model = build(
            model, input_kind="tokens" if kind == "text" else "image", shape=shape, vocabulary=726, classes=classes,
            head="linear", unit=True, vectors_CP=None, seed=0,
        ).to(device)  # fmt: skip
        self.sent = ServerState(weights_of(self.model))
        self.card = Card(0, count, data.y_NC.sum(0).long().to(device), torch.ones(classes).bool().to(device))
        self.spec = TrainingSpec(FedAvg(), Objective("single"), optimizer, -(-steps // per_epoch), 0)
        self.device = device
        self.models = [self.model]

    def train(self) -> dict[str, Tensor]:
        update = fit(self.spec, self.model, self.card, self.data, self.sent, {}, 1).update.weights
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return update

    def seconds(self) -> float:
        began = time.perf_counter()
        self.train()
        return time.perf_counter() - began

    def beside(self, lanes: int) -> tuple[float, dict[str, Tensor]]:
        """Return the seconds of ``CLIENTS`` clients, so many at a time, and the last one's weights."""
        while len(self.models) < lanes:
            self.models.append(copy.deepcopy(self.model))

        def work(lane: int) -> Generator[None, None, dict[str, Tensor]]:
            fitting = begin_fit(self.spec, self.models[lane], self.card, self.data, self.sent, {}, 1)
            loss = yield from local_steps(self.spec, fitting, lane)
            weights: dict[str, Tensor] = end_fit(fitting.trainer, loss, 0.0).update.weights
            return weights

        began = time.perf_counter()
        done = list(Lanes(lanes).run([work] * CLIENTS))
        torch.cuda.synchronize()
        if isinstance(done[-1], Exception):
            raise done[-1]
        return time.perf_counter() - began, done[-1]

    def counted(self) -> tuple[Counter[str], float]:
        """Return kernels, copies and waits, and the seconds of kernels and copies."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            self.train()
        count, busy = Counter[str](), 0.0
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                copy = event.name.startswith(("Memcpy", "Memset"))
                count[event.name.split(" (")[0] if copy else "kernels"] += 1
                busy += event.device_time / 1e6
            elif event.name in ("cudaStreamSynchronize", "cudaLaunchKernel", "cudaGraphLaunch"):
                count[event.name] += 1
        return count, busy


def measure_lanes(name: str, case: Case, repeats: int) -> None:
    """Print milliseconds a client's step with clients side by side, by the number of lanes."""
    lanes, alone = (1, 2, 4, 8), case.beside(1)[1]
    taken: dict[int, list[float]] = {count: [] for count in lanes}
    for count in lanes:
        weights = case.beside(count)[1]  # also the warm-up
        assert all(torch.equal(alone[n], t) for n, t in weights.items()), f"{name}: {count} lanes give other bits"
    for _ in range(repeats):
        for count in lanes:
            taken[count].append(1e3 * case.beside(count)[0] / CLIENTS / case.steps)
    ms = {count: round(statistics.median(times), 3) for count, times in taken.items()}
    ratio = {n: round(statistics.median(a / b for a, b in zip(taken[1], taken[n], strict=True)), 2) for n in lanes}
    print(json.dumps({"case": name, "steps": case.steps, "ms by lanes": ms, "ratio": ratio}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--lanes", action="store_true", help=f"{CLIENTS} clients, so many at a time, instead")
    options = parser.parse_args()
    one_thread()
    device = device_for(float(options.device == "cuda"), must=True)
    if device.type == "cuda":
        print(torch.cuda.get_device_name(), torch.__version__)
    for name, (kind, model, optimizer) in CASES.items():
        if options.only not in name:
            continue
        case = Case(kind, model, optimizer, options.steps, device)
        if options.lanes:
            measure_lanes(name, case, options.repeats)
            continue
        update = {}
        for way in ("graphs", "eager") if device.type == "cuda" else ("eager",):
            with patch.object(AveragingTrainer, "replayable", way == "graphs"):
                update[way] = case.train()  # warm-up
                taken = statistics.median(case.seconds() for _ in range(options.repeats))
                line: dict[str, object] = {"case": name, "way": way, "ms": round(1e3 * taken / options.steps, 3)}
                if device.type == "cuda":
                    count, busy = case.counted()
                    line |= {what: round(n / options.steps, 1) for what, n in sorted(count.items())}
                    line["busy"] = round(busy / taken, 3)
            print(json.dumps(line), flush=True)
        if len(update) == 2:
            far = max(float((update["eager"][n] - t).abs().max()) for n, t in update["graphs"].items())
            print(f"largest difference of a weight: {far:.2g}", flush=True)


if __name__ == "__main__":
    main()
