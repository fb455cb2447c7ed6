"""The protocol of secure aggregation: sums to the bit with any clients lost, and shares that say nothing alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm.secure_aggregation import (
    KEYS_BYTES,
    PRIME,
    SEALED_BYTES,
    SHARE_BYTES,
    Participant,
    agreed,
    digest,
    split,
    stream,
    threshold_of,
    unmasked,
)
from tests.pipeline.updates import QUICK, SEEDS

SECRET = b"known to the clients of one site"


def people(count, round_=1, secret=SECRET):
    """Participants with numbers that do not begin at 0, and their keys."""
    each = {3 * i + 1: Participant(3 * i + 1, round_, secret) for i in range(count)}
    return each, {client: one.public_keys for client, one in each.items()}


def values(count, size, seed=0):
    """Words of the whole range: what a client holds is not small."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**64, (count, size), dtype=np.uint64, endpoint=False)


def opened(each, keys, masked, answered):
    """What the server makes of a round in which only these clients answered."""
    sent = {client: one.shares(keys) for client, one in each.items()}
    revealed = {c: each[c].reveal(keys, {other: sent[other][c] for other in keys}, answered) for c in answered}
    total = np.sum([masked[c] for c in answered], axis=0, dtype=np.uint64)
    return unmasked(total, keys, answered, revealed)


@QUICK
@given(count=st.integers(2, 9), size=st.integers(0, 40), seed=SEEDS)
def test_the_sum_is_exact_whoever_is_lost(count, size, seed):
    each, keys = people(count)
    values_P = dict(zip(keys, values(count, size, seed), strict=True))
    masked = {client: one.masked(keys, values_P[client]) for client, one in each.items()}
    rng = np.random.default_rng(seed)
    answered = sorted(rng.choice(list(keys), rng.integers(threshold_of(count), count + 1), replace=False).tolist())
    expected_P = [sum(int(values_P[c][i]) for c in answered) % 2**64 for i in range(size)]
    assert opened(each, keys, masked, answered).tolist() == expected_P


def test_two_of_eight_clients_lost():
    each, keys = people(8)
    values_P = dict(zip(keys, values(8, 1000), strict=True))
    masked = {client: one.masked(keys, values_P[client]) for client, one in each.items()}
    for lost in itertools.combinations(keys, 2):
        answered = [client for client in keys if client not in lost]
        plain = np.sum([values_P[c] for c in answered], axis=0, dtype=np.uint64)
        assert (opened(each, keys, masked, answered) == plain).all()


def test_fewer_than_the_threshold_open_nothing():
    each, keys = people(5)
    masked = {client: one.masked(keys, np.zeros(4, np.uint64)) for client, one in each.items()}
    assert threshold_of(5) == 3
    with pytest.raises(ValueError, match="2 of 5 clients answered, fewer than 3"):
        opened(each, keys, masked, list(keys)[:2])
    with pytest.raises(ValueError, match="2 of 5 clients gave their shares, and 3 must"):
        unmasked(masked[1], keys, list(keys), {1: {}, 4: {}})


def test_what_is_sent_is_masked_by_the_written_formula():
    """x + PRG(b) + the masks of pairs, by their signs, from the keys alone."""
    each, keys = people(3)
    x = np.arange(5, dtype=np.uint64)
    got = {client: one.masked(keys, x) - x - stream(one._own_seed(keys), 5) for client, one in each.items()}
    purpose = b"mask" + digest(keys)
    pair = {(a, b): stream(agreed(each[a]._mask_key, keys[b][32:], purpose), 5) for a, b in [(1, 4), (1, 7), (4, 7)]}
    zero = np.zeros(5, np.uint64)
    assert (got[1] == pair[1, 4] + pair[1, 7]).all()
    assert (got[4] == pair[4, 7] - pair[1, 4]).all()
    assert (got[7] == zero - pair[1, 7] - pair[4, 7]).all()


def test_both_ends_of_a_pair_agree():
    each, keys = people(2)
    one, other = (agreed(each[a]._mask_key, keys[b][32:], b"mask") for a, b in [(1, 4), (4, 1)])
    assert one == other
    assert one != agreed(each[1]._mask_key, keys[4][32:], b"another purpose")


def test_the_stream_is_aes_in_counter_mode():
    key = bytes(range(32))
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    counted = b"".join(block.update(i.to_bytes(16, "big")) for i in range(3))
    assert stream(key, 5).astype("<u8").tobytes() == counted[:40]


@QUICK
@given(seed=SEEDS, count=st.integers(2, 12))
def test_shares_are_points_of_a_polynomial(seed, count):
    """Any threshold of them give the secret, by Lagrange's formula in Python's fractions modulo the prime; one fewer
    leave every secret possible."""
    rng = np.random.default_rng(seed)
    secret, threshold = rng.bytes(32), threshold_of(count)
    keys = {client: b"" for client in range(10, 10 + count)}
    shares = split(secret, keys, threshold, rng.bytes(32))
    points = {rank + 1: int.from_bytes(shares[client], "big") for rank, client in enumerate(sorted(keys))}
    chosen = rng.choice(list(points), threshold, replace=False).tolist()

    def at_zero(known):
        total = 0
        for x, y in known.items():
            factor = y
            for other in known:
                if other != x:
                    factor = factor * other * pow(other - x, PRIME - 2, PRIME)  # Fermat
            total += factor
        return total % PRIME

    assert at_zero({x: points[x] for x in chosen}) == int.from_bytes(secret, "big")
    fewer = {x: points[x] for x in chosen[1:]}
    others = {at_zero(fewer | {chosen[0]: guess}) for guess in range(20)}
    assert len(others) == 20, "every value of the missing share gives another secret"


