"""`offload restore`: publish an archived stream to a broker, or write the files of a stopped one."""

from __future__ import annotations

import base64
import json as jsonlib
import os
from collections.abc import Callable, Coroutine, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.gaps import gap_as_json, gaps_text, records_text
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json, print_note, print_notes, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.contracts.catalogue import Catalogue
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.target import ChunkTarget, MessageTarget, RestoreTarget
from offload.copy.after_restore import begin_behind, refuse_gone_on, restored_part
from offload.copy.history import end_of_chunk
from offload.copy.next_part import PartOnTier
from offload.ground.errors import Misuse, NotOffloaded, TryAgain
from offload.model.gaps import StreamGap
from offload.model.position import OFFSET_MAX
from offload.opening.backends import as_offloader
from offload.read.reader import StreamReader
from offload.read.salvage import SkippedOffsets
from offload.restore.archived_parts import ArchivedParts, archived_parts
from offload.restore.read_back import Comparison, OffsetMap
from offload.restore.target import Restored, RestoreProgress, publish, write_chunks
from offload.store.rate import Rate

AGAIN: Final = "run the same command again: it continues behind what is in the target"

TargetUrl = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="A running broker's stream: rabbitmq-stream://host/stream."),
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
        help="Continue STREAM in a new part behind the restored records. `offload sync` of the target's "
        "folder under the name of STREAM then copies only what comes later. Changes TIER.",
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
            name = await known_name(catalogue, stream)
            reader = await StreamReader.open(catalogue, name, emit=state.plugins.emit)
            parts = await archived_parts(catalogue, reader, position, until=until, skip_damage=skip_damage)
            _refuse_several(parts, into, stream)
            go_on = await _GoOn.checked(parts, catalogue, state) if new_part else None
            with progress(json=json) as show:
                done = await _restore(parts, into, rate, state, _Bar(show, parts), go_on)
            await _compare(parts, into, map_file, go_on)
            _tell(done, parts, into, stream, map_file, go_on, json=json)

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


def _refuse_several(parts: ArchivedParts, into: RestoreTarget, stream: str) -> None:
    """Raise `Misuse` if several parts would have to become one log of a broker."""
    if isinstance(into, MessageTarget) or not parts.archives[1:]:
        return
    first = f"{stream} --until {parts.archives[0].end}"
    names = " or ".join([first, *[each.reader.manifest.stream for each in parts.archives[1:]]])
    raise Misuse(
        f"stream {stream!r} has {len(parts.archives)} parts, and files can hold one of them; to publish "
        f"all: offload restore TIER {stream} rabbitmq-stream://HOST/STREAM; to write the files of one: "
        f"offload restore TIER PART --files FOLDER, where PART is {names}"
    )


def _gap_text(gap: StreamGap) -> str:
    """Return what is missing between two parts, or repeated, as a sentence."""
    begin, end = gap.from_offset, gap.to_offset
    if gap.records is None:
        return (
            f"part {gap.part} begins at offset {end}, and repeats offsets below {begin}: all its records are "
            "restored, also those that the part before may have"
        )
    lost = f"offsets [{begin}, {end}) are lost, {records_text(gap)} record{'s' * (gap.records != 1)}"
    return f"gap before part {gap.part}: {lost}; what follows has lower offsets in the target"


async def _restore(
    parts: ArchivedParts,
    into: RestoreTarget,
    rate: float | None,
    state: CommandContext,
    show: _Bar,
    go_on: _GoOn | None,
) -> list[Restored]:
    if isinstance(into, ChunkTarget):
        return [await write_chunks(parts.archives[0], into, tell=print_note, show=show, written=go_on)]
    assert isinstance(into, MessageTarget)
    print_notes(map(_gap_text, parts.gaps))
    env = state.session.env
    pace = Rate(rate, clock=env.monotonic, sleep=env.sleep)
    return await publish(
        parts.archives,
        into,
        pace=pace.take,
        tell=print_note,
        show=show,
        is_followed=go_on is not None,
    )


class _GoOn:
    """Begins a new part of the archive behind the last restored chunk, whose header it gets."""

    def __init__(self, parts: ArchivedParts, tier: LedgerOffloader, state: CommandContext) -> None:
        self._parts, self._tier, self._state = parts, tier, state
        self.part: PartOnTier | None = None

    @classmethod
    async def checked(cls, parts: ArchivedParts, catalogue: Catalogue, state: CommandContext) -> Self:
        """Raise `Diverged` before anything is restored if another part of the stream must be continued."""
        tier = as_offloader(catalogue)
        await refuse_gone_on(PartOnTier(tier, restored_part(parts.live).part))
        return cls(parts, tier, state)

    async def __call__(self, header: bytes) -> None:
        restored, committed = restored_part(self._parts.live, header)
        if not header:
            raise NotOffloaded(
                f"stream {committed.stream!r} has no messages: there is nothing to continue behind"
            )
        plugins, env = self._state.plugins, self._state.session.env
        self.part = await begin_behind(
            PartOnTier(self._tier, restored), committed, header, env=env, emit=plugins.emit
        )


