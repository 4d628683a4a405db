"""A ledger of a bucket to copy: its attempts compared, and the times at which its entries were published.

An entry has the time that its producer gave it. An entry that is no message of Pulsar has the time of its
ledger, as `PulsarLedger` says. Times never go beyond 64 bits.

Invariant: entries are returned only if all attempts have them alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.entries import EntryLedger, EntryRun
from offload.entries.chunks import read_run
from offload.formats.entries import encode_run
from offload.ground.errors import Corrupt, Diverged
from offload_pulsar.ledger import LedgerBlock, PulsarLedger
from offload_pulsar.publish_time import publish_ms

__all__ = ["BucketLedger", "differing_entries"]

TIME_MS_MAX: Final = 2**63 - 1

WHICH: Final = (
    ": `offload pulsar scan --metadata FILE` shows which attempt Pulsar's metadata names; delete the other"
)


class BucketLedger(EntryLedger):
    """One ledger, from one or more attempts on it. Reading raises `Diverged` if they differ.

    It raises `Corrupt` for an entry whose own checksum is wrong.
    """

    __slots__ = ("_first", "_on_damage", "_others", "_stream")

    is_sealed = True

    def __init__(
        self, attempts: Sequence[PulsarLedger], stream: str, *, on_damage: Callable[[], None]
    ) -> None:
        """There is at least one attempt. `on_damage` is called before `Corrupt` is raised."""
        self._stream = stream
        self._first, *self._others = attempts
        self._on_damage = on_damage

    @property
    def attempts(self) -> Sequence[PulsarLedger]:
        """The whole attempts."""
        return (self._first, *self._others)

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._first.ledger_id

    @property
    def last_entry(self) -> int:
        """The last entry."""
        return self._first.last_entry

    @property
    def length(self) -> int:
        """The sum of the sizes of all entries, as the index says."""
        return self._first.length

    @property
    def where(self) -> str:
        """The key of the data object of the first attempt."""
        return self._first.where

    @property
    def blocks(self) -> Sequence[LedgerBlock]:
        """The blocks of the first attempt."""
        return self._first.blocks

    @property
    def closed_ms(self) -> int | None:
        """The time when the ledger was closed, if it is known."""
        return self._first.closed_ms

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return entries in one buffer, with the time of each."""
        try:
            run = await self._first.entries(first, last, size_bytes=size_bytes)
            for other in self._others:
                await self._compare(run, other)
            assert isinstance(run.timestamps_ms, int), "a ledger has one time"
            return replace(run, timestamps_ms=await asyncio.to_thread(_times, run, self._first.where))
        except Corrupt:
            self._on_damage()
            raise

    async def _compare(self, run: EntryRun, other: PulsarLedger) -> None:
        """Raise `Diverged` unless another attempt has the same entries."""
        twice = f"offloaded twice, to {self._first.where} and to {other.where}"
        who = f"stream {self._stream!r}: ledger {self.ledger_id} was {twice}"
        if (other.last_entry, other.length) != (self.last_entry, self.length):
            raise Diverged(f"{who}, and one has other entries than the other{WHICH}")
        if (differing := await differing_entries(run, other)) is not None:
            first, last = differing
            raise Diverged(f"{who}, and entries {first} to {last} are not the same{WHICH}")

    async def aclose(self) -> None:
        """Forget what was read."""
        for each in self.attempts:
            await each.aclose()


async def differing_entries(run: EntryRun, other: PulsarLedger) -> tuple[int, int] | None:
    """Return the first and last of some entries in which a ledger differs from a run; None if it has it."""
    entry, stop, at = run.first, run.first + len(run.ends), 0
    while entry < stop:
        theirs = await read_run(other, entry, stop - 1, size_bytes=len(run.data), where=other.where)
        rows = slice(at, at + len(theirs.ends))
        ours = encode_run(run.data, run.starts[rows], run.ends[rows])
        if ours != encode_run(theirs.data, theirs.starts, theirs.ends):
            return entry, entry + len(theirs.ends) - 1
        entry, at = entry + len(theirs.ends), rows.stop
    return None


def _times(run: EntryRun, where: str) -> npt.NDArray[np.int64]:
    """Return the time of each entry."""
    data = memoryview(run.data)
    times = np.full(len(run.ends), run.timestamps_ms, np.int64)
    for row, (start, end) in enumerate(zip(run.starts.tolist(), run.ends.tolist(), strict=True)):
        found = publish_ms(data[start:end], where=f"{where}, entry {run.first + row}")
        if found is not None and found <= TIME_MS_MAX:
            times[row] = found
    return times
