"""Verifying a tier by its contract alone: open each fragment, and compare it with its entry.

For tiers that keep no objects of our layout. Such a tier may keep other data beside its named fragments; only
its own backend can judge that.

    level       checks
    manifest    entries cover the stream and add up to its totals; each fragment opens and fits its entry
    checksum    the same: a handle has no stored checksum, so each fragment counts as not compared
    bytes       also reads every chunk, and checks the chunk's own checksum

Invariants: nothing is changed; a missing fragment is damage only if the newest view names it; memory holds
one table and one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import check_chunks
from offload.ground.env import Env
from offload.ground.errors import Absent, Corrupt, Misuse, NotOffloaded, OffloadError, UnsupportedFormat
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry, entries_of_rows
from offload.parts.whole_stream import with_parts
from offload.read.reader import StreamReader
from offload.store.rate import Rate
from offload.upkeep.verify.report import VerifyLevel, VerifyReport

VERIFY_WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024


class EntryVerifier:
    """One run of a verify. It adds to `report`, whose `level` says which checks to make."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        report: VerifyReport,
        progress: Callable[[VerifyReport], None],
        bytes_per_second_max: float | None,
        env: Env,
    ) -> None:
        self._catalogue, self._report, self._progress = catalogue, report, progress
        self._rate = Rate(bytes_per_second_max, clock=env.monotonic, sleep=env.sleep)
        self._after = ""

    async def run(self, stream: str | None, after: str) -> None:
        """Verify all streams, or one with its parts. `after` is the name of a fragment, as in a report."""
        self._after = after
        if stream is None:
            streams = await self._catalogue.streams()
        else:
            streams = await with_parts(self._catalogue, [stream])
        for name in streams:
            try:
                view = await self._catalogue.view(name)
            except NotOffloaded:
                if name == stream and not streams[1:]:
                    raise
            except (Corrupt, UnsupportedFormat) as error:
                _add(self._report, error, name, name)
            else:
                await self._stream(view)
        if self._after:
            raise Misuse(f"{after!r} names no fragment that is there now: leave out --after")

    async def _stream(self, view: StreamView) -> None:
        committed, report = view.committed, self._report
        report.streams += 1
        report.stream, report.offsets = committed.stream, range(committed.first_offset, committed.next_offset)
        fragments, messages, reached = 0, 0, committed.first_offset
        try:
            async with aclosing(view.walk()) as runs:
                async for run in runs:
                    for row, entry in enumerate(entries_of_rows(run)):
                        _check(view.where, "offset", reached, entry.first_offset)
                        fragments, messages = fragments + 1, messages + entry.messages
                        report.reached, reached = entry.first_offset, entry.next_offset
                        await self._fragment(view, entry, view.name_of(run[row : row + 1]))
            report.reached = reached
            _check(view.where, "next offset", committed.next_offset, reached)
            if view.counts_messages:
                _check(view.where, "total of fragments", committed.fragments, fragments)
            _check(view.where, "total of messages", committed.messages, messages)
        except (Corrupt, UnsupportedFormat) as error:  # of the tree: the rest of the stream cannot be listed
            _add(report, error, view.where, committed.stream)

    async def _fragment(self, view: StreamView, entry: Entry, name: str) -> None:
        if self._after:
            self._after = "" if name == self._after else self._after
            return
        report, stream = self._report, view.committed.stream
        report.objects += 1
        report.not_compared += report.level is VerifyLevel.CHECKSUM
        try:
            async with await view.open(entry) as handle:
                await self._handle(handle, entry, view)
        except Absent as absent:
            if await self._is_damage(view, absent):
                report.damages.append(absent.within(name, stream=stream))
        except (Corrupt, UnsupportedFormat) as error:
            _add(report, error, name, stream)
        report.judged_to = name
        self._progress(report)

    async def _handle(self, handle: ReadHandle, entry: Entry, view: StreamView) -> None:
        table, counts = await handle.table(), view.counts_messages
        check_table(table, entry, is_measured=view.is_measured, counts=counts, where=handle.where)
        if self._report.level is not VerifyLevel.BYTES:
            return
        at = 0
        for rows in handle.windows(table, size_bytes=VERIFY_WINDOW_SIZE_BYTES):
            at += len(rows)
            size_bytes = int(rows["size_bytes"].sum())
            await self._rate.take(size_bytes)
            self._report.bytes += size_bytes
            data, position = await handle.read_on(rows, table[at:]), int(rows["position"][0])
            _check(handle.where, "size of chunks", size_bytes, len(data), position)
            await asyncio.to_thread(check_chunks, data, rows, window_position=position, where=handle.where)

    async def _is_damage(self, view: StreamView, absent: Absent) -> bool:
        """Return whether the newest view still names the missing fragment.

        A stream that was deleted meanwhile has no damage.
        """
        try:
            reader = StreamReader(self._catalogue, view.committed, emit=lambda event: None)
            await reader.newer_view(view, absent)
        except NotOffloaded:
            return False
        except Absent:
            return True
        return False


def check_table(
    table: ChunkTable, entry: Entry, *, is_measured: bool = True, counts: bool = True, where: str
) -> None:
    """Raise `Corrupt` unless the chunks of a fragment match the numbers in its entry.

    If it was not measured, its times and its data size are not compared. If the entry does not count
    messages, its number of messages is a bound.
    """
    offsets, records = table["offset"], table["records"]
    _check(where, "number of chunks", "1 or more", "1 or more" if len(table) else 0)
    begins = [*offsets.tolist(), entry.next_offset]
    ends = [entry.first_offset, *(offsets + records).tolist()]
    if begins != ends:
        row = next(row for row, (begin, end) in enumerate(zip(begins, ends, strict=True)) if begin != end)
        raise Corrupt("offset", where, expected=ends[row], found=begins[row])
    messages = int(records[table["type"] == ChunkType.USER].sum())
    _check(where, "messages", entry.messages, messages if counts else max(messages, entry.messages))
    if is_measured:
        _check(where, "data size", entry.data_size_bytes, int(table["size_bytes"].sum()))
        _check(where, "first timestamp", entry.first_timestamp_ms, int(table["timestamp_ms"].min()))
        _check(where, "last timestamp", entry.last_timestamp_ms, int(table["timestamp_ms"].max()))


def _check(where: str, what: str, expected: object, found: object, position: int = 0) -> None:
    if expected != found:
        raise Corrupt(what, where, expected=expected, found=found, position=position)


def _add(report: VerifyReport, error: OffloadError, name: str, stream: str) -> None:
    """Report an error. Damage says itself where it is: an object of another layout has no key of ours."""
    report.add_error(error, error.where if isinstance(error, Corrupt) else name, stream)
