"""Verifying a bucket: everything that can be compared, of every attempt, in bounded memory.

Of each attempt: both objects and their sizes, the versions in their metadata, the index with all of its
invariants, the header of every block, the header of every entry, padding, the number of entries and the sum
of their sizes. A damaged block is reported, and the next block is read, because the index says where it is.

Pulsar's format has no checksums. But an entry that a producer of today sent has one of its own, from the
client: these are compared too. An entry without one can have other bytes than the producer sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from offload.contracts.store import Buffer, ObjectStore, Span
from offload.ground.errors import Corrupt, NotFound, NotOffloaded
from offload_pulsar.blocks import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE_BYTES,
    HEADER_SIZE_BYTES,
    BlockHeader,
    FoundEntries,
    padding,
    walk,
)
from offload_pulsar.bucket import FoundAttempt, PulsarBucket
from offload_pulsar.index import LedgerGroup, PulsarIndex
from offload_pulsar.messages import is_checked

__all__ = ["BucketReport", "verify_bucket"]


WINDOW_SIZE_BYTES: Final = 8 * 2**20
ENTRY_SIZE_BYTES_MAX: Final = 256 * 2**20
"""The largest entry that is read. Brokers take entries of 5 MiB by default."""

DAMAGES_MAX: Final = 16
"""After so many damaged blocks of one attempt, its other blocks are not read."""

STRANGERS_MAX: Final = 20
"""So many objects of strangers are named. The others are counted."""


@dataclass(slots=True, kw_only=True)
class BucketReport:
    """What a verify found so far."""

    keeps_metadata: bool
    """False if the store keeps no metadata, so that no version and no name could be compared."""

    total_size_bytes: int = 0
    """The size of all objects, from the listing."""

    what: str = ""
    """The key of the data object that is being read."""

    attempts: int = 0
    """Attempts with both objects."""

    ledgers: int = 0
    entries: int = 0
    checked_entries: int = 0
    """Entries whose own checksum is right."""

    size_bytes: int = 0
    """The bytes that were looked at."""

    gone: int = 0
    """Attempts that were deleted while they were read."""

    partial: list[str] = field(default_factory=list)
    """The ledgers of which an object of V2 has no beginning, and the objects. They are sound."""

    damages: list[Corrupt] = field(default_factory=list)
    garbage: list[FoundAttempt] = field(default_factory=list)
    """Data without index: an upload that failed, or that is running."""

    strangers: list[str] = field(default_factory=list)
    """The first `STRANGERS_MAX` names of other objects."""

    stranger_count: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "attempts": self.attempts,
            "ledgers": self.ledgers,
            "entries": self.entries,
            "bytes": self.size_bytes,
            "entries_with_checksum": self.checked_entries,
            "entries_without_checksum": self.entries - self.checked_entries,
            "versions_checked": self.keeps_metadata,
            "deleted_meanwhile": self.gone,
            "without_beginning": self.partial,
            "damages": [
                {
                    "object": each.where,
                    "byte": each.position,
                    "what": each.what,
                    "expected": str(each.expected),
                    "found": str(each.found),
                }
                for each in self.damages
            ],
            "garbage": [{"object": each.name, "bytes": each.data_size_bytes} for each in self.garbage],
            "strangers": self.stranger_count,
        }


async def verify_bucket(
    store: ObjectStore, report: BucketReport, progress: Callable[[BucketReport], None] = lambda report: None
) -> None:
    """Verify every attempt in `store`, and add to `report` what is found.

    Damage is never raised. Raises `TryAgain` and `Denied` as the store does: the report then has what was
    seen until then.
    """
    async for row in store.list(""):
        report.total_size_bytes += row.size_bytes
    bucket = PulsarBucket(store)
    async with aclosing(bucket.scan()) as attempts:
        async for found in attempts:
            if found.key is None:
                report.stranger_count += 1
                if len(report.strangers) < STRANGERS_MAX:
                    report.strangers.append(found.name)
            elif found.index_size_bytes is None:
                report.garbage.append(found)
            else:
                await _Attempt(store, bucket, found, report, progress).verify()
            # `verify` counts the data itself, as it reads it.
            report.size_bytes += (found.data_size_bytes or 0) if found.index_size_bytes is None else 0
            report.size_bytes += found.index_size_bytes or 0
            progress(report)


class _Attempt:
    """The verify of one attempt."""

    def __init__(
        self,
        store: ObjectStore,
        bucket: PulsarBucket,
        found: FoundAttempt,
        report: BucketReport,
        progress: Callable[[BucketReport], None],
    ) -> None:
        assert found.key is not None
        self._store, self._bucket, self._found, self._report = store, bucket, found, report
        self._key, self._progress, self._damaged = found.key, progress, 0
        self._where = str(found.key)

    async def verify(self) -> None:
        report, found = self._report, self._found
        report.what = self._where
        try:
            if found.data_size_bytes is None:
                raise Corrupt("data object", self._where, expected="present", found="absent")
            index = await self._bucket.index(self._key)
            self._count(index)
            if index.data_size_bytes != found.data_size_bytes:
                raise self._wrong_size(index, found.data_size_bytes)
        except NotOffloaded:  # listed, and deleted since
            report.gone += 1
            return
        except Corrupt as damage:
            self._add(damage)
            return
        before = report.size_bytes
        try:
            for group in index.groups:
                await self._group(group, is_v2=index.version == 2)
        except NotFound:
            report.gone += 1
        # What was left out is behind us, too.
        report.size_bytes = before + found.data_size_bytes

    def _count(self, index: PulsarIndex) -> None:
        self._report.attempts += 1
        self._report.ledgers += len(index.groups)

    def _wrong_size(self, index: PulsarIndex, found: int) -> Corrupt:
        size = index.data_size_bytes
        return Corrupt(
            "size of the data object", self._where, expected=size, found=found, position=min(size, found)
        )

    def _add(self, damage: Corrupt) -> None:
        self._damaged += 1
        self._report.damages.append(damage)

    async def _group(self, group: LedgerGroup, *, is_v2: bool) -> None:
        """Verify the blocks of one ledger."""
        length, damaged = 0, self._damaged
        if group.first_entry:
            self._report.partial.append(
                f"{self._where} has ledger {group.ledger_id} from entry {group.first_entry} on"
            )
        for number in range(len(group.blocks)):
            if self._damaged >= DAMAGES_MAX:
                return
            try:
                length += await self._block(group, number, group.ledger_id if is_v2 else None)
            except Corrupt as damage:
                self._add(damage)
        stated = group.metadata.length
        # An object of V2 may have only a part of a ledger, whose stated length is that of the whole.
        is_whole = not is_v2 or group.first_entry == 0
        if self._damaged == damaged and is_whole and length != stated:
            self._add(Corrupt("length of the ledger", self._where, expected=stated, found=length))

    async def _block(self, group: LedgerGroup, number: int, ledger_id: int | None) -> int:
        """Verify one block, and return the sum of the sizes of its entries."""
        row, end = group.blocks[number], int(group.ends[number])
        offset, first = int(row["offset"]), int(row["first_entry_id"])
        behind = (
            int(group.blocks["first_entry_id"][number + 1])
            if number + 1 < len(group.blocks)
            else group.last_entry + 1
        )
        header = BlockHeader(block_size_bytes=end - offset, first_entry_id=first, ledger_id=ledger_id)
        reached = min(offset + WINDOW_SIZE_BYTES, end)
        data = await self._bytes(offset, reached, end)
        BlockHeader.decode(data, where=self._where, position=offset).check(
            header, where=self._where, position=offset
        )
        at, data, entry, length = offset + HEADER_SIZE_BYTES, memoryview(data)[HEADER_SIZE_BYTES:], first, 0
        while True:
            found = walk(data, first=entry, is_last_data=reached == end, where=self._where, position=at)
            length += self._entries(data, found, at)
            entry += len(found.starts)
            at, rest = at + found.used_bytes, memoryview(data)[found.used_bytes :]
            if found.is_over or reached == end:
                break
            self._refuse_large(rest, at, end)
            reached_before, reached = reached, min(reached + WINDOW_SIZE_BYTES, end)
            data = b"".join((rest, await self._bytes(reached_before, reached, end)))
        if entry != behind:
            raise Corrupt(
                "last entry of a block", self._where, expected=behind - 1, found=entry - 1, position=at
            )
        while reached < end:
            # `walk` has compared the padding up to here, and its bytes count from the first one.
            begin, reached = reached, min(reached + WINDOW_SIZE_BYTES, end)
            phase = (begin - at) % 4
            if await self._bytes(begin, reached, end) != padding(phase + reached - begin)[phase:]:
                raise Corrupt(
                    "padding of a block",
                    self._where,
                    expected="FE DC DE AD ...",
                    found="other bytes",
                    position=begin,
                )
        return length

    def _refuse_large(self, rest: memoryview, at: int, end: int) -> None:
        """Refuse an entry that cannot be one, before memory is taken for it."""
        if len(rest) < ENTRY_HEADER_SIZE_BYTES:
            return
        size = ENTRY_HEADER.unpack(rest)["size_bytes"]
        most = min(ENTRY_SIZE_BYTES_MAX, end - at - ENTRY_HEADER_SIZE_BYTES)
        if size > most:
            raise Corrupt(
                "size of an entry", self._where, expected=f"at most {most}", found=size, position=at
            )

    def _entries(self, data: Buffer, found: FoundEntries, at: int) -> int:
        """Compare the checksums that entries have, and return the sum of their sizes."""
        report, count = self._report, len(found.starts)
        report.entries += count
        if not count:
            return 0
        octets = np.frombuffer(data, np.uint8)
        starts = found.starts.astype(np.int64)
        # Most bytes need no step of Python: only entries that may have a checksum are looked at one by one.
        likely = (found.ends - found.starts >= np.uint64(6)).nonzero()[0]
        likely = likely[(octets[starts[likely]] == 0x0E) & (octets[starts[likely] + 1] <= 2)]
        view = memoryview(data)
        for number in likely.tolist():
            start, end = int(found.starts[number]), int(found.ends[number])
            try:
                report.checked_entries += is_checked(view[start:end], where=self._where, position=at + start)
            except Corrupt as damage:  # of this entry alone
                if self._damaged < DAMAGES_MAX:
                    self._add(damage)
        return int((found.ends - found.starts).sum())

    async def _bytes(self, begin: int, stop: int, end: int) -> Buffer:
        data = await self._store.get(self._where, Span(begin, stop - begin, follows=end - stop))
        if len(data) != stop - begin:
            found = begin + len(data)
            raise Corrupt("size of the data object", self._where, expected=end, found=found, position=found)
        self._report.size_bytes += len(data)
        self._progress(self._report)
        return data
