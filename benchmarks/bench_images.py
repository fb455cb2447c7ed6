"""Images into local training, against the plain loop: a DataLoader that changes and scales every sample by itself.

    python -m benchmarks.bench_images [--rows 256] [--batches 8 32] [--pairs 3] [--device cuda] [--augment]

Random color images of 28 x 28 (PBC's size) and ResNet-18 with BatchNorm. Images a second (on a CPU: of its time) of
one local epoch, and of the way from memory to the batch alone; plain and ours take turns, medians and their ratio. Both
have the same arithmetic: where nothing is drawn, the largest difference of a weight after the epoch is printed, too.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.contract import ServerState
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.training.local_training import TrainingSpec, augmentation, batches, fit, micro_batches
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.tasks.contract import Card, ClientData, InputSpec, Objective
from anchorfl.tasks.images.pixels import LEVELS
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD

CLASSES, SHAPE = 8, (3, 28, 28)
SPEC = InputSpec("image", SHAPE, mean=IMAGENET_MEAN, std=IMAGENET_STD, levels=LEVELS)
MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))


class Samples(Dataset):
    """Samples of the plain way, one at a time, as transforms of torchvision work."""

    def __init__(self, x, label, augment):
        self.x, self.label, self.augment = x, label, augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = torch.from_numpy(self.x[i]).float().div(LEVELS)
        if self.augment:
            x = F.pad(x, (4, 4, 4, 4))
            top, left = torch.randint(9, (2,)).tolist()
            x = x[:, top : top + SHAPE[1], left : left + SHAPE[2]]
            for axis in (1, 2):
                if torch.rand(1) < 0.5:
                    x = x.flip(axis)
        return (x - MEAN) / STD, self.label[i]


def network(device):
    return build(
        ModelOptions(network="resnet18", width=512, norm="batch"), input_kind="image", shape=SHAPE, vocabulary=0,
        classes=CLASSES, head="linear", unit=True, vectors_CP=None, seed=0,
    ).to(device)  # fmt: skip


def done(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


class Contest:
    """The two ways over the same images."""

    def __init__(self, rows, batch, augment, device):
        rng = np.random.default_rng(0)
        self.x = rng.integers(256, size=(rows, *SHAPE), dtype=np.uint8)
        self.label = rng.integers(CLASSES, size=rows)
        y = F.one_hot(torch.from_numpy(self.label), CLASSES).float()
        data = ClientData(torch.from_numpy(self.x), y, torch.ones_like(y), y, None, SPEC.scaling().to(device))
        moved = (getattr(data, n).to(device) for n in ("x", "y_NC", "known_NC", "weight_NC"))
        self.data = ClientData(*moved, None, data.scaling)
        self.card = Card(0, rows, y.sum(0).long(), torch.ones(CLASSES).bool())
        self.options = OptimizerOptions(
            name="sgd", lr=0.01, momentum=0.9, weight_decay=5e-4, batch_size=batch, skip_zero_rows=False,
            microbatch_tokens=0, crop=4 if augment else 0, flip="both" if augment else "none",
        )  # fmt: skip
        self.augment, self.device, self.batch = augment, device, batch
        self.model = network(device)
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}

    def ours(self):
        training = TrainingSpec(FedAvg(), Objective("single"), self.options, 1, 0)
        fitted = fit(training, self.model, self.card, self.data, ServerState(self.start), {}, 1)
        done(self.device)
        return fitted.update.weights

    def loader(self, order=None):
        samples = Samples(self.x, self.label, self.augment)
        return DataLoader(samples, self.batch, sampler=order, generator=torch.Generator().manual_seed(0))

    def plain(self, order):
        model = self.model
        model.load_state_dict(self.start)
        model.train()
        optimizer = make(self.options, model.parameters())
        for x, label in self.loader(order):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(self.device)), label.to(self.device)).backward()
            optimizer.step()
        done(self.device)
        return {k: v.clone() for k, v in model.state_dict().items()}

    def fed(self):
        """Make our batches alone."""
        change = augmentation(self.options, torch.Generator().manual_seed(0))
        active_N = torch.ones(len(self.x), dtype=torch.bool)
        for index_B in batches(torch.randperm(len(self.x)), self.batch, True):
            micro_batches(self.data, index_B, active_N, self.options, self.model, change)
        done(self.device)

    def loaded(self):
        """Make the plain batches alone."""
        for x, _ in self.loader():
            x.to(self.device)
        done(self.device)


def rate(rows, clock, call, *arguments, times=1):
    began = clock()
    for _ in range(times):
        call(*arguments)
    return times * rows / (clock() - began)


def shown(what, batch, pairs):
    plain, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{what:<16} batch {batch:>3}   plain {plain:>9.1f}   ours {ours:>9.1f} images/s   {ours / plain:5.2f} x",
        flush=True,
    )


def order_of(contest):
    """Return the order in which ours takes the rows."""
    return torch.randperm(len(contest.x), generator=torch_rng(0, "client", 0, "round", 1, "order")).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--augment", action="store_true")
    options = parser.parse_args()
    one_thread()
    clock = time.process_time if options.device == "cpu" else time.perf_counter  # one thread: other load does not count
    print(f"bytes an image in memory: {4 * int(np.prod(SHAPE))} as float32, {int(np.prod(SHAPE))} as stored")
    for batch in options.batches:
        contest = Contest(options.rows, batch, options.augment, torch.device(options.device))
        order = order_of(contest)
        one, two = contest.plain(order), contest.ours()  # warm-up, and the same mathematics
        if not options.augment:
            far = max(float((one[n].double() - two[n].double()).abs().max()) for n in one)
            print(f"largest difference of a weight after the epoch: {far:.2g}")
        n, pairs = options.rows, range(options.pairs)
        fed = [(rate(n, clock, contest.loaded, times=20), rate(n, clock, contest.fed, times=20)) for _ in pairs]
        shown("batches alone", batch, fed)
        shown("training", batch, [(rate(n, clock, contest.plain, order), rate(n, clock, contest.ours)) for _ in pairs])


if __name__ == "__main__":
    main()
