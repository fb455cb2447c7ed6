"""Messages in shared memory: what is written is read, where it grows too, until the memory is cleared."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.shared_memory import ALIGNMENT, GROWTH, SharedMemory


def pair():
    """Return the same memory as its writer and its reader have it."""
    writer = SharedMemory()
    return writer, SharedMemory(os.dup(writer.descriptor))


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=5)


@given(SIZES, st.integers(0, 2**32 - 1))
def test_messages_are_read_as_they_were_written_one_behind_the_other(sizes, seed):
    rng = torch.Generator().manual_seed(seed)
    sent = [{"w": torch.randn(n, generator=rng), "n": torch.arange(n), "s": torch.tensor(float(n))} for n in sizes]
    writer, reader = pair()
    placed = [writer.put(messages.pack(message)) for message in sent]
    got = [messages.unpack(reader.get(place)) for place in placed]
    assert [messages.checksum(m) for m in got] == [messages.checksum(m) for m in sent]
    assert all(start % ALIGNMENT == 0 for place in placed for start, _ in place.buffers.values())
    writer.close()
    reader.close()


def test_what_was_read_stays_where_it_is_while_the_memory_grows():
    writer, reader = pair()
    small, large = {"w": torch.ones(10)}, {"w": torch.full((3 * GROWTH // 4,), 2.0)}
    view = messages.unpack(reader.get(writer.put(messages.pack(small))), copy=False)
    bigger = messages.unpack(reader.get(writer.put(messages.pack(large))), copy=False)
    assert torch.equal(view["w"], small["w"])
    assert torch.equal(bigger["w"], large["w"])
    assert all(reader.holds(t["w"].data_ptr()) for t in (view, bigger))
    assert not reader.holds(large["w"].data_ptr())


def test_a_cleared_memory_is_written_from_the_beginning():
    writer, reader = pair()
    view = messages.unpack(reader.get(writer.put(messages.pack({"w": torch.ones(4)}))), copy=False)
    size = os.fstat(writer.descriptor).st_size
    writer.clear()
    writer.put(messages.pack({"w": torch.zeros(4)}))
    assert torch.equal(view["w"], torch.zeros(4))
    assert os.fstat(writer.descriptor).st_size == size == GROWTH


@pytest.mark.parametrize("empty", [{}, {"w": torch.zeros(0)}])
def test_a_message_without_a_value_takes_no_memory(empty):
    writer, reader = pair()
    got = messages.unpack(reader.get(writer.put(messages.pack(empty))))
    assert messages.checksum(got) == messages.checksum(empty)
    assert os.fstat(writer.descriptor).st_size == 0
