"""Tests of sorted ledgers: each message is there, in the order of keys, and processes make equal bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import offload
from mqtt_stream import MqttStream
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.sorted_source import SortedTier, open_url, topic_source
from offload_mqtt.structure import Structure, decode_structures, encode_key
from offload_mqtt.topic_record import encode_record

from offload import (
    Corrupt,
    LedgerOffloader,
    MemoryHandle,
    Misuse,
    NotOffloaded,
    ObjectStoreOffloader,
    Retention,
    StreamReader,
    StreamReport,
    StreamWriter,
    TierOptions,
    build_chunk,
    sync,
    trim,
)
from offload.contracts.source import Source
from offload.index.job import index
from offload.index.ranges import PartRanges, look_up_ranges
from offload.index.terms import Spec
from offload.model.record_columns import RecordBytes
from offload.read.handles import CutHandle
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact
from offload.upkeep.copy.tier import copy
from offload.upkeep.sweep.tier import sweep

NAME = "telemetry.topics"
RANGES = Spec.parse("ranges=mqtt:topic")
ODD = [".lead", "trail.", "a..b", "x", "$odd.x", "ünï.cödé", "site", "a+b.c", "#", "l." * 60 + "l", "y" * 255]
"""Routing keys, of which two are no topic."""


def keys_of(seed: int, count: int) -> list[str | None]:
    """Return routing keys of messages of many topics, some of them odd, and some without one."""
    chance = random.Random(seed)
    kinds: list[Callable[[], str | None]] = [
        lambda: (
            f"site.{chance.randrange(30)}.line.{chance.randrange(12)}.{chance.choice(['speed', 'state'])}"
        ),
        lambda: f"device.{chance.randrange(400)}",
        lambda: chance.choice(ODD),
        lambda: None,
    ]
    return [chance.choices(kinds, [70, 25, 4, 1])[0]() for _ in range(count)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks at 2 KiB, so that each ledger has many."""
    for module in ("sorted_ledger", "sorted_source"):
        monkeypatch.setattr(f"offload_mqtt.{module}.CHUNK_SIZE_BYTES", 2**11)


@pytest.fixture
def stream(tmp_path: Path) -> MqttStream:
    """Return a stream of three sealed segments, and a newest one."""
    made = MqttStream(tmp_path / "telemetry")
    for seed, count in enumerate((700, 900, 300, 100)):
        made.segment(keys_of(seed, count))
    return made


def tier(store: MemoryStore | None = None, *, fragment_size_bytes: int = 20_000) -> ObjectStoreOffloader:
    """Return a tier of small fragments."""
    return ObjectStoreOffloader(
        store or MemoryStore(), options=TierOptions(fragment_size_bytes=fragment_size_bytes)
    )


def source_of(stream: MqttStream) -> Source:
    """Return the sorted stream as another process opens it."""
    return open_url(f"topics+rabbitmq://{stream.folder}", options={})


async def synced(source: Source, target: LedgerOffloader) -> StreamReport:
    """Sync once, and return the report of the one stream."""
    async with aclosing(sync(source, target)) as reports:
        (report,) = [each async for each in reports]
    return report


async def indexed(target: ObjectStoreOffloader, name: str = NAME) -> None:
    """Build the index of ranges by reading the sorted stream."""
    async with aclosing(index(target, name, RANGES, MqttDecoder())) as reports:
        async for _ in reports:
            pass


async def chunks_of(target: ObjectStoreOffloader, name: str = NAME) -> list[bytes]:
    """Return the stored chunks of a stream."""
    reader = await StreamReader.open(target, name)
    return [bytes(chunk.raw) async for chunk in reader.chunks(reader.manifest.first_offset)]


def topic_of(key: str | None) -> bytes:
    """Return the topic of a routing key. Empty if it is none."""
    if key is None or "+" in key or "#" in key:
        return b""
    return key.replace(".", "/").encode()


