"""Transferring an origin's data to a stream of a tier, step by step.

One process may do all of it, or a driver may spread the uploads over many machines.

    begin       compare the stream's history with the origin's, or begin the stream
    left        list what an earlier run uploaded; the driver checks it
    take_over   keep one chain of the sound fragments that continues the stream
    announce    announce an attempt for each range that is still missing, by one commit
    (upload)    the driver uploads each range under its attempt
    append      name all fragments, by one commit

    stopped               left behind                       cured by
    before the commit     fragments of running attempts     run again: complete ones are checked against the
                                                            origin and taken over; `abort` drops them
    after the commit      perhaps attempts that still run   run again, or `abort`

Invariants:

- All transfers from an origin to one incarnation of a stream have the same identity. So a run knows what an
  earlier one left.
- A fragment of an earlier run is taken over only if every byte of it is sound, and the origin has the same
  last chunk there.
- If the origin does not continue the stream, nothing is appended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from typing import Self
from uuid import UUID

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.contracts.store import Listed
from offload.copy.history import check_same_history, checksum_at, newest
from offload.formats.keys import StreamKeys
from offload.ground.errors import Absent, Denied
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.native.adoption import complete, uploaded_of
from offload.native.layout_check import native, native_or_none
from offload.read.handles import CutHandle
from offload.upkeep.copy.named_check import is_checked
from offload.write.job import Job
from offload.write.writer import StreamWriter

__all__ = [
    "AnnouncedRange",
    "Fetch",
    "Origin",
    "Reach",
    "Transfer",
    "TransferRange",
    "UncheckedRange",
    "abort",
    "agreed",
    "read_back",
    "upload",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRange:
    """A ledger at the origin, or a range of its offsets."""

    stream: str
    ledger_id: int
    first_offset: int
    next_offset: int
    size_bytes: int = 0
    """The approximate number of chunk bytes; 0 if it is not known."""

    named: Manifest | None = None
    """If the origin is a tier: a manifest that names only the fragments of this range."""

    is_secret: bool = False
    """True: it has an encrypted fragment, and nobody allowed a copy in the clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRange:
    """A range that will be uploaded under an announced attempt."""

    wanted: TransferRange
    incarnation: UUID
    """The incarnation of the stream. A stream that was begun again since is another stream."""

    job: UUID
    attempt: UUID
    """The attempt of the first try. A further try announces its own."""

    @property
    def size_bytes(self) -> int:
        """See `TransferRange`."""
        return self.wanted.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedRange:
    """The objects that an earlier run uploaded of a range, not checked yet."""

    wanted: TransferRange
    incarnation: UUID
    rows: Sequence[Listed]

    @property
    def size_bytes(self) -> int:
        """The size of the objects."""
        return sum(row.size_bytes for row in self.rows)


Fetch = Callable[[TransferRange], Awaitable[ReadHandle]]
"""Opens the ledger that a range is cut from, or as much of it as holds the range."""


class Reach(ABC):
    """The way from an uploading process to the origin. It may be pickled: it only names the origin."""

    __slots__ = ()

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Fetch]:
        """Open the origin for as long as the context is open."""


