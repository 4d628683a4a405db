"""The folder of a stream of a stopped RabbitMQ as a restore target: `rabbitmq://PATH`, or `--files PATH`.

Everything is written into a folder of its own within PATH, and moved up when it is whole. The broker looks at
files by name, and would find none of them before.

    killed                          the next run
    while it writes                 keeps all pairs but the newest, which may be torn, and continues
    while it moves                  moves the rest, unless a broker wrote to the folder meanwhile
    before it removes the folder    removes it

The folder has a file that says which restore it belongs to. A restore of another stream, or with other
options, refuses it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offload.contracts.store import Buffer
from offload.contracts.target import ChunkTarget, RestoreOrigin, Tell
from offload.formats.segment import INDEX_HEADER, SEGMENT_HEADER
from offload.ground.errors import Conflict, Diverged, Misuse, NotOffloaded
from offload.ground.outside import Unreadable, json_outside, number_outside, read_outside
from offload.local.files import explained, shown_path
from offload.local.pair import Pair, parse_name
from offload.local.segment_writer import (
    SEGMENT_SIZE_BYTES_MAX,
    SegmentWriter,
    has_filters,
    sync_folder,
)
from offload.model.chunk_table import ChunkTable

SCHEME: Final = "rabbitmq://"
STAGING: Final = ".offload-restore"
PLAN: Final = "plan.json"
DONE: Final = "done.json"
SEGMENT_SIZE_BYTES: Final = 500_000_000
FRESH_EPOCH: Final = 2
"""The epoch of a stream that was just declared, after one restart of the broker."""

FILTERS: Final = b"stream_filtering"
"""The feature flag of the brokers that know bloom filters: RabbitMQ 3.13 and newer."""

PROCESSES: Final = Path("/proc")


def open_url(url: str, options: Mapping[str, str]) -> FolderTarget:
    """Return the target at a URL, without access to the disk. Raises `Misuse` if it is no such URL."""
    path = url[len(SCHEME) :] if url.lower().startswith(SCHEME) else ""
    if not path or "\0" in path:
        raise Misuse(f"{url!r} is no target: use {SCHEME} and the path of a stream's folder")
    return FolderTarget(
        Path(path),
        epoch_max=_number("epoch-max", options, None, most=2**64 - 1),
        segment_size_bytes=_number(
            "segment-size-bytes", options, SEGMENT_SIZE_BYTES, most=SEGMENT_SIZE_BYTES_MAX
        ),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """What a restore has written, before it begins to move files."""

    next_offset: int
    sizes: Mapping[str, int]
    last_header: bytes


class FolderTarget(ChunkTarget):
    """The folder of one stream. With `epoch_max`, the epochs of chunks are lowered to it."""

    def __init__(self, folder: Path, *, segment_size_bytes: int | None, epoch_max: int | None) -> None:
        self._folder, self._staging = folder, folder / STAGING
        self._segment_size_bytes = segment_size_bytes or SEGMENT_SIZE_BYTES
        self._epoch_max = epoch_max
        self._writer: SegmentWriter | None = None
        self._next_offset = 0
        self._refuses_filters = False
        self._last_header = b""

    @property
    def url(self) -> str:
        """The scheme and the path."""
        return SCHEME + shown_path(self._folder)

    async def open(self, origin: RestoreOrigin, tell: Tell) -> int:
        """See `ChunkTarget.open`. Raises `Conflict` if a process has a file of the folder open."""
        begins = await asyncio.to_thread(self._open, origin)
        for line in self._differences(origin, begins):
            tell(line)
        return begins

    async def write(self, rows: ChunkTable, data: Buffer) -> None:
        """See `ChunkTarget.write`."""
        if self._writer is None:  # an earlier run wrote everything
            return
        # Before they are written: the next run would keep a segment that was sealed, and not look at it.
        if self._refuses_filters and has_filters(rows, data):
            raise Misuse(
                f"{self.url} belongs to a broker that does not know the bloom filters of this archive: "
                "RabbitMQ 3.13 or newer does, once its feature flag stream_filtering is enabled; publish the "
                "messages instead"
            )
        await asyncio.to_thread(self._writer.write, rows, data)
        self._next_offset = int(rows["offset"][-1]) + int(rows["records"][-1])
        self._last_header = self._writer.last_header

    @property
    def last_header(self) -> bytes:
        """See `ChunkTarget.last_header`."""
        return self._last_header

    async def finish(self) -> int:
        """See `ChunkTarget.finish`."""
        await asyncio.to_thread(self._finish)
        return self._next_offset

    async def aclose(self) -> None:
        """Close the files. What was written stays for the next run."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, origin: RestoreOrigin) -> int:
        with explained("look at", self._folder):
            if not self._folder.is_dir():
                raise NotOffloaded(
                    f"{shown_path(self._folder)} is no folder: declare the stream, stop the broker, and name "
                    "the folder that the broker made for it; a stream of a running broker is "
                    "rabbitmq-stream://HOST/STREAM"
                )
        _refuse_if_open(self._folder)
        self._refuses_filters = _knows_filters(self._folder) is False
        plan = {
            "stream": origin.stream,
            "incarnation": str(origin.incarnation),
            "first_offset": origin.first_offset,
            "epoch_max": self._epoch_max,
            "segment_size_bytes": self._segment_size_bytes,
        }
        earlier = _read(self._staging / PLAN, tuple(plan))
        done = _read_done(self._staging / DONE)
        if done is None:
            with suppress(OSError):  # left by a run that was killed at the very end; others are not empty
                self._staging.rmdir()
            _refuse_if_not_empty(self._folder)
        else:
            _refuse_if_changed(self._folder, self._staging, done.sizes)
        if earlier is None:
            self._begin(plan)
        elif earlier != plan:
            raise Diverged(
                f"{shown_path(self._staging)} has an unfinished restore of stream {earlier.get('stream')!r} "
                "with other options: run that one again, or remove this folder"
            )
        if done is not None:
            self._next_offset, self._last_header = done.next_offset, done.last_header
            return origin.next_offset
        begins = _keep_sealed(self._staging, origin.first_offset)
        self._next_offset = begins
        self._writer = SegmentWriter(
            self._staging, segment_size_bytes=self._segment_size_bytes, epoch_max=self._epoch_max
        )
        return begins

    def _begin(self, plan: Mapping[str, Any]) -> None:
        with explained("create", self._staging):
            # A kill may leave the folder without the file, and nothing else in it counts then.
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir()
        _store(self._staging / PLAN, plan)

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.seal()
            document = {
                "next_offset": self._next_offset,
                "last_header": self._last_header.hex(),
                "sizes": _pairs_in(self._staging),
            }
            _store(self._staging / DONE, document)
        _refuse_if_open(self._folder)
        self._move()

    def _move(self) -> None:
        # A declared stream has a pair without chunks. osiris would take a pair at offset 0 for the first one.
        for name, size_bytes in _pairs_in(self._folder).items():
            if size_bytes <= _head_size(name):
                _remove(self._folder / name)
        owner = self._folder.stat()
        for name in sorted(_pairs_in(self._staging)):
            with explained("move", self._staging / name):
                if os.geteuid() != owner.st_uid:
                    os.chown(self._staging / name, owner.st_uid, owner.st_gid)
                (self._staging / name).chmod(0o644)
                (self._staging / name).rename(self._folder / name)
        sync_folder(self._folder)
        # The file that says that everything was written goes last: without it, the folder looks unfit.
        _remove(self._staging / PLAN)
        _remove(self._staging / DONE)
        with explained("remove", self._staging):
            self._staging.rmdir()

    def _differences(self, origin: RestoreOrigin, begins: int) -> list[str]:
        """Return what a person must know before the broker starts."""
        lines = []
        if begins > origin.first_offset:
            lines.append(f"an earlier restore wrote offsets [{origin.first_offset}, {begins}); it continues")
        if self._epoch_max is not None:
            lines.append(
                f"epochs above {self._epoch_max} become {self._epoch_max}: the bytes differ from the "
                "archive's, and `offload sync` continues the archive only in a new part: see --new-part"
            )
        elif origin.epoch is not None and origin.epoch > FRESH_EPOCH:
            lines.append(
                f"the archive's last epoch is {origin.epoch}, and a stream that was just declared has "
                f"{FRESH_EPOCH}: the broker raises it step by step when it starts, and logs an error with "
                "invalid_epoch for each step; --target-option epoch-max changes the epochs instead"
            )
        lines.append("the broker's retention may delete old segments as soon as it starts: check it before")
        return lines


