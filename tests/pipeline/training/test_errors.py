"""Faults by kind, and an exception that travels from the server's process."""

from __future__ import annotations

import importlib
import pickle

import pytest
import torch

from anchorfl.pipeline.algorithm.aggregation import median_of
from anchorfl.pipeline.training.errors import RejectedError, UpdateError, fault_kind, fault_line


def test_a_refusal_travels_whole():
    error = RejectedError({3: "tensor 'w' is missing", 7: "the update is empty"})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RejectedError
    assert (again.reasons, str(again)) == (error.reasons, str(error))
    assert str(error) == "client 3: tensor 'w' is missing; client 7: the update is empty"


def test_the_line_of_a_plug_in_is_said(tmp_path, monkeypatch):
    """Its innermost one: neither torch's, which it called, nor this package's, which called it."""
    (tmp_path / "mine.py").write_text("import torch\n\n\ndef loss():\n    return torch.zeros(2) + torch.zeros(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    loss = importlib.import_module("mine").loss
    with pytest.raises(RuntimeError) as error:
        loss()
    outside = fault_line(error.value)
    assert outside.startswith("RuntimeError: The size of tensor a (2) must match")
    assert outside.endswith(f" ({tmp_path / 'mine.py'}:5)")
    monkeypatch.chdir(tmp_path)
    assert fault_line(error.value).endswith(" (mine.py:5)")


def test_the_line_is_not_that_of_a_library_that_it_calls(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "some_library.py").write_text("def fails():\n    raise OSError('no weights')\n")
    (tmp_path / "caller.py").write_text("import some_library\n\n\ndef forward():\n    some_library.fails()\n")
    for folder in (installed, tmp_path):
        monkeypatch.syspath_prepend(folder)
    with pytest.raises(OSError, match="no weights") as error:
        importlib.import_module("caller").forward()
    called = error.value.with_traceback(error.value.__traceback__.tb_next)  # without the line of this test
    assert fault_line(called) == f"OSError: no weights ({tmp_path / 'caller.py'}:5)"
    alone = error.value.with_traceback(error.value.__traceback__.tb_next)
    assert fault_line(alone) == f"OSError: no weights ({installed / 'some_library.py'}:2)", "a plug-in may be installed"


def test_our_own_lines_are_not():
    assert fault_line(OSError("no route")) == "OSError: no route", "it was never raised"
    with pytest.raises(ValueError, match="0 updates") as refused:
        median_of([])
    inside = refused.value.with_traceback(refused.value.__traceback__.tb_next)  # without the line of this test
    assert fault_line(inside) == "ValueError: 0 updates: nothing to merge"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpdateError("empty"), "rejected"), (MemoryError(), "memory"), (torch.OutOfMemoryError(), "memory"),
        (OSError("no route"), "exception"), (KeyError(), "exception"),
    ],
)  # fmt: skip
def test_kinds(error, kind):
    assert fault_kind(error) == kind