class Origin(ABC):
    """The place that a stream is copied from, as the driver of the steps sees it."""

    __slots__ = ()

    @property
    @abstractmethod
    def stream(self) -> str:
        """The stream's name, there and on the tier."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """The reach that uploading processes get."""

    @abstractmethod
    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """Return what the origin holds now, at least from the last chunk of `committed` on."""

    @abstractmethod
    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """Return the ledgers of a snapshot that are copied: all that will not change any more."""

    @abstractmethod
    def identity(self, manifest: Manifest) -> UUID:
        """Return the job's identity for this incarnation of the tier's stream: the same in every run."""

    def described(self, wanted: TransferRange, ledger: ReadHandle) -> TransferRange:
        """Return the range with what a reader of this ledger must know, such as its fragments."""
        return wanted


@dataclass(kw_only=True)
class Transfer:
    """The transfer of one stream. Made by `begin`, and used by one task. Close it."""

    origin: Origin
    job: Job
    taken_over: list[Receipt] = field(default_factory=list)
    """The fragments that an earlier run had uploaded, and that this one will commit."""

    _snapshot: Snapshot
    _ledgers: Sequence[ReadHandle]

    @classmethod
    async def begin(cls, offloader: LedgerOffloader, origin: Origin) -> Self | None:
        """Begin a transfer. Begins the stream if it does not exist.

        Returns None if the stream does not exist and the origin has nothing for it. Raises `Diverged` if the
        stream and the origin have different histories.
        """
        # The tier first: the origin is then at least as new, and a snapshot from `manifest` on is enough.
        manifest = await newest(offloader, origin.stream)
        snapshot = await origin.snapshot(manifest)
        try:
            ledgers = origin.ledgers(snapshot)
            if manifest is None and not ledgers:  # to begin a stream would claim its name for nothing
                await snapshot.aclose()
                return None
            manifest = manifest or await _born(offloader, origin.stream, snapshot)
            # Compared before anything is announced, and at every begin: since the last one, another process
            # may have appended a different history.
            await check_same_history(offloader, manifest, snapshot)
            job = await Job.begin(offloader, origin.stream, uid=origin.identity(manifest))
        except BaseException:  # also Ctrl-C: the snapshot may hold the broker's files open
            await snapshot.aclose()
            raise
        return cls(origin=origin, job=job, _snapshot=snapshot, _ledgers=ledgers)

    async def left(self) -> list[UncheckedRange]:
        """List what an earlier run uploaded behind the stream's end, by the ledger that it was cut from."""
        manifest, own = self.job.manifest, self._own()
        # Tiers of another layout keep nothing of an unfinished attempt.
        offloader = native_or_none(self.job.offloader)
        if not own or offloader is None:  # without running attempts, no earlier run left anything
            return []
        keys, firsts = StreamKeys(manifest.stream), [ledger.first_offset for ledger in self._ledgers]
        by_ledger: dict[int, list[Listed]] = {}
        async with aclosing(uploaded_of(offloader.store, manifest, own)) as rows:
            async for row in rows:
                parsed = keys.parse_fragment(row.key)
                number = -1 if parsed is None else bisect_right(firsts, parsed[0]) - 1
                if number >= 0:  # a negative number means that it lies before everything that the origin has
                    by_ledger.setdefault(number, []).append(row)
        incarnation = manifest.incarnation
        return [
            UncheckedRange(wanted=self._range(self._ledgers[number], 0), incarnation=incarnation, rows=found)
            for number, found in by_ledger.items()
        ]

    def take_over(self, found: Sequence[Leftover]) -> None:
        """Keep, for `append`, those of these checked fragments that continue the stream."""
        manifest = self.job.manifest
        self.taken_over = chained(manifest.stream, manifest.next_offset, found, self._own())

    async def announce(self) -> list[AnnouncedRange]:
        """Announce the ranges that are missing behind the fragments that were taken over."""
        # A ledger that was taken over in part is announced from there on.
        start = end_of(self.taken_over, self.job.manifest.next_offset)
        ranges = [self._range(ledger, start) for ledger in self._ledgers if ledger.next_offset > start]
        if not ranges:
            return []
        # Announce before the first upload: a sweep deletes a fragment whose attempt does not run. One commit
        # announces all ranges, because each commit makes other authors of the stream repeat theirs.
        _, attempts = await self.job.prepare([wanted.ledger_id for wanted in ranges])
        return [
            AnnouncedRange(
                wanted=wanted,
                incarnation=self.job.manifest.incarnation,
                job=self.job.uid,
                attempt=attempt.uid,
            )
            for wanted, attempt in zip(ranges, attempts, strict=True)
        ]

    async def append(self, uploaded: Sequence[Receipt]) -> Manifest:
        """Name all fragments taken over or uploaded, in one commit. Drop all other attempts of the job.

        Raises `Conflict` if another process appended first. Nothing is named then.
        """
        receipts = [*self.taken_over, *uploaded]
        if receipts:
            await self.job.append(receipts)
        # The abort comes after the append, because the attempts of the receipts must run until then. The
        # attempts that are left are those of failed tries and of killed runs. A sweep frees their space.
        await self.job.abort()
        return self.job.manifest

    async def aclose(self) -> None:
        """Release the origin. Idempotent."""
        await self._snapshot.aclose()

    def _own(self) -> dict[UUID, int]:
        """Return the running attempts of this job, each with its ledger."""
        return {
            running.attempt: running.ledger_id
            for running in self.job.manifest.running
            if running.writer == self.job.uid and running.kind is AttemptKind.JOB
        }

    def _range(self, ledger: ReadHandle, start: int) -> TransferRange:
        """Return the range of a ledger from `start` on."""
        wanted = TransferRange(
            stream=self.origin.stream,
            ledger_id=ledger.ledger_id,
            first_offset=max(ledger.first_offset, start),
            next_offset=ledger.next_offset,
        )
        return self.origin.described(wanted, ledger)


async def _born(offloader: LedgerOffloader, stream: str, snapshot: Snapshot) -> Manifest:
    await offloader.open(create=True)  # the first stream also makes the tier
    # Only a claim begins a stream. The writer is not used afterwards: a job commits without holding the
    # stream, so that a broker's writer may claim it at any time.
    writer = await StreamWriter.claim(
        offloader, stream, first_offset=snapshot.first_offset, source_epoch=snapshot.epoch
    )
    return writer.manifest


async def abort(offloader: LedgerOffloader, stream: str, identity: Callable[[Manifest], UUID]) -> None:
    """Drop the attempts that an unfinished run left. A sweep frees their space. Repeatable."""
    manifest = await offloader.load_manifest(stream)
    job = await Job.begin(offloader, stream, uid=identity(manifest))
    await job.abort()


