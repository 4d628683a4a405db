"""Guests of a stream that managed ledgers own: they append by jobs, whoever holds the stream.

A guest appends records of its own, or the next chunks of some disk, as a back-fill does. It asks nobody, and
compares nothing. So an owner that continues its stream may find records there that its log lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol_world import STREAM

from offload import MemoryHandle, build_chunk
from offload.formats.entries import messages
from offload.ground.errors import Conflict, NotOffloaded, OutcomeUnknown
from offload.model.manifest import Manifest
from offload.write.job import Job
from simulation.owners import broker_of

if TYPE_CHECKING:
    from simulation.world import Process

CHUNKS_MAX = 3


async def contribute(process: Process) -> None:
    """Append to the stream of the owners, again and again, mostly where it hurts."""
    while await process.rest(process.random.choice((2.0, 10.0))):
        if not _hurts(process) and process.random.random() < 0.8:
            continue
        try:
            await process.do(_append(process))
        except (NotOffloaded, Conflict, *process.failures):
            continue


def _hurts(process: Process) -> bool:
    """Return True if an owner has just committed, and some log has records behind that."""
    root, disks = process.world.judge.root, process.world.disks.values()
    return (
        root is not None
        and root.committer == root.writer
        and any(disk.next_offset > root.next_offset for disk in disks)
    )


async def _append(process: Process) -> None:
    job = await Job.begin(process.offloader, STREAM, env=process.env)
    broker = broker_of(process.world)
    broker.jobs.add(job.uid.bytes)
    end = job.manifest.next_offset
    chunks = _of_a_disk(process, end) if process.random.random() < 0.4 else _own(process, job.manifest)
    if not chunks:
        return
    handle = MemoryHandle(chunks)
    for row, chunk in zip(await handle.table(), chunks, strict=True):
        broker.contributed(int(row["offset"]), chunk)
    try:
        manifest, [attempt] = await job.prepare([end])
        receipt = await process.offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})
        try:
            await job.append([receipt])
        except OutcomeUnknown:
            await job.append([receipt])
    except Conflict:
        await job.abort()
        raise
    process.world.happened("appends by guests")


def _own(process: Process, manifest: Manifest) -> list[bytes]:
    """Return chunks of records that no log has. They are often cut as those of a log are."""
    chunks, offset = [], manifest.next_offset
    cuts = [len(messages(each, where="a log")) for each in _of_a_disk(process, offset)] or [1, 2, 1]
    for records in cuts[: process.random.randint(1, CHUNKS_MAX)]:
        bodies = [f"{process.name}:{offset}".encode()] * records
        epoch = max(manifest.source_epoch, 1)
        chunks.append(build_chunk(bodies, offset=offset, timestamp_ms=process.env.now_ms(), epoch=epoch))
        offset += len(bodies)
    return chunks


def _of_a_disk(process: Process, offset: int) -> list[bytes]:
    """Return the chunks that some disk has from this offset on. Empty if none begins there."""
    disks = [disk for _, disk in sorted(process.world.disks.items()) if offset in disk.chunks]
    if not disks:
        return []
    chunks = process.random.choice(disks).chunks
    return [chunks[each] for each in sorted(chunks) if each >= offset][
        : process.random.randint(1, CHUNKS_MAX)
    ]
