"""The command `offload mqtt replay`: messages of a sorted stream, by topic, printed or published again."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.model.position import Position, parse_position
from offload.native.layout_check import native
from offload.read.reader import StreamReader
from offload.showing.lines import Format
from offload.showing.message_output import MessageOutput
from offload.two_sides.tiered import TieredReader
from offload_mqtt.address import BrokerAddress, parse_address
from offload_mqtt.groups import GroupMember
from offload_mqtt.iterators import HistoryTrimmed, ReplayIterator
from offload_mqtt.origin import ReplayOrigin
from offload_mqtt.output import Output, Printed, Publisher
from offload_mqtt.pacing import by_arrival, paced
from offload_mqtt.reader_origin import OpenReader, ReaderOrigin
from offload_mqtt.reading import ReplayRun
from offload_mqtt.replay import Replay
from offload_mqtt.sorted_ledger import DEFAULT_BY, TopicSource
from offload_mqtt.sorted_source import SUFFIX, topic_source

WAIT_SECONDS: Final = 1.0
"""The time between two looks for more, if nothing tells of it."""

Filters = Annotated[
    list[str],
    typer.Option(
        "--filter",
        metavar="FILTER",
        help="Replay these topics: site/+/line/3/#. Repeat it for several; each message comes once.",
    ),
]
OriginSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        help="Go on at the disk of the broker with what is not sorted yet: rabbitmq:///var/lib/…/stream.",
    ),
]
OriginName = Annotated[
    str | None,
    typer.Option(
        "--origin",
        metavar="NAME",
        help="The stream that was sorted into STREAM, to go on there: at --source, "
        "or on TIER. Default, with --source: STREAM without .topics.",
    ),
]
TopicsBy = Annotated[
    str,
    typer.Option("--by", metavar="SPEC", help="Where records of the origin have their topics: mqtt:topic."),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Publish the messages to this broker with QoS 1, and print none: mqtt://HOST[:PORT].",
    ),
]
Speed = Annotated[
    float | None,
    typer.Option(
        "--speed",
        metavar="X",
        help="Keep the pace at which messages came, X times as fast, in the order in which they came. "
        "Holds the selected messages of one ledger in memory.",
    ),
]
BeginAt = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SPEC",
        help="The position to begin at: first, next, an offset of the origin, or a time: ISO 8601, @ and "
        "milliseconds since 1970, or -1h for so long ago.",
    ),
]
FollowOn = Annotated[
    bool, typer.Option("--follow", "-f", help="At the end, wait for what comes later. Ctrl-C ends it.")
]
Most = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="Print at most this many messages.")
]
PrintedFormat = Annotated[Format, typer.Option("--format", help="The format of each message.")]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume", metavar="ITERATOR", help="Go on where an interrupted replay says that it ended."
    ),
]

GroupName = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Share the messages with all processes of this group and these filters. "
        "The first of them sets --from. Each message comes at least once.",
    ),
]


def replay(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    filters: Filters,
    start: BeginAt = "first",
    source: OriginSource = None,
    origin: OriginName = None,
    by: TopicsBy = DEFAULT_BY,
    to: Broker = None,
    speed: Speed = None,
    follow: FollowOn = False,
    limit: Most = None,
    how: PrintedFormat = Format.JSONL,
    resume: Resume = None,
    group: GroupName = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
) -> None:
    """Print the messages of STREAM whose topics a filter matches, or publish them again with --to.

    STREAM is one that was sorted by topic. Each topic comes in the order of publishing.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    position = _position(start)
    if speed is not None and speed <= 0:
        raise Usage("--speed takes a number above 0: 1 is the pace at which messages came")
    if group is not None and (source, origin, speed, resume) != (None,) * 4:
        raise Usage(
            "--group shares what is sorted on TIER: leave out --source, --origin, --speed and --resume"
        )
    topics = _topics(by)

    is_awaited = follow or speed is not None
    out: Output = Printed(MessageOutput(how, state.decoder("mqtt"), write=write_bytes), at_once=is_awaited)
    address = None if to is None else _address(to)

    async def main() -> None:
        async with AsyncExitStack() as opened:
            catalogue = await opened.enter_async_context(state.opened_to_read(tier, option))
            name, live, sink = await known_name(catalogue, stream), None, out
            if source is not None or origin is not None:
                read = _opened(state, catalogue, source, origin or name.removesuffix(SUFFIX), opened)
                live = ReaderOrigin(read, topics, state.session.env)
            made = Replay(catalogue, name, origin=live, emit=state.plugins.emit)
            opened.push_async_callback(made.aclose)
            if address is not None:
                client_id = f"offload-replay-{state.session.env.uuid().hex[:12]}"
                publisher = Publisher.opened(address, client_id, topics.decoder)
                sink = await opened.enter_async_context(publisher)
            if group is not None:
                shared, env = native(catalogue, to="share a replay"), state.session.env
                member = await GroupMember.of(shared, made, name, group, filters, env=env)
                member.confirm, member.tell = sink.flush, print_note
                await _write(member.runs(position, follow=follow), sink, limit, place)
                return
            begin = resume if resume is not None else await made.iterator(filters, position)
            runs = _runs(made, begin, live, state.session.env, follow=follow)
            if speed is not None:
                runs = paced(by_arrival(runs), speed, state.session.env)
            await _write(runs, sink, limit, place)

    place = _Summary(group)
    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(str(place)) from stop