def chained(
    stream: str, next_offset: int, found: Sequence[Leftover], own: Mapping[UUID, int]
) -> list[Receipt]:
    """Return one chain without a hole from `next_offset` on. `own` has the ledger of each attempt."""
    by_attempt: dict[UUID, list[Entry]] = {}
    for entry in sorted((each.entry for each in found), key=lambda entry: entry.first_offset):
        # A fragment behind a hole is not taken over: `announce` begins where this chain ends, and has it
        # uploaded again.
        if entry.first_offset == next_offset and entry.ledger_id == own[entry.attempt]:
            by_attempt.setdefault(entry.attempt, []).append(entry)
            next_offset = entry.next_offset
    return [
        Receipt(attempt=Attempt(stream=stream, ledger_id=own[uid], uid=uid), entries=entries)
        for uid, entries in by_attempt.items()
    ]


def end_of(receipts: Sequence[Receipt], next_offset: int) -> int:
    """Return the end of the stream with these receipts. The last one need not end last."""
    return max([next_offset, *(receipt.next_offset for receipt in receipts)])


async def upload(
    offloader: LedgerOffloader, reach: Reach, announced: Sequence[AnnouncedRange], *, is_first: bool = True
) -> list[Receipt]:
    """Upload ranges of one stream, one after the other, and return their receipts.

    A further try announces attempts of its own: the first try may still be under way, and attempts never
    share an object.
    """
    first = announced[0]
    # Raises `StreamDeleted` if the stream was begun again since the ranges were announced.
    job = await Job.begin(offloader, first.wanted.stream, uid=first.job, incarnation=first.incarnation)
    manifest, uids = job.manifest, [each.attempt for each in announced]
    if not is_first:
        manifest, attempts = await job.prepare([each.wanted.ledger_id for each in announced])
        uids = [attempt.uid for attempt in attempts]
    async with reach.opened() as fetch:
        return [
            await upload_range(offloader, fetch, each.wanted, uid, manifest=manifest)
            for each, uid in zip(announced, uids, strict=True)
        ]


async def upload_range(
    offloader: LedgerOffloader, fetch: Fetch, wanted: TransferRange, attempt: UUID, *, manifest: Manifest
) -> Receipt:
    """Upload one range under an attempt that `manifest` runs. Raises as `LedgerOffloader.offload` does.

    Raises `Denied` if the range is secret and `offloader` would store it in the clear.
    """
    if wanted.is_secret:
        target = native_or_none(offloader)
        if target is None or not await target.encrypts(manifest):
            raise Denied(
                f"stream {wanted.stream!r} is encrypted, and its copy in {offloader.url} would not be; name "
                "a master key for the copy with --encrypt, or allow a copy in the clear with --decrypt"
            )
    async with await fetch(wanted) as whole:  # may hold more than the range, on both sides
        receipt = await offloader.offload(
            CutHandle(whole, first_offset=wanted.first_offset, next_offset=wanted.next_offset),
            Attempt(stream=wanted.stream, ledger_id=wanted.ledger_id, uid=attempt),
            manifest=manifest,
            extra_metadata={},
        )
        return replace(receipt, dropped_sections=whole.unknown_sections())


async def agreed(offloader: LedgerOffloader, fetch: Fetch, left: UncheckedRange) -> list[Leftover]:
    """Return the fragments that are sound, and whose last chunk the origin has too. Reads all of them whole.

    A transfer may be run again after the origin was replaced. Then a sound fragment of the old data would fit
    the offsets, and only the comparison of chunks shows it.
    """
    await offloader.open()
    target, found = native(offloader, to="adopt from"), []
    async with await fetch(left.wanted) as handle:
        origin = Snapshot(ledgers=[handle], first_offset=handle.first_offset, next_offset=handle.next_offset)
        for row in left.rows:
            one = await complete(
                target.store, row, stream=left.wanted.stream, incarnation=left.incarnation, ring=target.ring
            )
            # A run that was allowed to may have left fragments in the clear. This one uploads them again.
            if one is None or (left.wanted.is_secret and not one.entry.encrypted):
                continue
            if await checksum_at(origin, one.last_chunk_offset) == one.last_chunk_checksum:
                found.append(one)
    return found


async def read_back(offloader: LedgerOffloader, receipts: Sequence[Receipt]) -> None:
    """Read each uploaded fragment back, whole. Raise `Corrupt` unless it matches its entry."""
    tier = native(offloader, to="read back from")
    manifest = await offloader.load_manifest(receipts[0].attempt.stream)
    for receipt in receipts:
        for entry in receipt.entries:
            key = StreamKeys(manifest.stream).fragment(entry.first_offset, entry.attempt)
            # `is_checked` returns False for a missing fragment that the newest manifest does not name, as if
            # it was trimmed. Here such a fragment is lost: it is not committed yet, and its attempt runs.
            if not await is_checked(tier, manifest, entry, key):
                raise Absent(key, manifest.stream)
