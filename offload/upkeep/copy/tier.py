"""One tier's streams onto another, in portions: each is announced, uploaded and named before the next begins.

The steps of a portion, and what a kill leaves, stand in `transfer`. Records keep offset, time, ledger and
bytes; fragments are cut anew, as the target cuts them.

Invariants: every chunk is held against its index and its own checksum before it is stored, and the last chunk
that is appended is the source's there; the job is that of two incarnations, so what an earlier stream of the
name left is never gone on with. Memory is bounded by a portion: `RUNS_PER_PORTION` runs of fragments are
listed, and some of them are under way. All that the target names is a part of the source's history.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.errors import NotOffloaded, OffloadError, StoreDenied
from offload.model.attempt import Receipt
from offload.model.manifest import Manifest
from offload.native.own import native
from offload.streams.history import check_same_history
from offload.tasks import in_order, one_by_one
from offload.upkeep.copy.runs import RUN_SIZE_BYTES, TierRun, snapshot_of
from offload.upkeep.copy.transfer import (
    AnnouncedPart,
    Fetch,
    Origin,
    Reach,
    Transfer,
    TransferPart,
    abort,
    agreed,
    read_back,
    upload_part,
)

__all__ = ["Committed", "Copied", "copy", "give_up", "run_of"]


PARTS_AT_ONCE: Final = 4
RUNS_PER_PORTION: Final = 64
"""How many runs of fragments `copy` uploads at once, and how many at most one commit names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy did for one stream, or has done so far."""

    stream: str
    fragments: int = 0
    """Uploaded by this run, as the target cuts them."""

    bytes: int = 0
    """Their chunks."""

    taken_over: int = 0
    """Fragments that an earlier run had uploaded."""

    next_offset: int = 0
    """Where the target's stream ends now; 0 where it was not begun, or an error came before any commit."""

    note: str = ""
    """Why the source has nothing of the stream, where that is so."""

    error: OffloadError | None = None
    """What stopped it."""

    def as_json(self) -> dict[str, object]:
        """One line of `offload copy --json`, and of `offload spark copy --json`."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}

    def after(self, transfer: Transfer, uploaded: Sequence[Receipt]) -> Copied:
        """Itself, after this transfer was appended."""
        entries = [entry for receipt in uploaded for entry in receipt.entries]
        return replace(
            self,
            fragments=self.fragments + len(entries),
            bytes=self.bytes + sum(entry.data_size_bytes for entry in entries),
            taken_over=self.taken_over + sum(len(receipt.entries) for receipt in transfer.taken_over),
            next_offset=transfer.job.manifest.next_offset,
        )


@dataclass(kw_only=True)
class CopyProgress:
    """How far the copy of one stream has come."""

    stream: str
    offsets: range
    """What the source has committed."""

    reached: int
    """What is below this offset is uploaded, or was there."""

    bytes: int = 0
    """Chunk bytes that this run uploaded."""

    is_checking: bool = False
    """Whether what an earlier run left is read at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Origin):
    """A stream of a tier, as one manifest has it."""

    offloader: LedgerOffloader
    manifest: Manifest
    source: Reach
    part_size_bytes: int = RUN_SIZE_BYTES
    parts_max: int | None = None
    """How many parts a snapshot lists; None is all."""

    @property
    def stream(self) -> str:
        """See `Origin.stream`."""
        return self.manifest.stream

    @property
    def reach(self) -> Reach:
        """See `Origin.reach`."""
        return self.source

    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """See `Origin.snapshot`. What the target has is not walked through."""
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

    def described(self, part: TransferPart, ledger: ReadHandle) -> TransferPart:
        """See `Origin.described`."""
        assert isinstance(ledger, TierRun)
        return replace(part, size_bytes=ledger.size_bytes, named=ledger.manifest)

    async def check_end_of(self, target: LedgerOffloader) -> None:
        """Raise `Diverged` unless the last chunk that the target names, read back, is the source's there."""
        manifest = await target.load_manifest(self.stream)
        if manifest.next_offset <= self.manifest.next_offset:  # else another has gone on already
            async with await self.snapshot(manifest) as snapshot:
                await check_same_history(target, manifest, snapshot)


@dataclass(frozen=True, slots=True)
class OpenTier(Reach):
    """A tier that is open in this process."""

    offloader: LedgerOffloader

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """See `Reach.opened`."""
        yield partial(run_of, self.offloader)


