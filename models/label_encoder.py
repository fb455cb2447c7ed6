"""FedAlign's label encoder as a frozen language model with adapters, which the paper leaves to future work.

Every pass encodes the class names: each prompt with a name becomes a vector as in models/text_encoders.py, a name's
vector is the mean over its prompts, and a linear layer maps it to the width of the data encoder. Adapters and linear
layer are trained and travel; the model's own weights are buffers outside of the state dict (models/adapters.py).

The model runs in evaluation mode, in float32: dropout would make anchors random. Shape suffixes: C classes, M prompts,
S = C x M sentences, P width of the language model, D width of the data encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.adapters import add_adapters
from anchorfl.models.errors import NamesError, NetworkError
from anchorfl.models.heads import AnchorHead
from anchorfl.models.language import fill_prompts
from anchorfl.models.options import Pooling
from anchorfl.models.text_encoders import load, pooled, tokens


@dataclass(frozen=True, slots=True)
class LabelEncoderSpec:
    """What a label encoder is made from."""

    folder: str
    """Folder with config, tokenizer and safetensors weights of a transformers model."""
    class_names: tuple[str, ...]
    prompts: tuple[str, ...]
    """Templates with ``{name}``."""
    pooling: Pooling
    """``mean`` or ``first``, as ``text_encoder`` takes them; ``auto`` is ``mean``."""
    normalize: bool
    """The vector of every prompt is brought to length 1 before the mean."""
    rank: int
    """Rank of the adapters, at least 1; 0 where nothing of the model is trained."""


class LanguageHead(AnchorHead):
    """A label encoder that is a language model with adapters, and a linear layer to the width of the data encoder.

    Raises NamesError where the model is no text encoder, takes no adapters, or a sentence is too long for it.
    """

    def __init__(self, spec: LabelEncoderSpec, width: int, *, unit: bool) -> None:
        super().__init__(unit=unit)
        self.prompts, self.normalize = len(spec.prompts), spec.normalize
        self.pooling: Pooling = "mean" if spec.pooling == "auto" else spec.pooling
        tokenizer, net = load(spec.folder, self.pooling)
        sentences = [text for name in spec.class_names for text in fill_prompts(spec.prompts, name)]
        batch = tokens(tokenizer, net, sentences, spec.folder, self.pooling)
        self.inputs = tuple(batch)
        for name, ids_SL in batch.items():
            self.register_buffer(name, ids_SL, persistent=False)
        if isinstance(getattr(net, "pooler", None), nn.Module):
            net.pooler = None  # its output is not used
        try:
            add_adapters(net, spec.rank)
        except NetworkError as error:
            raise NamesError(f"language model {spec.folder!r} {error}: set class_embeddings.lora_rank to 0") from error
        self.net = net
        self.project = nn.Linear(net.config.hidden_size, width)
        self._once: list[tuple[Tensor, Tensor]] | None = None

    def train(self, mode: bool = True) -> LanguageHead:
        """Set the mode of all but the language model, which stays in evaluation mode."""
        super().train(mode)
        self.net.eval()
        return self

    def classes(self) -> Tensor:
        """Return the class representations [C, D]."""
        if self._once is None:
            return self._encoded()
        if not self._once:
            whole_CD = self._encoded()
            self._once.append((whole_CD, whole_CD.detach().requires_grad_(whole_CD.requires_grad)))
        return self._once[0][1]

    def _encoded(self) -> Tensor:
        batch = {name: self.get_buffer(name) for name in self.inputs}
        vector_SP = pooled(self.net, batch, self.pooling)
        if self.normalize:
            vector_SP = F.normalize(vector_SP, dim=1)
        out_CD: Tensor = self.project(vector_SP.view(-1, self.prompts, vector_SP.shape[1]).mean(1))
        return out_CD

    @contextmanager
    def once(self) -> Iterator[None]:
        """Encode the names at most once in the block. Gradients of its backward passes reach the weights at its end."""
        self._once = []
        try:
            yield
            for whole_CD, leaf_CD in self._once:
                if leaf_CD.grad is not None:
                    whole_CD.backward(leaf_CD.grad)  # type: ignore[no-untyped-call]
        finally:
            self._once = None


def encoded_once(head: nn.Module) -> AbstractContextManager[None]:
    """Return the block in which a head encodes class names at most once; of other heads, one that does nothing."""
    return head.once() if isinstance(head, LanguageHead) else nullcontext()
