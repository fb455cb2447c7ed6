"""CPU time of a round of local training by kind of operation: a plain PyTorch loop and ours, on the same rows.

    python -m benchmarks.profile_round                       # R8-8, three minutes in one thread
    python -m benchmarks.profile_round --case digits
    python -m benchmarks.profile_round --precision bfloat16

Self CPU time by kind of operation, as torch's profiler sees it, of the second round; the profiler itself costs some
of it. Shares are of each way's own total.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from anchorfl.pipeline.config.experiment import Experiment
from benchmarks import round_ways
from benchmarks.round_ways import Round

CASES: dict[str, Callable[..., Experiment]] = {
    "r8-8": round_ways.r8,
    "digits": lambda **optimizer: round_ways.experiment("digits/fedavg", optimizer),
}
KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "mkldnn"),
    "dropout masks": ("bernoulli", "dropout", "random_", "index_select"),
    "layer norm, softmax": ("layer_norm", "softmax"),
    "optimizer": ("adam", "sgd"),
    "products with numbers, sums": ("mul", "add", "sum", "div", "where", "masked_fill", "threshold", "relu", "clamp"),
    "copies": ("copy_", "cat", "clone", "contiguous", "zero_", "fill_", "empty", "to_padded", "index"),
}
"""Kinds of operation, by what their names hold; the first that fits."""


def kind_of(name: str) -> str:
    """Return the kind of an operation of the profiler."""
    bare = name.lower().removeprefix("aten::")
    return next((kind for kind, parts in KINDS.items() if any(part in bare for part in parts)), "the rest")


def seconds(round_: Round) -> Counter[str]:
    """Return the self CPU seconds of the second round by kind of operation."""
    round_(1)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        round_(2)
    out: Counter[str] = Counter()
    for event in seen.key_averages():
        out[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), default="r8-8")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make = CASES[options.case]
    found = {
        "plain": seconds(round_ways.plain_loop(make(), 2)),
        "ours": seconds(round_ways.serial(make(precision=options.precision), 2)),
    }
    print("| | " + " | ".join(f"{way}, s | share" for way in found) + " |")
    print("|---" * (1 + 2 * len(found)) + "|")
    for kind in [*KINDS, "the rest"]:
        cells = [f"{each[kind]:.2f} | {each[kind] / each.total():.0%}" for each in found.values()]
        print(f"| {kind} | {' | '.join(cells)} |")
    print("| all | " + " | ".join(f"{each.total():.2f} | " for each in found.values()) + " |")


if __name__ == "__main__":
    main()