def _number(name: str, options: Mapping[str, str], default: int | None, *, most: int) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    number = number_outside(text)
    if number is None or not 1 <= number <= most:
        raise Misuse(f"target option {name} is a number from 1 to {most}, not {text[:80]!r}")
    return number


def _refuse_if_not_empty(folder: Path) -> None:
    """Raise `Diverged` if the folder has chunks, and `Misuse` if it is not that of one stream.

    Files with a header alone count as empty.
    """
    with explained("list", folder):
        others = sorted(name for name in os.listdir(folder) if name != STAGING and not parse_name(name))
    if others:
        raise Misuse(
            f"{shown_path(folder)} holds {others[0]!r}, which is no file of a stream: name that of one stream"
        )
    for name, size_bytes in _pairs_in(folder).items():
        if size_bytes > _head_size(name):
            raise Diverged(
                f"{shown_path(folder / name)} holds chunks already: restore into the folder of a stream that "
                "was just declared"
            )


def _refuse_if_changed(folder: Path, staging: Path, sizes: Mapping[str, int]) -> None:
    """Raise `Diverged` if a broker wrote to the folder after a restore was killed while it moved files.

    `sizes` are those of all files of the restore. A file that is not moved yet is in `staging`.
    """
    waiting = _pairs_in(staging)
    for name, size_bytes in _pairs_in(folder).items():
        if size_bytes > _head_size(name) and (name in waiting or size_bytes != sizes.get(name)):
            raise Diverged(
                f"{shown_path(folder / name)} holds chunks that this restore did not write: a broker was "
                "started before the restore was complete; restore into the folder of a stream that was "
                "just declared"
            )


