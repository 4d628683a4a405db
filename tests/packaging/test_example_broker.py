"""Tests of the example broker: what its clients may rely on, and what a hostile client cannot do.

The broker runs in this process over a folder as its tier, or as processes of their own that are killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN, campaign
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.processes import free_port

from offload import LedgerPolicy, LedgerState, ManagedLedger, ManagedLedgers, Misuse, Session

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "broker"
sys.path.insert(0, str(EXAMPLE))

from broker.client import BrokerClient, BrokerConsumer, BrokerError, connect, consume  # noqa: E402
from broker.protocol import read_request  # noqa: E402
from broker.server import WRITE_SIZE_BYTES, BrokerServer  # noqa: E402
from broker.topics import Topics  # noqa: E402

HOST = "127.0.0.1"
AT_ONCE = LedgerPolicy(deletion_lag_seconds=0, roll_seconds=None)
"""What is sealed is on the tier, and then not on the disk any more."""


@dataclass
class Running:
    """A broker of this process, as long as its block runs."""

    topics: Topics
    server: BrokerServer
    port: int

    async def ledger(self, topic: str = "orders") -> ManagedLedger:
        return await self.topics.get(topic)

    async def move_to_tier(self, topic: str = "orders") -> None:
        """Seal what the topic has, and wait until only the tier has it."""
        ledger = await self.ledger(topic)
        await ledger.roll()
        await until(lambda: ledger.log.first_offset == ledger.next_offset)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for is the state of other tasks
            await asyncio.sleep(0.01)


@asynccontextmanager
async def broker(folder: Path, *, stall_seconds: float = 60.0, **limits: int) -> AsyncIterator[Running]:
    """Run a broker over the folders `data` and `tier`."""
    async with Session() as session:
        tier = session.tier(str(folder / "tier"))
        async with ManagedLedgers(tier, policy=AT_ONCE) as ledgers:
            topics = Topics(ledgers, tier, folder / "data", topics_max=limits.pop("topics_max", 1000))
            await topics.open_local()
            await topics.find_on_tier()
            server = BrokerServer(topics, stall_seconds=stall_seconds, **limits)
            _, port = await server.listen(HOST, 0)
            try:
                yield Running(topics, server, port)
            finally:
                await server.aclose()


async def publish(client: BrokerClient, *bodies: bytes, topic: str = "orders") -> list[int]:
    """Send messages ahead, and return their offsets."""
    sent = [await client.send(topic, body) for body in bodies]
    return list(await asyncio.gather(*sent))


async def take(consumer: BrokerConsumer, number: int) -> list[tuple[int, bytes]]:
    async with asyncio.timeout(60):
        return [((message := await anext(consumer)).offset, message.body) for _ in range(number)]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]  # a coroutine function


def test_a_consumer_gets_every_message_from_the_tier_the_disk_and_later(tmp_path: Path) -> None:
    bodies = [b"%d\n\x00\xff" % number * (number % 7) for number in range(300)]

    async def scenario() -> None:
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            assert await publish(client, *bodies[:200]) == list(range(200))
            await running.move_to_tier()
            await publish(client, *bodies[200:250])
            async with consume(HOST, running.port, "orders", "first") as consumer:
                found = await take(consumer, 250)
                await publish(client, *bodies[250:])
                found += await take(consumer, 50)
            assert found == list(enumerate(bodies))
            assert await client.topics() == {"orders": 300}

    run(scenario)


def test_messages_that_are_sent_ahead_share_appends_and_keep_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            bodies = [b"%d" % number for number in range(2000)]
            topics = ["a" if number % 3 else "b" for number in range(2000)]
            sent = [await client.send(topic, body) for topic, body in zip(topics, bodies, strict=True)]
            await asyncio.gather(*sent)
            for topic in "ab":
                async with consume(HOST, running.port, topic) as consumer:
                    mine = [body for each, body in zip(topics, bodies, strict=True) if each == topic]
                    assert [body for _, body in await take(consumer, len(mine))] == mine

            appends = 0
            async with broker(tmp_path / "other") as other, connect(HOST, other.port) as client:
                await client.publish("orders", b"")
                ledger = await other.ledger()
                append = ledger.append

                async def counted(records: Any) -> int:
                    nonlocal appends
                    appends += 1
                    return await append(records)

                ledger.append = counted  # type: ignore[method-assign]
                await publish(client, *bodies)
            assert 0 < appends < 500

    run(scenario)


def test_a_cursor_goes_on_behind_what_it_acknowledged_also_in_a_new_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running:
            async with connect(HOST, running.port) as client:
                await publish(client, *(b"%d" % number for number in range(10)))
            await running.move_to_tier()
            async with consume(HOST, running.port, "orders", "first", "billing") as consumer:
                await take(consumer, 5)
                await consumer.acknowledge(2)
                ledger = await running.ledger()
                await until(lambda: ledger.cursors["billing"] == 3)
            async with consume(HOST, running.port, "orders", "first", "billing") as consumer:
                assert (await take(consumer, 1))[0] == (3, b"3")
        async with (
            broker(tmp_path) as running,
            consume(HOST, running.port, "orders", "next", "billing") as consumer,
        ):
            assert (await take(consumer, 1))[0] == (3, b"3")

    run(scenario)


def test_a_consumer_that_leaves_amid_messages_has_acknowledged_what_it_said(tmp_path: Path) -> None:
    """The broker sends more than the sockets hold, so it is writing when the consumer goes."""

    async def scenario() -> None:
        async with broker(tmp_path) as running:
            async with connect(HOST, running.port) as client:
                await publish(client, *(bytes(100_000) for _ in range(100)))
            ledger = await running.ledger()
            for offset in range(20):
                async with consume(HOST, running.port, "orders", "first", "billing") as consumer:
                    assert (await anext(consumer)).offset == offset
                    await consumer.acknowledge(offset)
                assert ledger.cursors["billing"] == offset + 1

    run(scenario)


def test_a_broker_on_a_new_disk_has_the_topics_of_the_tier(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running:
            async with connect(HOST, running.port) as client:
                await publish(client, b"zero", b"one")
            await running.move_to_tier()
        (tmp_path / "data").rename(tmp_path / "lost")
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            assert await client.topics() == {"orders": 2}
            assert await client.publish("orders", b"two") == 2
            async with consume(HOST, running.port, "orders") as consumer:
                assert await take(consumer, 3) == [(0, b"zero"), (1, b"one"), (2, b"two")]

    run(scenario)


REFUSED = {
    "no request": b"hello\n",
    "a path": b"publish ../../etc 1\na\n",
    "a dot": b"publish . 1\na\n",
    "a slash": b"consume a/b first\n",
    "a nul": b"consume a\x00b first\n",
    "a long name": b"publish " + b"a" * 65 + b" 1\na\n",
    "another script": "publish órders 1\na\n".encode(),
    "an escape": b"publish a%2Fb 1\na\n",
    "a negative size": b"publish orders -1\na\n",
    "a size with a sign": b"publish orders +1\na\n",
    "a size with an underscore": b"publish orders 1_0\na\n",
    "a huge size": b"publish orders 1048577\n",
    "a size beyond 64 bits": b"publish orders " + b"9" * 3000 + b"\n",
    "no line feed behind a message": b"publish orders 1\nab",
    "no such start": b"consume orders yesterday\n",
    "a start beyond 64 bits": b"consume orders " + b"9" * 50 + b"\n",
    "a cursor with a path": b"consume orders first ../x\n",
    "a cursor at a time": b"consume orders @5 me\n",
    "a cursor beyond the end": b"consume orders 99 me\n",
    "a long line": b"topics" + b" " * 5000 + b"\n",
    "an endless line": b"x" * 300_000,
    "an acknowledgement of nothing": b"acknowledge 1\n",
    "an offset beyond the end": b"consume orders 99\n",
    "an acknowledgement beyond the end": b"consume orders first me\nacknowledge 7\n",
    "no topic": b"consume nothing first\n",
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_a_bad_request_gets_an_error_and_harms_nobody(tmp_path: Path, sent: bytes) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            await client.publish("orders", b"kept")
            reader, writer = await asyncio.open_connection(HOST, running.port)
            writer.write(sent)
            async with asyncio.timeout(60):
                while not (line := await reader.readuntil()).startswith(b"error "):
                    assert line.startswith((b"ok ", b"message ", b"kept"))
            writer.close()
            kind = line.split()[1].decode()
            assert kind in ("Misuse", "NotOffloaded"), line
            assert await client.topics() == {"orders": 1}
            assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["orders"]

    run(scenario)


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
@settings(max_examples=100 if CAMPAIGN else 15)
def test_any_bytes_are_a_request_or_misuse_or_unfinished(data: bytes) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader(limit=1000)
        reader.feed_data(b"consume orders " + data + b"\n" + data)
        reader.feed_eof()
        try:
            while await read_request(reader) is not None:
                pass
        except Misuse:
            pass

    run(scenario)


def test_a_client_that_vanishes_in_a_message_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            await client.publish("orders", b"kept")
            for sent in (b"publish orders 100\nhalf", b"publish ord", b"consume orders first\n"):
                _, writer = await asyncio.open_connection(HOST, running.port)
                writer.write(sent)
                await writer.drain()
                await until(lambda: len(running.server.clients) == 2)
                await asyncio.sleep(0.05)
                peer = writer.get_extra_info("socket")
                # Closing sends a reset, as the crash of a client's machine may.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                await until(lambda: len(running.server.clients) == 1)
            assert await client.topics() == {"orders": 1}

    run(scenario)


def test_a_consumer_that_takes_nothing_costs_bounded_memory_and_is_cut_off(tmp_path: Path) -> None:
    body = bytes(100_000)

    async def scenario() -> None:
        async with (
            broker(tmp_path, stall_seconds=1.0) as running,
            connect(HOST, running.port) as client,
        ):
            await client.publish("orders", body)
            reader, writer = await asyncio.open_connection(HOST, running.port, limit=2**16)
            writer.write(b"consume orders first\n")
            await reader.readuntil()
            largest = 0
            for _ in range(300):
                await client.publish("orders", body)
                sizes = [each.get_write_buffer_size() for each in running.server.clients]
                largest = max(largest, *sizes)
            assert 0 < largest <= 2 * WRITE_SIZE_BYTES + len(body)
            await until(lambda: len(running.server.clients) == 1)
            assert len(await reader.read()) < 100 * len(body)
            writer.close()
            async with consume(HOST, running.port, "orders", "300") as consumer:
                assert await take(consumer, 1) == [(300, body)]

    run(scenario)


def test_topics_and_clients_have_a_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path, topics_max=2, clients_max=1) as running:
            async with connect(HOST, running.port) as client:
                await client.publish("a", b"")
                await client.publish("b", b"")
                with pytest.raises(BrokerError, match="NoSpace"):
                    await client.publish("c", b"")
                async with connect(HOST, running.port) as second:
                    with pytest.raises((BrokerError, ConnectionError), match="1 clients already"):
                        await second.topics()
            await until(lambda: not running.server.clients)
            async with connect(HOST, running.port) as client:
                assert await client.topics() == {"a": 1, "b": 1}

    run(scenario)


def test_a_topic_that_was_claimed_elsewhere_refuses_messages(tmp_path: Path) -> None:
    """Two brokers have one tier. The second one to offload takes the topic, and the first one hears of it."""

    async def scenario() -> None:
        async with broker(tmp_path) as running, connect(HOST, running.port) as client:
            await client.publish("orders", b"zero")
            await running.move_to_tier()
            (tmp_path / "second").mkdir()
            (tmp_path / "second" / "tier").symlink_to(tmp_path / "tier")
            async with broker(tmp_path / "second") as second, connect(HOST, second.port) as other:
                assert await other.publish("orders", b"one") == 1
                await second.move_to_tier()
                await client.publish("orders", b"of no history")
                ledger = await running.ledger()
                await ledger.roll()
                await until(lambda: ledger.state is LedgerState.FENCED)
                with pytest.raises(BrokerError, match="Fenced"):
                    await client.publish("orders", b"two")

    run(scenario)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "broker", *map(str, arguments)]


def test_a_second_broker_on_the_same_folder_does_not_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker(tmp_path) as running:
            async with connect(HOST, running.port) as client:
                await client.publish("orders", b"")
            serve = command("--port", "0", "serve", "--data", tmp_path / "data", "--tier", tmp_path / "tier")
            second = await asyncio.create_subprocess_exec(*serve, cwd=EXAMPLE, stderr=subprocess.PIPE)
            _, said = await second.communicate()
            assert second.returncode == 1
            assert str(tmp_path / "data" / "orders").encode() in said

    run(scenario)


def patient(commands: list[str]) -> Iterator[str]:
    """Yield the commands of the page. Each `sleep` waits for its reason, however slow the machine is."""
    until, before = "until {}; do sleep 0.1; done", ""
    for command_line, behind in zip(commands, [*commands[1:], ""], strict=True):
        match command_line.split():
            case [*_, "&"]:
                yield f"rm -f said; {command_line.removesuffix('&')} > said &"
            case ["kill", "-9", pid]:  # the next broker needs the lock of this one
                yield f"{command_line}; wait {pid} 2> /dev/null"
            case ["sleep", _] if before.endswith("&"):
                yield until.format("grep -qs listening said") + "; cat said"
            case ["sleep", _] if behind.startswith("ls"):  # the local copy goes
                yield until.format("! ls data/orders/00000000000000000000.* > /dev/null 2>&1")
            case ["sleep", _]:
                yield until.format("grep -qs 'billing.*2' data/orders/note.cursors")  # the offset is saved
            case _:
                yield command_line
        before = command_line


def test_the_page_of_the_example_shows_what_happens(tmp_path: Path) -> None:
    """All commands of its README run in one shell, and print what stands below them."""
    text = (EXAMPLE / "README.md").read_text()
    blocks = "".join(re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    _, *parts = re.split(r"^\$ (.*)\n", blocks, flags=re.MULTILINE)
    commands, shown = parts[::2], parts[1::2]
    port = str(free_port())
    script = "\necho @@@\n".join([*patient(commands), "kill $!; wait $! 2> /dev/null"])
    done = subprocess.run(
        ["bash", "-c", script.replace("python -m broker", f"python -m broker --port {port}")],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(EXAMPLE),
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )

    found = done.stdout.replace(port, "7447").split("@@@\n")
    for said, expected, command_line in zip(found, shown, commands, strict=False):
        pattern = ".*".join(map(re.escape, expected.split("...")))
        assert re.fullmatch(pattern, said), f"$ {command_line}\nshown:\n{expected}\nprinted:\n{said}"
    assert len(found) == len(commands) + 1 > 12


def killed(*arguments: str | Path) -> dict[str, Any]:
    """Run the long run, and return what it found. It fails by itself if a message is missing."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "example_broker.py", "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_acknowledged_message_reaches_every_consumer_through_kills(tmp_path: Path) -> None:
    arguments = ("--seconds", "5", "--rate", "400", "--kills", "2", "--local", "1s", "--roll-size", "100kB")

    found = killed(*arguments, "--tier", tmp_path / "tier")

    assert found["acknowledged"] == 2000
    assert found["local_ledgers_deleted"] > 0
    assert {row["missing"] + row["out_of_order"] for row in found["consumers"].values()} == {0}


@campaign("the example broker on MinIO for a minute; the ordinary run kills it on a folder for seconds")
def test_every_acknowledged_message_reaches_every_consumer_on_a_real_store() -> None:
    found = killed("--seconds", "60", "--rate", "2000", "--kills", "8", "--local", "10s")

    assert found["acknowledged"] == 120_000
