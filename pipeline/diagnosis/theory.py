"""The terms of FedAlign's bound, measured: Theorem 4.1 and Corollary 4.1.1 of the KDD paper, round by round.

The theorem bounds the global model's risk on all data D by, for each client m: its empirical risk on the client's
labeled rows D_m, the divergence d(D_m, D), lambda_m (the risk of the best model for both), and a sample term. The
corollary puts the rows with a pseudo-label, D'_m, beside D_m, and needs d(D'_m, D) to be smaller than d(D_m, D). The
divergence stands here as the proxy A-distance of ``divergence.py``, in the global model's representation.

Shape suffixes: N rows of a client, C classes, D width, R sampled rows of all clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from anchorfl.models.heads import in_pieces
from anchorfl.pipeline.algorithm.seeds import numpy_rng
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.clients import MOST
from anchorfl.pipeline.diagnosis.divergence import LEAST, proxy_a_distance, row_ids
from anchorfl.pipeline.diagnosis.figures import draw_theory
from anchorfl.pipeline.diagnosis.pseudo_labels import annotate
from anchorfl.pipeline.diagnosis.result import Floats, PartResult, share_text, write_table
from anchorfl.pipeline.diagnosis.truth import Truth, read_truth
from anchorfl.pipeline.terminal import Log
from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.contract import ClientData
from anchorfl.tasks.errors import InputError

DELTA = 0.05
"""The bound holds with probability 1 - delta."""
MOST_CLASSES = 200
"""Classes for which joint classifiers are trained at most."""
REPEATS = 5
"""Draws of the rows, and of their halves, over which a distance is the mean: D'_m is often small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTerms:
    """The terms of one client after a round; NaN where its rows do not suffice."""

    client: int
    labeled: int
    """Rows with a given label, |D_m|."""
    pseudo: int
    """Rows with a pseudo-label that has a loss, |D'_m|."""
    share: float
    """|D_m| / (|D_m| + |D'_m|), the mixture weight of the corollary."""
    risk: float
    """Share of wrong decisions of the global model among the labels that the client was given."""
    distance_labeled: float
    """Proxy A-distance of labeled rows and rows of all clients."""
    distance_pseudo: float
    """The same of rows with a pseudo-label; as many rows."""
    distance_both: float
    """The same of both kinds, each with its share; as many rows."""
    lambda_bound: float
    """Upper bound of lambda_m: errors, on the client's rows and on all, of one logistic regression for all rows."""
    sample_term: float
    """sqrt(4 / N (d log(2 e N / d) + log(4 M / delta))) with N = |D_m| and d = D + 1, the VC dimension of a linear
    classifier of the representation. Above 1 it bounds nothing."""
    sample_term_both: float
    """The same with N = |D_m| + |D'_m|."""


TERMS = tuple(f.name for f in fields(ClientTerms))[1:]
DISTANCES = {"distance_labeled": "labeled rows", "distance_pseudo": "with a pseudo-label", "distance_both": "both"}
RISKS = {"risk": "risk on labeled rows", "lambda_bound": "lambda, at most"}
COUNTED = {"sample_term": "sample term", "sample_term_both": "of both", "share": "share of labeled rows"}
"""Terms that are drawn -> their names in the picture."""


def sample_term(rows: int, dimension: int, clients: int, delta: float = DELTA) -> float:
    """Return the theorem's sample term; infinite for fewer rows than ``dimension``, the VC dimension d, for which its
    logarithm bounds nothing.
    """
    if rows < dimension:
        return math.inf
    inner = dimension * math.log(2 * math.e * rows / dimension) + math.log(4 * clients / delta)
    return math.sqrt(4 / rows * inner)


def theory(analysis: Analysis, out: Path, *, cap: int, log: Log) -> PartResult:
    """Write ``theory.csv``: every term of every client, by round (``Analysis.trainable``); of several, ``theory.png``.

    cap: rows that are sampled of a client at most.
    """
    cards = [card for card in analysis.server.cards if card.num_examples]
    if len(cards) > MOST:  # each is compared with all
        return PartResult({}, (f"theory: {len(cards)} clients are too many to compare (at most {MOST})",))
    truth, missing = _truth(analysis, log)
    ids = [row_ids(analysis.prepared, card.client) for card in cards]
    rows: list[tuple[int, ClientTerms]] = []
    for round_ in analysis.trainable():
        rows += [(round_, terms) for terms in _terms(analysis, round_, ids, truth, cap)]
    return _write(rows, out, missing)


