"""Restoring an archived stream into a broker: by publishing its messages, or by writing its chunks.

Publishing may be killed at any moment and repeated:

    killed                              the next run
    before the first message            begins
    after some messages                 reads the target and the archive side by side, and continues behind
                                        the last message that the target has
    while messages were on their way    publishes them again under the same ids: the broker drops repetitions

The comparison proves that the target holds exactly the beginning of this archive. Without it, a restore could
continue in a stream to which somebody else wrote, or from which retention deleted messages.

Chunks are written in one piece or not at all: `ChunkTarget` has the promise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from offload.contracts.target import ChunkTarget, MessageTarget, RestoreOrigin, Tell
from offload.errors import Diverged, Misuse, NotOffloaded
from offload.model.chunk_table import row_holding
from offload.model.manifest import Manifest
from offload.streams.batches import Window
from offload.streams.read_back import Comparison
from offload.streams.salvage import Archive, SkippedOffsets

ShowRestored = Callable[["RestoreProgress"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreProgress:
    """The progress of a restore, in archived offsets. `size_bytes` counts what this run wrote."""

    is_comparing: bool
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: the archived offsets [first_offset, next_offset) are in the target."""

    first_offset: int
    next_offset: int
    written_from: int
    """The archived offset at which this run began to write. What is before it was there already."""

    messages: int
    """The number of messages that this run published. A restore of files does not count them."""

    size_bytes: int
    skipped: tuple[SkippedOffsets, ...]


def origin_of(archive: Archive, start: int) -> RestoreOrigin:
    """Return what a target must know of the part of a stream that begins at `start`."""
    committed = archive.reader.manifest
    return RestoreOrigin(
        stream=committed.stream,
        incarnation=committed.incarnation,
        first_offset=start,
        next_offset=min(archive.until, committed.next_offset),
        size_bytes=committed.data_size_bytes,
        epoch=committed.source_epoch if isinstance(committed, Manifest) else None,
        has_tracking=committed.messages < committed.records,
    )


async def publish(
    archive: Archive,
    target: MessageTarget,
    start: int,
    *,
    pace: Callable[[int], Awaitable[None]],
    tell: Tell,
    show: ShowRestored,
    is_followed: bool = False,
) -> Restored:
    """Publish the messages from offset `start` on, and return once the broker has confirmed all of them.

    `pace` is awaited with the number of messages before they are published. Raises `Diverged` if the target
    holds anything but the beginning of this archive. If it `is_followed`, others may have published behind
    the archive's last message.
    """
    await target.open(origin_of(archive, start), tell)
    begins = await _published(Comparison(archive, target, start, is_followed), show)
    before = [hole for hole in archive.skipped if hole.next_offset <= begins]
    if begins > start:
        tell(f"offsets [{start}, {begins}) are in the target already; the restore continues behind them")
    # Asked again at the end: no client sees the retention of a policy, but everyone sees what it deleted.
    first = await _first_of(target)
    at, count, size_bytes = begins, 0, 0
    async with aclosing(archive.messages(begins)) as batches:
        async for batch in batches:
            await pace(len(batch.bodies))
            await target.publish(batch.offset + 1, batch.bodies)
            count, size_bytes = count + len(batch.bodies), size_bytes + sum(map(len, batch.bodies))
            at = batch.offset + len(batch.bodies)
            show(RestoreProgress(is_comparing=False, next_offset=at, size_bytes=size_bytes))
            if first is None:
                await target.flush()
                first = await _first_of(target)
                _check_ours(target, first, batch.bodies[0])
    skipped = (*before, *archive.skipped)
    await target.flush()
    _check_first(target, first, await _first_of(target))
    return Restored(
        first_offset=start,
        next_offset=max(start, min(archive.until, archive.reader.manifest.next_offset)),
        written_from=begins,
        messages=count,
        size_bytes=size_bytes,
        skipped=skipped,
    )