def _refuse_if_open(folder: Path) -> None:
    """Raise `Conflict` if a process has a file in the folder open.

    It sees the processes of its own user, and all of them as root.
    """
    resolved = os.path.realpath(folder) + os.sep
    for descriptor in PROCESSES.glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process ended, or belongs to somebody else
            if os.readlink(descriptor).startswith(resolved):
                raise Conflict(
                    f"process {descriptor.parts[2]} has a file in {shown_path(folder)} open: "
                    "stop the broker first"
                )


def _keep_sealed(staging: Path, first_offset: int) -> int:
    """Remove the newest pair, which may be torn, and return the offset at which to continue."""
    offsets = sorted({parsed[0] for name in _pairs_in(staging) if (parsed := parse_name(name))})
    if not offsets:
        return first_offset
    newest = Pair(staging, offsets[-1])
    _remove(newest.index)
    _remove(newest.segment)
    return newest.offset


def _knows_filters(folder: Path) -> bool | None:
    """Return whether the folder's broker has bloom filters enabled; None if its files do not say it.

    A node's data is in MNESIA/NODE/stream/FOLDER, and its feature flags in MNESIA/NODE-feature_flags.
    """
    node = folder.resolve().parent.parent
    try:
        flags = read_outside(node.parent / f"{node.name}-feature_flags")
    except (OSError, Unreadable):
        return None
    return FILTERS in flags


def _pairs_in(folder: Path) -> dict[str, int]:
    """Return the segments and indexes of a folder, with their sizes."""
    with explained("list", folder), os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if parse_name(entry.name)}


def _head_size(name: str) -> int:
    head = SEGMENT_HEADER if name.endswith("segment") else INDEX_HEADER
    return head.size_bytes


def _remove(path: Path) -> None:
    with explained("remove", path):
        path.unlink(missing_ok=True)


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the document at `path`; None if there is none. Raises `Misuse` if it lacks one of `keys`."""
    try:
        found = json_outside(read_outside(path))
        return {key: found[key] for key in keys}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with explained("read", path):
            raise
    except (ValueError, KeyError, TypeError) as exc:
        raise _unreadable(path) from exc


def _read_done(path: Path) -> _Done | None:
    """Return what a restore has written; None if it has not written everything. Raises as `_read`."""
    found = _read(path, ("next_offset", "sizes", "last_header"))
    if found is None:
        return None
    try:
        return _Done(int(found["next_offset"]), dict(found["sizes"]), bytes.fromhex(found["last_header"]))
    except (ValueError, TypeError) as exc:
        raise _unreadable(path) from exc


def _unreadable(path: Path) -> Misuse:
    return Misuse(f"{shown_path(path)} is no file of a restore: remove {shown_path(path.parent)}")


def _store(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file, so that it is whole or absent after a crash."""
    with explained("write", path):
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    sync_folder(path.parent)