def _truth(analysis: Analysis, log: Log) -> tuple[Truth | None, str]:
    """Return the true labels, which lambda alone needs, or None and why they are not there."""
    if len(analysis.class_names) > MOST_CLASSES:
        return None, f" (left out: more than {MOST_CLASSES} classes)"
    try:
        return read_truth(analysis, log), ""
    except InputError as error:
        return None, f" (left out: {error})"


def _terms(analysis: Analysis, round_: int, ids: Sequence[Ints], truth: Truth | None, cap: int) -> list[ClientTerms]:
    """Return the terms of every client after a round."""
    cards = [card for card in analysis.server.cards if card.num_examples]
    server = analysis.at(round_)
    weights, sent = server.state.weights, server.broadcast(round_ + 1)
    z_MND = [analysis.represent(weights, analysis.rows(card.client)).double().numpy() for card in cards]
    server.model.load_state_dict(weights)
    kinds = list[tuple[Ints, Ints]]()
    risks = list[float]()
    for card, z_ND in zip(cards, z_MND, strict=True):
        given = analysis.rows(card.client)
        kinds.append((_labeled(given), _pseudo_labeled(given, annotate(analysis, round_, card.client, card, sent))))
        server.model.load_state_dict(weights)
        server.model.eval()  # heads have dropout, too
        with torch.no_grad():
            logits_NC = in_pieces(server.model.head, torch.from_numpy(z_ND).float())
            decided_NC = server.objective.predict(logits_NC).numpy() == 1
        risks.append(_risk(decided_NC, given, single=server.objective.kind == "single"))
    lambda_M = [float("nan")] * len(cards) if truth is None else _lambda_bounds(analysis, z_MND, ids, truth, cap)
    out = []
    for m, (card, (labeled, pseudo)) in enumerate(zip(cards, kinds, strict=True)):
        distances = _distances(z_MND, ids, m, labeled, pseudo, cap, lambda *name: numpy_rng(analysis.seed, *name))
        both, dimension = len(labeled) + len(pseudo), z_MND[m].shape[1] + 1
        out.append(
            ClientTerms(
                client=card.client, labeled=len(labeled), pseudo=len(pseudo),
                share=len(labeled) / both if both else float("nan"), risk=risks[m],
                distance_labeled=distances[0], distance_pseudo=distances[1], distance_both=distances[2],
                lambda_bound=lambda_M[m], sample_term=sample_term(len(labeled), dimension, len(cards)),
                sample_term_both=sample_term(both, dimension, len(cards)),
            )
        )  # fmt: skip
    return out


def _labeled(given: ClientData) -> Ints:
    """Return the rows with a given positive label, or, multi-label, any."""
    return np.flatnonzero((given.weight_NC != 0).any(-1).numpy())


def _pseudo_labeled(given: ClientData, annotated: ClientData) -> Ints:
    """Return the rows with a pseudo-label that has a loss."""
    if annotated is given:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(((given.known_NC == 0) & (annotated.weight_NC != 0)).any(-1).numpy())


def _risk(decided_NC: Bools, given: ClientData, *, single: bool) -> float:
    """Return the share of wrong decisions: single-label, of labeled rows; multi-label, of given labels."""
    y_NC, known_NC = given.y_NC.numpy() == 1, given.known_NC.numpy() == 1
    if single:
        rows = (y_NC & known_NC).any(1)
        return float((decided_NC != y_NC)[rows].any(1).mean()) if rows.any() else float("nan")
    return float((decided_NC != y_NC)[known_NC].mean()) if known_NC.any() else float("nan")


