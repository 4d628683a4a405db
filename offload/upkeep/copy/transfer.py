"""From an origin onto a stream of a tier, step by step: by one process, or with the uploads spread over many.

    begin       the stream tells the origin's history, or is begun
    left        what an earlier run uploaded is listed; whoever drives the steps checks it
    take_over   of what holds, one chain that continues the stream
    announce    an attempt for each part that is still missing, by one commit, as a guest of the stream
    (upload)    each part under its attempt, by whoever drives the steps
    append      one commit names all of it

    stopped               left behind                       cured by
    before the commit     fragments of running attempts     run again: complete ones are taken over, checked
                                                            against the origin; `abort` gives them up
    after the commit      perhaps attempts that still run   run again, or `abort`

Invariants: the transfer of an origin, a stream and its incarnation has one identity, so a run knows what an
earlier one left; what an earlier run left is taken over only if every byte of it holds and the origin has the
same last chunk there; what the origin does not continue is not appended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.contracts.store import Listed
from offload.errors import Absent
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.native.adoption import complete, uploaded_of
from offload.native.own import native, native_or_none
from offload.streams.handles import CutHandle
from offload.streams.history import check_same_history, checksum_at, newest
from offload.streams.job import Job
from offload.streams.writer import StreamWriter
from offload.upkeep.copy.named_check import is_checked

__all__ = [
    "AnnouncedPart",
    "Fetch",
    "Origin",
    "Reach",
    "Transfer",
    "TransferPart",
    "UncheckedPart",
    "abort",
    "agreed",
    "read_back",
    "upload",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPart:
    """A ledger at the origin, or a part of one."""

    stream: str
    ledger_id: int
    first_offset: int
    next_offset: int
    size_bytes: int = 0
    """About how many chunk bytes it has; 0 where nobody knows."""

    named: Manifest | None = None
    """Of a tier's stream: a manifest that names what the part is cut from, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedPart:
    """A part to be uploaded."""

    part: TransferPart
    incarnation: UUID
    """Of the stream. One that was begun again since is another stream."""

    job: UUID
    attempt: UUID
    """For the first try; another one announces an attempt of its own."""

    @property
    def size_bytes(self) -> int:
        """See `TransferPart`."""
        return self.part.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedPart:
    """What an earlier run uploaded of a part."""

    part: TransferPart
    incarnation: UUID
    rows: Sequence[Listed]

    @property
    def size_bytes(self) -> int:
        """Of the objects."""
        return sum(row.size_bytes for row in self.rows)


Fetch = Callable[[TransferPart], Awaitable[ReadHandle]]
"""A handle on what a part is cut from: its ledger, or as much of it as holds the part."""


class Reach(ABC):
    """How whoever uploads gets to the origin. It may be pickled: it holds what names the origin."""

    __slots__ = ()

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Fetch]:
        """The origin, open as long as the context is."""


class Origin(ABC):
    """Where a stream comes from, as seen by whoever drives the steps."""

    __slots__ = ()

    @property
    @abstractmethod
    def stream(self) -> str:
        """The stream's name, there and on the tier."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """What is given to whoever uploads."""

    @abstractmethod
    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """What the origin holds now. Where it covers all from `committed`'s last chunk on, that is enough."""

    @abstractmethod
    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """Those of a snapshot that are copied: all that will not change any more."""

    @abstractmethod
    def identity(self, manifest: Manifest) -> UUID:
        """The job's, for this incarnation of the tier's stream: the same in every run."""

    def described(self, part: TransferPart, ledger: ReadHandle) -> TransferPart:
        """The part, with what the origin has to say of this ledger to whoever reads it."""
        return part


