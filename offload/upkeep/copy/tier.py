"""Copying the streams of one tier to another, in portions.

Each portion is announced, uploaded and committed before the next one begins. `transfer` has the steps of a
portion, and what a kill leaves. Records keep offset, time, ledger and bytes. The target cuts fragments by its
own rules.

Invariants:

- Every chunk is checked against its index and its own checksum before it is stored.
- Everything that the target names is a part of the source's history: the last chunk of each append is the
  source's chunk there.
- The job's identity is made from both incarnations, so a copy never continues what an earlier stream of the
  same name left.
- Memory is bounded by one portion: `RUNS_PER_PORTION` runs are listed, and some of them are being uploaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.copy.history import check_same_history
from offload.ground.errors import Misuse, NotOffloaded, OffloadError, StoreDenied, StreamDeleted
from offload.ground.tasks import in_order, one_by_one
from offload.model.attempt import Receipt
from offload.model.manifest import Manifest
from offload.model.part import part_like
from offload.native.layout_check import native
from offload.parts.whole_stream import with_parts
from offload.upkeep.copy.runs import RUN_SIZE_BYTES, TierRun, snapshot_of
from offload.upkeep.copy.transfer import (
    AnnouncedRange,
    Fetch,
    Origin,
    Reach,
    Transfer,
    TransferRange,
    abort,
    agreed,
    read_back,
    upload_range,
)
from offload.upkeep.parts import copy_empty_first, link_copy

__all__ = ["Committed", "Copied", "copy", "give_up", "refuse_itself", "run_of"]


PARTS_AT_ONCE: Final = 4
"""How many runs of fragments `copy` uploads at once."""

RUNS_PER_PORTION: Final = 64
"""How many runs of fragments one commit names, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy for one stream, final or so far."""

    stream: str
    fragments: int = 0
    """Fragments that this run uploaded, as the target cuts them."""

    bytes: int = 0
    """The chunk bytes of these fragments, before compression."""

    stored_bytes: int = 0
    """The size of these fragments, as they were uploaded."""

    taken_over: int = 0
    """Fragments that an earlier run had uploaded, and this one committed."""

    dropped_sections: Mapping[str, int] = field(default_factory=dict)
    """Sections of other programs that were left out: the name of each, and how many fragments had one."""

    next_offset: int = 0
    """The end of the target's stream; 0 if it was not begun, or if an error came before any commit."""

    note: str = ""
    """The reason why the source has nothing of the stream; empty if it has."""

    error: OffloadError | None = None
    """The error that stopped it; None if none did."""

    def as_json(self) -> dict[str, object]:
        """Return a line of `offload copy --json`, and of `offload spark copy --json`."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}

    def after(self, transfer: Transfer, uploaded: Sequence[Receipt]) -> Copied:
        """Return these numbers with those of a transfer that was appended."""
        entries = [entry for receipt in uploaded for entry in receipt.entries]
        dropped = sum(
            (Counter(receipt.dropped_sections) for receipt in uploaded), Counter(self.dropped_sections)
        )
        return replace(
            self,
            fragments=self.fragments + len(entries),
            bytes=self.bytes + sum(entry.data_size_bytes for entry in entries),
            stored_bytes=self.stored_bytes + sum(entry.stored_size_bytes for entry in entries),
            taken_over=self.taken_over + sum(len(receipt.entries) for receipt in transfer.taken_over),
            dropped_sections=dict(dropped),
            next_offset=transfer.job.manifest.next_offset,
        )


@dataclass(kw_only=True)
class CopyProgress:
    """The progress of the copy of one stream."""

    stream: str
    offsets: range
    """The offsets that the source has committed."""

    reached: int
    """All data below this offset is uploaded, or was there before."""

    bytes: int = 0
    """Chunk bytes that this run uploaded."""

    is_checking: bool = False
    """True while the run reads and checks what an earlier run left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Origin):
    """A stream of a tier, as one manifest names it."""

    offloader: LedgerOffloader
    manifest: Manifest
    source: Reach
    part_size_bytes: int = RUN_SIZE_BYTES
    parts_max: int | None = None
    """How many parts a snapshot lists at most; None for all."""
    decrypt: bool = False
    """True: encrypted fragments may be stored in the clear."""

    @property
    def stream(self) -> str:
        """See `Origin.stream`."""
        return self.manifest.stream

    @property
    def reach(self) -> Reach:
        """See `Origin.reach`."""
        return self.source

    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """See `Origin.snapshot`. Fragments that the target has already are not listed."""
        # One offset less than the target's end: the comparison of histories needs the last common chunk.
        since = 0 if committed is None else max(committed.next_offset - 1, 0)
        return await snapshot_of(
            self.offloader,
            self.manifest,
            since=since,
            run_size_bytes=self.part_size_bytes,
            runs_max=self.parts_max,
        )

    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """See `Origin.ledgers`."""
        return snapshot.ledgers

    def identity(self, manifest: Manifest) -> UUID:
        """See `Origin.identity`."""
        return copy_identity(self.offloader.url, self.manifest, manifest)

    def described(self, wanted: TransferRange, ledger: ReadHandle) -> TransferRange:
        """See `Origin.described`."""
        assert isinstance(ledger, TierRun)
        named = ledger.manifest
        is_secret = not self.decrypt and bool(named.entries["encrypted"].any())
        return replace(wanted, size_bytes=ledger.size_bytes, named=named, is_secret=is_secret)

    async def check_end_of(self, target: LedgerOffloader) -> None:
        """Read back the target's last chunk. Raise `Diverged` unless the source has the same one."""
        manifest = await target.load_manifest(self.stream)
        if manifest.next_offset <= self.manifest.next_offset:  # else another copy has appended more already
            async with await self.snapshot(manifest) as snapshot:
                await check_same_history(target, manifest, snapshot)


