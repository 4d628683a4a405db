"""Compaction by Spark's tasks, with the steps of `offload.upkeep.compact.stream`. Each task copies one run.

That module says what a killed run leaves, and what cures it. A task that is tried again announces an attempt
of its own, because the first try may still be running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from offload.ground.errors import NotOffloaded
from offload.model.attempt import Receipt
from offload.model.compression import Compression
from offload.native.offloader import TierOptions
from offload.opening.blocking import Blocking
from offload.upkeep.compact.stream import AnnouncedRun, Compacted, Compaction, begin_job, copied
from offload_spark.opening import TierAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_PER_SLOT: Final = 4
"""The runs of a wave for each of Spark's slots: enough that no slot waits long for the slowest run."""


def compact(
    spark: SparkSession,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    fragment_size_bytes: int = TierOptions().fragment_size_bytes,
    fragments_min: int = 2,
    compression: Compression | None = None,
    keys: str = "",
    encrypt: str = "",
    progress: Callable[[Compacted], None] = lambda compacted: None,
) -> list[Compacted]:
    """Merge small fragments into fragments of up to this size: of all streams, or of the named ones.

    Runs of fewer than `fragments_min` fragments stay. `compression` is that of the merged fragments. None
    means the tier's default. `keys` and `encrypt` are those of a `TierAddress`. Readers and writers continue
    undisturbed. Calls `progress` after each wave of tasks. Raises `NotOffloaded` if the place is no tier or
    lacks a named stream, and the error of a task, such as `Corrupt` for damage, wrapped by Spark. What was
    replaced before stays replaced. Needs a classic session, not a Connect session.
    """
    address = TierAddress(
        url=url,
        storage_options=dict(storage_options or {}),
        keys=keys,
        encrypt=encrypt,
        compression=compression,
        fragment_size_bytes=fragment_size_bytes,
    )
    done = []
    with address.opened() as tier:
        slots = spark.sparkContext.defaultParallelism
        work = partial(_copied_by_task, address)
        for stream in [*dict.fromkeys(streams)] or tier.streams():
            try:
                compaction = tier.run(
                    Compaction.begin(
                        tier.offloader,
                        stream,
                        fragment_size_bytes=fragment_size_bytes,
                        fragments_min=fragments_min,
                    )
                )
            except NotOffloaded:
                if streams:
                    raise
                continue  # the stream was deleted after the streams were listed
            try:
                while wave := tier.run(compaction.wave(slots * RUNS_PER_SLOT)):
                    receipts = spark.sparkContext.parallelize(wave, len(wave)).map(work).collect()
                    for announced, receipt in zip(wave, receipts, strict=True):
                        tier.run(compaction.replace(announced.run, receipt))
                    progress(compaction.done)
            finally:
                tier.run(compaction.end())
            done.append(compaction.done)
    return done


def give_up(url: str, stream: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Discard what an unfinished run of `compact` left. The sweep deletes its objects. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:
        tier.run(tier.run(begin_job(tier.offloader, stream)).abort())


def _copied_by_task(address: TierAddress, announced: AnnouncedRun) -> Receipt | None:
    """Copy one run in a task. Return None if its fragments changed meanwhile."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0
    with address.opened() as tier:
        return tier.run(copied(tier.offloader, announced, is_first=not tries))
