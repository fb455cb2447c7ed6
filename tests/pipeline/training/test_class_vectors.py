"""Class concepts in a run: which prompts, which words, which share, from which file."""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata

import numpy as np
import pytest
import torch

from anchorfl.models.concepts import ConceptRequest, save_concepts
from anchorfl.models.errors import NamesError
from anchorfl.pipeline.algorithm.contract import HeadSpec
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec, prepare_data
from anchorfl.pipeline.run.provenance import run_info
from anchorfl.pipeline.training.class_vectors import concept_request, draw_prompts
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.registry import find_task
from tests.runs import quiet
from tests.tiny_bert import WIDTH, saved_bert

PROMPTS = "a photo of {name} | {name}. | a {name} | {name}"


class WithConcepts(FedAvg):
    """Asks for class concepts, and does nothing with them."""

    head = HeadSpec(concepts=True)


@pytest.fixture
def named(experiment):
    """Return a maker of experiments whose method asks for class concepts."""

    def make(task="digits", **embeddings):
        e = experiment("fedavg", task, class_embeddings=embeddings)
        whose = dataclasses.replace(e.task, partition="iid")
        return dataclasses.replace(e, task=whose, method=WithConcepts())

    return make


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made_up(asked, seed=0):
    """Random unit vectors in place of what an encoder gives."""
    rng = np.random.default_rng(seed)
    vector_CMD = rng.standard_normal((len(asked.words), len(asked.prompts), 5)).astype(np.float32)
    return vector_CMD / np.linalg.norm(vector_CMD, axis=2, keepdims=True)


def test_a_run_has_the_vectors_of_its_encoder(named, own_cache, tmp_path):
    model = saved_bert(tmp_path)
    e, heard = named(encoder=str(model), prompts=PROMPTS), []
    run_spec = make_run_spec(e, heard.append)
    assert run_spec.concepts_CMD.shape == (10, 4, WIDTH)
    torch.testing.assert_close(run_spec.concepts_CMD.norm(dim=2), torch.ones(10, 4))
    assert any(line.startswith("class concepts: 10 classes, 4 prompts, width 12, checksum ") for line in heard)
    assert any(f"transformers {metadata.version('transformers')}" in line for line in heard)
    assert [file.parent for file in own_cache.rglob("concepts-*.npz")] == [own_cache]
    assert torch.equal(make_run_spec(e, quiet).concepts_CMD, run_spec.concepts_CMD)
    alone = make_run_spec(dataclasses.replace(e, method=FedAvg()), quiet)
    assert alone.concepts_CMD is None


def test_a_run_without_library_or_model_uses_the_file(named, own_cache, monkeypatch, tmp_path):
    """One that somebody copied into the cache folder of a machine that has never seen the model."""
    e = named(encoder="somebody/encoder")
    asked = concept_request(e, find_task("digits").class_names)
    assert len(asked.prompts) == 25
    assert asked.words[3] == "digit three"
    save_concepts(asked, asked.file(own_cache), made_up(asked), "an encoder", quiet)
    monkeypatch.setitem(sys.modules, "transformers", None)
    run_spec = make_run_spec(e, quiet)
    assert torch.equal(run_spec.concepts_CMD, torch.from_numpy(made_up(asked)))
    assert 0 <= run(e, tmp_path / "run", quiet).scores["test"]["f1_macro"] <= 1


def test_a_record_tells_vectors_apart_that_options_do_not(named, own_cache, tmp_path):
    """Two files that were made under one name of a model: one digest of options, two of vectors."""
    e, tags = named(encoder="somebody/encoder"), []
    asked = concept_request(e, find_task("digits").class_names)
    for seed in (0, 1, 1):
        save_concepts(asked, asked.file(own_cache), made_up(asked, seed), "an encoder", quiet)
        tags.append(run_info(make_run_spec(e, quiet), tmp_path / "run").tags)
    one, other, same = (t["concepts_digest"] for t in tags)
    assert one != other == same
    assert len({t["config_digest"] for t in tags}) == 1
    assert "names_digest" not in tags[0]  # no class embeddings, no concepts: neither stands there
    assert "concepts_digest" not in make_run_spec(dataclasses.replace(e, method=FedAvg()), quiet).vectors()


