"""RabbitMQ's streams as a source: `rabbitmq://PATH`, a stream's folder or the folder of many.

PATH is all that follows the two slashes, as the file system has it: relative or absolute, and nothing in
it is unescaped. A stream is named after its folder, which the broker never uses twice: vhost, queue and
the time of creation are in it.

A folder is a stream if it holds segments. Symbolic links are followed, since operators move large streams
to other disks with them; the stream is named after the link. Looking goes one level deep.

Tables of sealed segments are read from their indexes when asked for, and a few are kept: 37 bytes for each
chunk, where a lookup by time may walk every segment that a stream has.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from offload.contracts.source import Snapshot, Source, SourceStream
from offload.errors import Denied, Misuse, NotOffloaded
from offload_rabbitmq.files import explained, shown
from offload_rabbitmq.ledger import SegmentLedger
from offload_rabbitmq.pair import parse_name
from offload_rabbitmq.recovery import Recovered, recover
from offload_rabbitmq.sealed import sealed_table

SCHEME: Final = "rabbitmq://"
EXAMPLE: Final = "/var/lib/rabbitmq/mnesia/rabbit@HOST/stream"
TABLES_KEPT: Final = 16

_BROKER: Final = re.compile(r"([^/]*@)?([\w.-]+|\[[^/]*\]):\d+(/|$)|[^/@]*:[^/@]*@")
"""HOST:PORT, or a login before a host. `./host:1` is a folder."""


def open_url(url: str) -> RabbitmqSource:
    """The source at a URL. Nothing is looked at yet; raises `Misuse` where it is no such URL."""
    scheme, slashes, path = url.partition("//")
    if (scheme + slashes).lower() != SCHEME or not path or "\0" in path:
        raise Misuse(f"{url!r} is no source: use {SCHEME} and the path of a stream's folder")
    if _BROKER.match(path):
        raise Misuse(
            "a source is no broker's address: its streams are read from its disk; use "
            f"{SCHEME} and the path of its folder, for example {SCHEME}{EXAMPLE}"
        )
    return RabbitmqSource(Path(path))


class RabbitmqSource(Source):
    """The streams at a path. The broker's files are opened for reading alone; it may run meanwhile."""

    __slots__ = ("_notes", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: list[str] = []

    @property
    def url(self) -> str:
        """The scheme and the path."""
        return SCHEME + shown(self._path)

    @property
    def notes(self) -> Sequence[str]:
        """What the last call of `streams` passed over."""
        return tuple(self._notes)

    async def streams(self) -> Sequence[RabbitmqStream]:
        """The stream whose folder the path is, or those whose folders it holds, in order of names.

        Raises `NotOffloaded` where there is none, and `Denied` where the path itself may not be listed.
        A folder within that may not be listed counts as a stream: its snapshot raises `Denied`.
        """
        streams, self._notes = await asyncio.to_thread(_find, self._path)
        return streams


class RabbitmqStream(SourceStream):
    """One stream's folder."""

    __slots__ = ("_folder", "_name")

    def __init__(self, folder: Path, *, name: str) -> None:
        self._folder, self._name = folder, name

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self._name

    async def snapshot(self) -> Snapshot:
        """What the broker would show now, as `recovery` decides.

        Damage of the newest segment, or a file that is missing, ends the snapshot before it and is its
        `damage`. Damage of a sealed segment is raised by its ledger. Raises `TryAgain` where the
        broker moves or deletes the files, `UnsupportedFormat` where it is newer than this program.
        """
        return self._snapshot_of(await asyncio.to_thread(partial(recover, self._folder, stream=self._name)))

    def _snapshot_of(self, recovered: Recovered) -> Snapshot:
        table = lru_cache(TABLES_KEPT)(partial(sealed_table, stream=self._name))
        ledgers = [
            SegmentLedger(sealed.pair, next_offset=sealed.next_offset, load=partial(table, sealed))
            for sealed in recovered.sealed
        ]
        if newest := recovered.newest:
            rows = newest.rows
            ledgers.append(SegmentLedger(newest.pair, next_offset=newest.last.next_offset, load=lambda: rows))
        return Snapshot(
            ledgers=ledgers,
            first_offset=recovered.first_offset,
            next_offset=recovered.next_offset,
            epoch=recovered.epoch,
            damage=recovered.damage,
        )


def _find(path: Path) -> tuple[list[RabbitmqStream], list[str]]:
    """The streams at `path`, and notes on what was passed over."""
    with explained("look at", path):
        if not os.path.lexists(path):
            raise NotOffloaded(f"{SCHEME}{shown(path)} does not exist")
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotOffloaded(f"{SCHEME}{shown(path)} is not a folder")
    if _holds_segments(path):
        candidates = [(path, path.resolve().name)]
    else:
        candidates = [(folder, folder.name) for folder in _subfolders(path)]
    streams, notes = [], []
    for folder, name in candidates:
        if not _may_hold_segments(folder):
            notes.append(f"passed over: {shown(folder)} holds no segments")
        elif not name or shown(name) != name:
            notes.append(f"passed over: {shown(folder)} has no name that is UTF-8")
        else:
            streams.append(RabbitmqStream(folder, name=name))
    if not streams:
        raise NotOffloaded(f"{SCHEME}{shown(path)} holds no stream")
    return streams, notes


def _subfolders(path: Path) -> list[Path]:
    """The folders in `path`, and links to folders, in order of names."""
    with explained("list", path), os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if os.path.isdir(entry.path))


def _may_hold_segments(folder: Path) -> bool:
    """Whether this is a stream, or may not be looked into: then it is one whose snapshot says so.

    Passing it over would leave a stream behind without a word, and refusing all would leave all behind.
    A file system's own `lost+found` is neither.
    """
    try:
        return _holds_segments(folder)
    except Denied:
        return folder.name != "lost+found"


def _holds_segments(folder: Path) -> bool:
    with explained("list", folder), os.scandir(folder) as entries:
        names = (parse_name(entry.name) for entry in entries)
        return any(parsed is not None and parsed[1] == "segment" for parsed in names)
