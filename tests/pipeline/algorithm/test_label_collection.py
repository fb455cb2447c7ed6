"""Label sets out of digests against counting on the rows themselves, and what the digests give away."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm import messages as tree
from anchorfl.pipeline.algorithm.label_collection import (
    DIGEST_BYTES,
    canonical,
    cooccurrence_counts,
    digests,
    label_digest,
    label_message,
    merge_label_sets,
    message_of,
    run_key,
)
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import ClientData
from tests.pipeline.one_class import parts

SEEDS = st.integers(0, 2**32)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
KEY = run_key(1)


def sparse(rows, y_NC, pad=0, known_NC=None):
    """Make a client's data out of lists of (feature, value)."""
    length = max([1, *(len(row) for row in rows)]) + pad
    x = np.zeros((len(rows), length, 2), dtype=np.float32)
    for at, row in enumerate(rows):
        if row:
            x[at, : len(row)] = row
    return made(x, y_NC, [len(row) for row in rows], known_NC)


def made(x, y_NC, lengths=None, known_NC=None):
    y = torch.from_numpy(np.asarray(y_NC, dtype=np.float32))
    known = torch.ones_like(y) if known_NC is None else torch.from_numpy(np.asarray(known_NC, dtype=np.float32))
    return ClientData(torch.from_numpy(x), y, known, known, None if lengths is None else torch.tensor(lengths))


def federation(seed, features=6, classes=5, rows=40):
    """Draw rows as sorted tuples of pairs, some of them equal (with labels of their own), and their labels."""
    rng = np.random.default_rng(seed)
    rows = [
        tuple((int(f) + 1, float(rng.integers(1, 3))) for f in np.flatnonzero(rng.random(features) < 0.4))
        for _ in range(rows)
    ]
    return rows, rng.random((len(rows), classes)) < 0.35


def clients(rows, y_NC, rng, pad=False):
    """Make one client per class: its rows in any order, the pairs of a row in any order, any padding."""
    for class_ in range(y_NC.shape[1]):
        own = rng.permutation(np.flatnonzero(y_NC[:, class_]))
        listed = [[rows[row][at] for at in rng.permutation(len(rows[row]))] for row in own]
        only = np.zeros((len(own), y_NC.shape[1]))
        only[:, class_] = 1
        yield sparse(listed, only, pad=int(rng.integers(4)) if pad else 0, known_NC=only)


def collected(rows, y_NC, seed=0, key=KEY, matching="hmac"):
    """Label sets, the clients answering in an order of the seed's."""
    rng = np.random.default_rng(seed)
    sent = [label_message(parts(data), matching, key) for data in clients(rows, y_NC, rng, pad=True)]
    order = rng.permutation(len(sent))
    return merge_label_sets([sent[at] for at in order], order.tolist(), y_NC.shape[1])


def unique_rows(rows, y_NC):
    """Y of the unique rows that have a label: what direct counting counts."""
    sets = {}
    for row, y_C in zip(rows, y_NC, strict=True):
        sets[row] = sets.get(row, np.zeros_like(y_C)) | y_C
    return np.array([y for y in sets.values() if y.any()], dtype=np.int64).reshape(-1, y_NC.shape[1])


@QUICK
@given(SEEDS)
def test_digests_and_direct_counting_give_the_same_cooccurrence(seed):
    rows, y_NC = federation(seed)
    direct = unique_rows(rows, y_NC)
    for matching, key in (("hmac", KEY), ("sha256", b"")):
        labels = collected(rows, y_NC, seed, key, matching)
        assert len(labels) == len(direct)
        assert sorted(labels.matrix().tolist()) == sorted((direct > 0).tolist())
        assert (cooccurrence_counts(labels).toarray() == direct.T @ direct).all()


@QUICK
@given(SEEDS)
def test_neither_clients_nor_rows_nor_padding_have_an_order(seed):
    rows, y_NC = federation(seed)
    one, other = collected(rows, y_NC, seed), collected(rows, y_NC, seed + 1)
    assert (one.class_P == other.class_P).all()
    assert (one.offset_N1 == other.offset_N1).all()


@QUICK
@given(SEEDS)
def test_another_key_gives_other_digests_and_the_same_counts(seed):
    rows, y_NC = federation(seed)
    data = sparse(rows, y_NC)
    assert not set(digests(data, "hmac", KEY)) & set(digests(data, "hmac", run_key(2)))
    assert not set(digests(data, "hmac", KEY)) & set(digests(data, "sha256"))
    same = (
        cooccurrence_counts(collected(rows, y_NC, key=KEY)),
        cooccurrence_counts(collected(rows, y_NC, key=run_key(2))),
    )
    assert (same[0].toarray() == same[1].toarray()).all()


