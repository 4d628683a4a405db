"""Reading a vhost's stream on a tier: positions of runs, one behind the other, ahead of the consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import numpy as np

from offload.cache.block_cache import BlockCache
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Corrupt
from offload.model.manifest import Manifest
from offload.read.batches import Messages
from offload.read.reader import StreamReader
from offload_queue.log_records import REFERENCE, TAGGED, TIER_MESSAGE, TIER_REFERENCE, MessageTags

__all__ = ["TierReading"]

TAGGED_KINDS: Final = {TIER_MESSAGE, TIER_REFERENCE}
TAGGED_ROW: Final = np.dtype([("kind", "u1"), ("tag", ">u8")])
assert TAGGED_ROW.itemsize == TAGGED.size

CURSORS_MAX: Final = 4
IN_FLIGHT: Final = 3
LOAD_COUNT_MAX: Final = 4096
LOAD_SIZE_BYTES: Final = 2 * 2**20
SKIP_MAX: Final = 4
"""A cursor goes on over so many records that nobody wants: the state behind the last run of a ledger."""


class _Cursor:
    """A place on the tier, with what was fetched behind it."""

    __slots__ = ("_bodies", "_messages", "position")

    def __init__(self, messages: AsyncGenerator[Messages, None], position: int) -> None:
        self._messages, self.position = messages, position
        self._bodies: list[bytes] = []

    async def take(self, count: int) -> list[bytes]:
        """Return up to `count` records, none at the end."""
        while not self._bodies:
            batch = await anext(self._messages, None)
            if batch is None:
                return []
            self._bodies = batch.bodies[max(self.position - batch.offset, 0) :]
            if batch.offset > self.position:
                raise Corrupt("tier offset", "queue", expected=self.position, found=batch.offset)
        taken, self._bodies = self._bodies[:count], self._bodies[count:]
        self.position += len(taken)
        return taken

    async def aclose(self) -> None:
        await self._messages.aclose()


class TierReading:
    """The records of one stream by their tier offsets."""

    __slots__ = ("_cache", "_cursors", "_tier", "manifest")

    def __init__(self, tier: LedgerOffloader, cache: BlockCache | None = None) -> None:
        self._tier, self._cache = tier, cache
        self.manifest: Manifest | None = None
        """The newest manifest that is known. Whoever commits sets it."""
        self._cursors: list[_Cursor] = []

    async def read(self, offset: int, count: int) -> list[bytes]:
        """Return up to `count` records, at least one, from a tier offset on.

        Raises `Corrupt` if the stream does not have it.
        """
        cursor = next((each for each in self._cursors if 0 <= offset - each.position <= SKIP_MAX), None)
        if cursor is None:
            cursor = self._open(offset)
        else:
            self._cursors.remove(cursor)
        try:
            while cursor.position < offset and await cursor.take(offset - cursor.position):
                pass
            records = await cursor.take(count)
            if not records:  # the cursor began before the newest commit
                await cursor.aclose()
                cursor = self._open(offset)
                records = await cursor.take(count)
            size_bytes = sum(map(len, records))
            while len(records) < count and size_bytes < LOAD_SIZE_BYTES:
                if not (more := await cursor.take(count - len(records))):
                    break
                records += more
                size_bytes += sum(map(len, more))
        except BaseException:
            await cursor.aclose()
            raise
        self._cursors.append(cursor)
        while len(self._cursors) > CURSORS_MAX:
            await self._cursors.pop(0).aclose()
        if not records:
            raise Corrupt("queue on the tier", self._tier.url, expected=f"offset {offset}", found="the end")
        return records

    async def run(self, offset: int, count: int) -> tuple[MessageTags, list[bytes]]:
        """Return the tags of a run's messages from a tier offset on, and their records as they are there."""
        raw = await self.read(offset, min(count, LOAD_COUNT_MAX))
        heads = [record[: TAGGED.size] for record in raw]
        if any(len(head) < TAGGED.size for head in heads) or not {head[0] for head in heads} <= TAGGED_KINDS:
            raise Corrupt("run of a queue", self._tier.url, expected="messages", found=f"offset {offset}")
        tags = np.frombuffer(b"".join(heads), TAGGED_ROW)["tag"].astype(np.int64)
        if (np.diff(tags) <= 0).any():
            where = f"{self._tier.url}, offset {offset}"
            raise Corrupt("run of a queue", where, expected="ascending tags", found=tags.tolist()[:5])
        return tags, raw

    async def messages(self, raw: list[bytes]) -> list[bytes]:
        """Return the messages of a run's records: those of references are read where they lie."""
        at = TAGGED.size
        targets = (
            [reference_of(record) for record in raw] if TIER_REFERENCE in {each[0] for each in raw} else []
        )
        if not targets:
            return [record[at:] for record in raw]
        bodies = {offset: b"" for offset in targets if offset is not None}
        for offset in sorted(bodies):
            bodies[offset] = (await self.read(offset, 1))[0]
        return [
            record[at:] if target is None else bodies[target]
            for record, target in zip(raw, targets, strict=True)
        ]

    def _open(self, offset: int) -> _Cursor:
        assert self.manifest is not None
        reader = StreamReader(self._tier, self.manifest, in_flight=IN_FLIGHT, cache=self._cache)
        return _Cursor(reader.messages_here(offset), offset)

    async def aclose(self) -> None:
        """Close what is open."""
        for cursor in self._cursors:
            await cursor.aclose()
        self._cursors.clear()


def reference_of(record: bytes) -> int | None:
    """Return the tier offset of the message to which a record refers; None if it has the message itself."""
    if record[0] != TIER_REFERENCE:
        return None
    if len(record) != REFERENCE.size:
        raise Corrupt("reference on a tier", "queue", expected=REFERENCE.size, found=len(record))
    found: int = REFERENCE.unpack(record)[2]
    return found
