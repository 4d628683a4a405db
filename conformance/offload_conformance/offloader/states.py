"""States of a stream: in each of them, every question is answered as the entries of the stream say.

A stream passes from state to state: new, empty, appended to, trimmed, copied, trimmed to its end, deleted and
begun again. In each state the same questions are asked at their edges. The model is a list of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from offload.commit.rebuild import Fence
from offload.contracts.catalogue import StreamView
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Absent, Conflict, NotOffloaded, OffloadError, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry, rows_of_entries
from offload.model.manifest import CommittedStream
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger, Sample, drawn_ledger, ledger_of
from offload_conformance.offloader.base import (
    OffloaderClauses,
    chunks_in,
    chunks_of,
    committed,
    copied,
    deleted,
    named,
    trim_to,
)
from offload_conformance.offloader.doors import doors
from offload_conformance.offloader.views import names_in, walked
from offload_conformance.raising import class_of, raises
from offload_conformance.same import assert_same

LEDGER: Final = 7
FAR: Final = (-1, 0, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64)
FAR_MS: Final = (-(2**63), -1, 0, 1, BIRTH_MS, 2**63 - 1)


class StateClauses(OffloaderClauses):
    """The clauses on answers in every state of a stream."""

    def test_answers_are_those_of_the_entries(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """In every state of a stream, also when it is empty, a view answers as its entries say.

        So it is for times below zero and of zero, and for fragments without messages.
        """
        clients = (offloader, other)

        async def scenario() -> None:
            for first_offset in self.some((5, 0), 1):
                writer = await StreamWriter.claim(offloader, "orders", first_offset=first_offset)
                end = first_offset
                await answers(clients, [], end)
                for timestamp_ms, is_message in ((-9, False), (-7, True), (0, True), (-3, False)):
                    ledger = one_chunk(end, timestamp_ms, is_message=is_message)
                    await committed(writer, ledger)
                    end = ledger.next_offset
                    await answers(clients, await named(other, writer.manifest), end)
                await dropped(other, writer, 1)
                await answers(clients, await named(other, writer.manifest), end)
                await committed(writer, mixed := drawn_ledger(3, first_offset=end, ledger_id=LEDGER))
                await committed(writer, behind := one_chunk(mixed.next_offset, 3, is_message=False))
                old = [
                    each
                    for each in await named(other, writer.manifest)
                    if each.first_offset in range(end, mixed.next_offset)
                ]
                await copied(other, old, mixed)
                end = behind.next_offset
                writer.manifest = await offloader.load_manifest("orders")
                await answers(clients, await named(offloader, writer.manifest), end)
                await dropped(other, writer, None)
                await answers(clients, [], end)
                await committed(writer, last := one_chunk(end, -5, is_message=True))
                await answers(clients, await named(offloader, writer.manifest), last.next_offset)
                await deleted(writer)

        run(scenario())

    def test_reads_are_of_the_present_life(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A stream that is deleted and begun again has none of its earlier data, for any client.

        Views and attempts of the earlier life never read the later one. To delete these attempts does no harm
        to it.
        """
        lives = [drawn_ledger(4, ledger_id=LEDGER) for _ in range(3)]

        async def scenario() -> None:
            earlier: list[tuple[Attempt, StreamView, MemoryLedger]] = []
            for ledger in lives:
                writer = await StreamWriter.claim(offloader, "orders")
                attempt = await committed(writer, ledger)
                [uncommitted] = await writer.prepare([LEDGER])
                behind = drawn_ledger(2, first_offset=ledger.next_offset, ledger_id=LEDGER)
                await offloader.offload(behind, uncommitted, manifest=writer.manifest, extra_metadata={})
                for client in (offloader, other):
                    for door, openings in (await doors(client, attempt)).items():
                        found = [chunk for each in openings for chunk in await chunks_in(await each())]
                        assert found == [*ledger.chunks], door
                    assert await client.leftovers(writer.manifest) == []
                for old, view, chunks in earlier:
                    await gone(other, old)
                    await as_it_was(view, chunks)
                    await other.delete_offloaded(old)
                for client in (offloader, other):
                    assert await chunks_of(client, attempt) == [*ledger.chunks]
                earlier += [(attempt, await other.view("orders"), ledger)]
                earlier += [(uncommitted, await offloader.view("orders"), ledger)]
                await deleted(writer)

        run(scenario())

    def test_every_reader_tells_what_is_not_there(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Every way to read a stream says that it is absent, deleted or being rebuilt, and so do its jobs.

        Nothing of that stream is then listed, read or begun by mistake, and other streams are not affected.
        """

        async def scenario() -> None:
            bills = await StreamWriter.claim(offloader, "bills")
            kept = await committed(bills, drawn_ledger(3))
            writer = await StreamWriter.claim(offloader, "orders")
            attempt = await committed(writer, ledger_of(3))
            known = writer.manifest
            await told(other, "nothing", known, NotOffloaded)
            await deleted(writer)
            await told(other, "orders", known, StreamDeleted)
            await told(offloader, "orders", known, StreamDeleted)
            with raises(NotOffloaded, "a read of an attempt of a deleted stream"):
                await other.read_offloaded(attempt)
            reborn = await StreamWriter.claim(other, "orders")
            await committed(reborn, ledger_of(3))
            newest = await offloader.load_manifest("orders")
            fence = Fence(
                stream="orders",
                writer=uuid4(),
                incarnation=newest.incarnation,
                epoch=newest.epoch + 1,
                above=newest.version,
                instead_of=newest.commit_id,
            )
            await offloader.commit_manifest("orders", fence, base=newest, committer=fence.writer)
            for client in (other, offloader):
                await told(client, "orders", newest, NotOffloaded)
                with raises(Conflict, "a claim of a stream that is being rebuilt"):
                    await StreamWriter.claim(client, "orders")
                assert await client.streams() == ["bills", "orders"]
                assert len(await chunks_of(client, kept)) == 3

        run(scenario())


async def told(
    client: LedgerOffloader, stream: str, known: CommittedStream, error: type[OffloadError]
) -> None:
    """Assert that each way to read a stream raises this error."""
    readers: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "load_manifest": lambda: client.load_manifest(stream),
        "view": lambda: client.view(stream),
        "newer_view": lambda: client.newer_view(replace(known, stream=stream)),
        "read_offloaded": lambda: client.read_offloaded(Attempt(stream=stream, ledger_id=0, uid=uuid4())),
    }
    for name, reader in readers.items():
        with raises(NotOffloaded, f"{name} of {stream!r}") as caught:
            await reader()
        is_deleted = issubclass(class_of(caught.value), StreamDeleted)
        if name != "read_offloaded":
            assert is_deleted == (error is StreamDeleted), f"{name}: found {type(caught.value).__name__}"


async def answers(clients: Sequence[LedgerOffloader], entries: list[Entry], end: int) -> None:
    """Assert that every view of the stream, by each client, answers by these entries."""
    for client in clients:
        view = await client.view("orders")
        manifest = await client.load_manifest("orders")
        begin = entries[0].first_offset if entries else end
        assert (manifest.first_offset, manifest.next_offset, manifest.fragments) == (begin, end, len(entries))
        assert_same(view.committed, manifest, but={"entries"})
        assert await client.newer_view(manifest) is None
        older = replace(manifest, version=manifest.version - 1)
        newer = await client.newer_view(older)
        assert newer is not None, "expected a view that is newer than the one before"
        assert await client.newer_view(replace(manifest, version=manifest.version + 1)) is None
        for each in (view, client.view_of(manifest), client.view_of(view.committed), newer):
            await answered(each, entries, end)


async def answered(view: StreamView, entries: list[Entry], end: int) -> None:
    """Assert that a view answers every question by these entries."""
    begin = entries[0].first_offset if entries else end
    assert await walked(view) == entries
    for offset in {*FAR, *range(begin - 2, end + 2)}:
        holds = next((each for each in entries if offset in range(each.first_offset, each.next_offset)), None)
        assert (offset, await view.find(offset)) == (offset, holds)
        behind = [each for each in entries if each.next_offset > offset]
        assert (offset, await walked(view, offset)) == (offset, behind)
    for at in {*FAR_MS, *(each.last_timestamp_ms + n for each in entries for n in (-1, 0, 1))}:
        since = next((each for each in entries if each.last_timestamp_ms >= at), None)
        assert (at, await view.first_since(at)) == (at, since)
    latest = max((each.last_timestamp_ms for each in entries), default=None)
    assert (await view.last_timestamp_ms(), "the latest time") == (latest, "the latest time")
    newest = next((each for each in reversed(entries) if each.messages), None)
    assert (await view.last_with_messages(), "the newest message") == (newest, "the newest message")
    names = await names_in(view)
    assert [view.name_of(rows_of_entries([each])) for each in entries] == names
    assert [await view.names(name) for name in names] == [True] * len(names)


async def gone(client: LedgerOffloader, attempt: Attempt) -> None:
    """Assert that an attempt of an earlier life cannot be read."""
    with raises(NotOffloaded, "a read of an attempt of an earlier life"):
        await client.read_offloaded(attempt)


async def as_it_was(view: StreamView, ledger: MemoryLedger) -> None:
    """Assert that a view of an earlier life reads its own data, or that the data is `Absent`."""
    try:
        entries = await walked(view)
        found = [chunk for entry in entries for chunk in await chunks_in(await view.open(entry))]
    except (Absent, NotOffloaded):
        return
    assert found == [*ledger.chunks], "the data of an earlier life, in its own view"


async def dropped(client: LedgerOffloader, writer: StreamWriter, count: int | None) -> None:
    """Trim the first fragments of the stream, or all of them."""
    base = await client.load_manifest("orders")
    first = (await named(client, base))[:count]
    trim = trim_to(base, first, ledgers=base.ledgers if count is None else 0)
    writer.manifest = await client.commit_manifest("orders", trim, base=base, committer=uuid4())


def one_chunk(offset: int, timestamp_ms: int, *, is_message: bool) -> MemoryLedger:
    """Return a ledger of one chunk of two messages, or of tracking."""
    if is_message:
        chunk = build_chunk([b"a", b"b"], offset=offset, timestamp_ms=timestamp_ms, epoch=EPOCH)
        return MemoryLedger([chunk], ledger_id=LEDGER)
    sample = Sample(next_offset=offset)
    sample.add_tracking(ChunkType.TRACKING_DELTA, timestamp_ms=timestamp_ms)
    return MemoryLedger(sample.chunks, ledger_id=LEDGER)
