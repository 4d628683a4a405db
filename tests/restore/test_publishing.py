"""Restoring by publishing: each archived message is in the target once and in order, or an error says why.

The broker is an imitation on the loopback interface (`stream_broker`).
`benchmarks/restore.py` asks a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_archives import STREAM, archived, damage, odd_chunks
from offload_rabbitmq.stream_target import StreamTarget, open_url, publisher_name
from stream_broker import (
    AUTHENTICATE,
    CREATE,
    DECLARE,
    METADATA,
    OPEN,
    PROPERTIES,
    PUBLISH,
    QUERY,
    SUBSCRIBE,
    StreamBroker,
    running,
)

from offload import ObjectStoreOffloader, OffloadError
from offload.contracts.target import TargetMessages
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.tracking import ConsumerOffset, encode_blocks
from offload.ground.errors import (
    Corrupt,
    Denied,
    Diverged,
    Misuse,
    NoSpace,
    NotOffloaded,
    OutcomeUnknown,
    TryAgain,
)
from offload.model.chunk_table import ChunkType
from offload.model.position import PartOffset
from offload.read.salvage import Archive
from offload.restore.read_back import Comparison, OffsetMap, OffsetRun
from offload.restore.target import Restored, origin_of, publish
from offload.upkeep.retention import Retention, trim

KINDS = st.lists(st.sampled_from(["plain", "batch", "tracking"]), min_size=1, max_size=9).filter(
    lambda kinds: kinds != ["tracking"] * len(kinds)
)
FOREIGN = b"of another publisher"


def test_a_killed_restore_continues_and_publishes_every_message_once() -> None:
    @settings(max_examples=60 if CAMPAIGN else 8)
    @given(KINDS, st.lists(st.integers(0, 12), max_size=4), st.data())
    def prove(kinds: list[str], kills: list[int], data: st.DataObject) -> None:
        chunks, messages = odd_chunks(kinds)
        start = data.draw(st.integers(0, messages[-1][0]))
        expected = [body for offset, body in messages if offset >= start]
        ledgers = [[chunk] for chunk in chunks] if data.draw(st.booleans()) else [chunks]

        async def scenario(broker: StreamBroker) -> None:
            archive = await archived(*ledgers)
            for broker.dies_after in kills:
                with suppress(TryAgain):
                    await restore(archive, broker, start)
                assert broker.bodies == expected[: len(broker.bodies)]
            broker.dies_after = None

            done = await restore(archive, broker, start)
            again = await restore(archive, broker, start)

            assert broker.bodies == expected
            assert (again.messages, again.written_from) == (0, messages[-1][0] + 1)
            assert done.next_offset == archive.reader.manifest.next_offset

        run(scenario)

    prove()


@pytest.mark.parametrize("after", [0, 2, 3, 6])
def test_a_restore_whose_leader_moves_ends_and_the_next_one_completes_it(after: int) -> None:
    """It moves during the comparison, the look at the first message, and the publishing."""
    chunks, messages = odd_chunks(["plain", "batch", "plain", "batch"])

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(chunks)
        broker.dies_after = 12
        with pytest.raises(TryAgain):
            await restore(archive, broker)
        broker.moves_after = after

        with pytest.raises(TryAgain, match="moved"):
            await restore(archive, broker)
        await restore(archive, broker)

        assert broker.bodies == [body for _, body in messages]

    run(scenario)


def test_a_restore_changes_nothing_in_a_stream_that_is_not_the_beginning_of_the_archive() -> None:
    """Another publisher wrote before, between or behind the restored messages, or retention deleted some."""

    @settings(max_examples=40 if CAMPAIGN else 6)
    @given(st.integers(0, 20), st.integers(0, 20), st.sampled_from(["wrote", "deleted"]))
    def prove(restored: int, place: int, what: str) -> None:
        chunks, messages = odd_chunks(["plain", "batch", "tracking", "plain", "batch", "plain"])

        async def scenario(broker: StreamBroker) -> None:
            archive = await archived(chunks)
            broker.dies_after = min(restored, len(messages) - 1)
            with pytest.raises(TryAgain):
                await restore(archive, broker)
            at = min(place, len(broker.stored))
            if what == "wrote":
                ends = [*broker.stored[:at], (0, FOREIGN), *broker.stored[at:]]
                broker.stored = [(k, body) for k, (_, body) in enumerate(ends)]
                broker.next_offset = len(ends)
            else:
                broker.stored = broker.stored[at + 1 :]
            before = list(broker.stored)
            if what == "deleted" and broker.sequences == {}:
                return  # nothing had been restored, so nothing was deleted

            with pytest.raises(Diverged):
                await restore(archive, broker)

            assert broker.stored == before

        run(scenario)

    prove()


def test_a_restore_reports_that_retention_deleted_what_it_had_published() -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain", "plain"])[0])

        async def delete_the_oldest(count: int) -> None:
            broker.stored = broker.stored[1:]

        with pytest.raises(Diverged, match="no longer has the first restored message"):
            await restore(archive, broker, pace=delete_the_oldest)

    run(scenario)


def test_a_restore_reports_that_the_target_lost_messages_that_it_had_confirmed() -> None:
    """To publish them again would write nothing: the broker drops ids that it has confirmed before."""
    chunks, messages = odd_chunks(["plain", "batch", "plain"])

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(chunks)
        await restore(archive, broker)
        broker.stored.pop()
        kept = broker.bodies

        lost = (
            rf"has lost messages.* up to archived offset {messages[-1][0]}, .* from {messages[-2][0] + 1} on"
        )
        with pytest.raises(Diverged, match=lost):
            await restore(archive, broker)

        assert broker.bodies == kept

    run(scenario)


def test_a_message_of_a_killed_run_that_arrives_during_the_comparison_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes behind the last message that was compared. The broker drops its repetition."""
    chunks, messages = odd_chunks(["plain", "batch", "plain"])
    found = StreamTarget.messages

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(chunks)
        broker.dies_after = 4
        with pytest.raises(TryAgain):
            await restore(archive, broker)
        broker.dies_after = None

        async def and_then_one_arrives(target: StreamTarget) -> AsyncGenerator[TargetMessages, None]:
            async for each in found(target):
                yield each
            if len(broker.bodies) == 4:
                offset, body = messages[4]
                broker.publish(publisher_name(origin_of(archive, 0)), [(offset + 1, body)])

        monkeypatch.setattr(StreamTarget, "messages", and_then_one_arrives)
        await restore(archive, broker)

        assert broker.bodies == [body for _, body in messages]

    run(scenario)


