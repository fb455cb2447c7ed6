"""Messages as trees of tensors: walk, count, checksum, check, pack and unpack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm import messages

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
TYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


@dataclass(frozen=True)
class Inner:
    table: object
    flag: object


@dataclass(frozen=True)
class Outer:
    weights: object
    inner: object


def example():
    return Outer(
        {"b.weight": torch.ones(2, 3), "a.bias": torch.zeros(3)}, Inner({"x": torch.tensor(7)}, torch.tensor([True]))
    )


def bits(t):
    return t.detach().contiguous().numpy().tobytes()


@st.composite
def leaves(draw):
    """Draw a tensor of any type and shape, empty and scalar included, of random bits (NaNs too)."""
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 999))).integers(256, size=max(size, 1), dtype=np.uint8)
    raw = raw % 2 if dtype == torch.bool else raw
    return torch.from_numpy(raw)[:size].clone().view(dtype).view(shape)


NAMES = st.text("abc._0", min_size=1, max_size=4)
MESSAGES = st.recursive(
    leaves(),
    lambda m: st.dictionaries(NAMES, m, max_size=3) | st.builds(Outer, m, m) | st.builds(Inner, m, m),
    max_leaves=8,
)


def test_the_walk_follows_declaration_and_insertion():
    got = [path for path, _ in messages.tensors(example())]
    assert got == ["weights/b.weight", "weights/a.bias", "inner/table/x", "inner/flag"]
    assert [path for path, _ in messages.tensors(torch.ones(1))] == [""]
    assert list(messages.tensors({})) == []


def test_bytes_are_elements_times_their_size():
    assert messages.nbytes(example()) == 6 * 4 + 3 * 4 + 8 + 1
    assert messages.nbytes({"e": torch.empty(0, 5)}) == 0


@pytest.mark.parametrize("field", [3, "text", None, [torch.ones(1)], np.ones(2)])
@pytest.mark.parametrize("use", [messages.nbytes, messages.checksum, messages.pack, lambda m: messages.to(m, "cpu")])
def test_what_is_no_tensor_is_a_type_error_that_names_it(use, field):
    with pytest.raises(
        TypeError, match=f"message field 'inner/bad' is a {type(field).__name__}; messages hold tensors only"
    ):
        use(Outer({"a": torch.ones(1)}, {"bad": field}))


def test_tensors_of_a_type_move_to_another_device_as_one():
    moved = messages.to(example(), "meta")
    alike = [t for _, t in messages.tensors(moved) if t.dtype == torch.float32]
    assert [(p, t.shape, t.dtype) for p, t in messages.tensors(moved)] == [
        (p, t.shape, t.dtype) for p, t in messages.tensors(example())
    ]
    assert len(alike) > 1
    assert all(t.untyped_storage()._cdata == alike[0].untyped_storage()._cdata for t in alike)


def test_rebuild_and_to_keep_the_shape_of_the_tree():
    doubled = messages.rebuild(example(), lambda path, t: t if path == "inner/flag" else 2 * t)
    assert isinstance(doubled.inner, Inner)
    assert torch.equal(doubled.weights["b.weight"], torch.full((2, 3), 2.0))
    assert torch.equal(doubled.inner.flag, torch.tensor([True]))
    assert messages.checksum(messages.to(example(), "cpu")) == messages.checksum(example())


@QUICK
@given(MESSAGES, st.data())
def test_one_bit_changes_the_checksum(message, data):
    paths = [path for path, t in messages.tensors(message) if t.numel() and t.dtype != torch.bool]
    copy = messages.rebuild(message, lambda _, t: t.clone())
    assert messages.checksum(copy) == messages.checksum(message)
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    flat = dict(messages.tensors(copy))[path].reshape(-1).view(torch.uint8)
    place = data.draw(st.integers(0, len(flat) - 1))
    flat[place] ^= 1 << data.draw(st.integers(0, 7))
    assert messages.checksum(copy) != messages.checksum(message)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(3, 2)},  # shape
        {"a": torch.zeros(6)},
        {"a": torch.zeros(2, 3, dtype=torch.int32)},  # type, with equal bytes
        {"b": torch.zeros(2, 3)},  # path
        {"a": torch.zeros(2, 3), "e": torch.empty(0)},  # one more, without bytes
        {"a": -torch.zeros(2, 3)},  # the sign of zero
        {},
    ],
)
def test_the_checksum_sees_shape_type_path_and_sign(other):
    assert messages.checksum(other) != messages.checksum({"a": torch.zeros(2, 3)})


def test_the_checksum_knows_values_not_their_layout_or_order():
    a, b = torch.randn(2, 3), torch.randn(4)
    assert messages.checksum({"a": a, "b": b}) == messages.checksum({"b": b, "a": a})
    strided = a.T.contiguous().T
    assert messages.checksum({"a": strided}) == messages.checksum({"a": a})
    assert messages.checksum({"a": torch.nn.Parameter(a)}) == messages.checksum({"a": a})


def test_fill_puts_every_tensor_in_its_place():
    values = {path: t.clone() + 1 if t.dtype != torch.bool else ~t for path, t in messages.tensors(example())}
    filled = messages.fill(example(), values)
    assert dict(messages.tensors(filled)) == values
    assert isinstance(filled.inner, Inner)


def test_fill_names_what_is_missing_and_what_is_not_expected():
    with pytest.raises(ValueError, match=r"missing \['b'\], not expected \['c'\]"):
        messages.fill({"a": torch.ones(1), "b": torch.ones(1)}, {"a": torch.ones(1), "c": torch.ones(1)})


def test_fill_refuses_another_shape():
    with pytest.raises(ValueError, match="'a'"):
        messages.fill({"a": torch.ones(3)}, {"a": torch.ones(2, 2)})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"b": None}, "tensor 'b' is missing"),
        ({"c": torch.ones(1)}, "tensor 'c' is not expected"),
        ({"a": torch.ones(3, 2)}, "tensor 'a' is torch.float32 (3, 2), expected torch.float32 (2, 3)"),
        ({"a": torch.ones(2, 3).double()}, "tensor 'a' is torch.float64 (2, 3), expected torch.float32 (2, 3)"),
        ({"a": torch.tensor([[0, np.nan, 0], [0, 0, np.nan]])}, "tensor 'a' holds 2 non-finite values"),
        ({"a": torch.tensor([[0, np.inf, 0], [0, 0, 0]])}, "tensor 'a' holds 1 non-finite values"),
        ({"a": torch.tensor([[0, -np.inf, 0], [0, 0, 0]])}, "tensor 'a' holds 1 non-finite values"),
        ({"a": None, "b": None}, "the update is empty"),
    ],
)
def test_what_is_wrong_is_said(change, text):
    template = {"a": torch.ones(2, 3), "b": torch.tensor(4)}
    message = {k: v.float() if k == "a" and v.dtype == torch.float64 and "float64" not in text else v
               for k, v in (template | change).items() if v is not None}  # fmt: skip
    assert (messages.shape_mismatch(message, template) or messages.not_finite(message)) == text


def test_nothing_is_wrong_with_a_sound_update():
    for message in (example(), {"e": torch.empty(0, 3)}, {}):  # FedProto sends no weights
        assert messages.shape_mismatch(message, message) == messages.not_finite(message) == ""


def test_a_sum_that_overflows_is_finite_and_complex_numbers_are_looked_at():
    assert messages.not_finite({"a": torch.full((4,), 3e38), "b": torch.ones(2, dtype=torch.complex64)}) == ""
    assert "'c' holds 1 non-finite" in messages.not_finite({"c": torch.tensor([1, complex(0, np.inf)])})
    assert "'h' holds 1 non-finite" in messages.not_finite({"h": torch.tensor([1, np.nan], dtype=torch.bfloat16)})


@QUICK
@given(MESSAGES)
def test_pack_and_unpack_give_the_message_back_bit_for_bit(message):
    packed = messages.pack(message)
    back = messages.unpack(packed)
    assert type(back) is type(message)
    assert [p for p, _ in messages.tensors(back)] == [p for p, _ in messages.tensors(message)]
    for (path, got), (_, want) in zip(messages.tensors(back), messages.tensors(message), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        assert bits(got) == bits(want), path
    assert sum(b.nbytes for b in packed.buffers.values()) == messages.nbytes(message)
    assert len(packed.buffers) == len({t.dtype for _, t in messages.tensors(message)})


@QUICK
@given(MESSAGES)
def test_an_unpacked_tensor_has_storage_of_its_own(message):
    """Writing into it changes neither the packed buffers, nor a second unpack, nor what was packed."""
    before = {path: bits(t) for path, t in messages.tensors(message)}
    packed = messages.pack(message)
    for buffer in packed.buffers.values():
        buffer.flags.writeable = False  # as Ray's object store gives them
    first = messages.unpack(packed)
    for _, t in messages.tensors(first):
        t.fill_(1)
    assert {path: bits(t) for path, t in messages.tensors(messages.unpack(packed))} == before
    assert {path: bits(t) for path, t in messages.tensors(message)} == before


@pytest.mark.parametrize("message", [{"a": torch.ones(4)}, torch.ones(4)])
def test_packing_copies_even_a_single_tensor(message):
    packed = messages.pack(message)
    for _, t in messages.tensors(message):
        t.zero_()
    assert packed.buffers["float32"].tolist() == [1, 1, 1, 1]


def test_writing_into_one_unpacked_tensor_leaves_its_neighbours():
    back = messages.unpack(messages.pack({"a": torch.zeros(2), "b": torch.zeros(3)}))
    back["a"].fill_(5)
    assert back["b"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_the_checksum_of_a_message_survives_the_wire_though_a_type_has_no_elements(dtype):
    message = {"score_C": torch.empty(0, dtype=dtype), "flag": torch.tensor(True)}
    assert messages.checksum(messages.unpack(messages.pack(message))) == messages.checksum(message)


def test_without_a_copy_what_lies_in_one_storage_is_packed_where_it_lies():
    flat = torch.arange(10.0)
    message = {"a": flat[2:5], "b": flat[5:9].view(2, 2), "n": torch.tensor([1, 2])}
    packed = messages.pack(message, copy=False)
    assert packed.buffers["float32"].ctypes.data == flat[2:].data_ptr()
    assert packed.buffers["float32"].tolist() == flat[2:9].tolist()
    assert messages.checksum(messages.unpack(packed)) == messages.checksum(message)


@pytest.mark.parametrize(
    "parts",
    [
        (slice(0, 3), slice(4, 6)),  # a hole between them
        (slice(3, 6), slice(0, 3)),  # in another order
        (slice(0, 3), slice(2, 6)),  # over each other
        (slice(0, 6, 2), slice(6, 8)),  # not one behind the other
    ],
)
def test_what_does_not_lie_one_behind_the_other_is_not_joined(parts):
    flat = torch.arange(10.0)
    tensors = [flat[part] for part in parts]
    assert messages.joined(tensors) is None
    assert messages.joined([flat[:3], torch.arange(3.0)]) is None
    assert messages.joined([flat[:3], torch.arange(10.0)[3:]]) is None, "it would be next, in another storage"
    assert messages.joined([flat[:3], torch.arange(10)[3:]]) is None
    assert messages.joined([flat[:3], flat.view(torch.int32)[3:]]) is None, "of another type, in the same storage"
    assert messages.unpack(messages.pack(dict(enumerate(tensors)), copy=False))[0].tolist() == tensors[0].tolist()


def test_a_value_that_is_not_finite_is_named_in_joined_tensors_too():
    flat = torch.zeros(6)
    message = {"a": flat[:3], "b": flat[3:]}
    assert messages.not_finite(message) == ""
    flat[4] = torch.nan
    assert messages.not_finite(message) == "tensor 'b' holds 1 non-finite values"
    huge = torch.full((6,), 3e38)
    assert messages.not_finite({"a": huge[:3], "b": huge[3:]}) == ""
