"""The text encoders of plug-ins: what turns sentences into vectors, by entry point or module and name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import TEXT_ENCODER, find_plugin, plugin_names

WHERE = "[class_embeddings] encoder"
CLIP = "open_clip:"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def names_encoder_code(name: str) -> bool:
    """Return whether a text encoder is ``package.module:factory``, and no folder, hub name or model of open_clip."""
    return bool(_MODULE.fullmatch(name)) and not name.startswith(CLIP)


def find_own_encoder(options: ClassEmbeddingOptions) -> Callable[[], Any] | None:
    """Return what makes the text encoder of a plug-in; None for a folder, a hub name or a model of open_clip.
    InputError where there is none.
    """
    name = options.encoder
    if not names_encoder_code(name) and name not in plugin_names(TEXT_ENCODER):
        return None
    where = f"{WHERE} = {name!r}"
    if options.pooling != "auto":
        raise InputError(f"{where} has its own pooling: set class_embeddings.pooling to 'auto'")
    found: Any = find_plugin(TEXT_ENCODER, name, WHERE)
    if not callable(found) or not hasattr(found, "__qualname__"):
        raise InputError(f"{where}: a {type(found).__name__}, and no class or function that makes a text encoder")
    return found  # type: ignore[no-any-return]  # what it makes is looked at when it is made