def test_equal_instances_become_one_row_with_the_labels_of_all():
    twin, other = ((1, 1.0), (3, 2.0)), ((2, 1.0),)
    rows, y_NC = [twin, twin, other], np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]], bool)
    labels = collected(rows, y_NC)
    assert sorted(map(tuple, labels.lists().to_pylist())) == [(0, 1, 2), (2,)]
    by_rows = y_NC.astype(int).T @ y_NC.astype(int)  # counts the twins twice, and never as 0 with 1
    assert by_rows[2, 2] == 3
    assert by_rows[0, 1] == 0
    counted = cooccurrence_counts(labels)
    assert counted.dtype == np.int64
    assert counted.toarray().tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 2]]
    assert Labels.of_lists(labels.lists(), 3).counts().tolist() == [1, 1, 2]


def test_a_digest_that_is_sent_twice_counts_once():
    digest = np.full((1, DIGEST_BYTES), 7, np.uint8)
    sent = message_of(label_digest(1, key=KEY), digest)
    twice = type(sent)(sent.label, sent.digest_P.repeat(2, 1))
    for messages in ([sent, sent], [twice], [twice, sent]):
        labels = merge_label_sets(messages, [1] * len(messages), 3)
        assert labels.lists().to_pylist() == [[1]]
        assert cooccurrence_counts(labels).toarray().tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_pairs_have_no_order_also_where_a_feature_stands_twice():
    pairs = np.array([[[3, 1.0], [5, 2.0], [5, 1.0]], [[5, 1.0], [3, 1.0], [5, 2.0]], [[3, 1.0], [5, 1.0], [5, 2.0]]])
    rows = [made(pairs[[i]].astype(np.float32), np.ones((1, 1)), [3]) for i in range(3)]
    assert len({next(canonical(row)) for row in rows}) == 1


def test_rows_stand_in_the_order_of_the_digests():
    digest = np.zeros((4, DIGEST_BYTES), np.uint8)
    digest[:, 0], digest[:, -1] = [200, 3, 200, 3], [0, 1, 1, 0]  # ends that are zero must count, and bytes be unsigned
    sent = [message_of(label_digest(k, key=KEY), digest[[k]]) for k in range(4)]
    labels = merge_label_sets(sent, range(4), 4)
    assert labels.lists().to_pylist() == [[3], [1], [0], [2]]


def test_a_message_costs_32_bytes_per_instance_and_tells_no_order():
    rows = [((k + 1, 1.0),) for k in range(50)]
    data = sparse(rows, np.ones((50, 1)))
    sent = label_message(parts(data), "hmac", KEY)
    assert tree.nbytes(sent) == 50 * 32 + 32
    initial_messages = [bytes(row) for row in sent.digest_P.numpy()]
    assert initial_messages == sorted(digests(data, "hmac", KEY)) != digests(data, "hmac", KEY)


def test_only_known_positives_are_sent():
    rows = [((1, 1.0),), ((2, 1.0),), ((3, 1.0),)]
    y_NC, known_NC = [[1, 1], [0, 1], [0, 0]], [[0, 0], [0, 1], [1, 1]]
    sent = label_message(parts(sparse(rows, y_NC, known_NC=known_NC)), "hmac", KEY)
    expected = digests(sparse(rows, y_NC), "hmac", KEY)
    assert sent.label.numpy().tobytes() == label_digest(1, "hmac", KEY)
    assert [bytes(row) for row in sent.digest_P.numpy()] == expected[1:2]
    nothing = label_message(parts(sparse(rows, np.zeros((3, 2)))), "hmac", KEY)
    assert tree.nbytes(nothing) == 0
    assert len(merge_label_sets([nothing], [0], 2)) == len(merge_label_sets([], [], 2)) == 0
    assert cooccurrence_counts(merge_label_sets([nothing], [0], 2)).toarray().tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="from clients of one class, and this one has 2"):
        label_message(parts(sparse(rows, y_NC)), "hmac", KEY)


def test_labels_are_hashed_with_the_key_of_the_rows():
    """Without the key nobody can try the classes; plain digests of labels are looked up in a list of them."""
    every = {label_digest(c, "sha256"): c for c in range(1000)}
    assert every[label_digest(7, "sha256")] == 7
    assert label_digest(7, "hmac", KEY) not in every
    assert label_digest(7, "hmac", KEY) == label_digest(7, "hmac", KEY) != label_digest(7, "hmac", run_key(2))
    assert len({label_digest(c, "hmac", KEY) for c in range(1000)}) == 1000
    with pytest.raises(ValueError, match="the key of hmac has 0 bytes"):
        label_digest(7)


