"""Tests of the memory that reads use again."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from offload import Misuse
from offload.store.buffers import FREED, POOLED_SIZE_BYTES_MIN, BufferPool

MIB = 2**20


class Consumers(RuleBasedStateMachine):
    """Reads of any size, of which consumers keep parts in several forms, for any time."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(4 * MIB, is_checked=True)
        self.held: list[tuple[object, int]] = []
        self.next = 0

    @rule(size_bytes=st.integers(1, 3 * MIB), form=st.sampled_from(["view", "slice", "array", "none"]))
    def read(self, size_bytes: int, form: str) -> None:
        view = self.pool.take(size_bytes)
        assert len(view) == size_bytes
        self.next = (self.next + 1) % 251
        np.frombuffer(view, np.uint8)[:] = self.next  # type: ignore[index]
        keep = view.toreadonly()
        kept = {"view": keep, "slice": keep[size_bytes // 2 :], "array": np.frombuffer(keep, np.uint8)}
        if form in kept:
            self.held.append((kept[form], self.next))

    @rule(number=st.integers(0, 50), in_thread=st.booleans())
    def drop(self, number: int, in_thread: bool) -> None:
        if self.held:
            dropped = [self.held.pop(number % len(self.held))]
            if in_thread:
                thread = threading.Thread(target=dropped.clear)
                thread.start()
                thread.join()

    @invariant()
    def bytes_that_are_held_never_change(self) -> None:
        for kept, number in self.held:
            assert (np.frombuffer(kept, np.uint8) == number).all()  # type: ignore[call-overload]

    @invariant()
    def little_is_kept_for_later(self) -> None:
        assert self.pool.free_size_bytes <= 4 * MIB


TestConsumers = Consumers.TestCase


@pytest.mark.parametrize("size_bytes", [POOLED_SIZE_BYTES_MIN, MIB, 3 * MIB - 1])
def test_memory_is_used_again_when_its_last_view_is_gone(size_bytes: int) -> None:
    pool = BufferPool()
    first = pool.take(size_bytes)
    address = np.frombuffer(first, np.uint8).ctypes.data
    part = first[5:9]
    del first
    second = pool.take(size_bytes)
    assert np.frombuffer(second, np.uint8).ctypes.data != address, "a part is still held"
    del part
    third = pool.take(size_bytes - 7)
    assert np.frombuffer(third, np.uint8).ctypes.data == address


def address_of_dropped(pool: BufferPool) -> int:
    """Return the address of memory whose last view is gone."""
    return int(np.frombuffer(pool.take(MIB), np.uint8).ctypes.data)


def test_memory_that_is_read_after_its_last_view_shows_no_bytes_of_a_read() -> None:
    pool = BufferPool(is_checked=True)

    assert ctypes.string_at(address_of_dropped(pool), MIB) == bytes([FREED]) * MIB


@pytest.mark.parametrize("at", [0, MIB - 1])
def test_memory_that_is_written_after_its_last_view_is_an_error_of_the_next_read(at: int) -> None:
    pool = BufferPool(is_checked=True)
    ctypes.memset(address_of_dropped(pool) + at, FREED ^ 1, 1)

    with pytest.raises(Misuse, match="after its last view was gone"):
        pool.take(MIB)

    assert len(pool.take(MIB)) == MIB, "the memory is not used again"


def test_the_development_mode_of_python_looks_for_misuse_of_memory() -> None:
    """Not otherwise: it would take a pass over all that is read."""
    code = (
        "import ctypes, numpy; from offload.store.buffers import BufferPool; pool = BufferPool();"
        "ctypes.memset(numpy.frombuffer(pool.take(1), 'u1').ctypes.data, 7, 1); pool.take(1)"
    )

    ended = [
        subprocess.run([sys.executable, *mode, "-c", code], capture_output=True, text=True, check=False)
        for mode in ([], ["-X", "dev"])
    ]

    assert [each.returncode for each in ended] == [0, 1]
    assert "Misuse: memory of a read was written" in ended[1].stderr


def test_a_pool_that_is_cleared_keeps_no_memory() -> None:
    pool = BufferPool()
    held = pool.take(MIB)
    address_of_dropped(pool)

    pool.clear()

    assert pool.free_size_bytes == 0
    assert len(held) == MIB