@dataclass(slots=True)
class _Summary:
    """How far a replay has come."""

    group: str | None = None
    messages: int = 0
    at: ReplayIterator | None = None

    def __str__(self) -> str:
        if self.at is None:
            return "no message was replayed"
        if self.group is not None:
            return f"{counted(self.messages, 'message')} replayed; group {self.group} has saved how far it is"
        return f"{counted(self.messages, 'message')} replayed; continue with --resume {self.at}"


def _opened(
    state: CommandContext, catalogue: Catalogue, source: str | None, origin: str, opened: AsyncExitStack
) -> OpenReader:
    """Return what opens a reader of the origin: on the disk of a source and on the tier, or on the tier."""

    async def read(emit: Callable[[Event], None]) -> StreamReader | TieredReader:
        if source is None:
            return await StreamReader.open(catalogue, origin, emit=emit)
        streams = await opened.enter_async_context(aclosing(state.source(source)))
        found = await streams.stream(origin)
        return await TieredReader.open(found, catalogue, env=state.session.env, emit=emit)

    return read


def _topics(by: str) -> TopicSource:
    try:
        return topic_source(by)
    except Misuse as error:
        raise Usage(f"--by: {error}") from error


def _position(text: str) -> Position:
    try:
        return parse_position(text, now_ms=Env().now_ms())
    except Misuse as error:
        raise Usage(str(error)) from error


def _address(url: str) -> BrokerAddress:
    try:
        return parse_address(url, os.environ)
    except Misuse as error:
        raise Usage(f"--to: {error}") from error


async def _runs(
    made: Replay, iterator: str, live: ReplayOrigin | None, env: Env, *, follow: bool
) -> AsyncGenerator[ReplayRun, None]:
    """Yield the messages to the newest, and then, if this follows, what comes later."""
    while True:
        try:
            async with aclosing(made.runs(iterator)) as runs:
                async for run in runs:
                    yield run
                    iterator = str(run.at)
        except HistoryTrimmed as gone:
            print_note(str(gone))
            iterator = gone.iterator
            continue
        if not follow:
            return
        await (env.sleep(WAIT_SECONDS) if live is None else live.wait())


async def _write(
    runs: AsyncGenerator[ReplayRun, None], out: Output, limit: int | None, place: _Summary
) -> None:
    try:
        async with aclosing(runs):
            async for each in runs:
                run = each.rows(0, len(each) if limit is None else limit - place.messages)
                await out.write(run)
                place.messages, place.at = place.messages + len(run), run.at
                if place.messages == limit:
                    break
    finally:  # also when it is interrupted: then the place is told, and everything before it must be there
        await out.flush()
