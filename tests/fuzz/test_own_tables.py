"""Tables of a user's own: Parquet, CSV, class names, paths of images; looked at, prepared and predicted on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tasks.tabular.inspect import inspect_table
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK, keep
from tests.tasks.own_tables import trees


def read(name, folder, made, **options):
    asked = TaskOptions(
        file=name, root=str(folder), cache=str(made), clients=2, partition="iid", validation=0.0, min_count=1,
        **{"label_columns": "kind", "image_size": 8, **options},
    )  # fmt: skip
    inspect_table(asked)
    prepare(task_of(asked), asked, 1, engine="local")


def parquet(folder):
    pq.write_table(pa.table(trees()), folder / "t.parquet")


def csv(folder):
    columns = {k: v for k, v in trees().items() if k != "steps"}
    columns["spectrum"] = [str(row) for row in columns["spectrum"]]
    pyarrow.csv.write_csv(pa.table(columns), folder / "t.csv")
    (folder / "names.txt").write_text("ash\tAsh\nbeech\tBeech\nelm\tElm\n")


def packed(folder):
    import gzip

    csv(folder)
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes(), mtime=0))


KINDS = ("png", "gif", "bmp", "tiff", "webp", "ppm", "jpg")


def images(folder):
    for number in range(28):
        picture = Image.new(("RGB", "L", "P", "RGBA")[number % 4], (9, 7), number)
        kind = KINDS[number % len(KINDS)]
        picture.convert("RGB" if kind in ("jpg", "ppm") else picture.mode).save(folder / f"{number}.{kind}")
    paths = [f"{number}.{KINDS[number % len(KINDS)]}" for number in range(28)]
    pq.write_table(pa.table({"path": paths, "kind": ["ab"[n % 2] for n in range(28)]}), folder / "t.parquet")


PARSERS = [
    Parser("own table, parquet", parquet, lambda f, m: read("t.parquet", f, m, input_columns="height,girth")),
    Parser("own table, parquet lists", parquet,
           lambda f, m: read("t.parquet", f, m, input_columns="steps", client_column="site")),
    Parser("own table, csv", csv, lambda f, m: read("t.csv", f, m, input_columns="spectrum", class_names="names.txt")),
    Parser("own table, csv skip", csv, lambda f, m: read("t.csv", f, m, on_bad_row="skip", ignore_columns="site"),
           ("t.csv",)),
    Parser("own table, csv.gz", packed, lambda f, m: read("t.csv.gz", f, m, input_columns="note"), ("*.gz",)),
    Parser("own table, images", images, lambda f, m: read("t.parquet", f, m, input_columns="path"),
           tuple(f"*.{kind}" for kind in KINDS)),
    Parser("own table, images skip", images,
           lambda f, m: read("t.parquet", f, m, input_columns="path", on_bad_row="skip"),
           tuple(f"*.{kind}" for kind in KINDS)),
]  # fmt: skip


@QUICK
@given(data=st.data())
def test_a_changed_table_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))


NUMBERS = st.one_of(st.none(), st.floats(width=32), st.integers(-(2**40), 2**40))
CELLS = {
    "float": (pa.float64(), st.one_of(st.none(), st.floats())),
    "half": (pa.float16(), st.none()),
    "int": (pa.int64(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))),
    "uint": (pa.uint64(), st.one_of(st.none(), st.integers(0, 2**64 - 1))),
    "bool": (pa.bool_(), st.one_of(st.none(), st.booleans())),
    "text": (pa.string(), st.one_of(st.none(), st.text(max_size=4), st.sampled_from(("a", "b", "train", "test")))),
    "large": (pa.large_string(), st.sampled_from((None, "a", "b", ""))),
    "coded": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from((None, "a", "b", ""))),
    "bytes": (pa.binary(), st.one_of(st.none(), st.binary(max_size=3))),
    "list": (pa.list_(pa.float64()), st.one_of(st.none(), st.lists(st.one_of(st.none(), st.floats()), max_size=3))),
    "ints": (pa.list_(pa.int32()), st.one_of(st.none(), st.lists(st.integers(-2, 3), max_size=3))),
    "words": (pa.list_(pa.string()), st.one_of(st.none(), st.lists(st.sampled_from(("a", "b", "", None)), max_size=3))),
    "series": (pa.list_(pa.list_(pa.float32())), st.sampled_from((None, [], [[]], [[1.0], [2.0]], [[None]], [None]))),
    "fixed": (pa.list_(pa.int8(), 2), st.sampled_from((None, [1, 2], [None, None]))),
    "struct": (pa.struct([("a", pa.int8())]), st.sampled_from((None, {"a": 1}))),
    "map": (pa.map_(pa.string(), pa.int8()), st.sampled_from((None, [("a", 1)]))),
    "time": (pa.timestamp("ns"), st.sampled_from((None, 0, 2**62))),
    "decimal": (pa.decimal128(5, 2), st.none()),
    "null": (pa.null(), st.none()),
    "big decimal": (pa.decimal256(70, 2), st.none()),
}  # fmt: skip
NAMES = ("a", "b", "c.d", "label_1", "label_2", "kind", "", "id", "é", "x" * 300, "a,b", "[a]", "*")


@st.composite
def any_table(draw):
    rows = draw(st.integers(0, 12))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    columns = []
    for _ in names:
        kind, cells = CELLS[draw(st.sampled_from(sorted(CELLS)))]
        columns.append(pa.array(draw(st.lists(cells, min_size=rows, max_size=rows)), kind))
    return pa.Table.from_arrays(columns, names=names)


@QUICK
@given(
    table=any_table(),
    labels=st.sampled_from((*NAMES, "label_*", "a,b", "?")),
    inputs=st.sampled_from(("", "", "a", "b", "*", "c.d")),
    client=st.sampled_from(("", "", "kind", "b")),
    split=st.sampled_from(("", "", "b", "kind")),
    skip=st.sampled_from(("error", "skip")),
)
def test_tables_of_any_types(tmp_path_factory, table, labels, inputs, client, split, skip):
    base = tmp_path_factory.getbasetemp() / "any-table"
    made = base / "made"
    made.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, base / "any.parquet")
    asked = {
        "label_columns": labels,
        "input_columns": inputs,
        "client_column": client,
        "split_column": split,
        "on_bad_row": skip,
    }
    keep("own table, any types", lambda: read("any.parquet", base, made, **asked), made)
