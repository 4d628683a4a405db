"""Indexes: CPU of a build and of a merge, bytes of a term, and requests of a cold find.

    python benchmarks/find.py [--messages 400000] [--rows 524288] [--fragments 1000 100000] [--folder DIR]

    build        AMQP messages of 1 KB in a folder, by message id, with reading. `to_batches` reads the same
                 messages, and decodes them to the column of properties, without an index
    size         bytes of a term. Parquet has the same rows, sorted: hash and offset, with zstd, in groups of
                 65,536 rows
    merge        eight objects of so many rows become one, in memory
    cold find    a process that opens the tier and finds one record. The stream has made-up fragments
                 (`made_stream`). Its index objects are those of fragments of 65,536 records that came singly,
                 and are made when they are read. Bytes are those of indexes. For Parquet, pyarrow filters one
                 file by the hash

CPU is that of this process, the least of three rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from amqp import lone, typical
from machine import processor
from made_stream import RECORDS, STREAM, Scene
from offload_rabbitmq.decoder import AmqpDecoder

import offload
from offload import MemoryHandle, StreamWriter, open_tier
from offload.contracts.decoder import Decoded, Decoder
from offload.contracts.store import Buffer, Listed, ObjectStore, Span, Suffix
from offload.formats import index_object
from offload.formats.checksums import crc32c
from offload.formats.chunk_writer import build_chunk
from offload.formats.index_object import INDEX_BUCKET, ROW_SIZE_BYTES, IndexShape, IndexWriter
from offload.formats.keys import IndexName, StreamKeys
from offload.ground.env import Env
from offload.index.build import index_folder_of, term_hashes
from offload.index.find import FindReport, find
from offload.index.job import index
from offload.index.merge import merge
from offload.index.objects import IndexObject
from offload.index.terms import Spec
from offload.model.manifest import Manifest
from offload.model.record_columns import ByteColumn
from offload.native.offloader import ObjectStoreOffloader
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator

ROUNDS: Final = 3
CHUNK_RECORDS: Final = 500
LEDGER_RECORDS: Final = 50_000
FRAGMENT_RECORDS: Final = 65_536
OBJECTS_OF: Final = [8**digit for digit in range(5, -1, -1)]
"""How many fragments the objects of each size class cover, the largest first."""
BY_ID: Final = Spec.parse("amqp:properties.message_id")
BY_BODY: Final = Spec.parse("plain:key")


def main() -> None:
    """Parse arguments, measure, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rows", type=int, default=2**19)
    parser.add_argument("--fragments", type=int, nargs="+", default=[10**3, 10**5])
    parser.add_argument("--folder", type=Path, default=None, help="folder for the tier")
    arguments = parser.parse_args()
    print(f"{processor()}\n\n| job | CPU seconds | per CPU second | bytes a term |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        asyncio.run(_build(f"{folder}/tier", arguments.messages))
    asyncio.run(_merge(arguments.rows))
    print("\n| fragments | index objects | requests | of indexes | bytes of indexes |\n|---|---|---|---|---|")
    for fragments in arguments.fragments:
        asyncio.run(_cold_find(fragments))
    _parquet_lookup(min(max(arguments.fragments), 1000) * FRAGMENT_RECORDS // 16)


async def _build(url: str, messages: int) -> None:
    async with open_tier(url) as tier:
        writer = await StreamWriter.claim(tier, "orders")
        for begin in range(0, messages, LEDGER_RECORDS):
            ledger = [
                build_chunk(
                    [_message(each) for each in range(first, first + CHUNK_RECORDS)],
                    offset=first,
                    timestamp_ms=first,
                    epoch=1,
                )
                for first in range(begin, min(begin + LEDGER_RECORDS, messages), CHUNK_RECORDS)
            ]
            await writer.offload([MemoryHandle(ledger)])
        taken = list[float]()
        for _ in range(ROUNDS):
            keys = [row.key async for row in tier.store.list(StreamKeys("orders").indexes)]
            await tier.store.delete(keys)
            began = time.process_time()
            async for report in index(tier, "orders", BY_ID, AmqpDecoder()):
                size = report.size_bytes / report.rows
            taken.append(time.process_time() - began)
        print(f"| build | {min(taken):.2f} | {messages / min(taken):,.0f} records | {size:.2f} |")
    stream = offload.open(url)["orders"]
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in stream.to_batches(columns=["offset", "properties"], decode="amqp"):
            pass
        taken.append(time.process_time() - began)
    print(f"| to_batches, properties | {min(taken):.2f} | {messages / min(taken):,.0f} records | |")
    print(f"| Parquet, the same rows | | | {len(_parquet(messages).getvalue()) / messages:.2f} |")


def _message(number: int) -> bytes:
    """Return an AMQP message of 1 KB, as a broker stores it."""
    head = typical(number).removesuffix(lone(number))
    pad = b"x" * (1024 - len(head) - 8)
    return head + b"\0Su\xb0" + len(pad).to_bytes(4, "big") + pad


def _rows(count: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    hashes = np.sort(random.integers(0, 2**48, count, np.uint64))
    return hashes, random.permutation(count).astype(np.uint32)


def _parquet(count: int) -> io.BytesIO:
    hashes, offsets = _rows(count, 1)
    file = io.BytesIO()
    table = pa.table({"hash": hashes, "offset": offsets})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, row_group_size=2**16)
    file.seek(0)
    return file


async def _merge(count: int) -> None:
    scene = await Scene.grown(1)
    root, store, inputs = scene.manifest, MemoryStore(), list[IndexObject]()
    assert root is not None
    for number in range(8):
        name = _name(root, number * count, (number + 1) * count)
        writer = IndexWriter(STREAM, name, count)
        raw = writer.rows(*_rows(count, number)) + writer.end()
        store.objects[StreamKeys(STREAM).index(name)] = raw
        inputs.append(IndexObject(store, STREAM, name, len(raw)))
    taken = list[float]()
    for _ in range(ROUNDS):
        began = time.process_time()
        await merge(store, inputs, root, env=Env())
        taken.append(time.process_time() - began)
    print(f"| merge of 8 | {min(taken):.2f} | {8 * count / min(taken):,.0f} rows | |")


def _name(root: Manifest, first: int, following: int) -> IndexName:
    folder = index_folder_of(STREAM, BY_BODY)
    return IndexName(folder, first, following, root.version, root.incarnation, UUID(int=first + 1))


class Plain(Decoder):
    """A decoder of records that are their own keys."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the records."""
        return [*records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return the records, without sections."""
        return [Decoded(record, {}) for record in records]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the records."""
        return [*records]


class MadeIndexes(StoreDecorator):
    """A store with the index objects of so many fragments. A part of one is made when it is read."""

    def __init__(self, inner: ObjectStore, root: Manifest, fragments: int) -> None:
        super().__init__(inner)
        self._names, at = dict[str, tuple[IndexName, IndexShape]](), 0
        for size in OBJECTS_OF:
            while fragments - at >= size:
                name = _name(root, at * RECORDS, (at + size) * RECORDS)
                self._names[StreamKeys(STREAM).index(name)] = name, IndexShape(size * FRAGMENT_RECORDS)
                at += size
        self.wanted = self.offset = 0

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Show the index objects, or what the inner store shows."""
        if "/index/" not in prefix:
            async for row in self.inner.list(prefix, after=after):
                yield row
            return
        for key, (_, shape) in sorted(self._names.items()):
            yield Listed(key, shape.size_bytes)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Make a part of an index object, or read an object of the inner store."""
        if key not in self._names:
            return await self.inner.get(key, span)
        name, shape = self._names[key]
        assert isinstance(span, Span)
        directory = shape.rows * ROW_SIZE_BYTES
        if span.start < directory:
            return self._bucket(name, shape, span.start // ROW_SIZE_BYTES * shape.buckets // shape.rows)
        first = (span.start - directory) // INDEX_BUCKET.size_bytes
        count, raw = span.length // INDEX_BUCKET.size_bytes, b""
        for number in range(first, first + count):
            begin = number * shape.rows // shape.buckets
            checksum = crc32c(self._bucket(name, shape, number))
            head = begin.to_bytes(8, "big") + checksum.to_bytes(4, "big")
            own = index_object._entry_checksum(index_object._salt(key), number, head)
            raw += head + own.to_bytes(4, "big")
        return raw

    def _bucket(self, name: IndexName, shape: IndexShape, number: int) -> bytes:
        begin, end = (each * shape.rows // shape.buckets for each in (number, number + 1))
        random = np.random.default_rng(number)
        width = 2**48 // shape.buckets
        hashes = number * width + np.sort(random.integers(0, width, end - begin, np.uint64))
        offsets = random.integers(0, name.records, end - begin, np.uint32)
        if shape.bucket_of(self.wanted) == number and name.first_offset <= self.offset < name.next_offset:
            row = min(int(np.searchsorted(hashes, self.wanted)), len(hashes) - 1)
            hashes[row], offsets[row] = self.wanted, self.offset - name.first_offset
        return bytes(index_object._joined(hashes, offsets))


async def _cold_find(fragments: int) -> None:
    scene = await Scene.grown(fragments)
    root = await ObjectStoreOffloader(scene.fork()).load_manifest(STREAM)
    most = requests = size = objects = 0
    for offset in np.random.default_rng(1).integers(0, fragments * RECORDS, 10).tolist():
        made = MadeIndexes(scene.fork(), root, fragments)
        term = b"%020d" % offset
        made.wanted, made.offset = int(term_hashes(ByteColumn.of([term]))[0]), offset
        store, report = FaultyStore(made), FindReport()
        tier = ObjectStoreOffloader(store)
        found = find(tier, STREAM, [term], by=BY_BODY, decoder=Plain(), report=report)
        assert [each.run.offsets.tolist() async for each in found] == [[offset]]
        assert not report.scanned
        most, objects = max(most, len(store.calls)), report.objects
        requests, size = max(requests, report.requests), max(size, report.bytes)
    print(f"| {fragments:,} | {objects} | {most} | {requests} | {size:,} |")


class Counting(io.BufferedIOBase):
    """A file in memory that counts the reads and their bytes."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file, self.requests, self.bytes = file, 0, 0

    def read(self, size: int | None = -1) -> bytes:
        """Read, and count."""
        raw = self._file.read(size)
        self.requests += 1
        self.bytes += len(raw)
        return raw

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Say that it can seek."""
        return True

    def readable(self) -> bool:
        """Say that it can be read."""
        return True


def _parquet_lookup(count: int) -> None:
    """Look one hash up in one Parquet file."""
    wanted = int(_rows(count, 1)[0][count // 2])
    file = Counting(_parquet(count))
    found = pq.read_table(pa.PythonFile(file, "r"), filters=[("hash", "=", wanted)])
    assert len(found)
    print(
        f"\nParquet, one file of {count:,} rows: {file.requests} requests, {file.bytes:,} bytes for one hash"
    )


if __name__ == "__main__":
    main()
