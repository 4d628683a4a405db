"""Reading beside a real RabbitMQ that writes and deletes, for which its packages must be installed."""

from __future__ import annotations

import asyncio
import json
import os
import re
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

from offload import Dispatcher, FollowRules, LedgerOffloader, Retention, Session, TierOptions, trim
from offload.opening.backends import as_offloader

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


async def read(
    broker: Broker,
    tier: Path,
    stream: str,
    *options: str,
    rest_seconds: float = 0,
    begun: asyncio.Event | None = None,
) -> tuple[list[tuple[int, int]], str]:
    """Run `offload read --source`. Return the offset and the number of each message, and what it said.

    `begun` is set when the first message is there. The rest of the output is taken after a rest: until then,
    the command waits behind the first messages.
    """
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
    assert process.stdout is not None
    first = await process.stdout.readline()
    if begun is not None:
        begun.set()
    await asyncio.sleep(rest_seconds)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    lines = (json.loads(line) for line in (first + out).splitlines())
    return [(line["offset"], int(line["value"][:8])) for line in lines], err.decode()


async def trim_and_sweep(tier: LedgerOffloader, folder: Path, stream: str, before: int) -> None:
    """Trim the tier, and remove what it does not name at once, as a sweep does a day later."""
    await trim(tier, stream, Retention(before_offset=before))
    view = await tier.view(stream)
    named = {view.name_of(rows[row : row + 1]) async for rows in view.walk() for row in range(len(rows))}
    for path in (folder / stream).rglob("*.fragment"):
        if str(path.relative_to(folder)) not in named:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("priority", ["local-first", "tier-first"])
def test_every_message_is_read_once_while_the_broker_writes_and_deletes(
    priority: str, broker: Broker, tmp_path: Path
) -> None:
    """From the first on the tier to the newest, and with --follow up to the last that is published."""

    async def scenario() -> None:
        folder = await declare(broker, priority)
        async with Session() as session:
            tier = as_offloader(session.tier(str(tmp_path / "tier"), options=TierOptions()))
            async with copied(session, broker, folder, tier):
                await publish(broker, priority, begin=1, end=MESSAGES // 2)
                await asyncio.sleep(3)
                publishing = asyncio.create_task(publish(broker, priority, begin=MESSAGES // 2, end=MESSAGES))
                following = ("--priority", priority, "--follow", "--limit", str(MESSAGES))
                followed = asyncio.create_task(read(broker, tmp_path / "tier", folder, *following))
                await asyncio.sleep(1)
                asked = ("--broker", f"rabbitmq-stream://127.0.0.1:{broker.stream_port}")
                found, said = await read(broker, tmp_path / "tier", folder, "--priority", priority, *asked)
                assert [number for _, number in found] == list(range(len(found)))
                assert len(found) > MESSAGES // 2
                print(said)
                await publishing
                found, said = await followed
                assert [number for _, number in found] == list(range(MESSAGES))
                print(said, "the broker begins at offset", first_offset(broker, folder))
                assert first_offset(broker, folder) > MESSAGES // 2, "it has deleted what was read"

    asyncio.run(scenario())


@pytest.mark.parametrize("priority", ["local-first", "tier-first"])
def test_a_trim_under_the_reader_leaves_out_only_what_a_note_names(
    priority: str, broker: Broker, tmp_path: Path
) -> None:
    async def scenario() -> None:
        stream = f"trimmed-{priority}"
        folder = await declare(broker, stream)
        async with Session() as session:
            tier = as_offloader(session.tier(str(tmp_path / "tier"), options=TierOptions()))
            async with copied(session, broker, folder, tier):
                await publish(broker, stream, begin=1, end=MESSAGES // 2)
                await asyncio.sleep(3)
                publishing = asyncio.create_task(publish(broker, stream, begin=MESSAGES // 2, end=MESSAGES))
                begun = asyncio.Event()
                following = ("--priority", priority, "--follow", "--to", str(MESSAGES))
                reading = asyncio.create_task(
                    read(broker, tmp_path / "tier", folder, *following, rest_seconds=4, begun=begun)
                )
                await begun.wait()
                while not publishing.done():
                    await asyncio.sleep(0.5)
                    before = first_offset(broker, folder) + SEGMENT_SIZE_BYTES // BODY_SIZE_BYTES
                    await trim_and_sweep(tier, tmp_path / "tier", folder, before)
                found, said = await reading
        print(said)
        notes = re.findall(r"offsets \[(\d+), (\d+)\) were trimmed", said)
        skipped = [at for begin, end in notes for at in range(int(begin), int(end))]
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(offsets)
        assert sorted(offsets + skipped) == list(range(MESSAGES)), "each is printed once, or named by a note"
        assert all(offset == number for offset, number in found)
        assert skipped, "the reader was overtaken"

    asyncio.run(scenario())


def first_offset(broker: Broker, folder: str) -> int:
    """Return the first offset of the broker's oldest segment."""
    return min(int(path.stem) for path in (broker.streams / folder).glob("*.segment"))
