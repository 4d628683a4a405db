"""RabbitMQ's streams as a source: `rabbitmq://PATH`, the folder of one stream or of many.

PATH is everything behind the two slashes, as the file system has it: relative or absolute, and not
unescaped. A stream is named after its folder. The broker never uses a folder name twice: it contains vhost,
queue and the time of creation.

A folder is a stream if it holds segments. Symbolic links are followed, because operators use them to move
large streams to other disks. Such a stream is named after the link. Only one level of folders is searched.
A link may also give a restored stream the name of its archive. So the broker is asked about the folder behind
the link, if that has a name of the broker's: under the name of the archive it may have another stream.

The table of a sealed segment is read from its index when it is needed. A few tables are kept, at 37 bytes
for each chunk: a lookup by time may walk every segment of a stream.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from offload.contracts.source import Snapshot, Source, SourceStream
from offload.errors import Denied, Misuse, NotOffloaded, TryAgain
from offload.model.manifest import Manifest
from offload.store.buffers import BufferPool
from offload_rabbitmq.files import explained, shown
from offload_rabbitmq.ledger import SegmentLedger
from offload_rabbitmq.pair import parse_name
from offload_rabbitmq.recovery import Recovered, recover
from offload_rabbitmq.sealed import sealed_table

SCHEME: Final = "rabbitmq://"
EXAMPLE: Final = "/var/lib/rabbitmq/mnesia/rabbit@HOST/stream"
TABLES_KEPT: Final = 16
KEPT_SIZE_BYTES_MAX: Final = 384 * 2**20
"""The memory of windows that waits for its next use: that of four fragments, which may end together."""

_BROKERS_FOLDER: Final = re.compile(r"[\w\-=]+_\d{19}", re.ASCII)
"""The name of a folder that the broker made. It ends with the time of creation, in nanoseconds since 1970."""

FilesMark = tuple[int, tuple[str, ...], tuple[int, ...]]

_BROKER: Final = re.compile(r"([^/]*@)?([\w.-]+|\[[^/]*\]):\d+(/|$)|[^/@]*:[^/@]*@")
"""The address of a broker: HOST:PORT, or a login before a host. `./host:1` is a folder."""


def open_url(url: str) -> RabbitmqSource:
    """Return the source at a URL, without access to the disk. Raises `Misuse` if it is no such URL."""
    scheme, slashes, path = url.partition("//")
    if (scheme + slashes).lower() != SCHEME or not path or "\0" in path:
        raise Misuse(f"{url!r} is no source: use {SCHEME} and the path of a stream's folder")
    if _BROKER.match(path):
        raise Misuse(
            "a source is a folder, not a broker's address: streams are read from the broker's disk; use "
            f"{SCHEME} and the path of its folder, for example {SCHEME}{EXAMPLE}"
        )
    return RabbitmqSource(Path(path))


class RabbitmqSource(Source):
    """The streams at a path. The broker's files are opened read-only, and the broker may run."""

    __slots__ = ("_notes", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: list[str] = []

    @property
    def url(self) -> str:
        """The scheme and the path."""
        return SCHEME + shown(self._path)

    @property
    def folder(self) -> Path:
        """The path."""
        return self._path

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the folders that the last call of `streams` skipped."""
        return tuple(self._notes)

    async def streams(self) -> Sequence[RabbitmqStream]:
        """Return the stream whose folder the path is, or the streams in its folders, in order of names.

        Raises `NotOffloaded` if there is none, and `Denied` if the path itself may not be listed. A folder
        in it that may not be listed counts as a stream, whose snapshot raises `Denied`.
        """
        streams, self._notes = await asyncio.to_thread(_find, self._path)
        return streams


class RabbitmqStream(SourceStream):
    """The folder of one stream."""

    __slots__ = ("_broker_name", "_folder", "_name")

    def __init__(self, folder: Path, *, name: str) -> None:
        self._folder, self._name = folder, name
        linked = os.path.basename(os.path.realpath(folder))
        self._broker_name = linked if _BROKERS_FOLDER.fullmatch(linked) else name

    @property
    def name(self) -> str:
        """The name of the folder, or of the link to it."""
        return self._name

    @property
    def broker_name(self) -> str:
        """The name of the folder behind all links. `name` if the broker gives no such name to a folder."""
        return self._broker_name

    async def mark(self) -> FilesMark:
        """Return the name and the sizes of the newest pair of files, and the number of files.

        An append makes them larger, and retention and a new segment change the number. Osiris writes the
        chunk first and its index record second, so a mark may change before a snapshot shows the chunk, and
        changes once more with the record.
        """
        return await asyncio.to_thread(_mark, self._folder)

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return what the broker would show now, as `recovery` decides.

        If the newest segment is damaged, or a file is missing, the snapshot ends before it and has this
        damage as `damage`. Damage of a sealed segment is raised by its ledger. Raises `TryAgain` if the
        broker moves or deletes the files, and `UnsupportedFormat` if their version is newer than this
        program.
        """
        return self._snapshot_of(await asyncio.to_thread(partial(recover, self._folder, stream=self._name)))

    def _snapshot_of(self, recovered: Recovered) -> Snapshot:
        table = lru_cache(TABLES_KEPT)(partial(sealed_table, stream=self._name))
        # Of this snapshot alone, so that a process which waits for new data holds no free memory.
        ledger = partial(SegmentLedger, pool=BufferPool(KEPT_SIZE_BYTES_MAX))
        ledgers = [
            ledger(sealed.pair, next_offset=sealed.next_offset, load=partial(table, sealed))
            for sealed in recovered.sealed
        ]
        if newest := recovered.newest:
            rows = newest.rows
            ledgers.append(ledger(newest.pair, next_offset=newest.last.next_offset, load=lambda: rows))
        return Snapshot(
            ledgers=ledgers,
            first_offset=recovered.first_offset,
            next_offset=recovered.next_offset,
            epoch=recovered.epoch,
            damage=recovered.damage,
        )


def _mark(folder: Path) -> FilesMark:
    with explained("list", folder), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if parse_name(entry.name) is not None]
    newest = sorted(names)[-2:]
    sizes = []
    for name in newest:
        # The broker may delete a file between the two calls. The next mark then has other names.
        with suppress(TryAgain), explained("look at", folder / name):
            sizes.append((folder / name).stat().st_size)
    return len(names), tuple(newest), tuple(sizes)


