"""FedAlign with one of FedPU's two terms: which of them is it that ``fedpu_terms`` gains by?

    export PYTHONPATH=benchmarks/plug_ins
    anchorfl benchmark --data suite-r8-masks-3 --rows fedpu,fedalign \
        --row "FedAlign, unlabeled rows' term = fedalign --method.name fedpu_one_term:FedAlignWithUnlabeledTerm" \
        --row "FedAlign, labeled rows' term = fedalign --method.name fedpu_one_term:FedAlignWithLabeledTerm"
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fedpu_terms import FedAlignWithTerms, TermsTrainer

from anchorfl.pipeline.algorithm.contract import ClientContext
from anchorfl.pipeline.methods.fedalign import AlignState


class UnlabeledTermTrainer(TermsTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[AlignState], method: FedAlignWithTerms) -> None:
        super().__init__(ctx, method)
        self.terms.labeled_C = torch.zeros_like(self.terms.labeled_C)


class LabeledTermTrainer(TermsTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[AlignState], method: FedAlignWithTerms) -> None:
        super().__init__(ctx, method)
        self.terms.unlabeled_C = torch.zeros_like(self.terms.unlabeled_C)


@dataclass(frozen=True, kw_only=True)
class FedAlignWithUnlabeledTerm(FedAlignWithTerms):
    """FedAlign, and on rows without a label FedPU's "none of my classes"."""

    name = "fedalign-with-unlabeled-term"

    def trainer(self, ctx: ClientContext[AlignState]) -> UnlabeledTermTrainer:
        return UnlabeledTermTrainer(ctx, self)


@dataclass(frozen=True, kw_only=True)
class FedAlignWithLabeledTerm(FedAlignWithTerms):
    """FedAlign, and on rows with a label FedPU's "no class of other clients"."""

    name = "fedalign-with-labeled-term"

    def trainer(self, ctx: ClientContext[AlignState]) -> LabeledTermTrainer:
        return LabeledTermTrainer(ctx, self)
