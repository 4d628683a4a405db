"""Views: what is committed of a stream at one moment, found by offset, by time and by name."""

from __future__ import annotations

from contextlib import aclosing, suppress
from uuid import uuid4

import pytest

from offload.contracts.catalogue import StreamView
from offload.contracts.offloader import LedgerOffloader
from offload.errors import Absent
from offload.formats.chunk import scan
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry, entries_of_rows
from offload.streams.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger
from offload_conformance.offloader.base import OffloaderClauses, committed, stored, trim_of


class ViewClauses(OffloaderClauses):
    """What a view finds, and that it stays as it was."""

    @pytest.mark.parametrize("shape", ["with_tracking", "clock_goes_back"])
    def test_views_find_what_is_committed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: str
    ) -> None:
        """A view finds the fragment of each offset, the newest with messages, and the greatest time."""
        sample = getattr(ledgers, shape)()
        sample.add_tracking(ChunkType.TRACKING_DELTA, timestamp_ms=1)
        parts = [MemoryLedger([chunk]) for chunk in sample.chunks]
        for part in parts:
            run(committed(writer, part))
        rows = scan(b"".join(sample.chunks), where="expected")
        newest = int(rows["offset"][rows["type"] == ChunkType.USER][-1])

        async def scenario() -> None:
            view = await other.view("orders")
            for part in parts:
                for offset in (part.first_offset, part.next_offset - 1):
                    assert span(await view.find(offset)) == (part.first_offset, part.next_offset)
            assert await view.find(sample.next_offset) is None
            found = await view.last_with_messages()
            assert found is not None
            assert found.first_offset <= newest < found.next_offset
            assert await view.last_timestamp_ms() == int(rows["timestamp_ms"].max())

        run(scenario())

    def test_views_do_not_move(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A view says the same after an append and a trim; a newer one has the names that are left."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, drawn_ledger(4), attempt))
        run(writer.append([receipt]))
        run(committed(writer, drawn_ledger(4, first_offset=writer.manifest.next_offset)))

        async def scenario() -> None:
            view = await other.view("orders")
            before, names = await said(view), await names_in(view)
            trim, base = trim_of(writer, receipt), writer.manifest
            trimmed = await offloader.commit_manifest("orders", trim, base=base, committer=uuid4())
            writer.manifest = trimmed
            await committed(writer, drawn_ledger(2, first_offset=trimmed.next_offset))
            with suppress(Absent):  # as it may say of what was trimmed
                assert await said(view) == before
            newer, gone = await other.view("orders"), len(receipt.entries)
            assert len(set(names)) == len(names), "each entry has a name of its own"
            assert [await newer.names(each) for each in names[:gone]] == [False] * gone
            assert all([await newer.names(each) for each in names[gone:]])
            assert (await newer.find(0), await newer.last_timestamp_ms() is None) == (None, False)

        run(scenario())


def span(entry: Entry | None) -> tuple[int, int] | None:
    """Which offsets an entry holds."""
    return None if entry is None else (entry.first_offset, entry.next_offset)


async def said(view: StreamView) -> tuple[object, ...]:
    """What a view says of its stream, without a look at any fragment."""
    committed = view.committed
    found: list[Entry] = []
    async with aclosing(view.walk()) as runs:
        async for run in runs:
            found += entries_of_rows(run)
    totals = (committed.first_offset, committed.next_offset, committed.messages)
    return (*totals, found, await view.find(0), await view.last_timestamp_ms())


async def names_in(view: StreamView) -> list[str]:
    """The name of each fragment, in order."""
    found: list[str] = []
    async with aclosing(view.walk()) as runs:
        async for run in runs:
            found += [view.name_of(run[row : row + 1]) for row in range(len(run))]
    return found
