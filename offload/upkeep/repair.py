"""Repairing a stream: damaged and lost fragments are replaced by the same records from another place.

The place is the broker's files, or another tier. A fragment takes these steps:

    find       verify the stream; each damage of a fragment that the manifest names is one to repair
    fetch      read the records at the other place; the checksum of each chunk is checked
    compare    they must be the records that the manifest promises
    announce   a copy of the fragment, by one commit
    upload     the copy, and read it back whole
    replace    put it where the damaged fragment was, by one commit

    stopped             left behind                    cured by
    before announce     nothing                        nothing to cure
    before replace      a copy of an attempt that runs the next repair drops it, then the sweep
    after it            the damaged object             the sweep

Invariants:

- Nothing is changed unless the comparison has passed.
- A fragment whose index can be read is compared chunk by chunk: offset, time, size, number of records, type,
  and the checksum of all bytes, with which the leader epoch is compared too.
- For any other fragment the manifest knows the offsets, messages, bytes and times. Beside these, the other
  place must have the chunk behind it that the tier has there, or else the chunk before it. A chunk that is in
  two logs with the same epoch, time and CRC has the same records before it in both. So the chunk behind is a
  proof; the chunk before only shows that the two logs were one until there.
- An encrypted fragment is never replaced by a plain one.

Memory: the chunks of one fragment. Docs: docs/adr/0015-replacing-fragments.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import numpy.typing as npt

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot, Source
from offload.contracts.store import Buffer
from offload.copy.history import check_chunk
from offload.formats.chunk_check import check_source
from offload.formats.fragment import FragmentTail
from offload.formats.keys import StreamKeys, escape
from offload.ground.errors import (
    Corrupt,
    Denied,
    Diverged,
    Divergence,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
)
from offload.model.attempt import Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.fragment_reader import load_tail
from offload.native.key_ring import unlocked
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader
from offload.parts.whole_stream import WholeStream, part_named
from offload.upkeep.copy.runs import snapshot_of
from offload.upkeep.copy.transfer import read_back
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify
from offload.write.job import Job

__all__ = ["Compared", "Elsewhere", "RepairedFragment", "of_source", "of_tier", "repair_stream"]


COLUMNS: Final = ("offset", "timestamp_ms", "size_bytes", "records", "type")
"""The columns of a chunk table that do not depend on where the chunks are stored."""


class Compared(StrEnum):
    """How the records were compared with those that the manifest promises, from strong to weak."""

    INDEX = "index"
    """Each chunk, with the damaged fragment's own index."""
    CHUNK_BEHIND = "chunk-behind"
    """The totals, and the chunk behind the fragment."""
    CHUNK_BEFORE = "chunk-before"
    """The totals, and the chunk before the fragment: nothing behind it can be compared."""
    TOTALS = "totals"
    """The totals alone: the stream has no other fragment that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedFragment:
    """A damaged object, and what became of it."""

    stream: str
    key: str
    damage: Corrupt
    first_offset: int | None = None
    """The first offset of the fragment. None if the object is no fragment that the manifest names."""
    next_offset: int | None = None
    compared: Compared | None = None
    """How its records were compared. None if they were not, or differ."""
    copy: str | None = None
    """The key of the copy that replaces it. None after an error, and in a dry run."""
    error: OffloadError | None = None
    """The reason why it was not repaired. It is as it was then."""

    def as_json(self) -> dict[str, object]:
        """Return a line of `offload repair --json`."""
        return {
            "stream": self.stream,
            "object": self.key,
            "damage": str(self.damage),
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "compared": None if self.compared is None else self.compared.value,
            "copy": self.copy,
            "error": None if self.error is None else str(self.error),
        }


Elsewhere = Callable[[str, str, range], Awaitable[Snapshot]]
"""Returns what the other place has of a part of a stream: at least what it has of these offsets.

It takes the names of the stream and of the part. The caller closes the snapshot.
"""


def of_source(source: Source) -> Elsewhere:
    """Return the records of a broker's files."""

    async def records(stream: str, part: str, offsets: range) -> Snapshot:
        return await (await source.stream(stream)).snapshot()

    return records


