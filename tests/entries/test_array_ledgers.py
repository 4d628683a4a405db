"""Tests of ledgers made of arrays: runs are bounded, have every entry, and exactly the stated bytes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.entries.arrays import ArrayLedger
from offload.ground.errors import Corrupt

ENTRIES = [b"", b"a", b"bb" * 40, b"", b"c" * 7]


def ledger(entries: list[bytes], *, lacking: int = 0) -> ArrayLedger:
    """Return a ledger whose function returns so many bytes too few."""

    def gather(first: int, stop: int) -> bytes:
        data = b"".join(entries[first:stop])
        return data[: len(data) - lacking]

    sizes = np.array([len(entry) for entry in entries], np.uint64)
    times = np.arange(len(entries), dtype=np.int64)
    return ArrayLedger(gather, sizes=sizes, timestamps_ms=times, where="files")


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(1, 12), st.data())
def test_runs_of_any_bound_have_every_entry_once(
    entries: list[bytes], size_bytes: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(entries) - 1))
    last = data.draw(st.integers(first, len(entries) - 1))
    found, at = list[bytes](), first

    while at <= last:
        run = asyncio.run(ledger(entries).entries(at, last, size_bytes=size_bytes))
        rows = [bytes(run.data[a:b]) for a, b in zip(run.starts.tolist(), run.ends.tolist(), strict=True)]
        assert isinstance(run.timestamps_ms, np.ndarray)
        assert run.timestamps_ms.tolist() == [*range(at, at + len(rows))]
        assert sum(map(len, rows[:-1])) < size_bytes
        found, at = found + rows, at + len(rows)

    assert found == entries[first : last + 1]


def test_the_sizes_are_those_of_the_entries() -> None:
    found = asyncio.run(ledger(ENTRIES).sizes(1, 3))

    assert found.sizes.tolist() == [1, 80, 0]
    assert (ledger(ENTRIES).length, ledger([]).length, ledger([]).last_entry) == (88, 0, -1)


def test_a_run_of_another_size_is_damage() -> None:
    with pytest.raises(Corrupt, match="size of entries 1 to 2"):
        asyncio.run(ledger(ENTRIES, lacking=1).entries(1, 2, size_bytes=10**6))