def test_two_restores_at_once_publish_every_message_once() -> None:
    chunks, messages = odd_chunks(["plain", "batch", "tracking"] * 20)

    async def scenario(broker: StreamBroker) -> None:
        archives = [await archived(chunks)]
        # Of one archive, so both have the same publisher.
        archives.append(Archive(catalogue=archives[0].catalogue, reader=archives[0].reader))

        async def now_and_then(count: int) -> None:
            await asyncio.sleep(0)

        await asyncio.gather(*(restore(each, broker, pace=now_and_then) for each in archives))

        assert broker.bodies == [body for _, body in messages]

    run(scenario)


def test_a_restore_stops_before_damage_or_leaves_the_damaged_chunk_out() -> None:
    chunks, messages = odd_chunks(["plain", "batch", "plain", "batch"])
    damaged = range(8, 11)  # the third chunk

    async def scenario(broker: StreamBroker) -> None:
        objects: dict[str, bytes] = {}
        archive = await archived(chunks, objects=objects)
        damage(objects, b"message 4")

        with pytest.raises(Corrupt):
            await restore(archive, broker)
        assert broker.bodies == [body for offset, body in messages if offset < damaged.start]

        archive.skip_damage = True
        done = await restore(archive, broker)
        again = await restore(archive, broker)

        assert broker.bodies == [body for offset, body in messages if offset not in damaged]
        for one in (done, again):
            assert [(hole.first_offset, hole.next_offset) for hole in one.skipped] == [(8, 11)]

    run(scenario)


