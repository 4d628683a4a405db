"""Merging index objects: neighbours become one object, with the same rows, piece by piece.

The rows of all inputs ascend by hash and then by offset. Each input has a piece of rows in memory. All rows
below the least last hash of these pieces are complete, and go into the output in one sort of arrays. Then at
least one piece is used up, and the next one of its input is there, because it was asked for before. Rows of
one hash may fill many pieces: they go into the output input after input, which is in the order of offsets,
because the inputs are neighbours.

The size of the output is known before its first byte, so the store takes it as one body. Nothing is deleted
here: the inputs lie within the output, so they are unused from then on (`index.rules`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np

from offload.contracts.store import Body, ObjectStore
from offload.formats.index_object import Hashes, IndexWriter, Offsets
from offload.formats.keys import IndexName, StreamKeys
from offload.ground.env import Env
from offload.ground.tasks import run_each
from offload.index.build import Built
from offload.index.objects import IndexObject
from offload.model.manifest import CommittedStream

__all__ = ["merge"]

_NOTHING: Final = np.zeros(0, np.uint64), np.zeros(0, np.uint32)


async def merge(
    store: ObjectStore, inputs: Sequence[IndexObject], root: CommittedStream, *, env: Env
) -> Built:
    """Store one object with the rows of these neighbours, which all count by `root`. Return it.

    Raises `Corrupt` if an input is damaged, and `NotFound` if one is gone.
    """
    names = [each.name for each in inputs]
    first, following = names[0].first_offset, names[-1].next_offset
    name = IndexName(names[0].folder, first, following, root.version, root.incarnation, env.uuid())
    parts = [
        _Input(each, shift=each.name.first_offset - first, begin=before - each.name.first_offset)
        for each, before in zip(inputs, [first, *(each.next_offset for each in names)], strict=False)
    ]
    await run_each(IndexObject.check_header, inputs, at_once=len(inputs))
    rows = sum([await part.count() for part in parts])
    shape = IndexWriter(root.stream, name, rows).shape

    async def windows() -> AsyncIterator[bytes]:
        writer = IndexWriter(root.stream, name, rows)
        async with aclosing(_merged(parts)) as pieces:
            async for hashes, offsets in pieces:
                if len(hashes):
                    yield writer.rows(hashes, offsets)
        yield writer.end()

    await store.put(StreamKeys(root.stream).index(name), Body(size_bytes=shape.size_bytes, windows=windows))
    return Built(name, rows, shape.size_bytes)


@dataclass(frozen=True, slots=True)
class _Input:
    """One input, and how its offsets become those of the output."""

    one: IndexObject
    shift: int
    begin: int
    """Rows below this offset of the input are left out: the input before has them. Mostly 0."""

    async def count(self) -> int:
        """Return the number of rows. Reads all of them only if the input overlaps the one before."""
        if not self.begin:
            return self.one.shape.rows
        async with aclosing(self.rows()) as pieces:
            return sum([len(hashes) async for hashes, _ in pieces])

    async def rows(self) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
        """Yield the rows with the offsets of the output, in pieces."""
        async with aclosing(self.one.all_rows()) as pieces:
            async for hashes, offsets in pieces:
                if self.begin:
                    kept = offsets >= self.begin
                    hashes, offsets = hashes[kept], offsets[kept]
                yield hashes, offsets + np.uint32(self.shift)


class _Cursor:
    """The rows of an input that are in memory and not in the output yet."""

    def __init__(self, pieces: AsyncGenerator[tuple[Hashes, Offsets], None]) -> None:
        self._pieces = pieces
        self._next = asyncio.ensure_future(anext(pieces, None))
        self.hashes, self.offsets = _NOTHING
        self.is_end = False

    async def fill(self) -> None:
        """Read the next piece if none is left."""
        while not len(self.hashes) and not self.is_end:
            found = await self._next
            self.is_end = found is None
            self.hashes, self.offsets = found or _NOTHING
            if not self.is_end:
                self._next = asyncio.ensure_future(anext(self._pieces, None))

    async def aclose(self) -> None:
        """End the read that is under way."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._pieces.aclose()

    def take(self, stop: int) -> tuple[Hashes, Offsets]:
        """Take so many rows."""
        taken = self.hashes[:stop], self.offsets[:stop]
        self.hashes, self.offsets = self.hashes[stop:], self.offsets[stop:]
        return taken


async def _merged(parts: Sequence[_Input]) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
    async with AsyncExitStack() as stack:
        cursors = [await stack.enter_async_context(aclosing(_Cursor(part.rows()))) for part in parts]
        while True:
            for each in cursors:
                await each.fill()
            lasts = [each.hashes[-1] for each in cursors if len(each.hashes)]
            if not lasts:
                return
            bound = min(lasts)
            yield _sorted([each.take(int(np.searchsorted(each.hashes, bound))) for each in cursors])
            for each in cursors:
                # Rows of this one hash, which may go on in the next pieces of the input.
                while len(each.hashes) and each.hashes[0] == bound:
                    yield each.take(int(np.searchsorted(each.hashes, bound, side="right")))
                    await each.fill()


def _sorted(pieces: Sequence[tuple[Hashes, Offsets]]) -> tuple[Hashes, Offsets]:
    hashes = np.concatenate([found for found, _ in pieces])
    offsets = np.concatenate([found for _, found in pieces])
    # Stable: equal hashes stay in the order of the inputs, which is that of the offsets. The sort is fast,
    # because the pieces are sorted runs.
    order = np.argsort(hashes, kind="stable")
    return hashes[order], offsets[order]