def of_tier(tier: LedgerOffloader) -> Elsewhere:
    """Return the records of another tier, whose parts have the same names."""

    async def records(stream: str, part: str, offsets: range) -> Snapshot:
        manifest = await tier.load_manifest(part)
        return await snapshot_of(tier, manifest, since=offsets.start, until=offsets.stop)

    return records


async def repair_stream(
    offloader: LedgerOffloader,
    stream: str,
    records: Elsewhere,
    *,
    level: VerifyLevel = VerifyLevel.BYTES,
    dry_run: bool = False,
    progress: Callable[[VerifyReport], None] = lambda report: None,
) -> AsyncIterator[RepairedFragment]:
    """Replace the damaged and lost fragments of a stream and of its parts, and yield each damage.

    `level` is that of the verify which finds them. With `dry_run`, nothing is announced or stored. The
    offloader's own fragment size must be at least that of any fragment. Readers and writers continue
    meanwhile. After a kill, call it again.

    A fragment that cannot be repaired is yielded with its error, and stays as it was:

    - `NotOffloaded` if the other place lacks its records, or if the damaged object is no fragment;
    - `Diverged` if the records there are others;
    - `Corrupt` if they are damaged there too;
    - `Conflict` if it was trimmed or replaced meanwhile;
    - `Denied` if it is encrypted, and its copy would not be.

    Raises `StoreDenied` if a store denies every request, `NotOffloaded` if there is no such stream, and
    `Misuse` if the tier keeps no objects of our layout.
    """
    tier = native(offloader, to="repair")
    found = await verify(offloader, stream=stream, level=level, progress=progress)
    later = await part_named(offloader, stream)
    whole = stream if later is None else later.first
    parts = {escape(name): name for name in await WholeStream(offloader, stream).names()}
    repairs: dict[str, _Repair] = {}
    try:
        # From the end: a fragment that is repaired proves the one before it.
        for damage in reversed(found.damages):
            done = RepairedFragment(stream=stream, key=damage.where, damage=damage)
            folder = damage.where.partition("/")[0]
            try:
                if (part := parts.get(folder)) is None:
                    raise _no_fragment(tier, damage.where, stream)
                if folder not in repairs:
                    repairs[folder] = await _Repair.begin(tier, whole, part, records, dry_run=dry_run)
                done = await repairs[folder].repaired(replace(done, stream=part))
            except StoreDenied:
                raise
            except OffloadError as error:
                done = replace(done, error=error)
            yield done
    finally:
        # After Ctrl-C too: while an attempt runs, no sweep deletes its copy.
        for each in repairs.values():
            with suppress(OffloadError):
                await each.end()


def _no_fragment(tier: ObjectStoreOffloader, key: str, stream: str) -> NotOffloaded:
    return NotOffloaded(
        f"{key} is no fragment that the manifest names, so no records can replace it: "
        f"see: offload help lost-roots, or run: offload rebuild {tier.url} {stream} --dry-run"
    )


def repair_identity(manifest: Manifest) -> UUID:
    """Return the identity of the repairs of a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"repair#{manifest.stream}#{manifest.incarnation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """The chunks of a fragment, as the other place has them."""

    raw: bytes
    table: ChunkTable
    checksums: npt.NDArray[np.uint32]
    where: str


class _FetchedLedger(ReadHandle):
    """The chunks of a fragment as a ledger in memory, under the id that the tier has for it."""

    __slots__ = ("_fetched", "_ledger_id")

    def __init__(self, fetched: _Fetched, *, ledger_id: int) -> None:
        self._fetched, self._ledger_id = fetched, ledger_id

    @property
    def ledger_id(self) -> int:
        """The ledger on the tier: the other place may cut its ledgers elsewhere."""
        return self._ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self._fetched.table["offset"][0])

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return int(self._fetched.table["offset"][-1]) + int(self._fetched.table["records"][-1])

    @property
    def where(self) -> str:
        """The place that the chunks are from."""
        return self._fetched.where

    async def table(self) -> ChunkTable:
        """Return one row per chunk. `position` counts from the first chunk."""
        return self._fetched.table

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the bytes of these rows."""
        start = int(rows["position"][0])
        return self._fetched.raw[start : start + int(rows["size_bytes"].sum())]


