"""The index job: Spark's tasks index what is committed and not indexed, each a run of fragments.

A task stores index objects, and commits nothing: the objects are derived, and count by their names alone
(`offload.index.rules`). Then the driver indexes what came meanwhile, merges the objects of all tasks, and
deletes those that are unused. A killed run leaves its objects, and the next one goes on from them. A task
that is tried again stores an object of the same offsets, of which one is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from offload.ground.env import Env
from offload.ground.errors import Denied, NotOffloaded, StoreDenied
from offload.index.build import build_range
from offload.index.job import IndexReport, index_part, unindexed
from offload.index.terms import Spec
from offload.native.layout_check import native
from offload.opening.blocking import Blocking
from offload.opening.plugins import Plugins
from offload.parts.whole_stream import WholeStream, grouped
from offload.read.reader import StreamReader
from offload_spark.bounds import ScanBounds
from offload_spark.columns import decoder_named
from offload_spark.opening import TierAddress
from offload_spark.planning import PlannedPart, partitions_of, pieces_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_SIZE_BYTES: Final = 256 * 1024 * 1024
TASKS_PER_SLOT: Final = 4
"""The tasks of a wave for each of Spark's slots: enough that no slot waits long for the slowest task."""


def index(
    spark: SparkSession,
    url: str,
    by: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    task_size_bytes: int = TASK_SIZE_BYTES,
    progress: Callable[[str, int], None] = lambda stream, next_offset: None,
    refused: Callable[[Denied], None] = lambda error: None,
) -> list[IndexReport]:
    """Index all streams of a tier, or the named ones, by a SPEC. Return a report of each part of a stream.

    Each report counts what the driver did behind the tasks, and the index as it is now. Calls `progress` with
    the name of a part, and with the offset up to which it is indexed, after each wave of tasks. Raises as
    `offload.index.job.index`, and the error of a task, wrapped by Spark. An encrypted stream that was not
    named is passed over, and `refused` is called with its error. Needs a classic session, not a Connect
    session.
    """
    spec, plugins = Spec.parse(by), Plugins.find()
    decoder = decoder_named(spec.decoder, plugins)
    spec.check(decoder)
    address = TierAddress(url=url, storage_options=dict(storage_options or {}))
    wave_size, reports = spark.sparkContext.defaultParallelism * TASKS_PER_SLOT, list[IndexReport]()
    with address.opened() as tier:
        objects = native(tier.offloader, to="index")
        for stream in streams or [each.name for each in tier.run(grouped(tier.catalogue))]:
            try:
                for number, view in tier.run(WholeStream(tier.catalogue, stream).views()):
                    name = view.committed.stream
                    tasks = iter(tier.run(_tasks(tier, name, number, spec, task_size_bytes)))
                    while wave := [*islice(tasks, wave_size)]:
                        spark.sparkContext.parallelize(wave, len(wave)).foreach(
                            partial(_index, address, spec)
                        )
                        progress(name, wave[-1][-1].until)
                    reader = StreamReader(objects, view.committed, part=number)
                    reports.append(tier.run(index_part(objects, reader, spec, decoder)))
            except (NotOffloaded, Denied) as error:
                if streams or isinstance(error, StoreDenied):
                    raise
                if isinstance(error, Denied):  # it is encrypted. Otherwise it was deleted
                    refused(error)
    return reports


async def _tasks(
    tier: Blocking, name: str, number: int, spec: Spec, size_bytes: int
) -> list[list[PlannedPart]]:
    """Return what is not indexed of one part of a stream, as runs of fragments of about this size."""
    root, left = await unindexed(native(tier.offloader, to="index"), name, spec)
    pieces = [
        piece
        for offsets in left
        for piece in await pieces_of(
            tier.catalogue,
            root,
            ScanBounds().and_offsets(offsets.start, offsets.stop),
            stream=name,
            part=number,
        )
    ]
    return partitions_of(pieces, size_bytes=size_bytes, count_min=1)


def _index(address: TierAddress, spec: Spec, parts: Sequence[PlannedPart]) -> None:
    """Index these parts, in a task."""
    with address.opened() as tier:
        tier.run(_built(tier, spec, parts))


async def _built(tier: Blocking, spec: Spec, parts: Sequence[PlannedPart]) -> None:
    decoder, objects = decoder_named(spec.decoder, Plugins.find()), native(tier.offloader, to="index")
    await objects.open()
    for part in parts:
        reader = StreamReader(objects, part.committed, part=part.part)
        begin, end = max(part.first, part.bounds.first_offset), min(part.until, part.bounds.next_offset)
        built = build_range(objects.store, reader, spec, decoder, begin=begin, end=end, env=Env())
        async with aclosing(built):
            async for _ in built:
                pass
