"""The lock of a log's folder, and what a log must still know after all of its chunks were lost.

    writer.lock    {"pid": 4711, "epoch": 7}                             padded to 128 bytes
                   {"first": 6250, "synced": 9000, "checksum": 123}      padded to 128 bytes

The lock is `flock` on the open file, so the kernel frees it when the process ends, however it ends. The file
stays: an empty one locks nobody out.

`epoch` is the leader epoch of the last writer. It is durable before that writer writes a chunk. If a power
cut takes all of its chunks, the next writer still gets a newer epoch, and rewritten offsets can be told
apart.

The offsets from `first` up to `synced` must be there: they were synced, and no call deleted them. `synced` is
written after the sync of the files. So it is right whenever it reaches the disk, and needs no sync of its own
while the log takes appends: a killed process leaves the newest one, and a power cut perhaps an older one. It
is durable when the log was opened or closed. `first` is durable before a ledger is deleted.

Logs of older versions have no second line. Then nothing is known. Older versions ignore the line and keep it.
A person who accepts a loss cuts it off: `truncate -s 128 writer.lock`.

Invariant: the file is changed in place by one write within one sector, which a disk writes whole or not.
"""

from __future__ import annotations

import fcntl
import json
import os
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from offload.formats.checksums import crc32
from offload.ground.errors import Conflict, Corrupt
from offload.ground.outside import json_outside
from offload.local.files import explained, read_at, shown_path
from offload.log.disk import Disk

__all__ = ["LOCK_NAME", "LogLock", "Present"]


LOCK_NAME: Final = "writer.lock"
_SIZE_BYTES: Final = 128
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class LockState:
    """The content of the file."""

    pid: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The offsets from `first` up to `synced` were synced, and no call deleted them."""

    first: int
    synced: int


class LogLock:
    """The lock, held. Every method blocks."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_durable", "_path", "present", "state")

    def __init__(
        self, path: Path, descriptor: int, state: LockState, present: Present | None, disk: Disk
    ) -> None:
        self._path, self._descriptor, self._disk = path, descriptor, disk
        self.state, self.present = state, present
        # What a process that was killed noted may not be on the disk.
        self._durable: Present | None = None
        _HELD.add(self)

    @classmethod
    def take(cls, folder: Path, *, disk: Disk) -> Self:
        """Take the lock. Raises `Conflict` with the process that has it.

        The file keeps the process of the last holder: this method writes nothing.
        """
        path = folder / LOCK_NAME
        while True:
            with explained("open", path):
                descriptor = os.open(path, _OPEN, 0o666)
            try:
                _lock(descriptor, path)
                if _is_at(descriptor, path):
                    state, present = _state(descriptor, path), _present(descriptor, path)
                    return cls(path, descriptor, state, present, disk)
            except BaseException:
                os.close(descriptor)
                raise
            # The holder before destroyed its log, and the file with it. Another one may be there now.
            os.close(descriptor)

    def save(self, *, epoch: int, present: Present | None) -> None:
        """Keep this process as the holder, its epoch, and what must be there, durably."""
        state = LockState(os.getpid(), epoch)
        with explained("write", self._path):
            self._disk.write(self._descriptor, 0, [_line(asdict(state)), _present_line(present)])
            self._disk.sync(self._descriptor)
        self.state, self.present, self._durable = state, present, present

    def settle(self, present: Present) -> None:
        """Keep what must be there, durably."""
        if present != self._durable:
            self.save(epoch=self.state.epoch, present=present)

    def note(self, present: Present) -> None:
        """Keep what must be there. It survives this process; a power cut may take it back."""
        if present != self.present:
            with explained("write", self._path):
                self._disk.write(self._descriptor, _SIZE_BYTES, [_present_line(present)])
            self.present = present

    def release(self) -> None:
        """Free the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_HELD: Final = weakref.WeakSet[LogLock]()


def _close_in_child() -> None:
    """Close the locks of the parent: a child that outlives it would keep them."""
    for lock in list(_HELD):
        lock.release()  # frees nothing while the parent has its descriptor


os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int, path: Path) -> None:
    try:
        with explained("lock", path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except Exception as exc:
        if isinstance(exc.__cause__, BlockingIOError):
            holder = _state(descriptor, path).pid
            raise Conflict(
                f"process {holder} has the log in {shown_path(path.parent)} open: "
                "close it there, or end that process"
            ) from exc
        raise


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _line(values: dict[str, int]) -> bytes:
    return json.dumps(values).encode().ljust(_SIZE_BYTES - 1) + b"\n"


def _present_line(present: Present | None) -> bytes:
    if present is None:
        return bytes(_SIZE_BYTES)
    return _line({**asdict(present), "checksum": _checksum(present)})


def _checksum(present: Present) -> int:
    return crc32(b"%d %d" % (present.first, present.synced))


def _present(descriptor: int, path: Path) -> Present | None:
    raw = read_at(descriptor, _SIZE_BYTES, _SIZE_BYTES, path=path)
    if not raw.strip(b"\0"):
        return None
    try:
        values = json_outside(raw)
        found = Present(first=values["first"], synced=values["synced"])
        if not all(type(each) is int for each in asdict(found).values()):
            raise ValueError("a value is no integer")
        if values["checksum"] != _checksum(found):
            raise ValueError("another checksum")
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(
            "range of the log", shown_path(path), expected="a JSON object", found=raw, position=_SIZE_BYTES
        ) from exc
    return found


def _state(descriptor: int, path: Path) -> LockState:
    raw = read_at(descriptor, 0, _SIZE_BYTES, path=path)
    # A crash while the file was created leaves no content, or zeros.
    if not raw.strip(b"\0"):
        return LockState()
    try:
        found = LockState(**json_outside(raw))
        if not all(type(each) is int and 0 <= each < 2**64 for each in asdict(found).values()):
            raise ValueError("a number is out of range")
    except (ValueError, TypeError) as exc:
        raise Corrupt("state of the log", shown_path(path), expected="a JSON object", found=raw) from exc
    return found