def _find(path: Path) -> tuple[list[RabbitmqStream], list[str]]:
    """Return the streams at `path`, and notes on skipped folders."""
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
            notes.append(f"skipped: {shown(folder)} holds no segments")
        elif not name or shown(name) != name:
            notes.append(f"skipped: the name of {shown(folder)} is not UTF-8")
        else:
            streams.append(RabbitmqStream(folder, name=name))
    if not streams:
        raise NotOffloaded(f"{SCHEME}{shown(path)} holds no stream")
    return streams, notes


def _subfolders(path: Path) -> list[Path]:
    """Return the folders in `path`, and links to folders, in order of names."""
    with explained("list", path), os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if os.path.isdir(entry.path))


def _may_hold_segments(folder: Path) -> bool:
    """Return True if this folder is a stream, or may not be listed.

    To skip an unreadable folder could silently leave out a stream, and an error here would leave out all of
    them. So it counts as a stream, whose snapshot raises `Denied`. A file system's own `lost+found` does not.
    """
    try:
        return _holds_segments(folder)
    except Denied:
        return folder.name != "lost+found"


def _holds_segments(folder: Path) -> bool:
    with explained("list", folder), os.scandir(folder) as entries:
        names = (parse_name(entry.name) for entry in entries)
        return any(parsed is not None and parsed[1] == "segment" for parsed in names)
