"""Tests of asking a real RabbitMQ, for which its packages must be installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign import campaign
from certificates import certificate
from offload_rabbitmq.stream_connection import StreamConnection
from offload_rabbitmq.stream_frames import Code, Key
from offload_rabbitmq.stream_place import BrokerEndpoint
from offload_rabbitmq.stream_target import open_url
from osiris_writer import simple_chunks
from rstream import Producer
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

from offload import (
    Dispatcher,
    FollowRules,
    MemoryHandle,
    ObjectStoreOffloader,
    Session,
    StreamReader,
    StreamWriter,
    TierOptions,
)
from offload.contracts.broker import BrokerView
from offload.follow.rules import FollowState, FollowStatus, Wait
from offload.follow.vouched import VouchedSource
from offload.ground.env import Env
from offload.ground.errors import Denied, NotOffloaded, OffloadError, TryAgain
from offload.model.part import StreamPart
from offload.model.position import AtEdge
from offload.opening.backends import as_offloader
from offload.restore.archived_parts import archived_parts
from offload.restore.read_back import Comparison
from offload.restore.target import publish as publish_parts
from offload.store.memory import MemoryStore

pytestmark = campaign("an imitation of the broker's port has the same claims")

RULES = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.5)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("rabbitmq") as scratch:
        made = certificate(scratch)
        with rabbitmq(scratch, (made.path, made.key_path)) as running, pytest.MonkeyPatch.context() as trust:
            trust.setenv("SSL_CERT_FILE", str(made.path))
            yield running


@asynccontextmanager
async def asked(broker: Broker, password: str = "guest") -> AsyncIterator[tuple[Session, VouchedSource]]:
    """Yield a session, and the broker's files with the broker."""
    async with Session() as session:
        view = session.broker(f"rabbitmq-stream://127.0.0.1:{broker.stream_port}", password=password)
        yield session, VouchedSource(session.source(f"rabbitmq://{broker.streams}"), view, env=session.env)


def folder_of(broker: Broker, stream: str) -> str:
    (path,) = broker.streams.glob(f"__{stream.replace('.', '_')}_*")
    return path.name


