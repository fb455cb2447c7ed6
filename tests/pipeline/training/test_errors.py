"""Faults by kind, and an exception that travels from the server's process."""

from __future__ import annotations

import pickle

import pytest
import torch

from anchorfl.pipeline.training.errors import RejectedError, UpdateError, fault_kind


def test_a_refusal_travels_whole():
    error = RejectedError({3: "tensor 'w' is missing", 7: "the update is empty"})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RejectedError
    assert (again.reasons, str(again)) == (error.reasons, str(error))
    assert str(error) == "client 3: tensor 'w' is missing; client 7: the update is empty"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpdateError("empty"), "rejected"), (MemoryError(), "memory"), (torch.OutOfMemoryError(), "memory"),
        (OSError("no route"), "exception"), (KeyError(), "exception"),
    ],
)  # fmt: skip
def test_kinds(error, kind):
    assert fault_kind(error) == kind