async def run_of(offloader: LedgerOffloader, part: TransferPart) -> ReadHandle:
    """Return a handle on what a part of a tier's stream is cut from, as the part itself names it."""
    manifest = part.named
    assert manifest is not None, "a part of a tier's stream says what it is cut from"
    return TierRun(offloader, manifest, manifest.entries)


def copy_identity(source: str, committed: Manifest, manifest: Manifest) -> UUID:
    """Return the job of a source's stream and a target's: the same in every run."""
    names = f"{source}#{committed.stream}#{committed.incarnation}#{manifest.incarnation}"
    return uuid5(NAMESPACE_URL, names)


async def copy(
    source: LedgerOffloader,
    target: LedgerOffloader,
    *,
    streams: Sequence[str] = (),
    verify: bool = False,
    at_once: int = PARTS_AT_ONCE,
    part_size_bytes: int = RUN_SIZE_BYTES,
    progress: Callable[[CopyProgress], None] = lambda progress: None,
) -> AsyncIterator[Copied]:
    """Bring what `source` has committed onto `target`: all streams, or those named.

    Of each stream, what was committed when its turn came. The target's stream is begun where the source's
    begins now, or continued, if both tell the same history. With `verify`, what was uploaded is read once
    more, whole, before it is named. Killed at any moment and called again, it goes on behind what is named,
    and takes over what else is complete.

    What stops one stream is reported, and the next one goes on. After `StoreDenied` none does. The error is

    - `Diverged` if the histories differ, also if the source is trimmed beyond the target's end;
    - `Conflict` if another appended to the target first: copy again;
    - `TryAgain` if the source was trimmed or compacted, and swept, meanwhile: copy again;
    - `Corrupt` at damage in the source. What stands before its portion is named.

    Raises `NotOffloaded` if the source is no tier, or lacks a stream that is named; `Misuse` if `verify` is
    asked of a target that keeps no objects of our layout.
    """
    if verify:
        native(target, to="read back from")  # refused here, before anything is uploaded
    for stream in [*dict.fromkeys(streams)] or await source.streams():
        try:
            manifest = await source.load_manifest(stream)
        except NotOffloaded as gone:
            if streams:
                raise
            yield Copied(stream=stream, note=str(gone))
            continue
        origin = Committed(
            offloader=source,
            manifest=manifest,
            source=OpenTier(source),
            part_size_bytes=part_size_bytes,
            parts_max=RUNS_PER_PORTION,
        )
        copying = _Copying(origin=origin, target=target, verify=verify, at_once=at_once, progress=progress)
        try:
            await copying.run()
        except OffloadError as error:
            yield replace(copying.done, error=error)
            if isinstance(error, StoreDenied):  # every other stream would be denied too
                return
        else:
            yield copying.done


async def give_up(source: LedgerOffloader, target: LedgerOffloader, stream: str) -> None:
    """Give up what a copy left that did not end: the target's sweep takes it. Repeatable."""
    manifest = await source.load_manifest(stream)
    await abort(target, stream, partial(copy_identity, source.url, manifest))


@dataclass(kw_only=True)
class _Copying:
    """One stream's copy."""

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
                self.done = replace(self.done, note="nothing is committed")
                return
            try:
                is_last = await self._portion(transfer)
            finally:
                await transfer.aclose()
            if is_last:
                return

    async def _portion(self, transfer: Transfer) -> bool:
        """Copy the next runs of fragments. True if nothing is left to copy behind them."""
        self._seen.reached = transfer.job.manifest.next_offset
        async with self.origin.reach.opened() as fetch:
            await self._take_over(transfer, fetch)
            announced = await transfer.announce()
            uploaded = await self._uploaded(transfer, announced, fetch)
        await transfer.append(uploaded)
        self.done = self.done.after(transfer, uploaded)
        if not uploaded and not transfer.taken_over:
            return True
        if self.done.next_offset < self._seen.offsets.stop:
            return False
        await self.origin.check_end_of(self.target)  # of other portions, the next one's begin does it
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
        self, transfer: Transfer, announced: Sequence[AnnouncedPart], fetch: Fetch
    ) -> list[Receipt]:
        manifest = transfer.job.manifest

        async def upload(each: AnnouncedPart) -> Receipt:
            receipt = await upload_part(self.target, fetch, each.part, each.attempt, manifest=manifest)
            if self.verify:
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