@dataclass(frozen=True, slots=True)
class OpenTier(Reach):
    """The reach of a tier that is open in this process."""

    offloader: LedgerOffloader

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """See `Reach.opened`."""
        yield partial(run_of, self.offloader)


async def run_of(offloader: LedgerOffloader, wanted: TransferRange) -> ReadHandle:
    """Return a handle on the fragments that a range of a tier's stream is cut from. The range names them."""
    manifest = wanted.named
    assert manifest is not None, "a range of a tier's stream names its fragments"
    return TierRun(offloader, manifest, manifest.entries)


def copy_identity(source: str, committed: Manifest, manifest: Manifest) -> UUID:
    """Return the identity of the copy of a source's stream to a target's stream: the same in every run."""
    names = f"{source}#{committed.stream}#{committed.incarnation}#{manifest.incarnation}"
    return uuid5(NAMESPACE_URL, names)


async def copy(
    source: LedgerOffloader,
    target: LedgerOffloader,
    *,
    streams: Sequence[str] = (),
    verify: bool = False,
    decrypt: bool = False,
    at_once: int = PARTS_AT_ONCE,
    part_size_bytes: int = RUN_SIZE_BYTES,
    progress: Callable[[CopyProgress], None] = lambda progress: None,
) -> AsyncIterator[Copied]:
    """Copy what `source` has committed to `target`: all streams, or those named with their parts.

    A part becomes a part on the target too, so the copy is read as one stream. A first part without data, or
    one that was deleted, is such a part on the target too.
    A stream is copied as it is committed when its turn comes. If the target has no such stream, it begins
    where the source's stream begins now. If it has one with the same history, the copy continues it. With
    `verify`, each uploaded fragment is read back, whole, before it is committed. With `decrypt`, a stream
    that is encrypted in the source may be stored in the clear. After a kill, call it again:
    it continues behind the committed data, and takes over complete fragments that were not committed.

    An error of one stream is reported, and the next stream follows. After `StoreDenied` no stream follows.
    The error is

    - `Diverged` if the histories differ, or if the source is trimmed beyond the target's end;
    - `Conflict` if another process appended to the target first: copy again;
    - `TryAgain` if the source was trimmed or compacted, and swept, meanwhile: copy again;
    - `Denied` if an encrypted stream would be stored in the clear without `decrypt`;
    - `Corrupt` at damage in the source. The portions before the damaged one stay committed.

    Raises `NotOffloaded` if the source is no tier, or lacks a named stream; `Misuse` if `verify` is set and
    the target keeps no objects of our layout.
    """
    if verify:
        native(target, to="read back from")  # refused here, before anything is uploaded
    # By number: part 10 comes behind part 9. A copy that is killed then leaves a beginning of the history.
    for stream in await with_parts(source, streams) or sorted(await source.streams(), key=part_like):
        try:
            manifest = await source.load_manifest(stream)
        except NotOffloaded as gone:
            has_parts = isinstance(gone, StreamDeleted) and await copy_empty_first(source, target, stream)
            if stream in streams and not has_parts:
                raise
            yield Copied(stream=stream, note=str(gone))
            continue
        origin = Committed(
            offloader=source,
            manifest=manifest,
            source=OpenTier(source),
            part_size_bytes=part_size_bytes,
            parts_max=RUNS_PER_PORTION,
            decrypt=decrypt,
        )
        copying = _Copying(origin=origin, target=target, verify=verify, at_once=at_once, progress=progress)
        try:
            await link_copy(source, target, stream)
            await copying.run()
        except OffloadError as error:
            yield replace(copying.done, error=error)
            if isinstance(error, StoreDenied):  # every other stream would be denied too
                return
        else:
            yield copying.done


