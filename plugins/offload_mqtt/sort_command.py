"""The command `offload mqtt sort`: a stream of a tier, sorted by topic, as another stream of the tier."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import Compress, Options, Stream, Tier, compression_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.indexes import tell_index
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, print_error, print_json, print_note, print_sentence, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.copy.sync import StreamReport, sync
from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, StoreDenied
from offload.index.job import index, unindexed
from offload.index.ranges import store_ranges
from offload.index.terms import Spec
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.sorted_ledger import DEFAULT_BY
from offload_mqtt.sorted_source import SortedTier, topic_source

__all__ = ["RANGES", "sort"]

RANGES: Final = Spec.parse("ranges=mqtt:topic")

SortedName = Annotated[
    str, typer.Argument(metavar="NEW", help="The sorted stream. It is begun, or continued.")
]
TopicBy = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="SPEC",
        help="The decoder, and where the topic is: DECODER:PATH. For an archive of `offload mqtt archive`: "
        "mqtt:topic.",
    ),
]


def sort(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    new: SortedName,
    by: TopicBy = DEFAULT_BY,
    compress: Compress = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Sort STREAM by topic into the stream NEW of the same tier, so that `offload mqtt replay` reads less.

    Sorts the sealed ledgers that NEW does not have: all but the last one. A ledger is in memory while it is
    sorted. If it is killed, run the same command again.
    """
    state: CommandContext = context.obj
    try:
        topics = topic_source(by)
    except Misuse as error:
        raise Usage(f"--by: {error}") from error
    how = TierOptions(compression=compression_of(compress))

    async def main() -> bool:
        async with state.tier(tier, option, how=how) as offloader:
            store = native(offloader, to="sort")
            source = SortedTier(store, await known_name(store, stream), new, topics)
            with live_line("sorting") as show:
                async with aclosing(sync(source, store, emit=lambda event: show(str(event)))) as reports:
                    (report,) = [each async for each in reports]
            await _keep_ranges(store, new, source)
            _tell(report, json=json)
            if report.manifest is not None and report.error is None:
                await _index(store, new, json=json)
        return report.error is None

    return 0 if run_async(main) else 1


async def _keep_ranges(tier: ObjectStoreOffloader, new: str, source: SortedTier) -> None:
    """Store the ranges of the ledgers that were sorted now, so that nothing need be read for them."""
    if not source.ranges:
        return
    try:
        root, missing = await unindexed(tier, new, RANGES)
    except StoreDenied:
        raise
    except Denied as error:  # encrypted
        print_note(f"{error}; a replay reads all of it")
        return
    for ranges in source.ranges.values():
        if any(each.start <= ranges.first_offset and ranges.next_offset <= each.stop for each in missing):
            await store_ranges(tier.store, root, RANGES, [ranges], env=Env())


async def _index(tier: ObjectStoreOffloader, new: str, *, json: bool) -> None:
    """Index what was sorted by others, and merge small objects."""
    try:
        async with aclosing(index(tier, new, RANGES, MqttDecoder())) as reports:
            async for each in reports:
                tell_index(each, json=json)
    except StoreDenied:
        raise
    except Denied:
        return


def _tell(report: StreamReport, *, json: bool) -> None:
    committed = report.manifest
    if json:
        print_json(report.as_json())
    elif committed is None and report.error is None:
        print_sentence(f"{report.stream}: nothing is sealed yet")
    elif committed is not None and report.error is None:
        print_sentence(
            f"{report.stream}: {counted(committed.messages, 'record')} in offsets "
            f"[{committed.first_offset}, {committed.next_offset}); "
            + (f"uploaded {size_text(report.uploaded_bytes)}" if report.uploaded_bytes else "nothing new")
        )
    if report.error is not None:
        print_error(report.error)
