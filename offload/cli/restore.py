"""`offload restore`: publish an archived stream to a broker, or write the files of a stopped one."""

from __future__ import annotations

import base64
import json as jsonlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json, print_note, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.contracts.catalogue import Catalogue
from offload.contracts.target import ChunkTarget, MessageTarget, RestoreTarget
from offload.errors import NotOffloaded, TryAgain
from offload.model.part import StreamPart
from offload.model.position import OFFSET_MAX
from offload.session import as_offloader
from offload.store.rate import Rate
from offload.streams.behind import begin_behind, refuse_gone_on
from offload.streams.history import end_of_chunk
from offload.streams.read_back import Comparison, OffsetMap
from offload.streams.reader import StreamReader
from offload.streams.restore import Restored, RestoreProgress, publish, write_chunks
from offload.streams.salvage import Archive
from offload.upkeep.parts import part_named

AGAIN: Final = "run the same command again: it continues behind what is in the target"

TargetUrl = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="The stream of a running broker: rabbitmq-stream://host/stream."),
]
Files = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Write segments and indexes into this folder of a stopped broker, in place of TARGET.",
    ),
]
Begins = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SPEC",
        help="The position to begin at: first, an offset, an ISO 8601 time (UTC unless it has a zone), or @ "
        "and milliseconds since 1970. Repeat it when the command is run again.",
    ),
]
Until = Annotated[
    int,
    typer.Option(
        metavar="OFFSET", min=0, show_default="the end", help="Restore only what is below this offset."
    ),
]
PerSecond = Annotated[
    float | None,
    typer.Option(metavar="N", min=0.001, help="Publish at most this many messages a second, on average."),
]
MapFile = Annotated[
    Path | None,
    typer.Option(
        "--map",
        metavar="FILE",
        help="Read the target back, compare every message, and write a map from old offsets to new ones.",
    ),
]
SkipDamage = Annotated[
    bool, typer.Option("--skip-damage", help="Leave damaged chunks out. Default: stop before the first.")
]
PartBehind = Annotated[
    bool,
    typer.Option(
        "--new-part",
        help="Let STREAM go on in a new part behind what is restored. `offload sync` of the target's folder "
        "under the name of STREAM then copies only what comes later. Changes TIER.",
    ),
]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--target-option",
        metavar="NAME=VALUE",
        help="An option of the target, such as an argument with which the stream was declared. May be "
        "repeated.",
    ),
]


