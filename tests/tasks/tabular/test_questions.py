"""Columns that can be read in two ways are asked about, and the answers in the message are accepted."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from PIL import Image

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.inspect import inspect_table
from tests.tasks.own_tables import csv, parquet, table

ROWS = 60
RNG = np.random.default_rng(1)
PLAIN = {"x": RNG.normal(size=ROWS).tolist(), "count": RNG.integers(0, 50, ROWS).tolist(), "kind": ["a", "b", "c"] * 20}


def answers(message):
    """Return the answers of a message: lists of options, for the ones that say all that there is to say."""
    said = re.findall(r"(--task\.\w+) ('[^']*'|\S+)", message)
    return [{name.removeprefix("--task."): shlex.split(value.rstrip(",;)"))[0]} for name, value in said]


QUESTIONS = {
    "images beside numbers": (
        {"path": [f"{i}.png" for i in range(ROWS)]}, {}, "'path'", {"input_columns", "ignore_columns"}
    ),
    "a split": ({"part": ["Train", "test", "valid"] * 20}, {}, "'part'", {"split_column", "ignore_columns"}),
    "a fold": ({"fold": RNG.integers(0, 5, ROWS).tolist()}, {}, "'fold'", {"ignore_columns", "input_columns"}),
    "sites": ({"Hospital": [f"h{i % 4}" for i in range(ROWS)]}, {}, "'Hospital'", {"client_column", "ignore_columns"}),
    "numbers of patients": (
        {"patient_id": [i // 6 for i in range(ROWS)]}, {}, "'patient_id'", {"client_column", "ignore_columns"}
    ),
    "units": ({"unit": RNG.permutation(np.repeat(range(6), 10)).tolist()}, {}, "'unit'", {"client_column"}),
    "windows": ({"window": [i // 5 for i in range(ROWS)]}, {}, "'window'", {"ignore_columns", "input_columns"}),
    "steps": ({"step": [i % 5 for i in range(ROWS)]}, {}, "'step'", {"ignore_columns", "input_columns"}),
    "numbers of rows": ({"nr": RNG.permutation(ROWS).tolist()}, {}, "'nr'", {"ignore_columns", "input_columns"}),
    "times": ({"time": (np.arange(ROWS) * 7).tolist()}, {}, "'time'", {"ignore_columns", "input_columns"}),
    "a number of each client": (
        {"who": [f"p{i % 4}" for i in range(ROWS)], "badge": [(5, 2, 9, 4)[i % 4] for i in range(ROWS)]},
        {"client_column": "who"}, "'badge'", {"ignore_columns", "input_columns"},
    ),
    "labels left over": (
        {"sad": [0, 1] * 30, "calm": [0, 0, 1] * 20, "happy": [1, 1, 0] * 20},
        {"label_columns": "sad,calm"}, "happy", {"label_columns", "ignore_columns", "input_columns"},
    ),
    "labels of -1 and 1 left over": (
        {"sad": [-1, 1] * 30, "calm": [-1, -1, 1] * 20, "happy": [1, 1, -1] * 20},
        {"label_columns": "sad,calm"}, "happy", {"label_columns", "ignore_columns", "input_columns"},
    ),
    "sites as floats, as where one had been missing": (
        {"Hospital": RNG.permutation(np.repeat([1.0, 2.0, 3.0, 4.0], 15)).tolist()}, {}, "'Hospital'",
        {"client_column", "ignore_columns"},
    ),
    "a code of the class": ({"code": [0, 1, 2] * 20}, {}, "'code'", {"ignore_columns", "input_columns"}),
    "a code with a fraction": ({"code": [0.5, 1.5, 2.5] * 20}, {}, "'code'", {"ignore_columns", "input_columns"}),
    "a truth value for the class": (
        {"sick": [True, False] * 30, "state": ["ill", "well"] * 30}, {"label_columns": "state"},
        "'sick'", {"ignore_columns", "input_columns"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "options", "column", "offered"), QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_names_column_value_and_answers_that_work(tmp_path, more, options, column, offered):
    columns = PLAIN | more
    options = {"label_columns": "kind", **options}
    if options["label_columns"] != "kind":
        columns = {name: values for name, values in columns.items() if name != "kind"}
    path = parquet(tmp_path, columns)
    for picture in columns.get("path", ()):
        Image.new("L", (2, 2)).save(tmp_path / picture)
    with pytest.raises(InputError, match=re.escape(path)) as caught:
        table(path, **options)
    message = str(caught.value)
    assert column in message
    answered = answers(message)
    assert offered <= {name for answer in answered for name in answer}
    for answer in answered:
        assert table(path, **{**options, **answer})[1].num_rows == ROWS
    (stop,) = inspect_table(TaskOptions(file=path, **options)).stops
    assert stop in message, "data check asks the same"


def test_many_inputs_are_named_by_a_pattern(tmp_path):
    columns = (
        {f"f{i}": RNG.normal(size=ROWS).tolist() for i in range(20)} | PLAIN | {"step": [i % 5 for i in range(ROWS)]}
    )
    columns["id"] = list(range(ROWS))
    path = parquet(tmp_path, columns)
    with pytest.raises(InputError, match=r"--task\.input_columns '\*' --task\.ignore_columns id"):
        table(path)
    task, raw, options = table(path, input_columns="*", ignore_columns="id")
    assert task.fit(raw, options).columns.inputs == tuple(name for name in columns if name not in ("kind", "id"))


def test_two_questions_are_counted_and_answered_together(tmp_path):
    path = parquet(tmp_path, PLAIN | {"window": [i // 5 for i in range(ROWS)], "site": ["s", "t"] * 30})
    with pytest.raises(InputError, match="1 more question"):
        table(path)
    with pytest.raises(InputError, match=r"--task\.ignore_columns site,window"):
        table(path, ignore_columns="site")
    assert table(path, ignore_columns="window,site")[1].num_rows == ROWS
    assert table(path, input_columns="x,count")[1].num_rows == ROWS, "who names the inputs has answered"
    found = inspect_table(TaskOptions(file=path, label_columns="kind"))
    assert len(found.stops) == 2


def test_nothing_is_asked_about_plain_tables(tmp_path):
    """Names that are no split, repeated numbers in any order, two values in turn, gaps: ordinary features."""
    more = {
        "grade": [(i * 7) % 5 for i in range(ROWS)],
        "flag": [i % 2 for i in range(ROWS)],
        "late": [0] * 30 + [1] * 30,
        "gaps": [None if i == 3 else i for i in range(ROWS)],
        "same": [4] * ROWS,
        "id": list(range(ROWS)),
    }
    assert table(parquet(tmp_path, PLAIN | more))[1].num_rows == ROWS
    assert table(csv(tmp_path, "x,step,kind\n1.5,0,a\n1.0,1,b\n0.5,2,a\n0.25,3,b\n"))[1].num_rows == 4, (
        "too few rows to tell"
    )


def test_a_split_is_asked_about_even_where_the_inputs_are_named(tmp_path):
    path = parquet(tmp_path, PLAIN | {"part": ["train", "test", "train"] * 20})
    with pytest.raises(InputError, match=r"if it is the split, name it with --task\.split_column part"):
        table(path, input_columns="x,count")


def test_an_ignored_column_is_in_no_pattern_and_cannot_be_named(tmp_path):
    columns = {"x": PLAIN["x"], "label_a": [0, 1] * 30, "label_b": [1, 0, 0] * 20, "label_c": [1, 1, 0] * 20}
    path = parquet(tmp_path, columns)
    assert table(path, label_columns="label_*", ignore_columns="label_c")[0].class_names == ("a", "b")
    with pytest.raises(InputError, match="names column 'label_c', which is a label, client, split or left out"):
        table(path, label_columns="label_a,label_c", ignore_columns="label_c")
    with pytest.raises(InputError, match="ignore_columns: 'none' is no column"):
        table(path, label_columns="label_*", ignore_columns="none")
