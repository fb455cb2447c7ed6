"""A long run of tiny clients, and what grows in it: memory, objects, file handles, threads, files, time of a round.

    python -m benchmarks.soak --out soak-out                                          # 2,000 rounds, about ten minutes
    python -m benchmarks.soak --out soak-out --tracking sqlite --method fedavg --rounds 500
    python -m benchmarks.soak --out soak-out --redraw                                 # the plot and the slopes again

8 clients of the toy task in 2 shared actors, all of them in every round, through the product's own executor and round
loop, with a checkpoint and a line in the journal after every round. Every ``--every`` rounds the driver, each actor and
Ray's two daemons are read. Writes ``soak.json`` (every reading), ``slopes.md`` and ``soak.png`` to the folder, and the
run folder below it. A slope is that of a straight line by least squares from round ``--settled`` on, with its 95 %
interval (Student's t, residuals taken as independent; memory grows in steps, so its true interval is wider).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment, FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import open_loop
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_folder import lock_run, write_config
from anchorfl.tasks.options import TaskOptions
from benchmarks.growth import Reader, Series, Slope
from benchmarks.readings import machine

MIB = 2**20


def experiment(options: argparse.Namespace, folder: Path) -> Experiment:
    uri = "none" if options.tracking == "none" else f"sqlite:///{folder / 'mlflow.db'}"
    return Experiment(
        task=TaskOptions(
            name="toy-single", clients=8, classes_per_client=2, min_count=1, max_tokens=32, validation=0.1,
            cache=str(folder / "cache"),
        ),
        method=METHODS[options.method](),
        model=ModelOptions(width=16, heads=2, feedforward=8, dropout=0.1),
        class_embeddings=ClassEmbeddingOptions(width=16),
        federation=FederationOptions(rounds=options.rounds, clients_per_round=8, epochs=1),
        optimizer=OptimizerOptions(lr=0.001, batch_size=16, microbatch_tokens=64),
        cluster=ClusterOptions(executor="ray", clients_per_actor=4, backup=options.backup),
        tracking=TrackingOptions(uri=uri, log_model=False),
        seed=1,
    )  # fmt: skip


def watch(loop: RoundLoop, reader: Reader, every: int, references_every: int, save: Callable[[], None]) -> None:
    """Run the loop to its end and read as it goes; wall seconds of a round are the median since the last reading.
    save: called when references have been counted.
    """
    taken: list[float] = []
    began = time.perf_counter()
    for round_ in loop.steps():
        taken.append(time.perf_counter() - began)
        if round_ and round_ % every == 0:
            reader.series.add(round_, {"round/seconds": float(np.median(taken[-every:]))})
            reader.read(round_, round_ % references_every == 0)
            if round_ % references_every == 0:
                save()
        began = time.perf_counter()


def soak(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Do the whole run and return its readings; ``path`` gets them as they come in."""
    folder = path.resolve().parent / f"run-{time.strftime('%Y%m%d-%H%M%S')}"
    e = experiment(options, folder.parent)
    series, began = Series(), time.perf_counter()

    def content() -> dict[str, Any]:
        about = machine("ray", "torch", "mlflow", "psutil", "numpy")
        about |= {"options": vars(options), "seconds": time.perf_counter() - began}
        return {"about": about, "rounds": series.rounds, "values": series.values}

    with lock_run(folder):
        ray_cluster.start(e.cluster)
        run_spec = make_run_spec(e, print)
        executor = RayExecutor(run_spec)
        write_config(folder, e)
        loop = open_loop(run_spec, executor, folder, Progress(e.federation.rounds), print)
        reader = Reader(executor, folder, series)
        watch(loop, reader, options.every, 10 * options.every, lambda: write_json(path, content()))
        loop.tracker.end("FINISHED")
        executor.close()
        ray_cluster.stop()
    return content()


def table(slopes: Mapping[str, Slope], last: Iterable[int]) -> str:
    """Return the slopes as Markdown."""
    lines = [
        f"Rounds {' to '.join(map(str, last))}.\n",
        "| | mean | change per round | 95 % interval |",
        "|---|---|---|---|",
    ]
    for name, s in sorted(slopes.items()):
        low, high = s.per_round - s.half, s.per_round + s.half
        lines.append(f"| {name} | {s.mean:,.6g} | {s.per_round:+.4g} | {low:+.4g} to {high:+.4g} |")
    return "\n".join(lines) + "\n"


PANELS: dict[str, tuple[str, float]] = {
    "uss": ("own memory (USS), MiB since it settled", 1 / MIB),
    "objects": ("Python objects since it settled", 1.0),
    "handles": ("file handles since it settled", 1.0),
    "cpu_ms": ("CPU of a round, ms", 1.0),
    "round/seconds": ("wall time of a round, s (median of the readings' rounds)", 1.0),
    "ray/references": ("references to Ray's objects", 1.0),
}


def draw(series: Series, settled: int, path: Path) -> None:
    """Draw six panels over the rounds, one line per process."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 5.6), sharex=True, layout="constrained")
    for axis, (what, (title, scale)) in zip(axes.flat, PANELS.items(), strict=True):
        for name in [n for n in series.values if n == what or n.endswith(f"/{what}")]:
            x, y = np.array(series.rounds[name]), np.array(series.values[name]) * scale
            if "since" in title and name != what:
                y = y - y[np.searchsorted(x, settled)]
            axis.plot(x, y, lw=0.9, label=name.split("/")[0])
        axis.axvline(settled, color="grey", lw=0.6, ls=":")
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        if "/" in what:
            axis.set_ylim(bottom=0)
    axes[0, 0].legend(fontsize=7, ncols=2)
    for axis in axes[1]:
        axis.set_xlabel("round", fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--every", type=int, default=10, help="rounds between readings")
    parser.add_argument("--settled", type=int, default=200, help="first round of the slopes")
    parser.add_argument("--method", default="fedalign", choices=sorted(METHODS))
    parser.add_argument("--tracking", default="none", choices=["none", "sqlite"])
    parser.add_argument("--backup", default="", help="as cluster.backup")
    parser.add_argument("--redraw", action="store_true", help="from soak.json, without a run")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "soak.json"
    content = json.loads(path.read_text()) if options.redraw else soak(options, path)
    series = Series(content["rounds"], content["values"])
    write_json(path, content)
    text = table(series.slopes(options.settled), [options.settled, max(series.rounds["round/seconds"])])
    (out / "slopes.md").write_text(text)
    draw(series, options.settled, out / "soak.png")
    print(text)
    print(json.dumps(content["about"]))


if __name__ == "__main__":
    main()