@dataclass(kw_only=True)
class _Repair:
    """The repair of one part."""

    tier: ObjectStoreOffloader
    stream: str
    """The name of the whole stream."""
    part: str
    """The name of the part."""
    records: Elsewhere
    dry_run: bool
    job: Job
    keys: StreamKeys = field(init=False)

    def __post_init__(self) -> None:
        self.keys = StreamKeys(self.part)

    @classmethod
    async def begin(
        cls, tier: ObjectStoreOffloader, stream: str, part: str, records: Elsewhere, *, dry_run: bool
    ) -> _Repair:
        """Begin, and drop the attempts that a killed repair left."""
        manifest = await tier.load_manifest(part)
        job = await Job.begin(tier, part, uid=repair_identity(manifest))
        repairing = cls(tier=tier, stream=stream, part=part, records=records, dry_run=dry_run, job=job)
        await repairing.end()
        return repairing

    async def end(self) -> None:
        """Drop the attempts whose copies were not used."""
        if not self.dry_run:
            await self.job.abort()

    async def repaired(self, done: RepairedFragment) -> RepairedFragment:
        """Repair one object. Raises nothing but `StoreDenied`."""
        try:
            entry = await self._entry(done.key)
            done = replace(done, first_offset=entry.first_offset, next_offset=entry.next_offset)
            # One offset more on each side: the chunks there are compared if the index is gone.
            around = range(max(entry.first_offset - 1, 0), entry.next_offset + 1)
            async with await self.records(self.stream, self.part, around) as snapshot:
                fetched = await fetch(snapshot, entry)
                done = replace(done, compared=await self._compare(snapshot, fetched, entry))
            if entry.encrypted and not await self.tier.encrypts(self.job.manifest):
                raise Denied(f"{done.key} is encrypted, and its copy would not be: add --keys")
            if not self.dry_run:
                receipt = await self._upload(fetched, entry)
                await self._replace(entry, receipt)
                [copy] = receipt.entries
                done = replace(done, copy=self.keys.fragment(copy.first_offset, copy.attempt))
        except StoreDenied:
            raise
        except OffloadError as error:
            return replace(done, error=error)
        return done

    async def _entry(self, key: str) -> Entry:
        """Return the entry that names an object."""
        parsed = self.keys.parse_fragment(key)
        view = self.tier.view_of(await self.job.refresh())
        entry = None if parsed is None else await view.find(parsed[0])
        if entry is None or parsed != (entry.first_offset, entry.attempt):
            raise _no_fragment(self.tier, key, self.part)
        return entry

    async def _compare(self, snapshot: Snapshot, fetched: _Fetched, entry: Entry) -> Compared:
        """Raise `Diverged` unless the records are those that the manifest promises."""
        compare_totals(fetched, entry)
        if (tail := await self._tail(entry)) is not None:
            compare_index(fetched, tail)
            return Compared.INDEX
        view = self.tier.view_of(self.job.manifest)
        for compared, offset in (
            (Compared.CHUNK_BEHIND, entry.next_offset),
            (Compared.CHUNK_BEFORE, entry.first_offset - 1),
        ):
            if not snapshot.first_offset <= offset < snapshot.next_offset:
                continue
            with suppress(Corrupt):  # of another damaged fragment
                beside = await view.find(offset)
                if beside is None:
                    continue
                async with await view.open(beside) as handle:
                    table = await handle.table()
                    rows = table[:1] if compared is Compared.CHUNK_BEHIND else table[-1:]
                    raw = bytes(await handle.read(rows))
                await check_chunk(self.part, raw, snapshot)
                return compared
        return Compared.TOTALS

    async def _tail(self, entry: Entry) -> FragmentTail | None:
        """Return the fragment's own index, or None if it is damaged or gone."""
        try:
            tail = await load_tail(self.tier.store, self.job.manifest, entry)
            key = self.keys.fragment(entry.first_offset, entry.attempt)
            return await unlocked(self.tier.store, tail, self.tier.ring, where=key)
        except Corrupt:  # `Absent` too
            return None

    async def _upload(self, fetched: _Fetched, entry: Entry) -> Receipt:
        """Announce a copy, upload it, and read it back."""
        manifest, [attempt] = await self.job.prepare_copies([[entry]])
        handle = _FetchedLedger(fetched, ledger_id=entry.ledger_id)
        receipt = await self.tier.offload(handle, attempt, manifest=manifest, extra_metadata={})
        await read_back(self.tier, [receipt])
        return receipt

    async def _replace(self, entry: Entry, receipt: Receipt) -> None:
        try:
            await self.job.replace([entry], [receipt], may_be_newest=True)
        except OutcomeUnknown:
            # Repeatable: if the first one was committed after all, the second one changes nothing.
            await self.job.replace([entry], [receipt], may_be_newest=True)


