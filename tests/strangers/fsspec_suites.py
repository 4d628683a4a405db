"""The suite on fsspec's own file systems, through the adapter.

`test_fsspec` runs this and judges the results.

A race is rarely lost by chance. So in the clauses about races, the file systems wait at two points for
another thread that does harm there. A thread that looked for a file and found none waits until another has
found none too. A thread that opened a file and has not filled it waits for a read. Nothing else about the
file systems is changed, and if no other thread comes, they continue.
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
"""How long a thread waits if no other thread comes."""


class Schedule:
    """The waits between threads in one test, which runs `clause`."""

    def __init__(self, clause: str) -> None:
        self._create, self._replace = "create_is_atomic" in clause, "whole_while_replaced" in clause
        self._fill = "creates_are_whole" in clause
        self._changed = threading.Condition()
        self._looks: Counter[tuple[str, int]] = Counter()  # the looks at a path by a thread
        self._lookers: Counter[tuple[str, int]] = (
            Counter()
        )  # the looks at a path, for the first and the second time
        self._opened = self._read = 0

    def found_nothing(self, path: str) -> None:
        """Wait until two threads have looked at this path as often as this thread, and found nothing."""
        mine = (path, threading.get_ident())
        with self._changed:
            self._looks[mine] += 1
            look = (path, self._looks[mine])
            self._lookers[look] += 1
            self._changed.notify_all()
            if self._create or path.endswith("/probe/many"):  # a probe of a capability races here
                self._changed.wait_for(lambda: self._lookers[look] > 1, SECONDS_MAX)

    def opened(self, *, replaced: bool) -> None:
        """Wait until a read has begun and ended while a file is open and not yet filled."""
        with self._changed:
            self._opened += 1
            mine = self._opened
            if self._fill or (self._replace and replaced):
                self._changed.wait_for(lambda: self._read >= mine, SECONDS_MAX)

    def read_begins(self) -> int:
        """Note that a read begins. Return the value to pass to `read_ended`."""
        return self._opened

    def read_ended(self, began: int) -> None:
        """Release the threads that had opened a file when this read began."""
        with self._changed:
            self._read = max(self._read, began)
            self._changed.notify_all()


class Watched:
    """A wrapper of a file system that reports lookups, openings and reads to the schedule of the test."""

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
    """The suite on the memory file system, which is one global dictionary."""


class Local(Watched, LocalFileSystem):
    """The suite on local files."""


class InMemory:
    test_create_is_atomic_between_processes = None  # another process has its own dictionary

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
    test_create_is_atomic_between_processes = (
        None  # the same race as between threads, but only chance loses it
    )

    def open_store(self) -> ObjectStore:
        return PipingStore(self.files, self.root)
