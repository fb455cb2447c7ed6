"""Options of [evaluation]: scores, and the round whose model is the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anchorfl.tasks.metrics.scores import F1_MACRO, FAMILIES, SUM, Measure, Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationOptions:
    """Options of scoring, and of the round whose model is the result."""

    metrics: Metrics = "threshold"
    """Figures: ``threshold``, macro F1 and accuracy of 0/1 decisions (FedAlign's tables); ``ranking``, P@k,
    nDCG@k, PSP@k and mAP of the order of the classes (FedALC's); ``classification``, single-label: ``threshold``,
    macro precision and recall, AUC and their sum (FedBM's; docs/metrics.md)."""
    every: int = 1
    """Score the global model every so many rounds, and after the last."""
    model_selection: Literal["last", "best_validation", "best_validation_f1", "best_validation_sum"] = "last"
    """``last``: the last round's model (FedAlign's tables); ``best_validation``: the first with the best validation
    macro F1, or P@1 of ``ranking``; ``best_validation_f1``, ``best_validation_sum``: by the figure of that name, the
    sum of ``classification`` (FedBM's tables)."""
    patience: int = 0
    """End the run after so many scored rounds without a better validation score, by the figure of ``model_selection``,
    else the first of ``metrics``; 0: compute all rounds. Which model is the result stays for ``model_selection`` to
    say."""
    test: Literal["always", "last", "never"] = "always"
    """Rounds whose test split is scored: ``always``, with validation; ``last``, once, for the selected model (where
    clients are scored and a round is selected: with validation); ``never`` (trials of a sweep: what is not computed
    cannot be chosen by)."""
    save_state_every: int = 0
    """Keep the server's state after every so many rounds, and after the last, in ``server_states/`` of the run folder,
    for ``anchorfl diagnose``; 0: none. It changes no result."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"evaluation.every = {self.every}: must be at least 1")
        for name in ("save_state_every", "patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"evaluation.{name} = {getattr(self, name)}: must be at least 0")
        by = self.chosen_by
        if by is not None and by not in FAMILIES[self.metrics].measures:
            having = [name for name, family in FAMILIES.items() if by in family.measures]
            raise ValueError(
                f"evaluation.model_selection = {self.model_selection!r}: runs with evaluation.metrics ="
                f" {self.metrics!r} have no"
                f" {by.shown}; set metrics to {' or '.join(map(repr, having))}, or select to 'best_validation'"
            )

    @property
    def chosen_by(self) -> Measure | None:
        """The figure of the validation split by which a round is chosen; None where it is the last."""
        if self.model_selection == "last":
            return None
        named = {"best_validation_f1": F1_MACRO, "best_validation_sum": SUM}
        return named.get(self.model_selection, FAMILIES[self.metrics].primary)

    @property
    def by_validation(self) -> str:
        """The option that needs a validation split, with its value; empty: none does."""
        if self.chosen_by is not None:
            return f"evaluation.model_selection = {self.model_selection!r}"
        return f"evaluation.patience = {self.patience}" if self.patience else ""
