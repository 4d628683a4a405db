"""`offload copy`: copy the streams of one tier to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import Compress, Decrypt, Encrypt, EncryptedOnly, Keys, Options, SourceKeys
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_names
from offload.cli.kit.output import (
    one_line,
    print_dropped,
    print_error,
    print_json,
    print_note,
    print_table,
    size_text,
)
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext
from offload.cli.resumed import ended
from offload.cli.sync import UPLOADS_MAX, CommitStore, HashedKeys, UploadsAtOnce, asked_of
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import OffloadError
from offload.showing.encryption import is_encrypted
from offload.upkeep.copy.tier import Copied, CopyProgress, give_up, refuse_itself
from offload.upkeep.copy.tier import copy as copy_tier

SourceTier = Annotated[str, typer.Argument(metavar="SOURCE_TIER", help="The tier to read.")]
TargetTier = Annotated[
    str, typer.Argument(metavar="TARGET_TIER", help="The tier to write. It is made if it does not exist.")
]
CopiedStreams = Annotated[
    list[str] | None, typer.Argument(metavar="STREAM", help="Only these streams. Default: all.")
]
ReadBack = Annotated[
    bool, typer.Option("--verify", help="Read every uploaded fragment back, whole, before it is committed.")
]
GiveUp = Annotated[
    bool,
    typer.Option("--give-up", help="Copy nothing. Discard what an unfinished copy of STREAM uploaded."),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of SOURCE_TIER's backend. May be repeated."),
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
    compress: Compress = None,
    source_option: SourceOptions = None,
    encrypt: Encrypt = None,
    decrypt: Decrypt = False,
    keys: Keys = None,
    only: EncryptedOnly = False,
    from_keys: SourceKeys = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy committed data from SOURCE_TIER to TARGET_TIER. A later run copies only what is new.

    Every byte is checked. Safe beside syncs and readers. If it is killed, run the same command again.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypt, encrypted_only=only, decrypt=decrypt)
    run = partial(copy_tier, verify=verify, decrypt=decrypt, at_once=at_once)
    done, is_same = list[Copied](), (source_option or []) == (option or [])
    how, plan = asked_of(at_once, commit_store, compress, hashed_keys=hashed_keys, encrypt=encrypt)

    async def main() -> None:
        opened = state.tier(target, option, how=how, plan=plan)
        async with state.tier(source, source_option, keys=from_keys) as read, opened as written:
            refuse_itself(read, written, same_options=is_same)
            if drop:
                await _give_up(read, written, await known_names(read, stream or []))
            else:
                chosen = partial(run, read, streams=await known_names(read, stream or []))
                await _copy(chosen, written, done, encrypt=encrypt is not None, json=json)

    return ended(main, done, partial(_show, done), json=json)


async def _copy(
    run: Callable[..., AsyncIterator[Copied]],
    target: LedgerOffloader,
    done: list[Copied],
    *,
    encrypt: bool,
    json: bool,
) -> None:
    """Run a copy with a bar, and print a line for each stream as soon as it is done."""
    with progress(json=json) as show:
        async for one in run(target, progress=_Bar(show)):
            _tell(one, done, json=json)
    if encrypt:
        await _tell_clear(target, done)


async def _tell_clear(target: LedgerOffloader, done: list[Copied]) -> None:
    """Print a note for each stream whose copy was complete before, and is not encrypted."""
    for one in done:
        if one.note or one.error is not None or one.fragments or one.taken_over:
            continue
        with suppress(OffloadError):  # deleted since: there is nothing to say of it
            if not await is_encrypted(await target.view(one.stream)):
                why = "--encrypt encrypts new data only; copy to an empty place to encrypt all of it"
                print_note(f"{one_line(one.stream)}: its copy stays in the clear: {why}")


async def _give_up(source: LedgerOffloader, target: LedgerOffloader, streams: list[str]) -> None:
    if not streams:
        raise Usage("--give-up needs the names of the streams: add them behind TARGET_TIER")
    for name in streams:
        await give_up(source, target, name)
        print_note(f"{name}: discarded its unfinished copy; `offload sweep {target.url}` frees the space")


def _tell(one: Copied, done: list[Copied], *, json: bool) -> None:
    """Print a line of JSON, a note or an error as soon as a stream is done. The table comes at the end."""
    done.append(one)
    if json:
        print_json(one.as_json())
    elif one.note:
        print_note(f"{one.stream}: not copied: {one.note}")
    else:
        print_dropped(one.stream, one.dropped_sections)
    if one.error is not None:
        print_error(one.error)


def _show(done: list[Copied]) -> None:
    rows = [
        (one.stream, size_text(one.stored_bytes), one.fragments, one.taken_over, one.next_offset)
        for one in done
        if not one.note and one.error is None
    ]
    if rows:
        print_table(("stream", "uploaded", "fragments", "taken over", "next offset"), rows)


class _Bar:
    """The progress of the stream at hand, in offsets. The bytes are those of all streams together."""

    def __init__(self, show: Show) -> None:
        self._show, self._stream = show, ""
        self._before = self._bytes = 0

    def __call__(self, seen: CopyProgress) -> None:
        if seen.stream != self._stream:
            self._stream, self._before = seen.stream, self._before + self._bytes
        self._bytes = seen.bytes
        doing = "checking an earlier, unfinished copy of" if seen.is_checking else "copying"
        self._show(
            CommandProgress(
                what=f"{doing} {seen.stream}",
                done=seen.reached - seen.offsets.start,
                total=len(seen.offsets),
                size_bytes=self._before + seen.bytes,
            )
        )
