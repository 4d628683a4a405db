"""Restoring an archived stream into a broker: by publishing its messages, or by writing its chunks.

Publishing may be killed at any moment and repeated:

    killed                              the next run
    before the first message            begins
    after some messages                 reads the target and the archive side by side, and continues behind
                                        the last message that the target has
    while messages were on their way    publishes them again under the same ids: the broker drops repetitions

The comparison proves that the target holds exactly the beginning of this archive. Without it, a restore could
continue in a stream to which somebody else wrote, or from which retention deleted messages.

A stream with parts is published part by part, each under a publisher of its own, because parts may repeat
offsets, and so ids. All messages of a part are confirmed before the next part begins:

    killed                              the next run
    within a part                       finds in which one the target ends, and continues there
    between two parts                   publishes nothing more of the first, and begins the second
    a rival still publishes a part      its repetitions are dropped: this part was confirmed whole

Invariant: the target begins with the records of all parts before the last one that it has any of.

Chunks are written in one piece or not at all: `ChunkTarget` has the promise. A log cannot have holes, so only
one part is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from offload.contracts.target import ChunkTarget, MessageTarget, RestoreOrigin, Tell
from offload.ground.errors import Diverged, Misuse, NotOffloaded
from offload.model.chunk_table import row_holding
from offload.model.manifest import Manifest
from offload.read.batches import Window
from offload.read.salvage import Archive, SkippedOffsets
from offload.restore.read_back import Comparison

ShowRestored = Callable[["RestoreProgress"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreProgress:
    """The progress of a restore, in archived offsets. `size_bytes` counts what this run wrote."""

    is_comparing: bool
    row: int = 0
    """The row of the archive that is restored."""

    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: these archived offsets of one part of a stream are in the target."""

    stream: str
    """The name of the part."""

    part: int
    first_offset: int
    next_offset: int
    written_from: int
    """The archived offset at which this run began to write. Records before it were there already."""

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
        has_tracking=committed.messages < committed.records or not committed.counts_messages,
    )


async def publish(
    archives: Sequence[Archive],
    target: MessageTarget,
    *,
    pace: Callable[[int], Awaitable[None]],
    tell: Tell,
    show: ShowRestored,
    is_followed: bool = False,
) -> list[Restored]:
    """Publish the messages of all parts, and return once the broker has confirmed all of them.

    `pace` is awaited with the number of messages before they are published. Raises `Diverged` if the target
    holds anything but the beginning of this archive. If it `is_followed`, others may have published behind
    the archive's last message, and a part that continues behind the target is left out.
    """
    origins, last_ids = _origins(archives), list[int]()
    for row, origin in enumerate(origins):
        await target.open(origin, _silent if row else tell)
        # Asked before the messages are read: a message that arrives later, from a killed run, is in the
        # target's messages or is dropped as a repetition.
        last_ids.append(await target.last_id())
    comparison = Comparison(archives, target, is_followed)
    await _compare(comparison, last_ids, show)
    for archive in archives[: comparison.row]:
        tell(f"{archive.reader.manifest.stream!r} is in the target already")
    reached, at = archives[comparison.row], comparison.next_offset
    if at > reached.start:
        tell(f"offsets [{reached.start}, {at}) are in the target already; the restore continues behind them")
    # Asked again at the end: no client sees the retention of a policy, but everyone sees what it deleted.
    publishing = _Publishing(target, pace, show, await _first_of(target))
    done = list[Restored]()
    for row, archive in enumerate(archives[: comparison.ends_before]):
        if row < comparison.row:
            done.append(_restored(archive, written_from=archive.end, skipped=archive.skipped))
            continue
        if len(archives) > 1:  # a single one is open
            await target.open(origins[row], _silent)
        done.append(await publishing.part(archive, row, at if archive is reached else archive.start))
    _check_first(target, publishing.first, await _first_of(target))
    return done


