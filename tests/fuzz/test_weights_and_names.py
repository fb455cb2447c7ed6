"""Weights that an encoder starts from, tables of co-occurrences, and vectors that were kept."""

from __future__ import annotations

import io
import json
import re
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from anchorfl.models import name_cache
from anchorfl.models.concepts import ConceptRequest, _load, save_concepts
from anchorfl.models.label_names import SkipGramOptions, from_cooccurrence, read_table
from anchorfl.models.language import from_language_model
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.tasks.corpus.cooccurrence import count_names
from anchorfl.tasks.corpus.counting import Scanner
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK
from tests.fuzz.runs import small
from tests.runs import quiet
from tests.tiny_bert import saved_bert

TABLE = "label,ash,beech,elm\nash,3,1,0.5\nbeech,1,2,nan\nelm,0.5,,4\n"
SHORT = SkipGramOptions(walks_per_node=2, length=4, window=2, epochs=1)
ASKED = ConceptRequest(("ash", "beech"), ("a {name}", "the {name}"), "made-up/encoder")


def weights(folder):
    run_spec = make_run_spec(small(), quiet)
    model = run_spec.model()
    save_file({k: v.contiguous() for k, v in model.encoder.state_dict().items()}, folder / "w.safetensors")


def start(folder, made):
    e = small(model=ModelOptions(width=8, heads=2, feedforward=8, dropout=0.1,
                                 weights=str(folder / "w.safetensors")))  # fmt: skip
    make_run_spec(e, quiet)


def names(folder, made):
    table = read_table(folder / "table.csv")
    from_cooccurrence(table, table.names[:1], width=4, seed=1, cache=None, training=SHORT)


def cached(folder):
    unit = np.ones((2, 2, 4), np.float32) / 2
    save_concepts(ASKED, ASKED.file(folder), unit, "made up", quiet)
    name_cache.save(folder / f"names-{'0' * 16}.npz", "0" * 64, np.ones((2, 4), np.float32), quiet)


def from_cache(folder, made):
    """Read cached vectors: a cache that cannot be used is said and made again, never an error of another kind."""
    said = []
    for path in folder.glob("names-*.npz"):
        name_cache.load(path, "0" * 64, said.append)
    assert _load(ASKED, ASKED.file(folder), said.append) is not None or said or not ASKED.file(folder).exists()


def corpus(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = ["an ash and a beech", "the elm", "beeches and elms"] * 5
    (folder / "a.txt").write_text("\n".join(lines))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    pq.write_table(pa.table({"text": lines}), folder / "c.parquet")
    import gzip

    (folder / "d.jsonl.gz").write_bytes(gzip.compress((folder / "b.jsonl").read_bytes(), mtime=0))


def count(folder, made):
    scanner = Scanner(("ash", "beech", "elm"), "paragraph", "lines", 3, "plural")
    count_names([str(folder)], scanner, "text", engine="local", log=quiet)


def encoder(folder):
    saved_bert(folder / "bert")


def encode(folder, made):
    from_language_model(("ash", "elm"), model=str(folder / "bert"), prompts=("a {name}",), normalize=True,
                        pooling="auto", cache=None, log=quiet)  # fmt: skip


PARSERS = [
    Parser("language model", encoder, encode),
    Parser("weights", weights, start),
    Parser("co-occurrence table", lambda folder: (folder / "table.csv").write_text(TABLE), names),
    Parser("cached vectors", cached, from_cache),
    Parser("corpus", corpus, count),
]


def header(shape):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.mark.parametrize("digest", [(10**15,), (10**10,)])
def test_a_cached_file_that_claims_more_than_it_holds_takes_no_memory(tmp_path, digest):
    file, said = tmp_path / "names-x.npz", []
    with ZipFile(file, "w") as archive:
        archive.writestr("digest.npy", header(digest))
        archive.writestr("vectors.npy", header((2, 4)))
    assert name_cache.load(file, "0" * 64, said.append) is None
    assert re.search(r"digest\.npy claims the shape \(10+,\), and has \d+ bytes", said[0])


def test_a_cached_file_that_is_packed_is_not_unpacked(tmp_path):
    """It could be of any size then."""
    file, said = tmp_path / "names-x.npz", []
    np.savez_compressed(file, vectors=np.zeros((1000, 1000), np.float32), digest=np.array("0" * 64))
    assert name_cache.load(file, "0" * 64, said.append) is None
    assert "vectors.npy is packed" in said[0]


@QUICK
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))
