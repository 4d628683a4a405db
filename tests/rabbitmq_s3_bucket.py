"""A bucket as RabbitMQ's plugin writes it: fragments, groups, roots, and what its crashes leave.

It shares no code with the plugin of this project: its bytes are packed here, from the same documents.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from offload.contracts.store import Body, ObjectStore
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.tracking import ConsumerOffset
from offload.model.chunk_table import ChunkType
from offload.store.memory import MemoryStore

DATA: Final = Path(__file__).parent / "data" / "rabbitmq-s3"
MANIFEST: Final[dict[str, Any]] = json.loads((DATA / "MANIFEST.json").read_text())["buckets"]
STREAM: Final = "__orders_1795000000000000000"

CHUNK: Final = struct.Struct(">BBHIqQQIIIB3x")
ENTRY: Final = struct.Struct(">QqqBBII")
HEADER: Final = struct.Struct(">4sIQQqqBQ")
INDEX: Final = struct.Struct(">QqI")
KINDS: Final = ("fragment", "group", "kgroup", "mgroup")
MAGICS: Final = (b"OSIR", b"OSIG", b"OSIK", b"OSIM")


@dataclass(frozen=True, slots=True)
class Named:
    """An entry of a root or a group."""

    offset: int
    first_ms: int
    last_ms: int
    kind: int
    size: int
    uid: int

    def pack(self) -> bytes:
        high, low = divmod(self.size, 2**32)
        return ENTRY.pack(self.offset, self.first_ms, self.last_ms, self.kind, high, low, self.uid)


def header_of(chunk: bytes) -> tuple[int, int, int]:
    """Return the offset, the next offset and the time of a chunk."""
    _, _, _, records, time_ms, _, offset, *_ = CHUNK.unpack_from(chunk)
    return offset, offset + records, time_ms


def fragment_of(chunks: Sequence[bytes]) -> bytes:
    """Return a fragment with these chunks."""
    index, at = [], 0
    for chunk in chunks:
        offset, _, time_ms = header_of(chunk)
        index.append(INDEX.pack(offset, time_ms, at))
        at += len(chunk)
    return b"".join((b"OSIF", struct.pack(">I", 1), *chunks, *index))


def manifest_of(
    kind: int, entries: Sequence[Named], numbers: Sequence[int] = (0, 0, 0), first: int = -1
) -> bytes:
    """Return a root (kind 0) or a group. `numbers` are next offset, time and total size."""
    behind, last_ms, total = numbers
    begin = entries[0] if entries else Named(0, -1, -1, 0, 0, 0)
    high, low = divmod(total, 2**64)
    offset = begin.offset if first < 0 else first
    head = HEADER.pack(MAGICS[kind], 1, offset, behind, begin.first_ms, last_ms, high, low)
    return head + b"".join(each.pack() for each in entries)


@dataclass
class Bucket:
    """One stream of a bucket, and the broker that leads it. `chunks` is what the newest root has."""

    store: ObjectStore = field(default_factory=MemoryStore)
    stream: str = STREAM
    epoch: int = 1
    branching: int = 3
    chunks: list[bytes] = field(default_factory=list)
    entries: list[Named] = field(default_factory=list)
    groups: dict[int, list[Named]] = field(default_factory=dict)
    """The members of each group, by its UID."""

    first: int = 0
    next: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def prefix(self) -> str:
        return f"rabbitmq/stream/{self.stream}/"

    async def put(self, name: str, data: bytes) -> str:
        key = self.prefix + name
        await self.store.put(key, Body.of(data))
        return key

    def chunk(self, bodies: Sequence[bytes], *, offset: int, time_ms: int) -> bytes:
        """Return a chunk of messages, or a tracking chunk if there is none."""
        if bodies:
            return build_chunk([*bodies], offset=offset, timestamp_ms=time_ms, epoch=self.epoch)
        return build_tracking_chunk(
            [ConsumerOffset(name=b"reader", offset=offset)],
            chunk_type=ChunkType.TRACKING_DELTA,
            offset=offset,
            timestamp_ms=time_ms,
            epoch=self.epoch,
        )

    async def upload(self, chunks: Sequence[bytes]) -> Named:
        """Upload a fragment that no root names yet."""
        uid = self.random.getrandbits(32)
        offset, _, first_ms = header_of(chunks[0])
        last_ms = header_of(chunks[-1])[2]
        await self.put(f"data/{offset:020d}.{uid:08x}.fragment", fragment_of(chunks))
        return Named(offset, first_ms, last_ms, 0, sum(map(len, chunks)), uid)

    async def append(self, *runs: Sequence[bytes]) -> None:
        """Upload a fragment for each run of chunks, rebalance, and persist."""
        for chunks in runs:
            self.entries.append(await self.upload(chunks))
            self.chunks += chunks
            self.next = header_of(chunks[-1])[1]
        await self.rebalance()
        await self.persist()

    async def rebalance(self) -> None:
        """Put the oldest entries of a run of equal kind into a group, for as long as a run is long enough."""
        kind = 0
        while kind < 3:
            run = [each for each in self.entries if each.kind == kind]
            if len(run) < self.branching:
                kind += 1
                continue
            members, uid = run[: self.branching], self.random.getrandbits(32)
            await self.put(
                f"metadata/{members[0].offset:020d}.{uid:08x}.{KINDS[kind + 1]}",
                manifest_of(kind + 1, members),
            )
            at = self.entries.index(members[0])
            group = Named(members[0].offset, members[0].first_ms, members[-1].last_ms, kind + 1, 0, uid)
            self.entries[at : at + len(members)] = [group]
            self.groups[uid] = members

    def fragments(self) -> list[Named]:
        """Return the fragments that the root names and that are not trimmed."""
        return [each for each in self._below(self.entries) if each.offset >= self.first]

    def _below(self, entries: Iterable[Named]) -> Iterable[Named]:
        for each in entries:
            if each.kind:
                yield from self._below(self.groups[each.uid])
            else:
                yield each

    def root(self) -> bytes:
        live = self.fragments()
        last_ms, total = (live[0].last_ms, sum(each.size for each in live)) if live else (-1, 0)
        raw = manifest_of(0, self.entries, (self.next, last_ms, total), self.first)
        first_ms = live[0].first_ms if live else -1
        return raw[:24] + struct.pack(">q", first_ms) + raw[32:]

    async def persist(self) -> str:
        """Put a new root. The older ones stay, as the plugin leaves them."""
        uid = self.random.getrandbits(32)
        return await self.put(f"metadata/root.{self.epoch}.{uid:08x}.manifest", self.root())

    async def trim(self, count: int) -> None:
        """Drop the oldest fragments, as the plugin's retention does: entries that lose all of them go too."""
        gone, kept = self.fragments()[:count], self.fragments()[count:]
        self.first = kept[0].offset if kept else self.next
        ends = [each.offset for each in self.entries[1:]] + [self.next]
        self.entries = [each for each, end in zip(self.entries, ends, strict=True) if end > self.first]
        self.chunks = [chunk for chunk in self.chunks if header_of(chunk)[0] >= self.first]
        await self.persist()
        await self.store.delete(
            [f"{self.prefix}data/{each.offset:020d}.{each.uid:08x}.fragment" for each in gone]
        )

    def messages(self, chunks: int, *, records: int = 2, time_ms: int = 1000) -> list[bytes]:
        """Return chunks that continue the stream. Each third one is a tracking chunk."""
        made, offset = [], self.next
        for number in range(chunks):
            bodies = [
                b"%d|" % (offset + n) + b"x" * (offset % 13) for n in range(records * (number % 3 != 2))
            ]
            made.append(self.chunk(bodies, offset=offset, time_ms=time_ms + offset))
            offset = header_of(made[-1])[1]
        return made


def bodies_of(chunks: Iterable[bytes]) -> list[bytes]:
    """Return the messages of chunks that hold plain entries."""
    found = []
    for chunk in chunks:
        _, kind, count, _, _, _, _, _, _, _, filtered = CHUNK.unpack_from(chunk)
        at = CHUNK.size + filtered
        for _ in range(count if kind == 0 else 0):
            (size,) = struct.unpack_from(">I", chunk, at)
            found.append(chunk[at + 4 : at + 4 + size])
            at += 4 + size
    return found
