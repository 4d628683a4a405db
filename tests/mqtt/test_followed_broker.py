"""RabbitMQ with MQTT clients, `offload run` and a replay that follows, at once, also if one is killed.

5,000 topics are published with QoS 1 into a stream bound to `amq.topic`, whose segments roll all the time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiormq
import pytest
from campaign import campaign
from command_line import PROGRAM
from mqtt_world import Publisher, until
from servers.processes import free_port
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

pytestmark = campaign("minutes beside a real RabbitMQ; make test joins sorted and live messages of files")

TOPICS = 5_000
SECONDS = 25.0
RATE = 1_500
SEGMENT_SIZE_BYTES = 500_000
KILLS = 20
"""The kills of each of the three."""

CONSUMER = """
import asyncio, json, sys
from offload import open_source, open_tier
from offload.ground.env import Env
from offload.ground.errors import OffloadError
from offload.two_sides.tiered import TieredReader
from offload_mqtt.reader_origin import ReaderOrigin
from offload_mqtt.replay import Replay
from offload_mqtt.sorted_ledger import DEFAULT_BY
from offload_mqtt.sorted_source import topic_source

source_url, tier_url, name, notes = sys.argv[1:]

async def main():
    topics = topic_source(DEFAULT_BY)
    lines = open(notes, "rb").read().split(b"\\n")[:-1]
    iterator = json.loads(lines[-1])["iterator"] if lines else None
    source = open_source(source_url)
    async with open_tier(tier_url) as tier:
        async def read(emit):
            return await TieredReader.open(await source.stream(name), tier, env=Env(), emit=emit)
        origin = ReaderOrigin(read, topics, Env())
        replay = Replay(tier, f"{name}.topics", origin=origin)
        iterator = iterator or await replay.iterator(["#"])
        with open(notes, "ab", buffering=0) as out:
            out.truncate(sum(len(line) + 1 for line in lines))  # half a line of an earlier life
            while True:
                answer = await replay.next(iterator, 500)
                iterator = answer.iterator
                bodies = topics.decoder.bodies([each.rest for each in answer.messages])
                got = [
                    [each.origin, each.topic.decode(), int(body)]
                    for each, body in zip(answer.messages, bodies, strict=True)
                ]
                if got:
                    out.write(json.dumps({"iterator": iterator, "got": got}).encode() + b"\\n")
                else:
                    await origin.wait()

