"""The repair of a log's folder when it is opened: the rules of `recovery`, applied to the files.

The rules decide what is shown. This module makes the files so, that the next append continues them:

    found                                             done                                         in order
    segments or indexes alone, before the first pair  removed: a deletion was interrupted          1
    a newest pair of at most two headers, not whole   removed: it was being created                2
    an empty pair before an empty one                 removed: the log began elsewhere             2
    records without a sound chunk at the end          cut off the index, then off the segment      3
    no pair at all                                    created                                      4

A crash in between leaves a folder that the same steps repair: each removes what an earlier one would find
again. After a cut of the index, the segment is longer than its index says, which step 3 repairs.

In two points, the repair keeps more than osiris.

- An empty newest pair with whole headers stays, and is the open ledger. `open_pair` creates it after the pair
  before it was synced, so that one is sealed. osiris removes it, and writes to the pair before it again.
- Nothing that may have been acknowledged is removed. These are `Corrupt`, and stay as they are: a pair that
  has more than headers and no sound chunk, a missing file, a log that ends before what its lock notes as
  synced, a file alone whose records no call deleted. Damage of a sealed pair is not looked for: its ledger
  raises `Corrupt` when it is read.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.formats.segment import INDEX_HEADER, SEGMENT_HEADER, record_position
from offload.ground.errors import Corrupt, OffloadError
from offload.local.files import explained, open_file, shown_path
from offload.local.pair import Pair, check_heads, parse_name
from offload.local.recovery import recover
from offload.local.sealed import SealedPair
from offload.log.disk import Disk
from offload.log.lock import LOCK_NAME, Present
from offload.log.open_pair import PairEnd, create_pair, remove_pair

__all__ = ["Repaired", "repair"]


_HEADERS: Final = (INDEX_HEADER.size_bytes, SEGMENT_HEADER.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The pairs of a folder after the repair."""

    sealed: list[SealedPair]
    pair: Pair
    """The pair that takes appends."""
    end: PairEnd
    epoch: int
    """The epoch of the last chunk; 0 if there is none."""
    timestamp_ms: int | None
    """The timestamp of the last chunk; None if there is none."""


def repair(folder: Path, *, stream: str, disk: Disk, present: Present | None) -> Repaired:
    """Repair a folder that nobody writes. Raises `Corrupt` for damage, and changes nothing then.

    A folder without a pair gets one that begins at offset 0. `present` is what must be there; None if that is
    not known.
    """
    names = _names(folder)
    if not names:
        _check_end(folder, 0, present, stream)
        return _created(folder, 0, disk)
    recovered = recover(folder, stream=stream)
    if recovered.damage is not None:
        raise recovered.damage
    newest = recovered.newest
    complete = [offset for offset, kinds in names.items() if len(kinds) == 2]
    first = recovered.sealed[0].pair.offset if recovered.sealed else None
    if first is None:
        first = newest.pair.offset if newest else min(complete, default=min(names))
    behind = sorted(offset for offset in names if offset >= first)
    if newest is not None:
        behind = [offset for offset in behind if offset > newest.pair.offset]
    empty = _judge([Pair(folder, offset) for offset in behind], stream)
    _check_alone([Pair(folder, offset) for offset in sorted(names) if offset < first], present, stream)
    if empty is not None:
        _check_end(empty.segment, empty.offset, present, stream)
    elif newest is not None:
        size_bytes = int(newest.rows["position"][-1]) + newest.last.size_bytes
        _check_end(newest.pair.segment, newest.last.next_offset, present, stream, position=size_bytes)
    else:
        _check_end(folder, recovered.next_offset, present, stream)

    for offset in sorted(names):
        if offset < first:
            remove_pair(Pair(folder, offset), disk=disk)
    for offset in reversed(behind):
        if empty is None or offset != empty.offset:
            remove_pair(Pair(folder, offset), disk=disk, is_empty=True)
    epoch, timestamp_ms = (newest.last.epoch, newest.last.timestamp_ms) if newest else (0, None)
    sealed = list(recovered.sealed)
    if empty is not None:
        _cut(empty, _HEADERS, disk)
        if newest is not None:
            sealed.append(SealedPair(newest.pair, empty.offset))
        end = PairEnd(empty.offset)
        return Repaired(sealed=sealed, pair=empty, end=end, epoch=epoch, timestamp_ms=timestamp_ms)
    if newest is None:
        return _created(folder, recovered.next_offset, disk)
    _cut(newest.pair, (record_position(len(newest.rows)), size_bytes), disk)
    end = PairEnd(newest.last.next_offset, size_bytes, len(newest.rows))
    return Repaired(sealed=sealed, pair=newest.pair, end=end, epoch=epoch, timestamp_ms=timestamp_ms)


