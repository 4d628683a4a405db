"""A RabbitMQ with MQTT, a sidecar that sorts, and a replay that follows: each is killed again and again.

What the replay has to give is what the broker's files have, each message once. RabbitMQ 3.10.8 loses messages
itself: it confirms what comes in the moment after a start in which the stream has no leader.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import aiormq
import pytest
from campaign import campaign
from command_line import offload
from mqtt_consumer import lines_of
from mqtt_world import Publisher, until
from servers.processes import end_of, free_port, process
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

pytestmark = campaign(
    "minutes beside RabbitMQ; make test has the join with a model, and commands on real files"
)

KILLS = int(os.environ.get("OFFLOAD_REPLAY_KILLS", "20"))
RATE = 400
OFFLOAD = Path(sys.executable).with_name("offload")
SEGMENT_SIZE_BYTES = 1_000_000


def topic_of(number: int) -> str:
    """Return one of 5,000 topics."""
    return f"site/{number % 50}/line/{number // 50 % 10}/machine/{number // 500 % 10}/state"


async def declare(broker: Broker) -> None:
    """Declare a stream that gets every message of MQTT."""
    connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/")
    channel = await connection.channel()
    arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT_SIZE_BYTES}
    await channel.queue_declare("telemetry", durable=True, arguments=arguments)
    await channel.queue_bind("telemetry", "amq.topic", "#")
    await connection.close()


class Killable:
    """A process that is started again when it was killed."""

    def __init__(self, stack: ExitStack, log: Path, *argv: str | Path) -> None:
        self._stack, self._argv, self._log, self.starts = stack, argv, log, 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        env = {"PYTHONPATH": str(Path(__file__).parents[1])}
        log = self._log.with_suffix(f".{self.starts}.log")
        self.log = log
        self._running = self._stack.enter_context(process(*self._argv, log=log, env=env))

    def kill(self) -> None:
        assert self._running.poll() is None, end_of(self.log)
        self._running.kill()
        self._running.wait()
        self.start()


def test_each_message_comes_once_while_the_broker_the_sidecar_and_the_replay_are_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    ports = free_port(), free_port(), free_port()
    with scratch_folder("replay-kills") as scratch, ExitStack() as stack:
        files = scratch / "broker"
        files.mkdir()
        brokers = stack.enter_context(ExitStack())
        broker = brokers.enter_context(rabbitmq(files, has_mqtt=True, ports=ports))
        asyncio.run(declare(broker))
        (folder,) = broker.streams.glob("__telemetry_*")
        tier, stream = scratch / "tier", f"{folder.name}.topics"
        offload("sync", f"topics+rabbitmq://{broker.streams}", tier)  # so that there is a tier
        # With an identity, a process that was killed copies again at once.
        following = (f"topics+rabbitmq://{broker.streams}", tier, "--instance", scratch / "instance")
        sidecar = Killable(stack, scratch / "run", OFFLOAD, "run", *following, "--max-lag", "1s")
        with Publisher(ports[2], rate=RATE, topic_of=topic_of) as publisher:
            until(lambda: any(tier.glob("*/metadata/root*")), 120)
            consumed = scratch / "consumed"
            words = (tier, stream, f"rabbitmq://{broker.streams}", folder.name, consumed)
            consumer = Killable(stack, scratch / "consumer", sys.executable, "-m", "mqtt_consumer", *words)
            for kill in range(KILLS):
                time.sleep(random.random() * 2)
                sidecar.kill()
                consumer.kill()
                time.sleep(random.random() * 2)
                broker.kill()
                brokers.close()
                broker = brokers.enter_context(rabbitmq(files, has_mqtt=True, ports=ports))
                seen = publisher.confirmed
                until(lambda: publisher.confirmed > seen, 60)  # noqa: B023 - it is called within the turn
                with capsys.disabled():
                    segments = len([*folder.glob("*.segment")])
                    print(f"round {kill}: {publisher.published} published, {segments} segments")
        # The judge: a scan of the broker's files, by the core alone.
        expected = scanned(broker, scratch / "scan", folder.name)
        until(lambda: sum(len(each["messages"]) for each in lines_of(consumed)) >= len(expected), 120)
        time.sleep(3)
        found = [tuple(each) for line in lines_of(consumed) for each in line["messages"]]
        tiers = {name: offload("ls", tier, "--json").document[name] for name in ("ledgers", "next_offset")}

    numbers = {int(body) for _, _, body in found}
    lost = sorted({*range(publisher.published)} - numbers)
    gaps = [number for number in lost if number - 1 not in lost]
    with capsys.disabled():
        print(f"\n{KILLS} kills of each: {publisher.published} confirmed; in the stream {len(expected)}, ")
        print(
            f"of which {len(expected) - len(numbers)} again; lost by the broker {len(lost)}, from {gaps} on; "
        )
        print(
            f"replayed {len(found)}, of {len({topic for _, topic, _ in found})} topics; {json.dumps(tiers)}"
        )
    assert sorted(found) == expected
    assert tiers["ledgers"] > KILLS // 2, "it was not sorted while it was killed"
    by_topic = defaultdict(list)
    for at, topic, _ in found:
        by_topic[topic].append(at)
    assert all(each == sorted(each) for each in by_topic.values())
    assert len(by_topic) == 5000


def scanned(broker: Broker, tier: Path, stream: str) -> list[tuple[int, str, str]]:
    """Return offset, topic and payload of each message of the broker's stream."""
    ran = offload("sync", f"rabbitmq://{broker.streams}", tier)
    assert ran.code == 0, ran.stderr
    ran = offload("read", tier, stream, "--decode", "amqp")
    return [
        (each["offset"], each["annotations"]["x-routing-key"].replace(".", "/"), each["value"])
        for each in ran.objects
    ]