@dataclass(kw_only=True)
class Transfer:
    """One stream's. Made by `begin`; used by one task. Close it."""

    origin: Origin
    job: Job
    taken_over: list[Receipt] = field(default_factory=list)
    """What an earlier run had uploaded, and this one names."""

    _snapshot: Snapshot
    _ledgers: Sequence[ReadHandle]

    @classmethod
    async def begin(cls, offloader: LedgerOffloader, origin: Origin) -> Self | None:
        """Begin, on the stream or with it. None if the stream is not begun, since there is nothing for it.

        Raises `Diverged` where the two tell different histories.
        """
        manifest = await newest(offloader, origin.stream)
        snapshot = await origin.snapshot(manifest)
        try:
            ledgers = origin.ledgers(snapshot)
            if manifest is None and not ledgers:
                await snapshot.aclose()
                return None
            manifest = manifest or await _born(offloader, origin.stream, snapshot)
            await check_same_history(offloader, manifest, snapshot)
            job = await Job.begin(offloader, origin.stream, uid=origin.identity(manifest))
        except BaseException:
            await snapshot.aclose()
            raise
        return cls(origin=origin, job=job, _snapshot=snapshot, _ledgers=ledgers)

    async def left(self) -> list[UncheckedPart]:
        """List what an earlier run uploaded behind the stream's end, by the ledger it was cut from."""
        manifest, own = self.job.manifest, self._own()
        offloader = native_or_none(self.job.offloader)  # others keep nothing of an unfinished attempt
        if not own or offloader is None:
            return []
        keys, firsts = StreamKeys(manifest.stream), [ledger.first_offset for ledger in self._ledgers]
        by_ledger: dict[int, list[Listed]] = {}
        async with aclosing(uploaded_of(offloader.store, manifest, own)) as rows:
            async for row in rows:
                parsed = keys.parse_fragment(row.key)
                number = -1 if parsed is None else bisect_right(firsts, parsed[0]) - 1
                if number >= 0:
                    by_ledger.setdefault(number, []).append(row)
        incarnation = manifest.incarnation
        return [
            UncheckedPart(part=self._part(self._ledgers[number], 0), incarnation=incarnation, rows=found)
            for number, found in by_ledger.items()
        ]

    def take_over(self, found: Sequence[Leftover]) -> None:
        """Name, in the end, what continues the stream of these, which hold and are what the origin has."""
        manifest = self.job.manifest
        self.taken_over = chained(manifest.stream, manifest.next_offset, found, self._own())

    async def announce(self) -> list[AnnouncedPart]:
        """Announce all parts that are missing behind what was taken over."""
        start = end_of(self.taken_over, self.job.manifest.next_offset)
        parts = [self._part(ledger, start) for ledger in self._ledgers if ledger.next_offset > start]
        if not parts:
            return []
        _, attempts = await self.job.prepare([part.ledger_id for part in parts])
        return [
            AnnouncedPart(
                part=part, incarnation=self.job.manifest.incarnation, job=self.job.uid, attempt=attempt.uid
            )
            for part, attempt in zip(parts, attempts, strict=True)
        ]

    async def append(self, uploaded: Sequence[Receipt]) -> Manifest:
        """Name what was taken over and what was uploaded, all in one commit, and drop what is left besides.

        Raises `Conflict` where another appended first: nothing is named then.
        """
        receipts = [*self.taken_over, *uploaded]
        if receipts:
            await self.job.append(receipts)
        await self.job.abort()  # attempts of tries that failed, and of a run that was killed
        return self.job.manifest

    async def aclose(self) -> None:
        """Release the origin. Idempotent."""
        await self._snapshot.aclose()

    def _own(self) -> dict[UUID, int]:
        """The attempts that run as this job's, each with its ledger."""
        return {
            running.attempt: running.ledger_id
            for running in self.job.manifest.running
            if running.writer == self.job.uid and running.kind is AttemptKind.JOB
        }

    def _part(self, ledger: ReadHandle, start: int) -> TransferPart:
        """The ledger from `start` on."""
        part = TransferPart(
            stream=self.origin.stream,
            ledger_id=ledger.ledger_id,
            first_offset=max(ledger.first_offset, start),
            next_offset=ledger.next_offset,
        )
        return self.origin.described(part, ledger)


async def _born(offloader: LedgerOffloader, stream: str, snapshot: Snapshot) -> Manifest:
    await offloader.open(create=True)
    writer = await StreamWriter.claim(
        offloader, stream, first_offset=snapshot.first_offset, source_epoch=snapshot.epoch
    )
    return writer.manifest