async def _compare(
    parts: ArchivedParts, into: RestoreTarget, map_file: Path | None, go_on: _GoOn | None
) -> None:
    """If asked, read the target back, and compare every message. Then write the map and begin the part."""
    if not isinstance(into, MessageTarget) or (map_file is None and go_on is None):
        return
    comparison = Comparison(parts.archives, into, is_followed=go_on is not None)
    found = await comparison.map()
    if map_file is not None:
        _write_map(map_file, found, parts)
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
    done: list[Restored],
    parts: ArchivedParts,
    into: RestoreTarget,
    stream: str,
    map_file: Path | None,
    go_on: _GoOn | None,
    *,
    json: bool,
) -> None:
    begun = None if go_on is None else go_on.part
    gaps = [gap for gap in parts.gaps if gap.part <= done[-1].part]
    for hole in (hole for each in done for hole in each.skipped):
        print_note(f"left out: offsets [{hole.first_offset}, {hole.next_offset}): {hole.reason}")
    if json:
        print_json(_as_json(done, gaps, into, stream, map_file, begun))
        return
    for each in done:
        if isinstance(into, MessageTarget):
            wrote = counted(each.messages, "message")
        else:
            wrote = size_text(each.size_bytes)
        before = (
            f"; offsets below {each.written_from} were there" if each.written_from > each.first_offset else ""
        )
        name, offsets = each.stream if done[1:] else stream, f"[{each.first_offset}, {each.next_offset})"
        print(f"{one_line(name)}: offsets {offsets} are in {one_line(into.url)}; wrote {wrote}{before}")
    if gaps:
        print(f"{one_line(stream)}: {gaps_text(gaps)}")
    if map_file is not None:
        print(f"every message compared; the map is in {one_line(str(map_file))}")
    if begun is not None:
        print(
            f"{one_line(begun.stream)}: continues in part {begun.number}, which begins at offset "
            f"{end_of_chunk(begun.behind)} of the target"
        )


def _as_json(
    done: list[Restored],
    gaps: list[StreamGap],
    into: RestoreTarget,
    stream: str,
    map_file: Path | None,
    begun: PartOnTier | None,
) -> dict[str, Any]:
    began = next((each for each in done if each.written_from < each.next_offset), done[-1])
    return {
        "stream": stream,
        "target": into.url,
        "first_offset": done[0].first_offset,
        "next_offset": done[-1].next_offset,
        "written_from": began.written_from,
        "messages": sum(each.messages for each in done),
        "bytes": sum(each.size_bytes for each in done),
        "parts": [_part_as_json(each) for each in done],
        "gaps": [gap_as_json(gap) for gap in gaps],
        "skipped": [{"part": each.part} | _hole_as_json(hole) for each in done for hole in each.skipped],
        "map": None if map_file is None else str(map_file),
        "new_part": None
        if begun is None
        else {"part": begun.number, "stream": begun.name, "first_offset": end_of_chunk(begun.behind)},
    }


def _part_as_json(part: Restored) -> dict[str, Any]:
    return {
        "part": part.part,
        "stream": part.stream,
        "first_offset": part.first_offset,
        "next_offset": part.next_offset,
        "written_from": part.written_from,
        "messages": part.messages,
        "bytes": part.size_bytes,
    }


def _hole_as_json(hole: SkippedOffsets) -> dict[str, Any]:
    return {"first_offset": hole.first_offset, "next_offset": hole.next_offset, "reason": hole.reason}


def _write_map(path: Path, found: OffsetMap, parts: ArchivedParts) -> None:
    """Write one JSON object a line. The file appears when it is whole."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        for row in _map_rows(found, parts):
            print(jsonlib.dumps(row, ensure_ascii=False), file=file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _map_rows(found: OffsetMap, parts: ArchivedParts) -> Iterator[dict[str, Any]]:
    """Yield the rows of a map. Those of several parts have the number of the part, and each gap has a row."""
    several, gaps = len(parts.archives) > 1, {gap.part: gap for gap in parts.gaps}
    for run in found.runs():
        if gap := gaps.pop(run.part, None):
            lost = gap_as_json(gap)
            del lost["stream"]
            yield lost | {"new": run.new}
        yield _of_part(run.part, several) | {"old": run.old, "new": run.new, "count": run.count}
    for name, old in sorted(found.consumers.items()):
        new = found.new_of(old.offset, old.part)
        yield _of_part(old.part, several) | _name_of(name) | {"old": old.offset, "new": new}


def _of_part(part: int, several: bool) -> dict[str, int]:
    return {"part": part} if several else {}


def _name_of(name: bytes) -> dict[str, str]:
    """Return a consumer's name for JSON. Bytes that are not UTF-8 become base64 with an `encoding` key."""
    try:
        return {"consumer": name.decode()}
    except UnicodeDecodeError:
        return {"consumer": base64.b64encode(name).decode(), "encoding": "base64"}


class _Bar:
    """The progress of a restore, in archived offsets of all parts."""

    def __init__(self, show: Show, parts: ArchivedParts) -> None:
        self._show, self._archives = show, parts.archives
        sizes = [archive.end - archive.start for archive in parts.archives]
        self._total, self._before = sum(sizes), [0, *accumulate(sizes)]
        self._stream = parts.archives[0].reader.stream

    def __call__(self, seen: RestoreProgress) -> None:
        doing = "comparing what was restored of" if seen.is_comparing else "restoring"
        self._show(
            CommandProgress(
                what=f"{doing} {self._stream}",
                done=self._before[seen.row] + seen.next_offset - self._archives[seen.row].start,
                total=self._total,
                size_bytes=seen.size_bytes,
            )
        )