def test_a_client_says_the_same_again():
    """A process that died is replaced by another one, which knows the secret and the round alone."""
    (one, keys), (again, _) = people(3), people(3)
    x = values(1, 6)[0]
    for client in keys:
        assert one[client].public_keys == again[client].public_keys
        assert (one[client].masked(keys, x) == again[client].masked(keys, x)).all()
        assert one[client].shares(keys) == again[client].shares(keys)


def test_with_one_client_fewer_nothing_is_the_same():
    """A server that asks a client once more, with the keys of fewer clients, gets values under other masks."""
    each, keys = people(4)
    fewer = {client: key for client, key in keys.items() if client != 10}
    x = np.zeros(6, np.uint64)
    for client in fewer:
        difference = each[client].masked(keys, x) - each[client].masked(fewer, x)
        alone = stream(agreed(each[client]._mask_key, keys[10][32:], b"mask" + digest(keys)), 6)
        assert not (difference == alone).any()
        assert not (difference == np.zeros(6, np.uint64) - alone).any()
    one, other = each[1].shares(keys), each[1].shares(fewer)
    assert not {one[client] for client in fewer} & set(other.values())


def test_rounds_clients_and_secrets_have_keys_of_their_own():
    seen = {
        Participant(client, round_, secret).public_keys[start : start + 32]
        for client in range(3)
        for round_ in range(3)
        for secret in (SECRET, b"x" * 32)
        for start in (0, 32)
    }
    assert len(seen) == 36


def test_a_message_of_shares_is_for_one_client():
    each, keys = people(3)
    sent = each[1].shares(keys)
    assert {len(message) for message in sent.values()} == {SEALED_BYTES}
    assert {len(one.public_keys) for one in each.values()} == {KEYS_BYTES}
    for other in (4, 7):
        all_of_them = {client: one.shares(keys)[other] for client, one in each.items()}
        answer = each[other].reveal(keys, all_of_them, [1, 4, 7])
        assert {len(share) for share in answer.values()} == {SHARE_BYTES}
    with pytest.raises(ValueError, match="client 1 sent no shares that client 7 can read"):
        each[7].reveal(keys, {1: sent[4], 4: b"", 7: b""}, [1, 4, 7])
    damaged = bytes([sent[7][0] ^ 1]) + sent[7][1:]
    with pytest.raises(ValueError, match="client 1 sent no shares that client 7 can read"):
        each[7].reveal(keys, {1: damaged, 4: b"", 7: b""}, [1, 4, 7])


def test_no_client_has_both_shares_given_away():
    each, keys = people(4)
    sent = {client: one.shares(keys) for client, one in each.items()}
    received = {other: sent[other][1] for other in keys}
    with_all, without_4 = (each[1].reveal(keys, received, answered) for answered in (list(keys), [1, 7, 10]))
    assert {client for client in keys if with_all[client] != without_4[client]} == {4}


def test_keys_that_are_not_the_own_are_refused():
    each, keys = people(3)
    for wrong in ({k: v for k, v in keys.items() if k != 1}, keys | {1: keys[4]}):
        with pytest.raises(ValueError, match="the round's keys are not those that client 1 sent"):
            each[1].shares(wrong)
        with pytest.raises(ValueError, match="the round's keys are not those that client 1 sent"):
            each[1].masked(wrong, values(1, 3)[0])


def test_a_false_share_is_found():
    """Of a lost client, by its public key; of a seed, where the numbers give none."""
    each, keys = people(4)
    sent = {client: one.shares(keys) for client, one in each.items()}
    answered = [1, 4, 7]
    revealed = {c: each[c].reveal(keys, {other: sent[other][c] for other in keys}, answered) for c in answered}
    total = np.zeros(3, np.uint64)
    unmasked(total, keys, answered, revealed)
    false = dict(revealed[4])
    false[10] = (int.from_bytes(false[10], "big") ^ 1).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(ValueError, match="one is false"):
        unmasked(total, keys, answered, revealed | {4: false})


def test_masked_values_look_like_noise():
    """Zeros under masks: every bit is set in half of the words, and two clients' words have nothing in common."""
    each, keys = people(3)
    sent = [one.masked(keys, np.zeros(20_000, np.uint64)) for one in each.values()]
    for words in sent:
        bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(0)
        assert abs(bits - 0.5).max() < 0.02
    assert not (sent[0] == sent[1]).any()
    assert abs(np.corrcoef(sent[0].astype(float), sent[1].astype(float))[0, 1]) < 0.03
