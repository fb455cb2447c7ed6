"""Options of [class_embeddings]: what class embeddings start from, and the class concepts of FedBM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anchorfl.models.options import Pooling


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassEmbeddingOptions:
    """First values of the class embeddings, by class name. Defaults are FedAlign's without a table (KDD 2023)."""

    init: Literal["random", "cooccurrence", "language_model"] = "random"
    """``random``; ``cooccurrence``: skip-gram over random walks on a co-occurrence table of the names;
    ``language_model``: what a text encoder makes of the names."""
    table: str = ""
    """CSV of the co-occurrence table; a relative path is looked up below ``$ANCHORFL_DATA`` too
    (docs/label-names.md)."""
    width: int = 256
    """Width of the class-name vectors (a text encoder has its own); where it differs from ``model.width``, a linear
    layer maps between them."""
    encoder: str = ""
    """Text encoder: a folder with its files, or a hub name (``name@revision`` to pin it), which need
    ``anchorfl[plm]``; ``open_clip:`` and a model of open_clip's (docs/label-names.md); or a plug-in's, by its name or
    ``package.module:factory`` (docs/plug-ins.md)."""
    pooling: Pooling = "auto"
    """Text encoder: what of it is a sentence's vector. ``mean``: of the last hidden states; ``first``: that of the
    first token; ``projected``: that of encoders with a projection (CLIP); ``auto``: this for open_clip, else
    ``mean``."""
    prompts: str = "{name}"
    """Text encoder: templates with ``{name}``, separated by ``|``; a name's vector is the mean over them. Class
    concepts (FedBM): the default stands for the data set's own templates."""
    prompt_fraction: float = 1.0
    """Class concepts: share of the templates that a run uses, drawn from its seed, in (0, 1] (FedBM, Table VII)."""
    normalize: bool = True
    """Text encoder: bring the vector of every prompt to length 1 before the mean; class concepts always are."""

    lora_rank: int = 0
    """Rank of low-rank adapters (LoRA) that make the text encoder the label encoder itself: it encodes the names in
    every step, its weights stay as they are, and adapters and a linear layer are trained and travel
    (docs/label-names.md); 0: it gives first vectors alone."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"class_embeddings.width = {self.width}: must be at least 1")
        if not 0 < self.prompt_fraction <= 1:
            raise ValueError(f"class_embeddings.prompt_fraction = {self.prompt_fraction}: must be in (0, 1]")
        if self.init == "cooccurrence" and not self.table:
            raise ValueError(
                "class_embeddings.init = 'cooccurrence' needs class_embeddings.table, the CSV of the co-occurrence"
                " table"
            )
        if self.init == "language_model" and not self.encoder:
            raise ValueError(
                "class_embeddings.init = 'language_model' needs class_embeddings.encoder, its folder or hub name"
            )
        if self.lora_rank < 0:
            raise ValueError(f"class_embeddings.lora_rank = {self.lora_rank}: must be at least 0")
        if self.lora_rank and self.init != "language_model":
            raise ValueError(
                f"class_embeddings.lora_rank = {self.lora_rank} is for a language model, and class_embeddings.init ="
                f" {self.init!r}: set that to 'language_model', or the rank to 0"
            )
        if self.lora_rank and (self.pooling == "projected" or self.encoder.startswith("open_clip:")):
            raise ValueError(
                f"class_embeddings.lora_rank = {self.lora_rank} is for transformers models with pooling 'mean' or"
                " 'first': choose such an encoder, or set the rank to 0"
            )
        if (bad := next((prompt for prompt in self.templates if "{name}" not in prompt), None)) is not None:
            raise ValueError(
                f"class_embeddings.prompts: {bad!r} has no {{name}}: write it where the class name belongs"
            )

    @property
    def templates(self) -> tuple[str, ...]:
        """The templates of ``prompts``, one by one."""
        return tuple(prompt.strip() for prompt in self.prompts.split("|"))
