"""Bugs of compressed data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Corrupt
from offload.model.attempt import Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Around, CodedHandles
from offload_conformance.bugs.registry import bug


class _OfBlocks(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        table = await self.table()
        before = table[max(int(np.searchsorted(table["offset"], rows["offset"][0])) - 1, 0) :][:1]
        whole = await super().read(np.concatenate((before, rows)) if before != rows[:1] else rows)
        return whole[: int(rows["size_bytes"].sum())]


@bug("contract/coded_reads_are_verbatim")
class ReadsFromTheBlocksStart(CodedHandles):
    """Returns the beginning of a decompressed block, whatever chunk of it was asked for.

    The position within the block is forgotten. Reads that begin with a block are right.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _OfBlocks.around(handle) if entry.codec else handle


@bug("contract/codings_mix_in_a_stream")
class ReadsWithItsOwnCodec(CodedHandles):
    """Decompresses with the codec of its own options, and not with that of the fragment.

    It works as long as nobody changes the options.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        if vars(self).setdefault("codec", entry.codec) != entry.codec:
            raise Corrupt("block", handle.where, expected="a frame of this codec", found="another one")
        return handle


@bug("contract/codings_mix_in_a_stream")
class CountsStoredSizes(ObjectStoreOffloader):
    """Counts what is stored as the size of the data.

    So a limit of retention means another history for each codec.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        receipt = await super().offload(*args, **options)
        entries = [replace(entry, data_size_bytes=entry.stored_size_bytes) for entry in receipt.entries]
        return replace(receipt, entries=entries)


class _PlainPositions(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as exc:
            raise exc.within(exc.where, offset=int((await self.table())["size_bytes"].sum())) from exc


@bug("contract/coded_damage_is_an_error")
class NamesPlainPositions(CodedHandles):
    """Names the position of damage as if nothing were compressed, which may be behind the object's end.

    Nobody finds the damaged bytes there.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _PlainPositions.around(handle) if entry.codec else handle


class _RawErrors(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as exc:
            raise RuntimeError("LZ4F_decompress failed with code: ERROR_frameType_unknown") from exc


@bug("contract/coded_damage_is_an_error")
class RaisesTheErrorsOfTheLibrary(CodedHandles):
    """Raises the error of the library that decompresses.

    Readers expect `Corrupt`, and stop with a traceback instead.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _RawErrors.around(handle) if entry.codec else handle


class _Whole(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        table = await self.table()
        first = int(np.searchsorted(table["offset"], rows["offset"][0]))
        start = int(table["size_bytes"][:first].sum())
        whole = await super().read(table)
        return whole[start : start + int(rows["size_bytes"].sum())]


@bug("contract/coded_reads_are_bounded")
class DecompressesWholeFragments(CodedHandles):
    """Fetches and decompresses the whole fragment for every read.

    A fragment is one frame of the codec, so its middle cannot be read alone.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Whole.around(handle) if entry.codec else handle
