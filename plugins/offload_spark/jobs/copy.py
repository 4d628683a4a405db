"""What one tier has committed, onto another, uploaded by Spark's tasks; one commit for each stream.

How, and what a kill leaves, stands in `transfer`. The origin is a tier; its ledgers are copied in pieces of
some fragments, the newest included, since what is committed does not change. Records keep offset, time,
ledger and bytes; fragments are cut anew, as the target cuts them.

Invariants: every chunk is held against its index and its own checksum before it is stored, and what is
appended ends with the chunk that the source has there; the job is that of two incarnations, so what an
earlier stream of the name left is never gone on with.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.blocking import Blocking
from offload.errors import NotOffloaded, OffloadError, StoreDenied
from offload.formats.manifest import Manifest
from offload.offloader import LedgerOffloader, ReadHandle
from offload.source import Snapshot
from offload.tier.opening import open_tier
from offload.tier.sync import check_same_history
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.jobs.tier_runs import RUN_SIZE_BYTES, TierRun, snapshot_of
from offload_spark.jobs.transfer import Origin, Outcome, Progress, Transfer, abort
from offload_spark.jobs.transfer_tasks import Ends, Fetch, Part, Reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a run did for one stream."""

    stream: str
    fragments: int = 0
    """Uploaded by this run, as the target cuts them."""

    bytes: int = 0
    """Their chunks."""

    taken_over: int = 0
    """Fragments that an earlier run had uploaded."""

    next_offset: int = 0
    """Where the target's stream ends now; 0 where it was not begun, or an error came before the commit."""

    note: str = ""
    """Why the source has nothing of the stream, where that is so."""

    error: OffloadError | None = None
    """What stopped it. Nothing is named by this run then, unless the look behind its commit is `Diverged`."""

    def as_json(self) -> dict[str, object]:
        """One line of `offload spark copy --json`."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    streams: Sequence[str] = (),
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read_back: bool = False,
    piece_size_bytes: int = RUN_SIZE_BYTES,
    progress: Callable[[Progress], None] = lambda progress: None,
    done: Callable[[Copied], None] = lambda copied: None,
) -> list[Copied]:
    """Bring what the tier `source` has committed onto the tier `target`: all streams, or those named.

    Of each stream, what was committed when its turn came. The target's stream is begun where the source's
    begins now, or continued, if both tell the same history. With `read_back`, tasks read what they uploaded
    once more, whole, before it is named. `progress` is told after each wave of tasks, `done` after each
    stream.

    What stops one stream is reported, and the next one goes on: `Diverged` where the histories differ, also
    where the source is trimmed beyond the target's end; `Conflict` where another appended to the target
    first: run again; an `OffloadError` with the words of what a task raised, such as damage in the source.
    After `StoreDenied` no other stream is tried: each would fail in the same way.
    Raises `NotOffloaded` where the source is no tier, or lacks a stream that is named. Needs a session that
    is no Connect session.
    """
    found = []
    reach = TierReach(url=source, options=dict(source_options or {}))
    ends = Ends(reach=reach, url=target, options=dict(target_options or {}), read_back=read_back)
    with Blocking(target, storage_options=ends.options) as tier, _beside(tier, reach) as opened:
        for stream in [*dict.fromkeys(streams)] or tier.run(opened.streams()):
            try:
                manifest = tier.run(opened.load_manifest(stream))
            except NotOffloaded as gone:
                if streams:
                    raise
                found.append(Copied(stream=stream, note=str(gone)))
            else:
                origin = Committed(
                    offloader=opened, manifest=manifest, source=reach, piece_size_bytes=piece_size_bytes
                )
                transfer = Transfer(spark=spark, tier=tier, origin=origin, ends=ends, progress=progress)
                found.append(_copied(transfer, origin))
            done(found[-1])
            if isinstance(found[-1].error, StoreDenied):  # as every other stream would be
                break
    return found


def _copied(transfer: Transfer, origin: Committed) -> Copied:
    outcome, error = Outcome(), None
    try:
        with plain_errors():
            outcome = transfer.run()
            if outcome.uploaded or outcome.taken_over:
                transfer.tier.run(origin.check_end_of(transfer.tier.offloader))
    except OffloadError as exc:
        error = exc
    entries = [entry for receipt in outcome.uploaded for entry in receipt.entries]
    return Copied(
        stream=origin.stream,
        fragments=len(entries),
        bytes=sum(entry.data_size_bytes for entry in entries),
        taken_over=sum(len(receipt.entries) for receipt in outcome.taken_over),
        next_offset=0 if outcome.manifest is None else outcome.manifest.next_offset,
        note="" if outcome.manifest is not None or error is not None else "nothing is committed",
        error=error,
    )


def give_up(
    source: str,
    target: str,
    stream: str,
    *,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> None:
    """Give up what a run of `copy` left that did not end: the target's sweep takes it. Repeatable."""
    reach, options = TierReach(url=source, options=dict(source_options or {})), dict(target_options or {})
    with Blocking(target, storage_options=options) as tier, _beside(tier, reach) as opened:
        manifest = tier.run(opened.load_manifest(stream))
        tier.run(abort(tier.offloader, stream, partial(identity, opened.url, manifest)))


def identity(source: str, committed: Manifest, manifest: Manifest) -> UUID:
    """The job of a source's stream and a target's: the same in every run."""
    names = f"{source}#{committed.stream}#{committed.incarnation}#{manifest.incarnation}"
    return uuid5(NAMESPACE_URL, names)


@contextmanager
def _beside(tier: Blocking, reach: TierReach) -> Iterator[LedgerOffloader]:
    """Another tier, opened on the event loop of this one."""

    async def opened() -> LedgerOffloader:
        return open_tier(reach.url, storage_options=reach.options)

    offloader = tier.run(opened())
    try:
        yield offloader
    finally:
        tier.run(offloader.aclose())


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Origin):
    """A stream of a tier, as one manifest has it."""

    offloader: LedgerOffloader
    manifest: Manifest
    source: TierReach
    piece_size_bytes: int

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
            self.offloader, self.manifest, since=since, run_size_bytes=self.piece_size_bytes
        )

    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """See `Origin.ledgers`."""
        return snapshot.ledgers

    def identity(self, manifest: Manifest) -> UUID:
        """See `Origin.identity`."""
        return identity(self.offloader.url, self.manifest, manifest)

    def described(self, part: Part, ledger: ReadHandle) -> Part:
        """See `Origin.described`."""
        assert isinstance(ledger, TierRun)
        return replace(part, size_bytes=ledger.size_bytes, named=ledger.manifest.encode())

    async def check_end_of(self, target: LedgerOffloader) -> None:
        """Raise `Diverged` unless the last chunk that the target names, read back, is the source's there."""
        manifest = await target.load_manifest(self.stream)
        if manifest.next_offset <= self.manifest.next_offset:  # else another has gone on already
            async with await self.snapshot(manifest) as snapshot:
                await check_same_history(target, manifest, snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReach(Reach):
    """A tier, by URL and options. What is read there, each part says itself."""

    url: str
    options: Mapping[str, Any]

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """See `Reach.opened`."""
        async with open_tier(self.url, storage_options=self.options) as offloader:

            async def fetch(part: Part) -> ReadHandle:
                manifest = Manifest.decode(part.named, where="the plan of a copy")
                return TierRun(offloader, manifest, manifest.entries)

            yield fetch
