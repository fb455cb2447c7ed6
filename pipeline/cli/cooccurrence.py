"""``anchorfl cooccurrence``: count where class names of a task occur together in a corpus (docs/label-names.md)."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError

if TYPE_CHECKING:  # slow to import, and ``--help`` needs none of it
    import numpy as np
    import numpy.typing as npt

    from anchorfl.tasks.corpus.cooccurrence import CorpusCounts
    from anchorfl.tasks.corpus.counting import Scanner


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to ``parser``."""
    parser.add_argument(
        "corpus",
        nargs="+",
        help="text, JSON lines (.jsonl), Parquet or .gz files, folders, patterns such as 'wiki/*.gz'",
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--task", default="", help="the class names of this data set")
    whose.add_argument("--names", type=Path, default=None, help="a text file with one name a line instead")
    parser.add_argument(
        "--out", type=Path, required=True, help="CSV file for the table; the counts go beside it, .json"
    )
    parser.add_argument(
        "--segment", choices=("sentence", "paragraph", "article"), default="paragraph",
        help="two names occur together where one segment holds both (default: paragraph)",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=int, default=3, metavar="N",
        help="a name of n words occurs where they all lie within N*n words in a row, in any order (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--stem", choices=("none", "plural", "verbs"), default="plural",
        help="what counts as the same word: equal ones only, also the plural, also -s -ed -ing (default: plural)",
    )  # fmt: skip
    parser.add_argument("--field", default="text", help="JSON field or Parquet column of the text (default: text)")
    parser.add_argument(
        "--blank-lines", action="store_true",
        help="paragraphs end at blank lines (texts with hard line breaks); else every line is one",
    )  # fmt: skip
    parser.add_argument("--serial", action="store_true", help="in this process, on one core; else with Ray, on all")
    parser.add_argument("--address", default="", help="Ray cluster to use, as cluster.address")


def cooccurrence(options: argparse.Namespace) -> int:
    """Count, write the table and the counts, and say what was found."""
    from anchorfl.tasks.corpus.corpus_files import files
    from anchorfl.tasks.corpus.counting import Scanner

    if options.window < 1:
        raise InputError(f"--window {options.window}: give at least 1 word per word of a name")
    _check_out(options.out)
    scanner = Scanner(
        _class_names(options), options.segment, "blank_lines" if options.blank_lines else "lines", options.window,
        options.stem,
    )  # fmt: skip
    files(options.corpus)  # before Ray starts
    corpus = _counted(options, scanner)
    if not corpus.counts.segments:
        raise InputError(f"{', '.join(options.corpus)}: no word in it; give a corpus with text")
    table = _write(options, scanner, corpus)
    say(f"{table.summary(corpus)}\nTable: {options.out}; counts: {options.out.with_suffix('.json')}")
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The table that was written."""

    names: tuple[str, ...]
    weight_KK: npt.NDArray[np.float64]
    """Weights as ``PairCounts.weights``."""

    def summary(self, corpus: CorpusCounts) -> str:
        """Return what was found, and which names will keep random vectors."""
        import numpy as np

        edge_KK = np.nan_to_num(self.weight_KK) > 0
        absent_K = np.isnan(self.weight_KK.diagonal())
        lone_K = ~edge_KK.any(1) & ~absent_K
        size, seconds = corpus.size / 1e6, corpus.seconds
        lines = [
            f"{size:.1f} MB, {corpus.counts.segments} segments in {seconds:.1f} s ({size / seconds:.0f} MB/s)",
            f"{len(self.names) - absent_K.sum()} of {len(self.names)} names occur; {edge_KK.sum() // 2} edges",
        ]
        for what, some_K in (("never occur", absent_K), ("occur but have no edge", lone_K)):
            if some_K.any():
                who = ", ".join(self.names[at] for at in np.flatnonzero(some_K))
                lines.append(f"{what}, and will keep a random vector: {who}")
        return "\n".join(lines)

    def text(self) -> str:
        """Return the CSV that ``anchorfl.models.label_names.read_table`` reads."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["label", *self.names])
        for name, row in zip(self.names, self.weight_KK.tolist(), strict=True):
            writer.writerow([name, *(repr(value) if value else 0 for value in row)])
        return out.getvalue()


def _class_names(options: argparse.Namespace) -> tuple[str, ...]:
    from anchorfl.tasks.files.raw_files import open_text
    from anchorfl.tasks.ingest.raw_table import class_names_of
    from anchorfl.tasks.options import TaskOptions
    from anchorfl.tasks.registry import find_task

    if options.names is None:
        return class_names_of(find_task(options.task), TaskOptions(name=options.task))
    if not options.names.is_file():
        raise InputError(f"--names {options.names}: no such file; give a text file with one name a line")
    listed = tuple(line.strip() for _, line in open_text(options.names) if line.strip())
    if not listed:
        raise InputError(f"--names {options.names}: the file is empty; write one name a line")
    return listed


def _check_out(out: Path) -> None:
    """Raise InputError, before hours of work, where the counts cannot lie beside the table or no folder is there."""
    if out.suffix == ".json" or out.is_dir():
        raise InputError(f"--out {out}: give the name of a file, for example names.csv")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: no folder {out.parent}; make it first")


def _counted(options: argparse.Namespace, scanner: Scanner) -> CorpusCounts:
    from anchorfl.tasks.corpus.cooccurrence import count_names

    with ExitStack() as stack:
        if not options.serial:
            from anchorfl.pipeline.cluster import ray_cluster
            from anchorfl.pipeline.config.cluster import ClusterOptions

            stack.enter_context(ray_cluster.session(ClusterOptions(address=options.address)))
        return count_names(
            options.corpus, scanner, options.field, engine="local" if options.serial else "ray",
            log=say,
        )  # fmt: skip


def _write(options: argparse.Namespace, scanner: Scanner, corpus: CorpusCounts) -> Table:
    """Write the table, and beside it how it was made."""
    from anchorfl.pipeline.storage.atomic_files import write_atomically

    table = Table(scanner.names, corpus.counts.weights())
    counts: dict[str, Any] = {
        "corpus": options.corpus, "bytes": corpus.size, "segment": scanner.segment, "layout": scanner.layout,
        "window": scanner.window, "stem": scanner.stem, "segments": corpus.counts.segments,
        "with_name": dict(zip(scanner.names, corpus.counts.pair_KK.diagonal().tolist(), strict=True)),
        "with_pair": _pairs(scanner.names, corpus.counts.pair_KK.tolist()),
    }  # fmt: skip
    write_atomically(options.out, table.text().encode())
    write_atomically(options.out.with_suffix(".json"), json.dumps(counts, indent=1, ensure_ascii=False).encode())
    return table


def _pairs(names: Sequence[str], pair_KK: list[list[int]]) -> dict[str, dict[str, int]]:
    """Return each pair once, below the name that comes first."""
    rows = {
        name: {names[j]: n for j, n in enumerate(row) if j > i and n}
        for i, (name, row) in enumerate(zip(names, pair_KK, strict=True))
    }
    return {name: row for name, row in rows.items() if row}
