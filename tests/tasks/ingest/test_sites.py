"""Preparation at sites, each a folder of its own here: the clients of a table in one place, and what leaves a site.

On nodes that share no disk: tests/ray/test_sites.py.
"""

from __future__ import annotations

import csv
import os
import stat
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.ingest import sites
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.table import resolve_options

NAMES = ("east", "north", "west")
KINDS = {"east": "ab", "north": "b", "west": "bc"}
ROWS = {"east": 12, "north": 7, "west": 9}


def rows_of(name: str, seed: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    kinds = KINDS.get(name, "abc")
    return [
        {"height": f"{rng.normal():.4f}", "girth": f"{rng.normal():.4f}", "kind": kinds[i % len(kinds)]}
        for i in range(ROWS.get(name, 18))
    ]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


OPTIONS = TaskOptions(
    file="t.csv", label_columns="kind", input_columns="height,girth", split_column="split", validation=0.2
)


class Near:
    """The sites' calls, made here: paths in the cache, and the table's folder, are those of the site's own folder."""

    def __init__(self, options):
        self.folder, self.log, self.cache = Near.root, [], options.cache

    def ask(self, function, arguments):
        answers = []
        for name, given in zip(NAMES, arguments, strict=True):
            fault, answer = sites._at_site(self.cache, function, *(self.there(name, value) for value in given))
            if fault:
                raise InputError(f"site {name!r}: {fault}")
            answers.append(answer)
            Near.left.append((name, answer))
        return answers

    def there(self, name, value):
        if isinstance(value, TaskOptions):
            return replace(value, root=str(self.folder / name))
        if isinstance(value, sites._Job):
            return replace(value, options=self.there(name, value.options), building=self.there(name, value.building))
        return (
            value.replace(str(self.folder / "cache"), str(self.folder / f"cache-{name}"))
            if isinstance(value, str)
            else value
        )


@pytest.fixture
def near(tmp_path, monkeypatch):
    """Return a maker of prepared data at sites, and of the same rows in one place; both with the same scaling."""
    monkeypatch.setattr(sites, "_Sites", Near)
    monkeypatch.setattr("anchorfl.tasks.ingest.ingest._check_ray", lambda: None)
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    Near.root, Near.left = tmp_path, []
    split = ["validation", "test", "test"]
    server = [row | {"split": split[i % 3]} for i, row in enumerate(rows_of("server", 9))]
    write(tmp_path / "head/t.csv", server)
    every = [row | {"site": "-"} for row in server]
    for seed, name in enumerate(NAMES):
        write(tmp_path / name / "t.csv", rows_of(name, seed))
        every += [row | {"split": "train", "site": name} for row in rows_of(name, seed)]
    write(tmp_path / "all/all.csv", every)
    write(
        tmp_path / "public/t.csv", [row | {"split": ["train", "test"][i % 2]} for i, row in enumerate(rows_of("p", 5))]
    )
    public = resolve_options(replace(OPTIONS, root=str(tmp_path / "public"), clients=2, partition="iid"), print)
    spec = prepare(task_of(public), public, 1, engine="local").folder

    def make(one_place=False, **more):
        where = {"root": str(tmp_path / "head"), "sites": "west, east,north"}
        if one_place:
            where = {"root": str(tmp_path / "all"), "file": "all.csv", "client_column": "site"}
        options = resolve_options(replace(OPTIONS, **{"input_spec": spec} | where | more), lambda line: None)
        return prepare(task_of(options), options, 1, engine="ray" if "sites" in where else "local")

    return make


def test_clients_are_those_of_the_rows_in_one_place(near, tmp_path):
    """Cards, splits and every client's tensors, in their order; each site has its own rows alone."""
    there, here = near(), near(one_place=True)
    objective = Objective("single")
    assert there.manifest.client_names == here.manifest.client_names == NAMES
    for a, b in zip(there.manifest.counts, here.manifest.counts, strict=True):
        assert a == b
    assert list(there.manifest.classes) == list(here.manifest.classes)
    assert (there.manifest.test, there.manifest.validation) == (here.manifest.test, here.manifest.validation)
    for client, name in enumerate(NAMES):
        own = Prepared.load(there.folder.replace("/cache/", f"/cache-{name}/"))
        mine, theirs = own.client(client, objective), here.client(client, objective)
        for field in ("x", "y_NC", "known_NC", "weight_NC"):
            assert getattr(mine, field).equal(getattr(theirs, field)), field
        files = sorted(path.name for path in (tmp_path / f"cache-{name}").rglob("rows-*"))
        assert files == [f"rows-0000{client}.parquet"]
        assert stat.S_IMODE(os.stat(own.folder).st_mode) == 0o700, "rows are for their owner alone"
        with pytest.raises(PreparedDataError, match="is missing"):
            own.client((client + 1) % 3, objective)
    assert len(there.split("test", objective)) == there.manifest.test == 12
    assert not list((tmp_path / "cache" / there.folder.rpartition("/")[2]).glob("rows-0000[012]*")), (
        "none at the server"
    )
    assert not [path for path in tmp_path.glob("cache*/.*") if path.is_dir()], "nothing half made is left"


def test_a_preparation_that_fails_leaves_nothing(near, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(sites, "write_account", full)
    with pytest.raises(OSError, match="no space left"):
        near()
    assert not [path for path in tmp_path.glob("cache*/.*") if path.is_dir()]


def test_what_leaves_a_site_is_small_and_holds_no_row(near):
    near()
    for name, answer in Near.left:
        parts = answer if isinstance(answer, tuple) else (answer,)
        for part in parts:
            if isinstance(part, pa.Table):
                assert part.num_rows <= 3, name
                assert set(part.column_names) <= {
                    "class", "rows", "owner", "positives", "content", "footer", "data", "file", "group", "groups",
                    "offset", "size", "sha256",
                }  # fmt: skip
                assert "data" not in part.column_names or part["data"].null_count == part.num_rows
            else:
                assert part is None or isinstance(part, (bool, sites._Look))


def test_a_second_start_finds_them(near, tmp_path):
    said = []
    first = near()
    options = resolve_options(
        replace(OPTIONS, root=str(tmp_path / "head"), sites="west,east,north", input_spec=first.folder), said.append
    )
    assert prepare(task_of(options), options, 1, engine="ray", log=said.append).folder != first.folder
    again = near()
    assert again.folder == first.folder
    write(tmp_path / "west/t.csv", rows_of("west", 77))
    assert near().folder != first.folder, "one site's rows are others"


@pytest.mark.parametrize(
    ("more", "classes"),
    [
        ({}, [(0, 1), (1,), (1, 2)]),
        ({"identified": "all"}, [(0, 1, 2)] * 3),
        ({"identified": "k_classes", "classes_per_client": 1, "cover": "any"}, None),
        ({"client_classes": '[["a"],["b"],["c"]]'}, [(0,), (1,), (2,)]),
        ({"client_classes": '{"west":["b","c"],"east":["a"],"north":["b"]}'}, [(0,), (1,), (1, 2)]),
    ],
    ids=str,
)
def test_classes_are_given_or_drawn_as_in_one_place(near, more, classes):
    there, here = near(**more), near(one_place=True, **more)
    assert list(there.manifest.classes) == (classes or list(here.manifest.classes))
    for client, known in enumerate(there.manifest.counts):
        assert {class_ for class_, _ in known} <= set(there.manifest.classes[client])
        assert known == here.manifest.counts[client], "and no card names the others"
    held = there.class_histogram()
    assert set(zip(held.client_H.tolist(), held.class_H.tolist(), strict=True)) == {
        (client, class_) for client, known in enumerate(there.manifest.counts) for class_, _ in known
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sites": "east,,west"}, "give each a name of its own"),
        ({"sites": "east,east"}, "give each a name of its own"),
        ({"client_test": "0.1"}, "set task.client_test to 'none'"),
        ({"validation_from": "clients"}, "set task.validation_from to 'server'"),
        ({"min_positives": 2}, "set task.min_positives to 0"),
        ({"cache": "s3://bucket/cache"}, "give task.cache as a folder"),
        ({"split_column": "", "ignore_columns": "split"}, "name task.split_column"),
        ({"input_spec": ""}, "sites share no rows to fit a vocabulary or a scaling on"),
        ({"input_spec": "nowhere"}, "no folder of a saved model or of prepared data"),
        ({"client_classes": '[["a"],["b"],["b"]]'}, "is identified by no client"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(near, more, said):
    with pytest.raises(InputError, match=said):
        near(**more)


def test_rows_of_another_kind_are_refused(near, tmp_path):
    """At a site none for a test; at the server's none for training. Why, stays at the site."""
    write(tmp_path / "west/t.csv", [row | {"split": "test"} for row in rows_of("west", 2)])
    with pytest.raises(InputError, match=r"^site 'west': its rows cannot be prepared \(InputError\)$"):
        near()
    faults = tmp_path / "cache" / sites.FAULTS
    assert "a site's rows are for training" in faults.read_text()
    assert stat.S_IMODE(faults.stat().st_mode) == 0o600
    with pytest.raises(InputError, match="cannot be prepared"):
        near(cache=str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / sites.FAULTS).exists()
    write(tmp_path / "west/t.csv", rows_of("west", 2))
    write(tmp_path / "head/t.csv", [row | {"split": ["train", "test"][i % 2]} for i, row in enumerate(rows_of("s", 1))])
    with pytest.raises(InputError, match=r"server's own rows must be test and validation, and are \['test', 'train'\]"):
        near()


def test_what_a_lost_process_left_half_written_is_written_anew(near, monkeypatch):
    plain = sites._write

    def again(job):
        plain(job)
        return plain(job)

    monkeypatch.setattr(sites, "_write", again)
    assert near().manifest.client_names == NAMES


def test_words_that_no_row_of_the_server_has_are_words_at_a_site(near, tmp_path):
    """The form has them from other rows. They were nothing at all there."""
    words = {"head": "red blue", "east": "green red", "north": "green", "west": "blue", "public": "red green blue"}
    for folder in (*words, "all"):
        path = tmp_path / folder / ("all.csv" if folder == "all" else "t.csv")
        with path.open() as stream:
            rows = list(csv.DictReader(stream))
        for i, row in enumerate(rows):
            site = row.get("site", "-")
            known = words[folder if folder != "all" else "head" if site == "-" else site].split()
            at = i if folder != "all" else sum(row.get("site") == other["site"] for other in rows[:i])
            row["leaf"] = known[at % len(known)]
        write(path, rows)
    more = {"input_columns": "height,girth,leaf"}
    public = resolve_options(replace(OPTIONS, root=str(tmp_path / "public"), clients=2, partition="iid", **more), print)
    more["input_spec"] = prepare(task_of(public), public, 1, engine="local").folder
    there, here = near(**more), near(one_place=True, **more)
    assert there.manifest.spec.columns.categories == {"leaf": ("blue", "green", "red")}
    for client, name in enumerate(NAMES):
        own = Prepared.load(there.folder.replace("/cache/", f"/cache-{name}/"))
        mine, theirs = (data.client(client, Objective("single")).x for data in (own, here))
        assert mine.equal(theirs)
    assert there.split("test", Objective("single")).x.equal(here.split("test", Objective("single")).x)


def test_rows_that_come_while_a_site_reads_are_refused(near, tmp_path, monkeypatch):
    """They would have the numbers of the next site's rows."""
    plain = sites._write

    def later(job):
        if job.client == 0:
            write(tmp_path / "east/t.csv", rows_of("east", 0) + rows_of("east", 5))
        return plain(job)

    monkeypatch.setattr(sites, "_write", later)
    with pytest.raises(InputError, match=r"site 'east': its rows cannot be prepared"):
        near()
    assert "its files changed while they were read" in (tmp_path / "cache" / sites.FAULTS).read_text()


def test_a_given_form_decides_the_scaling(near, tmp_path):
    spec = near(one_place=True).manifest.spec
    public = Prepared.load(next((tmp_path / "cache").glob("table-t-*"))).manifest.spec
    assert (spec.mean, spec.std) == (public.mean, public.std)
    fitted = near(one_place=True, input_spec="").manifest.spec
    assert fitted.mean != spec.mean
    with pytest.raises(InputError, match="of other columns"):
        near(one_place=True, input_columns="girth")
