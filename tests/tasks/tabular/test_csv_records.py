"""CSV files with quoted fields of many lines: numbers of records, blocks of any size, and what is damaged."""

from __future__ import annotations

import gzip

import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.text.csv_records import read_blocks

HEADER = '"ID","KIND","TEXT"\n'
LINES = [f'{n},"a","line one of {n}\nwith ""quotes"", commas,\n\n"\n' for n in range(2, 60)]


def read(path, text, block=1 << 20, skip=False):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    bad = BadRows(skip)
    rows = [
        (number, row["ID"], row["TEXT"])
        for part in read_blocks(path, ("ID", "TEXT"), bad, block)
        for number, row in zip(part.number_N.tolist(), part.columns.to_pylist(), strict=True)
    ]
    return rows, bad


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("block", [100, 333, 1 << 20])
def test_records_that_run_over_a_block_are_whole(tmp_path, name, block):
    rows, _ = read(tmp_path / name, HEADER + "".join(LINES), block)
    assert rows == [(n, str(n), f'line one of {n}\nwith "quotes", commas,\n\n') for n in range(2, 60)]


@pytest.mark.parametrize("block", [100, 333, 1 << 20])
def test_records_keep_their_numbers_beside_broken_ones(tmp_path, block):
    text = HEADER + "".join('7,"a"\n' if n % 5 == 0 else line for n, line in enumerate(LINES, 2))
    with pytest.raises(InputError, match=r"a\.csv: record 5: 2 fields, the header has 3; look for a quote"):
        read(tmp_path / "a.csv", text, block)
    rows, bad = read(tmp_path / "a.csv", text, block, skip=True)
    assert [(number, int(id_)) for number, id_, _ in rows] == [(n, n) for n in range(2, 60) if n % 5]
    assert bad.count == 11
    assert [line.split(": ")[1] for line in bad.listed] == [f"record {n}" for n in range(5, 60, 5)]


def test_what_is_damaged_is_named(tmp_path):
    path, text = tmp_path / "a.csv", HEADER + "".join(LINES)
    for end in (text[:-2], text[:-30], text.removesuffix('"\n')):
        with pytest.raises(InputError, match=r"a\.csv: the file ends within a quoted field: it is cut short, or a quo"):
            read(path, end, skip=True)
    with pytest.raises(InputError, match=r"a\.csv: a record is longer than 20 bytes: a quote is not closed"):
        read(path, text, 20)
    with pytest.raises(
        InputError, match=r"a\.csv:1: no column TEXT \(did you mean 'TEST'\?\) in the header, it has ID"
    ):
        read(path, text.replace("TEXT", "TEST"))
    with pytest.raises(InputError, match=r"a\.csv:1: no column ID in the header, it has nothing"):
        read(path, "")
    path.write_bytes(text.encode().replace(b"of 9", b"\xff"))
    with pytest.raises(InputError, match=r"a\.csv:30: bytes that are no UTF-8; convert") as caught:
        list(read_blocks(path, ("ID", "TEXT"), BadRows(skip=True)))
    assert "line" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_broken_record_with_a_lost_quote_is_no_cut_file(tmp_path):
    """The quote that is missing is told of once, with the record."""
    text = HEADER + "".join(LINES).replace('\n\n"\n', "\n\n\n", 1)
    rows, bad = read(tmp_path / "a.csv", text, skip=True)
    assert [number for number, _, _ in rows] == list(range(3, 59))
    assert [id_ for _, id_, _ in rows] == [str(n) for n in range(4, 60)]
    assert bad.count == 1
