"""`offload compact`: merge small fragments into larger ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import (
    Compress,
    Encrypt,
    EncryptedOnly,
    Keys,
    OnlyStream,
    Options,
    Tier,
    compression_of,
)
from offload.cli.kit.names import known_names
from offload.cli.kit.output import print_dropped, print_error, print_json, print_table, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext
from offload.cli.resumed import ended
from offload.upkeep.compact.stream import Compacted, Compaction
from offload.upkeep.compact.stream import compact as compact_tier

FragmentSize = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="The largest size of a merged fragment, before compression, such as 64MiB or 200MB.",
    ),
]
FragmentsMin = Annotated[
    int,
    typer.Option(metavar="COUNT", min=2, help="Merge only if at least this many fragments become one."),
]


def compact(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    fragment_size: FragmentSize = "64MiB",
    fragments_min: FragmentsMin = 2,
    compress: Compress = None,
    encrypt: Encrypt = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Merge neighbouring small fragments in TIER. `offload sweep` frees the space of the old ones.

    Safe beside syncs and readers. If it is killed, run the same command again. The newest fragment of a
    stream stays as it is. So does a fragment that is not small, whatever its compression: `offload copy`
    compresses everything.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypt, encrypted_only=encrypted_only)
    size_bytes = parse_size(fragment_size, option="--fragment-size")
    compression = compression_of(compress)
    done: list[Compacted] = []

    async def main() -> None:
        how = replace(state.reading, fragment_size_bytes=size_bytes, compression=compression, encrypt=encrypt)
        with progress(json=json) as show:
            async with state.tier(tier, option, how=how) as offloader:
                async for one in compact_tier(
                    offloader,
                    streams=await known_names(offloader, [] if stream is None else [stream]),
                    fragment_size_bytes=size_bytes,
                    fragments_min=fragments_min,
                    progress=_Bar(show),
                ):
                    done.append(one)
                    _tell(one, json=json)

    return ended(main, done, partial(_show, done), json=json)


def _tell(one: Compacted, *, json: bool) -> None:
    """Print a line of JSON, or an error, as soon as a stream is done. The table comes at the end."""
    if json:
        print_json(one.as_json())
    else:
        print_dropped(one.stream, one.dropped_sections)
    if one.error is not None:
        print_error(one.error)


def _show(done: list[Compacted]) -> None:
    heads = ("stream", "fragments", "became", "copied", "stored", "changed meanwhile")
    rows = [
        (
            one.stream,
            one.fragments,
            one.runs,
            size_text(one.bytes),
            size_text(one.stored_bytes),
            one.passed_over,
        )
        for one in done
        if one.error is None or one.runs
    ]
    if rows:
        print_table(heads, rows)


class _Bar:
    """The progress of the stream at hand, in offsets. The bytes are those of all streams together."""

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
