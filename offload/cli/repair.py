"""`offload repair`: replace damaged and lost fragments by the same records from another place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import (
    Compress,
    Keys,
    Options,
    SourceKeys,
    Stream,
    Tier,
    compression_of,
)
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, error_line, one_line, print_error, print_json
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.verify import Level
from offload.contracts.offloader import LedgerOffloader
from offload.ground.urls import scheme_of
from offload.upkeep.copy.tier import refuse_itself
from offload.upkeep.repair import Compared, Elsewhere, RepairedFragment, of_source, of_tier, repair_stream
from offload.upkeep.verify.report import VerifyLevel, VerifyReport

FRAGMENT_SIZE_BYTES: Final = 1 << 40
"""Larger than any fragment: a copy of a fragment is one fragment."""

COMPARED: Final = {
    Compared.INDEX: "each chunk is that of its index",
    Compared.CHUNK_BEHIND: "its totals and the chunk behind it are the same",
    Compared.CHUNK_BEFORE: "its totals and the chunk before it are the same",
    Compared.TOTALS: "its totals are the same, and there was nothing else to compare",
}

From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Where the records are: the broker's files, such as rabbitmq:///PATH, or another tier.",
    ),
]
DryRepair = Annotated[
    bool, typer.Option("--dry-run", help="Fetch and compare the records, and change nothing.")
]
FromOptions = Annotated[
    list[str] | None,
    typer.Option("--from-option", metavar="NAME=VALUE", help="An option of PLACE. May be repeated."),
]


def repair(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    place: From,
    level: Level = VerifyLevel.BYTES,
    dry_run: DryRepair = False,
    compress: Compress = None,
    keys: Keys = None,
    from_keys: SourceKeys = None,
    from_option: FromOptions = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each damage.")] = False,
) -> int:
    """Replace damaged fragments of STREAM by the same records from the broker or a copy.

    The records are compared first. If they are not those that TIER promises, nothing is changed. Safe beside
    syncs and readers. If it is killed, run the same command again.
    """
    state: CommandContext = context.obj.with_keys(keys)
    how = replace(
        state.reading, fragment_size_bytes=FRAGMENT_SIZE_BYTES, compression=compression_of(compress)
    )
    done: list[RepairedFragment] = []

    async def main() -> None:
        async with (
            state.tier(tier, option, how=how) as offloader,
            _elsewhere(state, place, from_option, from_keys or keys, offloader, option) as there,
        ):
            named = await known_name(offloader, stream)
            with progress(json=json) as show:
                work = partial(repair_stream, level=level, dry_run=dry_run, progress=_Bar(show))
                async for one in work(offloader, named, there):
                    done.append(one)
                    _tell(one, place, json=json, dry_run=dry_run)

    run_async(main)
    return _end(done, json=json, dry_run=dry_run)


def _end(done: list[RepairedFragment], *, json: bool, dry_run: bool) -> int:
    """Print a summary, and return the exit code."""
    mended = sum(one.error is None for one in done)
    if not json:
        verb = "can be repaired" if dry_run else "repaired"
        print("no damage" if not done else f"{counted(len(done), 'damage')}, {mended} {verb}")
    return 0 if mended == len(done) else 1


@asynccontextmanager
async def _elsewhere(
    state: CommandContext,
    place: str,
    place_options: list[str] | None,
    keys: str | None,
    tier: LedgerOffloader,
    options: list[str] | None,
) -> AsyncIterator[Elsewhere]:
    """Open the other place: the files of a broker, or a tier that is not the one to repair."""
    if _is_source(state, place):
        yield of_source(state.source(place, place_options))
        return
    async with state.tier(place, place_options, keys=keys) as other:
        refuse_itself(other, tier, same_options=(place_options or []) == (options or []))
        yield of_tier(other)


def _is_source(state: CommandContext, place: str) -> bool:
    """Return True if a plugin reads a broker's data at this URL. Everything else is a tier."""
    scheme = scheme_of(place)
    declared = (each.declaration for each in state.plugins.of_kind("source"))
    return scheme is not None and any(scheme in each.schemes for each in declared)


def _tell(one: RepairedFragment, place: str, *, json: bool, dry_run: bool) -> None:
    if json:
        print_json(one.as_json())
        return
    print(one_line(f"DAMAGE {error_line(one.damage)}"))
    if one.error is not None:
        print_error(one.error)
        return
    assert one.compared is not None
    what = f"{one.stream}: [{one.first_offset}, {one.next_offset})"
    said = COMPARED[one.compared]
    print(one_line(f"{'can repair' if dry_run else 'repaired'} {what} from {place}: {said}"))


class _Bar:
    """The progress of the verify that finds the damage, in offsets."""

    def __init__(self, show: Show) -> None:
        self._show = show

    def __call__(self, seen: VerifyReport) -> None:
        self._show(
            CommandProgress(
                what=f"verifying {seen.stream or 'the tier'}",
                done=seen.reached - seen.offsets.start,
                total=len(seen.offsets) or None,
                size_bytes=seen.bytes,
                note=f", {len(seen.damages)} damaged" if seen.damages else "",
            )
        )
