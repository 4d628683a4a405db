"""Tests of asking RabbitMQ: what its answers mean, and what becomes of each of its failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from certificates import certificate, served
from kit.world import Clock
from offload_rabbitmq import connection
from offload_rabbitmq.broker import RabbitmqBroker
from rstream.client import Client
from stream_port import SUBSCRIBE, PortFault, StreamPort

from offload import Session, build_chunk
from offload.contracts.broker import CommittedChunk, LeadingNode
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Denied, Misuse, NotOffloaded, OffloadError, TryAgain

FOLDER: Final = "__orders_1795238999142852734"
CHUNKS: Final = [
    build_chunk([b"%d" % number] * 10, offset=10 * number, timestamp_ms=1, epoch=3) for number in range(4)
]


def committed_chunk(number: int) -> CommittedChunk:
    header = ChunkHeader.decode(CHUNKS[number], where="")
    return CommittedChunk(
        first_offset=header.offset, next_offset=header.next_offset, epoch=header.epoch, crc=header.crc
    )


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not look like a silent broker."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 60.0)


@contextmanager
def impatient_with(fault: PortFault | None) -> Iterator[None]:
    """Wait less for what the fault leaves out, and only while it is there."""
    with pytest.MonkeyPatch.context() as patched:
        if fault is PortFault.MUTE:
            patched.setattr(connection, "CONNECT_SECONDS", 0.3)
        elif fault in (PortFault.MUTE_WHEN_ASKED, PortFault.HANGS_UP, PortFault.GARBAGE):
            patched.setattr(connection, "ANSWER_SECONDS", 0.3)
        yield


class World:
    """A port that has one stream, and a view of it with a clock of its own."""

    def __init__(self, **port: Any) -> None:
        self.clock, self.port = Clock(), StreamPort(streams={"orders": list(CHUNKS)}, **port)

    @asynccontextmanager
    async def broker(self, url: str = "", **login: str) -> AsyncIterator[RabbitmqBroker]:
        """Yield the view, opened by its URL."""
        async with Session(env=self.clock.env()) as session:
            opened = session.broker(url or f"rabbitmq-stream://127.0.0.1:{self.port.port}", **login)
            assert isinstance(opened, RabbitmqBroker)
            yield opened


def run(world: World, scenario: Callable[[RabbitmqBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), world.port.serve(), world.broker() as broker:
            await scenario(broker)

    asyncio.run(main())


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():  # noqa: ASYNC110 - the port has no event for it
            await asyncio.sleep(0.005)


class TestQuestions:
    def test_a_committed_chunk_is_the_answer_and_nothing_stays_in_the_broker(self) -> None:
        world = World(committed_offset=40)

        async def scenario(broker: RabbitmqBroker) -> None:
            for number in (2, 0, 3):
                assert await broker.committed(FOLDER, 10 * number) == committed_chunk(number)
            await until(lambda: not world.port.subscriptions)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    def test_a_chunk_that_is_not_committed_is_waited_for(self) -> None:
        world = World(committed_offset=20)

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)
            await asyncio.sleep(0.1)
            assert (waiting.done(), broker.error) == (False, None)
            world.port.commit(40)
            assert await waiting == committed_chunk(3)

        run(world, scenario)

    def test_a_question_that_is_given_up_leaves_nothing_in_the_broker(self) -> None:
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            for _ in range(3):
                waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
                await until(lambda: bool(world.port.subscriptions))
                waiting.cancel()
                await until(lambda: not world.port.subscriptions)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    def test_a_question_is_given_up_although_the_client_loses_the_cancellation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As `wait_for` of Python 3.11 does if the answer comes at that moment."""
        subscribe, answered = Client.subscribe, asyncio.Event()

        async def losing(client: Client, *given: Any, **named: Any) -> None:
            await subscribe(client, *given, **named)
            answered.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

        monkeypatch.setattr(Client, "subscribe", losing)
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await answered.wait()
            waiting.cancel()
            async with asyncio.timeout(60):
                await asyncio.wait([waiting])
            assert waiting.cancelled()
            await until(lambda: not world.port.subscriptions)

        run(world, scenario)

    def test_a_subscription_that_the_broker_ends_is_an_error(self) -> None:
        """It does so when it restarts its replica of the stream, and sends nothing more."""
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await until(lambda: bool(world.port.subscriptions))
            world.port.update("orders")
            with pytest.raises(TryAgain, match="the subscription to 'orders' ended"):
                await waiting
            assert broker.error is None

        run(world, scenario)

    @pytest.mark.parametrize(
        ("leader", "node"),
        [(0, LeadingNode(address="a:1", is_asked=True)), (1, LeadingNode(address="b:2", is_asked=False))],
    )
    def test_the_leader_is_this_node_or_another(self, leader: int, node: LeadingNode) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            assert await broker.leader(FOLDER) == node

        run(World(leader=leader), scenario)

    def test_a_stream_without_a_leader_can_still_be_asked_about(self) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            with pytest.raises(TryAgain, match="LeaderNotAvailable"):
                await broker.leader(FOLDER)
            assert broker.error is None
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)

        run(World(leader=None, committed_offset=40), scenario)

    @pytest.mark.parametrize("name", ["orders", "eu.orders", "eu_orders", "a_b.c_d", "x-1=2"])
    def test_a_stream_is_found_by_the_name_of_its_folder(self, name: str) -> None:
        world = World(committed_offset=40)
        world.port.streams[name] = world.port.streams.pop("orders")

        async def scenario(broker: RabbitmqBroker) -> None:
            folder = f"__{name.replace('.', '_')}_1795238999142852734"
            assert await broker.committed(folder, 0) == committed_chunk(0)

        run(world, scenario)


