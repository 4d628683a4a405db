"""Views: the committed data of a stream at one moment, found by offset, by time and by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from offload.contracts.catalogue import StreamView
from offload.contracts.offloader import LedgerOffloader
from offload.errors import Absent
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry, entries_of_rows, joined_entries
from offload.streams.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger, drawn_ledger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, committed, deleted, span, stored, trim_to
from offload_conformance.opened import KIB


class ViewClauses(OffloaderClauses):
    """The clauses on views: their answers, and that these do not change."""

    @pytest.mark.parametrize("shape", ["with_tracking", "clock_goes_back", "before_1970"])
    def test_views_find_what_is_committed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: str
    ) -> None:
        """A view finds the fragment of each offset and time, the newest with messages, and the latest time.

        A view of some of the fragments walks and finds only these.
        """
        sample = getattr(ledgers, shape)()
        sample.add_tracking(ChunkType.TRACKING_DELTA, timestamp_ms=1)
        parts = [MemoryLedger([chunk]) for chunk in sample.chunks]
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
        """Assert that a view of some consecutive fragments walks and finds only these."""
        async with aclosing(view.walk()) as runs:
            rows = joined_entries(*[run async for run in runs])
        begin, end = sorted(random.sample(range(1, len(rows)), 2))
        share = [*entries_of_rows(rows[begin:end])]
        cut = other.view_of(
            replace(
                view.committed,
                first_offset=share[0].first_offset,
                next_offset=share[-1].next_offset,
                messages=sum(each.messages for each in share),
                data_size_bytes=sum(each.data_size_bytes for each in share),
                stored_size_bytes=sum(each.stored_size_bytes for each in share),
                fragments=len(share),
                entries=rows[begin:end],
            )
        )
        expected = [span(each) for each in share]
        found = [span(each) for each in await walked(cut)]
        assert found == expected, f"a view of {len(share)} of {len(rows)} fragments walks others"
        assert [span(await cut.find(each.first_offset)) for each in share] == expected
        for offset in (share[0].first_offset - 1, share[-1].next_offset):
            assert span(await cut.find(offset)) is None, f"expected nothing at offset {offset}"

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
    committed = view.committed
    found = await walked(view)
    totals = (committed.first_offset, committed.next_offset, committed.messages)
    return (*totals, found, await view.find(0), await view.last_timestamp_ms())


async def walked(view: StreamView) -> list[Entry]:
    """Return every fragment of a view, in order."""
    found: list[Entry] = []
    async with aclosing(view.walk()) as runs:
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
