"""Sources: an offload checks every byte of them, passes their errors on, and leaves their handle open.

Invariant: a clause here knows the content of the source, because it built it. The offloader's answers are
only asserted, never used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk import scan
from offload.ground.errors import Corrupt, Misuse, TryAgain
from offload.model.attempt import Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.write.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, give_way, ledger_of, refuse_reads
from offload_conformance.offloader.base import (
    OffloaderClauses,
    append_of,
    chunks_of,
    committed,
    left_by_a_crash,
    named,
    stored,
)
from offload_conformance.offloader.edges import METADATA_NAMES
from offload_conformance.offloader.leftovers import taken
from offload_conformance.opened import KIB
from offload_conformance.raising import raises
from offload_conformance.same import OWN_CHOICE, assert_same

DAMAGED: Final = {
    "magic": ("few", 0),
    "type": ("few", 1),
    "records": ("few", 7),
    "timestamp": ("few", 8),
    "offset": ("few", 31),
    "crc": ("few", 35),
    "size": ("few", 39),
    "reserved": ("few", 47),
    "data": ("few", -1),
    "the last of many": ("many", -1),
    "tracking": ("tracking", -1),
    "tracking among messages": ("mixed", -1),
}
"""The chunk that is damaged, by `damaged_chunk`, and the damaged byte in it.

