"""Disks that fail: at one call, when the process is killed, and when the power is cut."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offload.log.disk import Disk
from offload.log.lock import LOCK_NAME

CHANGES = ("create", "write", "cut", "sync", "set_time", "remove", "replace", "sync_folder")


class Killed(Exception):
    """The process ended here."""


class CountingDisk(Disk):
    """Counts the calls that change something. Derived classes decide at each of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        """Called before each call. May raise."""
        self.calls.append(name)

    def create(self, path: Path) -> int:
        self.before("create")
        return super().create(path)

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        self.before("write")
        super().write(descriptor, position, parts)

    def cut(self, descriptor: int, size_bytes: int) -> None:
        self.before("cut")
        super().cut(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        self.before("sync")
        super().sync(descriptor)

    def set_time(self, descriptor: int, time_ms: int) -> None:
        self.before("set_time")
        super().set_time(descriptor, time_ms)

    def remove(self, path: Path) -> None:
        self.before("remove")
        super().remove(path)

    def replace(self, old: Path, new: Path) -> None:
        self.before("replace")
        super().replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        self.before("sync_folder")
        super().sync_folder(folder)


class KilledDisk(CountingDisk):
    """After `left` calls, nothing changes any more. The call in which it dies writes a part of its bytes."""

    def __init__(self, left: float = float("inf"), *, part: float = 0.5) -> None:
        super().__init__()
        self.left, self.part = left, part

    def before(self, name: str) -> None:
        super().before(name)
        self.left -= 1
        if self.left < 0:
            raise Killed(f"in {name}")

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        if self.left == 0 and not is_lock(descriptor):
            data = b"".join(parts)
            os.pwrite(descriptor, data[: int(len(data) * self.part)], position)
        super().write(descriptor, position, parts)


class FailingDisk(CountingDisk):
    """Chosen calls fail with an error of the system. A write that fails has written half of its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str], int] = lambda name: 0
        """Returns the number of the error for a call, or 0."""

    def before(self, name: str) -> None:
        super().before(name)
        if number := self.fails(name):
            raise OSError(number, os.strerror(number))

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        try:
            super().write(descriptor, position, parts)
        except OSError:
            data = b"".join(parts)
            os.pwrite(descriptor, data[: len(data) // 2], position)
            raise


def is_lock(descriptor: int) -> bool:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name == LOCK_NAME


def failing_at(number: int, *, error: int = errno.EIO, name: str = "") -> Callable[[str], int]:
    """Return a choice of the one call `number` from now on, counted from 0, of those with this name."""
    left = number

    def fails(called: str) -> int:
        nonlocal left
        if name and called != name:
            return 0
        left -= 1
        return error if left == -1 else 0

    return fails


@dataclass(eq=False)
class PowerFile:
    """A file: what is durable of it, and the changes since its last sync."""

    durable: bytes = b""
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Each is a position and bytes, or a size and None: a cut."""


class PowerDisk(KilledDisk):
    """A disk whose power can be cut: what was not synced is there or not, each write for itself.

    Names are durable in the order in which they were changed: a prefix of the changes since the last sync of
    the folder. Contents of files are those of the last sync, with any of the writes since then.
    """

    def __init__(self, folder: Path, left: float = float("inf"), *, part: float = 0.5) -> None:
        super().__init__(left, part=part)
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.now = {path.name: PowerFile(path.read_bytes()) for path in folder.iterdir()}
        self.durable = dict(self.now)
        self.names: list[dict[str, PowerFile]] = []
        """The names after each change since the last sync of the folder."""

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        file = self._file(descriptor)
        data = b"".join(parts)
        # Pages are written for themselves. The lock relies on a sector that is written whole or not.
        step = len(data) if is_lock(descriptor) else 100
        file.changes += [(position + at, data[at : at + step]) for at in range(0, len(data), step)]
        super().write(descriptor, position, parts)

    def cut(self, descriptor: int, size_bytes: int) -> None:
        super().cut(descriptor, size_bytes)
        self._file(descriptor).changes.append((size_bytes, None))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self._synced(descriptor)

    def set_time(self, descriptor: int, time_ms: int) -> None:
        super().set_time(descriptor, time_ms)
        self._synced(descriptor)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.now[path.name] = PowerFile()
        self._named()
        return descriptor

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.now.pop(path.name, None)
        self._named()

    def replace(self, old: Path, new: Path) -> None:
        super().replace(old, new)
        self.now[new.name] = self.now.pop(old.name)
        self._named()

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.durable = dict(self.now)
        self.names = []

    def after_power_cut(self, folder: Path, draw: random.Random) -> None:
        """Make a folder as it may be when the power is back."""
        folder.mkdir()
        for name, file in draw.choice([self.durable, *self.names]).items():
            raw = bytearray(file.durable)
            for position, data in file.changes:
                if draw.random() < 0.5:
                    continue
                if data is None:
                    del raw[position:]
                else:
                    raw.extend(bytes(max(position + len(data) - len(raw), 0)))
                    raw[position : position + len(data)] = data
            (folder / name).write_bytes(raw)

    def _named(self) -> None:
        self.names.append(dict(self.now))

    def _file(self, descriptor: int) -> PowerFile:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.removesuffix(" (deleted)")
        if name not in self.now:  # the lock, which is not created by the disk
            self.now[name] = self.durable[name] = PowerFile()
        return self.now[name]

    def _synced(self, descriptor: int) -> None:
        file = self._file(descriptor)
        file.durable = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        file.changes.clear()
