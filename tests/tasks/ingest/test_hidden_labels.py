"""Labels that are hidden at random: which, how many, and what is left as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.disclosure import known_matrix
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_table import hide_labels
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan
from anchorfl.tasks.registry import find_task, task_of
from tests.tasks.federations import QUICK
from tests.tasks.own_tables import parquet

C = 5


def drawn(rng, kind, rows):
    """Draw a table whose raw data lack some labels, and a plan whose clients have about two thirds of its rows."""
    if kind == "single":
        known_NC = np.repeat(rng.random((rows, 1)) < 0.8, C, 1)
        y_NC = np.eye(C, dtype=bool)[rng.integers(C, size=rows)] & known_NC
    else:
        known_NC = rng.random((rows, C)) < 0.8
        y_NC = (rng.random((rows, C)) < 0.4) & known_NC
    labels, row_N = Labels.of_matrix(y_NC), rng.permutation(10 * rows)[:rows]
    table = pa.table({"row": row_N, "labels": labels.lists(), "known": Labels.of_matrix(known_NC).lists()})
    part_N = rng.integers(3, size=rows)
    clients = tuple(ClientPlan(np.sort(row_N[part_N == i]), tuple(range(C))) for i in (0, 1))
    nothing = row_N[:0]
    return table, labels, known_NC, PartitionPlan(clients, np.sort(row_N[part_N == 2]), nothing, ()), part_N < 2


@QUICK
@given(
    st.integers(0, 2**32), st.sampled_from(["single", "multi"]), st.integers(5, 60), st.sampled_from([0.1, 0.5, 0.9])
)
def test_hidden_is_what_was_known_of_training_rows(number, kind, rows, share):
    rng = np.random.default_rng(number)
    table, labels, known_NC, plan, training_N = drawn(rng, kind, rows)
    hidden, seen = hide_labels(table, labels, plan, kind, share, number)
    after_NC = known_matrix(hidden["known"], range(C), C)
    assert not (after_NC & ~known_NC).any()
    assert np.array_equal(after_NC[~training_N], known_NC[~training_N])
    assert np.array_equal(seen.matrix(), labels.matrix() & after_NC)
    assert hidden["labels"].to_pylist() == seen.lists().to_pylist()
    if kind == "single":
        assert np.isin(after_NC.sum(1), (0, C)).all()
    order = rng.permutation(rows)
    other, _ = hide_labels(table.take(order), labels.take(order), plan, kind, share, number)
    assert np.array_equal(known_matrix(other["known"], range(C), C), after_NC[order]), "the order of rows is nothing"


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_the_share_is_hidden_and_a_larger_one_hides_more(kind):
    table, labels, known_NC, plan, training_N = drawn(np.random.default_rng(3), kind, 4000)
    table = table.drop_columns(["known"]).append_column("known", pa.nulls(4000, pa.list_(pa.int32())))
    last_NC = np.ones((4000, C), dtype=bool)
    for share in (0.0, 0.2, 0.7):
        hidden, _ = hide_labels(table, labels, plan, kind, share, 1)
        known_NC = known_matrix(hidden["known"], range(C), C)
        assert (~known_NC[training_N]).mean() == pytest.approx(share, abs=0.03)
        assert not (known_NC & ~last_NC).any()
        last_NC = known_NC
    again, _ = hide_labels(table, labels, plan, kind, 0.7, 2)
    assert not np.array_equal(known_matrix(again["known"], range(C), C), last_NC)


@pytest.mark.parametrize(("name", "kind"), [("toy-single", "single"), ("toy-multi", "multi")])
def test_prepared_clients_know_less_and_everything_else_is_as_before(name, kind):
    task, objective = find_task(name), Objective(kind)
    options = TaskOptions(name=name, clients=3, partition="iid")
    plain = prepare(task, options, 4, engine="local")
    hidden = prepare(task, replace(options, hidden_labels=0.5), 4, engine="local")
    for split in ("validation", "test"):
        one, other = (data.split(split, objective) for data in (plain, hidden))
        assert np.array_equal(one.y_NC, other.y_NC)
        assert np.array_equal(one.known_NC, other.known_NC)
    for client in range(3):
        before, after = (data.client(client, objective) for data in (plain, hidden))
        assert np.array_equal(before.x, after.x)
        assert np.array_equal(after.y_NC, before.y_NC * after.known_NC)
        assert 0.3 < float(after.known_NC.mean()) < 0.7
        card = hidden.cards()[client]
        assert card.num_examples == len(before)
        assert bool(card.identified_C.all())
        assert np.array_equal(card.count_C, after.y_NC.sum(0))


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_a_table_whose_hidden_cells_are_empty_is_the_same(kind, tmp_path):
    """Own tables have missing labels as empty cells: every row has the same labels, and the same are not known."""
    rng, rows = np.random.default_rng(5), 300
    columns = {"x": rng.normal(size=rows), "split": rng.permutation(["train", "train", "test"] * (rows // 3)).tolist()}
    names = ["kind"] if kind == "single" else ["a", "b", "c"]
    columns |= {name: rng.integers(3 if kind == "single" else 2, size=rows).tolist() for name in names}
    base = TaskOptions(
        label_columns=",".join(names),
        input_columns="x",
        split_column="split",
        partition="iid",
        clients=3,
        validation=0.0,
    )

    def labels(columns, options):
        """Return (row, label, known) of every training row, by row."""
        options = replace(options, file=parquet(tmp_path, columns, f"{options.hidden_labels}.parquet"))
        made = prepare(task_of(options), options, 4, engine="local")
        parts = [made.client(client, Objective(kind)) for client in range(3)]
        row_N = np.concatenate([made.client_columns(client, ["row"])["row"].to_numpy() for client in range(3)])
        y_NC, known_NC = (np.concatenate([getattr(part, name) for part in parts]) for name in ("y_NC", "known_NC"))
        order = row_N.argsort()
        return row_N[order], y_NC[order], known_NC[order]

    row_N, y_NC, known_NC = labels(columns, replace(base, hidden_labels=0.5))
    assert 0.3 < known_NC.mean() < 0.7
    emptied = {name: list(values) for name, values in columns.items()}
    for c, name in enumerate(names):
        for row in row_N[known_NC[:, c] == 0]:
            emptied[name][row] = None
    again = labels(emptied, base)
    for one, other in zip((row_N, y_NC, known_NC), again, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"hidden_labels": 1.0}, r"hidden_labels = 1.0 must lie in \[0, 1\)"),
        ({"hidden_labels": -0.1}, r"hidden_labels = -0.1 must lie in \[0, 1\)"),
        ({"hidden_labels": 0.1, "partition": "one_class"}, r"hidden_labels = 0.1: a client of 'one_class' has"),
    ],
)
def test_what_cannot_be_hidden_is_refused(changed, refusal):
    with pytest.raises(InputError, match=refusal):
        prepare(find_task("toy-multi"), TaskOptions(name="toy-multi", **changed), 1, engine="local")
