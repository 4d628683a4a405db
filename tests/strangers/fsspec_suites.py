"""The suite, pointed at fsspec's own file systems through the adapter. `test_fsspec` runs this and judges.

A race is lost rarely by chance. So in the clauses about races the file systems wait, where Python may switch
threads at any time, for the other thread that does harm there: one that has looked and found nothing waits
until another has found nothing too, and one that has opened a file and not yet filled it waits for a read.
Nothing else about them is changed, and where nobody else comes they go on.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from offload_conformance import StoreConformance
from strangers.fsspec_adapter import FsspecStore, PipingStore

from offload.contracts.store import ObjectStore

SECONDS_MAX = 20
"""For which one waits where the other does not come."""


class Schedule:
    """Who waits for whom in one test, which asks `clause`."""

    def __init__(self, clause: str) -> None:
        self._create, self._replace = "create_is_atomic" in clause, "whole_while_replaced" in clause
        self._fill = "creates_are_whole" in clause
        self._changed = threading.Condition()
        self._looks: Counter[tuple[str, int]] = Counter()  # of a path, by a thread
        self._lookers: Counter[tuple[str, int]] = Counter()  # at a path, for the first time, the second time
        self._opened = self._read = 0

    def found_nothing(self, path: str) -> None:
        """Wait until two threads have looked at this path as often as this one, and found nothing."""
        mine = (path, threading.get_ident())
        with self._changed:
            self._looks[mine] += 1
            look = (path, self._looks[mine])
            self._lookers[look] += 1
            self._changed.notify_all()
            if self._create or path.endswith("/probe/many"):  # where a capability is probed by a race
                self._changed.wait_for(lambda: self._lookers[look] > 1, SECONDS_MAX)

    def opened(self, *, replaced: bool) -> None:
        """A file is open and not yet filled. Wait until a read has begun and ended."""
        with self._changed:
            self._opened += 1
            mine = self._opened
            if self._fill or (self._replace and replaced):
                self._changed.wait_for(lambda: self._read >= mine, SECONDS_MAX)

    def read_begins(self) -> int:
        """What `read_ended` is to be told."""
        return self._opened

    def read_ended(self, began: int) -> None:
        """Let go whoever had opened a file when the read began."""
        with self._changed:
            self._read = max(self._read, began)
            self._changed.notify_all()


class Watched:
    """Before a file system: its looks, openings and reads are on the schedule of the test."""

    schedule: ClassVar[Schedule] = Schedule("")

    def exists(self, path: str, **options: Any) -> bool:
        found: bool = super().exists(path, **options)
        if not found:
            self.schedule.found_nothing(path)
        return found

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        replaced = mode == "wb" and super().exists(path)
        opened = super()._open(path, mode, **options)
        if mode in ("wb", "xb"):
            self.schedule.opened(replaced=replaced)
        return opened

    def cat_file(self, path: str, *span: Any, **options: Any) -> bytes:
        began = self.schedule.read_begins()
        try:
            data: bytes = super().cat_file(path, *span, **options)
            return data
        finally:
            self.schedule.read_ended(began)


class Memory(Watched, MemoryFileSystem):
    """The global dictionary of all memory file systems."""


class Local(Watched, LocalFileSystem):
    """Files."""


class InMemory:
    test_create_is_atomic_between_processes = None  # another process has another dictionary

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest) -> None:
        Watched.schedule = Schedule(request.node.name)
        self.files, self.root = Memory(), f"/{uuid4()}"

    def keys_in_store(self) -> set[str]:
        below = f"{self.root}/"
        return {path.removeprefix(below) for path in MemoryFileSystem.store if path.startswith(below)}


class OnDisk:
    files = Local()

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        Watched.schedule = Schedule(request.node.name)
        self.root = str(tmp_path / "tier")

    def keys_in_store(self) -> set[str]:
        files = (path for path in Path(self.root).rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix() for path in files}


class TestMemory(InMemory, StoreConformance):
    def open_store(self) -> ObjectStore:
        return FsspecStore(self.files, self.root)


class TestMemoryPiping(InMemory, StoreConformance):
    def open_store(self) -> ObjectStore:
        return PipingStore(self.files, self.root)


class TestLocal(OnDisk, StoreConformance):
    def open_store(self) -> ObjectStore:
        return FsspecStore(self.files, self.root)


class TestLocalPiping(OnDisk, StoreConformance):
    test_create_is_atomic_between_processes = None  # lost as between threads, and by chance alone

    def open_store(self) -> ObjectStore:
        return PipingStore(self.files, self.root)