def test_labels_that_are_not_one_for_each_class_are_refused():
    digest = np.zeros((1, DIGEST_BYTES), np.uint8)
    one, other = (message_of(label_digest(1, key=run_key(k)), digest) for k in (1, 2))
    assert len(merge_label_sets([one, one], [1, 1], 3)) == 1
    with pytest.raises(ValueError, match="message 1: its label is that of class 1, and it has 2"):
        merge_label_sets([one, one], [1, 2], 3)
    with pytest.raises(ValueError, match="clients of one class sent different labels"):
        merge_label_sets([one, other], [1, 1], 3)


def test_the_bytes_of_an_instance_do_not_depend_on_its_padding():
    tokens = np.array([[5, 6, 0, 0], [5, 6, 7, 0], [6, 5, 0, 0]], np.int32)
    one = list(canonical(made(tokens, np.ones((3, 1)), [2, 3, 2])))
    assert one == list(canonical(made(tokens[:, :3], np.ones((3, 1)), [2, 3, 2])))
    assert len(set(one)) == 3
    pairs = [[(2, 1.0), (1, 3.0)], [(1, 3.0), (2, 1.0)], [(1, 3.0), (2, 1.0), (4, 0.0)], [(1, 1.0), (2, 3.0)], []]
    two = list(canonical(sparse(pairs, np.ones((5, 1)), pad=2)))
    assert two[0] == two[1] == two[2] != two[3]
    assert two == list(canonical(sparse(pairs, np.ones((5, 1)))))


def test_kinds_shapes_and_types_of_inputs_are_told_apart():
    zeros = [
        made(np.zeros((1, 4), np.int32), [[1]], [0]), made(np.zeros((1, 4, 2), np.float32), [[1]], [0]),
        made(np.zeros((1, 4, 2), np.float32), [[1]]), made(np.zeros((1, 2, 4), np.float32), [[1]]),
        made(np.zeros((1, 4, 2), np.float64), [[1]]),
    ]  # fmt: skip
    assert len({next(canonical(data)) for data in zeros}) == len(zeros)
    with pytest.raises(ValueError, match=r"must be tokens \[N, L\] or pairs"):
        canonical(made(np.zeros((1, 4), np.float32), [[1]], [4]))


def test_plain_digests_of_few_possible_inputs_are_guessed_and_keyed_ones_are_not():
    """Ten yes-or-no features: a server without a key looks every plain digest up in a table of 1024."""
    every = [[(f + 1, 1.0) for f, yes in enumerate(bits) if yes] for bits in itertools.product((0, 1), repeat=10)]
    table = dict(zip(digests(sparse(every, np.ones((1024, 1))), "sha256"), every, strict=True))
    secret = [every[k] for k in np.random.default_rng(0).integers(1024, size=100)]
    data = sparse(secret, np.ones((100, 1)))
    assert [table[digest] for digest in digests(data, "sha256")] == secret
    keyed = digests(data, "hmac", KEY)
    assert not table.keys() & set(keyed)
    guessed = digests(sparse(every, np.ones((1024, 1))), "hmac", b"the server's own guess of the key")
    assert not set(guessed) & set(keyed)
    with_key = dict(zip(digests(sparse(every, np.ones((1024, 1))), "hmac", KEY), every, strict=True))
    assert [with_key[digest] for digest in keyed] == secret  # so the key must stay with the clients


def test_keys():
    assert len(run_key(3)) == DIGEST_BYTES
    assert run_key(3) == run_key(3) != run_key(4)
    data = sparse([[(1, 1.0)]], [[1]])
    with pytest.raises(ValueError, match="the key of hmac has 3 bytes; give at least 16"):
        digests(data, "hmac", b"abc")
    with pytest.raises(ValueError, match="plain sha256 uses no key"):
        digests(data, "sha256", KEY)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: (s.label[:16], s.digest_P), r"message 1: a label of torch.uint8 \(16,\) does not fit 1 digests"),
        (lambda s: (s.label[:0], s.digest_P), r"message 1: a label of torch.uint8 \(0,\) does not fit 1 digests"),
        (lambda s: (s.label, s.digest_P[:0]), r"message 1: a label of torch.uint8 \(32,\) does not fit 0 digests"),
        (lambda s: (s.label.int(), s.digest_P), "message 1: a label of torch.int32"),
        (lambda s: (s.label, s.digest_P[:, :16]), r"message 1: digests are torch.uint8 \(1, 16\)"),
        (lambda s: (s.label, s.digest_P.int()), "message 1: digests are torch.int32"),
    ],
)
def test_a_message_that_does_not_fit_is_refused(change, why):
    sent = label_message(parts(sparse([[(1, 1.0)]], [[1, 0]])), "hmac", KEY)
    with pytest.raises(ValueError, match=why):
        merge_label_sets([sent, type(sent)(*change(sent))], [0, 0], 2)
