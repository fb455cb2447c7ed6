"""The trained model in MLflow: no pickle in it, the same numbers as ``anchorfl predict``, and there only once."""

import dataclasses
import importlib.metadata
import json
import os
import pickletools
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import anchorfl
from anchorfl.pipeline.mlmodel import _load_pyfunc
from anchorfl.pipeline.results.predict import predict
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.tracking import mlflow_model, own_wheel
from anchorfl.pipeline.tracking.mlflow_model import LOADER, PACKAGES, pack, requirements
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from tests.runs import quiet

# MLflow 3.17.2 when mlflow.pyfunc is first imported
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")
TEXTS = ["an engine and a river", "apple pear plum", "words that nobody knows"]


@pytest.fixture
def mlflow(store):
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(store)
    yield mlflow
    mlflow.set_tracking_uri(before)


def delivered(mlflow, folder, store):
    """Return the MLflow client, the run of a folder, and its models."""
    client = mlflow.MlflowClient(store)
    done = client.get_run(next(iter(read_json(folder / "tracking.json").values()))["run_id"])
    found = client.search_logged_models([done.info.experiment_id], f"source_run_id = '{done.info.run_id}'")
    return client, done, found


def is_pickle(content):
    """Return True where the bytes read as a pickle from the first to the last."""
    try:
        with warnings.catch_warnings():  # of what it takes for text in the wheel's compressed bytes
            warnings.simplefilter("ignore", DeprecationWarning)
            *_, (last, _, at) = pickletools.genops(content)
    except (ValueError, IndexError, UnicodeDecodeError):
        return False
    return last.name == "STOP" and at == len(content) - 1


def assert_no_pickle(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"MLmodel", "model.json", "weights.safetensors", "input_example.json"} <= {path.name for path in files}
    for path in files:
        assert path.suffix not in {".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".npy"}, path
        assert path.name == own_wheel.FILE or not zipfile.is_zipfile(path), path
        assert not is_pickle(path.read_bytes()), path
        assert "pickle" not in path.name.lower(), path
        if path.name in {"MLmodel", "requirements.txt", "conda.yaml"}:
            assert "pickle" not in path.read_text().lower(), path


def test_the_search_for_pickles_finds_one(tmp_path):
    import pickle

    assert all(is_pickle(pickle.dumps({"a": [1]}, protocol)) for protocol in range(6))
    assert not is_pickle(b"text")
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights.safetensors")
    for name in ("MLmodel", "model.json", "input_example.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(AssertionError, match=r"weights\.safetensors"):
        assert_no_pickle(tmp_path)


def test_a_text_model_answers_as_predict_does(experiment, tmp_path, store, mlflow):
    folder = tmp_path / "run"
    run(experiment(tracking={"uri": store, "register": "winner"}), folder, quiet)
    client, done, found = delivered(mlflow, folder, store)
    assert [model.status for model in found] == ["READY"]
    assert [output.model_id for output in done.outputs.model_outputs] == [found[0].model_id]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    expected = predict(folder / "model", tmp_path / "texts.txt")
    threads = torch.get_num_threads()
    for uri in (f"models:/{found[0].model_id}", f"runs:/{done.info.run_id}/model", "models:/winner@champion"):
        loaded = mlflow.pyfunc.load_model(uri)
        answer = loaded.predict(pd.DataFrame({"text": TEXTS, "more": 1}))
        assert list(answer.columns) == list(expected.class_names)
        assert np.array_equal(answer.to_numpy(), expected.scores_NC.double().numpy())
    assert torch.get_num_threads() == threads
    assert loaded.input_example.to_dict("list") == {"text": ["an example text"]}
    assert loaded.predict(loaded.input_example).shape == (1, 4)
    place = Path(mlflow.artifacts.download_artifacts(f"models:/{found[0].model_id}", dst_path=str(tmp_path)))
    assert_no_pickle(place)
    assert (place / "requirements.txt").read_text().splitlines() == requirements()
    assert [file.path for file in client.list_artifacts(done.info.run_id) if "weights" in file.path] == []


def test_a_model_of_numbers_answers_as_predict_does(experiment, finished_run, tmp_path, mlflow):
    model = finished_run(experiment(task="toy-multi")).folder / "model"
    pack(model, tmp_path / "packed")
    assert_no_pickle(tmp_path / "packed")
    values = np.random.default_rng(0).normal(size=(5, 16))
    frame = pd.DataFrame(values, columns=[f"c{number}" for number in range(16)])
    frame.to_csv(tmp_path / "values.csv", index=False)
    expected = predict(model, tmp_path / "values.csv").scores_NC.double().numpy()
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "packed"))
    assert _load_pyfunc.__module__ == LOADER
    assert np.array_equal(loaded.predict(frame).to_numpy(), expected)
    assert np.array_equal(loaded.predict(values).to_numpy(), expected)
    assert not loaded.input_example.any()
    direct = _load_pyfunc(str(tmp_path / "packed" / "data" / "model"))
    assert np.array_equal(direct.predict(values.tolist()).to_numpy(), expected)
    with pytest.raises(InputError, match=r"shape \(1, 3\); this model takes 16"):
        direct.predict([[1.0, 2.0, 3.0]])
    with pytest.raises(InputError, match="sample 2 holds"):
        direct.predict([[0.0] * 16, [float("nan")] * 16])
    with pytest.raises(InputError, match="no number"):
        direct.predict([["x"] * 16])


