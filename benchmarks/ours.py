"""Our figure of every preset that has kept records, as ``tuning/ours.csv``, which ``anchorfl presets`` shows.

Every line of TABLES is a call of ``anchorfl table ... --show`` on unpacked archives of benchmarks/results.

    python -m benchmarks.ours           # write the file
    python -m benchmarks.ours --check   # exit code 1 where it is not what the records give
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorfl.tuning.tables.command import Call, asked
from anchorfl.tuning.tables.ours import OURS, OurFigure, csv_text, figures_of

RESULTS = Path(__file__).resolve().parent / "results"
ENCODER = "--model.names_model sentence-transformers/all-MiniLM-L6-v2"
PBC = (
    "--seeds 0,1,2 --task.variant npz28 --task.image_size 28 --model.network resnet8 --model.stem auto --model.width 64"
    " --federation.epochs 1 --federation.rounds 40 --optimizer.batch_size 32 --evaluation.test last"
    f" {ENCODER} --method.generated 32 --method.head_epochs 1"
)
HAM = (
    "--task.variant hmnist_8_8_L --task.image_size 8 --model.network resnet8 --model.stem auto --model.width 64"
    f" --optimizer.batch_size 32 --evaluation.test last {ENCODER}"
)
TABLES = (
    ("fedalign --data r8-8", ("r8-8",)),
    ("fedalign --data es-5,es-15,es-25 --rows fedavg,scaffold,fedalign --seeds 4321,4322,4323", ("es",)),
    ("fedalc --data bibtex --task.validation 0", ("bibtex-lambda", "bibtex-others")),
    (f"fedbm --data pbc-0.05 {PBC}", ("pbc",)),
    (f"fedbm --data pbc-0.1 {PBC}", ("pbc",)),
    (f"fedbm --data ham10000-0.05 --rows fedavg {HAM}", ("fedbm-others",)),
    (
        f"fedbm --data ham10000-0.05 --rows fedbm {HAM} --method.generated 32 --method.lambda_div 0.0013",
        ("fedbm-others",),
    ),
)
"""Command -> archives."""


@contextmanager
def unpacked(archives: tuple[str, ...]) -> Iterator[Path]:
    """Yield a folder with the runs of some archives."""
    with tempfile.TemporaryDirectory() as folder:
        for name in archives:
            with tarfile.open(RESULTS / f"{name}.tar.xz") as tar:
                tar.extractall(folder, filter="data")
        yield Path(folder)


def figures() -> list[OurFigure]:
    """Return what the kept records give."""
    out = []
    for command, archives in TABLES:
        with unpacked(archives) as runs:
            call = Call(asked([*shlex.split(command), "--show", "--runs", str(runs)]))
            out += figures_of(call.table(), " ".join(f"{name}.tar.xz" for name in archives))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    found = figures()
    text = csv_text(found)
    if check:
        same = OURS.exists() and OURS.read_text(encoding="utf-8") == text
        sys.exit(None if same else f"{OURS} is not what the records give: run python -m benchmarks.ours")
    OURS.write_text(text, encoding="utf-8")
    print(f"{OURS}: {len(found)} figures of {len({f.preset for f in found})} presets")


if __name__ == "__main__":
    main()