async def fetch(snapshot: Snapshot, entry: Entry) -> _Fetched:
    """Return the chunks of a fragment's offsets, each of them checked by its own checksum."""
    first, end = entry.first_offset, entry.next_offset
    if snapshot.holds is not None:
        raise NotOffloaded("this source builds its chunks anew: repair from another tier instead")
    if first < snapshot.first_offset or end > snapshot.next_offset:
        has = f"[{snapshot.first_offset}, {snapshot.next_offset})"
        raise NotOffloaded(f"the records [{first}, {end}) are needed, and the other place has {has}")
    tables: list[ChunkTable] = []
    sums: list[npt.NDArray[np.uint32]] = []
    pieces: list[bytes] = []
    for ledger in snapshot.ledgers:
        if ledger.next_offset <= first or ledger.first_offset >= end:
            continue
        table = await ledger.table()
        rows = table[(table["offset"] >= np.uint64(first)) & (table["offset"] < np.uint64(end))]
        tables.append(rows)
        for window in ledger.windows(rows) if len(rows) else ():
            raw = await ledger.read(window)
            sums.append(await asyncio.to_thread(check_source, raw, window, where=ledger.where))
            pieces.append(bytes(raw[: int(window["size_bytes"].sum())]))
    joined = np.concatenate(tables)
    _check_cut(joined, entry)
    joined["position"] = np.cumsum(joined["size_bytes"]) - joined["size_bytes"]
    where = _where_of(snapshot.ledgers, first)
    return _Fetched(raw=b"".join(pieces), table=joined, checksums=np.concatenate(sums), where=where)


def _where_of(ledgers: Sequence[ReadHandle], offset: int) -> str:
    return next(each.where for each in ledgers if each.first_offset <= offset < each.next_offset)


def _check_cut(table: ChunkTable, entry: Entry) -> None:
    """Raise `Diverged` unless the chunks cover exactly the fragment's offsets."""
    begins = int(table["offset"][0]) if len(table) else None
    ends = int(table["offset"][-1]) + int(table["records"][-1]) if len(table) else None
    if (begins, ends) != (entry.first_offset, entry.next_offset):
        raise Diverged(
            f"the other place cuts its chunks elsewhere: they cover [{begins}, {ends}), and the fragment "
            f"[{entry.first_offset}, {entry.next_offset}): it has another history",
            kind=Divergence.FORK,
        )


def compare_totals(fetched: _Fetched, entry: Entry) -> None:
    """Raise `Diverged` unless the records have the totals that the manifest's entry has."""
    table = fetched.table
    for what, ours, theirs in (
        ("messages", entry.messages, int(table["records"][table["type"] == ChunkType.USER].sum())),
        ("bytes", entry.data_size_bytes, int(table["size_bytes"].sum())),
        ("first timestamp", entry.first_timestamp_ms, int(table["timestamp_ms"].min())),
        ("last timestamp", entry.last_timestamp_ms, int(table["timestamp_ms"].max())),
    ):
        if ours != theirs:
            offsets = f"[{entry.first_offset}, {entry.next_offset})"
            raise Diverged(
                f"the other place has other records at {offsets}: {what}: {theirs}, not {ours}",
                kind=Divergence.FORK,
            )


def compare_index(fetched: _Fetched, tail: FragmentTail) -> None:
    """Raise `Diverged` unless each chunk is the one that the damaged fragment's index describes."""
    is_same = len(tail.table) == len(fetched.table) and all(
        np.array_equal(tail.table[column], fetched.table[column]) for column in COLUMNS
    )
    if is_same and tail.checksums is not None:
        is_same = np.array_equal(tail.checksums, fetched.checksums)
    if not is_same:
        offsets = f"[{tail.trailer.first_offset}, {tail.trailer.next_offset})"
        raise Diverged(
            f"the other place has other records at {offsets}: its chunks are not those of the index",
            kind=Divergence.FORK,
        )