def _names(folder: Path) -> dict[int, set[str]]:
    with explained("list", folder):
        found: dict[int, set[str]] = {}
        for name in os.listdir(folder):
            if parsed := parse_name(name):
                found.setdefault(parsed[0], set()).add(parsed[1])
        return found


def _created(folder: Path, offset: int, disk: Disk) -> Repaired:
    pair = Pair(folder, offset)
    create_pair(pair, disk=disk)
    return Repaired(sealed=[], pair=pair, end=PairEnd(offset), epoch=0, timestamp_ms=None)


def _judge(behind: list[Pair], stream: str) -> Pair | None:
    """Return the empty pair that stays, of those that have no sound chunk and no other with one behind them.

    Raises `Corrupt` if one of the others may have had a record.
    """
    empty = None
    for pair in reversed(behind):
        sizes = _size_bytes(pair.index), _size_bytes(pair.segment)
        if empty is None and None not in sizes and _is_whole(pair):
            empty = pair
        elif any((size or 0) > limit for size, limit in zip(sizes, _HEADERS, strict=True)):
            lacks = pair.segment if sizes[1] is None else pair.index if sizes[0] is None else None
            raise Corrupt(
                "file" if lacks else "segment",
                shown_path(lacks or pair.segment),
                expected="a segment and its index" if lacks else "a sound chunk that its index describes",
                found="no such file" if lacks else "none",
                stream=stream,
            )
    return empty


def _check_end(
    where: Path, next_offset: int, present: Present | None, stream: str, *, position: int = 0
) -> None:
    """Raise `Corrupt` if a log with this end lacks records that were synced."""
    if present is not None and next_offset < present.synced:
        raise _lost(
            "end of the log",
            where,
            expected=f"sound records up to offset {present.synced}, which were synced",
            found=f"none from offset {next_offset} on, by segment and index",
            position=position,
            stream=stream,
        )


def _check_alone(alone: list[Pair], present: Present | None, stream: str) -> None:
    """Raise `Corrupt` if one of these lacks a file and has records, and no call deleted them."""
    for pair in alone:
        sizes = _size_bytes(pair.index), _size_bytes(pair.segment)
        if present is None or pair.offset < present.first:
            continue  # a deletion that ended between two files
        if any((size or 0) > limit for size, limit in zip(sizes, _HEADERS, strict=True)):
            where = pair.index if sizes[0] is None else pair.segment
            raise _lost(
                "file", where, expected="a segment and its index", found="no such file", stream=stream
            )


def _lost(what: str, where: Path, *, expected: str, found: str, stream: str, position: int = 0) -> Corrupt:
    """Return the error for records that must be there, with the way out."""
    shown = shown_path(where)
    damage = Corrupt(what, shown, expected=expected, found=found, position=position, stream=stream)
    folder = where if where.is_dir() else where.parent
    accept = shlex.join(["truncate", "-s", "128", shown_path(folder / LOCK_NAME)])
    advice = (
        "No file was changed. Restore the files from a copy, or keep a copy of the folder and accept the loss"
    )
    damage.args = (f"{damage.args[0]}. {advice}: {accept}",)
    return damage


def _size_bytes(path: Path) -> int | None:
    try:
        with explained("look at", path):
            return path.stat().st_size
    except OffloadError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return None
        raise


def _is_whole(pair: Pair) -> bool:
    """Return whether both files have their headers."""
    descriptor = open_file(pair.segment)
    try:
        with explained("read", pair.index), pair.index.open("rb") as index:
            check_heads(pair, index.read(INDEX_HEADER.size_bytes), descriptor)
    except Corrupt:
        return False
    finally:
        os.close(descriptor)
    return True


def _cut(pair: Pair, sizes: tuple[int, int], disk: Disk) -> None:
    """Cut the index, then the segment, to these sizes, and make both durable.

    Also if nothing is cut: a process that was killed may have left chunks that were never synced, and this
    log is about to show them.
    """
    descriptors = []
    try:
        for path in (pair.index, pair.segment):
            with explained("open", path):
                descriptors.append(disk.open(path))
        for descriptor, path, size_bytes in zip(descriptors, (pair.index, pair.segment), sizes, strict=True):
            with explained("cut", path):
                if os.fstat(descriptor).st_size != size_bytes:
                    disk.cut(descriptor, size_bytes)
        # The segment first: the index must not be the only one that is durable.
        for descriptor, path in zip(reversed(descriptors), (pair.segment, pair.index), strict=True):
            with explained("sync", path):
                disk.sync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