def test_a_chunk_that_cannot_be_decoded_is_left_out_alone() -> None:
    """Its checksum is right, so it is found in the middle of a window that was read whole."""
    chunks, messages = odd_chunks(["plain", "plain", "plain", "plain"])
    broken = SubBatch(codec=Codec.GZIP, records=3, uncompressed_size_bytes=30, payload=b"no gzip")
    chunks[2] = build_chunk([broken], offset=6, timestamp_ms=6, epoch=1)

    async def scenario(broker: StreamBroker) -> None:
        done = await restore(await archived(chunks, skip_damage=True), broker)

        assert broker.bodies == [body for offset, body in messages if not 6 <= offset < 9]
        assert [(hole.first_offset, hole.next_offset) for hole in done.skipped] == [(6, 9)]

    run(scenario)


def test_a_missing_fragment_is_left_out_whole() -> None:
    chunks, messages = odd_chunks(["plain", "batch", "tracking", "plain"])

    async def scenario(broker: StreamBroker) -> None:
        objects: dict[str, bytes] = {}
        archive = await archived(chunks[:1], chunks[1:3], chunks[3:], skip_damage=True, objects=objects)
        del objects[sorted(key for key in objects if key.endswith(".fragment"))[1]]

        done = await restore(archive, broker)

        assert broker.bodies == [body for offset, body in messages if not 3 <= offset < 9]
        assert [(hole.first_offset, hole.next_offset) for hole in done.skipped] == [(3, 9)]

    run(scenario)


def test_a_restore_ends_if_its_messages_are_trimmed_meanwhile() -> None:
    chunks, _ = odd_chunks(["plain", "plain"])

    async def scenario(broker: StreamBroker) -> None:
        objects: dict[str, bytes] = {}
        archive = await archived(chunks[:1], chunks[1:], objects=objects)
        assert isinstance(archive.catalogue, ObjectStoreOffloader)
        await trim(archive.catalogue, STREAM, Retention(before_offset=3))
        del objects[min(key for key in objects if key.endswith(".fragment"))]

        with pytest.raises(NotOffloaded, match=r"offsets \[0, 3\) were trimmed while"):
            await restore(archive, broker)

        assert broker.bodies == []

    run(scenario)


def test_the_map_leads_from_every_old_offset_to_the_same_message() -> None:
    @settings(max_examples=40 if CAMPAIGN else 6)
    @given(KINDS, st.data())
    def prove(kinds: list[str], data: st.DataObject) -> None:
        chunks, messages = odd_chunks(kinds)
        start = data.draw(st.integers(0, messages[-1][0]))

        async def scenario(broker: StreamBroker) -> None:
            archive = await archived(chunks)
            await restore(archive, broker, start)

            found = await mapped(archive, broker, start)

            new = dict(broker.stored)
            for run_ in found.runs():
                for k in range(run_.count):
                    assert new[run_.new + k] == dict(messages)[run_.old + k]
            assert sum(run_.count for run_ in found.runs()) == len(broker.stored)
            # A consumer had processed everything up to `old`, and continues behind `new_of(old)`.
            for old in range(messages[-1][0] + 3):
                processed = [offset for offset, _ in messages if start <= offset <= old]
                place = found.new_of(old)
                assert len([o for o, _ in broker.stored if place is not None and o <= place]) == len(
                    processed
                )

        run(scenario)

    prove()


def test_an_offset_between_two_runs_leads_to_the_last_message_before_it() -> None:
    """The archive has records of the broker there, which are no messages."""
    found = OffsetMap()
    found.add(OffsetRun(2, 0, 3))
    found.add(OffsetRun(7, 3, 1))

    assert [found.new_of(old) for old in range(10)] == [None, None, 0, 1, 2, 2, 2, 3, 3, 3]


def test_the_map_has_the_last_offset_that_each_consumer_stored() -> None:
    chunks, _ = odd_chunks(["plain", "tracking", "plain", "tracking"])
    trailer = encode_blocks(
        [ConsumerOffset(name=b"late", offset=6)], chunk_type=ChunkType.USER
    )  # a broker may put it behind messages
    chunks.append(build_chunk([b"x"], offset=8, timestamp_ms=8, epoch=1, trailer=trailer))

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(chunks)
        await restore(archive, broker)

        assert (await mapped(archive, broker, 0)).consumers == {
            b"app": PartOffset(1, 5),
            b"late": PartOffset(1, 6),
        }

    run(scenario)


def test_a_map_is_refused_if_the_target_lacks_the_end_of_the_archive() -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain", "plain"])[0])
        await restore(archive, broker)
        broker.stored.pop()

        with pytest.raises(Diverged, match="lacks the message of offset 5"):
            await mapped(archive, broker, 0)

    run(scenario)


