"""A frozen language model that reads class names behind prompts which somebody trains (FedTSP).

A sentence is its first token (a start marker, in most models), the prompt's vectors, and its other tokens. A class's
vector is the mean over its sentences. Shape suffixes: C classes, M templates, S = C x M sentences, L tokens, K vectors
of a prompt, P width of the language model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.errors import NamesError
from anchorfl.models.label_encoder import LabelEncoderSpec
from anchorfl.models.language import fill_prompts
from anchorfl.models.options import Pooling
from anchorfl.models.text_encoders import load, longest, pooled, tokens

SENTENCES_AT_ONCE = 64
"""Sentences that are read at a time."""


class PromptedTexts(nn.Module):
    """Prompts to class vectors. Every weight is frozen, and the model runs in evaluation mode and float32.

    Raises NamesError where the model is no text encoder, or a sentence with its prompt is too long for it.
    """

    def __init__(self, spec: LabelEncoderSpec, length: int) -> None:
        """length: K, vectors of a prompt, at least 0."""
        super().__init__()
        self.normalize, self.length, self.classes = spec.normalize, length, len(spec.class_names)
        self.pooling: Pooling = "mean" if spec.pooling == "auto" else spec.pooling
        if self.pooling == "projected":
            raise NamesError("trained prompts need class_embeddings.pooling 'mean' or 'first', or 'auto' for 'mean'")
        tokenizer, self.net = load(spec.folder, self.pooling)
        tokenizer.padding_side = "right"  # a prompt stands behind the first token, which is that of the sentence then
        sentences = [text for name in spec.class_names for text in fill_prompts(spec.prompts, name)]
        batch = tokens(tokenizer, self.net, sentences, spec.folder, self.pooling)
        most = longest(tokenizer, self.net)
        if (whole := batch["input_ids"].shape[1] + length) > most:
            raise NamesError(
                f"language model {spec.folder}: a sentence and its prompt have {whole} tokens, it takes {most}: shorten"
                " the sentence or the prompt"
            )
        self.net.requires_grad_(False).eval()
        self.register_buffer("words_SLP", self.net.get_input_embeddings()(batch["input_ids"]), persistent=False)
        self.register_buffer("mask_SL", batch["attention_mask"], persistent=False)
        self.words_SLP: Tensor
        self.mask_SL: Tensor

    @property
    def width(self) -> int:
        """P, the width of the language model's words, and so of a prompt."""
        return self.words_SLP.shape[2]

    @property
    def state_width(self) -> int:
        """Width of what it makes of a sentence: in some models (ALBERT, ELECTRA) another than that of words."""
        return int(getattr(self.net.config.get_text_config(), "hidden_size", self.width))

    @property
    def blocks(self) -> list[slice]:
        """Neighboring classes whose sentences are read at a time: a graph of all could take gigabytes."""
        size = max(1, SENTENCES_AT_ONCE * self.classes // len(self.words_SLP))
        return [slice(start, start + size) for start in range(0, self.classes, size)]

    def train(self, mode: bool = True) -> PromptedTexts:
        """Stay in evaluation mode: dropout would make vectors random."""
        del mode
        return super().train(False)

    def forward(self, prompt_CKP: Tensor, classes: slice | None = None) -> Tensor:
        """Return the classes' vectors [C, ``state_width``] behind these prompts, one per class.

        classes: those whose prompts these are, one of ``blocks``; None: all.
        """
        templates, words_SLP, mask_SL = len(self.words_SLP) // self.classes, self.words_SLP, self.mask_SL
        if classes is not None:
            mine = slice(classes.start * templates, classes.stop * templates)
            words_SLP, mask_SL = words_SLP[mine], mask_SL[mine]
        sentences = len(words_SLP)
        prompt_SKP = prompt_CKP.repeat_interleave(templates, 0)
        batch = {
            "inputs_embeds": torch.cat([words_SLP[:, :1], prompt_SKP, words_SLP[:, 1:]], 1),
            "attention_mask": torch.cat([mask_SL.new_ones(sentences, self.length), mask_SL], 1),
        }
        vector_SP = pooled(self.net, batch, self.pooling)
        if self.normalize:
            vector_SP = F.normalize(vector_SP, dim=1)
        return vector_SP.view(len(prompt_CKP), templates, -1).mean(1)
