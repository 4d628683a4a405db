"""More odd but correct backends. Each does what the contract allows, and must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from offload_conformance.bugs.sound.memory import SharedMemory, SummedMemory
from offload_conformance.bugs.sound.service import ServiceStore
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.wrappers import Relay

from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer, Span, Suffix, Unfinished, check_key
from offload.ground.errors import Misuse, NotFound
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest

CLOCK_AHEAD_MS: Final = 10 * 60 * 1000


class ViewsOfReads(SharedMemory):
    """A read returns a view into a larger buffer, which nobody else has.

    "Buffer: `bytes` or `memoryview`".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]
        data = await super().get(key, span)
        return memoryview(b"head" + data + b"tail")[4 : 4 + len(data)]


class FoldersOfItsOwn(SharedMemory):
    """Folders stay when their last object goes, and a level names them.

    "A store that has folders of its own may name an empty one".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        gone = [key for key in keys if check_key(key) in self.objects]
        await super().delete(keys)
        folders = self.kept.setdefault("folders", set())
        for key in gone:
            parts = key.split("/")
            folders.update("/".join(parts[:end]) + "/" for end in range(1, len(parts)))

    async def level(self, prefix: str) -> AsyncIterator[str]:
        names = {name async for name in super().level(prefix)}
        for folder in self.kept.get("folders", ()):
            if folder.startswith(prefix) and folder != prefix:
                names.add(prefix + folder[len(prefix) :].partition("/")[0] + "/")
        for name in sorted(names, key=str.encode):
            yield name


class OneRowAPage(ServiceStore):
    """A page has one row, and each is looked up when the caller gets there.

    "This holds ... if keys are looked up in ascending order".
    """

    PAGE_ROWS = 1
    CONNECTIONS = 2
    BATCH = 1


class SomeSums(SummedMemory):
    """Only objects of an even size have a sum, absent ones have none, and the clock is ten minutes fast.

    "It may keep one of another object", "returns None or raises `NotFound`", "right within a quarter of an
    hour".
    """

    async def stored_crc32c(self, key: str) -> int | None:
        try:
            found = await super().stored_crc32c(key)
        except NotFound:
            return None
        return found if len(self.objects.get(key, b"")) % 2 == 0 else None

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:  # type: ignore[override]
        try:
            return await super().metadata_of(key)
        except NotFound:
            return None

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return [
            replace(each, started_ms=each.started_ms + CLOCK_AHEAD_MS)
            for each in await super().unfinished_uploads(prefix)
        ]


class ConstantsOfItsOwn(SharedMemory):
    """The gateway adds two names to the metadata of each object.

    "A backend may add constants to each object".
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        return {"gateway": "g1", "x-served-by": "cache, 7"} | dict(await super().metadata_of(key))


class NothingLeft(Table):
    """Nothing of unfinished attempts is offered, and handles read chunk by chunk.

    "A backend that keeps no fragments of unfinished attempts returns an empty list", "Yield `rows` ... in
    runs of about `size_bytes` that are cheap to read".
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return []

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        class ByChunk(Relay):
            def windows(self, rows: ChunkTable, **keywords: Any) -> Any:
                return iter([rows[at : at + 1] for at in range(len(rows))])

        return ByChunk(await super().read_offloaded(attempt, manifest=manifest, only=only))


class LeapsOf63Bits(Table):
    """Versions rise by seven, and a ledger beyond 63 bits is refused before it is read.

    "A number that is higher for each later state", "a backend that keeps only 63 raises `Misuse`".
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is None or manifest.version != base.version + 1:
            return manifest
        return replace(manifest, version=base.version + 7)

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if max(handle.ledger_id, handle.next_offset) >= 2**63:
            raise Misuse(f"ledger {handle.ledger_id} goes beyond 63 bits")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


ODD: Final = (
    ViewsOfReads,
    FoldersOfItsOwn,
    OneRowAPage,
    SomeSums,
    ConstantsOfItsOwn,
    NothingLeft,
    LeapsOf63Bits,
)