asyncio.run(main())
"""
"""A program that notes its iterator together with what it got."""


def topic_of(number: int) -> str:
    """Return the topic of a message: 5,000 of them, in four levels."""
    at = number * 7919 % TOPICS
    return f"site/{at % 50}/line/{at // 50}"


@pytest.fixture
def scratch() -> Iterator[Path]:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("followed-broker") as folder:
        yield folder


def declare(broker: Broker) -> None:
    """Declare the stream, and bind it to what MQTT clients publish."""

    async def declare() -> None:
        connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/")
        channel = await connection.channel()
        arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT_SIZE_BYTES}
        await channel.queue_declare("telemetry", durable=True, arguments=arguments)  # type: ignore[arg-type]
        await channel.queue_bind("telemetry", "amq.topic", routing_key="#")
        await connection.close()

    asyncio.run(declare())


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def segments(broker: Broker) -> int:
    return len([*broker.streams.glob("*telemetry*/*.segment")])


def has_sorted(tier: Path) -> bool:
    return any(tier.rglob("*telemetry*topics/data/*.fragment"))


def judge(messages: list[tuple[int, str, int]], published: int, *, resent: bool) -> None:
    """Assert that each message came once, with its topic, and per topic in order.

    A publisher whose broker was killed sends again what was not confirmed: the stream has it twice.
    """
    origins = Counter(origin for origin, _, _ in messages)
    assert max(origins.values()) == 1, "a message came twice"
    numbers = Counter(number for _, _, number in messages)
    assert numbers.keys() == {*range(published)}, "messages are missing"
    assert resent or max(numbers.values()) == 1
    newest: dict[str, int] = defaultdict(lambda: -1)
    for origin, topic, number in messages:
        assert topic == topic_of(number)
        assert origin > newest[topic], "a topic is out of order"
        newest[topic] = origin


def test_a_replay_that_follows_a_broker_prints_each_message_once_and_in_order(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = scratch / "tier"
    with rabbitmq(scratch, has_mqtt=True) as broker, ExitStack() as stack:
        declare(broker)
        source = f"rabbitmq://{broker.streams}"
        words = "run", f"topics+{source}", str(tier), "--max-lag", "1s"
        stack.callback(end, subprocess.Popen([*PROGRAM, *words], stderr=subprocess.DEVNULL))
        assert broker.mqtt_port is not None
        with Publisher(broker.mqtt_port, rate=RATE, topic_of=topic_of) as publisher:
            until(lambda: has_sorted(tier), 60)
            words = "mqtt", "replay", str(tier), "telemetry.topics", "--filter=#", "--follow"
            with (scratch / "printed").open("wb") as printed:
                replay = subprocess.Popen([*PROGRAM, *words, "--source", source], stdout=printed)
            stack.callback(end, replay)
            time.sleep(SECONDS)
        until(lambda: (scratch / "printed").read_bytes().count(b"\n") >= publisher.published, 60)
        time.sleep(2)
        rolled = segments(broker)
        assert replay.poll() is None
    found = list[tuple[int, str, int]]()
    for line in (scratch / "printed").read_bytes().splitlines():
        each = json.loads(line)
        body = base64.b64decode(each["value"]) if each.get("encoding") == "base64" else each["value"].encode()
        digits = body[len(body.rstrip(b"0123456789")) :]
        found.append((each["origin"], each["topic"], int(digits)))
    with capsys.disabled():
        print(f"\n{publisher.published} published, {len(found)} printed, {rolled} segments")
    judge(found, publisher.published, resent=False)


def test_kills_of_the_broker_the_run_and_the_replay_lose_nothing(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier, notes, ports = scratch / "tier", scratch / "notes", (free_port(), free_port(), free_port())
    notes.touch()
    choose, seed = random.Random(), random.randrange(2**32)
    choose.seed(seed)
    killed, ended = Counter[str](), Counter[str]()
    with ExitStack() as brokers, ExitStack() as stack:

        def started() -> Broker:
            return brokers.enter_context(rabbitmq(scratch, has_mqtt=True, ports=ports))

        def run() -> subprocess.Popen[bytes]:
            words = "run", f"topics+{source}", str(tier), "--max-lag", "1s", "--instance", str(scratch / "id")
            return subprocess.Popen([*PROGRAM, *words], stderr=subprocess.DEVNULL)

        def consumer() -> subprocess.Popen[bytes]:
            words = source, str(tier), "telemetry", str(notes)
            with (scratch / "errors").open("ab") as errors:
                return subprocess.Popen([sys.executable, "-c", CONSUMER, *words], stderr=errors)

        broker = started()
        declare(broker)
        source = f"rabbitmq://{broker.streams}"
        running = {"run": run(), "replay": consumer()}
        stack.callback(lambda: [end(each) for each in running.values()])
        with Publisher(ports[2], rate=RATE / 3, topic_of=topic_of) as publisher:
            # Before, a killed broker may forget the queue or its binding: Mnesia writes them later.
            until(lambda: segments(broker) > 1, 90)
            for one in choose.sample(["broker", "run", "replay"] * KILLS, 3 * KILLS):
                time.sleep(choose.random() * 2)
                killed[one] += 1
                for name, process in running.items():
                    ended[name] += process.poll() is not None
                if one == "broker":
                    broker.kill()
                    brokers.close()
                    broker = started()
                    continue
                end(running[one])
                running[one] = run() if one == "run" else consumer()
            assert not ended.total(), (ended, (scratch / "errors").read_text()[-2000:])
        size, deadline = -1, time.monotonic() + 90
        while notes.stat().st_size != size and time.monotonic() < deadline:
            size = notes.stat().st_size
            time.sleep(8)
        rolled = segments(broker)
    found = [
        (origin, topic, number)
        for line in notes.read_bytes().splitlines()
        for origin, topic, number in json.loads(line)["got"]
    ]
    with capsys.disabled():
        counts = f"{publisher.published} published, {len(found)} replayed, {rolled} segments"
        print(f"\nseed {seed}: {dict(killed)} killed; {counts}; sorted: {has_sorted(tier)}")
    judge(found, publisher.published, resent=True)