Only a check of the header, or of the CRC-32 of the data, finds damage in these bytes.
"""

FAILURES: Final = 6
"""More failures than an offloader usually has slots for uploads: each might keep one of them for ever."""

SETTLE_SECONDS: Final = 0.1
"""How long tasks get to continue, or to end, before the clause looks."""

METADATA: Final = MappingProxyType(
    {
        "host": "rabbit@häuschen",
        "名前": "日本語 😀",
        "quoted": 'it\'s "so"; \\ % _ {} <b>\t\n',
        "empty": "",
        "": "no name",
        " ": " ",
        "nul": "a\0b",
        "a\nb\r": "\r\n\x7f\u2028",
        "Host": "another case",
        "../../up": "..",
        "__proto__": "[object Object]",
        "-1": "-1",
        "long": "é" * 6_000,
        "n" * 200: "a long name",
        **dict.fromkeys(METADATA_NAMES, "7"),
    }
)
"""Texts that callers may store beside their data, also under names that the offloader uses. Read only."""

SHAPES: Final[dict[str, Callable[[], list[bytes]]]] = {
    "simple": lambda: ledgers.simple().chunks,
    "sub_batches": lambda: ledgers.sub_batches().chunks,
    "crowded": ledgers.crowded,
    "with_tracking": lambda: ledgers.with_tracking().chunks,
    "clock_goes_back": lambda: ledgers.clock_goes_back().chunks[:10],
    "before_1970": lambda: ledgers.before_1970().chunks,
    "tracking_alone": lambda: ledgers.tracking_alone().chunks,
    "large": lambda: [*drawn_ledger(20, size_bytes_max=64 * KIB).chunks],
}
"""Ledgers that are easily miscounted. The one of `clock_goes_back` ends with the least of its times."""


class SourceClauses(OffloaderClauses):
    """The clauses on the source's handle: it is checked, read and left open."""

    @pytest.mark.parametrize(("chunk", "byte"), DAMAGED.values(), ids=DAMAGED)
    def test_offloads_are_checked(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, chunk: str, byte: int
    ) -> None:
        """`offload` raises `Corrupt` for a damaged chunk, with its file and stream, and never stores it."""
        where = f"segments/{random.getrandbits(32)}.segment"
        sound, bad = damaged_chunk(chunk)
        offset = run(sound.table())["offset"].tolist()[bad]

        self.refused(run, writer, sound.damaged(offset, byte=byte, where=where), sound.positions_of(offset))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(bad + 1)]

    def test_offloads_are_checked_for_length(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """If the source ends too early, `offload` raises `Corrupt` there, and stores nothing behind."""
        sound = ledger_of(10)
        bad = random.randrange(10)

        self.refused(run, writer, sound.torn(bad), (sound.positions_of(bad)[0], sound.positions_of(9)[1]))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(bad + 1)]

    @pytest.mark.parametrize("chunk", ["first", "inner", "last"])
    def test_offloads_are_checked_for_holes(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, chunk: str
    ) -> None:
        """If a chunk is missing in the source's table, `offload` stores nothing from there on."""
        sound = ledger_of(10)
        missing = {"first": 0, "inner": random.randrange(1, 9), "last": 9}[chunk]
        [attempt] = run(writer.prepare([0]))

        with raises(Corrupt, f"an offload by a table without its {chunk} chunk") as caught:
            run(stored(writer, sound.with_a_hole(missing), attempt))

        assert caught.value.where == sound.where
        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(missing + 1)]

    def refused(self, run: Run, writer: StreamWriter, ledger: MemoryLedger, span: tuple[int, int]) -> None:
        """Assert that offloading `ledger` raises `Corrupt` with file, stream and a place in `span`."""
        [attempt] = run(writer.prepare([0]))
        with pytest.raises(Corrupt) as caught:
            run(stored(writer, ledger, attempt))
        assert caught.value.where == ledger.where
        assert caught.value.stream == attempt.stream
        assert caught.value.position in range(*span), f"expected a position in {span}"

    def test_ledgers_are_those_announced(self, run: Run, writer: StreamWriter) -> None:
        """A handle of another ledger than the announced one is `Misuse`, and is not read."""
        [attempt] = run(writer.prepare([7]))
        ledger = ledger_of(10)
        ledger.before_read = refuse_reads

        with pytest.raises(Misuse):
            run(stored(writer, ledger, attempt))

    @pytest.mark.parametrize("kind", [TryAgain, Corrupt, PermissionError])
    def test_errors_of_the_source_are_passed_on(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, kind: type[Exception]
    ) -> None:
        """If reading the source fails, `offload` raises the same error, or reads again after `TryAgain`.

        The error may be of any class, also one of the operating system.
        """
        ledgers = [ledger_of(12, body_size_bytes=500 * KIB) for _ in range(FAILURES)]
        attempts = run(writer.prepare([0] * FAILURES))
        for ledger in ledgers:
            ledger.before_read = failing_once(ledger, kind, first_offset=random.randrange(1, 12))

        async def scenario() -> list[Receipt | BaseException]:
            copies = (stored(writer, ledger, each) for ledger, each in zip(ledgers, attempts, strict=True))
            return await asyncio.gather(*copies, return_exceptions=True)

        for ended, ledger in zip(run(scenario()), ledgers, strict=True):
            if isinstance(ended, Receipt) and kind is TryAgain:
                assert_describes(ended, ledger)
            else:
                assert isinstance(ended, kind), f"expected the source's {kind.__name__}; found {ended!r:.200}"

        chunks = ledgers[0].chunks
        assert run(left_by_a_crash(other, "orders")) in [[*chunks[:n]] for n in range(len(chunks) + 1)]
        sound, bills = drawn_ledger(3), run(StreamWriter.claim(writer.offloader, "bills"))
        assert run(chunks_of(other, run(committed(bills, sound)))) == [*sound.chunks]

    def test_cancelled_offloads_hinder_nobody(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """After an offload is cancelled, other offloads work, and its attempt can be deleted.

        Another attempt at the same ledger, which was stored before, can still be committed.
        """
        ledger, sound = ledger_of(12, body_size_bytes=500 * KIB), drawn_ledger(5)
        before, *attempts = run(writer.prepare([0] * (FAILURES + 1)))
        receipt = run(stored(writer, sound, before))

        async def scenario() -> None:
            for attempt in attempts:
                reading = asyncio.Event()

                async def hold(rows: ChunkTable, reading: asyncio.Event = reading) -> None:
                    reading.set()
                    await asyncio.sleep(60)

                ledger.before_read = hold
                offloading = asyncio.create_task(stored(writer, ledger, attempt))
                begun = asyncio.create_task(reading.wait())
                await asyncio.wait([offloading, begun], return_when=asyncio.FIRST_COMPLETED)
                offloading.cancel()
                await asyncio.gather(offloading, return_exceptions=True)
                assert offloading.cancelled(), "expected that a cancelled offload raises `CancelledError`"

        run(scenario())

        run(writer.append([receipt]))
        behind = drawn_ledger(5, first_offset=sound.next_offset)
        attempt = run(committed(writer, behind))
        for each in attempts:
            run(other.delete_offloaded(each))
        assert run(chunks_of(other, before)) == [*sound.chunks]
        assert run(chunks_of(other, attempt)) == [*behind.chunks]

    def test_returned_offloads_read_no_more(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Once `offload` has returned, its ledger is neither read nor needed: the data is on the tier."""
        ledger = drawn_ledger(20, size_bytes_max=64 * KIB)
        [attempt] = run(writer.prepare([ledger.ledger_id]))

        async def scenario() -> list[int]:
            has_ended, late = False, list[int]()

            async def watch(rows: ChunkTable) -> None:
                await asyncio.sleep(0)
                if has_ended:
                    late.append(int(rows["offset"][0]))

            ledger.before_read = watch
            receipt = await stored(writer, ledger, attempt)
            has_ended = True
            await writer.append([receipt])
            await asyncio.sleep(SETTLE_SECONDS)
            for client in (offloader, other):
                assert await chunks_of(client, attempt) == [*ledger.chunks]
            return late

        late = run(scenario())

        assert late == [], f"expected no read after the end; found reads of the chunks at {late}"

    @pytest.mark.parametrize("ended_by", [asyncio.CancelledError, PermissionError])
    def test_ended_offloads_read_no_more(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, ended_by: type[BaseException]
    ) -> None:
        """Once `offload` was cancelled or has raised, it reads no more of its ledger, whatever it began."""
        ledger = ledger_of(12, body_size_bytes=500 * KIB)
        [attempt, next_one] = run(writer.prepare([0, 0]))

        async def scenario() -> list[int]:
            began, goes_on, has_ended, late = asyncio.Event(), asyncio.Event(), False, list[int]()

            async def hold(rows: ChunkTable) -> None:
                if began.is_set() or ended_by is asyncio.CancelledError:
                    began.set()
                    await goes_on.wait()
                    if has_ended:
                        late.append(int(rows["offset"][0]))
                else:
                    began.set()
                    await asyncio.sleep(SETTLE_SECONDS)
                    raise ended_by("the source is gone")

            ledger.before_read = hold
            offloading = asyncio.create_task(stored(writer, ledger, attempt))
            await began.wait()
            if ended_by is asyncio.CancelledError:
                await asyncio.sleep(SETTLE_SECONDS)
                offloading.cancel()
            [ended] = await asyncio.gather(offloading, return_exceptions=True)
            assert isinstance(ended, ended_by), f"expected {ended_by.__name__}; found {ended!r:.200}"
            has_ended = True
            await other.delete_offloaded(attempt)
            goes_on.set()
            await asyncio.sleep(SETTLE_SECONDS)
            return late

        late = run(scenario())

        assert late == [], f"expected no read after the end; found reads of the chunks at {late}"
        ledger.before_read = give_way
        run(writer.append([run(stored(writer, ledger, next_one))]))
        assert run(chunks_of(other, next_one)) == [*ledger.chunks]

    def test_source_handles_stay_open(self, run: Run, writer: StreamWriter) -> None:
        """`offload` never closes the handle that it copies, however it ends."""
        sound, torn = drawn_ledger(5), ledger_of(10).torn(4)
        [once, again, refused] = run(writer.prepare([0, 0, 0]))

        run(stored(writer, sound, once))
        run(stored(writer, sound, again))
        with pytest.raises(Corrupt):
            run(stored(writer, torn, refused))

        assert (sound.closed, torn.closed) == (0, 0)

    def test_extra_metadata_is_any_text(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """`extra_metadata` may hold any text, also 12,000 bytes of it, and does not change what is stored.

        It makes no difference to a receipt, a manifest, a leftover, a read or a deletion, whatever its names.
        """
        ledger = drawn_ledger(5, ledger_id=3)
        behind = drawn_ledger(4, first_offset=ledger.next_offset, ledger_id=3)
        given = dict(METADATA)

        async def told(stream: str, metadata: Mapping[str, str]) -> list[object]:
            writer = await StreamWriter.claim(offloader, stream)
            kept, left, dropped = await writer.prepare([3, 3, 3])
            receipts = [
                await offloader.offload(source, attempt, manifest=writer.manifest, extra_metadata=metadata)
                for source, attempt in ((ledger, kept), (behind, left), (behind, dropped))
            ]
            await writer.append(receipts[:1])
            await other.delete_offloaded(dropped)
            manifest = await taken(other, stream)
            found = [receipts, manifest, await named(other, manifest), await other.leftovers(manifest)]
            await other.delete_offloaded(left)
            assert await chunks_of(other, kept) == [*ledger.chunks]
            assert await other.leftovers(await taken(other, stream)) == []
            return [*found, await other.load_manifest(stream)]

        with_it, without = run(told("with", given)), run(told("without", {}))

        for found, expected in zip(with_it, without, strict=True):
            assert_same(found, expected, but=OWN_CHOICE)
        assert given == METADATA, "the caller's mapping was changed"

    def test_offloads_may_run_at_once(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Ledgers that are offloaded at the same time, of one stream or of several, do not mix."""
        bills = run(StreamWriter.claim(offloader, "bills"))
        count = random.randint(5, 9)
        sources = [[drawn_ledger(random.randint(1, 12), ledger_id=n) for n in range(count)] for _ in range(2)]
        attempts = [run(each.prepare([*range(count)])) for each in (writer, bills)]

        async def dawdle(rows: ChunkTable) -> None:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)

        async def scenario() -> list[Receipt]:
            copies = [
                (held, source, attempt)
                for held, of_stream, announced in zip((writer, bills), sources, attempts, strict=True)
                for source, attempt in zip(of_stream, announced, strict=True)
            ]
            random.shuffle(copies)
            for _, source, _ in copies:
                source.before_read = dawdle
            return await asyncio.gather(*(stored(*copy) for copy in copies))

        receipts = {receipt.attempt: receipt for receipt in run(scenario())}

        for held, of_stream, announced in zip((writer, bills), sources, attempts, strict=True):
            chosen = random.randrange(count)
            run(held.append([receipts[announced[chosen]]]))
            assert run(chunks_of(other, announced[chosen])) == [*of_stream[chosen].chunks]
            for source, attempt in zip(of_stream, announced, strict=True):
                assert_describes(receipts[attempt], source)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_receipts_tell_what_was_copied(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: str
    ) -> None:
        """The entries of a receipt cover the ledger in order, and have its messages, bytes and times.

        The chunks of the source need not follow each other in its file.
        """
        ledger = MemoryLedger(SHAPES[shape](), ledger_id=random.randint(1, 99)).scattered()
        [attempt] = run(writer.prepare([ledger.ledger_id]))

        receipt = run(stored(writer, ledger, attempt))
        run(writer.append([receipt]))

        assert receipt.attempt == attempt
        assert dict(receipt.dropped_sections) == {}, "no section was left out"
        assert_describes(receipt, ledger)
        manifest = run(other.load_manifest("orders"))
        table = scan(b"".join(ledger.chunks), where="expected")
        assert manifest.messages == int(table["records"][table["type"] == ChunkType.USER].sum())
        assert manifest.data_size_bytes == sum(map(len, ledger.chunks))
        assert (manifest.fragments, manifest.ledgers) == (len(receipt.entries), 1)
        assert manifest.last_ledger_id == ledger.ledger_id
        assert run(named(other, manifest)) == [*receipt.entries]
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]

    @pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
    def test_receipts_are_of_durable_bytes(
        self, run: Run, opened: Callable[[], LedgerOffloader], writer: StreamWriter, closed: bool
    ) -> None:
        """When `offload` returns, any client can commit and read the data, even if the first is closed."""
        ledger = drawn_ledger(random.randint(1, 30))
        [attempt] = run(writer.prepare([ledger.ledger_id]))
        receipt = run(stored(writer, ledger, attempt))
        if closed:
            run(writer.offloader.aclose())

        committing, reading = opened(), opened()
        change = append_of(writer, receipt)
        run(committing.commit_manifest("orders", change, base=None, committer=writer.writer))

        assert run(chunks_of(reading, attempt)) == [*ledger.chunks]


