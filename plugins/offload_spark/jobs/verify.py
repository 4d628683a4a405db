"""The scrub of a tier: Spark's tasks read its fragments whole.

The driver checks the small objects: anchors, roots and groups, and that every named object exists with its
size (`offload verify` at the level of the manifest). Then tasks check the fragments in waves, in the order of
their keys. So an interrupted job continues behind the last wave.

Invariants: nothing is changed; a fragment counts as damaged only if the newest manifest still names it; a key
that the key service refuses is no damage, and is reported once; a task returns a report of findings and
numbers, and no data.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from offload.formats.fragment import FragmentTail
from offload.formats.keys import StreamKeys, escape
from offload.ground.errors import Corrupt, NotOffloaded, UnsupportedFormat
from offload.model.entry import Entry, entries_of_rows
from offload.model.excerpt import of_fragments
from offload.model.manifest import Manifest
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader
from offload.opening.blocking import Blocking
from offload.upkeep.copy.named_check import is_checked
from offload.upkeep.verify.keys import ReadKeys
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload_spark.opening import TierAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_SIZE_BYTES: Final = 256 * 1024 * 1024
TASKS_PER_SLOT: Final = 4
"""The tasks of a wave for each of Spark's slots: enough that no slot waits long for the slowest task."""


def verify(
    spark: SparkSession,
    url: str,
    *,
    stream: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    keys: str = "",
    after: str = "",
    task_size_bytes: int = TASK_SIZE_BYTES,
    report: VerifyReport | None = None,
    progress: Callable[[VerifyReport], None] = lambda report: None,
) -> VerifyReport:
    """Check a tier, or one of its streams, beginning behind the fragment `after`.

    `keys` is that of a `TierAddress`. Without a key service, only the stored bytes of encrypted fragments are
    checked. Calls `progress` after each wave. Does not read fragments that no manifest names. Reports damage,
    and does not raise it. Raises `NotOffloaded` if the place is no tier or lacks the stream, and `Misuse` for
    an offloader that stores no objects. Needs a classic session, not a Connect session.
    """
    report = VerifyReport() if report is None else report
    address = TierAddress(url=url, storage_options=dict(storage_options or {}), keys=keys)
    with address.opened() as tier:
        report.add(tier.verify(stream, level=VerifyLevel.MANIFEST))
        streams = tier.streams() if stream is None else [stream]
        tasks = _tasks(tier, sorted(streams, key=escape), after, task_size_bytes)
        context = spark.sparkContext
        wave_size = context.defaultParallelism * TASKS_PER_SLOT
        while wave := [*islice(tasks, wave_size)]:
            found = context.parallelize(wave, len(wave)).map(partial(_checked, address)).collect()
            for one in found:
                report.add(one)
                report.judged_to = one.judged_to
            progress(report)
    report.level = VerifyLevel.BYTES
    return report


def _tasks(tier: Blocking, streams: Sequence[str], after: str, size_bytes: int) -> Iterator[Manifest]:
    """Yield manifests of a few fragments each, in the order of keys."""
    for stream in streams:
        if after and StreamKeys(stream).prefix < after.partition("/")[0] + "/":
            continue
        try:
            manifest = tier.load_manifest(stream)
        except (Corrupt, NotOffloaded):
            continue  # the check of the manifests has reported it
        found = _of_stream(tier, manifest, after, size_bytes)
        try:
            while (task := tier.run(_next(found))) is not None:
                yield task
        finally:
            tier.run(found.aclose())


async def _of_stream(
    tier: Blocking, manifest: Manifest, after: str, size_bytes: int
) -> AsyncGenerator[Manifest, None]:
    """Yield runs of fragments behind the key `after`, each of about `size_bytes`."""
    keys = StreamKeys(manifest.stream)
    async with aclosing(tier.offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            first, weight = 0, 0
            for row, entry in enumerate(entries_of_rows(run)):
                if keys.fragment(entry.first_offset, entry.attempt) <= after:
                    first = row + 1
                    continue
                weight += entry.stored_size_bytes
                if weight >= size_bytes or row == len(run) - 1:
                    yield of_fragments(manifest, run[first : row + 1])
                    first, weight = row + 1, 0


async def _next(found: AsyncGenerator[Manifest, None]) -> Manifest | None:
    return await anext(found, None)


def _checked(address: TierAddress, manifest: Manifest) -> VerifyReport:
    """Read each of these fragments whole, in a task."""
    with address.opened() as tier:
        return tier.run(_check_all(tier, manifest))


async def _check_all(tier: Blocking, manifest: Manifest) -> VerifyReport:
    objects = native(tier.offloader, to="scrub")
    report, keys = VerifyReport(), StreamKeys(manifest.stream)
    await objects.open()
    read_keys = ReadKeys(store=objects.store, ring=objects.ring)
    for entry in entries_of_rows(manifest.entries):
        key = keys.fragment(entry.first_offset, entry.attempt)
        try:
            opens = partial(_opens, objects, read_keys, report, entry)
            if await is_checked(objects, manifest, entry, key, opens=opens):
                report.bytes += entry.stored_size_bytes
        except (Corrupt, UnsupportedFormat) as error:
            report.add_error(error, key, manifest.stream)
        report.judged_to = key
    return report


async def _opens(
    objects: ObjectStoreOffloader, keys: ReadKeys, report: VerifyReport, entry: Entry, tail: FragmentTail
) -> bool:
    """Return whether the key of this fragment opens. Raises `Corrupt` if it is lost, and still needed."""
    where = StreamKeys(tail.stream).fragment(entry.first_offset, entry.attempt)
    opened = await keys.opens(tail, report, where=where)
    # The root is loaded after the loss: the stream may have been deleted and swept meanwhile.
    if isinstance(opened, Corrupt) and await _is_named(objects, tail.stream, entry):
        raise opened
    report.not_opened += opened is not True
    return opened is True


async def _is_named(objects: ObjectStoreOffloader, stream: str, entry: Entry) -> bool:
    try:
        newest = await objects.load_manifest(stream)
    except NotOffloaded:
        return False
    return await objects.tree(newest).names(entry.first_offset, entry.attempt)