async def follow(session: Session, source: VouchedSource, tier: Path, ends: dict[str, int]) -> None:
    """Follow the streams until the tier has them up to these ends."""
    plan = as_offloader(session.tier(str(tier), options=TierOptions())), RULES
    dispatcher = Dispatcher(
        source=source, plan_of=lambda stream: plan if stream in ends else None, env=session.env
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(dispatcher.run(stopping))
    async with asyncio.timeout(60):
        while {each.stream: each.committed_offset for each in dispatcher.statuses} != ends:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert {each.state for each in dispatcher.statuses} == {FollowState.LEADING}
    stopping.set()
    await running


async def publish(broker: Broker, streams: Sequence[str], count: int) -> dict[str, int]:
    """Publish so many messages to each stream, and return the number of messages that each has."""
    async with Producer("127.0.0.1", port=broker.stream_port, username="guest", password="guest") as producer:
        for stream in streams:
            await producer.create_stream(stream, exists_ok=True)
            for number in range(count):
                await producer.send_wait(stream, b"%06d" % number)
    return {folder_of(broker, stream): count for stream in streams}


def test_a_real_broker_vouches_for_what_is_copied(broker: Broker, tmp_path: Path) -> None:
    """It leads its streams, a wrong password is refused, and then the hold-back applies."""

    async def scenario() -> None:
        ends = await publish(broker, ("orders", "eu.audit_log"), 200)
        async with asked(broker) as (session, source):
            for stream in ends:
                assert (await source.broker.leader(stream)).is_asked
            with pytest.raises(NotOffloaded):
                await source.broker.leader("__absent_1")
            await follow(session, source, tmp_path / "tier", ends)
            assert (source.held_back, source.broker.error) == ([], None)
            await assert_whole(session, tmp_path / "tier", ends)
        async with asked(broker, password="wrong") as (session, source):
            await follow(session, source, tmp_path / "other", ends)
            assert (source.held_back, type(source.broker.error)) == (sorted(ends), Denied)
            await assert_whole(session, tmp_path / "other", ends)

    asyncio.run(scenario())


def test_a_real_broker_is_asked_over_tls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is checked, and each port tells the other protocol apart."""

    async def leader(url: str, stream: str) -> object:
        async with Session() as session:
            try:
                return (await session.broker(url).leader(stream)).is_asked
            except OffloadError as error:
                return type(error)

    async def scenario() -> None:
        await publish(broker, ("secret",), 10)
        stream = folder_of(broker, "secret")
        tls, plain = "rabbitmq-stream+tls://127.0.0.1", "rabbitmq-stream://127.0.0.1"
        async with Session() as session:
            found = await session.broker(f"{tls}:{broker.tls_port}").committed(stream, 9)
        assert found.next_offset == 10
        assert await leader(f"{tls}:{broker.stream_port}", stream) is TryAgain
        assert await leader(f"{plain}:{broker.tls_port}", stream) is TryAgain
        monkeypatch.delenv("SSL_CERT_FILE")
        assert await leader(f"{tls}:{broker.tls_port}", stream) is Denied

    asyncio.run(scenario())


def test_every_request_of_a_consumer_is_answered_by_a_real_broker(broker: Broker) -> None:
    """Also the two that RabbitMQ 3.10 answers under the key of the request."""

    async def scenario() -> None:
        endpoint = BrokerEndpoint(
            host="127.0.0.1", port=broker.stream_port, virtual_host="/", user="guest", password="guest"
        )
        connection = await StreamConnection.connect(
            endpoint, Env(), name="a test", connect_seconds=30, answer_seconds=30
        )
        refused = {"doing": "answer", "accept": tuple(Code)}
        answers = [
            await connection.ask(Key.PARTITIONS, super_stream="none", **refused),
            await connection.ask(Key.ROUTE, routing_key="1", super_stream="none", **refused),
            await connection.ask(Key.QUERY_OFFSET, reference="app", stream="none", **refused),
            await connection.ask(Key.UNSUBSCRIBE, subscription=9, **refused),
            await connection.ask(Key.DELETE_PUBLISHER, publisher=9, **refused),
            await connection.ask(Key.DELETE, stream="none", **refused),
        ]
        await connection.send(b"\0\0\0\4\0\x63\0\1")  # a key that nobody knows
        lost = await connection.lost
        await connection.aclose()

        assert [answer["code"] for answer in answers] == [2, 2, 2, 4, 18, 2]
        assert "unknown frame" in str(lost)

    asyncio.run(scenario())


def test_a_chunk_beyond_the_end_is_not_vouched_for_until_it_is_there(broker: Broker) -> None:
    async def scenario() -> None:
        await publish(broker, ("waits",), 10)
        stream = folder_of(broker, "waits")
        async with asked(broker) as (_, source):
            view: BrokerView = source.broker
            (found,) = [each for each in await source.streams() if each.name == stream]
            async with await found.snapshot() as snapshot:
                end = snapshot.next_offset
                assert await found.vouched(snapshot) == end
            beyond = asyncio.ensure_future(view.committed(stream, end))
            await asyncio.sleep(1)
            assert not beyond.done()
            await publish(broker, ("waits",), 1)
            async with asyncio.timeout(60):
                assert (await beyond).first_offset == end

    asyncio.run(scenario())


def test_the_records_that_a_real_retention_deletes_are_the_number_of_the_metric(
    broker: Broker, tmp_path: Path
) -> None:
    """Nobody copies while the broker deletes old segments. Then the stream goes on in a new part."""
    small = {"max-length-bytes": "4000000", "stream-max-segment-size-bytes": "1000000"}

    async def send(numbers: range) -> str:
        login: dict[str, Any] = {"port": broker.stream_port, "username": "guest", "password": "guest"}
        async with Producer("127.0.0.1", **login) as producer:
            await producer.create_stream("short", exists_ok=True, arguments=small)
            for begin in numbers[::100]:
                await producer.send_batch("short", [b"%06d" % (begin + n) + bytes(1000) for n in range(100)])
        return folder_of(broker, "short")

    async def copied(session: Session, stream: str, end: int) -> FollowStatus:
        rules = replace(RULES, new_part=True)
        plan = as_offloader(session.tier(str(tmp_path / "tier"), options=TierOptions())), rules
        dispatcher = Dispatcher(
            source=session.source(f"rabbitmq://{broker.streams}"),
            plan_of=lambda name: plan if name == stream else None,
            env=session.env,
        )
        stopping = asyncio.Event()
        running = asyncio.create_task(dispatcher.run(stopping))
        done = [(end, Wait.NOTHING)]
        async with asyncio.timeout(60):
            while [(each.committed_offset, each.waits) for each in dispatcher.statuses] != done:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        [status] = dispatcher.statuses
        stopping.set()
        await running
        return status

    async def scenario() -> None:
        async with Session() as session:
            stream = await send(range(3000))
            assert (await copied(session, stream, 3000)).lost_records == 0
            await send(range(3000, 20_000))
            segments = broker.streams / stream
            async with asyncio.timeout(60):
                while min(int(each.stem) for each in segments.glob("*.segment")) <= 3000:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            status = await copied(session, stream, 20_000)

            reader = await StreamReader.open(as_offloader(session.tier(str(tmp_path / "tier"))), stream)
            messages = [body async for batch in reader.messages(0) for body in batch.bodies]
            assert status.lost_records == 20_000 - len(messages) > 0
            assert (await copied(session, stream, 20_000)).lost_records == status.lost_records

    asyncio.run(scenario())


async def assert_whole(session: Session, tier: Path, ends: dict[str, int]) -> None:
    """Assert that the tier has each stream's messages, in order."""
    for stream, count in ends.items():
        reader = await StreamReader.open(as_offloader(session.tier(str(tier))), stream)
        found = [body async for batch in reader.messages(0) for body in batch.bodies]
        assert found == [b"%06d" % number for number in range(count)]


@pytest.mark.parametrize("scheme", ["rabbitmq-stream", "rabbitmq-stream+tls"])
def test_a_real_broker_gets_the_records_of_all_parts_once(broker: Broker, scheme: str) -> None:
    """The restore is killed within each part, and between the two. The broker knows a publisher of each."""

    async def scenario() -> None:
        port = broker.tls_port if scheme.endswith("tls") else broker.stream_port
        await publish(broker, (f"parts-{port}",), 0)
        url = f"{scheme}://127.0.0.1:{port}/parts-{port}"
        tier = ObjectStoreOffloader(MemoryStore())
        for part, first in ((StreamPart("orders"), 0), (StreamPart("orders", 2), 500)):
            if part.number > 1:
                await tier.begin_part(part, before=None)
            writer = await StreamWriter.claim(tier, part.name, is_new=True, first_offset=first)
            await writer.offload([MemoryHandle([*simple_chunks(20, first_offset=first)])])
        parts = await archived_parts(tier, await StreamReader.open(tier, "orders"), AtEdge.FIRST)
        for batches in (4, 20, 29, 1000):
            target, left = open_url(url, {}), iter(range(batches))

            async def pace(amount: int, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise TryAgain("killed")

            try:
                with suppress(TryAgain):
                    done = await publish_parts(parts.archives, target, pace=pace, tell=str, show=str)
            finally:
                await target.aclose()
        target = open_url(url, {})
        found = [
            (run.part, run.old, run.count) for run in (await Comparison(parts.archives, target).map()).runs()
        ]
        assert found == [(1, 0, 60), (2, 500, 60)]
        assert sum(each.messages for each in done) < 60

    asyncio.run(scenario())
