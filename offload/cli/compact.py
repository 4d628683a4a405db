"""`offload compact`: larger fragments in the place of small ones."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import OnlyStream, Options, Tier
from offload.cli.kit.output import print_error, print_json, print_table, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext
from offload.cli.resumed import ended
from offload.native.offloader import TierOptions
from offload.upkeep.compact.stream import Compacted, Compaction
from offload.upkeep.compact.stream import compact as compact_tier

FragmentSize = Annotated[
    str, typer.Option(metavar="SIZE", help="How large fragments may become, such as 64MiB or 200MB.")
]
FragmentsMin = Annotated[
    int, typer.Option(metavar="COUNT", min=2, help="Leave runs of fewer fragments as they are.")
]


def compact(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    fragment_size: FragmentSize = "64MiB",
    fragments_min: FragmentsMin = 2,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Merge small fragments that lie next to each other in TIER. `offload sweep` frees what they took.

    Safe beside syncs and readers. Killed at any moment and run again, it goes on. The newest fragment stays.
    """
    state: CommandContext = context.obj
    size_bytes = parse_size(fragment_size, option="--fragment-size")
    done: list[Compacted] = []

    async def main() -> None:
        how = TierOptions(fragment_size_bytes=size_bytes)
        with progress(json=json) as show:
            async with state.tier(tier, option, how=how) as offloader:
                async for one in compact_tier(
                    offloader,
                    streams=[] if stream is None else [stream],
                    fragment_size_bytes=size_bytes,
                    fragments_min=fragments_min,
                    progress=_Bar(show),
                ):
                    done.append(one)
                    _tell(one, json=json)

    return ended(main, done, partial(_show, done), json=json)


def _tell(one: Compacted, *, json: bool) -> None:
    """What does not wait for the table."""
    if json:
        print_json(one.as_json())
    if one.error is not None:
        print_error(one.error)


def _show(done: list[Compacted]) -> None:
    heads = ("stream", "fragments", "became", "copied", "changed meanwhile")
    rows = [
        (one.stream, one.fragments, one.runs, size_text(one.bytes), one.passed_over)
        for one in done
        if one.error is None or one.runs
    ]
    if rows:
        print_table(heads, rows)


class _Bar:
    """Shows how far the stream at hand is, by its offsets; the bytes are those of all streams together."""

    def __init__(self, show: Show) -> None:
        self._show, self._stream = show, ""
        self._before = self._bytes = 0

    def __call__(self, compaction: Compaction) -> None:
        done = compaction.done
        if done.stream != self._stream:
            self._stream, self._before = done.stream, self._before + self._bytes
        self._bytes = done.bytes
        self._show(
            CommandProgress(
                what=f"compacting {done.stream}",
                done=compaction.reached - compaction.offsets.start,
                total=len(compaction.offsets),
                size_bytes=self._before + done.bytes,
            )
        )
