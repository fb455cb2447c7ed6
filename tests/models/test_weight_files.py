"""Tensors of a safetensors file, or one kind of error whatever is wrong with the bytes."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import save

from anchorfl.models.weight_files import WeightsError, tensors


def with_header(header, values=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def test_what_was_saved_is_read():
    weights = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(4), "mask": torch.tensor([True, False])}
    again = tensors(save(weights))
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], value) and again[name].dtype == value.dtype for name, value in weights.items())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x04N.", save({"w": torch.ones(4)})[:-1], with_header(b"{"), struct.pack("<Q", 2**60) + b"{}",
        with_header({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}}),
        with_header({"w": {"dtype": "F7", "shape": [2], "data_offsets": [0, 8]}}),
        with_header({"w": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}),
    ],
)  # fmt: skip
def test_what_is_no_weights_is_one_kind_of_error(data):
    with pytest.raises(WeightsError):
        tensors(data)
