"""A run that falls below its quorum, loses its server or is killed between checkpoints goes on with the same bits."""

from __future__ import annotations

import dataclasses
import json

import pytest

from anchorfl.pipeline.cli.main import EXIT_QUORUM, main
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.round_loop import MAX_RESTARTS, RoundLoop
from anchorfl.pipeline.storage import checkpoint
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import LostError
from anchorfl.testing import stopped_before
from tests.runs import figures, quiet


def test_below_the_quorum_the_run_ends_with_3_and_goes_on_from_its_checkpoint(
    experiment, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    e = experiment("fedavg", federation={"rounds": 3, "clients_per_round": 4, "epochs": 1, "quorum": 1.0})
    expected = run(e, tmp_path / "whole", quiet)
    (tmp_path / "e.toml").write_text(to_toml(e))
    plain, broken = ClientRunner._fit, [True]

    def failing(self, round_, call, lane):
        if broken and (call.client, round_) == (2, 2):
            raise OSError("no route to host")
        return (yield from plain(self, round_, call, lane))

    monkeypatch.setattr(ClientRunner, "_fit", failing)
    assert main(["run", "e.toml", "--output", "out"]) == EXIT_QUORUM
    error = capsys.readouterr().err
    place = f"{__file__}:{failing.__code__.co_firstlineno + 2}"
    assert error == (
        f"anchorfl: 3 of 4 selected clients answered, quorum 1: client 2: OSError: no route to host ({place});"
        " the last completed round is kept, go on with: anchorfl resume out\n"
    )
    broken.clear()
    assert main(["resume", "out"]) == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["checksum"] == expected.checksum


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("times", [1, MAX_RESTARTS])
def test_a_lost_server_is_made_good_from_the_checkpoint(experiment, finished_run, tmp_path, monkeypatch, every, times):
    """With the bits and the records of a run that lost nothing; even where it is lost after the merge."""
    e = experiment("fedalign", federation={"rounds": 3, "clients_per_round": 2, "epochs": 1})
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, checkpoint_every=every))
    expected, lost, recovered = finished_run(e), [], []
    plain = SerialExecutor.snapshot

    def vanishing(self):
        if len(lost) < times and self.server.state is not None and self.seen == 3:
            lost.append(1)
            self.server.state = None
            raise LostError("the server actor is gone")
        return plain(self)

    def counted(self, round_, *given):
        self.seen = round_
        return real_round(self, round_, *given)

    def recover(self):
        recovered.append(1)
        self.server = type(self.server)(self.server.run_spec)
        self.memories = {}

    real_round = SerialExecutor.round
    monkeypatch.setattr(SerialExecutor, "snapshot", vanishing)
    monkeypatch.setattr(SerialExecutor, "round", counted)
    monkeypatch.setattr(SerialExecutor, "recover", recover)
    got = run(e, tmp_path / "lost", quiet)
    assert (got.checksum, got.scores, len(recovered)) == (expected.checksum, expected.scores, times)
    kept = [
        [(r.round, figures(r.metrics) | {"failures/server_restarts": 0}) for r in read_records(result.folder)[0]]
        for result in (expected, got)
    ]
    assert kept[0] == kept[1]
    assert sum(r.metrics["failures/server_restarts"] for r in read_records(tmp_path / "lost")[0]) == times


@pytest.mark.parametrize(("file_bytes", "needed"), [(1, False), (1 << 27, False), (1, True)])
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_a_memory_that_is_lost_before_it_is_saved_is_computed_again(
    experiment, finished_run, tmp_path, monkeypatch, round_, file_bytes, needed
):
    """It is fetched behind the next round, or after the last: the bits and records are those of a run without it. Where
    the next round needs it, too (``needed``), that is one loss and not two.
    """
    monkeypatch.setattr(checkpoint, "FILE_BYTES", file_bytes)
    e = experiment("scaffold", federation={"rounds": 3, "clients_per_round": 2, "epochs": 1})
    expected, lost = finished_run(e), []
    plain, real_round = SerialExecutor.memory_later, SerialExecutor.round

    def vanishing(self, client):
        give = plain(self, client)
        if lost or self.seen != round_:
            return give

        def gone():
            lost.append(client)
            raise LostError("the node with the client's memory is gone")

        return gone

    def counted(self, number, *given):
        self.seen = number
        if needed and number == round_ + 1 and not raised:
            raised.append(number)
            raise LostError("the node with the client's memory is gone")
        return real_round(self, number, *given)

    def recover(self):
        self.server, self.memories = type(self.server)(self.server.run_spec), {}

    raised = []
    monkeypatch.setattr(SerialExecutor, "memory_later", vanishing)
    monkeypatch.setattr(SerialExecutor, "round", counted)
    monkeypatch.setattr(SerialExecutor, "recover", recover)
    got = run(e, tmp_path / "lost", quiet)
    assert lost
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    kept = [
        [(r.round, figures(r.metrics) | {"failures/server_restarts": 0}) for r in read_records(result.folder)[0]]
        for result in (expected, got)
    ]
    assert kept[0] == kept[1]
    restarts = sum(r.metrics["failures/server_restarts"] for r in read_records(tmp_path / "lost")[0])
    assert restarts == (round_ < 3), "after the last round there is no record to count it in"
    again = run(e, tmp_path / "lost", quiet)  # its checkpoint is whole
    assert again.checksum == expected.checksum


def test_a_server_that_is_lost_again_and_again_ends_the_run(experiment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(to_toml(experiment("fedavg")))

    def gone(*_):
        raise LostError("the server actor is gone")

    monkeypatch.setattr(SerialExecutor, "round", gone)
    assert main(["run", "e.toml"]) == EXIT_QUORUM
    assert capsys.readouterr().err.startswith("anchorfl: the server actor is gone; the last completed round is kept")


@pytest.mark.parametrize("every", [3, 5])
def test_checkpoints_every_so_many_rounds_lose_nothing(experiment, finished_run, tmp_path, every):
    """Killed at any round, the rounds behind the last checkpoint are computed again with the same bits."""
    e = experiment("fedalign", federation={"rounds": 5, "clients_per_round": 2, "epochs": 1})
    expected = finished_run(e)
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, checkpoint_every=every))
    for killed in range(1, 6):
        folder = tmp_path / f"killed{killed}"
        with stopped_before(killed):
            run(e, folder, quiet)
        got = run(e, folder, quiet)
        assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
        assert [r.round for r in read_records(folder)[0]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("select", ["last", "best_validation"])
def test_a_server_that_is_lost_after_the_last_round_is_made_good(experiment, tmp_path, monkeypatch, select):
    """In the last snapshot, or in the test of the selected model."""
    e = experiment("fedavg", evaluation={"model_selection": select, "test": "last"})
    expected, lost = run(e, tmp_path / "whole", quiet), []
    name = "snapshot" if select == "last" else "restore"
    plain = getattr(SerialExecutor, name)

    def vanishing(self, *given):
        if armed and not lost:
            lost.append(1)
            raise LostError("the server actor is gone")
        return plain(self, *given)

    def recover(self):
        self.server, self.memories = type(self.server)(self.server.run_spec), {}

    armed = []
    rounds = RoundLoop.steps

    def steps(self):
        yield from rounds(self)
        armed.append(1)

    monkeypatch.setattr(SerialExecutor, name, vanishing)
    monkeypatch.setattr(SerialExecutor, "recover", recover)
    monkeypatch.setattr(RoundLoop, "steps", steps)
    got = run(e, tmp_path / "lost", quiet)
    assert (got.checksum, got.scores, lost) == (expected.checksum, expected.scores, [1])
