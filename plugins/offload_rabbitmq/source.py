"""RabbitMQ's streams as a source: `rabbitmq://PATH`, the folder of one stream or of many.

PATH is everything behind the two slashes, as the file system has it: relative or absolute, and not
unescaped. A stream is named after its folder. The broker never uses a folder name twice: it contains vhost,
queue and the time of creation.

A folder is a stream if it holds segments. Symbolic links are followed, because operators use them to move
large streams to other disks. Such a stream is named after the link. Only one level of folders is searched.
A link may also give a restored stream the name of its archive. So the broker is asked about the folder behind
the link, if that has a name of the broker's: under the name of the archive it may have another stream.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from offload.contracts.source import Snapshot, Source, SourceStream
from offload.ground.errors import Denied, Misuse, NotOffloaded
from offload.local.files import explained, shown_path
from offload.local.pair import parse_name
from offload.local.snapshot import FolderMark, folder_mark, folder_snapshot
from offload.model.manifest import Manifest

SCHEME: Final = "rabbitmq://"
EXAMPLE: Final = "/var/lib/rabbitmq/mnesia/rabbit@HOST/stream"

_BROKERS_FOLDER: Final = re.compile(r"[\w\-=]+_\d{19}", re.ASCII)
"""The name of a folder that the broker made. It ends with the time of creation, in nanoseconds since 1970."""

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
        return SCHEME + shown_path(self._path)

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

    async def mark(self) -> FolderMark:
        """See `folder_mark`."""
        return await asyncio.to_thread(folder_mark, self._folder)

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return what the broker would show now. See `folder_snapshot`."""
        return await asyncio.to_thread(partial(folder_snapshot, self._folder, stream=self._name))


def _find(path: Path) -> tuple[list[RabbitmqStream], list[str]]:
    """Return the streams at `path`, and notes on skipped folders."""
    with explained("look at", path):
        if not os.path.lexists(path):
            raise NotOffloaded(f"{SCHEME}{shown_path(path)} does not exist")
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotOffloaded(f"{SCHEME}{shown_path(path)} is not a folder")
    if _holds_segments(path):
        candidates = [(path, path.resolve().name)]
    else:
        candidates = [(folder, folder.name) for folder in _subfolders(path)]
    streams, notes = [], []
    for folder, name in candidates:
        if not _may_hold_segments(folder):
            notes.append(f"skipped: {shown_path(folder)} holds no segments")
        elif not name or shown_path(name) != name:
            notes.append(f"skipped: the name of {shown_path(folder)} is not UTF-8")
        else:
            streams.append(RabbitmqStream(folder, name=name))
    if not streams:
        has_queues = any((path / each).is_dir() for each in ("msg_stores", "queues"))
        hint = f"; for its classic queues, use rabbitmq-queues://{shown_path(path)}" if has_queues else ""
        raise NotOffloaded(f"{SCHEME}{shown_path(path)} holds no stream{hint}")
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
