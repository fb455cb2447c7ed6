"""Matrix products per second by torch's BLAS and by oneDNN, in one thread, and what of it a linear layer keeps.

    python -m benchmarks.products

Every pair is timed in turn, five times; medians. M, K, N: rows, entries, outputs. Then a forward and a backward pass of
``nn.Linear`` and of ``OneDnnLinear``. At last such passes over numbers of rows that change from one to the next, as the
pieces of mini-batches do: in float32, in bfloat16 as training has it, and in bfloat16 by torch's autocast.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from anchorfl.models.lower_precision import use_bfloat16
from anchorfl.models.onednn import product, use_onednn
from anchorfl.pipeline.execution.system_metrics import peak_resident

SHAPES = (4096, 1024, 1024), (1024, 256, 768), (1024, 256, 64), (1024, 64, 256)


def seconds(call: Callable[[], object]) -> float:
    """Return the mean of as many calls as fill a quarter of a second, after one."""
    call()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < 0.25:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls


def medians(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the medians of five turns each, one after the other."""
    turns = [[seconds(call) for call in calls] for _ in range(5)]
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def main() -> None:
    torch.set_num_threads(1)
    print(torch.__version__, torch.backends.cpu.get_cpu_capability())
    print("       M     K     N   BLAS  oneDNN  (GFLOP/s)  ratio")
    for m, k, n in SHAPES:
        a_MK, b_KN = torch.randn(m, k), torch.randn(k, n)
        blas, onednn = (2e-9 * m * k * n / s for s in medians((lambda: a_MK @ b_KN, lambda: product(a_MK, b_KN))))  # noqa: B023
        print(f"{m:8} {k:5} {n:5} {blas:6.0f} {onednn:7.0f}  {onednn / blas:16.2f}")
    for m, k, n in SHAPES:
        layers = nn.Linear(k, n), nn.Sequential(nn.Linear(k, n))
        use_onednn(layers[1])
        x_MK, grad_MN = torch.randn(m, k, requires_grad=True), torch.randn(m, n)

        def both(layer: nn.Module, x: Tensor = x_MK, grad: Tensor = grad_MN) -> None:
            layer(x).backward(grad)

        plain, fast = medians([lambda layer=layer: both(layer) for layer in layers])  # type: ignore[misc]
        print(
            f"layer {m}, {k}, {n}, forward and backward: {1e3 * plain:.2f} ms, {1e3 * fast:.2f} ms: {plain / fast:.2f}"
        )
    changing_rows()


def changing_rows(entries: int = 256, outputs: int = 768, passes: int = 400) -> None:
    """Time passes of a layer over 600 to 1,024 rows, drawn anew each time."""
    rng, layer = torch.Generator().manual_seed(0), nn.Linear(entries, outputs)
    most_MK = torch.randn(1024, entries, generator=rng)
    lowered = nn.Sequential(nn.Linear(entries, outputs))
    use_bfloat16(lowered)
    with_autocast = torch.autocast("cpu", torch.bfloat16)(layer.forward)
    for name, forward in (
        ("float32", layer),
        ("bfloat16, as training has it", lowered),
        ("bfloat16, autocast", with_autocast),
    ):
        rows = torch.randint(600, 1025, (passes,), generator=rng).tolist()
        before, began = peak_resident(), time.perf_counter()
        for count in rows:
            x_MK = most_MK[:count].detach().requires_grad_()
            forward(x_MK).float().sum().backward()
        rate = 6e-9 * sum(rows) * entries * outputs / (time.perf_counter() - began)
        grown = (peak_resident() - before) / 1e6
        print(f"{entries} x {outputs}, numbers of rows that change, {name}: {rate:.0f} GFLOP/s, {grown:.0f} MB more")


if __name__ == "__main__":
    main()
