"""The doors of an offloader: every way to open the fragments of an attempt, and every way to read a handle.

`doors` returns each way to open with the handles that together have the whole attempt. The clauses ask the
same question at each door: an offloader may check, join or close at one of them and not at the others.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import pytest

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Buffer
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import entries_of_rows, joined_entries
from offload.model.excerpt import of_fragments
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import BIRTH_MS, drawn_ledger, ledger_of, noisy_ledger
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed
from offload_conformance.offloader.edges import KINDS
from offload_conformance.opened import KIB
from offload_conformance.same import POSITION, assert_same

Opening = Callable[[], Awaitable[ReadHandle]]


async def doors(client: LedgerOffloader, attempt: Attempt) -> dict[str, Sequence[Opening]]:
    """Return how a committed attempt can be opened. The handles of each door have all of its chunks."""
    view, manifest = await client.view(attempt.stream), await client.load_manifest(attempt.stream)
    async with aclosing(view.walk()) as runs:
        rows = joined_entries(*[run async for run in runs])
    cuts, parts = [], []
    for row, entry in enumerate(entries_of_rows(rows)):
        if entry.attempt == attempt.uid:
            cuts.append((client.view_of(of_fragments(view.committed, rows[row : row + 1])), entry))
            parts.append(range(entry.first_offset, entry.next_offset))
    return {
        "an attempt": [partial(client.read_offloaded, attempt)],
        "an attempt by a manifest": [partial(client.read_offloaded, attempt, manifest=manifest)],
        "some offsets": [partial(client.read_offloaded, attempt, only=part) for part in parts],
        "a view": [partial(view.open, entry) for _, entry in cuts],
        "a view of one fragment": [partial(cut.open, entry) for cut, entry in cuts],
    }


async def at_once(handle: ReadHandle) -> list[Buffer]:
    """Read all chunks in one call."""
    return [await handle.read(await handle.table())]


async def one_by_one(handle: ReadHandle) -> list[Buffer]:
    """Read each chunk in a call of its own, the last one first."""
    table = await handle.table()
    found = [await handle.read(table[row : row + 1]) for row in range(len(table))[::-1]]
    return found[::-1]


async def with_hints(handle: ReadHandle) -> list[Buffer]:
    """Read the chunks in order, and say each time what is read next."""
    table = await handle.table()
    return [await handle.read_on(table[row : row + 1], table[row + 1 :]) for row in range(len(table))]


async def by_windows(handle: ReadHandle) -> list[Buffer]:
    """Read the chunks in the runs that the handle prefers."""
    table = await handle.table()
    return [await handle.read(rows) for rows in handle.windows(table, size_bytes=KIB)]


READS: Final[Mapping[str, Callable[[ReadHandle], Awaitable[list[Buffer]]]]] = {
    "in one call": at_once,
    "one by one": one_by_one,
    "with hints": with_hints,
    "by windows": by_windows,
}
"""The ways to read all chunks of a handle. Each keeps what was read, which must not change any more."""


async def closed_twice(handle: ReadHandle) -> None:
    """Close a handle and close it again."""
    await handle.aclose()
    await handle.aclose()


async def closed_at_once(handle: ReadHandle) -> None:
    """Close a handle by two tasks."""
    await asyncio.gather(handle.aclose(), handle.aclose())


async def closed_in_a_block(handle: ReadHandle) -> None:
    """Leave a block of the handle twice, and close the handle in the first one."""
    async with handle:
        await handle.aclose()
    async with handle:
        pass


CLOSINGS: Final = (closed_twice, closed_at_once, closed_in_a_block)
"""Each leaves the handle closed."""


async def unread(handle: ReadHandle) -> None:
    """Leave the handle as it was opened."""


async def cancelled(handle: ReadHandle) -> None:
    """Cancel a read."""
    table = await handle.table()
    reading = asyncio.ensure_future(handle.read(table))
    for _ in range(random.randrange(3)):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])


USES: Final = (unread, with_hints, cancelled)
"""What a handle was used for before it is closed."""


WINDOWS: Final = KINDS["size_bytes: int"].taken
WITHIN_MS: Final = range(BIRTH_MS - 10**9, 10**14)
"""From before the first chunk of a test to the year 5138. Seconds, and nanoseconds, are outside."""


def cut(handle: ReadHandle, rows: ChunkTable, size_bytes: int) -> list[int]:
    """Return how many rows each window has."""
    return [len(window) for window in handle.windows(rows, size_bytes=size_bytes)]


class DoorClauses(OffloaderClauses):
    """The clauses on handles that hold at every door."""

    def test_reads_are_verbatim_at_every_door(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """However a committed attempt is opened and read, its chunks are those that were offloaded.

        It may be opened as a whole, by its offsets, by a view, or by a view that is cut to one fragment. The
        handles have the ledger's id, and the rows of its table. What was read stays as it is, also after
        later reads and after the handle was closed.
        """
        before = drawn_ledger(3, ledger_id=1)
        ledger = drawn_ledger(12, first_offset=before.next_offset, ledger_id=2, size_bytes_max=64 * KIB)
        behind = drawn_ledger(3, first_offset=ledger.next_offset, ledger_id=3)
        _, attempt, _ = [run(committed(writer, each)) for each in (before, ledger, behind)]

        async def scenario() -> None:
            found: dict[str, list[Buffer]] = {}
            source = await ledger.table()
            for door, openings in (await doors(other, attempt)).items():
                for way, read in READS.items():
                    kept = found[f"{door}, read {way}"] = []
                    for opening in openings:
                        async with await opening() as handle:
                            kept += await read(handle)
                            assert handle.ledger_id == ledger.ledger_id, door
                            first, stop = handle.first_offset, handle.next_offset
                            part = source[(source["offset"] >= first) & (source["offset"] < stop)]
                            assert_same(await handle.table(), part, but=POSITION)
            for how, kept in found.items():
                assert b"".join(kept) == b"".join(ledger.chunks), how

        run(scenario())

    def test_reads_may_come_in_any_order(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """What a read returns does not depend on the reads before it, hinted or not, of any handle."""
        ledger = noisy_ledger(30)  # chunks of one size
        behind = drawn_ledger(30, first_offset=ledger.next_offset, ledger_id=2, size_bytes_max=16 * KIB)
        attempts = [run(committed(writer, each)) for each in (ledger, behind)]
        chunks = dict(zip(attempts, (ledger.chunks, behind.chunks), strict=True))

        async def scenario() -> None:
            opened = []
            for attempt in attempts:
                for openings in (await doors(other, attempt)).values():
                    opened += [(await opening(), attempt) for opening in openings[:1]]
            for _ in range(120):
                handle, attempt = random.choice(opened)
                table = await handle.table()
                begin, end = sorted(random.sample(range(len(table) + 1), 2))
                end = random.choice((end, begin + 1))
                then = table[end : random.randint(end, len(table))]
                hinted = random.random() < 0.7
                reading = handle.read_on(table[begin:end], then) if hinted else handle.read(table[begin:end])
                found = await reading
                assert found == b"".join(chunks[attempt][begin:end]), f"chunks {begin} to {end}"
                if hinted and len(then) and random.random() < 0.5:
                    found = await handle.read(then)
                    assert found == b"".join(chunks[attempt][end : end + len(then)]), "what was hinted at"
            for handle, _ in opened:
                await handle.aclose()

        run(scenario())

    def test_windows_are_the_same_at_every_call(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """The same rows are cut into the same windows at every call, of any size, and none is left out.

        So it is for every door, for a part of the table, for two handles, and beside another iteration.
        """
        ledger = drawn_ledger(40, size_bytes_max=16 * KIB)
        attempt = run(committed(writer, ledger))

        async def scenario() -> None:
            for door, openings in (await doors(other, attempt)).items():
                async with await openings[0]() as handle, await openings[0]() as again:
                    table = await handle.table()
                    begin, end = sorted(random.sample(range(len(table) + 1), 2))
                    for size_bytes, rows in itertools.product(WINDOWS, (table, table[begin:end])):
                        found = cut(handle, rows, size_bytes)
                        assert 0 not in found, f"{door}: an empty window of {size_bytes} bytes"
                        assert sum(found) == len(rows), f"{door}: windows of {size_bytes} bytes"
                        begun = handle.windows(rows, size_bytes=size_bytes)
                        next(begun)
                        await handle.read(next(handle.windows(rows, size_bytes=size_bytes)))
                        for each in (handle, again, handle):
                            assert cut(each, rows, size_bytes) == found, f"{door}: {size_bytes} bytes again"
                        assert [len(window) for window in begun] == found[1:]

        run(scenario())

    def test_times_of_handles_are_in_milliseconds(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """`modified_ms` is None or a time in milliseconds since 1970, and the same at every call."""
        attempt = run(committed(writer, ledger_of(3)))

        async def scenario() -> None:
            for door, openings in (await doors(other, attempt)).items():
                async with await openings[0]() as handle:
                    first, second = await handle.modified_ms(), await handle.modified_ms()
                    assert first == second, door
                    assert first is None or first in WITHIN_MS, f"{door}: {first} ms"

        run(scenario())

    def test_handles_are_closed_alone(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A handle may be closed twice, read or not, and other handles and the offloader keep working."""
        ledger = drawn_ledger(5)
        attempt = run(committed(writer, ledger))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as kept:
                for door, openings in (await doors(other, attempt)).items():
                    for use in USES:
                        for closing in CLOSINGS:
                            handle = await openings[0]()
                            await use(handle)
                            try:
                                await closing(handle)
                            except Exception as error:  # noqa: BLE001 - a stranger's handle may raise anything
                                said = f"{type(error).__name__}: {error}"
                                pytest.fail(f"{door}, {use.__name__}, {closing.__name__}: found {said}")
                assert await kept.read(await kept.table()) == b"".join(ledger.chunks)

        run(scenario())

        assert run(chunks_of(other, attempt)) == [*ledger.chunks]
