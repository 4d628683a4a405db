"""The command `offload spark copy`: copies one tier to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.arguments import Compress, Decrypt, Encrypt, SourceKeys, compression_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import (
    counted,
    one_line,
    print_dropped,
    print_error,
    print_json,
    print_note,
    size_text,
)
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload_spark.options import absolute
from offload_spark.running import ExecutorKeys, Master, check_keys, given, session_at

if TYPE_CHECKING:
    from offload.upkeep.copy.tier import Copied
    from offload_spark.jobs.transfer import TransferProgress

StorageOptions = Mapping[str, Any]


def copy(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The tier to read, by a URL that every executor can open.")
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The tier to write, by a URL that every executor can open. Made if absent."
        ),
    ],
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this stream. May be repeated.")
    ] = None,
    read_back: Annotated[
        bool, typer.Option("--verify", help="Read all uploaded data back before it is committed.")
    ] = False,
    compress: Compress = None,
    keys: ExecutorKeys = None,
    from_keys: SourceKeys = None,
    encrypt: Encrypt = None,
    decrypt: Decrypt = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Discard what an unfinished run left of --stream, and exit.")
    ] = False,
    source_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of SOURCE's backend. May be repeated."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="An option of TARGET's backend. May be repeated."
        ),
    ] = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy the committed data of SOURCE to TARGET by tasks, with one commit for each stream."""
    ends = absolute(source), absolute(target)
    options = given(context.obj, source_option), given(context.obj, option)
    compression = compression_of(compress)
    check_keys(context.obj, keys, encrypt, decrypt=decrypt)
    if give_up:
        return _give_up(ends, options, stream or [])
    with session_at(master) as spark, progress(json=json) as show:
        from offload_spark.jobs.copy import copy as run

        done = run(
            spark,
            *ends,
            streams=stream or [],
            read_back=read_back,
            compression=compression,
            keys=keys or "",
            source_keys=from_keys or "",
            encrypt=encrypt or "",
            decrypt=decrypt,
            progress=_Told(show),
            done=lambda copied: _show(copied, json=json),
            source_options=options[0],
            target_options=options[1],
        )
    return 1 if any(copied.error for copied in done) else 0


def _give_up(
    ends: tuple[str, str], options: tuple[StorageOptions, StorageOptions], streams: list[str]
) -> int:
    from offload_spark.jobs.copy import give_up

    if not streams:
        raise Usage("--give-up needs --stream: name the streams")
    for stream in streams:
        give_up(*ends, stream, source_options=options[0], target_options=options[1])
        print_note(f"{stream}: the unfinished job is discarded; the target's next sweep deletes its objects")
    return 0


class _Told:
    """The progress bar of the job. Its rate is that of all streams together."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._stream = ""
        self._before = self._bytes = 0

    def __call__(self, told: TransferProgress) -> None:
        if told.stream != self._stream:
            self._stream, self._before = told.stream, self._before + self._bytes
        self._bytes = told.bytes
        doing = "copying" if told.pieces else "checking an earlier run's uploads of"
        self._show(
            CommandProgress(
                what=f"{doing} {told.stream}",
                done=told.pieces_done,
                total=told.pieces or None,
                size_bytes=self._before + told.bytes,
            )
        )


def _show(copied: Copied, *, json: bool) -> None:
    if json:
        print_json(copied.as_json())
    elif copied.error is None and copied.note:
        print_note(f"{copied.stream}: not copied: {copied.note}")
    elif copied.error is None:
        taken = copied.taken_over
        print(
            f"{one_line(copied.stream)}: {size_text(copied.stored_bytes)} uploaded "
            f"in {counted(copied.fragments, 'fragment')}"
            + (f", {counted(taken, 'fragment')} taken over from an earlier run" if taken else "")
            + f"; the target ends at {copied.next_offset}"
        )
        print_dropped(copied.stream, copied.dropped_sections)
    if copied.error is not None:
        print_error(copied.error)
