"""Tables that are small on disk and endless in memory are refused before they unpack; legal ones are read as ever."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.decompression import FREE
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular import reading
from anchorfl.tasks.tabular.inspect import inspect_table
from anchorfl.tasks.tabular.reading import open_file

KIND = ["a", "b"] * 4


def lists(values):
    """Eight lists of so many values in all."""
    return pa.ListArray.from_arrays(np.linspace(0, len(values), 9).astype(np.int32), values)


BOMBS = {
    "lists of zeros": (lambda: lists(pa.array(np.zeros(1 << 24), pa.float64())), {}),
    "one text, plain": (lambda: ["x" * (FREE // 4)] * 8, {"use_dictionary": False}),
    "one text, as a dictionary": (lambda: ["x" * (FREE // 4)] * 8, {}),
    "lists of one text": (
        lambda: lists(pa.DictionaryArray.from_arrays(np.zeros(8 << 10, np.int32), ["x" * (1 << 16)])),
        {},
    ),
    "lists of short texts": (lambda: lists(pa.DictionaryArray.from_arrays(np.zeros(1 << 25, np.int32), ["x"])), {}),
}


def peak_of(action):
    """Return the most bytes that Arrow takes for an action that is refused."""
    before = pa.default_memory_pool()
    pool = pa.system_memory_pool() if before.backend_name != "system" else pa.jemalloc_memory_pool()
    pa.set_memory_pool(pool)
    try:
        held = pool.bytes_allocated()
        with pytest.raises(InputError, match=r"t\.parquet: it unpacks to more than 200 times its size"):
            action()
        return pool.max_memory() - held
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("name", BOMBS)
def test_a_parquet_bomb_is_refused_before_it_unpacks(tmp_path, name):
    """The same for a look at it, with and without labels, and for the first rows."""
    make, how = BOMBS[name]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"kind": KIND, "x": make()}), path, compression="zstd", **how)
    assert path.stat().st_size < 1 << 16
    peaks = [
        peak_of(lambda: inspect_table(TaskOptions(file=str(path)))),
        peak_of(lambda: open_file(path, BadRows(skip=True)).head(["x"])),
    ]
    assert max(peaks) < FREE, f"at most {max(peaks) / 2**20:.0f} MiB"


def test_more_rows_than_a_file_of_data_can_hold(tmp_path):
    """A row takes eight bytes for its number alone."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": np.zeros((FREE >> 3) * 3, np.int8)}), path, row_group_size=1 << 26)
    with pytest.raises(InputError, match=r"t\.parquet: it unpacks to more than"):
        open_file(path, BadRows(skip=True))


def test_columns_are_counted_before_a_table_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_COLUMNS", 6)
    names, cells = [f"c{i}" for i in range(7)], list("1234567")
    pq.write_table(pa.table({name: [1] for name in names}), tmp_path / "t.parquet")
    wide = {"t.csv": ",".join(names), "blank.csv": "\n\n" + ",".join(names), "cut.csv": '"c\n0",' + ",".join(names[1:])}
    for name, header in wide.items():
        (tmp_path / name).write_text(f"{header}\n{','.join(cells)}\n")
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress("\t".join(names).encode() + b"\n"))
    monkeypatch.setattr("pyarrow.csv.read_csv", lambda *args: pytest.fail("it is parsed"))
    for name in (*wide, "t.tsv.gz", "t.parquet"):
        with pytest.raises(InputError, match=rf"{name} has 7 columns, of which 6 are read at most; give"):
            open_file(tmp_path / name, BadRows(skip=True))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_every_line_end_of_a_header(tmp_path, end):
    (tmp_path / "t.csv").write_bytes(end.join(["x,kind", "1,a", "2,b", ""]).encode())
    assert open_file(tmp_path / "t.csv", BadRows(skip=True)).read(["kind"])["kind"].to_pylist() == ["a", "b"]


def test_a_header_whose_quote_is_not_closed(tmp_path):
    (tmp_path / "t.csv").write_text('x,"kind\n' + "1,a\n" * 100_000)
    with pytest.raises(InputError, match=r"t\.csv: the header .* close its quotes"):
        open_file(tmp_path / "t.csv", BadRows(skip=True))


def test_texts_of_several_row_groups_are_read_as_they_are(tmp_path):
    """Short and long ones, repeated and not, missing ones, in lists, with and without Arrow's own types in the file."""
    text = pa.array([f"{i % 11}" * 3 if i % 3 else None for i in range(500)] + [f"{i}" * 90 for i in range(500)])
    ends = pa.array(range(0, 1001, 2), pa.int32())
    columns = {
        **{"a.b": text, "large": text.cast(pa.large_string()), "view": text.cast(pa.string_view())},
        **{"packed": text.dictionary_encode(), "two": pa.FixedSizeListArray.from_arrays(text, 2)},
        **{"lists": pa.ListArray.from_arrays(ends, text)},
        "packed_lists": pa.ListArray.from_arrays(ends, text.dictionary_encode()),
    }
    table = pa.table({name: pa.chunked_array([column])[:500] for name, column in columns.items()})
    for how in ({}, {"store_schema": False}, {"use_dictionary": False}, {"data_page_version": "2.0"}):
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=170, dictionary_pagesize_limit=4000, **how)
        file = open_file(tmp_path / "t.parquet", BadRows(skip=True))
        for name in columns:
            assert file.types[name] == (
                pa.list_(pa.string()) if name in ("lists", "two", "packed_lists") else pa.string()
            )
            assert file.read([name])[name].to_pylist() == table[name].to_pylist(), (name, how)


def test_the_first_rows_are_those_of_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BATCH_ROWS", 50)
    pq.write_table(
        pa.table({"x": range(100), "s": [f"{i}" for i in range(100)]}), tmp_path / "t.parquet", row_group_size=30
    )
    file = open_file(tmp_path / "t.parquet", BadRows(skip=True))
    assert file.head(["s", "x"]).to_pylist() == [{"s": f"{i}", "x": i} for i in range(50)]
    assert file.read(["x"])["x"].to_pylist() == list(range(100))