def test_a_missing_encoder_is_told_before_the_data_are_prepared(named, own_cache, tmp_path):
    with pytest.raises(
        NamesError, match=r"open_clip_torch; or copy .*with open_clip_torch and the model 'open_clip:a@b'"
    ):
        run(named(encoder="open_clip:a@b", prompts=PROMPTS), tmp_path / "run", quiet)
    assert not own_cache.exists()


def test_rows_follow_the_classes_that_the_data_have(named):
    """A class less, as after task.min_positives, and the others in another order."""
    e = named(encoder="m")
    asked = concept_request(e, ("nine", "two"))
    assert asked.words == ("digit nine", "digit two")
    assert concept_request(named("toy-single", encoder="m", prompts=PROMPTS), ("a_b",)).words == ("a_b",)


def test_a_share_of_the_prompts_is_cut_out_of_one_file(named, own_cache):
    every = named(encoder="m")
    asked = concept_request(every, find_task("digits").class_names)
    save_concepts(asked, asked.file(own_cache), made_up(asked), "an encoder", quiet)
    whole_CMD, before = make_run_spec(every, quiet).concepts_CMD, set()
    for share, count in ((0.25, 7), (0.5, 13), (0.75, 19), (1.0, 25)):
        e = named(encoder="m", prompt_fraction=share)
        chosen = draw_prompts(25, share, e.seed)
        assert len(chosen) == count == len(set(chosen))
        assert before <= set(chosen), "a smaller share is a part of a larger one"
        assert torch.equal(make_run_spec(e, quiet).concepts_CMD, whole_CMD[:, chosen])
        before = set(chosen)
    assert draw_prompts(25, 0.25, 1) != draw_prompts(25, 0.25, 2)
    assert len(list(own_cache.glob("concepts-*.npz"))) == 1
    assert len(draw_prompts(100, 0.07, 1)) == 7
    assert len(draw_prompts(3, 0.01, 1)) == 1


def test_what_is_missing_is_named(named):
    with pytest.raises(
        InputError, match=r"needs a text encoder: set class_embeddings\.encoder .*pip install 'anchorfl\[plm\]'"
    ):
        make_run_spec(named(), quiet)
    e = named("toy-single", encoder="m")
    with pytest.raises(InputError, match=r"'toy-single' has no prompts of its own: set class_embeddings\.prompts"):
        make_run_spec(e, quiet)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"class_embeddings\.prompt_fraction = .*: must be in \(0, 1\]"):
            ClassEmbeddingOptions(prompt_fraction=share)


def test_files_lie_beside_the_prepared_data(named, own_cache):
    prepared = prepare_data(named(encoder="m"), quiet)
    asked = ConceptRequest(("one",), ("{name}",), "m")
    assert asked.file(own_cache).parent.samefile(f"{prepared.folder}/..")


def test_names_that_the_table_says_nothing_of_are_named(experiment, tmp_path):
    """They keep their random vectors, which is said once; where every name has an edge, nothing is."""
    names = find_task("toy-single").class_names
    for edges, lonely in ((len(names), []), (2, names[2:])):
        rows = [[float(i != j and max(i, j) < edges) for j in range(len(names))] for i in range(len(names))]
        lines = [",".join([name, *map(str, row)]) for name, row in zip(names, rows, strict=True)]
        table = tmp_path / f"{edges}.csv"
        table.write_text("\n".join([",".join(["label", *names]), *lines]) + "\n")
        said = []
        make_run_spec(
            experiment("fedalign", class_embeddings={"init": "cooccurrence", "table": str(table)}), said.append
        )
        heard = [line.rpartition(": ")[2] for line in said if "keep a random vector" in line]
        assert heard == ([", ".join(lonely)] if lonely else [])