def damaged_chunk(which: str) -> tuple[MemoryLedger, int]:
    """Return a ledger, and the row of the chunk in it to damage."""
    match which:
        case "many":  # many fragments, unless the offloader makes very large ones
            return ledger_of(12, body_size_bytes=100 * KIB), 11
        case "tracking":
            alone = MemoryLedger(ledgers.tracking_alone().chunks)
            return alone, random.randrange(len(alone.chunks))
        case "mixed":
            mixed = ledgers.with_tracking()
            return MemoryLedger(mixed.chunks), random.choice(mixed.tracking)
    return ledger_of(10), random.randrange(10)


def failing_once(
    ledger: MemoryLedger, kind: type[Exception], *, first_offset: int
) -> Callable[[ChunkTable], Awaitable[None]]:
    """Return a hook that fails the first read that reaches this offset. `Corrupt` is raised at every read."""
    failed = False

    async def fail(rows: ChunkTable) -> None:
        nonlocal failed
        await asyncio.sleep(0)
        if rows["offset"][-1] < first_offset or (failed and kind is not Corrupt):
            return
        failed = True
        if kind is Corrupt:
            raise Corrupt("size", ledger.where, expected=1, found=0)
        raise kind("the source is gone for now")

    return fail


def assert_describes(receipt: Receipt, ledger: MemoryLedger, *, copied: int = 0) -> None:
    """Assert that the entries of the receipt describe this ledger, without a hole."""
    table = scan(b"".join(ledger.chunks), where="expected")
    begins = [entry.first_offset for entry in receipt.entries] + [ledger.next_offset]
    ends = [ledger.first_offset] + [entry.next_offset for entry in receipt.entries]
    assert begins == ends
    assert receipt.next_offset == ledger.next_offset
    for entry in receipt.entries:
        rows = table[(table["offset"] >= entry.first_offset) & (table["offset"] < entry.next_offset)]
        user = rows[rows["type"] == ChunkType.USER]
        assert (entry.attempt, entry.ledger_id) == (receipt.attempt.uid, ledger.ledger_id)
        assert (entry.messages, entry.copied) == (int(user["records"].sum()), copied)
        assert entry.data_size_bytes == int(rows["size_bytes"].sum())
        assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (
            int(rows["timestamp_ms"].min()),
            int(rows["timestamp_ms"].max()),
        )