@dataclass(slots=True)
class _Publishing:
    """Publishes one part after the other."""

    target: MessageTarget
    pace: Callable[[int], Awaitable[None]]
    show: ShowRestored
    first: tuple[int, bytes] | None
    """The first message of the target; None if it has none yet."""

    size_bytes: int = 0

    async def part(self, archive: Archive, row: int, begins: int) -> Restored:
        """Publish a part from `begins` on, and return once all of it is confirmed."""
        before = [hole for hole in archive.skipped if hole.next_offset <= begins]
        count, size_before = 0, self.size_bytes
        async with aclosing(archive.messages(begins)) as batches:
            async for batch in batches:
                await self.pace(len(batch.bodies))
                await self.target.publish(batch.offset + 1, batch.bodies)
                count, at = count + len(batch.bodies), batch.offset + len(batch.bodies)
                self.size_bytes += sum(map(len, batch.bodies))
                self.show(
                    RestoreProgress(is_comparing=False, row=row, next_offset=at, size_bytes=self.size_bytes)
                )
                if self.first is None:
                    await self.target.flush()
                    self.first = await _first_of(self.target)
                    _check_ours(self.target, self.first, batch.bodies[0])
        await self.target.flush()
        size_bytes, skipped = self.size_bytes - size_before, [*before, *archive.skipped]
        return _restored(archive, written_from=begins, messages=count, size_bytes=size_bytes, skipped=skipped)


def _restored(
    archive: Archive,
    *,
    written_from: int,
    messages: int = 0,
    size_bytes: int = 0,
    skipped: Sequence[SkippedOffsets],
) -> Restored:
    return Restored(
        stream=archive.reader.manifest.stream,
        part=archive.number,
        first_offset=archive.start,
        next_offset=archive.end,
        written_from=written_from,
        messages=messages,
        size_bytes=size_bytes,
        skipped=tuple(skipped),
    )


def _origins(archives: Sequence[Archive]) -> list[RestoreOrigin]:
    """Return what a target must know of each part. It has to hold all of them."""
    origins = [origin_of(archive, archive.start) for archive in archives]
    size_bytes = sum(origin.size_bytes for origin in origins)
    has_tracking = any(origin.has_tracking for origin in origins)
    return [replace(origin, size_bytes=size_bytes, has_tracking=has_tracking) for origin in origins]


def _silent(text: str) -> None:
    """Tell nothing: what a target says when it is opened again was said before."""


async def write_chunks(
    archive: Archive,
    target: ChunkTarget,
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
    first = await _chunk_at(archive, archive.start)
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
        stream=archive.reader.manifest.stream,
        part=archive.number,
        first_offset=first,
        next_offset=await target.finish(),
        written_from=begins,
        messages=0,
        size_bytes=size_bytes,
        skipped=(),
    )


async def _compare(comparison: Comparison, last_ids: Sequence[int], show: ShowRestored) -> None:
    """Find the last archived message that the target has. `last_ids` are those of each part's publisher."""
    target, archives = comparison.target, comparison.archives
    if not any(last_ids):
        async with aclosing(target.messages()) as found:
            if await anext(found, None) is not None:
                raise Diverged(
                    f"{target.url} is not empty, and this archive's publisher wrote nothing to it: restore "
                    "into a new stream"
                )
        comparison.next_offset = archives[0].start
        return
    async with aclosing(comparison.runs()) as runs:
        async for _ in runs:
            row, at = comparison.row, comparison.next_offset
            show(RestoreProgress(is_comparing=True, row=row, next_offset=at, size_bytes=0))
    for row, last_id in enumerate(last_ids):
        at = comparison.next_offset if row == comparison.row else archives[row].start
        if row >= comparison.row and at < last_id:
            which = "" if len(archives) == 1 else f" of {archives[row].reader.manifest.stream!r}"
            raise Diverged(
                f"{target.url} has lost messages: an earlier restore published those{which} up to archived "
                f"offset {last_id - 1}, and those from {at} on are gone, or are not on enough "
                "replicas yet: run the same command again, and if it says so again, restore into a new stream"
            )


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