def test_a_model_of_a_table_of_numbers_takes_its_columns_by_name(experiment, tmp_path, mlflow):
    """In any order, and whatever else is in the frame; a tensor would be taken by position."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(80, 4)), columns=["a", "b", "c", "kind"])
    frame["kind"] = np.where(frame.a > 0, "x", "y")
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "t.parquet")
    own = TaskOptions(
        name="table-t", file=str(tmp_path / "t.parquet"), label_columns="kind", partition="iid", clients=4
    )
    run(dataclasses.replace(experiment(federation={"rounds": 1}), task=own), tmp_path / "run", quiet)
    pack(tmp_path / "run" / "model", tmp_path / "packed")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "packed"))
    expected = predict(tmp_path / "run" / "model", tmp_path / "t.parquet").scores_NC.double().numpy()
    assert np.array_equal(loaded.predict(frame[["c", "b", "kind", "a"]]).to_numpy(), expected)
    with pytest.raises(Exception, match="missing inputs"):
        loaded.predict(frame[["a", "b"]])


def test_a_model_of_a_table_with_texts_takes_its_columns(experiment, tmp_path, mlflow):
    words = ["red", "green", None, "green"] * 20
    columns = {"size": [float(i % 7) for i in range(80)], "colour": words, "kind": ["a", "b", "b", "b", "a"] * 16}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    made = experiment(federation={"rounds": 1})
    own = TaskOptions(
        name="table-t", file=str(tmp_path / "t.parquet"), label_columns="kind", partition="iid", clients=4
    )
    run(dataclasses.replace(made, task=own), tmp_path / "run", quiet)
    pack(tmp_path / "run" / "model", tmp_path / "packed")
    assert_no_pickle(tmp_path / "packed")
    new = pd.DataFrame({"colour": ["green", "violet", None, " red"], "more": 1, "size": [1.0, 2.0, 3.0, 4.0]})
    pq.write_table(pa.table(new), tmp_path / "new.parquet")
    expected = predict(tmp_path / "run" / "model", tmp_path / "new.parquet").scores_NC.double().numpy()
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "packed"))
    assert np.array_equal(loaded.predict(new).to_numpy(), expected)
    assert not np.array_equal(expected, np.roll(expected, 1, axis=0))
    assert loaded.predict(loaded.input_example).shape == (1, 2)
    direct = _load_pyfunc(str(tmp_path / "packed" / "data" / "model"))
    for changed, word in (
        (new.drop(columns="colour"), "lacks column 'colour'"),
        (new.assign(colour=7), "column 'colour' holds what is no text"),
        (new.assign(size="x"), "column 'size' holds what is no number"),
        (new.assign(size=float("nan")), "sample 1 holds"),
        ([[1.0, 2.0]], "lacks column 'size'"),
    ):
        with pytest.raises(InputError, match=word):
            direct.predict(changed)


def test_texts_that_are_none_are_named(experiment, finished_run):
    model = _load_pyfunc(str(finished_run(experiment()).folder / "model"))
    assert model.predict(TEXTS).shape == (3, 4)
    for given, words in (
        (pd.DataFrame({"words": TEXTS}), "name one 'text'"),
        (["a", ""], "sample 2"),
        ([1], "no text"),
    ):
        with pytest.raises(InputError, match=words):
            model.predict(given)


def test_a_repeated_delivery_makes_no_second_model_or_version(experiment, tmp_path, store, mlflow, monkeypatch):
    folder = tmp_path / "run"
    e = experiment(tracking={"uri": store, "register": "steady", "experiment": "repeated"})

    def killed(*arguments, **named):
        raise ConnectionError("[Errno 104] reset")

    monkeypatch.setattr(mlflow_model, "_upload", killed)
    lines = []
    run(e, folder, lines.append)  # the model was made known, its files never came
    assert any("cannot be reached" in line for line in lines)
    monkeypatch.undo()
    client, _, found = delivered(mlflow, folder, store)
    assert [model.status for model in found] == ["PENDING"]
    send(folder, store)
    assert [model.status for model in delivered(mlflow, folder, store)[2]] == ["READY"]
    first = client.get_model_version_by_alias("steady", "champion")
    other = client.create_model_version("steady", first.source, first.run_id)
    client.set_registered_model_alias("steady", "champion", other.version)  # a person moved it
    (folder / "tracking.json").unlink()
    send(folder, store)
    _, done, found = delivered(mlflow, folder, store)
    assert [model.status for model in found] == ["READY"]
    assert len(done.outputs.model_outputs) == 1
    assert [version.version for version in client.search_model_versions("name = 'steady'")] == [2, 1]
    assert client.get_model_version_by_alias("steady", "champion").version == 2
    assert [row.step for row in client.get_metric_history(done.info.run_id, "test/f1_macro")] == [0, 1, 2, 3]


def test_scores_stand_with_the_model(experiment, tmp_path, store, mlflow):
    result = run(experiment(tracking={"uri": store, "experiment": "scores"}), tmp_path / "run", quiet)
    client, _, found = delivered(mlflow, tmp_path / "run", store)
    rows = client.get_logged_model(found[0].model_id).metrics
    logged = {row.key: (row.value, row.dataset_name) for row in rows}
    assert logged["test/f1_macro"] == (result.scores["test"]["f1_macro"], "toy-single/test")
    assert {name.partition("/")[0] for name in logged} == {"test", "validation"}


def test_without_log_model_only_the_files_go(experiment, tmp_path, store, mlflow):
    run(experiment(tracking={"uri": store, "log_model": False}), tmp_path / "run", quiet)
    client, done, found = delivered(mlflow, tmp_path / "run", store)
    assert found == []
    assert {file.path for file in client.list_artifacts(done.info.run_id, "model")} == {
        "model/model.json",
        "model/weights.safetensors",
    }
    assert json.loads((tmp_path / "run" / "run.json").read_text())["log_model"] is False


def test_a_model_that_version_0_1_logged_still_loads(experiment, finished_run, tmp_path, mlflow):
    """It names ``pipeline.mlmodel`` as its loader, and its ``model.json`` has format 1."""
    result = finished_run(experiment("fedalign"))
    pack(result.folder / "model", tmp_path / "packed")
    frame = pd.DataFrame({"text": TEXTS})
    want = mlflow.pyfunc.load_model(str(tmp_path / "packed")).predict(frame)
    (path,) = (tmp_path / "packed").rglob("model.json")
    new = json.loads(path.read_text())
    old = {k: v for k, v in new.items() if k != "class_embedding_width"} | {"format": 1, "metrics": "decisions"}
    old |= {"names_width": new["class_embedding_width"], "model": new["model"] | {"names": "random", "names_width": 16}}
    path.write_text(json.dumps(old))
    described = tmp_path / "packed" / "MLmodel"
    described.write_text(described.read_text().replace(LOADER, "pipeline.mlmodel"))
    got = mlflow.pyfunc.load_model(str(tmp_path / "packed")).predict(frame)
    assert got.equals(want)


def test_the_wheel_is_the_package_that_runs(tmp_path):
    """Every file of it, with its digest; the same files are the same bytes."""
    first = own_wheel.write_wheel(tmp_path)
    content = first.read_bytes()
    assert own_wheel.write_wheel(tmp_path).read_bytes() == content
    root = Path(anchorfl.__file__).parent
    with zipfile.ZipFile(first) as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert {"anchorfl/__init__.py", "anchorfl/pipeline/mlmodel.py", "anchorfl/tuning/presets/digits.toml"} <= files
        assert not any("__pycache__" in name for name in files)
        assert all(wheel.read(name) == (root.parent / name).read_bytes() for name in files)
        record = wheel.read(f"anchorfl-{anchorfl.__version__}.dist-info/RECORD").decode().splitlines()
    assert {line.split(",")[0] for line in record} == files | {
        f"anchorfl-{anchorfl.__version__}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")
    }


def test_a_model_loads_where_only_its_requirements_are(experiment, finished_run, tmp_path):
    """AnchorFL comes from the wheel in the model, and nothing is imported that the requirements do not bring."""
    for name, task in (("numbers", "toy-multi"), ("texts", "toy-single")):
        pack(finished_run(experiment(task=task)).folder / "model", tmp_path / name)
    packed, site = tmp_path / "numbers", tmp_path / "site"
    lines = (packed / "requirements.txt").read_text().splitlines()
    assert not any(line.startswith("anchorfl") for line in lines)  # which anybody may put on an index
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, lines[0]], cwd=packed, check=True)
    code = """
import json, sys
import pandas as pd
from anchorfl.pipeline import mlmodel
values = mlmodel._load_pyfunc(sys.argv[1]).predict([[0.0] * 16]).shape
texts = mlmodel._load_pyfunc(sys.argv[2]).predict(pd.DataFrame({"text": ["walking home"]})).shape
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"from": mlmodel.__file__, "shapes": [values, texts], "modules": modules}))
"""
    folders = [str(tmp_path / name / "data" / "model") for name in ("numbers", "texts")]
    there = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code, *folders], env=there, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["from"].startswith(str(site))
    assert [shape[0] for shape in said["shapes"]] == [1, 1]
    owners = importlib.metadata.packages_distributions()
    imported = {canonicalize_name(owner) for name in said["modules"] for owner in owners.get(name, ())}
    assert imported <= brought(PACKAGES) | {"anchorfl", "tqdm", "colorama"}  # torch takes these two where they are


def brought(names):
    """Return all distributions that these need."""
    found, queue = set[str](), [canonicalize_name(name) for name in names]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        needs = [Requirement(text) for text in needs]
        queue += [canonicalize_name(r.name) for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found
