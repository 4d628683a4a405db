"""Fourth set, offloaders: receipts, and the names of what is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from newcomers.fourth_sound import Rows
from newcomers.ledgers import (
    chunks_of,
    copied,
    ledger,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.model.attempt import Attempt, Receipt
from offload.write.writer import StreamWriter

# Receipts


async def _times_to_the_millisecond(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for number in range(200):
        time_ms = 1_700_000_000_000 + number * 7919
        _, receipt = await uploaded(tier, writer, ledger(0, 1, time_ms=time_ms))
        assert receipt.entries[0].last_timestamp_ms == time_ms, number


@bug(_times_to_the_millisecond)
class TimesAreDatetimes(Rows):
    """Times are columns of a type that keeps three-hundredths of a second, so a millisecond is rounded to 0,
    3 or 7.

    Breaks "the entries have the exact sizes and times of their chunks". Costs a reader that begins at a time
    its first chunk, which the tree says is older.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        first, last = self.kept(row.entry.first_timestamp_ms), self.kept(row.entry.last_timestamp_ms)
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first, last_timestamp_ms=last))

    def kept(self, time_ms: int) -> int:
        return time_ms // 10 * 10 + (0, 0, 3, 3, 3, 7, 7, 7, 7, 10)[time_ms % 10]


def large_chunks(records: int) -> list[bytes]:
    """Return two chunks, the first one of sub-batches with this number of records each."""
    batches = [SubBatch.of([b""] * records, Codec.NONE) for _ in range(2)]
    one = build_chunk(batches, offset=0, timestamp_ms=1_700_000_000_000, epoch=1)
    return [one, *chunks_of(records * 2, 1)]


async def _records_of_sub_batches(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", MemoryHandle(large_chunks(40_000)))
    view = await tier.view("s")
    entry = await view.find(0)
    assert entry is not None
    table = await (await view.open(entry)).table()
    assert table["records"].tolist() == [80_000]


@bug(_records_of_sub_batches)
class RecordsAreShort(Rows):
    """The number of a chunk's records is a column of 16 bits, as in its header the number of entries is.

    Breaks "Return one row per chunk of the range, in order": sub-batches make more records than entries.
    Costs the chunks behind such a one: the table has a hole.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        row.rows["records"] %= 2**16
        return row


async def _bounds_of_times(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    times = 1_700_000_000_500, 1_700_000_000_100, 1_700_000_000_300
    chunks = [
        build_chunk([b"x"], offset=at, timestamp_ms=time_ms, epoch=1) for at, time_ms in enumerate(times)
    ]
    _, receipt = await uploaded(tier, writer, MemoryHandle(chunks))
    [entry] = receipt.entries
    assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (min(times), max(times))


@bug(_bounds_of_times)
class FirstTimeOfTheFirstChunk(Rows):
    """The earliest time of a fragment is taken from its first chunk.

    Breaks "the entries have the exact sizes and times of their chunks": clocks of brokers go back. Costs
    retention by age the truth about the oldest record.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        first = int(row.rows["timestamp_ms"][0])
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first))


async def _long_ledger_ids(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, ledger_id=2**53 + 1))
    assert receipt.entries[0].ledger_id == 2**53 + 1


@bug(_long_ledger_ids)
class LedgerIdsAreDoubles(Rows):
    """Ids of ledgers pass through JSON, whose numbers are doubles in the other program.

    Breaks "The id of the ledger". Costs a broker whose ids are hashes: its entries name ledgers that do not
    exist.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        rounded = min(int(float(row.entry.ledger_id)), 2**64 - 1)
        return replace(row, entry=replace(row.entry, ledger_id=rounded))


async def _receipts_are_in_order(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, 8, size=40_000))
    firsts = [entry.first_offset for entry in receipt.entries]
    assert len(firsts) > 2
    assert firsts == sorted(firsts)
    assert receipt.next_offset == 8


@bug(_receipts_are_in_order)
class ReceiptsInOrderOfArrival(Rows):
    """Fragments are uploaded at the same time, and a receipt lists them in the order in which they arrived.

    Breaks "The durable result of an attempt: the entries that a commit may now append, in order of offsets".
    Costs the commit, which finds a gap.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        arrived = sorted(receipt.entries, key=lambda entry: (entry.data_size_bytes, entry.checksum))
        return replace(receipt, entries=arrived)


# Names of what is stored
