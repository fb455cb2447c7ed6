"""The device of a process: its share of a GPU where it has one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.client import ClientRunner, FitCall, cached_megabytes, device_for
from anchorfl.tasks.errors import InputError
from tests.runs import quiet

GIB = 2**30


@pytest.mark.parametrize("must", [True, False])
def test_a_process_keeps_to_its_share_of_a_gpu(monkeypatch, must):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=16 * GIB))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [device_for(gpus, must=must).type for gpus in (0.0, 0.25, 1.0, 2.0)] == ["cpu", "cuda", "cuda", "cuda"]
    assert shares == [3.5 / 16, 15.5 / 16, 15.5 / 16], "less half a GiB for CUDA itself"
    assert 4 * (shares[0] * 16 + 0.5) <= 16, "so four processes of a quarter fit"
    assert not torch.backends.cudnn.allow_tf32
    with pytest.raises(InputError, match=r"0\.05 of this GPU is 0\.80 GiB, .* set client_gpus to 0\.07 or more"):
        device_for(0.05, must=must)


def test_rows_take_a_quarter_of_a_share_of_a_gpu_at_most(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=16 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 0.125)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert cached_megabytes(ClusterOptions(), cuda) == 0.25 * 2 * GIB / 1e6
    assert cached_megabytes(ClusterOptions(client_cache_mb=10.0), cuda) == 10
    assert cached_megabytes(ClusterOptions(), cpu) == 1000


def test_a_client_without_memory_leaves_all_of_it_to_the_next_attempt(experiment, monkeypatch):
    runner = ClientRunner(make_run_spec(experiment("fedavg"), quiet))
    server = SerialExecutor(make_run_spec(experiment("fedavg"), quiet)).server
    sent = server.broadcast(1)

    def fit(round_, call, lane):
        runner._client(call.client)
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    calls = [FitCall(client, sent, {}, {}) for client in (0, 1)]
    list(runner.fit_all(1, calls))
    assert len(runner.rows) == 2
    monkeypatch.setattr(runner, "_fit", fit)
    ((_, result),) = runner.fit_all(1, calls[:1])
    assert isinstance(result, torch.OutOfMemoryError)
    assert len(runner.rows) == runner.rows.cached_bytes == 0


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_for(0.0, must=True).type == device_for(0.5, must=False).type == "cpu"
    with pytest.raises(InputError, match=r"0\.5 of a GPU is asked for, but this torch .* sees none: set client_gpus"):
        device_for(0.5, must=True)
