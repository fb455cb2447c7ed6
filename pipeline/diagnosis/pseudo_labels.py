"""Precision of pseudo-labels: every client annotates its data with the state of a round, and the hidden truth judges.

The annotation is the method's own code (``ClientTrainer.data``), in a work-space. Shape suffixes: N rows of a client, C
classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.pipeline.algorithm.contract import ClientContext, ClientTrainer
from anchorfl.pipeline.algorithm.parameters import load_sent
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.divergence import row_ids
from anchorfl.pipeline.diagnosis.figures import draw_precision
from anchorfl.pipeline.diagnosis.result import Floats, PartResult, write_table
from anchorfl.pipeline.diagnosis.truth import Truth, check_labels, read_truth
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.local_training import infer
from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.contract import Card, ClientData

COLUMNS = (
    "open", "hidden", "positive", "right", "negative", "negative_right", "unjudged",
    "precision", "coverage", "chance", "negative_precision",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of entries (row, class) per class, int64 [C].

    Only ``unjudged`` counts entries whose truth the raw data do not have.
    """

    open: Ints
    """Without a label, in classes that the client does not identify."""
    hidden: Ints
    """Entries of ``open`` that are truly positive."""
    positive: Ints
    """Positive pseudo-labels."""
    right: Ints
    """Entries of ``positive`` that are true."""
    negative: Ints
    """Negative pseudo-labels."""
    negative_right: Ints
    """Entries of ``negative`` that are true."""
    unjudged: Ints
    """Pseudo-labels whose truth the raw data do not have."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))

    def total(self) -> Counts:
        """Return the counts of all classes as one."""
        return Counts(*(getattr(self, n).sum(keepdims=True) for n in self.__slots__))

    def table(self) -> dict[str, Ints | Floats]:
        """Return the counts and their shares [C], NaN where there is nothing to divide by.

        precision: right / positive. coverage: right / hidden. chance: hidden / open, the precision of random labels.
        """
        shares = {
            "precision": _ratio(self.right, self.positive),
            "coverage": _ratio(self.right, self.hidden),
            "chance": _ratio(self.hidden, self.open),
            "negative_precision": _ratio(self.negative_right, self.negative),
        }
        return {n: getattr(self, n) for n in self.__slots__} | shares


def _ratio(part_C: Ints, whole_C: Ints) -> Floats:
    share_C: Floats = np.divide(part_C, whole_C, out=np.full(len(whole_C), np.nan), where=whole_C > 0)
    return share_C


def judge(given: ClientData, annotated: ClientData, open_C: Bools, y_NC: Bools, truth_NC: Bools) -> Counts:
    """Compare what ``annotated`` knows and ``given`` does not with the truth ``y_NC``, where ``truth_NC`` has one.

    open_C: classes that a row without a label of them may have.
    """
    unknown_NC = given.known_NC.numpy() == 0
    pseudo_NC = unknown_NC & (annotated.known_NC.numpy() > 0)
    positive_NC = pseudo_NC & (annotated.y_NC.numpy() > 0)
    open_NC, negative_NC = unknown_NC & open_C, pseudo_NC & ~positive_NC
    return Counts(
        *(
            mask_NC.sum(0).astype(np.int64)
            for mask_NC in (
                open_NC & truth_NC, open_NC & truth_NC & y_NC,
                positive_NC & truth_NC, positive_NC & truth_NC & y_NC,
                negative_NC & truth_NC, negative_NC & truth_NC & ~y_NC,
                pseudo_NC & ~truth_NC,
            )
        )
    )  # fmt: skip


def annotate(analysis: Analysis, round_: int, client: int, card: Card, sent: Any) -> ClientData:
    """Return the client's rows as it would train on them at the start of round ``round_ + 1``."""
    server, experiment = analysis.server, analysis.run_spec.experiment
    load_sent(server.model, sent.weights)
    ctx = ClientContext(
        server.model, sent, card, analysis.rows(client), analysis.lasting(client), server.objective,
        experiment.optimizer, infer, torch_rng(analysis.seed, "client", client, "round", round_ + 1, "method"),
        server.client_message(client), round_ + 1,
    )  # fmt: skip
    trainer: ClientTrainer[Any, Any] = experiment.method.trainer(ctx)
    return trainer.data()


