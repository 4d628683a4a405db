"""Reading beside a real RabbitMQ that writes and deletes, for which its packages must be installed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from campaign import campaign
from command_line import PROGRAM
from rstream import Producer
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

from offload import Dispatcher, FollowRules, LedgerOffloader, Session, TierOptions
from offload.session import as_offloader

pytestmark = campaign("a source in memory and folders of recorded files have the same claims")

RULES = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.2)
MESSAGES = 12_000
BODY_SIZE_BYTES = 2_000
SEGMENT_SIZE_BYTES = 1_000_000
LIMIT_SIZE_BYTES = 5_000_000
"""The broker keeps about a fifth of what is written."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("rabbitmq") as scratch, rabbitmq(scratch) as running:
        yield running


async def declare(broker: Broker, stream: str) -> str:
    """Declare a stream of small segments, and return the name of its folder."""
    async with Producer("127.0.0.1", port=broker.stream_port, username="guest", password="guest") as producer:
        arguments = {
            "max-length-bytes": LIMIT_SIZE_BYTES,
            "stream-max-segment-size-bytes": SEGMENT_SIZE_BYTES,
        }
        await producer.create_stream(stream, arguments=arguments)
        await producer.send_wait(stream, body_of(0))
    (path,) = broker.streams.glob(f"__{stream}_*")
    return path.name


async def publish(broker: Broker, stream: str, *, begin: int, end: int) -> None:
    """Publish messages, about 1,500 in a second."""
    async with Producer("127.0.0.1", port=broker.stream_port, username="guest", password="guest") as producer:
        for number in range(begin, end, 50):
            await producer.send_batch(
                stream, [body_of(each) for each in range(number, min(number + 50, end))]
            )
            await asyncio.sleep(0.03)


def body_of(number: int) -> bytes:
    return (b"%08d" % number).ljust(BODY_SIZE_BYTES, b".")


@asynccontextmanager
async def copied(session: Session, broker: Broker, stream: str, tier: LedgerOffloader) -> AsyncIterator[None]:
    """Copy the stream to the tier meanwhile."""
    plan = tier, RULES
    dispatcher = Dispatcher(
        source=session.source(f"rabbitmq://{broker.streams}"),
        plan_of=lambda name: plan if name == stream else None,
        env=session.env,
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(dispatcher.run(stopping))
    yield
    stopping.set()
    await running


async def read(broker: Broker, tier: Path, stream: str, *options: str) -> tuple[list[tuple[int, int]], str]:
    """Run `offload read --source`. Return the offset and the number of each message, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        "read",
        str(tier),
        stream,
        "--source",
        f"rabbitmq://{broker.streams}",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    lines = (json.loads(line) for line in out.splitlines())
    return [(line["offset"], int(line["value"][:8])) for line in lines], err.decode()


@pytest.mark.parametrize("priority", ["local-first", "tier-first"])
@pytest.mark.parametrize("is_trimmed", [False, True], ids=["kept", "trimmed"])
def test_every_message_is_read_once_while_the_broker_writes_and_deletes(
    priority: str, is_trimmed: bool, broker: Broker, tmp_path: Path
) -> None:
    """From the first on the tier to the newest, and with --follow up to the last that is published."""

    async def scenario() -> None:
        stream = f"{priority}-{is_trimmed}"
        folder = await declare(broker, stream)
        async with Session() as session:
            tier = as_offloader(session.tier(str(tmp_path / "tier"), options=TierOptions()))
            async with copied(session, broker, folder, tier):
                await publish(broker, stream, begin=1, end=MESSAGES // 2)
                await asyncio.sleep(3)
                publishing = asyncio.create_task(publish(broker, stream, begin=MESSAGES // 2, end=MESSAGES))
                followed = asyncio.create_task(
                    read(
                        broker,
                        tmp_path / "tier",
                        folder,
                        "--priority",
                        priority,
                        "--follow",
                        "--limit",
                        str(MESSAGES),
                    )
                )
                await asyncio.sleep(1)
                found, said = await read(broker, tmp_path / "tier", folder, "--priority", priority)
                print(said)
                numbers = [number for _, number in found]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) > MESSAGES // 2
                await publishing
                found, said = await followed
                print(said)
                assert [number for _, number in found] == list(range(MESSAGES))
                first = min(int(each.stem) for each in (broker.streams / folder).glob("*.segment"))
                print("the broker begins at offset", first)
                assert first > MESSAGES // 2, "the broker has deleted what was read"

    asyncio.run(scenario())
