"""What a broker has sealed, onto a tier, each ledger by a task of Spark's; then one commit.

How, and what a kill leaves, stands in `offload.upkeep.copy.transfer`. The origin is a source, which the
tasks open by its URL.
Invariant: the newest ledger stays with the broker: it may still grow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.blocking import Blocking
from offload.contracts.ledger import ReadHandle
from offload.contracts.source import Snapshot, SourceStream
from offload.errors import NotOffloaded
from offload.model.manifest import Manifest
from offload.opening import open_source
from offload.upkeep.copy.transfer import Fetch, Origin, Reach, TransferPart, abort
from offload_spark.jobs.transfer import SparkTransfer
from offload_spark.jobs.transfer_tasks import Ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What a run did for one stream."""

    stream: str
    ledgers: int
    """Uploaded by this run."""

    taken_over: int
    """Fragments that an earlier run had uploaded."""

    next_offset: int
    """Where the tier's stream ends now."""


def backfill(
    spark: SparkSession,
    source: str,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Backfilled], None] = lambda done: None,
) -> list[Backfilled]:
    """Bring the sealed ledgers of a source onto the tier, stream after stream: all, or those that are named.

    A stream that the tier does not have is begun. `progress` is told after each stream. Raises `Conflict`
    where another appended first: run again. `Diverged`, where source and tier tell different histories, and
    what a task raises, such as `Corrupt` at damage in the source, wrapped by Spark: nothing is named then.
    Needs a session that is no Connect session.
    """
    options = dict(storage_options or {})
    done = []
    with Blocking(url, storage_options=options) as tier:
        found = tier.run(open_source(source).streams())
        for stream in [each for each in found if not streams or each.name in streams]:
            origin = SealedOrigin(url=source, source=stream)
            ends = Ends(reach=origin.reach, url=url, options=options)
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
    """Give up what a run of `backfill` left that did not end: the sweep takes it. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:
        tier.run(abort(tier.offloader, stream, partial(identity, source)))


def identity(source: str, manifest: Manifest) -> UUID:
    """The job of a source and a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"{source}#{manifest.stream}#{manifest.incarnation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedOrigin(Origin):
    """A stream of a source, but for its newest ledger."""

    url: str
    source: SourceStream

    @property
    def stream(self) -> str:
        """See `Origin.stream`."""
        return self.source.name

    @property
    def reach(self) -> Reach:
        """See `Origin.reach`."""
        return SourceReach(url=self.url, stream=self.stream)

    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """See `Origin.snapshot`."""
        return await self.source.snapshot()

    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """See `Origin.ledgers`."""
        return snapshot.ledgers[:-1]

    def identity(self, manifest: Manifest) -> UUID:
        """See `Origin.identity`."""
        return identity(self.url, manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReach(Reach):
    """A source, by its URL."""

    url: str
    stream: str

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """See `Reach.opened`."""
        stream = await open_source(self.url).stream(self.stream)
        async with await stream.snapshot() as snapshot:

            async def fetch(part: TransferPart) -> ReadHandle:
                for ledger in snapshot.ledgers:
                    if ledger.ledger_id == part.ledger_id:
                        return ledger
                raise NotOffloaded(
                    f"{self.url}: stream {self.stream!r} has no ledger {part.ledger_id} any more"
                )

            yield fetch
