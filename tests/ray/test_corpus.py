"""Ray Data counts what the process counts, and its workers' errors arrive as one line."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.corpus.cooccurrence import count_names
from anchorfl.tasks.corpus.counting import Scanner
from anchorfl.tasks.errors import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]
NAMES = ("walking", "eat meal", "phone on table", "never")


@pytest.fixture
def corpus(tmp_path):
    """Write a folder with some megabytes of made-up text in every format."""
    rng = np.random.default_rng(0)
    words = np.array(["walking", "eats", "a", "meal", "Phone", "table", "so.", "Then", *(f"w{n}" for n in range(200))])
    lines = [" ".join(words[rng.integers(0, len(words), 20)]) for _ in range(20_000)]
    text = "\n".join(lines).encode()
    (tmp_path / "a.txt").write_bytes(text * 3)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text * 3, 1))
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    pq.write_table(pa.table({"text": lines}), tmp_path / "d.parquet", row_group_size=3000)
    return tmp_path


@pytest.mark.parametrize("segment", ["sentence", "paragraph"])
def test_ray_counts_what_the_process_counts(corpus, segment, capfd):
    scanner = Scanner(NAMES, segment)
    here = count_names([str(corpus)], scanner)
    capfd.readouterr()
    there = count_names([str(corpus)], scanner, engine="ray")
    assert there.counts.segments == here.counts.segments > 100_000
    assert there.size == here.size
    np.testing.assert_array_equal(there.counts.pair_KK, here.counts.pair_KK)
    assert here.counts.pair_KK[0, 2] > 0
    assert "it/s" not in "".join(capfd.readouterr())  # no progress bars


@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.gz"])
def test_an_error_of_a_worker_is_one_line(corpus, name):
    bad = b'{"text": "fine"}\n' * 1000 + b'{"txt": "not"}\n' + b'{"text": "fine"}\n' * 1000
    (corpus / name).write_bytes(gzip.compress(bad) if name.endswith("gz") else bad)
    with pytest.raises(InputError, match=rf"{name}:1001: no field 'text' \(did you mean 'txt'\?\)") as caught:
        count_names([str(corpus)], Scanner(NAMES), engine="ray")
    assert "\n" not in str(caught.value)


def test_the_command_gives_one_table_with_and_without_ray(corpus, tmp_path, capsys):
    (tmp_path / "names").write_text("\n".join(NAMES))
    for out, more in (("ray.csv", []), ("serial.csv", ["--serial"])):
        arguments = [
            "cooccurrence",
            str(corpus),
            "--names",
            str(tmp_path / "names"),
            "--out",
            str(tmp_path / out),
            *more,
        ]
        assert main(arguments) == 0
    assert "3 of 4 names occur" in capsys.readouterr().out
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "serial.json").read_bytes()
