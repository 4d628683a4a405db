"""Compaction by Spark's tasks: the steps are those of `offload.upkeep.compact.stream`; each task copies one
run.

What a kill leaves, and how it is cured, stands there. A task that is tried again announces an attempt of its
own, since the first try may still be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from offload.blocking import Blocking
from offload.errors import NotOffloaded
from offload.model.attempt import Receipt
from offload.native.offloader import TierOptions
from offload.opening import open_tier
from offload.upkeep.compact.stream import AnnouncedRun, Compacted, Compaction, begin_job, copied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_PER_SLOT: Final = 4
"""How many runs a wave has for each of Spark's slots: enough that none waits for the slowest for long."""


def compact(
    spark: SparkSession,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    fragment_size_bytes: int = TierOptions().fragment_size_bytes,
    fragments_min: int = 2,
    progress: Callable[[Compacted], None] = lambda compacted: None,
) -> list[Compacted]:
    """Put fragments of up to this size in the place of small ones: of all streams, or of those named.

    Runs of fewer than `fragments_min` fragments stay. Readers and writers go on meanwhile, and notice
    nothing. `progress` is told after each wave of tasks. Raises `NotOffloaded` where the place is no tier or
    lacks a stream that is named, and what a task raises, such as `Corrupt` at damage, wrapped by Spark: what
    is in stays in then. Needs a session that is no Connect session.
    """
    options = dict(storage_options or {})
    done = []
    with _opened(url, options, fragment_size_bytes) as tier:
        slots = spark.sparkContext.defaultParallelism
        work = partial(_copied_by_task, url, options, fragment_size_bytes)
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
                continue  # of all streams, some are deleted
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
    """Give up what a run of `compact` left that did not end: the sweep takes it. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:
        tier.run(tier.run(begin_job(tier.offloader, stream)).abort())


def _opened(url: str, options: Mapping[str, Any], size_bytes: int) -> Blocking:
    how = TierOptions(fragment_size_bytes=size_bytes)
    return Blocking.around(lambda: open_tier(url, storage_options=options, options=how))


def _copied_by_task(
    url: str, options: Mapping[str, Any], size_bytes: int, announced: AnnouncedRun
) -> Receipt | None:
    """What a task does: one run. None where it changed meanwhile."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0
    with _opened(url, options, size_bytes) as tier:
        return tier.run(copied(tier.offloader, announced, is_first=not tries))
