"""FEMNIST: its reader and its errors on synthetic files."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from functools import partial

import numpy as np
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.images.femnist import _levels, femnist
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.synthetic import femnist as synthetic
from tests.tasks.raw_tables import GONE, left_out, put

WHITE = [1.0] * 784


@pytest.fixture
def folder(made_up, tmp_path):
    return shutil.copytree(made_up("femnist", 200, 3), tmp_path, dirs_exist_ok=True)


def read(folder, **options):
    return femnist().read(folder, TaskOptions(name="femnist", **options))


def content_of(folder):
    return json.loads((folder / "all_data" / "all_data_0.json").read_text())


def save(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def part(content, users):
    data = {user: content["user_data"][user] for user in users}
    return {"users": list(users), "num_samples": [len(data[user]["y"]) for user in users], "user_data": data}


def cut(content, rows):
    """Take a slice of every writer's samples."""
    data = {user: {key: values[rows] for key, values in d.items()} for user, d in content["user_data"].items()}
    return part({"user_data": data}, [user for user in content["users"] if data[user]["y"]])


def contents(table):
    """Return pixels and label of every row, by writer, whatever their order."""
    lines = zip(*(table[name].to_pylist() for name in ("subject", "split", "labels", "pixels")), strict=True)
    return sorted((subject, split, labels[0], tuple(pixels)) for subject, split, labels, pixels in lines)


def test_what_the_twin_wrote_comes_back(folder):
    table, content = read(folder), content_of(folder)
    large = next(u for u, n in zip(content["users"], content["num_samples"], strict=True) if n == 150)
    assert large not in table["subject"].to_pylist()
    assert table.num_rows == 200
    start = 0
    by_writer = {subject: table.filter(np.array(table["subject"]) == subject) for subject in content["users"]}
    for user, size in zip(content["users"], content["num_samples"], strict=True):
        if user != large:
            rows, data = by_writer[user], content["user_data"][user]
            assert rows["row"].to_pylist() == list(range(start, start + size))
            assert [label for (label,) in rows["labels"].to_pylist()] == data["y"]
            stored = np.array(rows["pixels"].to_pylist())
            np.testing.assert_allclose(stored / 255, np.array(data["x"]), atol=1e-12)
            assert (stored[:, 0] == 255).all()  # paper is white
        start += size


def test_writers_are_split_once_and_for_all(folder):
    table = read(folder)
    writers = {}
    for subject, split in zip(table["subject"].to_pylist(), table["split"].to_pylist(), strict=True):
        assert writers.setdefault(subject, split) == split
    counts = {split: list(writers.values()).count(split) for split in ("train", "validation", "test")}
    assert counts == {"train": 35, "validation": 5, "test": 10}
    assert read(folder, fold=3, image_size=14, partition="subjects").equals(table)
    assert femnist().subjects == "writer"


