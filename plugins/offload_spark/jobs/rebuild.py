"""The rebuild of a stream's manifest from its data. Spark's tasks read the tails of the fragments.

`offload.upkeep.rebuild.stream` makes all decisions: the driver lists, fences, chooses and commits. Tasks read
slices of the listing, and return the content of each tail.

Invariant: report and manifest are the same as those of a rebuild without Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from offload.contracts.store import Listed, ObjectStore
from offload.formats.keys import StreamKeys
from offload.native.layout_check import native
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild as rebuild_stream
from offload.upkeep.rebuild.survey import OnTails, Tail, read_tails
from offload_spark.opening import TierAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SLICE_ROWS: Final = 1000
"""The most tails of one task. It reads 16 at a time, in a few seconds."""

TASKS_PER_SLOT: Final = 4
"""The tasks of a wave for each of Spark's slots. Progress is reported after each wave."""


def rebuild(
    spark: SparkSession,
    url: str,
    stream: str,
    *,
    incarnation: UUID | None = None,
    begin: int | None = None,
    end: int | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    keys: str = "",
    slice_rows: int = SLICE_ROWS,
    progress: Callable[[int, int], None] = lambda read, listed: None,
) -> RebuildReport:
    """Rebuild a stream's manifest as `offload.upkeep.rebuild.stream.rebuild` does.

    The caller asserts that no writer and no sweep of the stream is alive. Spark wraps the error of a task,
    such as `Conflict` if a fragment is deleted meanwhile. `keys` is that of a `TierAddress`. Raises `Misuse`
    for an offloader that stores no objects. Needs a classic session, not a Connect session.
    """
    address = TierAddress(url=url, storage_options=dict(storage_options or {}), keys=keys)
    with address.opened() as tier:
        objects = native(tier.offloader, to="rebuild")
        by_spark = _BySpark(spark=spark, tier=address, slice_rows=slice_rows)
        return tier.run(
            rebuild_stream(
                objects,
                stream,
                incarnation=incarnation,
                begin=begin,
                end=end,
                dry_run=dry_run,
                read_tails=by_spark.read_tails,
                progress=progress,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BySpark:
    """A reader of tails by Spark's tasks."""

    spark: SparkSession
    tier: TierAddress
    slice_rows: int

    async def read_tails(
        self, store: ObjectStore, keys: StreamKeys, rows: Sequence[Listed], tell: OnTails
    ) -> Mapping[str, Tail]:
        """Read the tails as `ReadTails` says. Wait for Spark in a thread, because it blocks."""
        context = self.spark.sparkContext
        slots = context.defaultParallelism
        size = min(max(len(rows) // slots, 1), self.slice_rows)
        work = partial(_tails, self.tier, keys.stream)
        found: dict[str, Tail] = {}
        for wave in _parts(_parts(rows, size), slots * TASKS_PER_SLOT):
            tasks = context.parallelize(wave, len(wave)).map(work)
            for tails in await asyncio.to_thread(tasks.collect):
                found |= tails
            tell(sum(len(each) for each in wave))
        return found


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _tails(address: TierAddress, stream: str, rows: Sequence[Listed]) -> Mapping[str, Tail]:
    """Read the tails of these fragments in a task."""

    async def read() -> Mapping[str, Tail]:
        objects = native(tier.offloader, to="rebuild")
        await objects.open()
        return await read_tails(objects.store, StreamKeys(stream), rows, lambda more: None)

    with address.opened() as tier:
        return tier.run(read())
