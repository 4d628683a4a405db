"""Views: the committed data of a stream at one moment, found by offset, by time and by name."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final
from uuid import uuid4

import pytest

from offload.contracts.catalogue import StreamView
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Absent, NotOffloaded, StreamDeleted
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry, entries_of_rows, joined_entries
from offload.model.excerpt import of_fragments
from offload.model.manifest import CommittedStream
from offload.write.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger, drawn_ledger, ledger_of
from offload_conformance.offloader.base import (
    OffloaderClauses,
    chunks_in,
    committed,
    copied,
    deleted,
    named,
    span,
    stored,
    trim_to,
)
from offload_conformance.opened import KIB, Open
from offload_conformance.raising import raises
from offload_conformance.same import assert_same, facts

LEDGER: Final = 7


class ViewClauses(OffloaderClauses):
    """The clauses on views: their answers, and that these do not change."""

    @pytest.mark.parametrize("shape", ["with_tracking", "clock_goes_back", "before_1970"])
    def test_views_find_what_is_committed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: str
    ) -> None:
        """A view finds the fragment of each offset and time, the newest with messages, and the latest time.

        A view of some of the fragments walks, finds and opens only these.
        """
        sample = getattr(ledgers, shape)()
        sample.add_tracking(ChunkType.TRACKING_DELTA, timestamp_ms=1)
        parts = [MemoryLedger([chunk], ledger_id=n // 3) for n, chunk in enumerate(sample.chunks)]
        rows = scan(b"".join(sample.chunks), where="expected")
        for count, part in enumerate(parts, start=1):
            run(committed(writer, part))
            greatest = run(self.greatest_timestamp_ms(other))
            assert greatest == int(rows["timestamp_ms"][:count].max()), f"of {rows['timestamp_ms'][:count]}"
        newest = int(rows["offset"][rows["type"] == ChunkType.USER][-1])

        async def scenario() -> None:
            view = await other.view("orders")
            for part in parts:
                for offset in (part.first_offset, part.next_offset - 1):
                    assert span(await view.find(offset)) == (part.first_offset, part.next_offset)
            for beyond in (sample.next_offset, 2**32, 2**63, 2**64 - 1):
                assert span(await view.find(beyond)) is None, f"expected no fragment at offset {beyond}"
            await finds_times(view, rows["timestamp_ms"].tolist())
            found = await view.last_with_messages()
            assert found is not None
            assert found.first_offset <= newest < found.next_offset
            assert await view.last_timestamp_ms() == int(rows["timestamp_ms"].max())
            await self.is_cut(other, view)

        run(scenario())

    async def greatest_timestamp_ms(self, other: LedgerOffloader) -> int | None:
        """Return the greatest timestamp in the newest view."""
        return await (await other.view("orders")).last_timestamp_ms()

    async def is_cut(self, other: LedgerOffloader, view: StreamView) -> None:
        """Assert that a view of consecutive fragments, as another process gets it, has only these."""
        async with aclosing(view.walk()) as runs:
            rows = joined_entries(*[run async for run in runs])
        begin, end = sorted(random.sample(range(1, len(rows)), 2))
        for first, last in ((begin, end), (0, 1), (len(rows) - 1, len(rows)), (0, len(rows))):
            share = entries_of_rows(rows[first:last])
            cut = other.view_of(of_fragments(view.committed, rows[first:last]))
            assert await walked(cut) == share, f"a view of [{first}, {last}) of {len(rows)} fragments"
            assert [await cut.find(each.first_offset) for each in share] == share
            for offset in (share[0].first_offset - 1, share[-1].next_offset):
                assert span(await cut.find(offset)) is None, f"expected nothing at offset {offset}"
            latest = max(each.last_timestamp_ms for each in share)
            assert await cut.last_timestamp_ms() == latest
            assert await cut.first_since(latest + 1) is None
            for each in (share[0], share[-1]):
                whole, part = [await chunks_in(await one.open(each)) for one in (view, cut)]
                assert part == whole, "a fragment that a cut view opens"

    def test_newer_views_tell_every_change(
        self, run: Run, opened: Open, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """After an append, a trim or a copy there is a newer view, and it is the newest one.

        It makes no difference whether the stream's end has moved. If nothing was committed, there is none. If
        the stream was deleted, and also if it was begun again with as many records, it is `StreamDeleted`.
        """
        parts = [MemoryLedger(ledger_of(2, first_offset=2 * n).chunks, ledger_id=LEDGER) for n in range(5)]
        for part in parts[:4]:
            run(committed(writer, part))
        fresh = [opened() for _ in range(6)]

        async def append() -> None:
            writer.manifest = await offloader.load_manifest("orders")
            await committed(writer, parts[4])

        async def copy() -> None:
            entries = await named(other, await other.load_manifest("orders"))
            old = [entry for entry in entries if 2 <= entry.first_offset < 6]
            await copied(other, old, MemoryLedger([*parts[1].chunks, *parts[2].chunks], ledger_id=LEDGER))

        async def drop() -> None:
            base = await other.load_manifest("orders")
            first = [each for each in await named(other, base) if each.first_offset < 2]
            trim = trim_to(base, first, ledgers=0)
            await other.commit_manifest("orders", trim, base=base, committer=uuid4())

        async def scenario() -> None:
            known = [(await offloader.view("orders")).committed]
            for change in random.sample([append, copy, drop], 3):
                await change()
                newest = await offloader.view("orders")
                for client in (offloader, other, fresh.pop()):
                    for older in known:
                        newer = await client.newer_view(older)
                        assert newer is not None, f"expected a newer view after {change.__name__}"
                        assert_same(newer.committed, newest.committed)
                        assert await walked(newer) == await walked(newest)
                    nothing = await client.newer_view(newest.committed)
                    assert nothing is None, "expected no view that is newer than the newest"
                known.append(newest.committed)
            with raises(NotOffloaded, "a newer view of a stream that never was"):
                await other.newer_view(replace(known[0], stream="bills"))
            writer.manifest = await offloader.load_manifest("orders")
            await deleted(writer)
            await self.is_deleted((other, fresh.pop()), known)
            reborn = await StreamWriter.claim(other, "orders")
            await self.is_deleted((other, fresh.pop()), known)
            for part in parts:
                await committed(reborn, part)
            await self.is_deleted((other, fresh.pop()), known)

        run(scenario())

    async def is_deleted(self, clients: Sequence[LedgerOffloader], known: Sequence[CommittedStream]) -> None:
        """Assert that there is no newer view of an earlier life, for any client."""
        for client, older in itertools.product(clients, known):
            with raises(StreamDeleted, "a newer view of an earlier life of the stream"):
                await client.newer_view(older)

    def test_views_do_not_move(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A view gives the same answers after an append, a trim and a deletion; a newer one sees them.

        The trim removes the beginning of an attempt, if the attempt has several fragments. Names of trimmed
        fragments are unknown to a newer view, and all others are known.
        """
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(12, body_size_bytes=100 * KIB), attempt))
        run(writer.append([receipt]))
        run(committed(writer, drawn_ledger(4, first_offset=writer.manifest.next_offset)))
        dropped = receipt.entries[: max(1, len(receipt.entries) - 1)]

        async def scenario() -> None:
            view = await other.view("orders")
            before, names = await said(view), await names_in(view)
            base, ledgers_gone = writer.manifest, int(len(dropped) == len(receipt.entries))
            trim = trim_to(base, dropped, ledgers=ledgers_gone)
            trimmed = await offloader.commit_manifest("orders", trim, base=base, committer=uuid4())
            writer.manifest = trimmed
            later = build_chunk(
                [b"later"], offset=trimmed.next_offset, timestamp_ms=2 * BIRTH_MS, epoch=EPOCH
            )
            await committed(writer, MemoryLedger([later]))
            with suppress(Absent):  # an older view may have lost the trimmed fragments
                assert await said(view) == before
            newer, gone = await other.view("orders"), len(dropped)
            assert len(set(names)) == len(names), "expected a different name for each entry"
            assert [await newer.names(each) for each in names[:gone]] == [False] * gone
            assert all([await newer.names(each) for each in names[gone:]])
            assert (await newer.find(0), await newer.last_timestamp_ms()) == (None, 2 * BIRTH_MS)
            await deleted(writer)
            with suppress(Absent):
                assert await said(view) == before

        run(scenario())


async def finds_times(view: StreamView, times: Sequence[int]) -> None:
    """Assert which fragment is the first since each of these times, and since a millisecond beside it."""
    entries = await walked(view)
    for time in sorted({asked for each in times for asked in (each - 1, each, each + 1)}):
        found = await view.first_since(time)
        wanted = next((entry for entry, last in zip(entries, times, strict=True) if last >= time), None)
        assert span(found) == span(wanted), f"the first fragment since {time} ms, among {times}"


async def said(view: StreamView) -> tuple[object, ...]:
    """Return the answers of a view about its stream, without reading a fragment."""
    found = await walked(view)
    return (facts(view.committed), found, await view.find(0), await view.last_timestamp_ms())


async def walked(view: StreamView, offset: int = 0) -> list[Entry]:
    """Return every fragment of a view from this offset on, in order."""
    found: list[Entry] = []
    async with aclosing(view.walk(offset)) as runs:
        async for run in runs:
            found += entries_of_rows(run)
    return found


async def names_in(view: StreamView) -> list[str]:
    """Return the name of each fragment, in order."""
    found: list[str] = []
    async with aclosing(view.walk()) as runs:
        async for run in runs:
            found += [view.name_of(run[row : row + 1]) for row in range(len(run))]
    return found