def refuse_itself(source: LedgerOffloader, target: LedgerOffloader, *, same_options: bool) -> None:
    """Raise `Misuse` if both are the same tier. With other options, one URL may be of two servers."""
    if same_options and source.url == target.url:
        raise Misuse(f"{source.url} is the source and the target: name another place for the copy")


async def give_up(source: LedgerOffloader, target: LedgerOffloader, stream: str) -> None:
    """Drop the attempts that an unfinished copy left. The target's sweep frees their space. Repeatable."""
    manifest = await source.load_manifest(stream)
    await abort(target, stream, partial(copy_identity, source.url, manifest))


@dataclass(kw_only=True)
class _Copying:
    """The copy of one stream."""

    origin: Committed
    target: LedgerOffloader
    verify: bool
    at_once: int
    progress: Callable[[CopyProgress], None]
    done: Copied = field(init=False)

    def __post_init__(self) -> None:
        committed = self.origin.manifest
        self.done = Copied(stream=self.origin.stream)
        self._seen = CopyProgress(
            stream=self.origin.stream,
            offsets=range(committed.first_offset, committed.next_offset),
            reached=committed.first_offset,
        )

    async def run(self) -> None:
        """Copy portion after portion, until the target ends where the source's manifest does."""
        while True:
            transfer = await Transfer.begin(self.target, self.origin)
            if transfer is None:
                committed = self.origin.manifest
                if await copy_empty_first(self.origin.offloader, self.target, self.origin.stream):
                    self.done = replace(self.done, next_offset=committed.next_offset)
                else:
                    self.done = replace(self.done, note="nothing is committed")
                return
            try:
                is_last = await self._portion(transfer)
            finally:
                await transfer.aclose()
            if is_last:
                return

    async def _portion(self, transfer: Transfer) -> bool:
        """Copy the next runs of fragments. Return True if nothing is left to copy behind them."""
        self._seen.reached = transfer.job.manifest.next_offset
        async with self.origin.reach.opened() as fetch:
            # First what an earlier run left: `announce` then announces only the ranges that are missing.
            await self._take_over(transfer, fetch)
            announced = await transfer.announce()
            uploaded = await self._uploaded(transfer, announced, fetch)
        await transfer.append(uploaded)
        self.done = self.done.after(transfer, uploaded)
        if not uploaded and not transfer.taken_over:
            return True
        if self.done.next_offset < self._seen.offsets.stop:
            return False
        # The begin of the next portion compares the histories. Behind the last portion nothing would.
        await self.origin.check_end_of(self.target)
        return True

    async def _take_over(self, transfer: Transfer, fetch: Fetch) -> None:
        left = await transfer.left()
        if not left:
            return
        self._seen.is_checking = True
        self.progress(self._seen)
        held = in_order(partial(agreed, self.target, fetch), one_by_one(left), at_once=self.at_once)
        async with aclosing(held):
            transfer.take_over([one async for _, found in held for one in found])
        self._seen.is_checking = False

    async def _uploaded(
        self, transfer: Transfer, announced: Sequence[AnnouncedRange], fetch: Fetch
    ) -> list[Receipt]:
        manifest = transfer.job.manifest

        async def upload(each: AnnouncedRange) -> Receipt:
            receipt = await upload_range(self.target, fetch, each.wanted, each.attempt, manifest=manifest)
            if self.verify:  # before the receipt is returned: only receipts are committed
                await read_back(self.target, [receipt])
            return receipt

        receipts = []
        uploads = in_order(upload, one_by_one(announced), at_once=self.at_once)
        async with aclosing(uploads):
            async for _, receipt in uploads:
                receipts.append(receipt)
                self._seen.reached = receipt.next_offset
                self._seen.bytes += sum(entry.data_size_bytes for entry in receipt.entries)
                self.progress(self._seen)
        return receipts