def test_a_person_reads_what_will_differ_before_the_first_message() -> None:
    told: list[str] = []

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain", "tracking"])[0])

        async def first(count: int) -> None:
            said = " ".join(told)
            assert all(word in said for word in ("3.99.1", "timestamps", "filter", "consumers", "tracking"))
            assert count == 3  # the rate counts messages

        await restore(archive, broker, pace=first, tell=told.append)

        assert broker.bodies

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "options", "error", "text"),
    [
        ({"arguments": None}, {}, NotOffloaded, "declare stream 'copy' first"),
        ({"arguments": {"max-age": "1D"}}, {}, Misuse, "was declared with arguments, so"),
        ({"arguments": {"max-age": "1D"}}, {"max-age": "2D"}, Misuse, "max-age=2D"),
        ({"arguments": {"max-length-bytes": "99"}}, {"max-length-bytes": "99"}, NoSpace, "keeps 99 bytes"),
        ({"password": "other"}, {}, Denied, "the user or the password is wrong"),
        ({"forgets": True}, {}, OutcomeUnknown, "has them only up to id 0 of 3"),
        ({"has_alarm": True}, {}, TryAgain, "see its memory and disk alarms"),
        ({"refuses_id": 2}, {}, TryAgain, "take the message of archived offset 1"),
    ],
)
def test_a_restore_names_the_reason_of_a_refusal(
    changes: dict[str, object], options: dict[str, str], error: type[OffloadError], text: str
) -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain"])[0])
        for name, value in changes.items():
            setattr(broker, name, value)

        with pytest.raises(error, match=text):
            await restore(archive, broker, options=options)

        assert broker.bodies == []

    run(scenario)


@pytest.mark.parametrize(
    "command", [PROPERTIES, AUTHENTICATE, OPEN, CREATE, DECLARE, QUERY, SUBSCRIBE, METADATA]
)
def test_a_connection_that_dies_during_a_request_ends_the_restore_at_once(command: int) -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain"])[0])
        broker.dies_on = command

        async with asyncio.timeout(60):
            with pytest.raises(TryAgain, match="the connection broke"):
                await restore(archive, broker)

    run(scenario)


@pytest.mark.parametrize(("heartbeat", "error"), [(1, TryAgain), (60, TimeoutError)])
def test_a_broker_that_reads_nothing_more_is_given_up_or_left(
    monkeypatch: pytest.MonkeyPatch, heartbeat: int, error: type[Exception]
) -> None:
    """It holds back both what is sent and what closes the connection, as a broker with an alarm does."""
    monkeypatch.setattr("offload_rabbitmq.stream_connection.CLOSE_SECONDS", 0.1)

    async def scenario(broker: StreamBroker) -> None:
        bodies = [bytes(1_000_000)] * 30  # more than the buffers of both ends hold
        archive = await archived([build_chunk(bodies, offset=0, timestamp_ms=0, epoch=1)])
        broker.stalls_on, broker.heartbeat_seconds = PUBLISH, heartbeat

        async with asyncio.timeout(90):  # beyond it, an interrupted restore would never end
            with pytest.raises(error):
                await asyncio.wait_for(restore(archive, broker), 60 if heartbeat == 1 else 0.5)

    run(scenario)


def test_a_broker_that_states_no_limits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_rabbitmq.stream_target.CONNECT_SECONDS", 2.0)

    async def scenario(broker: StreamBroker) -> None:
        broker.heartbeat_seconds = None

        with pytest.raises(TryAgain, match="did not answer in time: state its limits"):
            await restore(await archived(odd_chunks(["plain"])[0]), broker)

    run(scenario)


def test_the_first_bytes_of_another_service_are_no_frame_to_wait_for() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")
        await reader.read()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TryAgain, match="this is no stream listener"):
                await restore(await archived(odd_chunks(["plain"])[0]), StreamBroker(port=port))

    asyncio.run(main())


