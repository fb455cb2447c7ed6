"""A client process that dies while clients send their initial messages, before round 1."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pytest

from anchorfl.pipeline.methods.fedalc import FedALC
from anchorfl.pipeline.run.lifecycle import run
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module


@dataclass(frozen=True, kw_only=True)
class Dying(FedALC):
    """Client 1 ends its process once; ``mark``: the file that says it did."""

    mark: str = ""

    def initial_message(self, card, parts, key):
        if card.client == 1 and self.mark and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(1)
        return super().initial_message(card, parts, key)


def test_a_client_that_dies_while_it_sends_costs_nothing(experiment, tmp_path, capsys):
    """Fresh processes send theirs again: the bits of a run in one process, in which nothing went wrong."""
    e = experiment("fedalc", federation={"rounds": 2, "epochs": 1})
    expected = run(e, tmp_path / "serial", quiet)
    mark = tmp_path / "died"
    cluster = dataclasses.replace(e.cluster, executor="ray", clients_per_actor=2)
    got = run(dataclasses.replace(e, method=Dying(mark=str(mark)), cluster=cluster), tmp_path / "ray", quiet)
    assert mark.exists()
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert capsys.readouterr().out.count("a client whose initial message it holds") == 1