def pseudo_labels(analysis: Analysis, out: Path, log: Log) -> PartResult:
    """Write ``pseudo_labels.csv``: counts and shares per class and in all, by round (``Analysis.trainable``).

    Of several rounds also ``pseudo_labels.png``.
    """
    clients = [c for c in analysis.server.cards if c.num_examples]
    ids = {c.client: row_ids(analysis.prepared, c.client) for c in clients}
    truth: Truth | None = None
    counts_by_round: dict[int, Counts] = {}
    for round_ in analysis.trainable():
        server = analysis.at(round_)
        sent = server.broadcast(round_ + 1)
        total: Counts | None = None
        for card in clients:
            known, rows = analysis.rows(card.client), annotate(analysis, round_, card.client, card, sent)
            if rows is known:  # the method's own way to say that it labels nothing
                continue
            truth = truth or read_truth(analysis, log)
            y_NC, truth_NC = truth.of(ids[card.client])
            check_labels(known, y_NC, f"{analysis.folder}, client {card.client}")
            # several labels a row: those of identified classes may be missing, too
            open_C = ~card.identified_C.numpy() | (server.objective.kind == "multi")
            counts = judge(known, rows, open_C, y_NC, truth_NC)
            total = counts if total is None else total + counts
        if total is not None:
            counts_by_round[round_] = total
    if not counts_by_round:
        return PartResult({}, (f"pseudo-labels: {analysis.run_spec.experiment.method.name} makes none here",))
    return _write(analysis.class_names, counts_by_round, out)


def _write(names: tuple[str, ...], counts_by_round: dict[int, Counts], out: Path) -> PartResult:
    rows: list[list[object]] = []
    metrics: dict[int, dict[str, float]] = {}
    for round_, counts in counts_by_round.items():
        all_, each = counts.total().table(), counts.table()
        rows += [[round_, "", *(all_[n][0] for n in COLUMNS)]]
        rows += [[round_, name, *(each[n][c] for n in COLUMNS)] for c, name in enumerate(names)]
        values = {f"pseudo/{n}": float(all_[n][0]) for n in ("precision", "coverage", "chance", "positive")}
        values |= {f"precision/{name}": float(each["precision"][c]) for c, name in enumerate(names)}
        metrics[round_] = {n: v for n, v in values.items() if np.isfinite(v)}
    write_table(out / "pseudo_labels.csv", ("round", "class", *COLUMNS), rows)
    if len(counts_by_round) > 1:
        tables = [counts.table() for counts in counts_by_round.values()]
        total = [counts.total().table() for counts in counts_by_round.values()]
        whole = {n: np.array([float(t[n][0]) for t in total]) for n in ("precision", "coverage", "chance")}
        precision_RC = np.stack([np.asarray(t["precision"], dtype=np.float64) for t in tables])
        draw_precision(list(counts_by_round), whole, precision_RC, names, out / "pseudo_labels.png")
    ends = dict.fromkeys((next(iter(counts_by_round)), list(counts_by_round)[-1]))
    lines = (f"pseudo-positives after round {r}: {_summary(counts_by_round[r].total())}" for r in ends)
    return PartResult(metrics, tuple(lines))


def _summary(total: Counts) -> str:
    """Return the shares of the positive pseudo-labels as text; no share where there is nothing to divide by."""
    t = {n: v[0] for n, v in total.table().items()}
    hidden = f"{t['coverage']:.3f} of the hidden ones" if t["hidden"] else "no positive label is hidden"
    if not t["positive"]:
        return f"none ({t['hidden']} positive labels are hidden)" if t["hidden"] else f"none ({hidden})"
    chance = f"; at random {t['chance']:.3f}" if t["open"] else ""
    return f"{t['right']} of {t['positive']} right (precision {t['precision']:.3f}{chance}), {hidden}"
