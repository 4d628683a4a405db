"""`offload copy`: one tier's streams onto another."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_error, print_json, print_note, print_table, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext
from offload.cli.resumed import ended
from offload.cli.sync import UPLOADS_MAX, CommitStore, HashedKeys, UploadsAtOnce
from offload.contracts.offloader import LedgerOffloader
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.upkeep.copy.tier import Copied, CopyProgress, give_up
from offload.upkeep.copy.tier import copy as copy_tier

SourceTier = Annotated[str, typer.Argument(metavar="SOURCE_TIER", help="The tier to read.")]
TargetTier = Annotated[
    str, typer.Argument(metavar="TARGET_TIER", help="The tier to write. It is made if there is none.")
]
CopiedStreams = Annotated[
    list[str] | None, typer.Argument(metavar="STREAM", help="Only these streams. Default: all.")
]
ReadBack = Annotated[
    bool, typer.Option("--verify", help="Read what was uploaded once more, whole, before it is named.")
]
GiveUp = Annotated[
    bool,
    typer.Option("--give-up", help="Copy nothing; drop what an unfinished copy of STREAM uploaded."),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of SOURCE_TIER's backend; may be repeated."),
]


def copy(
    context: typer.Context,
    source: SourceTier,
    target: TargetTier,
    stream: CopiedStreams = None,
    verify: ReadBack = False,
    drop: GiveUp = False,
    at_once: UploadsAtOnce = UPLOADS_MAX,
    commit_store: CommitStore = "",
    hashed_keys: HashedKeys = False,
    source_option: SourceOptions = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy what SOURCE_TIER has committed to TARGET_TIER, every byte checked. A later run copies what is new.

    Safe beside syncs and readers of either. Killed at any moment and run again, it goes on.
    """
    state: CommandContext = context.obj
    done: list[Copied] = []
    how = TierOptions(uploads_max=at_once)
    plan = TierPlan(commit_store=commit_store, hashed_keys=hashed_keys)

    async def main() -> None:
        async with (
            state.tier(source, source_option) as read,
            state.tier(target, option, how=how, plan=plan) as written,
        ):
            if drop:
                await _give_up(read, written, stream or [])
                return
            with progress(json=json) as show:
                copying = copy_tier(
                    read, written, streams=stream or [], verify=verify, at_once=at_once, progress=_Bar(show)
                )
                async for one in copying:
                    done.append(one)
                    _tell(one, json=json)

    return ended(main, done, partial(_show, done), json=json)


async def _give_up(source: LedgerOffloader, target: LedgerOffloader, streams: list[str]) -> None:
    if not streams:
        raise Usage("--give-up takes the streams as arguments behind TARGET_TIER")
    for name in streams:
        await give_up(source, target, name)
        print_note(f"{name}: what was left is given up; `offload sweep {target.url}` frees its space")


def _tell(one: Copied, *, json: bool) -> None:
    """What does not wait for the table."""
    if json:
        print_json(one.as_json())
    elif one.note:
        print_note(f"{one.stream}: not copied: {one.note}")
    if one.error is not None:
        print_error(one.error)


def _show(done: list[Copied]) -> None:
    rows = [
        (one.stream, size_text(one.bytes), one.fragments, one.taken_over, one.next_offset)
        for one in done
        if not one.note and one.error is None
    ]
    if rows:
        print_table(("stream", "uploaded", "fragments", "taken over", "next offset"), rows)


class _Bar:
    """Shows how far the stream at hand is, by its offsets; the bytes are those of all streams together."""

    def __init__(self, show: Show) -> None:
        self._show, self._stream = show, ""
        self._before = self._bytes = 0

    def __call__(self, seen: CopyProgress) -> None:
        if seen.stream != self._stream:
            self._stream, self._before = seen.stream, self._before + self._bytes
        self._bytes = seen.bytes
        doing = "checking what an earlier run left of" if seen.is_checking else "copying"
        self._show(
            CommandProgress(
                what=f"{doing} {seen.stream}",
                done=seen.reached - seen.offsets.start,
                total=len(seen.offsets),
                size_bytes=self._before + seen.bytes,
            )
        )
