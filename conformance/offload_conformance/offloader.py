"""Every clause of `LedgerOffloader`, as tests of the same name, and those of its handles.

Nothing is asked of a backend but the contract: the tests know of no objects, keys or files, so a
database passes them as a bucket does. Where a clause says what others see, the test opens a second
offloader on the same place; where it says what is stored, `keys_in_store` looks by other means.
They store a few megabytes in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4

import pytest

from offload.errors import Conflict, Corrupt, Fenced, NotOffloaded
from offload.formats.chunk import ChunkTable, scan
from offload.formats.manifest import Manifest
from offload.manifest.changes import Abort, Append, Claim, Prepare, Resolve
from offload.manifest.commit import shows
from offload.offloader import Attempt, LedgerOffloader, ReadHandle, Receipt
from offload.tier.stream_writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.end_to_end import EndToEndConformance
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_conformance.opened import KIB, Open


class OffloaderConformance(EndToEndConformance):
    """What every offloader must pass. Subclass it as the package's docstring shows."""

    layer = "contract"

    # Attempts are disjoint

    def test_attempts_are_disjoint(self, run: Run, offloader: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "No two attempts share an object": removing one attempt leaves the other whole."""
        ledger = ledger_of(10)
        kept, dropped = run(writer.prepare([0, 0]))
        before = self.keys_in_store()
        receipt = run(stored(writer, ledger, kept))
        of_kept = self.keys_in_store() - before
        run(stored(writer, ledger, dropped))
        of_dropped = self.keys_in_store() - before - of_kept

        run(offloader.delete_offloaded(dropped))

        assert of_kept, "an attempt that was stored shows in the store"
        assert of_dropped, "another attempt at the same ledger is stored once more"
        assert self.keys_in_store() & (of_kept | of_dropped) == of_kept
        run(writer.append([receipt]))
        assert run(chunks_of(offloader, kept)) == [*ledger.chunks]

    def test_attempts_are_disjoint_between_streams(self, run: Run, offloader: LedgerOffloader) -> None:
        """The same clause, "so a crashed attempt is garbage": one stream's garbage is nobody else's."""
        ledger = ledger_of(10)
        orders = run(StreamWriter.claim(offloader, "orders"))
        bills = run(StreamWriter.claim(offloader, "bills"))
        [crashed], [kept] = run(orders.prepare([0])), run(bills.prepare([0]))
        run(stored(orders, ledger, crashed))
        run(bills.append([run(stored(bills, ledger, kept))]))

        run(offloader.delete_offloaded(crashed))

        assert run(chunks_of(offloader, kept)) == [*ledger.chunks]

    # Prepared before uploaded

    def test_prepared_before_uploaded(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Clause "refuses an attempt that its manifest does not run, before the first byte is stored"."""
        aborted, prepared = run(writer.prepare([0, 0]))
        run(writer.abort([aborted]))
        run(StreamWriter.claim(offloader, "bills"))
        before = self.keys_in_store()

        for stream, ledger_id, uid in (
            ("orders", 0, uuid4()),
            ("orders", 0, aborted.uid),
            ("orders", 7, prepared.uid),
            ("bills", 0, prepared.uid),
        ):
            attempt = Attempt(stream=stream, ledger_id=ledger_id, uid=uid)
            with pytest.raises(Conflict):
                run(stored(writer, ledger_of(10), attempt))

        assert self.keys_in_store() == before

    # Offloads are checked

    @pytest.mark.parametrize("byte", [0, 8, 35, -1], ids=["magic", "timestamp", "crc", "data"])
    def test_offloads_are_checked(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, byte: int
    ) -> None:
        """Clause "A chunk whose bytes do not hold is never stored: `Corrupt` names it"."""
        sound = ledger_of(10)

        self.refused(run, writer, sound.damaged(6, byte=byte), sound.span_of(6))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(7)]

    def test_offloads_are_checked_for_length(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """The same clause, where the bytes end too early: no chunk from there on holds, and any is named."""
        sound = ledger_of(10)

        self.refused(run, writer, sound.torn(6), (sound.span_of(6)[0], sound.span_of(9)[1]))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(7)]

    def refused(self, run: Run, writer: StreamWriter, ledger: MemoryLedger, span: tuple[int, int]) -> None:
        """Assert that offloading `ledger` ends with damage in this span of its bytes, by name and place."""
        [attempt] = run(writer.prepare([0]))
        with pytest.raises(Corrupt) as caught:
            run(stored(writer, ledger, attempt))
        assert caught.value.where == ledger.where
        assert caught.value.stream == "orders"
        assert span[0] <= caught.value.position < span[1]

    # Fragments are whole

    def test_fragments_are_whole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "entire or not at all": whoever looks in the middle finds whole chunks, or nothing."""
        ledger = ledger_of(6, body_size_bytes=700 * KIB)
        [attempt] = run(writer.prepare([0]))

        async def scenario() -> list[bytes]:
            held = asyncio.Event()

            async def hold(rows: ChunkTable) -> None:
                if ledger.next_offset - 1 in rows["offset"]:
                    held.set()
                    await asyncio.sleep(60)

            ledger.before_read = hold
            offloading = asyncio.create_task(stored(writer, ledger, attempt))
            await asyncio.wait_for(held.wait(), timeout=60)
            with pytest.raises(NotOffloaded):
                await other.read_offloaded(attempt)
            found = await left_by_a_crash(other, "orders")
            offloading.cancel()
            await asyncio.gather(offloading, return_exceptions=True)
            return found

        found = run(scenario())

        assert found == [*ledger.chunks[: len(found)]]
        assert len(found) < len(ledger.chunks)

    def test_fragments_are_whole_before_they_are_offered(
        self, run: Run, opened: Open, writer: StreamWriter
    ) -> None:
        """The same clause, for what a crash left complete: adopted by the next writer, it is all there."""
        ledger = ledger_of(10)
        [attempt] = run(writer.prepare([0]))
        run(stored(writer, ledger, attempt))

        adopted = run(left_by_a_crash(opened(), "orders"))

        assert adopted in ([], [*ledger.chunks])

    # Reads are verbatim

    def test_reads_are_verbatim(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "chunk for chunk, the bytes that were offloaded": all of them, each alone, and any run."""
        ledger = ledger_of(10)
        attempt = run(committed(writer, ledger))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                table = await handle.table()
                for first in range(10):
                    for stop in range(first + 1, 11):
                        read = await handle.read(table[first:stop])
                        assert read == b"".join(ledger.chunks[first:stop])

        run(scenario())

    def test_reads_are_verbatim_when_narrowed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """The same clause, where `only` names some offsets: they are there, and nothing else is invented."""
        ledger = ledger_of(10)
        attempt = run(committed(writer, ledger))

        for only in (range(1), range(3, 5), range(9, 10), range(5, 1000)):
            read = run(chunks_of(other, attempt, only=only))
            assert set(ledger.chunks[only.start : only.stop]) <= set(read) <= set(ledger.chunks)
        with pytest.raises(NotOffloaded):
            run(other.read_offloaded(attempt, only=range(10, 20)))

    # Absence is an error

    def test_absence_is_an_error(self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader) -> None:
        """Clause "Reading what was never committed raises `NotOffloaded`, never `None`"."""
        nothing = Attempt(stream="orders", ledger_id=0, uid=uuid4())
        for absent in (other.open, other.streams):
            self.absent(run, absent())
        self.absent(run, other.load_manifest("orders"))
        self.absent(run, other.read_offloaded(nothing))

        writer = run(StreamWriter.claim(offloader, "orders"))

        assert run(other.streams()) == ["orders"]
        self.absent(run, other.load_manifest("bills"))
        self.absent(run, other.read_offloaded(nothing))
        [prepared, uncommitted, aborted] = run(writer.prepare([0, 0, 0]))
        run(stored(writer, ledger_of(10), uncommitted))
        run(stored(writer, ledger_of(10), aborted))
        run(writer.abort([aborted]))
        for attempt in (prepared, uncommitted, aborted):
            self.absent(run, other.read_offloaded(attempt))

    def absent(self, run: Run, reading: Coroutine[Any, Any, object]) -> None:
        """Assert that `reading` raises `NotOffloaded`."""
        with pytest.raises(NotOffloaded):
            run(reading)

    # Deletion is idempotent

    def test_deletion_is_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Clause "Deleting an absent attempt succeeds": never there, gone, half there, of no stream."""
        [stored_once, broken_off, prepared] = run(writer.prepare([0, 0, 0]))
        announced = self.keys_in_store()
        run(stored(writer, ledger_of(10), stored_once))
        with pytest.raises(Corrupt):
            run(stored(writer, ledger_of(10).torn(6), broken_off))
        of_attempts = self.keys_in_store() - announced

        for client in (offloader, other, other):
            for attempt in (stored_once, broken_off, prepared):
                run(client.delete_offloaded(attempt))
            for stream in ("orders", "bills"):
                run(client.delete_offloaded(Attempt(stream=stream, ledger_id=0, uid=uuid4())))

        assert of_attempts
        assert not self.keys_in_store() & of_attempts
        manifest = run(other.load_manifest("orders"))
        assert not any(manifest.runs(attempt.uid) for attempt in (stored_once, broken_off, prepared))

    # Deletion spares the committed

    def test_deletion_spares_the_committed(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Clause "an attempt that the manifest names raises `Conflict` and removes nothing"."""
        ledger = ledger_of(10)
        attempt = run(committed(writer, ledger))
        before = self.keys_in_store()

        for client in (offloader, other):
            with pytest.raises(Conflict):
                run(client.delete_offloaded(attempt))

        assert self.keys_in_store() == before
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]

    # Commits are atomic

    def test_commits_are_atomic(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "entire or not at all": whoever loads meanwhile sees all of three ledgers, or none."""
        [a, b, c] = (ledger_of(10, first_offset=start) for start in (0, 10, 20))
        attempts = run(writer.prepare([0, 10, 20]))
        parent = writer.manifest
        seen: set[tuple[int, int]] = set()

        async def scenario() -> None:
            receipts = [
                await stored(writer, ledger, attempt)
                for ledger, attempt in zip((a, b, c), attempts, strict=True)
            ]
            appending = asyncio.create_task(writer.append(receipts))
            while not appending.done():
                manifest = await other.load_manifest("orders")
                seen.add((manifest.next_offset, len(manifest.running)))
            await appending

        run(scenario())

        assert seen <= {(0, 3), (30, 0)}
        manifest = run(other.load_manifest("orders"))
        assert (manifest.next_offset, len(manifest.running)) == (30, 0)
        assert manifest.parent_commit_id == parent.commit_id, "one change is one commit"

    def test_commits_are_atomic_when_refused(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """The same clause, of a change whose first half would fit: none of it is in."""
        good, dropped = run(writer.prepare([0, 10]))
        receipts = [
            run(stored(writer, ledger_of(10), good)),
            run(stored(writer, ledger_of(10, first_offset=10), dropped)),
        ]
        run(writer.abort([dropped]))
        before = run(other.load_manifest("orders"))

        with pytest.raises(Conflict):
            run(writer.append(receipts))

        after = run(other.load_manifest("orders"))
        assert (after.version, after.commit_id) == (before.version, before.commit_id)
        assert after.next_offset == 0

    # History is linear

    def test_history_is_linear(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Clause "Of two commits on one parent exactly one succeeds; the other is applied to the newer"."""
        parent = writer.manifest
        changes = [Prepare(writer=writer.writer, attempts=[(uuid4(), 0)]) for _ in range(6)]

        async def scenario() -> list[Manifest]:
            return await asyncio.gather(
                *(
                    (offloader, other)[n % 2].commit_manifest(
                        "orders", change, base=parent, committer=writer.writer
                    )
                    for n, change in enumerate(changes)
                )
            )

        accepted = sorted(run(scenario()), key=lambda manifest: manifest.version)

        newest = run(other.load_manifest("orders"))
        assert [m.version for m in accepted] == [parent.version + 1 + n for n in range(6)]
        assert [m.parent_commit_id for m in accepted] == [m.commit_id for m in (parent, *accepted[:-1])]
        assert accepted[-1].commit_id == newest.commit_id
        assert all(run(shows(other.tree(newest), change)) for change in changes)

    @pytest.mark.parametrize("records", [5, 10, 20])
    def test_history_is_linear_where_changes_exclude_each_other(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter, records: int
    ) -> None:
        """The same clause, "and raises `Conflict` otherwise": of two appends to one end, one is refused."""
        wins, loses = run(writer.prepare([0, 0]))
        parent = writer.manifest
        first, second = (
            append_of(writer, run(stored(writer, ledger_of(count), attempt)))
            for count, attempt in ((10, wins), (records, loses))
        )
        won = run(offloader.commit_manifest("orders", first, base=parent, committer=writer.writer))

        with pytest.raises(Conflict):
            run(other.commit_manifest("orders", second, base=parent, committer=writer.writer))

        newest = run(other.load_manifest("orders"))
        assert (newest.commit_id, newest.next_offset) == (won.commit_id, 10)
        assert run(other.tree(newest).names(0, wins.uid))
        assert not run(other.tree(newest).names(0, loses.uid))

    # Claims fence

    def test_claims_fence(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "After a claim is accepted, commits of every earlier writer raise `Fenced`"."""
        run(committed(writer, ledger_of(10)))
        [attempt] = run(writer.prepare([10]))
        receipt = run(stored(writer, ledger_of(10, first_offset=10), attempt))

        successor = run(StreamWriter.claim(other, "orders"))

        old, base = writer.writer, writer.manifest
        assert successor.manifest.epoch > base.epoch
        before = run(other.load_manifest("orders"))
        for change in (
            append_of(writer, receipt),
            Prepare(writer=old, attempts=[(uuid4(), 20)]),
            Resolve(writer=old, adopted=()),
        ):
            for known in (base, before):
                with pytest.raises(Fenced):
                    run(writer.offloader.commit_manifest("orders", change, base=known, committer=old))
        after = run(other.load_manifest("orders"))
        assert (after.commit_id, after.writer) == (before.commit_id, successor.writer)

    def test_claims_fence_at_once(self, run: Run, opened: Open, writer: StreamWriter) -> None:
        """The same clause, of writers that claim at the same time: one is left."""

        async def prepared(claimed: StreamWriter) -> bool:
            try:
                await claimed.prepare([0])
            except Fenced:
                return False
            return True

        async def scenario(rivals: Sequence[LedgerOffloader]) -> list[bool]:
            claims = (StreamWriter.claim(rival, "orders", base=writer.manifest) for rival in rivals)
            claimed = await asyncio.gather(*claims, return_exceptions=True)
            writers = [each for each in claimed if isinstance(each, StreamWriter)]
            assert all(isinstance(each, StreamWriter | Fenced) for each in claimed)
            assert len({each.manifest.epoch for each in writers}) == len(writers)
            return [await prepared(each) for each in writers]

        assert run(scenario([opened() for _ in range(4)])).count(True) == 1

    def test_claims_fence_by_the_brokers_own_epoch(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """The same clause, for brokers that have leaders: a deposed one cannot even claim."""
        run(StreamWriter.claim(offloader, "orders", source_epoch=5))

        with pytest.raises(Fenced):
            run(StreamWriter.claim(other, "orders", source_epoch=4))

        assert run(offloader.load_manifest("orders")).source_epoch == 5

    # Commits are idempotent

    def test_commits_are_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Clause "Committing a change that is in already returns the newest manifest"."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        base = writer.manifest
        change = append_of(writer, receipt)
        accepted = run(offloader.commit_manifest("orders", change, base=base, committer=writer.writer))

        for client in (offloader, other):
            for known in (base, accepted):
                again = run(client.commit_manifest("orders", change, base=known, committer=writer.writer))
                assert again.commit_id == accepted.commit_id

        assert run(other.load_manifest("orders")).commit_id == accepted.commit_id

    def test_commits_are_idempotent_for_every_change(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """The same clause: a claim, its resolution, a preparation and an abortion, each sent twice."""
        writer, uid = uuid4(), uuid4()
        base: Manifest | None = None

        for change in (
            Claim(stream="orders", writer=writer, incarnation=uuid4(), first_offset=7),
            Prepare(writer=writer, attempts=[(uid, 7)]),
            Abort(attempts=frozenset({uid})),
        ):
            first = run(offloader.commit_manifest("orders", change, base=base, committer=writer))
            for known in (base, first):
                again = run(other.commit_manifest("orders", change, base=known, committer=writer))
                assert again.commit_id == first.commit_id
            base = first

    # Snapshots do not move, and chunks are whole: the handles of a tier

    def test_snapshots_do_not_move(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "The range, the table and the bytes behind it are the same at every call"."""
        attempt = run(committed(writer, ledger_of(10)))

        async def seen(handle: ReadHandle) -> tuple[object, ...]:
            table = await handle.table()
            span = (handle.ledger_id, handle.first_offset, handle.next_offset, handle.where)
            return (*span, table.tobytes(), await handle.read(table))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                before = await seen(handle)
                await committed(writer, ledger_of(10, first_offset=10))
                [garbage] = await writer.prepare([20])
                await stored(writer, ledger_of(10, first_offset=20), garbage)
                await other.delete_offloaded(garbage)
                await StreamWriter.claim(other, "orders")
                assert await seen(handle) == before
                await handle.aclose()

        run(scenario())

    def test_chunks_are_whole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Clause "The range begins and ends with a chunk": rows touch, and each reads as one chunk."""
        ledger = MemoryLedger(ledgers.sub_batches().chunks)
        attempt = run(committed(writer, ledger))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                table = await handle.table()
                begins = [*table["offset"].tolist(), handle.next_offset]
                ends = [handle.first_offset, *(table["offset"] + table["records"]).tolist()]
                assert begins == ends
                for row, chunk in enumerate(ledger.chunks):
                    rows = table[row : row + 1]
                    assert await handle.read(rows) == chunk
                    columns = ["offset", "timestamp_ms", "size_bytes", "records", "type"]
                    assert rows[columns].tolist() == scan(chunk, where="chunk")[columns].tolist()

        run(scenario())

    def test_streams_are_listed_by_name(self, run: Run, offloader: LedgerOffloader) -> None:
        """Whatever a stream is called, it is listed under that name, and is not its neighbour."""
        names = ["/", "Orders", "a b", "orders", "orders.", "orders/eu", "é", "日本"]
        for name in reversed(names):
            run(StreamWriter.claim(offloader, name))

        assert run(offloader.streams()) == sorted(names)
        assert [run(offloader.load_manifest(name)).stream for name in names] == names

    def test_closing_is_idempotent(self, run: Run, opened: Open) -> None:
        """Used or not, an offloader may be closed twice."""
        offloader = opened()
        run(offloader.open(create=True))

        run(offloader.aclose())
        run(offloader.aclose())


async def stored(writer: StreamWriter, ledger: ReadHandle, attempt: Attempt) -> Receipt:
    """Offload without committing."""
    return await writer.offloader.offload(ledger, attempt, manifest=writer.manifest, extra_metadata={})


async def committed(writer: StreamWriter, ledger: ReadHandle) -> Attempt:
    """Prepare, offload and commit one ledger."""
    [attempt] = await writer.prepare([ledger.ledger_id])
    await writer.append([await stored(writer, ledger, attempt)])
    return attempt


def append_of(writer: StreamWriter, receipt: Receipt) -> Append:
    """The change with which `writer` would commit this one receipt."""
    return Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))


async def chunks_of(
    offloader: LedgerOffloader, attempt: Attempt, *, only: range | None = None
) -> list[bytes]:
    """Every chunk that is read back of an attempt."""
    async with await offloader.read_offloaded(attempt, only=only) as handle:
        table = await handle.table()
        return [await handle.read(table[row : row + 1]) for row in range(len(table))]


async def left_by_a_crash(offloader: LedgerOffloader, stream: str) -> list[bytes]:
    """Take the stream as the next writer would, and return the chunks that it then holds."""
    successor = await StreamWriter.claim(offloader, stream)
    chunks: list[bytes] = []
    uids: dict[UUID, None] = {}
    async with aclosing(offloader.tree(successor.manifest).walk()) as runs:
        async for run in runs:
            uids |= dict.fromkeys(UUID(bytes=bytes(raw)) for raw in run["attempt"])
    for uid in uids:
        chunks += await chunks_of(offloader, Attempt(stream=stream, ledger_id=0, uid=uid))
    return chunks
