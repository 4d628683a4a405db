"""A tier with one stream of made-up entries, as long as a benchmark asks for.

The real code commits the entries. A fragment's object is made when it is read, so that a stream of millions
of fragments takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final
from uuid import UUID

from tally import Bucket, TallyStore

from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.compression import Compression
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.fragment_writer import FragmentWriter
from offload.native.offloader import ObjectStoreOffloader

STREAM: Final = "stream"
KEYS: Final = StreamKeys(STREAM)
WRITER, ATTEMPT, DROPPED = UUID(int=1), UUID(int=2), UUID(int=3)
RECORDS: Final = 4
FRAGMENTS_PER_LEDGER: Final = 8
BATCH: Final = 1024
ROOTS_LEFT: Final = 16
LISTED_FRAGMENTS_MAX: Final = 10**6
"""The longest stream whose fragments are in the listing. Verify, which lists them, runs only up to here."""


def chunk(offset: int, records: int = RECORDS, padding: bytes = b"") -> bytes:
    """Return the chunk that begins at this offset. All chunks with the same records have the same size."""
    bodies = [b"%020d" % each + padding for each in range(offset, offset + records)]
    return build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1)


class Ledger(ReadHandle):
    """A ledger of generated chunks, held in memory."""

    def __init__(self, first_offset: int, chunks: int, records: int = RECORDS, padding: bytes = b"") -> None:
        self._first, self._next = first_offset, first_offset + chunks * records
        starts = range(first_offset, self._next, records)
        self._raw = b"".join(chunk(offset, records, padding) for offset in starts)
        self._table = scan(self._raw, where=self.where)

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._first

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self._first

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return self._next

    @property
    def where(self) -> str:
        """The name of the ledger in messages."""
        return f"generated ledger {self._first}"

    async def table(self) -> ChunkTable:
        """Return the table: one row for each chunk."""
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        """Return the stored chunks of `rows`."""
        start = int(rows["position"][0])
        return self._raw[start : start + int(rows["size_bytes"].sum())]


class Scene:
    """A tier with one stream of made-up entries. Each operation begins with a copy of it."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.manifest: Manifest | None = None
        self._sample: Entry | None = None

    @classmethod
    async def grown(cls, fragments: int, *, garbage: int = 0) -> Scene:
        """Return a stream with so many fragments, and `garbage` ones of dropped attempts between them."""
        scene = cls()
        await ObjectStoreOffloader(scene.bucket).open(create=True)
        log = RootLog(store=scene.bucket, stream=STREAM, env=Env())
        claim = Claim(stream=STREAM, writer=WRITER, first_offset=0)
        base = await ObjectStoreOffloader(scene.bucket).commit_manifest(
            STREAM, claim, base=None, committer=WRITER
        )
        prepare = Prepare(writer=WRITER, attempts=[(ATTEMPT, 0)])
        scene.manifest = base = await log.commit(prepare, base=base, committer=WRITER)
        await scene._sample_fragment()
        for start in range(0, fragments, BATCH):
            entries = list(scene.entries(start, min(BATCH, fragments - start)))
            finished = frozenset({ATTEMPT} if start + BATCH >= fragments else ())
            append = Append(writer=WRITER, entries=entries, finished=finished)
            base = await log.commit(append, base=base, committer=WRITER)
            if base.version % 128 == 0:
                await scene._drop_old_roots(base.version)
        await scene._drop_old_roots(base.version)
        scene.bucket.make = scene._make
        if fragments <= LISTED_FRAGMENTS_MAX:
            keys = [KEYS.fragment(number * RECORDS, ATTEMPT) for number in range(fragments)]
            each = max(fragments // garbage, 1) if garbage else 0
            keys += [KEYS.fragment(number * each * RECORDS, DROPPED) for number in range(garbage)]
            scene.bucket.add_made(keys)
        scene.fragments = fragments
        return scene

    fragments: int

    def fork(self) -> TallyStore:
        """Return a copy of the tier, as a new process finds it. Changes to it do not affect others."""
        return TallyStore(self.bucket.fork())

    async def make_all(self, fragments: int) -> None:
        """Make the objects of the first `fragments` now, and not when they are read."""
        for number in range(fragments):
            key = KEYS.fragment(number * RECORDS, ATTEMPT)
            data = await self._make(key)
            assert data is not None
            self.bucket.objects[key] = data

    async def _sample_fragment(self) -> None:
        writer = self._writer(0)
        data = b"".join([window async for window in writer.body().windows()])
        self._sample, self.bucket.made_size_bytes = writer.entry, len(data)

    def _writer(self, first_offset: int) -> FragmentWriter:
        assert self.manifest is not None
        ledger = Ledger(first_offset, 1)
        ledger_id = first_offset // RECORDS // FRAGMENTS_PER_LEDGER
        return FragmentWriter(
            handle=ledger,
            rows=scan(chunk(first_offset), where=ledger.where),
            attempt=Attempt(stream=STREAM, ledger_id=ledger_id, uid=ATTEMPT),
            manifest=self.manifest,
            metadata={},
            compression=Compression(),
            turns=nullcontext(),
        )

    async def _make(self, key: str) -> bytes | None:
        parsed = KEYS.parse_fragment(key)
        if parsed is None or parsed[1] != ATTEMPT:
            return None
        return b"".join([window async for window in self._writer(parsed[0]).body().windows()])

    def entries(self, start: int, count: int) -> Iterator[Entry]:
        """Yield the entries of so many fragments, from number `start` on."""
        assert self._sample is not None
        for number in range(start, start + count):
            yield Entry(
                first_offset=number * RECORDS,
                records=RECORDS,
                messages=RECORDS,
                first_timestamp_ms=number * RECORDS,
                last_timestamp_ms=number * RECORDS,
                data_size_bytes=self._sample.data_size_bytes,
                stored_size_bytes=self._sample.stored_size_bytes,
                ledger_id=number // FRAGMENTS_PER_LEDGER,
                attempt=ATTEMPT,
                checksum=number % 2**32,
                tail_size_bytes=self._sample.tail_size_bytes,
            )

    async def _drop_old_roots(self, version: int) -> None:
        roots = [row.key async for row in self.bucket.list(KEYS.roots)]
        await self.bucket.delete([key for key in roots if key < KEYS.root(version - ROOTS_LEFT + 1)])
