"""Every method on a device that a CPU pretends to be: no operation mixes devices, and none waits more than it did."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import types
from pathlib import Path

import pytest
import torch

from anchorfl.pipeline.algorithm import messages, seeds
from anchorfl.pipeline.execution import executor as executors
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.run_spec import RunSpec
from tests.pipeline.execution.pretended_cuda import CPU, CUDA, PretendedCuda
from tests.runs import nobody, quiet

HELD = Path(__file__).with_suffix(".json")


def census(experiment, method) -> dict[str, int]:
    """Return what two rounds of two clients and their scores count."""
    e = experiment(method, federation={"epochs": 1})
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, client_gpus=1.0))
    device = PretendedCuda()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "torch", types.SimpleNamespace(Generator=device.generator, device=torch.device))
        patch.setattr(executors, "device_for", lambda gpus, must=False: CUDA if gpus else CPU)
        run_spec = make_run_spec(e, quiet)
        texts = (
            run_spec.texts()
        )  # transformers fills some tensors behind torch's back, which the pretended device loses
        patch.setattr(RunSpec, "texts", lambda _: texts)
        with device:
            executor = SerialExecutor(run_spec)
            for round_ in (1, 2):
                assert not executor.round(round_, [0, 1], nobody).failed
            executor.scores(["validation"])
            assert not [path for path, value in messages.tensors(executor.snapshot()) if device.holds(value)]
    assert device.counts["kernels"]
    assert not device.faults
    return {name: device.counts[name] for name in ("kernels", "copies", "waits")}


@pytest.mark.parametrize("method", METHODS)
def test_no_operation_mixes_devices_and_none_is_added(experiment, method):
    """``python -m tests.pipeline.execution.test_pretended_cuda`` counts anew: say why in the commit that does."""
    held = json.loads(HELD.read_text())[method]
    assert all(count <= held[name] for name, count in census(experiment, method).items()), method


@pytest.mark.parametrize(
    ("work", "fault"),
    [
        (lambda x: x + torch.ones(3), "add of tensors of two devices"),
        (lambda x: torch.ones(3)[x.long()], "index of tensors of two devices"),
        (
            lambda x: x.bernoulli_(0.5, generator=torch.Generator().manual_seed(1)),
            "bernoulli_ by a generator of the CPU",
        ),
        (
            lambda x: torch.rand(3, device=x.device, generator=torch.Generator().manual_seed(1)),
            "rand by a generator of",
        ),
        (lambda x: x.numpy(), "numpy() of a tensor of the device"),
    ],
)
def test_a_planted_fault_is_seen(work, fault):
    with PretendedCuda() as device:
        x = torch.zeros(3).to("cuda:0")
        assert (x.device, x.is_cuda) == (CUDA, True)
        work(x)
    (place,) = device.faults
    assert fault in place
    assert "test_pretended_cuda.py" in place


def test_what_is_counted():
    with PretendedCuda() as device:
        x = torch.arange(4.0).to("cuda:0")
        y = (x * 2).sum()
        assert float(y) == 12.0
        assert not device.holds(y.cpu())
        assert device.holds(torch.zeros(2, device=x.device))
        assert device.holds(x.view(2, 2)[0])
    assert not device.faults
    assert dict(device.counts) == {"copies": 2, "kernels": 3, "waits": 2}


if __name__ == "__main__":
    from tests.conftest import experiment

    make = experiment._get_wrapped_function()()
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as own:
        own.setenv("ANCHORFL_CACHE", cache)
        HELD.write_text(json.dumps({name: census(make, name) for name in METHODS}, indent=1) + "\n")
