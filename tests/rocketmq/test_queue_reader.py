"""Tests of `QueueReader`: it answers as RocketMQ 5.3.3 does, and where that is wrong, as it should."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rocketmq import queue_reader
from offload_rocketmq.decoder import RocketmqDecoder
from offload_rocketmq.queue_reader import PullAnswer, PullStatus, QueueReader, ReadLevel
from offload_rocketmq.source import SYSTEM_TOPICS, RocketmqSource
from rocketmq_answers import LOCAL, SIZE_BYTES_MAX, STATUSES, TIER, Mistakes, Queue, Stored
from rocketmq_sets import answers, messages, restored
from rocketmq_store import BrokerStore

from offload import (
    Corrupt,
    MemoryHandle,
    Misuse,
    NotOffloaded,
    ObjectStoreOffloader,
    StreamWriter,
    build_chunk,
    sync,
)
from offload.index.job import index
from offload.index.terms import Spec
from offload.store.memory import MemoryStore

SETS = [("trimmed", "local"), ("six", "local"), ("six", "tier"), ("extras", "local")]
LEVELS = {"local": ReadLevel.DISABLE, "tier": ReadLevel.FORCE}
MISTAKES = {"local": LOCAL, "tier": TIER}
BEGIN_MS = 1_700_000_000_000
S = PullStatus


def stream_of(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['queue']}"


def is_copied(row: dict[str, Any]) -> bool:
    return row["topic"] not in SYSTEM_TOPICS | {"Inner"}


def asked(name: str, reader: str, question: str) -> list[dict[str, Any]]:
    """Return the recorded answers, and of many only a part of them."""
    found = [row for row in answers(name, reader, question) if is_copied(row)]
    return found if CAMPAIGN else found[:: 1 + len(found) // 80]


def queues(name: str, mistakes: Mistakes | None = None) -> dict[str, Queue]:
    """Return the model of each queue of a set."""
    found = defaultdict[str, list[Stored]](list)
    for each in filter(is_copied, messages(name)):
        found[stream_of(each)].append(Stored(each["offset"], each["size"], each["store_time"], each["tags"]))
    return {
        stream: Queue(stored, stored[0].offset, stored[-1].offset + 1, mistakes or Mistakes())
        for stream, stored in found.items()
    }


async def copy_of(source: RocketmqSource, tier: ObjectStoreOffloader | None = None) -> ObjectStoreOffloader:
    """Copy a store to a tier, by default to a new one."""
    tier = tier or ObjectStoreOffloader(MemoryStore())
    assert [report.error async for report in sync(source, tier, new_part=True) if report.error] == []
    return tier


async def readers(
    source: RocketmqSource, tier: ObjectStoreOffloader, level: ReadLevel
) -> dict[str, QueueReader]:
    return {each.name: await QueueReader.open(each, tier, level=level) for each in await source.streams()}


def offsets(answer: PullAnswer) -> tuple[str, int, list[int]]:
    return answer.status.value, answer.next_offset, [each.offset for each in answer.messages]


# What a real broker answered.


@pytest.mark.parametrize(("name", "reader"), SETS)
def test_pulls_are_those_of_the_broker_but_for_its_hashes_file_ends_and_late_sizes(
    name: str, reader: str, tmp_path: Path
) -> None:
    right, rocketmq = queues(name), queues(name, MISTAKES[reader])

    async def run() -> None:
        source = RocketmqSource(restored(name, tmp_path / "store"))
        found = await readers(source, await copy_of(source), LEVELS[reader])
        for row in asked(name, reader, "pulls"):
            stream, offset, count, tags = stream_of(row), row["offset"], row["count"], row["tags"]
            status, next_offset, expected = rocketmq[stream].pull(offset, count, tags)
            assert (STATUSES[status], next_offset, expected) == (row["status"], row["next"], row["offsets"])
            answer = await found[stream].get_message(
                offset, count=count, tags=tags, size_bytes_max=SIZE_BYTES_MAX
            )
            assert offsets(answer) == right[stream].pull(offset, count, tags), row

    asyncio.run(run())


@pytest.mark.parametrize(("name", "reader"), SETS)
def test_offsets_of_times_are_those_of_the_broker_but_for_its_upper_and_hosts_in_ipv6(
    name: str, reader: str, tmp_path: Path
) -> None:
    """The tier of RocketMQ reads the time from the born host, if that is in IPv6: not compared."""
    right, rocketmq = queues(name), queues(name, MISTAKES[reader])

    async def run() -> None:
        source = RocketmqSource(restored(name, tmp_path / "store"))
        found = await readers(source, await copy_of(source), LEVELS[reader])
        for row in asked(name, reader, "times"):
            stream, ms = stream_of(row), row["time"]
            for boundary in ("lower", "upper"):
                assert await found[stream].offset_by_time(ms, boundary) == right[stream].at_time(ms, boundary)
                if reader == "local":
                    assert rocketmq[stream].at_time(ms, boundary) == row[boundary]
        for stream, queue in right.items():
            assert await found[stream].earliest_time() == queue.messages[0].store_ms

    asyncio.run(run())


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize(("name", "reader"), SETS)
def test_a_query_finds_every_hit_that_the_client_confirmed_and_no_other(
    name: str, reader: str, is_indexed: bool, tmp_path: Path
) -> None:
    """But for the times of the broker: whole seconds locally, and those of uploads on its tier."""
    stored = [each for each in messages(name) if is_copied(each)]

    async def run() -> None:
        tier = await copy_of(RocketmqSource(restored(name, tmp_path / "store")))
        if is_indexed:
            for stream in await tier.streams():
                async for _ in index(tier, stream, Spec("rocketmq", ("keys",)), RocketmqDecoder()):
                    pass
        for row in asked(name, reader, "keys"):
            key, begin, end = row["key"], row["begin"], row["end"]
            found = await QueueReader.query(tier, row["topic"], key, begin, end, row["max"])
            hits = {(each.stream, each.offset) for each in found}
            assert len(hits) == len(found)
            of_key = {
                (stream_of(each), each["offset"]): each["store_time"]
                for each in stored
                if each["topic"] == row["topic"]
                and key in [*(each["keys"] or "").split(" "), each["unique_key"]]
            }
            assert hits == {place for place, ms in of_key.items() if begin <= ms <= end}
            confirmed = {
                (f"{row['topic']}/{each['queue']}", each["offset"])
                for each in row["hits"]
                if each["confirmed"]
            }
            assert all(end < of_key[each] <= end + 1000 for each in confirmed - hits)
            if begin == 0:  # all readers of RocketMQ find all of this range, but no more than 64
                assert confirmed == hits or len(row["hits"]) >= 64

    asyncio.run(run())


# What a broker does that writes, deletes and loses messages.


def put(
    store: BrokerStore, ms: int, tag: str = "", keys: str = "", queue: int = 0, body: bytes = b"x"
) -> int:
    """Append a message that is stored at this time. Return its position in the log."""
    pairs = [("TAGS", tag), ("KEYS", keys)]
    store.span_ms, store.count = 1, ms
    properties = "".join(f"{name}\1{value}\2" for name, value in pairs if value).encode()
    return store.append("Orders", queue, body, properties=properties)


def on(folder: Path, act: Callable[[BrokerStore, RocketmqSource], Awaitable[None]]) -> None:
    store = BrokerStore(folder / "store")
    asyncio.run(act(store, RocketmqSource(store.folder)))


async def reader_of(source: RocketmqSource, tier: ObjectStoreOffloader, level: ReadLevel) -> QueueReader:
    return (await readers(source, tier, level))["Orders/0"]


def test_levels_differ_in_the_side_that_they_read(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in range(60):
            put(store, 10 * ms)
        tier = await copy_of(source)
        for ms in range(60, 80):
            put(store, 10 * ms)
        store.delete_log(before=store.positions["Orders", 0][45])
        first = min(
            row
            for row, at in enumerate(store.positions["Orders", 0])
            if at >= int(store.log_file(store.positions["Orders", 0][45]).name)
        )
        assert 0 < first < 60
        answered = {
            level: [
                offsets(await (await reader_of(source, tier, level)).get_message(at, count=50))
                for at in (0, 40, 75, 80)
            ]
            for level in ReadLevel
        }

        assert answered == {
            ReadLevel.DISABLE: [
                ("OFFSET_TOO_SMALL", first, []),
                ("OFFSET_TOO_SMALL", first, []) if first > 40 else ("FOUND", 80, [*range(40, 80)]),
                ("FOUND", 80, [*range(75, 80)]),
                ("OFFSET_OVERFLOW_ONE", 80, []),
            ],
            ReadLevel.NOT_IN_DISK: [
                ("FOUND", 50, [*range(50)]),
                ("FOUND", 80, [*range(40, 80)]),
                ("FOUND", 80, [*range(75, 80)]),
                ("OFFSET_OVERFLOW_ONE", 80, []),
            ],
            ReadLevel.FORCE: [
                ("FOUND", 50, [*range(50)]),
                ("FOUND", 60, [*range(40, 60)]),
                ("OFFSET_OVERFLOW_BADLY", 60, []),
                ("OFFSET_OVERFLOW_BADLY", 60, []),
            ],
        }

    on(tmp_path, act)


def test_messages_of_one_time_are_counted_across_files_chunks_and_sides(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for at in range(30):  # a file of the queue has 8 units, a file of the log 10 messages
            put(store, 5 if at < 29 else 6, body=bytes(300))
            if at == 18:
                tier = await copy_of(source)
        store.delete_log(before=store.positions["Orders", 0][12])
        reader = await reader_of(source, tier, ReadLevel.NOT_IN_DISK)

        assert [await reader.offset_by_time(BEGIN_MS + 5, each) for each in ("lower", "upper")] == [0, 28]

    on(tmp_path, act)


def test_a_reader_at_the_end_of_the_tier_sees_what_is_copied_later(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        put(store, 0)
        tier = await copy_of(source)
        reader = await reader_of(source, tier, ReadLevel.FORCE)
        assert offsets(await reader.get_message(0, count=9)) == (S.FOUND, 1, [0])
        put(store, 10)
        await copy_of(source, tier)

        assert offsets(await reader.get_message(1, count=9)) == (S.FOUND, 2, [1])
        assert await reader.offset_by_time(BEGIN_MS + 10) == 1

    on(tmp_path, act)


def test_pulls_one_after_the_other_return_each_message_once_while_the_broker_writes(tmp_path: Path) -> None:
    """The rest of a chunk is kept between pulls. What comes meanwhile is behind it."""

    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in range(40):
            put(store, 100 * ms)
        reader = await reader_of(source, await copy_of(source), ReadLevel.NOT_IN_DISK)
        found, at = list[bytes](), 0
        for ms in range(40, 60):
            put(store, 100 * ms)
            answer = await reader.get_message(at, count=3)
            found, at = [*found, *(each.record for each in answer.messages)], answer.next_offset

        assert at == 60
        assert found == store.records["Orders", 0]

    on(tmp_path, act)


def test_a_hole_is_not_passed_without_a_word(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in range(20):
            put(store, 10 * ms)
        tier = await copy_of(source)
        for ms in range(20, 90):
            put(store, 10 * ms)
        store.delete_log(before=store.positions["Orders", 0][70])
        first = int(
            (await (await reader_of(source, tier, ReadLevel.DISABLE)).get_message(0, count=1)).next_offset
        )
        assert 20 < first < 90

        for _ in range(2):
            reader = await reader_of(source, tier, ReadLevel.NOT_IN_DISK)
            assert offsets(await reader.get_message(15, count=99)) == (S.FOUND, 20, [*range(15, 20)])
            for at in (20, first - 1):
                assert offsets(await reader.get_message(at, count=99)) == (S.OFFSET_TOO_SMALL, first, [])
            assert offsets(await reader.get_message(first, count=1)) == (S.FOUND, first + 1, [first])
            assert await reader.offset_by_time(BEGIN_MS + 200) == first
            await copy_of(source, tier)  # behind the hole a new part begins

    on(tmp_path, act)


@pytest.mark.parametrize("level", [ReadLevel.NOT_IN_DISK, ReadLevel.FORCE])
def test_of_offsets_that_were_given_twice_the_newest_message_counts(level: ReadLevel, tmp_path: Path) -> None:
    async def run() -> None:
        lost, kept = BrokerStore(tmp_path / "lost"), BrokerStore(tmp_path / "kept")
        for ms in range(30):
            put(lost, 10 * ms, body=bytes(300))  # a file of the log has 10 messages
        tier = await copy_of(RocketmqSource(lost.folder))
        early = await reader_of(RocketmqSource(lost.folder), tier, ReadLevel.FORCE)
        assert offsets(await early.get_message(19, count=1)) == (S.FOUND, 20, [19])
        for ms in range(40):
            put(kept, 10 * ms if ms < 25 else 5000 + 10 * ms, body=bytes(300))
        kept.delete_log(before=kept.positions["Orders", 0][25])
        source = RocketmqSource(kept.folder)
        await copy_of(source, tier)
        reader = await reader_of(source, tier, level)

        found, at = list[bytes](), 0
        while (answer := await reader.get_message(at, count=7)).messages:
            assert offsets(answer)[2] == [*range(at, answer.next_offset)]
            found, at = [*found, *(each.record for each in answer.messages)], answer.next_offset
        assert found == [*lost.records["Orders", 0][:20], *kept.records["Orders", 0][20:]]
        assert [await reader.offset_by_time(BEGIN_MS + 10 * at) for at in (19, 20, 28)] == [19, 20, 25]
        (message,) = (await reader.get_message(20, count=1)).messages
        assert message.stream == "Orders/0-part-2"
        await early.earliest_time()  # it takes the newest state, and may not use what it kept of part 1
        assert (await early.get_message(20, count=1)).messages == [message]

    asyncio.run(run())


def test_a_damaged_record_ends_a_pull_and_is_then_named(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in (0, 5000, 10000, 15000):  # each is a chunk
            put(store, ms, tag="A")
        store.flip(store.positions["Orders", 0][2] + 88)
        reader = await reader_of(source, ObjectStoreOffloader(MemoryStore()), ReadLevel.DISABLE)

        assert offsets(await reader.get_message(0, count=9, tags="A")) == (S.FOUND, 2, [0, 1])
        answer = await reader.get_message(2, count=9)
        assert offsets(answer) == (S.OFFSET_FOUND_NULL, 2, [])
        assert isinstance(answer.error, Corrupt)
        assert "checksum of the body" in str(answer.error)
        assert offsets(await reader.get_message(3, count=9)) == (S.FOUND, 4, [3])

    on(tmp_path, act)


def test_a_record_of_another_format_is_named(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        put(store, 0)
        tier = ObjectStoreOffloader(MemoryStore())
        writer = await StreamWriter.claim(tier, "Orders/0")
        chunk = build_chunk([b"no record"], offset=0, timestamp_ms=BEGIN_MS, epoch=1)
        await writer.offload([MemoryHandle([chunk])])
        reader = await reader_of(source, tier, ReadLevel.FORCE)

        answer = await reader.get_message(0, count=1, tags="A")
        assert offsets(answer) == (S.OFFSET_FOUND_NULL, 0, [])
        for error in (answer.error, *await asyncio.gather(reader.earliest_time(), return_exceptions=True)):
            assert isinstance(error, Corrupt)
            assert "offset 0 of 'Orders/0' at byte 0: record: expected one of RocketMQ's commit log" in str(
                error
            )

    on(tmp_path, act)


def test_an_empty_queue_and_one_that_was_deleted_are_named(tmp_path: Path) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        put(store, 0, queue=1)
        store.put_unit("Orders", 0, 0, bytes(20))
        tier = ObjectStoreOffloader(MemoryStore())
        with pytest.raises(NotOffloaded):
            await reader_of(source, tier, ReadLevel.FORCE)
        reader = await reader_of(source, tier, ReadLevel.NOT_IN_DISK)
        for at in (-1, 0, 7):
            assert offsets(await reader.get_message(at, count=1)) == (S.NO_MESSAGE_IN_QUEUE, at, [])
        assert await reader.earliest_time() is None
        assert await reader.offset_by_time(0) == 0

    on(tmp_path, act)


def test_a_pull_is_limited_in_messages_bytes_and_what_it_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in range(12):
            put(store, ms, tag="B" if ms == 9 else "A", body=bytes(100))
        size = len(store.records["Orders", 0][0])
        reader = await reader_of(source, ObjectStoreOffloader(MemoryStore()), ReadLevel.DISABLE)
        for limit, expected in ((1, 1), (2 * size - 1, 1), (2 * size, 2)):
            answer = await reader.get_message(3, count=5, size_bytes_max=limit)
            assert offsets(answer) == (S.FOUND, 3 + expected, [*range(3, 3 + expected)])
        monkeypatch.setattr(queue_reader, "LOOKED_AT_MAX", 5)
        assert offsets(await reader.get_message(0, count=5, tags="B")) == (S.NO_MATCHED_MESSAGE, 5, [])
        assert offsets(await reader.get_message(5, count=5, tags=" B || C")) == (S.FOUND, 10, [9])
        for wrong in ({"count": 0}, {"count": 1, "tags": " || "}):
            with pytest.raises(Misuse):
                await reader.get_message(0, **wrong)  # type: ignore[arg-type]
        with pytest.raises(Misuse):
            await reader.offset_by_time(0, "middle")  # type: ignore[arg-type]

    on(tmp_path, act)


def test_a_query_returns_the_newest_messages_of_all_queues_and_brokers_to_the_millisecond(
    tmp_path: Path,
) -> None:
    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        for ms in range(8):
            put(store, 300 * ms, keys="red blue" if ms % 2 else "red", queue=ms % 3)
        store.append("Other", 0, b"x", properties=b"KEYS\1red\2")
        tier = await copy_of(source)
        await copy_of(RocketmqSource(store.folder, broker="b"), tier)

        async def query(key: str, begin: int, end: int, count: int) -> list[tuple[str, int]]:
            found = await QueueReader.query(tier, "Orders", key, BEGIN_MS + begin, BEGIN_MS + end, count)
            assert all(
                each.record == store.records["Orders", int(each.stream[-1])][each.offset] for each in found
            )
            return [(each.stream, each.offset) for each in found]

        assert await query("blue", 300, 1500, 99) == [
            (name, ms // 3) for ms in (1, 3, 5) for name in (f"Orders/{ms % 3}", f"b/Orders/{ms % 3}")
        ]
        assert await query("blue", 301, 1499, 99) == [("Orders/0", 1), ("b/Orders/0", 1)]
        assert await query("red", 0, 10**18, 2) == [("Orders/1", 2), ("b/Orders/1", 2)]
        assert await query("none", 0, 10**18, 2) == []
        with pytest.raises(Misuse):
            await query("red", 0, 1, 0)

    on(tmp_path, act)


@settings(max_examples=400 if CAMPAIGN else 15, deadline=None)
@given(st.data())
def test_a_reader_answers_as_the_model_wherever_copies_and_deletions_fall(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    draw, folder = data.draw, tmp_path_factory.mktemp("store")

    async def act(store: BrokerStore, source: RocketmqSource) -> None:
        stored, copied, tier, ms = list[Stored](), 0, ObjectStoreOffloader(MemoryStore()), 0
        for _ in range(draw(st.integers(1, 4), label="rounds")):
            for _ in range(draw(st.integers(1, 25), label="messages")):
                ms += draw(st.sampled_from([0, 0, 1, 400, 1500]))
                tag = draw(st.sampled_from(["", "A", "Aa", "BB"]))
                put(store, ms, tag=tag, body=bytes(draw(st.integers(0, 300))))
                size = len(store.records["Orders", 0][-1])
                stored.append(Stored(len(stored), size, BEGIN_MS + ms, tag or None))
            if draw(st.booleans(), label="copied"):
                await copy_of(source, tier)
                copied = len(stored)
            if copied:  # only what was copied is deleted
                at = draw(st.integers(0, copied - 1), label="deleted before")
                store.delete_log(before=store.positions["Orders", 0][at])
        file = min(int(each.name) for each in (store.folder / "commitlog").iterdir())
        first = next(row for row, at in enumerate(store.positions["Orders", 0]) if at >= file)
        level = draw(st.sampled_from([*ReadLevel] if copied else [ReadLevel.DISABLE, ReadLevel.NOT_IN_DISK]))
        begin = first if level is ReadLevel.DISABLE else 0
        end = copied if level is ReadLevel.FORCE else len(stored)
        model, reader = Queue(stored[begin:end], begin, end), await reader_of(source, tier, level)
        for _ in range(6):
            offset, count = draw(st.integers(-1, len(stored) + 2)), draw(st.integers(1, 30))
            tags, size_max = draw(st.sampled_from(["*", "A", "Aa", "A || BB"])), draw(st.integers(1, 3000))
            answer = await reader.get_message(offset, count=count, tags=tags, size_bytes_max=size_max)
            assert offsets(answer) == model.pull(offset, count, tags, size_max)
            assert [each.record for each in answer.messages] == [
                store.records["Orders", 0][each.offset] for each in answer.messages
            ]
            near = draw(st.sampled_from([each.store_ms for each in stored])) + draw(st.integers(-1, 1))
            for boundary in ("lower", "upper"):
                assert await reader.offset_by_time(near, boundary) == model.at_time(near, boundary)
        assert await reader.earliest_time() == model.messages[0].store_ms

    on(folder, act)
