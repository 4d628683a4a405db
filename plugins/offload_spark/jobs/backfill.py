"""The back-fill: Spark's tasks copy the sealed ledgers of a broker to a tier, with one commit per stream.

`offload.upkeep.copy.transfer` has the steps, and says what a killed run leaves. The origin is a source, which
the tasks open by its URL. Invariant: the newest ledger is not copied, because it may still grow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.contracts.ledger import ReadHandle
from offload.contracts.source import Snapshot, SourceStream
from offload.ground.errors import NotOffloaded
from offload.model.compression import Compression
from offload.model.manifest import Manifest
from offload.opening.blocking import Blocking
from offload.opening.by_url import open_source
from offload.upkeep.copy.transfer import Fetch, Origin, Reach, TransferRange, abort
from offload_spark.jobs.transfer import SparkTransfer
from offload_spark.jobs.transfer_tasks import Ends
from offload_spark.opening import TierAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """The result of a run for one stream."""

    stream: str
    ledgers: int
    """The number of ledgers that this run uploaded."""

    taken_over: int
    """The number of fragments that an earlier run had uploaded."""

    next_offset: int
    """The end of the tier's stream now."""


def backfill(
    spark: SparkSession,
    source: str,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    compression: Compression | None = None,
    keys: str = "",
    encrypt: str = "",
    progress: Callable[[Backfilled], None] = lambda done: None,
) -> list[Backfilled]:
    """Copy the sealed ledgers of a source to the tier, stream after stream: of all, or of the named streams.

    Begins a stream that the tier does not have. `compression` is that of the new fragments. None means the
    tier's default. `keys` and `encrypt` are those of a `TierAddress`. Calls `progress` after each stream.
    Raises `Conflict` if another writer appended first (run it again), `Diverged` if the histories of source
    and tier differ, and the error of a task, such as `Corrupt` for damage in the source, wrapped by Spark. In
    all these cases nothing of the stream is committed. Needs a classic session, not a Connect session.
    """
    target = TierAddress(
        url=url,
        storage_options=dict(storage_options or {}),
        keys=keys,
        encrypt=encrypt,
        compression=compression,
    )
    done = []
    with target.opened() as tier:
        found = tier.run(open_source(source).streams())
        for stream in [each for each in found if not streams or each.name in streams]:
            origin = SealedOrigin(url=source, source=stream)
            ends = Ends(reach=origin.reach, target=target)
            transfer, uploaded = SparkTransfer(spark=spark, tier=tier, origin=origin, ends=ends).run()
            taken_over = [] if transfer is None else transfer.taken_over
            done.append(
                Backfilled(
                    stream=stream.name,
                    ledgers=len(uploaded),
                    taken_over=sum(len(receipt.entries) for receipt in taken_over),
                    next_offset=0 if transfer is None else transfer.job.manifest.next_offset,
                )
            )
            progress(done[-1])
    return done


def abandon(source: str, url: str, stream: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Discard what an unfinished run of `backfill` left. The sweep deletes its objects. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:
        tier.run(abort(tier.offloader, stream, partial(identity, source)))


def identity(source: str, manifest: Manifest) -> UUID:
    """Return the job's id for a source and a stream's incarnation. It is the same in every run."""
    return uuid5(NAMESPACE_URL, f"{source}#{manifest.stream}#{manifest.incarnation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedOrigin(Origin):
    """A stream of a source without its newest ledger."""

    url: str
    source: SourceStream

    @property
    def stream(self) -> str:
        """The name of the stream (`Origin.stream`)."""
        return self.source.name

    @property
    def reach(self) -> Reach:
        """The way by which tasks open the source (`Origin.reach`)."""
        return SourceReach(url=self.url, stream=self.stream)

    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """Return a snapshot of the source's stream (`Origin.snapshot`)."""
        return await self.source.snapshot()

    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """Return all ledgers but the newest one, which the broker still writes (`Origin.ledgers`)."""
        return snapshot.ledgers[:-1]

    def identity(self, manifest: Manifest) -> UUID:
        """Return the job's id (`Origin.identity`)."""
        return identity(self.url, manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReach(Reach):
    """A source, by its URL."""

    url: str
    stream: str

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """Open a snapshot of the stream in a task (`Reach.opened`)."""
        stream = await open_source(self.url).stream(self.stream)
        async with await stream.snapshot() as snapshot:

            async def fetch(wanted: TransferRange) -> ReadHandle:
                for ledger in snapshot.ledgers:
                    if ledger.ledger_id == wanted.ledger_id:
                        return ledger
                raise NotOffloaded(
                    f"{self.url}: stream {self.stream!r} no longer has ledger {wanted.ledger_id}"
                )

            yield fetch