async def write_chunks(
    archive: Archive,
    target: ChunkTarget,
    start: int,
    *,
    tell: Tell,
    show: ShowRestored,
    written: Callable[[bytes], Awaitable[object]] | None = None,
) -> Restored:
    """Write the chunks from the one that holds `start` on, as they are stored.

    The broker finds none of them before all were written. `written` is awaited between the two, with the
    header of the last chunk as the broker will find it. Raises `Misuse` if damage is to be skipped: a
    broker's log has no holes; and `NotOffloaded` if there is no chunk to restore.
    """
    if archive.skip_damage:
        raise Misuse(
            "the files of a broker cannot leave out damaged chunks: publish the messages to a running "
            "broker, or restore the part before the damage with --until"
        )
    first = await _chunk_at(archive, start)
    if first >= archive.until:
        raise NotOffloaded(f"no chunk begins in offsets [{first}, {archive.until}): nothing to restore")
    begins = await target.open(origin_of(archive, first), tell)
    size_bytes = 0
    async with aclosing(archive.sound(begins, _chunks)) as windows:
        async for window in windows:
            await target.write(window.rows, window.data)
            size_bytes += len(window.data)
            at = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
            show(RestoreProgress(is_comparing=False, next_offset=at, size_bytes=size_bytes))
    if written is not None:
        await written(target.last_header)
    return Restored(
        first_offset=first,
        next_offset=await target.finish(),
        written_from=begins,
        messages=0,
        size_bytes=size_bytes,
        skipped=(),
    )


async def _published(comparison: Comparison, show: ShowRestored) -> int:
    """Return the archived offset behind the last message that the target has, or `start` if it is empty."""
    target = comparison.target
    # Asked before the messages are read: a message that arrives later, from a killed run, is in the target's
    # messages or is dropped as a repetition.
    last_id = await target.last_id()
    if not last_id:
        async with aclosing(target.messages()) as found:
            if await anext(found, None) is not None:
                raise Diverged(
                    f"{target.url} is not empty, and this archive's publisher wrote nothing to it: restore "
                    "into a new stream"
                )
        return comparison.start
    async with aclosing(comparison.runs()) as runs:
        async for _ in runs:
            show(RestoreProgress(is_comparing=True, next_offset=comparison.next_offset, size_bytes=0))
    if comparison.next_offset < last_id:
        raise Diverged(
            f"{target.url} has lost messages: an earlier restore published those up to archived offset "
            f"{last_id - 1}, and those from {comparison.next_offset} on are gone, or are not on enough "
            "replicas yet: run the same command again, and if it says so again, restore into a new stream"
        )
    return comparison.next_offset


async def _first_of(target: MessageTarget) -> tuple[int, bytes] | None:
    """Return the offset and the body of the target's first message; None if it has none."""
    async with aclosing(target.messages()) as found:
        first = await anext(found, None)
    return None if first is None else (first.offset, first.bodies[0])


def _check_ours(target: MessageTarget, first: tuple[int, bytes] | None, body: bytes) -> None:
    """Raise `Diverged` if the target, which was empty, does not begin with the first message of this run."""
    if first is None or first[1] != body:
        raise Diverged(
            f"{target.url} was empty, and begins with another message than this restore published: another "
            "publisher, or a restore with another --from, wrote to it meanwhile; restore into a new stream"
        )


def _check_first(
    target: MessageTarget, expected: tuple[int, bytes] | None, found: tuple[int, bytes] | None
) -> None:
    """Raise `Diverged` if the target's first message is another one: its retention is too small."""
    if found != expected:
        raise Diverged(
            f"{target.url} no longer has the first restored message: its retention, perhaps that of a "
            "policy, deleted it; raise the retention, and restore into a new stream"
        )


async def _chunk_at(archive: Archive, offset: int) -> int:
    """Return the first offset of the chunk that holds `offset`."""
    committed = archive.reader.manifest
    view = archive.catalogue.view_of(committed)
    entry = await view.find(offset)
    if entry is None:
        raise NotOffloaded(f"stream {committed.stream!r} has no chunk at offset {offset}: nothing to restore")
    async with await view.open(entry) as handle:
        table = await handle.table()
    return int(table["offset"][row_holding(table, offset)])


def _chunks(window: Window) -> Iterator[tuple[Window, int]]:
    yield window, int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
