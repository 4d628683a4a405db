"""Writing a stream of a tier as the plugin's objects: fragments, then groups, then the root.

    stopped                left behind                        cured by
    before the root        objects that no root names         the same call again: it makes the same keys
    after the root         the finished stream                nothing: another call refuses it

UIDs are made of the stream's id, the kind and the offset, so a call that is repeated after a kill replaces
its own objects and makes no others. An id with other objects is refused before anything is written.

A fragment ends with the chunk that brings it to the wanted size, counted in bytes of whole chunks. Groups are
those that the plugin's own rebalancing would have made.

Invariants: whatever the root names exists; chunks are written as they are on the tier.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

import numpy as np

from offload.contracts.store import Body, Buffer, ObjectStore
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Misuse, NotOffloaded
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, EntryKind
from offload.read.reader import StreamReader
from offload_rabbitmq_s3.keys import RabbitmqKey, is_stream_id, stream_prefix
from offload_rabbitmq_s3.objects import (
    ENTRY,
    FRAGMENT_HEADER,
    RabbitmqEntries,
    RabbitmqManifest,
    encode_index,
    fragment_header,
    stored_entries,
)

__all__ = ["ExportedStream", "RabbitmqS3Export"]

FRAGMENT_TARGET_MAX: Final = 2**31
"""The largest fragment that is made. The plugin's own have 64 MiB, and an index addresses 4 GiB."""

UidOf = Callable[[EntryKind | None, int], int]
"""Returns the UID of the object of a kind that begins at an offset. The kind of a root is None."""


@dataclass(slots=True, kw_only=True)
class ExportedStream:
    """What an export wrote, and what RabbitMQ's metadata store would need."""

    root: RabbitmqKey | None = None
    first_offset: int = 0
    next_offset: int = 0
    fragments: int = 0
    groups: int = 0
    size_bytes: int = 0


def _silent(done: ExportedStream) -> None:
    """Show no progress."""