def restore(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    target: TargetUrl = None,
    files: Files = None,
    start: Begins = "first",
    until: Until = OFFSET_MAX,
    rate: PerSecond = None,
    map_file: MapFile = None,
    skip_damage: SkipDamage = False,
    new_part: PartBehind = False,
    target_option: TargetOptions = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Put the data of STREAM back into a broker. If it is killed, run the same command again.

    Messages are published to TARGET under new offsets. With --files, chunks are written as they are.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    position, url = position_of(start), _url(target, files, state)

    async def main() -> None:
        into = _checked(state.target(url, target_option), rate, map_file)
        # Only a new part changes the tier. A tier that can only be read is restored from, too.
        async with (state.tier if new_part else state.catalogue)(tier, option) as catalogue:
            reader = await _opened(catalogue, stream, state, is_followed=new_part)
            archive = Archive(catalogue=catalogue, reader=reader, skip_damage=skip_damage, until=until)
            begins = await reader.offset_here(position)
            go_on = await _GoOn.checked(archive, state) if new_part else None
            with progress(json=json) as show:
                done = await _restore(archive, into, begins, rate, state, _Bar(show, begins, archive), go_on)
            if isinstance(into, MessageTarget) and (map_file is not None or go_on is not None):
                await _compare(archive, into, begins, map_file, go_on)
            _tell(done, into, stream, map_file, None if go_on is None else go_on.part, json=json)

    _run(main)


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the command. If it is interrupted, say that it can be repeated."""
    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(AGAIN) from stop
    except TryAgain:
        print_note(AGAIN)
        raise


async def _opened(
    catalogue: Catalogue, stream: str, state: CommandContext, *, is_followed: bool
) -> StreamReader:
    """Open the stream. Print a note if it has other parts, which may repeat offsets of this one.

    If the archive goes on behind this restore, an earlier run of it began the later part. The messages of
    that part are in the target.
    """
    named = await known_name(catalogue, stream)
    reader = await StreamReader.open(catalogue, named, emit=state.plugins.emit)
    others = [
        each.manifest.stream
        for each in reader.parts
        if each is not reader and not (is_followed and each.part > reader.part)
    ]
    if others:
        here = f"only part {reader.part}, {reader.manifest.stream!r}, is restored"
        print_note(f"{here}: restore {', '.join(others)} by name, each into a stream of its own")
    return reader


async def _restore(
    archive: Archive,
    into: RestoreTarget,
    begins: int,
    rate: float | None,
    state: CommandContext,
    show: _Bar,
    go_on: _GoOn | None,
) -> Restored:
    if isinstance(into, ChunkTarget):
        return await write_chunks(archive, into, begins, tell=print_note, show=show, written=go_on)
    assert isinstance(into, MessageTarget)
    env = state.session.env
    pace = Rate(rate, clock=env.monotonic, sleep=env.sleep)
    return await publish(
        archive,
        into,
        begins,
        pace=pace.take,
        tell=print_note,
        show=show,
        is_followed=go_on is not None,
    )


class _GoOn:
    """Lets the archive go on in a new part behind the last restored chunk, of which it gets the header."""

    def __init__(self, archive: Archive, state: CommandContext, restored: StreamPart) -> None:
        self._archive, self._state, self._restored = archive, state, restored
        self.part: StreamPart | None = None

    @classmethod
    async def checked(cls, archive: Archive, state: CommandContext) -> Self:
        """Raise `Diverged` before anything is restored if another part of the stream must go on."""
        tier, name = as_offloader(archive.catalogue), archive.reader.manifest.stream
        restored = await part_named(tier, name) or StreamPart(name)
        await refuse_gone_on(tier, restored)
        return cls(archive, state, restored)

    async def __call__(self, header: bytes) -> None:
        tier, committed = as_offloader(self._archive.catalogue), self._archive.reader.manifest
        if not header:
            raise NotOffloaded(
                f"stream {committed.stream!r} has no messages: there is nothing to go on behind"
            )
        plugins, env = self._state.plugins, self._state.session.env
        self.part = await begin_behind(tier, self._restored, committed, header, env=env, emit=plugins.emit)


async def _compare(
    archive: Archive, into: MessageTarget, begins: int, map_file: Path | None, go_on: _GoOn | None
) -> None:
    """Read the target back, and compare every message. Then write the map and begin the part, if asked."""
    comparison = Comparison(archive, into, begins, is_followed=go_on is not None)
    found = await comparison.map()
    if map_file is not None:
        _write_map(map_file, found)
    if go_on is not None:
        await go_on(comparison.last_header)


def _checked(into: RestoreTarget, rate: float | None, map_file: Path | None) -> RestoreTarget:
    """Return the target. Raises `Usage` for options that do not go with it, or cannot be obeyed."""
    if isinstance(into, ChunkTarget) and (rate is not None or map_file is not None):
        raise Usage("--rate and --map are for messages: the files of a broker keep all offsets")
    # Now, because hours of work come before the map is written.
    if map_file is not None and (map_file.is_dir() or not os.access(map_file.parent, os.W_OK | os.X_OK)):
        raise Usage(f"--map {one_line(str(map_file))}: no file can be written there")
    return into


def _url(target: str | None, files: Path | None, state: CommandContext) -> str:
    """Return the URL of the target: as given, or that of a folder."""
    if (target is None) == (files is None):
        raise Usage("name one target: the URL of a broker's stream, or --files and a folder")
    if target is not None:
        return target
    folders = [
        declared.declaration
        for declared in state.plugins.of_kind("target")
        if getattr(declared.declaration, "is_folder", False)
    ]
    if len(folders) != 1:
        schemes = ", ".join(f"{each.schemes[0]}://" for each in folders) or "none"
        raise Usage(
            f"--files needs one plugin that writes a broker's files; name TARGET by its URL: {schemes}"
        )
    return f"{folders[0].schemes[0]}://{files}"


def _tell(
    done: Restored,
    into: RestoreTarget,
    stream: str,
    map_file: Path | None,
    part: StreamPart | None,
    *,
    json: bool,
) -> None:
    for hole in done.skipped:
        print_note(f"left out: offsets [{hole.first_offset}, {hole.next_offset}): {hole.reason}")
    if json:
        print_json(_as_json(done, into, stream, map_file, part))
        return
    what = (
        counted(done.messages, "message") if isinstance(into, MessageTarget) else size_text(done.size_bytes)
    )
    before = (
        f"; offsets below {done.written_from} were there" if done.written_from > done.first_offset else ""
    )
    print(
        f"{one_line(stream)}: offsets [{done.first_offset}, {done.next_offset}) are in {one_line(into.url)}; "
        f"wrote {what}{before}"
    )
    if map_file is not None:
        print(f"every message compared; the map is in {one_line(str(map_file))}")
    if part is not None:
        print(
            f"{one_line(part.first)}: goes on in part {part.number}, which begins at offset "
            f"{end_of_chunk(part.behind)} of the target"
        )


def _as_json(
    done: Restored, into: RestoreTarget, stream: str, map_file: Path | None, part: StreamPart | None
) -> dict[str, Any]:
    return {
        "stream": stream,
        "target": into.url,
        "first_offset": done.first_offset,
        "next_offset": done.next_offset,
        "written_from": done.written_from,
        "messages": done.messages,
        "bytes": done.size_bytes,
        "skipped": [
            {"first_offset": hole.first_offset, "next_offset": hole.next_offset, "reason": hole.reason}
            for hole in done.skipped
        ],
        "map": None if map_file is None else str(map_file),
        "new_part": None
        if part is None
        else {"part": part.number, "stream": part.name, "first_offset": end_of_chunk(part.behind)},
    }


def _write_map(path: Path, found: OffsetMap) -> None:
    """Write one JSON object a line. The file appears when it is whole."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        for run in found.runs():
            print(jsonlib.dumps({"old": run.old, "new": run.new, "count": run.count}), file=file)
        for name, old in sorted(found.consumers.items()):
            row = _name_of(name) | {"old": old, "new": found.new_of(old)}
            print(jsonlib.dumps(row, ensure_ascii=False), file=file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _name_of(name: bytes) -> dict[str, str]:
    """Return a consumer's name for JSON. Bytes that are not UTF-8 become base64 with an `encoding` key."""
    try:
        return {"consumer": name.decode()}
    except UnicodeDecodeError:
        return {"consumer": base64.b64encode(name).decode(), "encoding": "base64"}


class _Bar:
    """The progress of a restore, in archived offsets."""

    def __init__(self, show: Show, begins: int, archive: Archive) -> None:
        self._show, self._begins = show, begins
        committed = archive.reader.manifest
        self._total = max(min(archive.until, committed.next_offset) - begins, 0)
        self._stream = committed.stream

    def __call__(self, seen: RestoreProgress) -> None:
        doing = "comparing what was restored of" if seen.is_comparing else "restoring"
        self._show(
            CommandProgress(
                what=f"{doing} {self._stream}",
                done=seen.next_offset - self._begins,
                total=self._total,
                size_bytes=seen.size_bytes,
            )
        )