def test_fifty_are_drawn_of_many_writers_in_several_files(tmp_path):
    content = {"user_data": {f"w{n:03d}": {"x": [WHITE] * 2, "y": [n % 62, 1]} for n in range(130)}}
    for number, start in [(0, 0), (10, 50), (9, 100)]:
        users = [f"w{n:03d}" for n in range(start, min(start + 50, 130))]
        save(tmp_path / "all_data" / f"all_data_{number}.json", part(content, users))
    table = read(tmp_path)
    writers = sorted(set(table["subject"].to_pylist()))
    assert (len(writers), table.num_rows) == (50, 100)
    assert writers != [f"w{n:03d}" for n in range(50)]
    order = [*range(50), *range(100, 130), *range(50, 100)]  # file 9 is read before file 10
    for row, subject in zip(table["row"].to_pylist(), table["subject"].to_pylist(), strict=True):
        assert order[row // 2] == int(subject[1:])


def test_leafs_split_by_sample_and_flat_files_give_the_same_samples(folder):
    before, content = contents(read(folder)), content_of(folder)
    whole = folder / "all_data" / "all_data_0.json"
    train, test = cut(content, slice(0, 3)), cut(content, slice(3, None))
    train["user_data"]["f9999_00"] = {"x": [], "y": []}  # LEAF leaves writers of one sample so
    save(folder / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    save(folder / "test" / "all_data_0_niid_0_keep_0_test_9.json", test)
    assert contents(read(folder)) == before  # all_data goes first
    whole.rename(folder / "kept.json")
    assert contents(read(folder)) == before
    for name in ("train", "test"):
        next((folder / name).iterdir()).unlink()
    (folder / "all_data_0.json.gz").write_bytes(gzip.compress((folder / "kept.json").read_bytes()))
    assert contents(read(folder)) == before


def test_encoding(folder):
    task, table = femnist(), read(folder)
    spec = task.fit(table, TaskOptions())
    assert (spec.shape, spec.mean, spec.levels) == ((1, 28, 28), (), 255)
    assert task.encode(table, spec)["x"].to_pylist()[7] == table["pixels"].to_pylist()[7]
    small = task.fit(table, TaskOptions(image_size=14))
    assert task.encode(table.slice(0, 2), small)["x"].type.list_size == 196
    assert task.encode(table.slice(0, 0), spec).num_rows == 0


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (WHITE[1:], 3, "x has 783 values, not 784; correct it"),
        (3, 3, "x has 0 values, not 784; correct it"),
        ([*WHITE[1:], 1.01], 3, "x has a value that is no number 0..1; correct it"),
        ([*WHITE[1:], float("nan")], 3, "x has a value that is no number 0..1; correct it"),
        ([*WHITE[1:], "1"], 3, "x has a value that is no number 0..1; correct it"),
        ([*WHITE[1:], [1]], 3, "x has a value that is no number 0..1; correct it"),
        (WHITE, 62, "y is 62, not a whole number 0..61; correct it"),
        (WHITE, -1, "y is -1, not a whole number 0..61; correct it"),
        (WHITE, "3", "y is '3', not a whole number 0..61; correct it"),
        (WHITE, True, "y is True, not a whole number 0..61; correct it"),
    ],
)
def test_a_bad_sample_is_named_or_left_out(folder, x, y, message):
    before, content = read(folder), content_of(folder)
    user = next(u for u, n in zip(content["users"], content["num_samples"], strict=True) if n < 150)
    content["user_data"][user]["x"][1], content["user_data"][user]["y"][1] = x, y
    path = folder / "all_data" / "all_data_0.json"
    save(path, content)
    message = f"{path}: user '{user}', sample 2: {message}"
    table = left_out(partial(read, folder), message)
    first = min(before.filter(np.array(before["subject"]) == user)["row"].to_pylist())
    assert set(before["row"].to_pylist()) - set(table["row"].to_pylist()) == {first + 1}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("num_samples", 0), "more", "user '{user}': num_samples is {more}, user_data has {size}; get the file again"),
        (("num_samples", 0), GONE,
         "it needs user_data, and as many num_samples (50) as users (51); get the file again"),
        (("users", 1), "user", "user '{other}' of user_data is not in users; get the file again"),
        (("user_data", "user"), GONE, "user '{user}' has no user_data with x and y of one length; get the file again"),
        (("users", 0), "somebody", "user '{user}' of user_data is not in users; get the file again"),
        (("user_data", "user", "y", 0), GONE,
         "user '{user}' has no user_data with x and y of one length; get the file again"),
        (("users",), GONE, "no list 'users' in the file; get it again"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_whatever_is_skipped(folder, place, value, message):
    content = content_of(folder)
    user, other, size = content["users"][0], content["users"][1], content["num_samples"][0]
    meant = {"user": user, "more": size + 1}
    put(content, [meant.get(step, step) for step in place], meant.get(value, value))
    path = folder / "all_data" / "all_data_0.json"
    save(path, content)
    message = message.format(user=user, other=other, size=size, more=size + 1)
    with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
        read(folder, on_bad_row="skip")


def test_a_writer_listed_twice_is_refused(folder):
    content = content_of(folder)
    path, second = (folder / "all_data" / f"all_data_{n}.json" for n in (0, 1))
    user = content["users"][0]
    save(second, part(content, [user]))
    with pytest.raises(InputError, match=re.escape(f"{second}: user '{user}' is listed in {path} too; get the files")):
        read(folder)
    second.unlink()
    content["users"].append(user)
    content["num_samples"].append(content["num_samples"][0])
    save(path, content)
    with pytest.raises(InputError, match=re.escape(f"{path}: user '{user}' is listed twice in users; get the file")):
        read(folder)


def test_too_few_writers_and_strange_folders_are_refused(folder):
    content = content_of(folder)
    small = [u for u, n in zip(content["users"], content["num_samples"], strict=True) if n < 150]
    path = folder / "all_data" / "all_data_0.json"
    save(path, part(content, small[:-1]))
    with pytest.raises(InputError, match="49 writers have fewer than 150 samples, 50 are needed; get all files"):
        read(folder)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match=r"all_data_0\.json:1: column \d+ is no JSON"):
        read(folder)
    (folder / "all_data").rename(folder / "sampled_data")
    with pytest.raises(InputError, match=r"its all_data\*\.json are in no folder all_data, train or test"):
        read(folder)
    with pytest.raises(ValueError, match="49 rows are too few for 50 writers, ask for 50 or more"):
        synthetic.write(folder, 49, seed=0)


def test_shares_of_ink_are_the_nearest_levels():
    assert _levels([[0.996, 0.0021]])[0].tolist() == [254, 1]
