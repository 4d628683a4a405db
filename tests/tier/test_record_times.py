"""Tests of times of records: a read from a time begins at the record, if a decoder knows its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from amqp_messages import PROPERTIES, compound, encoded
from command_line import read
from command_line import sync as sync_command
from entry_store import EntryStore, synced
from hypothesis import given
from hypothesis import strategies as st
from offload_rabbitmq.amqp import Timestamp
from offload_rabbitmq.decoder import AmqpDecoder
from osiris_writer import TIMESTAMP_MS, write_stream

from offload import AtTime, Decoded, Decoder, ObjectStoreOffloader, StreamReader, build_chunk
from offload.model.position import PartOffset
from offload.model.record_columns import Integers, RecordBytes
from offload.read.record_times import record_place
from offload.store.memory import MemoryStore


class Timed(Decoder):
    """Records that are their own time as text. Others have none."""

    has_timestamps: ClassVar[bool] = True

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        return [*records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        return [Decoded(record, {}) for record in records]

    def timestamps(self, records: RecordBytes) -> Integers:
        return np.array([int(each) if each.isdigit() else -1 for each in records.to_list()], np.int64)


class Untimed(Timed):
    """The same records, by a decoder that says nothing of times."""

    has_timestamps: ClassVar[bool] = False

    def timestamps(self, records: RecordBytes) -> Integers:
        raise AssertionError("nobody may ask for times that there are not")


@dataclass
class Written:
    """A tier whose chunks have these times and records."""

    chunks: Sequence[tuple[int, Sequence[bytes]]]

    async def place(self, timestamp_ms: int, decoder: Decoder) -> tuple[int, int]:
        """Return the offsets of the chunk and of the record at which a read from this time begins."""
        tier = ObjectStoreOffloader(MemoryStore())
        store = EntryStore()
        for ledger_id, (chunk_ms, records) in enumerate(self.chunks):
            store.begin(ledger_id, *records).timestamps_ms = [chunk_ms] * len(records)
        assert (await synced(store, tier)).error is None
        reader, time = await StreamReader.open(tier, "orders"), AtTime(timestamp_ms)
        chunk = await reader.place_of(time)
        return chunk.offset, (await record_place(reader, time, chunk, decoder=decoder)).offset


TWO = Written([(1000, [b"100", b"400", b"1000"]), (2000, [b"1100", b"none", b"1700", b"1600", b"2000"])])


@pytest.mark.parametrize(
    ("timestamp_ms", "chunk", "record"),
    [
        (-5, 0, 0),
        (100, 0, 0),
        (101, 0, 1),
        (1000, 0, 2),
        (1001, 3, 3),
        (1101, 3, 4),
        (2000, 3, 4),
        (2001, 8, 8),
    ],
)
def test_a_time_finds_the_first_record_of_it_or_later(timestamp_ms: int, chunk: int, record: int) -> None:
    """A record without a time has that of its chunk, so that no read leaves it out."""
    assert asyncio.run(TWO.place(timestamp_ms, Timed())) == (chunk, record)


def test_times_of_records_need_not_ascend() -> None:
    written = Written([(900, [b"100", b"800", b"300", b"900"])])

    assert asyncio.run(written.place(200, Timed())) == (0, 1)


def test_a_chunk_without_such_a_record_is_read_from_its_beginning() -> None:
    """Producers have clocks of their own: their times may be years from those of the broker."""
    written = Written([(5000, [b"100", b"200"]), (6000, [b"300"])])

    assert asyncio.run(written.place(4000, Timed())) == (0, 0)


def test_a_decoder_without_times_begins_at_the_chunk() -> None:
    assert asyncio.run(TWO.place(400, Untimed())) == (0, 0)


def test_decoders_state_no_times_by_default() -> None:
    class Plain(Timed):
        timestamps = Decoder.timestamps

    assert Plain().timestamps(RecordBytes.of([b"1", b"22"])).tolist() == [-1, -1]
    assert Decoder.has_timestamps is False


def message(created_ms: int | None, *, received_ms: int | None = None) -> bytes:
    """Return an AMQP message with a creation time, or with RabbitMQ's annotation, or with neither."""
    annotations = b""
    if received_ms is not None:
        pairs = [encoded("x-opt-rabbitmq-received-time"), encoded(Timestamp(received_ms))]
        annotations = b"\0\x53\x72" + compound(0xC1, pairs)
    nothing, created = [b"\x40"] * 9, b"" if created_ms is None else encoded(Timestamp(created_ms))
    properties = PROPERTIES + compound(0xC0, [*nothing, created]) if created else b""
    return annotations + properties + b"\0\x53\x75\xa0\x04body"


class TestAmqp:
    """Times in AMQP messages."""

    def test_the_creation_time_counts_and_then_the_time_that_rabbitmq_noted(self) -> None:
        records = [message(5), message(None, received_ms=7), message(5, received_ms=7), message(None), b"raw"]

        assert AmqpDecoder().timestamps(RecordBytes.of(records)).tolist() == [5, 7, 5, -1, -1]

    def test_a_creation_time_before_1970_is_none(self) -> None:
        records = RecordBytes.of([message(-1), message(-(2**63), received_ms=3), message(2**63 - 1)])

        assert AmqpDecoder().timestamps(records).tolist() == [-1, 3, 2**63 - 1]

    @given(st.lists(st.binary(max_size=60), max_size=4))
    def test_no_record_is_refused(self, records: list[bytes]) -> None:
        assert (AmqpDecoder().timestamps(RecordBytes.of(records)) >= -1).all()

    def test_offload_read_begins_at_the_record(self, tmp_path: Path) -> None:
        records = [message(TIMESTAMP_MS - 900 + 100 * number) for number in range(10)]
        later = [message(TIMESTAMP_MS + 50)]
        write_stream(
            tmp_path / "orders",
            [
                build_chunk(records, offset=0, timestamp_ms=TIMESTAMP_MS, epoch=1),
                build_chunk(later, offset=10, timestamp_ms=TIMESTAMP_MS + 90, epoch=1),
            ],
        )
        sync_command(tmp_path / "orders", tmp_path / "tier")

        def first(back_ms: int, *options: str) -> int:
            found = read(tmp_path / "tier", "orders", "--from", f"@{TIMESTAMP_MS - back_ms}", *options)
            return int(found.objects[0]["offset"])

        assert first(350, "--decode", "amqp") == 6
        assert first(350) == 0
        assert first(-10, "--decode", "amqp") == 10
        assert first(350, "--decode", "amqp", "--source", f"rabbitmq://{tmp_path / 'orders'}") == 6


def test_a_place_behind_the_end_stays() -> None:
    async def scenario() -> None:
        tier, store = ObjectStoreOffloader(MemoryStore()), EntryStore()
        store.begin(0, b"100")
        await synced(store, tier)
        reader = await StreamReader.open(tier, "orders")

        assert await record_place(reader, AtTime(9000), PartOffset(1, 1), decoder=Timed()) == PartOffset(1, 1)

    asyncio.run(scenario())
