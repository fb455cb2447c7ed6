"""Importance of each searched option: Optuna's fANOVA (Hutter et al., 2014) over the whole trials of a sweep."""

from __future__ import annotations

import statistics
import warnings

from anchorfl.tuning.search.results import Sweep
from anchorfl.tuning.search.searchers import distribution_of, inner_of

FEWEST = 8
"""Whole trials below which shares would be noise."""


def importances(sweep: Sweep) -> dict[str, float] | str:
    """Return the share of the scores' variance by option, adding up to 1; or why there is none, in one line."""
    import optuna

    whole = [t for t in sweep.trials if t.status == "finished" and t.scores(sweep.rule)]
    inside = [t for t in whole if all(d.holds(t.point[n]) for n, d in sweep.space.items())]
    if len(inside) < FEWEST:
        return f"Importance needs {FEWEST} whole trials inside the space; this sweep has {len(inside)}."
    if len(sweep.space) < 2:
        return "Importance compares options; this sweep searches one."
    scores = [round(statistics.fmean(t.scores(sweep.rule)), 12) for t in inside]  # equal means differ in last bits
    if max(scores) == min(scores):
        return "All whole trials have the same score, so no option explains any of it."
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    distributions = {n: distribution_of(d) for n, d in sweep.space.items()}
    for trial, score in zip(inside, scores, strict=True):
        params = {n: inner_of(d, trial.point[n]) for n, d in sweep.space.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental parts of Optuna, and scikit-learn's remarks on few samples
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(shares[name]) for name in sweep.space}