class TestFailures:
    """Each failure is an error of the framework within the bound, and passes."""

    TABLE: Final = {
        PortFault.MUTE: (TryAgain, "cannot connect: TimeoutError", True),
        PortFault.MUTE_WHEN_ASKED: (TryAgain, "no answer within", True),
        PortFault.HANGS_UP: (TryAgain, "no answer within", True),
        PortFault.GARBAGE: (TryAgain, "no answer within", True),
        PortFault.FORBIDS: (Denied, "AccessRefused", False),
    }

    @pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name.lower())
    def test_a_failure_is_an_error_in_time_and_passes(self, fault: PortFault) -> None:
        kind, words, is_of_broker = self.TABLE[fault]
        world = World(committed_offset=40, fault=fault)

        async def scenario(broker: RabbitmqBroker) -> None:
            with impatient_with(fault), pytest.raises(kind, match=words) as caught:
                await broker.committed(FOLDER, 10)
            assert broker.error == (caught.value if is_of_broker else None)
            before = world.port.connections
            for _ in range(3 if is_of_broker else 0):
                with pytest.raises(kind):
                    await broker.committed(FOLDER, 10)
            assert world.port.connections == before, "it is left alone for a while"
            world.port.fault = None
            world.clock.now += connection.BACKOFF_SECONDS_MAX
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)
            assert broker.error is None

        run(world, scenario)

    def test_a_connection_that_breaks_ends_the_questions_on_it(self) -> None:
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await until(lambda: bool(world.port.subscriptions))
            world.port.hang_up()
            with pytest.raises(TryAgain):
                await waiting
            world.clock.now += connection.BACKOFF_SECONDS_MAX
            world.port.commit(40)
            assert await broker.committed(FOLDER, 30) == committed_chunk(3)
            assert world.port.connections == 2

        run(world, scenario)

    def test_an_unknown_stream_is_an_error_of_that_stream_alone(self) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            for folder in ("__absent_17", "other_orders_17", "__a_very_long_name_with_many_parts_17"):
                with pytest.raises(NotOffloaded, match="has no stream for the folder"):
                    await broker.committed(folder, 0)
            assert broker.error is None

        run(World(), scenario)

    def test_a_broker_that_is_down_is_an_error_at_once(self) -> None:
        async def scenario() -> None:
            world = World()
            async with world.port.serve():
                pass
            async with world.broker() as broker:
                with pytest.raises(TryAgain, match="Connect call failed"):
                    await broker.committed(FOLDER, 0)

        asyncio.run(scenario())

    @pytest.mark.parametrize("how", ["password", "user", "virtual host"])
    def test_a_refused_login_is_an_error_that_shows_no_password(
        self, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor does the log of the library at level debug, which has every frame."""
        caplog.set_level(logging.DEBUG)
        world = World(user="me", password="hush-hush")
        folder, path, login = FOLDER, "", {"user": "me", "password": "hush-hush"}
        match how:
            case "password":
                world.port.password = "another"
            case "user":
                login["user"] = "you"
            case "virtual host":
                folder, path = "elsewhere_orders_17", "/elsewhere"

        async def scenario() -> str:
            async with world.port.serve():
                url = f"rabbitmq-stream://127.0.0.1:{world.port.port}{path}"
                async with world.broker(url, **login) as broker:
                    with pytest.raises(Denied) as caught:
                        await broker.leader(folder)
                    return f"{caught.value} {broker!r} {broker._connection!r} {broker.error}"

        shown = asyncio.run(scenario())

        assert "hush" not in shown + caplog.text
        assert "until the broker answers, hold_back applies" in caplog.text

    def test_a_failure_is_logged_once_and_so_is_its_end(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(committed_offset=40, fault=PortFault.MUTE_WHEN_ASKED)

        async def scenario(broker: RabbitmqBroker) -> None:
            for _ in range(3):
                with impatient_with(PortFault.MUTE_WHEN_ASKED), pytest.raises(TryAgain):
                    await broker.leader(FOLDER)
                world.clock.now += connection.BACKOFF_SECONDS_MAX
            world.port.fault = None
            await broker.leader(FOLDER)

        run(world, scenario)

        lines = [record.getMessage() for record in caplog.records if record.name.startswith("offload")]
        assert len(lines) == 2
        assert "hold_back applies" in lines[0]
        assert lines[1].endswith("answers again")


def test_a_connection_with_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, world = certificate(tmp_path), World()

    async def leader() -> LeadingNode | OffloadError:
        async with world.port.serve(served(made)) as port:
            url = f"rabbitmq-stream+tls://127.0.0.1:{port.port}"
            async with world.broker(url) as broker:
                try:
                    return await broker.leader(FOLDER)
                except OffloadError as error:
                    return error

    stranger = asyncio.run(leader())
    assert isinstance(stranger, TryAgain)
    assert "certificate verify failed" in str(stranger)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    assert asyncio.run(leader()) == LeadingNode(address="a:1", is_asked=True)


def test_questions_beyond_those_of_one_connection_wait_their_turn() -> None:
    world = World()

    async def scenario(broker: RabbitmqBroker) -> None:
        questions = [asyncio.ensure_future(broker.committed(FOLDER, 30)) for _ in range(300)]
        await until(lambda: world.port.asked.count(SUBSCRIBE) == 200)
        world.port.commit(40)
        assert {each.next_offset for each in await asyncio.gather(*questions)} == {40}

    run(world, scenario)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rabbitmq-stream://me:hush@host", "the URL of a broker has no login"),
        ("rabbitmq-stream://me@host", "the URL of a broker has no login"),
        ("rabbitmq-stream://", "is no broker: use rabbitmq-stream://HOST:PORT"),
        ("rabbitmq-stream://host:port", "has no valid port"),
        ("rabbitmq-stream://host:99999", "has no valid port"),
        ("amqp://host", "no plugin knows the broker 'amqp'"),
        ("host:5552", "is not a URL"),
        ("localhost", "no plugin knows the broker 'localhost'"),
    ],
)
def test_a_url_that_is_no_brokers_is_refused(url: str, said: str) -> None:
    async def scenario() -> None:
        async with Session() as session:
            with pytest.raises(Misuse, match=said) as caught:
                session.broker(url)
            assert "hush" not in str(caught.value)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "host", "port", "virtual_host"),
    [
        ("rabbitmq-stream://localhost", "localhost", 5552, "/"),
        ("RabbitMQ-Stream+tls://localhost/", "localhost", 5551, "/"),
        ("rabbitmq-stream://[::1]:1/a%2Fb", "::1", 1, "a/b"),
    ],
)
def test_what_a_url_leaves_out_has_a_default(url: str, host: str, port: int, virtual_host: str) -> None:
    async def scenario() -> None:
        async with Session() as session:
            broker = session.broker(url)
            assert isinstance(broker, RabbitmqBroker)
            at = broker._connection.endpoint
            assert (at.host, at.port, at.virtual_host, at.user) == (host, port, virtual_host, "guest")

    asyncio.run(scenario())