def _distances(
    z_MND: Sequence[Floats],
    ids: Sequence[Ints],
    client: int,
    labeled: Ints,
    pseudo: Ints,
    cap: int,
    rng_of: Callable[..., np.random.Generator],
) -> tuple[float, float, float]:
    """Return the distances of a client's labeled rows, of its rows with a pseudo-label, and of both to all rows.

    As many rows of each kind, where both have ``LEAST``: the fewer there are, the less a classifier finds.
    """
    size = min(cap, *(len(part) for part in (labeled, pseudo) if len(part) >= LEAST), len(labeled) + len(pseudo))
    found = []
    for kind, parts in (("labeled", [labeled]), ("pseudo", [pseudo]), ("both", [labeled, pseudo])):
        every = np.concatenate(parts)
        _, first = np.unique(every, return_index=True)
        every = every[np.sort(first)]  # with several labels a row may be of both kinds
        if len(every) < LEAST or (kind == "both" and not len(pseudo)):
            found.append(float("nan"))
            continue
        total = 0.0
        for repeat in range(REPEATS):
            rng = rng_of("diagnosis", "theory", kind, client, repeat)
            chosen = rng.choice(every, size=min(size, len(every)), replace=False)
            others = _pool(ids, ids[client][chosen], len(chosen), rng)
            pool_ND = np.array([z_MND[m][n] for m, n in others])
            total += proxy_a_distance(z_MND[client][chosen], pool_ND, rng) if others else np.nan
        found.append(total / REPEATS)
    return found[0], found[1], found[2]


