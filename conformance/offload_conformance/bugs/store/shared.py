"""Bases and constants of several modules of planted bugs in stores."""

from __future__ import annotations

from typing import Final

from offload.contracts.store import Upload
from offload.ground.errors import Misuse, TryAgain
from offload.store.memory import MemoryStore

PAGE_KEYS = 1000


class Collected(Upload):
    """An upload that keeps its parts by number, and never ends."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self.store, self.key, self.parts = store, key, dict[int, bytes]()

    async def put_part(self, number: int, data: bytes) -> None:
        self.parts[number] = data

    async def complete(self) -> None:
        if not self.parts or len(self.parts) != max(self.parts):
            raise Misuse("a part is missing")
        self.store.objects[self.key] = self.joined()

    def joined(self) -> bytes:
        """Return the object, with its parts in order."""
        return b"".join(self.parts[number] for number in sorted(self.parts))

    async def abort(self) -> None:
        self.parts.clear()


MIB: Final = 2**20


SLOTS: Final = 16


class FewConnections(MemoryStore):
    """A client with as many connections as `SLOTS`."""

    free = SLOTS

    def take(self) -> None:
        """Take a connection."""
        if not self.free:
            raise TryAgain("no connection is free")
        self.free -= 1


BEGUN: Final[dict[int, list[Collected]]] = {}


LIMIT: Final = 100_000


class Shared(MemoryStore):
    """A store whose clients share their uploads: the base of some bugs, itself without one."""

    places: dict[int, dict[str, object]] = {}

    def __init__(self, **keywords: object) -> None:
        super().__init__(**keywords)  # type: ignore[arg-type]  # passed on
        self._unfinished = self.places.setdefault(id(self.objects), {})  # type: ignore[assignment]  # shared