async def records_of(
    target: ObjectStoreOffloader, name: str = NAME
) -> dict[int, tuple[int, bytes, int, bytes]]:
    """Return kind, topic, origin and rest of each offset."""
    reader, found = await StreamReader.open(target, name), dict[int, tuple[int, bytes, int, bytes]]()
    async for each in reader.runs(reader.manifest.first_offset):
        run = each.run
        for offset, start, size in zip(
            run.offsets.tolist(), run.starts.tolist(), run.sizes.tolist(), strict=True
        ):
            raw = bytes(run.data[start : start + size])
            topic_size = int.from_bytes(raw[2:4], "big")
            topic, rest = raw[20 : 20 + topic_size], raw[20 + topic_size :]
            found[offset] = raw[0], topic, int.from_bytes(raw[4:12], "big"), rest
    return found


def key_by(structures: tuple[Structure, ...], topic: bytes) -> bytes:
    """Return the key of a topic, by trying all structures."""
    levels = tuple(topic.split(b"/"))
    for number, each in enumerate(structures):
        here = levels if b"#" not in each.levels else (*levels[:32], b"#")
        pairs = zip(each.levels, here, strict=False)
        if topic and len(here) == len(each.levels) and all(one in (b"+", level) for one, level in pairs):
            return encode_key((number, *each.values(levels)))
    assert not topic, topic
    return b"\0\0"


async def ranges_of(target: ObjectStoreOffloader, name: str = NAME) -> PartRanges:
    """Return the ranges of a stream, after they were compared with each of its records."""
    records = await records_of(target, name)
    async with aclosing(look_up_ranges(target, name, by=RANGES)) as parts:
        (part,) = [each async for each in parts]
    for ledger in part.ledgers:
        structures, before = decode_structures(ledger.about), (b"", -1)
        edges = [*ledger.offsets.tolist(), ledger.next_offset]
        for row, (first, stop) in enumerate(pairwise(edges)):
            for offset in range(first, stop):
                _, topic, origin, _ = records[offset]
                key = key_by(structures, topic)
                assert ledger.keys[row] <= key <= ledger.keys[row + 1]
                assert before < (key, origin)
                before = key, origin
    return part


def test_each_message_of_sealed_segments_is_there_untouched_in_the_order_of_keys(stream: MqttStream) -> None:
    async def main() -> None:
        target = tier()
        report = await synced(source_of(stream), target)
        await indexed(target)

        assert report.error is None
        found = {
            origin: (kind, topic, rest) for kind, topic, origin, rest in (await records_of(target)).values()
        }
        assert found == {
            offset: (1, topic_of(stream.messages[offset][0]), stream.messages[offset][1])
            if offset in stream.messages
            else (0, b"", b"")
            for offset in range(stream.cuts[-1])
        }
        part = await ranges_of(target)
        assert ([each.first_offset for each in part.ledgers], part.to_scan) == (stream.cuts[:3], [])

    asyncio.run(main())


def test_two_processes_and_both_kinds_of_source_make_equal_bytes(stream: MqttStream) -> None:
    async def main() -> None:
        one, other, whole = tier(), tier(fragment_size_bytes=10**6), tier()
        await synced(source_of(stream), one)
        await synced(source_of(stream), other)
        await synced(open_plain(stream), whole)
        by_tier = SortedTier(whole, "telemetry", "sorted", topic_source("amqp:annotations.x-routing-key"))
        await synced(by_tier, whole)

        assert await chunks_of(one) == await chunks_of(other) == await chunks_of(whole, "sorted")
        assert max(map(len, await chunks_of(one))) <= 2**11 + 48

        await indexed(one)
        rebuilt = (await ranges_of(one)).ledgers
        assert [(each.about, each.keys, each.offsets.tolist()) for each in by_tier.ranges.values()] == [
            (each.about, each.keys, each.offsets.tolist()) for each in rebuilt
        ]

    asyncio.run(main())


def open_plain(stream: MqttStream) -> Source:
    """Return the stream in the order of arrival."""
    from offload_rabbitmq.source import RabbitmqSource

    return RabbitmqSource(stream.folder)