def _pool(ids: Sequence[Ints], without: Ints, size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return (client, place) of rows drawn from all clients together, of which none has one of these ids."""
    owner_R = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
    place_R = np.concatenate([np.arange(len(part)) for part in ids])
    id_R = np.concatenate(ids)
    is_first_R = np.zeros(len(id_R), dtype=np.bool_)
    is_first_R[np.unique(id_R, return_index=True)[1]] = True  # with a client for each class, a row may be with several
    free_R = np.flatnonzero(~np.isin(id_R, without) & is_first_R)
    if not len(free_R):  # it has every row
        return []
    chosen = rng.choice(free_R, size=min(size, len(free_R)), replace=False)
    if len(chosen) < size:  # the client holds most rows: those of others again
        chosen = np.concatenate([chosen, rng.choice(free_R, size=size - len(chosen))])
    return list(zip(owner_R[chosen].tolist(), place_R[chosen].tolist(), strict=True))


def _lambda_bounds(
    analysis: Analysis, z_MND: Sequence[Floats], ids: Sequence[Ints], truth: Truth, cap: int
) -> list[float]:
    """Return an upper bound of lambda_m of every client: the errors on its rows and on all, held out, of one classifier
    of the representation that half of the sampled rows of all clients have trained with their true labels.
    """
    sample = [numpy_rng(analysis.seed, "diagnosis", "lambda", m).permutation(len(i))[:cap] for m, i in enumerate(ids)]
    trained = np.concatenate([i[part[::2]] for i, part in zip(ids, sample, strict=True)])
    # with a client for each class, a row may be with several: what one has trained with is held out nowhere
    held = [part[1::2][~np.isin(i[part[1::2]], trained)] for i, part in zip(ids, sample, strict=True)]
    halves = [(part[::2], rest) for part, rest in zip(sample, held, strict=True)]
    z_RD = np.concatenate([z_ND[half] for z_ND, (half, _) in zip(z_MND, halves, strict=True)])
    y_RC, given_RC = truth.of(np.concatenate([i[half] for i, (half, _) in zip(ids, halves, strict=True)]))
    single = analysis.prepared.manifest.kind == "single"
    decide = joint_classifier(z_RD, y_RC, given_RC, single=single)
    errors, rows = [], []
    for z_ND, i, (_, rest) in zip(z_MND, ids, halves, strict=True):
        y_NC, given_NC = truth.of(i[rest])
        counted_NC = given_NC if not single else np.repeat((y_NC & given_NC).any(1, keepdims=True), y_NC.shape[1], 1)
        wrong_NC = (decide(z_ND[rest]) != y_NC) & counted_NC if len(rest) else np.zeros_like(y_NC)
        count = counted_NC.any(1).sum() if single else counted_NC.sum()
        wrong = wrong_NC.any(1).sum() if single else wrong_NC.sum()
        errors.append(float(wrong / count) if count else float("nan"))
        rows.append(len(i))
    known = ~np.isnan(errors)
    if not known.any():
        return errors
    overall = float(np.average(np.array(errors)[known], weights=np.array(rows)[known]))
    return [error + overall for error in errors]


def joint_classifier(z_RD: Floats, y_RC: Bools, given_RC: Bools, *, single: bool) -> Callable[[Floats], Bools]:
    """Return the decisions [N, C] of logistic regression on standardized features, trained on the labels that are
    given: one of all classes (single-label), or one for each class.
    """
    mean_D, std_D = z_RD.mean(0), z_RD.std(0)
    std_D[std_D == 0] = 1.0
    x_RD, classes = (z_RD - mean_D) / std_D, y_RC.shape[1]
    if single:
        labeled = (y_RC & given_RC).any(1)
        label_R = y_RC[labeled].argmax(1)
        if len(np.unique(label_R)) < 2:
            only = int(label_R[0]) if len(label_R) else 0
            return lambda z_ND: np.tile(np.arange(classes) == only, (len(z_ND), 1))
        model = LogisticRegression(max_iter=2000).fit(x_RD[labeled], label_R)
        return lambda z_ND: np.arange(classes) == model.predict((z_ND - mean_D) / std_D)[:, None]
    models = list[LogisticRegression | bool]()
    for class_ in range(classes):
        known = given_RC[:, class_]
        label_R = y_RC[known, class_]
        both = label_R.any() and not label_R.all()
        models.append(LogisticRegression(max_iter=2000).fit(x_RD[known], label_R) if both else bool(label_R.any()))

    def decide(z_ND: Floats) -> Bools:
        x_ND = (z_ND - mean_D) / std_D
        columns = [np.full(len(z_ND), m) if isinstance(m, bool) else m.predict(x_ND) for m in models]
        return np.stack(columns, axis=1).astype(np.bool_)

    return decide


def _write(rows: Sequence[tuple[int, ClientTerms]], out: Path, missing: str) -> PartResult:
    """Write the table and the picture. missing: why lambda is not there, in brackets; or nothing."""
    write_table(
        out / "theory.csv",
        ("round", "client", *TERMS),
        ((round_, terms.client, *(getattr(terms, name) for name in TERMS)) for round_, terms in rows),
    )
    by_round: dict[int, list[ClientTerms]] = {}
    for round_, terms in rows:
        by_round.setdefault(round_, []).append(terms)
    means = {
        round_: {name: _mean([getattr(t, name) for t in terms]) for name in TERMS} for round_, terms in by_round.items()
    }
    labeled = {r: sum(t.labeled for t in terms) for r, terms in by_round.items()}
    pseudo = {r: sum(t.pseudo for t in terms) for r, terms in by_round.items()}
    both = {r: labeled[r] + pseudo[r] for r in by_round}
    if len(by_round) > 1:
        drawn = [
            {
                label: {r: np.array([getattr(t, name) for t in terms]) for r, terms in by_round.items()}
                for name, label in names.items()
            }
            for names in (DISTANCES, RISKS, COUNTED)
        ]
        counts = {"labeled": labeled, "with a pseudo-label": pseudo, "N*": both}
        draw_theory(drawn, counts, out / "theory.png")
    metrics = {
        round_: {f"theory/{name}": value for name, value in values.items() if np.isfinite(value)}
        for round_, values in means.items()
    }
    for round_, rows_of_all in both.items():
        metrics[round_]["theory/n_star"] = float(rows_of_all)
    last = max(by_round)
    mean, total = means[last], both[last]
    worst = max((t.risk for t in by_round[last] if not np.isnan(t.risk)), default=float("nan"))
    closer = [t.distance_pseudo < t.distance_labeled for t in by_round[last] if not np.isnan(t.distance_pseudo)]
    paired = _mean([t.distance_labeled for t in by_round[last] if not np.isnan(t.distance_pseudo)])
    theirs = "" if paired == mean["distance_labeled"] else f", whose labeled ones have {share_text(paired)}"
    smaller = f" (smaller at {sum(closer)} of {len(closer)} clients{theirs})" if closer else ""
    shown = {name: share_text(value) for name, value in mean.items()}
    line = (
        f"theory after round {last}, means over clients: risk on labeled rows {shown['risk']} (worst"
        f" {share_text(worst)}); A-distance to all rows of labeled ones {shown['distance_labeled']}, of those with a"
        f" pseudo-label {shown['distance_pseudo']}{smaller}, of both {shown['distance_both']}; lambda at most"
        f" {shown['lambda_bound']}{missing}; N* {total:,} rows, share of labeled ones {shown['share']}; sample term"
        f" {shown['sample_term']}"
    )
    return PartResult(metrics, (line,), {"delta": DELTA, "repeats": REPEATS})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
