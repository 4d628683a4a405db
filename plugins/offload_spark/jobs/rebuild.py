"""A stream's manifest from its data, the tails of the fragments read by Spark's tasks.

All that decides is `offload.upkeep.rebuild.stream`'s: the driver lists, fences, chooses and commits; tasks
read slices of what is listed and send back what each tail says.

Invariant: the report and the manifest are those of a rebuild without Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from offload.blocking import Blocking
from offload.contracts.store import Listed, ObjectStore
from offload.formats.keys import StreamKeys
from offload.native.own import native
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild as rebuild_stream
from offload.upkeep.rebuild.survey import OnTails, Tail, read_tails

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SLICE_ROWS: Final = 1000
"""How many tails a task reads at most: 16 at once, in some seconds."""

TASKS_PER_SLOT: Final = 4
"""How many tasks a wave has for each of Spark's slots: after each wave it can be seen how far it came."""


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
    slice_rows: int = SLICE_ROWS,
    progress: Callable[[int, int], None] = lambda read, listed: None,
) -> RebuildReport:
    """Make a stream's manifest anew, as `offload.upkeep.rebuild.stream.rebuild` does, which see.

    Whoever calls it asserts that no writer and no sweep of the stream is alive. What a task raises, such as
    `Conflict` where a fragment is deleted meanwhile, comes wrapped by Spark. Raises `Misuse` for an offloader
    that keeps no objects. Needs a session that is no Connect session.
    """
    options = dict(storage_options or {})
    with Blocking(url, storage_options=options) as tier:
        objects = native(tier.offloader, to="rebuild")
        by_spark = _BySpark(spark=spark, url=url, options=options, slice_rows=slice_rows)
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
    """Reads tails by tasks."""

    spark: SparkSession
    url: str
    options: Mapping[str, Any]
    slice_rows: int

    async def read_tails(
        self, store: ObjectStore, keys: StreamKeys, rows: Sequence[Listed], tell: OnTails
    ) -> Mapping[str, Tail]:
        """See `ReadTails`. Spark is waited for in a thread, for it blocks."""
        context = self.spark.sparkContext
        slots = context.defaultParallelism
        size = min(max(len(rows) // slots, 1), self.slice_rows)
        work = partial(_tails, self.url, self.options, keys.stream)
        found: dict[str, Tail] = {}
        for wave in _parts(_parts(rows, size), slots * TASKS_PER_SLOT):
            tasks = context.parallelize(wave, len(wave)).map(work)
            for tails in await asyncio.to_thread(tasks.collect):
                found |= tails
            tell(sum(len(each) for each in wave))
        return found


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _tails(url: str, options: Mapping[str, Any], stream: str, rows: Sequence[Listed]) -> Mapping[str, Tail]:
    """What a task does: read the tails of these fragments."""

    async def read() -> Mapping[str, Tail]:
        objects = native(tier.offloader, to="rebuild")
        await objects.open()
        return await read_tails(objects.store, StreamKeys(stream), rows, lambda more: None)

    with Blocking(url, storage_options=options) as tier:
        return tier.run(read())
