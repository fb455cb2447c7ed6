"""Images that the generator draws for each class, from training to training.

Shape suffixes: T trainings, C classes, K images of a class; images are [channels, H, W].
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from anchorfl.pipeline.algorithm.generator_training import GeneratorMethod, GeneratorState, image_source
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.figures import draw_images
from anchorfl.pipeline.diagnosis.result import PartResult, write_table
from anchorfl.pipeline.storage.atomic_files import write_atomically

COLUMNS = 8
"""Trainings that are shown, the first and the last among them, and images of a class after the last."""
JUDGED = 64
"""Images of each class that the classifier is asked about."""


def generated(analysis: Analysis, out: Path) -> PartResult:
    """Write images of the generator and how the global model judges them.

    - ``generated.png``: an image of every class after each training, from the same draw of its condition
    - ``generated_last.png``: several of each class after the last
    - ``generated.npz``: both as numbers 0..255
    - ``generated.csv``: the share of a class's images that the global model takes for that class
    """
    rounds = trainings(analysis)
    if not rounds:
        return PartResult(
            {}, (f"generated images: {analysis.run_spec.experiment.method.name} has trained no generator",)
        )
    drawn = {round_: images_of(analysis, round_) for round_ in rounds}
    shares = {round_: recognized(analysis, round_) for round_ in rounds}
    shown = [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, COLUMNS).round().astype(int))]
    over_TC = np.stack([drawn[round_][:, 0] for round_ in shown])
    last_KC = drawn[rounds[-1]].swapaxes(0, 1)
    draw_images(over_TC, analysis.class_names, [f"round {r}" for r in shown], out / "generated.png")
    draw_images(last_KC, analysis.class_names, [""] * len(last_KC), out / "generated_last.png")
    arrays = io.BytesIO()
    np.savez_compressed(arrays, rounds=np.array(shown), over_rounds=over_TC, last=last_KC)
    write_atomically(out / "generated.npz", arrays.getvalue())
    rows = ([r, name, float(shares[r][c])] for r in rounds for c, name in enumerate(analysis.class_names))
    write_table(out / "generated.csv", ("round", "class", "recognized"), rows)
    metrics = {r: {"generated/recognized": float(share_C.mean())} for r, share_C in shares.items()}
    summary = f"generated images: the global model takes {100 * shares[rounds[-1]].mean():.1f} % for their class"
    return PartResult(metrics, (f"{summary} after round {rounds[-1]}",), {"trainings": rounds})


def trainings(analysis: Analysis) -> list[int]:
    """Return the first round at hand with each state of the generator, ascending."""
    out: dict[int, int] = {}
    for round_ in analysis.rounds():
        state = analysis.at(round_).state
        if isinstance(state, GeneratorState) and int(state.version):
            out.setdefault(int(state.version), round_)
    return list(out.values())


def _source(analysis: Analysis, round_: int) -> Any:
    server = analysis.at(round_)
    state, method = server.state, analysis.run_spec.experiment.method
    assert isinstance(state, GeneratorState)
    assert isinstance(method, GeneratorMethod)
    scaling = analysis.prepared.manifest.spec.scaling()
    concepts_CMD = method.concepts(state, len(analysis.class_names))
    return image_source(state.generator, concepts_CMD, method.concept_conditions, scaling)


@torch.no_grad()
def images_of(analysis: Analysis, round_: int) -> npt.NDArray[np.uint8]:
    """Return some images of every class, as the generator gives them: [C, K, channels, H, W], 0..255."""
    source, rng = _source(analysis, round_), torch_rng(analysis.seed, "diagnosis", "generated")
    class_B = torch.arange(len(analysis.class_names)).repeat_interleave(COLUMNS)
    x_B = source.generator(source.conditions(class_B, rng))
    pixels = (x_B * 255).round().to(torch.uint8)
    return np.asarray(pixels.view(-1, COLUMNS, *pixels.shape[1:]).numpy(), dtype=np.uint8)


@torch.no_grad()
def recognized(analysis: Analysis, round_: int) -> npt.NDArray[np.float64]:
    """Return per class the share of its images, prepared as for training, that the round's global model recognizes."""
    source, rng = _source(analysis, round_), torch_rng(analysis.seed, "diagnosis", "recognized")
    model = analysis.server.model
    model.load_state_dict(analysis.server.state.weights)
    model.eval()
    out = []
    for c in range(len(analysis.class_names)):
        class_B = torch.full((JUDGED,), c)
        x_B = source.prepared(source.generator(source.conditions(class_B, rng)), rng)
        out.append(float((model(x_B).argmax(-1) == c).double().mean()))
    return np.array(out)