@dataclass(kw_only=True)
class RabbitmqS3Export:
    """One stream of a tier, on its way into a bucket. `epoch` is that of the newest chunk if it is None."""

    reader: StreamReader
    store: ObjectStore
    stream_id: str
    epoch: int | None = None
    fragment_size_bytes: int = 64 * 2**20
    branching: int = 1024
    uid_of: UidOf | None = None
    progress: Callable[[ExportedStream], None] = _silent
    done: ExportedStream = field(default_factory=ExportedStream)

    def __post_init__(self) -> None:
        if not is_stream_id(self.stream_id):
            raise Misuse(f"{self.stream_id!r} is no id of a stream: 1 to 255 of A-Z a-z 0-9 _ - =")
        if not 0 < self.fragment_size_bytes <= FRAGMENT_TARGET_MAX:
            raise Misuse(f"a fragment has 1 to {FRAGMENT_TARGET_MAX} bytes, not {self.fragment_size_bytes}")
        if self.branching < 2:
            raise Misuse(f"a group has 2 entries or more, not {self.branching}")
        if self.epoch is not None and not 0 <= self.epoch < 2**64:
            raise Misuse(f"an epoch is a number of 64 bits, not {self.epoch}")
        self._uid = self.uid_of or partial(_uid, self.stream_id)

    async def run(self) -> ExportedStream:
        """Write all objects, the root last.

        Raises `Misuse` if the id has objects of anybody else, and `NotOffloaded` if the stream is empty, or
        was trimmed meanwhile. Errors of the tier and of the store come through. The call can be repeated.
        """
        await self._refuse_others()
        fragments, newest_epoch = list[Entry](), 0
        async with aclosing(self._runs()) as runs:
            async for rows, chunks in runs:
                fragments.append(await self._put_fragment(rows, chunks))
                last = bytes(chunks[-1][-int(rows["size_bytes"][-1]) :][:48])
                newest_epoch = ChunkHeader.decode(last, where="last chunk").epoch
                self.progress(self.done)
        if not fragments:
            raise NotOffloaded(f"stream {self.reader.stream!r} is empty: there is nothing to export")
        entries = await self._grouped(stored_entries(fragments))
        await self._put_root(entries, fragments, newest_epoch if self.epoch is None else self.epoch)
        return self.done

    async def _refuse_others(self) -> None:
        async for row in self.store.list(stream_prefix(self.stream_id)):
            key = RabbitmqKey.parse(row.key)
            if key is None or key.kind is None or key.uid != self._uid(key.kind, key.number):
                raise Misuse(f"{self.store.url} has {row.key}: choose an id that has no objects")

    async def _runs(self) -> AsyncGenerator[tuple[ChunkTable, Sequence[Buffer]], None]:
        """Yield the chunks of each fragment: their rows, with places in a fragment, and their bytes."""
        rows, chunks, room = list[ChunkTable](), list[Buffer](), self.fragment_size_bytes
        reached = self.done.first_offset = self.reader.manifest.first_offset
        async with aclosing(self.reader.windows(reached)) as windows:
            async for window in windows:
                data, table = memoryview(window.data), window.rows
                starts = np.append(np.uint64(reached), table["offset"] + table["records"])
                if (starts[:-1] != table["offset"]).any():
                    raise NotOffloaded(f"stream {self.reader.stream!r} was trimmed: export it again")
                reached = int(starts[-1])
                ends, start, begin = np.cumsum(table["size_bytes"], dtype=np.uint64), 0, 0
                while start < len(table):
                    stop = min(int(np.searchsorted(ends, np.uint64(begin + room))) + 1, len(table))
                    end = int(ends[stop - 1])
                    rows.append(table[start:stop])
                    chunks.append(data[begin:end])
                    room -= end - begin
                    start, begin = stop, end
                    if room <= 0:
                        yield _placed(rows), chunks
                        rows, chunks, room = [], [], self.fragment_size_bytes
        if rows:
            yield _placed(rows), chunks
        self.done.next_offset = reached

    async def _put_fragment(self, rows: ChunkTable, chunks: Sequence[Buffer]) -> Entry:
        first_offset, size_bytes = int(rows["offset"][0]), int(rows["size_bytes"].sum())
        uid = self._uid(EntryKind.FRAGMENT, first_offset)
        parts: Sequence[Buffer] = (fragment_header(), *chunks, encode_index(rows))

        async def windows() -> AsyncIterator[Buffer]:
            for part in parts:
                yield part

        body = Body(size_bytes=sum(map(len, parts)), windows=windows)
        await self.store.put(str(RabbitmqKey(self.stream_id, EntryKind.FRAGMENT, first_offset, uid)), body)
        self.done.fragments += 1
        self.done.size_bytes += size_bytes
        return Entry(
            first_offset=first_offset,
            records=int(rows["records"].sum()),
            messages=int(rows["records"].sum()),
            first_timestamp_ms=int(rows["timestamp_ms"][0]),
            last_timestamp_ms=int(rows["timestamp_ms"][-1]),
            data_size_bytes=size_bytes,
            stored_size_bytes=size_bytes,
            ledger_id=first_offset,
            attempt=UUID(int=uid),
            checksum=0,
        )

    async def _grouped(self, entries: RabbitmqEntries) -> RabbitmqEntries:
        """Return the entries of the root. Each whole group of the oldest ones is uploaded."""
        above = entries[:0]
        for kind in (EntryKind.GROUP, EntryKind.KILO_GROUP, EntryKind.MEGA_GROUP):
            whole = len(entries) - len(entries) % self.branching
            groups = [
                await self._put_group(entries[at : at + self.branching], kind)
                for at in range(0, whole, self.branching)
            ]
            above, entries = _joined(entries[whole:], above), _joined(*groups)
        return _joined(entries, above)

    async def _put_group(self, members: RabbitmqEntries, kind: EntryKind) -> RabbitmqEntries:
        first_offset, first_ms = int(members["first_offset"][0]), int(members["first_timestamp_ms"][0])
        key = RabbitmqKey(self.stream_id, kind, first_offset, self._uid(kind, first_offset))
        group = RabbitmqManifest(
            kind=kind, first_offset=first_offset, first_timestamp_ms=first_ms, entries=members
        )
        await self.store.put(str(key), Body.of(group.encode()))
        self.done.groups += 1
        entry = members[:1].copy()
        entry["kind"], entry["uid"], entry["size_high"], entry["size_low"] = kind, key.uid, 0, 0
        entry["last_timestamp_ms"] = members["last_timestamp_ms"][-1]
        return entry

    async def _put_root(self, entries: RabbitmqEntries, fragments: Sequence[Entry], epoch: int) -> None:
        key = RabbitmqKey(self.stream_id, None, epoch, self._uid(None, self.done.next_offset))
        root = RabbitmqManifest(
            kind=EntryKind.FRAGMENT,
            first_offset=self.done.first_offset,
            next_offset=self.done.next_offset,
            first_timestamp_ms=fragments[0].first_timestamp_ms,
            first_last_timestamp_ms=fragments[0].last_timestamp_ms,
            total_size_bytes=sum(each.data_size_bytes for each in fragments),
            entries=entries,
        )
        await self.store.put(str(key), Body.of(root.encode()))
        self.done.root = key


def _joined(*runs: RabbitmqEntries) -> RabbitmqEntries:
    # `np.concatenate` would turn big-endian records into native ones.
    return np.frombuffer(b"".join(run.tobytes() for run in runs), ENTRY.dtype)


def _placed(rows: Sequence[ChunkTable]) -> ChunkTable:
    """Return rows of chunks as one table, with their places in a fragment."""
    table = np.concatenate(rows)
    table["position"] = np.cumsum(table["size_bytes"]) - table["size_bytes"]
    table["position"] += np.uint64(FRAGMENT_HEADER.size_bytes)
    return table


def _uid(stream_id: str, kind: EntryKind | None, offset: int) -> int:
    name = f"{stream_id} {'root' if kind is None else kind.name} {offset}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
