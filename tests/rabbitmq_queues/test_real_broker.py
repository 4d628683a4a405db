"""Tests on a real RabbitMQ that is killed under load: what was confirmed is rescued, and published again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiormq
import pytest
from campaign import campaign
from command_line import offload
from offload_rabbitmq.queues.messages import read_message, read_properties
from pamqp.commands import Basic
from queue_sets import queues_in
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

pytestmark = campaign("sets of files of a killed broker have the same claims; only the broker starts again")

KILLS: Final = 20
QUEUES: Final = {
    f"{kind}-v{version}": {"x-queue-version": version} | ({"x-max-priority": 5} if kind == "prio" else {})
    for kind in ("kept", "eaten", "prio")
    for version in (1, 2)
}
SIZES: Final = (0, 20, 100, 3900, 5000, 140_000)
IN_FLIGHT_MAX: Final = 50
CONFIRMED_MIN: Final = 100
"""So many messages of each queue are confirmed before the broker may be killed."""


@dataclass
class Load:
    """What clients know of one queue: bodies by number, and what happened to each."""

    rng: random.Random
    sent: dict[int, bytes] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)

    def message(self) -> tuple[int, bytes, Basic.Properties]:
        """Return a message that was never sent before."""
        number = len(self.sent)
        body = b"%d " % number + self.rng.randbytes(self.rng.choice(SIZES[: 6 if number % 9 == 0 else 4]))
        self.sent[number] = body
        headers = {"n": number, "f": 1.5, "deep": {"list": [1, "two", None, True]}}
        priority = self.rng.randrange(6)
        properties = Basic.Properties(
            delivery_mode=2, headers=headers, message_id=str(number), priority=priority, app_id="test"
        )
        return number, body, properties


@pytest.fixture
def scratch() -> Iterator[Path]:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("queues") as folder:
        yield folder


def url_of(broker: Broker) -> str:
    return f"amqp://127.0.0.1:{broker.amqp_port}/"


async def connected(broker: Broker) -> Any:
    return await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/")


async def publishing(connection: Any, queue: str, load: Load) -> None:
    """Publish until the connection ends, and note what is confirmed."""
    channel = await connection.channel(publisher_confirms=True)
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def one() -> None:
        number, body, properties = load.message()
        async with room:
            await channel.basic_publish(body, routing_key=queue, properties=properties, wait=False)
        load.confirmed.add(number)

    with suppress(Exception, asyncio.CancelledError):
        while True:
            await asyncio.gather(*(one() for _ in range(IN_FLIGHT_MAX)))


async def eating(connection: Any, queue: str, load: Load) -> None:
    """Get messages until the connection ends, and acknowledge most of them."""
    channel = await connection.channel(publisher_confirms=False)
    with suppress(Exception, asyncio.CancelledError):
        while True:
            found = await channel.basic_get(queue)
            if found.delivery_tag and load.rng.random() < 0.8:
                load.acked.add(int(found.header.properties.message_id))
                await channel.basic_ack(found.delivery_tag)


async def work_and_kill(broker: Broker, loads: dict[str, Load], seconds: float) -> None:
    connections = [await connected(broker), await connected(broker)]
    channel = await connections[0].channel()
    for queue, arguments in QUEUES.items():
        await channel.queue_declare(queue, durable=True, arguments=arguments)
    working = [asyncio.create_task(publishing(connections[0], queue, loads[queue])) for queue in QUEUES]
    working += [
        asyncio.create_task(eating(connections[1], queue, loads[queue]))
        for queue in QUEUES
        if "eaten" in queue
    ]
    async with asyncio.timeout(90):
        while min(len(load.confirmed) for load in loads.values()) < CONFIRMED_MIN:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(broker.kill)
    for each in working:
        each.cancel()
    await asyncio.wait(working, timeout=20)
    for each in connections:
        with suppress(Exception, asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(each.close(), 5)


Rescued = list[tuple[bytes, str, bool, dict[str, Any]]]
"""Body, routing key, redelivered and properties of each message."""


async def got(broker: Broker, queue: str) -> Rescued:
    """Return all messages of a queue, in the order in which the broker delivers them."""
    connection = await connected(broker)
    channel = await connection.channel()
    found = []
    while (each := await channel.basic_get(queue)).delivery_tag:
        assert isinstance(each.delivery, Basic.GetOk)
        properties = {
            name.removeprefix("message_") if name == "message_type" else name: value
            for name, value in each.header.properties
            if value not in (None, "")
        }
        found.append((each.body, each.delivery.routing_key, each.delivery.redelivered, properties))
    await connection.close()
    return found


async def declared(broker: Broker, queue: str) -> None:
    connection = await connected(broker)
    await (await connection.channel()).queue_declare(queue, durable=True)
    await connection.close()


def rescued(node: Path, queue: str) -> Rescued:
    """Return the same of the files."""
    found = queues_in(node)[f"%2F/{queue}"]
    messages = [read_message(each, where=queue) for each in found.terms(0, len(found.rows))]
    return [
        (each.body, each.keys[0].decode(), bool(flags), read_properties(each.properties, where=queue))
        for each, flags in zip(messages, found.rows["flags"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("kill", range(KILLS))
def test_what_was_confirmed_is_rescued_and_published_again(kill: int, scratch: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    loads = {queue: Load(random.Random(rng.random())) for queue in QUEUES}
    first, again = scratch / "first", scratch / "again"
    first.mkdir()
    with rabbitmq(first, has_streams=False) as broker:
        asyncio.run(work_and_kill(broker, loads, rng.uniform(0, 4)))
    node = broker.node

    files = {queue: rescued(node, queue) for queue in QUEUES}

    for queue, load in loads.items():
        bodies = {body for body, *_ in files[queue]}
        lost = [each for each in sorted(load.confirmed - load.acked) if load.sent[each] not in bodies]
        assert lost == [], (queue, len(load.confirmed), len(load.acked))
    tier = str(scratch / "tier")
    ran = offload("queues", "rescue", str(node), tier)
    assert all("never confirmed" in line or "cut off" in line for line in ran.stderr.splitlines()), ran.stderr
    again.mkdir()
    shutil.copytree(first / "mnesia", again / "mnesia")
    with rabbitmq(again, has_streams=False) as broker:
        for queue in QUEUES:
            asyncio.run(declared(broker, f"new-{queue}"))
            name = f"new-{queue}"
            published = offload(
                *("queues", "publish", tier, f"%2F/{queue}", url_of(broker), "--queue", name),
                *("--progress", str(scratch / quote(name))),
            )
            assert published.code == 0, published.stderr
            assert asyncio.run(got(broker, queue)) == files[queue], queue
            new = asyncio.run(got(broker, name))
            assert new == [(body, key, False, properties) for body, key, _, properties in files[queue]], queue
