"""The device of a process: its share of a GPU where it has one."""

from __future__ import annotations

import pytest
import torch

from anchorfl.pipeline.training.client import device_for
from anchorfl.tasks.errors import InputError


@pytest.mark.parametrize("must", [True, False])
def test_a_process_keeps_to_its_share_of_a_gpu(monkeypatch, must):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [device_for(gpus, must=must).type for gpus in (0.0, 0.25, 1.0, 2.0)] == ["cpu", "cuda", "cuda", "cuda"]
    assert shares == [0.25, 1.0, 1.0]
    assert not torch.backends.cudnn.allow_tf32


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_for(0.0, must=True).type == device_for(0.5, must=False).type == "cpu"
    with pytest.raises(InputError, match=r"0\.5 of a GPU is asked for, but this torch .* sees none: set client_gpus"):
        device_for(0.5, must=True)
