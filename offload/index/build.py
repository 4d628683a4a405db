"""Building index objects: the terms of committed records, read through a view, sorted, and stored.

    rows of one object    at most `BUILT_ROWS_MAX`, and those of one more window of the reader
    offsets of one        at most `BUILT_RECORDS_MAX`, and those of one more window

An object is stored when it is full, and so a build that is killed keeps what it stored: the next one goes on
behind it. The name of an object has the version of the root that was loaded before its records were read.

Terms are found and rows are sorted in a thread: `offload run` copies streams on the same event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from offload.contracts.decoder import Decoder
from offload.contracts.store import Body, ObjectStore
from offload.formats.index_object import HASH_BITS, Hashes, IndexWriter
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.records import RecordRun
from offload.ground.env import Env
from offload.ground.errors import OffloadError
from offload.index.terms import TERM_RULES_VERSION, Spec, hashes
from offload.model.manifest import CommittedStream
from offload.model.record_columns import ByteColumn, RecordBytes
from offload.read.reader import StreamReader

__all__ = ["Built", "build_range", "index_folder_of", "term_hashes"]

BUILT_ROWS_MAX: Final = 2**20
BUILT_RECORDS_MAX: Final = 2**22


@dataclass(frozen=True, slots=True)
class Built:
    """An index object that was stored."""

    name: IndexName
    rows: int
    size_bytes: int


def index_folder_of(stream: str, spec: Spec) -> str:
    """Return the folder of a stream's index objects for a SPEC, under the present term rules."""
    return StreamKeys(stream).index_folder(str(spec), TERM_RULES_VERSION)


def term_hashes(terms: ByteColumn) -> Hashes:
    """Return the hash of each term as rows have it."""
    return hashes(terms) >> np.uint64(64 - HASH_BITS)


async def build_range(
    store: ObjectStore,
    reader: StreamReader,
    spec: Spec,
    decoder: Decoder,
    *,
    begin: int,
    end: int,
    env: Env,
) -> AsyncGenerator[Built, None]:
    """Index the committed offsets in [begin, end) of the reader's part. Yield each object once it is stored.

    Close the generator. Raises what reading raises: the records before damage are indexed first.
    """
    rows = _Rows(reader.manifest, index_folder_of(reader.manifest.stream, spec), begin)
    damage: OffloadError | None = None
    async with aclosing(reader.runs_here(begin, until=end)) as runs:
        while True:
            try:
                each = await anext(runs, None)
            except OffloadError as error:
                each, damage = None, error
            if each is None:
                break
            await asyncio.to_thread(rows.add, each.run.between(begin, end), spec, decoder)
            if rows.is_full:
                yield await rows.stored(store, env)
    if damage is None:
        rows.next_offset = end
    if rows.next_offset > rows.first_offset:
        yield await rows.stored(store, env)
    if damage is not None:
        raise damage


@dataclass(slots=True)
class _Rows:
    """The rows of the object that is being made."""

    committed: CommittedStream
    folder: str
    first_offset: int
    next_offset: int = field(init=False)
    count: int = 0
    hashes: list[Hashes] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next_offset = self.first_offset

    @property
    def is_full(self) -> bool:
        return self.count >= BUILT_ROWS_MAX or self.next_offset - self.first_offset >= BUILT_RECORDS_MAX

    def add(self, run: RecordRun, spec: Spec, decoder: Decoder) -> None:
        """Add the terms of a run of records."""
        found = spec.terms(decoder, RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes))
        self.hashes.append(term_hashes(found.values))
        self.offsets.append((run.offsets[found.rows] - np.uint64(self.first_offset)).astype(np.uint32))
        self.count += len(found.rows)
        self.next_offset = int(run.offsets[-1]) + 1

    async def stored(self, store: ObjectStore, env: Env) -> Built:
        """Store the object, and begin the next one behind it."""
        root = self.committed
        name = IndexName(
            self.folder, self.first_offset, self.next_offset, root.version, root.incarnation, env.uuid()
        )
        raw, count = await asyncio.to_thread(self._made, name)
        await store.put(StreamKeys(root.stream).index(name), Body.of(raw))
        self.first_offset, self.count = self.next_offset, 0
        self.hashes, self.offsets = [], []
        return Built(name, count, len(raw))

    def _made(self, name: IndexName) -> tuple[bytes, int]:
        """Return the bytes of the object, and the number of its rows."""
        found = np.concatenate([np.zeros(0, np.uint64), *self.hashes])
        offsets = np.concatenate([np.zeros(0, np.uint32), *self.offsets])
        order = np.lexsort((offsets, found))
        found, offsets = found[order], offsets[order]
        # A record may have a term twice, and two of its terms may have one hash.
        fresh = np.ones(len(found), np.bool_)
        fresh[1:] = (found[1:] != found[:-1]) | (offsets[1:] != offsets[:-1])
        found, offsets = found[fresh], offsets[fresh]
        writer = IndexWriter(self.committed.stream, name, len(found))
        return writer.rows(found, offsets) + writer.end(), len(found)
