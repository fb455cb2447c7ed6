"""Text encoders of other packages: where a language model's vectors go, known by their source, refused in one line."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import exchanged_names
import numpy as np
import pytest
import torch

from anchorfl.models.errors import NamesError
from anchorfl.pipeline.config.experiment import digest, plugins_of
from anchorfl.pipeline.config.text_encoders import names_encoder_code
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.places import check_own_code
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.tasks import plugins
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.registry import find_task
from anchorfl.testing import small_experiment
from tests.runs import quiet

HERE = __name__
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = ("engine", "fruit", "music", "river")


def counts(texts):
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts], np.float32)


def letters():
    """Make an encoder that counts letters."""
    return lambda texts: torch.from_numpy(counts(texts)).double().requires_grad_()


def fails():
    raise RuntimeError("no\nnetwork")


def wrong():
    return lambda texts: torch.ones(len(texts) + 1, 3)


def uneven():
    return lambda texts: torch.ones(len(texts), len(texts[0]))


def no_tensor():
    return lambda texts: counts(texts)


def speechless():
    return lambda texts: {}[texts[0]]


NUMBER = 7


def aligned(encoder, **options):
    names = {"init": "language_model", "encoder": encoder, "prompts": "{name} | a {name}"}
    return small_experiment("fedalign", class_embeddings=names | options, federation={"rounds": 1})


def test_class_embeddings_start_from_its_vectors(tmp_path):
    e = aligned(f"{HERE}:letters")
    result, got = run(e, tmp_path / "run", quiet), make_run_spec(e, quiet).vectors_CP
    each_MCP = np.stack([counts([prompt.format(name=name) for name in NAMES]) for prompt in ("{name}", "a {name}")])
    want_CP = (each_MCP / np.linalg.norm(each_MCP, axis=2, keepdims=True)).mean(0)
    np.testing.assert_allclose(got.numpy(), want_CP, rtol=0, atol=1e-6)
    assert got.dtype == torch.float32
    tag = read_metadata(result.folder)["tags"]["text_encoder_plugin"]
    assert tag == f"{HERE}:letters, sha256 {plugins.code_digest(letters)}"
    assert "text_encoder" not in plugins_of(aligned(f"{HERE}:letters", init="random"))


def test_its_source_is_part_of_the_experiment_and_of_the_vectors_of_concepts(tmp_path, monkeypatch):
    """An edit makes them anew; without one they come from the cache. By entry point as by module."""
    file, name = tmp_path / "lengths.py", "lengths:make"
    monkeypatch.syspath_prepend(tmp_path)
    source = "import torch\ndef make():\n    return lambda texts: torch.tensor([[len(t), SIZE] for t in texts])\n"
    digests, vectors = set(), list[torch.Tensor]()
    (tmp_path / "lengths-1.dist-info").mkdir()
    (tmp_path / "lengths-1.dist-info/METADATA").write_text("Name: lengths\nVersion: 1\n")
    (tmp_path / "lengths-1.dist-info/entry_points.txt").write_text("[anchorfl.text_encoders]\nlengths = lengths:make\n")
    plugins._offers.cache_clear()
    for size in ("1", "30"):
        file.write_text(source.replace("SIZE", size))
        sys.modules.pop("lengths", None)
        task = {"cache": str(tmp_path / "cache")}
        for encoder in (name, "lengths"):
            options = {"encoder": encoder, "prompts": "a {name} | the {name} {name}"}
            e = small_experiment("fedbm", task=task, class_embeddings=options)
            digests.add(digest(e))
            vectors.append(make_run_spec(e, quiet).concepts_CMD)
    monkeypatch.undo()
    plugins._offers.cache_clear()
    sys.modules.pop("lengths")
    assert len(digests) == 4
    assert len(list((tmp_path / "cache").glob("concepts-*.npz"))) == 4
    for at, size in enumerate((1, 1, 30, 30)):
        want_CM2 = np.array([[[len(n) + 2, size], [2 * len(n) + 5, size]] for n in NAMES], np.float64)
        want_CM2 /= np.linalg.norm(want_CM2, axis=2, keepdims=True)
        np.testing.assert_allclose(vectors[at].numpy(), want_CM2, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("fails", {}, r"text encoder '.*:fails': making it failed \(RuntimeError: no network\)"),
        ("wrong", {}, r"gives \(3, 3\) for 2 texts, and not a tensor \(texts, width\) of one width"),
        ("uneven", {}, r"gives \(2, 5\) for 2 texts, and not a tensor"),
        ("no_tensor", {}, "gives ndarray for 2 texts"),
        ("speechless", {}, r"encoding 2 texts failed \(KeyError: 'engine'\)"),
        ("NUMBER", {}, "a int, and no class or function that makes a text encoder"),
        ("nobody", {}, "has no 'nobody'"),
        ("letters", {"pooling": "mean"}, r"has its own pooling: set class_embeddings\.pooling to 'auto'"),
        ("letters", {"lora_rank": 2}, r"no folder with a config\.json"),
    ],
)
def test_one_that_fails_is_one_line(name, options, line):
    with pytest.raises((InputError, NamesError), match=line) as error:
        make_run_spec(aligned(f"{HERE}:{name}", **options), quiet)
    assert len(str(error.value).splitlines()) == 1


def test_a_module_in_the_record_of_others_is_not_imported(tmp_path):
    """Nor are files hashed that such a record names as a label encoder; other encoders are places, as ever."""
    code = {"class_embeddings": {"encoder": "theirs:make"}}
    files = {"class_embeddings": {"encoder": "some/folder", "lora_rank": 2}}
    for tree in (code, files):
        with pytest.raises(InputError, match=r"was not written by you .* class_embeddings\.encoder = "):
            check_own_code(tree, "", tmp_path / "config.json", {})
        check_own_code(
            tree, "", tmp_path / "config.json", {"class_embeddings.encoder": tree["class_embeddings"]["encoder"]}
        )
    folder = {"class_embeddings": {"encoder": "some/folder"}}
    check_own_code(folder, "", tmp_path / "config.json", {})
    with pytest.raises(InputError, match=r"class_embeddings\.encoder = 'some/folder'"):  # its files would be read
        check_own_code(folder | {"method": {"name": "fedtsp"}}, "", tmp_path / "config.json", {})
    assert names_encoder_code("a.b:C.d")
    assert not any(
        map(names_encoder_code, ("open_clip:RN50", "open_clip:hf-hub:a/b", "org/name@v1", "a folder", "bert"))
    )


def test_exchanged_names_are_those_of_other_classes(monkeypatch):
    """Of ``benchmarks/plug_ins/exchanged_names.py``, by which docs/results/pbc.md parts language from class."""
    read = list[str]()
    monkeypatch.setattr(exchanged_names, "import_module", lambda name: SimpleNamespace(get_model_path=lambda: "minilm"))
    monkeypatch.setattr(exchanged_names, "text_encoder", lambda model: nullcontext(lambda texts: read.extend(texts)))
    names = find_task("pbc").class_names
    exchanged_names.encoder()([f"{name} cells, a photo of {name}" for name in names])
    assert read == [f"{name} cells, a photo of {name}" for name in (*names[1:], names[0])]
    assert not any(other in name for name in names for other in names if other != name), "so that no name has another"