@pytest.mark.parametrize("rival", [FOREIGN, b"message 1"])
def test_a_message_that_came_first_meanwhile_ends_the_restore(rival: bytes) -> None:
    """Another publisher writes it, or a restore of the same archive that began at another offset."""

    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain", "plain"])[0])
        target = publisher_name(origin_of(archive, 0))

        async def first(count: int) -> None:
            if not broker.stored:
                broker.publish("" if rival == FOREIGN else target, [(3, rival)])

        with pytest.raises(Diverged, match="begins with another message"):
            await restore(archive, broker, pace=first)

    run(scenario)


def test_a_restore_does_not_end_before_the_last_confirm() -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain"])[0])
        broker.confirms = False

        restoring = asyncio.create_task(restore(archive, broker))
        async with asyncio.timeout(60):
            while len(broker.bodies) < 3:  # noqa: ASYNC110 - the broker has no event for it
                await asyncio.sleep(0.005)
        _, unfinished = await asyncio.wait([restoring], timeout=0.3)
        restoring.cancel()
        await asyncio.gather(restoring, return_exceptions=True)

        assert unfinished

    run(scenario)


def test_a_chunk_that_is_larger_than_a_frame_is_published_in_several() -> None:
    bodies = [b"%d" % k * 100_000 for k in range(7)]

    async def scenario(broker: StreamBroker) -> None:
        broker.frame_size_bytes_max = 150_000
        await restore(await archived([build_chunk(bodies, offset=0, timestamp_ms=0, epoch=1)]), broker)

        assert broker.bodies == bodies

    run(scenario)


def test_arguments_declare_a_stream_that_does_not_exist() -> None:
    async def scenario(broker: StreamBroker) -> None:
        broker.arguments = None
        archive = await archived(odd_chunks(["plain"])[0])

        await restore(archive, broker, options={"max-age": "1D"})

        assert broker.arguments == {"max-age": "1D"}
        assert len(broker.bodies) == 3

    run(scenario)


def test_a_broker_that_does_not_answer_is_reported_by_its_address() -> None:
    async def scenario(broker: StreamBroker) -> None:
        archive = await archived(odd_chunks(["plain"])[0])
        gone = StreamBroker(port=1)

        with pytest.raises(TryAgain, match=r"127\.0\.0\.1:1 cannot be reached"):
            await restore(archive, gone)

    run(scenario)


def test_publisher_names_differ_by_incarnation_and_fit_the_broker() -> None:
    async def scenario(broker: StreamBroker) -> None:
        one, other = [origin_of(await archived(odd_chunks(["plain"])[0]), 0) for _ in range(2)]

        assert publisher_name(one) != publisher_name(other)
        assert len(publisher_name(one).encode()) < 256

    run(scenario)


@pytest.mark.parametrize(
    "url",
    [
        "rabbitmq-stream://host",
        "rabbitmq-stream:///stream",
        "rabbitmq-stream://host/a/b/c",
        "rabbitmq-stream://host:x/stream",
        "rabbitmq-stream://user:secret@host/stream",
        f"rabbitmq-stream://host/{'é' * 117}",
    ],
)
def test_a_url_that_names_no_stream_or_has_a_login_is_refused(url: str) -> None:
    with pytest.raises(Misuse) as refused:
        open_url(url, {})

    assert "secret" not in str(refused.value)


def run(scenario: Callable[[StreamBroker], Awaitable[None]]) -> None:
    """Run a scenario beside a broker."""

    async def main() -> None:
        async with running(StreamBroker()) as broker:
            await scenario(broker)

    asyncio.run(main())


async def at_once(count: int) -> None:
    """Let any number of messages pass."""


async def restore(
    archive: Archive,
    broker: StreamBroker,
    start: int = 0,
    *,
    options: dict[str, str] | None = None,
    pace: Callable[[int], Awaitable[None]] = at_once,
    tell: Callable[[str], None] = str,
) -> Restored:
    """Restore as one run of the command does."""
    target, archive.start = open_url(broker.url, options or {}), start
    try:
        [done] = await publish([archive], target, pace=pace, tell=tell, show=str)
        return done
    finally:
        await target.aclose()


async def mapped(archive: Archive, broker: StreamBroker, start: int) -> OffsetMap:
    target: StreamTarget = open_url(broker.url, {})
    try:
        await target.open(origin_of(archive, start), str)
        archive.start = start
        return await Comparison([archive], target).map()
    finally:
        await target.aclose()