def test_a_later_run_sorts_what_was_sealed_since(stream: MqttStream) -> None:
    async def main() -> None:
        target = tier()
        source = source_of(stream)
        await synced(source, target)
        before = await chunks_of(target)
        stream.append(keys_of(9, 50))
        assert (await synced(source, target)).uploaded_bytes == 0

        stream.segment(keys_of(10, 30))
        for file in stream.folder.glob(f"{stream.cuts[0]:020}.*"):
            file.unlink()  # the broker has trimmed it
        report = await synced(source_of(stream), target)

        assert report.manifest is not None
        assert (report.error, report.manifest.next_offset) == (None, stream.cuts[-1])
        assert (await chunks_of(target))[: len(before)] == before
        origins = {origin for _, _, origin, _ in (await records_of(target)).values()}
        assert origins == {*range(stream.cuts[-1])}

    asyncio.run(main())


@pytest.mark.parametrize("of_tier", [False, True])
def test_a_ledger_that_was_copied_in_part_is_continued(stream: MqttStream, *, of_tier: bool) -> None:
    """A crash leaves whole fragments of a ledger, and the next claim adopts them."""

    async def main() -> None:
        whole, part = tier(), tier()
        await synced(source_of(stream), whole)
        await synced(open_plain(stream), part)

        def source() -> Source:
            if not of_tier:
                return source_of(stream)
            return SortedTier(part, "telemetry", NAME, topic_source("amqp:annotations.x-routing-key"))

        (one,) = await source().streams()
        async with await one.snapshot() as snapshot:
            writer = await StreamWriter.claim(part, NAME)
            table = await snapshot.ledgers[1].table()
            await writer.offload(snapshot.ledgers[:1])
            middle = int(table["offset"][len(table) // 2])
            await writer.offload(
                [CutHandle(snapshot.ledgers[1], first_offset=stream.cuts[1], next_offset=middle)]
            )
        report = await synced(source(), part)

        assert report.error is None
        assert await records_of(part) == await records_of(whole)
        await indexed(part)
        assert (await ranges_of(part)).to_scan == []

    asyncio.run(main())


def test_what_is_trimmed_while_it_is_sorted_ends_the_sort(stream: MqttStream) -> None:
    """A ledger of which the beginning is gone is not sorted as if it had no messages there."""

    async def main() -> None:
        store = MemoryStore()
        target = tier(store, fragment_size_bytes=10_000)
        await synced(open_plain(stream), target)
        source = SortedTier(target, "telemetry", NAME, topic_source("amqp:annotations.x-routing-key"))
        (one,) = await source.streams()
        async with await one.snapshot() as snapshot:
            await trim(target, "telemetry", Retention(before_offset=300))
            await sweep(store, grace_seconds=0)

            with pytest.raises(
                NotOffloaded, match=r"offsets \[0, \d+\) were trimmed before they were sorted"
            ):
                await snapshot.ledgers[0].table()

    asyncio.run(main())


def test_answers_stay_after_trim_compaction_copy_and_the_loss_of_indexes(stream: MqttStream) -> None:
    async def main() -> None:
        store = MemoryStore()
        target = tier(store, fragment_size_bytes=10_000)
        await synced(source_of(stream), target)
        await indexed(target)
        before = await records_of(target)
        await trim(target, NAME, Retention(before_offset=300))
        larger = tier(store, fragment_size_bytes=40_000)
        async for done in compact(larger, fragment_size_bytes=40_000):
            assert done.error is None
        part = await ranges_of(larger)
        first = part.reader.manifest.first_offset
        assert 0 < first <= 300
        assert part.to_scan == []
        assert part.ledgers[0].first_offset == first

        copied = tier()
        async for each in copy(larger, copied):
            assert each.error is None
        assert (await ranges_of(copied)).ledgers == []
        await indexed(copied)
        part = await ranges_of(copied)
        assert [range(each.start, each.stop) for each in part.to_scan] in ([], [range(first, stream.cuts[1])])
        for each in (larger, copied):
            assert await records_of(each) == {at: found for at, found in before.items() if at >= first}

    asyncio.run(main())


def test_an_archive_of_mqtt_is_sorted_by_its_own_topics() -> None:
    async def main() -> None:
        target, topics = tier(), [b"b/2", b"a.b/1", b"", b"b/1", b"a.b/1"]
        writer, records = await StreamWriter.claim(await opened(target), "mqtt"), list[bytes]()
        for number, topic in enumerate(topics):
            records.append(encode_record(2, number, 77, 5_000 + number, topic, b"payload %d" % number))
        records.append(b"\x09a stranger")
        chunk = build_chunk(records, offset=0, timestamp_ms=9, epoch=1)
        await writer.offload([MemoryHandle([chunk])])
        tail = build_chunk([b""], offset=6, timestamp_ms=9, epoch=1)
        await writer.offload([MemoryHandle([tail])])
        await synced(SortedTier(target, "mqtt", "sorted", topic_source("mqtt:topic")), target)

        reader = await StreamReader.open(target, "sorted")
        found = [body async for batch in reader.messages(0) for body in batch.bodies]
        decoded = MqttDecoder().decode(found)
        assert [each.sections["origin"] for each in decoded] == [2, 5, 1, 4, 3, 0]
        assert [each.sections["topic"] for each in decoded][2:] == ["a.b/1", "a.b/1", "b/1", "b/2"]
        assert [each.sections["time_us"] for each in decoded][2:] == [5_001, 5_004, 5_003, 5_000]
        assert [each.value for each in decoded][:3] == [b"payload 2", b"\x09a stranger", b"payload 1"]
        assert MqttDecoder().timestamps(RecordBytes.of(found)).tolist()[2:] == [5, 5, 5, 5]

    asyncio.run(main())


async def opened(target: ObjectStoreOffloader) -> ObjectStoreOffloader:
    await target.open(create=True)
    return target


def test_a_damaged_segment_ends_the_copy_before_it(stream: MqttStream) -> None:
    async def main() -> None:
        segment = stream.folder / f"{stream.cuts[1]:020}.segment"
        raw = bytearray(segment.read_bytes())
        record = stream.messages[stream.cuts[1] + 400][1]
        raw[raw.index(record) + len(record) - 1] ^= 1  # within a body, where no length shows it
        segment.write_bytes(raw)
        report = await synced(source_of(stream), tier())

        assert isinstance(report.error, Corrupt)
        assert report.manifest is not None
        assert report.manifest.next_offset == stream.cuts[1]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "by"),
    [
        ("topics+rabbitmq:///x", "amqp:a.b,c.d"),
        ("topics+rabbitmq:///x", "ranges=mqtt:topic"),
        ("topics+rabbitmq:///x", "nobody:key"),
        ("topics+rabbitmq:///x", "amqp:nothing.x"),
        ("topics+nobody:///x", "amqp:annotations.x-routing-key"),
    ],
)
def test_wrong_urls_and_specs_are_refused(url: str, by: str) -> None:
    with pytest.raises(Misuse):
        open_url(url, options={"by": by})


def test_the_command_sorts_a_stream_and_indexes_it(stream: MqttStream, tmp_path: Path) -> None:
    offload("sync", f"rabbitmq://{stream.folder}", tmp_path / "tier")
    ran = offload("mqtt", "sort", tmp_path / "tier", "telemetry", "sorted")
    again = offload("mqtt", "sort", tmp_path / "tier", "telemetry", "sorted", "--json")

    end = stream.cuts[-1]
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.lines[0].startswith(f"sorted: {end} records in offsets [0, {end}); uploaded ")
    assert ran.lines[1].endswith(f"up to offset {end}")
    assert (again.objects[0]["uploaded_bytes"], again.objects[1]["built"]) == (0, 0)
    assert offload("mqtt", "sort", tmp_path / "tier", "telemetry", "x", "--by", "amqp:none.x").code == 2
