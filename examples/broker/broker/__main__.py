"""The command line: `python -m broker serve`, and a client to try it with.

python -m broker serve --data ./data --tier s3://bucket/topics --local 1h
python -m broker publish orders < lines
python -m broker consume orders --start first
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from broker.client import BrokerError, connect, consume
from broker.server import BrokerServer
from broker.topics import Topics
from offload import (
    Durability,
    LedgerPolicy,
    ManagedLedgers,
    Misuse,
    OffloadError,
    Session,
)
from offload.cache.block_cache import BlockCache
from offload.contracts.events import (
    AppendsHeld,
    DamageFound,
    Event,
    LedgersOffloaded,
    LocalLedgerDeleted,
    Skipped,
    StreamPaused,
    StreamResumed,
    Waiting,
)
from offload.model.quantities import seconds_from, size_bytes_from

T = TypeVar("T")

WARNINGS = (AppendsHeld, DamageFound, Skipped, StreamPaused, Waiting)
NOTES = (LedgersOffloaded, LocalLedgerDeleted, StreamResumed)


def policy_of(arguments: argparse.Namespace) -> LedgerPolicy:
    """Return the policy: all goes to the tier when it is sealed, and its local copy goes after the time."""
    return LedgerPolicy(
        roll_seconds=max(arguments.local / 4, 1.0) if arguments.roll is None else arguments.roll,
        roll_size_bytes=arguments.roll_size,
        deletion_lag_seconds=arguments.local,
        local_size_bytes_max=arguments.local_size,
    )


def log_event(event: Event) -> None:
    """Log what an operator wants to know."""
    if isinstance(event, WARNINGS):
        logging.getLogger("broker").warning("%r", event)
    elif isinstance(event, NOTES):
        logging.getLogger("broker").info("%r", event)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until the process is asked to end."""
    policy = policy_of(arguments)
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Session(emit=log_event) as session:
        tier = session.tier(arguments.tier, storage_options=dict(arguments.option))
        cache = BlockCache(arguments.cache, throttled=lambda: session.metrics.throttled)
        try:
            async with ManagedLedgers(tier, policy=policy, cache=cache, emit=log_event) as ledgers:
                topics = Topics(
                    ledgers, tier, Path(arguments.data), durability=Durability(arguments.durability)
                )
                await run(topics, arguments)
        finally:
            await cache.aclose()


async def run(topics: Topics, arguments: argparse.Namespace) -> None:
    """Open the topics, and serve clients. The topics stay open."""
    await topics.open_local()
    server = BrokerServer(topics)
    finding = asyncio.create_task(topics.find_on_tier())
    try:
        host, port = await server.listen(arguments.host, arguments.port)
        print(f"listening on {host}:{port}", flush=True)
        await asyncio.get_running_loop().create_future()  # until SIGTERM or Ctrl-C
    finally:
        finding.cancel()
        await asyncio.gather(finding, server.aclose(), return_exceptions=True)


async def publish(arguments: argparse.Namespace) -> None:
    """Publish each line of stdin, and print its offset."""
    async with connect(arguments.host, arguments.port) as client:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            print(await client.publish(arguments.topic, line.rstrip(b"\n")), flush=True)


async def print_topic(arguments: argparse.Namespace) -> None:
    """Print messages, each with its offset. With a cursor, a message that was printed is acknowledged."""
    left = arguments.limit
    async with consume(
        arguments.host, arguments.port, arguments.topic, arguments.start, arguments.cursor
    ) as consumer:
        async for message in consumer:
            sys.stdout.buffer.write(b"%d\t%s\n" % (message.offset, message.body))
            sys.stdout.buffer.flush()
            if arguments.cursor:
                await consumer.acknowledge(message.offset)
            left -= 1
            if left == 0:
                return


async def list_topics(arguments: argparse.Namespace) -> None:
    """Print the topics, each with the offset of its next message."""
    async with connect(arguments.host, arguments.port) as client:
        for name, end in (await client.topics()).items():
            print(f"{name}\t{end}")


def option_in(text: str) -> tuple[str, str]:
    """Return the name and the value of an option. Raises `Misuse`."""
    name, is_given, value = text.partition("=")
    if not is_given:
        raise Misuse(f"takes KEY=VALUE, not {text!r}")
    return name, value


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a type for `argparse`, which shows the texts of `ArgumentTypeError` alone."""

    def of(text: str) -> T:
        try:
            return parse(text)
        except Misuse as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return of


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="broker", description="A broker with tiered storage, and its client.")
    top.add_argument("--host", default="127.0.0.1", help="address; default: 127.0.0.1")
    top.add_argument("--port", type=int, default=7447, help="TCP port; default: 7447; serve: 0 picks one")
    seconds, size_bytes = parsed(seconds_from), parsed(size_bytes_from)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    new = commands.add_parser("serve", help="run the broker")
    new.set_defaults(run=serve)
    new.add_argument("--data", required=True, help="folder of the local logs")
    new.add_argument("--tier", required=True, help="URL or folder of the tier")
    new.add_argument("--local", type=seconds, default="1h", help="how long local copies stay; default: 1h")
    new.add_argument(
        "--roll", type=seconds, help="age at which a ledger is sealed and copied; default: 1/4 of --local"
    )
    new.add_argument(
        "--roll-size", type=size_bytes, default="64MiB", help="size at which it is; default: 64MiB"
    )
    new.add_argument(
        "--local-size",
        type=size_bytes,
        help="publishers of a topic wait while its log is larger; default: never",
    )
    new.add_argument(
        "--cache", type=size_bytes, default="64MiB", help="memory for reads of the tier; default: 64MiB"
    )
    new.add_argument(
        "--durability",
        default="always",
        choices=[each.value for each in Durability],
        help="what an acknowledgement waits for; default: always, a sync of the disk",
    )
    new.add_argument(
        "-o",
        "--option",
        type=parsed(option_in),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the tier's backend",
    )

    new = commands.add_parser("publish", help="publish each line of stdin")
    new.set_defaults(run=publish)
    new.add_argument("topic")

    new = commands.add_parser("consume", help="print messages")
    new.set_defaults(run=print_topic)
    new.add_argument("topic")
    new.add_argument(
        "--start", default="first", help="first, next, last, an offset or a time; default: first"
    )
    new.add_argument("--cursor", default="", help="begin at the cursor of this name")
    new.add_argument("--limit", type=int, default=-1, help="end after so many messages")

    new = commands.add_parser("topics", help="list the topics")
    new.set_defaults(run=list_topics)
    return top


def main() -> None:
    """Run a command. The exit code is 1 if it failed."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    arguments = parser().parse_args()
    try:
        with suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(arguments.run(arguments))
    except (BrokerError, OffloadError, OSError) as error:
        print(f"broker: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
