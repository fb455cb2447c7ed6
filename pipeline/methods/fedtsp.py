"""FedTSP (Wu et al., 2025): representations are drawn to what a language model makes of the class names, behind prompts
that the server trains on the clients' mean representations.

Facts, and where paper and code differ: docs/methods/fedtsp.md. Suffixes: B rows of a micro-batch, C classes, K vectors
of a prompt, D width of the representation, P width of the language model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models.prompted_texts import PromptedTexts
from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.class_means import NAME as MEANS
from anchorfl.pipeline.algorithm.class_means import class_means, means_term, with_means
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    ClientTrainer,
    HeadSpec,
    Method,
    ServerContext,
    ServerState,
    Supports,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.tasks.contract import Batch

FIRST_LOG_SCALE = 4.6052
"""First value of the scale's logarithm: CLIP's, of 100 (authors' code)."""


@dataclass(frozen=True)
class TSPState(ServerState):
    """The server's state. Only ``text_CD`` and ``log_scale`` travel beside the weights."""

    text_CD: Tensor
    """Text prototype of every class."""
    log_scale: Tensor
    """Logarithm of the trained scale of cosines, []."""
    prompt_CKP: Tensor
    """Trained prompt of every class."""
    map_PD: Tensor
    """Trained map from the language model's width to that of representations; empty where they are the same."""
    rows_CD: Tensor
    """Mean representation of every class over the clients that had it last."""
    held_C: Tensor
    """bool: classes that have one; the others have zeros."""


@dataclass(frozen=True)
class TSPUpdate(Update):
    """A client's message after training."""

    rows_KD: Tensor
    """Mean representation of the client's rows of a class."""
    held_C: Tensor
    """bool: the classes of ``rows_KD``, in order."""


class TextTrainer(ClientTrainer[TSPState, TSPUpdate]):
    replayable = True

    def __init__(self, ctx: ClientContext[TSPState], lambda_: float) -> None:
        super().__init__(ctx)
        self.lambda_ = lambda_

    def loss(self, batch: Batch) -> Tensor:
        if not self.lambda_:
            return super().loss(batch)
        z_BD: Tensor = self.model.encoder(batch.x)
        cosine_BC = F.normalize(z_BD, dim=-1) @ F.normalize(self.ctx.state.text_CD, dim=-1).T
        loss, scale = self.ctx.objective.loss, self.ctx.state.log_scale.exp()
        return loss(self.model.head(z_BD), batch) + self.lambda_ * loss(scale * cosine_BC, batch)

    def update(self) -> TSPUpdate:
        return TSPUpdate(weights_of(self.model), *class_means(self.ctx, self.model))


@dataclass(frozen=True, kw_only=True)
class FedTSP(Method[TSPState, TSPUpdate]):
    """Client: lambda_ times the cross-entropy of scaled cosines with the text prototypes is added to the loss. Server:
    FedAvg's mean of the weights; then it trains prompts and scale so that the clients' mean representations are nearest
    to the text prototypes of their own classes.
    """

    name = "fedtsp"
    averaged = ("weights", MEANS)
    # of the rows, no tensor is sent whole: every one is of the clients that have its class
    supports = Supports(kinds=("single",), robust=())

    weighting: Weighting = "samples"
    """Weight of a client in the mean of the weights: its number of samples, or 1."""
    lambda_: float = 7.0
    """Weight of the text prototypes' loss, >= 0; 0: FedAvg (authors' scripts: 7 or 8)."""
    prompt_length: int = 20
    """Trained vectors of a prompt, >= 0; 0: text prototypes stay what they are at first."""
    prompt_steps: int = 10
    """Steps of gradient descent after a round, >= 1."""
    prompt_lr: float = 0.01
    """Their rate, > 0."""

    def __post_init__(self) -> None:
        if not self.lambda_ >= 0:
            raise ValueError(f"method.lambda_ = {self.lambda_}: must be at least 0")
        if self.prompt_length < 0 or self.prompt_steps < 1:
            raise ValueError(
                f"method.prompt_length = {self.prompt_length} must be at least 0, method.prompt_steps ="
                f" {self.prompt_steps} at least 1"
            )
        if not self.prompt_lr > 0:
            raise ValueError(f"method.prompt_lr = {self.prompt_lr}: must be above 0")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(prompt_length=self.prompt_length)

    def begin(self, ctx: ServerContext) -> TSPState:
        assert ctx.texts is not None  # HeadSpec.prompt_length asks for them
        zeros_CD = torch.zeros_like(ctx.model.get_parameter("head.weight"))
        classes, width = zeros_CD.shape
        own_width = ctx.texts.state_width
        prompt_CKP = 0.02 * torch.randn(classes, self.prompt_length, ctx.texts.width, generator=ctx.rng)
        map_PD = torch.zeros(0)
        if own_width != width:  # of orthonormal rows or columns, which keep angles as far as they can
            map_PD = torch.nn.init.orthogonal_(torch.empty(own_width, width), generator=ctx.rng)
        state = TSPState(
            weights_of(ctx.model), zeros_CD, torch.tensor(FIRST_LOG_SCALE), prompt_CKP, map_PD, zeros_CD,
            torch.zeros(classes, dtype=torch.bool),
        )  # fmt: skip
        return replace(state, text_CD=prototypes(ctx.texts, prompt_CKP, map_PD).cpu())

    def broadcast(self, state: TSPState, ctx: ServerContext) -> TSPState:
        nothing = torch.zeros(0)
        return replace(state, prompt_CKP=nothing, map_PD=nothing, rows_CD=nothing, held_C=nothing)

    def trainer(self, ctx: ClientContext[TSPState]) -> TextTrainer:
        return TextTrainer(ctx, self.lambda_)

    def contribution(self, result: ClientResult[TSPUpdate]) -> Contribution:
        update = result.update
        weights = Term(update.weights, self.client_weight(result.card))
        return Contribution({"weights": weights, MEANS: means_term(update.rows_KD, update.held_C)})

    def largest_weights(self, rows_I: Tensor) -> dict[str, Tensor]:
        return super().largest_weights(rows_I) | {MEANS: torch.ones(len(rows_I), dtype=torch.float64)}

    def merge(self, state: TSPState, means: Means, ctx: ServerContext) -> TSPState:
        rows_CD, held_C = with_means(state.rows_CD, state.held_C, means)
        state = replace(state, weights=means["weights"], rows_CD=rows_CD, held_C=held_C)
        assert ctx.texts is not None
        return self.trained(state, ctx.texts) if self.prompt_length else state

    def trained(self, state: TSPState, texts: PromptedTexts) -> TSPState:
        """Return the state after the prompts' steps: cross-entropy of the scaled cosines of each class's mean
        representation with all text prototypes, over the classes that have one.
        """
        device = texts.words_SLP.device
        values = [t.to(device).clone().requires_grad_() for t in (state.prompt_CKP, state.log_scale, state.map_PD)]
        prompt_CKP, log_scale, map_PD = values
        optimizer = torch.optim.SGD(values, lr=self.prompt_lr)
        class_H = state.held_C.nonzero().squeeze(1).to(device)
        row_HD = F.normalize(state.rows_CD.to(device)[class_H], dim=-1)
        for _ in range(self.prompt_steps if len(class_H) else 0):
            optimizer.zero_grad()
            whole = len(texts.blocks) == 1
            with torch.set_grad_enabled(whole):
                text_CD = prototypes(texts, prompt_CKP, map_PD)
            text_CD.requires_grad_()  # where it is a leaf, its gradient goes on block by block
            logits_HC = log_scale.exp() * row_HD @ F.normalize(text_CD, dim=-1).T
            F.cross_entropy(logits_HC, class_H).backward()  # type: ignore[no-untyped-call]
            for block in () if whole else texts.blocks:
                assert text_CD.grad is not None  # it is among the leaves
                part_CD = _of_block(texts, prompt_CKP[block], map_PD, block)
                part_CD.backward(text_CD.grad[block])  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            text_CD = prototypes(texts, prompt_CKP, map_PD).cpu()
        prompt_CKP, log_scale, map_PD = (value.detach().cpu() for value in values)
        return replace(state, text_CD=text_CD, log_scale=log_scale, prompt_CKP=prompt_CKP, map_PD=map_PD)


def prototypes(texts: PromptedTexts, prompt_CKP: Tensor, map_PD: Tensor) -> Tensor:
    """Return the text prototypes [C, D] behind these prompts."""
    if len(texts.blocks) == 1:
        return _of_block(texts, prompt_CKP, map_PD)
    return torch.cat([_of_block(texts, prompt_CKP[block], map_PD, block) for block in texts.blocks])


def _of_block(texts: PromptedTexts, prompt_CKP: Tensor, map_PD: Tensor, block: slice | None = None) -> Tensor:
    vector_CP: Tensor = texts(prompt_CKP.to(texts.words_SLP.device), block)
    return vector_CP @ map_PD.to(vector_CP) if map_PD.numel() else vector_CP