async def abort(offloader: LedgerOffloader, stream: str, identity: Callable[[Manifest], UUID]) -> None:
    """Give up what a run left that did not end: the sweep takes it. Repeatable."""
    manifest = await offloader.load_manifest(stream)
    job = await Job.begin(offloader, stream, uid=identity(manifest))
    await job.abort()


def chained(
    stream: str, next_offset: int, found: Sequence[Leftover], own: Mapping[UUID, int]
) -> list[Receipt]:
    """Of what was found, one chain without a hole from `next_offset` on; `own` has each attempt's ledger."""
    by_attempt: dict[UUID, list[Entry]] = {}
    for entry in sorted((each.entry for each in found), key=lambda entry: entry.first_offset):
        if entry.first_offset == next_offset and entry.ledger_id == own[entry.attempt]:
            by_attempt.setdefault(entry.attempt, []).append(entry)
            next_offset = entry.next_offset
    return [
        Receipt(attempt=Attempt(stream=stream, ledger_id=own[uid], uid=uid), entries=entries)
        for uid, entries in by_attempt.items()
    ]


def end_of(receipts: Sequence[Receipt], next_offset: int) -> int:
    """Where the stream ends with these. The last receipt need not end last: a later run fills holes."""
    return max([next_offset, *(receipt.next_offset for receipt in receipts)])


async def upload(
    offloader: LedgerOffloader, reach: Reach, announced: Sequence[AnnouncedPart], *, is_first: bool = True
) -> list[Receipt]:
    """Upload parts of one stream, one after the other.

    A further try announces other attempts: those of the first one may still be under way.
    """
    first = announced[0]
    job = await Job.begin(offloader, first.part.stream, uid=first.job, incarnation=first.incarnation)
    manifest, uids = job.manifest, [each.attempt for each in announced]
    if not is_first:
        manifest, attempts = await job.prepare([each.part.ledger_id for each in announced])
        uids = [attempt.uid for attempt in attempts]
    async with reach.opened() as fetch:
        return [
            await upload_part(offloader, fetch, each.part, uid, manifest=manifest)
            for each, uid in zip(announced, uids, strict=True)
        ]


async def upload_part(
    offloader: LedgerOffloader, fetch: Fetch, part: TransferPart, attempt: UUID, *, manifest: Manifest
) -> Receipt:
    """Upload one part under an attempt that runs in `manifest`. Raises as `LedgerOffloader.offload` does."""
    async with await fetch(part) as whole:
        return await offloader.offload(
            CutHandle(whole, first_offset=part.first_offset, next_offset=part.next_offset),
            Attempt(stream=part.stream, ledger_id=part.ledger_id, uid=attempt),
            manifest=manifest,
            extra_metadata={},
        )


async def agreed(offloader: LedgerOffloader, fetch: Fetch, left: UncheckedPart) -> list[Leftover]:
    """Return the fragments that hold, and of which the origin has the last chunk. Reads all of them whole."""
    await offloader.open()
    store = native(offloader, to="adopt from").store
    found = []
    async with await fetch(left.part) as handle:
        origin = Snapshot(ledgers=[handle], first_offset=handle.first_offset, next_offset=handle.next_offset)
        for row in left.rows:
            one = await complete(store, row, stream=left.part.stream, incarnation=left.incarnation)
            if one and await checksum_at(origin, one.last_chunk_offset) == one.last_chunk_checksum:
                found.append(one)
    return found


async def read_back(offloader: LedgerOffloader, receipts: Sequence[Receipt]) -> None:
    """Raise `Corrupt` unless each uploaded fragment, read whole, is what a manifest will say of it."""
    tier = native(offloader, to="read back from")
    manifest = await offloader.load_manifest(receipts[0].attempt.stream)
    for receipt in receipts:
        for entry in receipt.entries:
            key = StreamKeys(manifest.stream).fragment(entry.first_offset, entry.attempt)
            if not await is_checked(tier, manifest, entry, key):
                raise Absent(key, manifest.stream)
