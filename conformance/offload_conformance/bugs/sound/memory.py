"""Sound stores in memory and a tier on one, each opened by a URL."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from offload.formats.checksums import crc32c
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.memory import MemoryStore

OBJECTS: Final[dict[str, dict[str, bytes]]] = {}


class Memory(MemoryStore):
    """A sound store in memory. The clients of one URL share their objects."""

    KIND: ClassVar = "store"

    def __init__(self, url: str) -> None:
        super().__init__(objects=OBJECTS.setdefault(url, {}), name=url.partition("://")[2])


class MemoryTier(ObjectStoreOffloader):
    """A sound offloader on a store in memory. An author subclasses it for another layout or more speed."""

    KIND: ClassVar = "offloader"

    def __init__(self, url: str) -> None:
        super().__init__(Memory(url), options=TierOptions(fragment_size_bytes=64 * 1024))

    @classmethod
    def keys_at(cls, url: str) -> set[str]:
        """Return the keys of the objects at the URL."""
        return {*OBJECTS.get(url, ())}


class SharedMemory(MemoryStore):
    """A sound store in memory. The clients of one URL share its objects, its uploads and the state of a
    bug.
    """

    KIND: ClassVar = "store"
    PLACES: ClassVar[dict[tuple[str, str], tuple[dict[str, bytes], dict[str, Any], dict[str, Any]]]] = {}

    def __init__(self, url: str) -> None:
        objects, uploads, kept = self.PLACES.setdefault((type(self).__name__, url), ({}, {}, {}))
        super().__init__(objects=objects, name=url.partition("://")[2])
        self._unfinished, self.kept = uploads, kept

    @classmethod
    def keys_at(cls, url: str) -> set[str]:
        """Return the keys of the objects at the URL."""
        return {*cls.PLACES.get((cls.__name__, url), ({},))[0]}


class SummedMemory(SharedMemory):
    """A sound store in memory that has a CRC-32C of each object."""

    KIND: ClassVar = "store"

    async def stored_crc32c(self, key: str) -> int | None:
        return crc32c(await self.get(key))
