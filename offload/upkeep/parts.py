"""Retention, deletion and copies of a stream with all of its parts. Other modules do the work on each part.

A limit counts the parts as one history, the oldest part first:

    limit     removes
    age       fragments that are too old, up to the first one that is not, in all parts
    size      the oldest data, as long as the bytes of all parts exceed the limit
    offset    all data before the place at which the offset attaches (`read.joined`)

A part is trimmed to its end if all of its data goes. It stays on the tier, empty, because its number is never
used again. By age and size, the last fragment of the newest part with data stays.

    stopped                      left behind                             cured by
    between two trims            older parts trimmed, newer ones not     the next run, which plans again
    between two deletions        the older parts, as one stream          the next deletion

A deletion ends with a fence that no new part passes (`refuse_new_parts`). A part is recorded before the part
before it is fenced, and claimed after that (`copy.next_part`). So a process that may still claim one has
recorded it already, and the look after the last tombstone finds it; or it is refused, because all parts
before are tombstones (`close_before`). A part that was recorded and not claimed gets a tombstone too.

Invariants: data goes oldest first in a trim, and newest part first in a deletion. So what is left is one
history at any moment. No part with data is deleted that the caller did not see. After a deletion of all
parts, the stream has no other part, and gets none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from offload.contracts.catalogue import Catalogue
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import BeingRebuilt, Conflict, NotOffloaded, StreamDeleted
from offload.model.manifest import Manifest
from offload.model.part import part_like
from offload.parts.whole_stream import WholeStream, part_named
from offload.upkeep.retention import Retention, TrimReport, delete_stream, first_ahead, plan_trim, trim
from offload.write.writer import StreamWriter

__all__ = [
    "copy_empty_first",
    "delete_parts",
    "link_copy",
    "live_manifests",
    "refuse_new_parts",
    "refuse_unseen",
    "trim_parts",
]


async def live_manifests(offloader: LedgerOffloader, stream: str) -> list[Manifest]:
    """Return the newest manifest of each part that has a commit and was not deleted, in order.

    Returns none if all were deleted. Raises `NotOffloaded` if the stream was never begun, and if a part is
    being rebuilt.
    """
    found, _ = await _looked(offloader, stream)
    return found


async def _looked(offloader: LedgerOffloader, stream: str) -> tuple[list[Manifest], list[str]]:
    """Return the newest manifests of the live parts, and the names of those that have no commit yet."""
    found, recorded = list[Manifest](), list[str]()
    for name in await WholeStream(offloader, stream).names():
        try:
            found.append(await offloader.load_manifest(name))
        except StreamDeleted:
            continue
        except BeingRebuilt:  # it may have data, and nobody knows how much
            raise
        except NotOffloaded:
            if name == stream:
                raise
            recorded.append(name)
    return found, recorded


async def link_copy(source: Catalogue, target: LedgerOffloader, stream: str) -> None:
    """Before a stream is copied: make it a part on the target, if it is one of the source.

    A stream that is named like a part makes an empty target a tier first. Raises `Conflict` if the target has
    a part of this name and the source has none, or the other way round, and if a stream of its own must be
    copied first, because a lower number would take its name; `Misuse` if the target does not record parts.
    """
    if part_like(stream).number == 1:
        return
    await target.open(create=True)
    part = await part_named(source, stream)
    if part is None:
        if await part_named(target, stream) is not None:
            raise Conflict(f"{target.url} has {stream!r} as a part, and {source.url} as a stream of its own")
        return
    if part in await target.parts(part.first):
        return
    # The search for parts ends at the first name that is free. So the numbers below are taken as well, also
    # if the source's part was deleted. A part without data is passed over.
    of_source, of_target = await source.parts(part.first), await target.streams()
    known = {each.number: each for each in of_source}
    for lower in (known.get(number, part.numbered(number)) for number in range(2, part.number)):
        if lower.name not in of_target and lower not in of_source and await _is_live(source, lower.name):
            raise Conflict(
                f"{lower.name!r} of {source.url} is a stream of its own, and part {part.number} of stream "
                f"{part.first!r} would take its name on {target.url}: copy stream {lower.name!r} first"
            )
        with suppress(Conflict):  # a stream of its own has the name, which is as good
            await target.begin_part(lower, before=None)
    await target.begin_part(part, before=None)


async def copy_empty_first(source: LedgerOffloader, target: LedgerOffloader, stream: str) -> bool:
    """Begin a stream without data on the target, if it has parts and its first one has no data.

    A stream is found by its first part alone. So a copy of its parts would be found by nobody if the first
    one is missing. A first part that was deleted becomes a deleted one. Returns whether there are parts.
    Repeatable: what the target has stays.
    """
    if part_like(stream).number > 1 or not await source.parts(stream):
        return False
    try:
        manifest = await source.load_manifest(stream)
    except StreamDeleted:
        manifest = None
    await target.open(create=True)
    try:
        await target.load_manifest(stream)
    except StreamDeleted:
        return True
    except BeingRebuilt:
        raise
    except NotOffloaded:
        begin, epoch = (0, 0) if manifest is None else (manifest.next_offset, manifest.source_epoch)
        writer = await StreamWriter.claim(target, stream, is_new=True, first_offset=begin, source_epoch=epoch)
        if manifest is None:
            await delete_stream(target, stream, seen=writer.manifest)
    return True


async def _is_live(catalogue: Catalogue, stream: str) -> bool:
    """Return whether a stream has a commit and was not deleted."""
    try:
        await catalogue.view(stream)
    except NotOffloaded:
        return False
    return True


async def trim_parts(
    offloader: LedgerOffloader,
    stream: str,
    retention: Retention,
    *,
    dry_run: bool = False,
    now_ms: int | None = None,
    env: Env | None = None,
) -> list[TrimReport]:
    """Remove the fragments beyond the limits from a stream and its parts. Return a report for each part.

    The arguments and errors are those of `trim`. Raises `StreamDeleted` if every part was deleted.
    """
    env = env or Env()
    now_ms = env.now_ms() if now_ms is None else now_ms
    manifests = await live_manifests(offloader, stream)
    if len(manifests) < 2:  # nothing to divide among parts
        name = manifests[0].stream if manifests else stream
        return [await trim(offloader, name, retention, dry_run=dry_run, now_ms=now_ms, env=env)]
    cuts = await _cuts(offloader, manifests, retention, now_ms)
    reports = []
    for manifest, cut in zip(manifests, cuts, strict=True):
        # A cut is where a fragment begins. Data that came since the plan is behind it.
        before = Retention(before_offset=cut)
        name = manifest.stream
        is_by_age = retention.age_seconds_max is not None
        ahead = await first_ahead(offloader.tree(manifest), now_ms) if is_by_age else None
        report = await trim(offloader, name, before, dry_run=dry_run, seen=manifest, env=env)
        reports.append(replace(report, ahead=ahead))
    return reports


async def _cuts(
    offloader: LedgerOffloader, manifests: Sequence[Manifest], retention: Retention, now_ms: int
) -> list[int]:
    """Return the first offset that stays, for each part. The strictest limit counts, as in `plan_trim`."""
    cuts = [manifest.first_offset for manifest in manifests]
    newest = max((row for row, manifest in enumerate(manifests) if manifest.fragments), default=0)
    for name in ("age_seconds_max", "size_bytes_max", "before_offset"):
        if (limit := getattr(retention, name)) is None:
            continue
        for row, manifest in enumerate(manifests):
            here = limit
            if name == "size_bytes_max":
                here = max(limit - sum(each.data_size_bytes for each in manifests[row + 1 :]), 0)
            change = await plan_trim(
                offloader.tree(manifest),
                Retention(**{name: here}),
                now_ms=now_ms,
                keeps_last=row >= newest,
                behind_ms=await _first_ms(offloader, manifests[row + 1 :]),
            )
            cut = manifest.first_offset if change is None else change.first_offset
            cuts[row] = max(cuts[row], cut)
            # Data of this part stays, or the offset attaches in it: what follows is newer, and stays too.
            if cut < manifest.next_offset or (name == "before_offset" and limit <= manifest.next_offset):
                break
    return cuts


async def _first_ms(offloader: LedgerOffloader, later: Sequence[Manifest]) -> int | None:
    """Return the newest timestamp of the first fragment of these parts. None if they have no data."""
    for manifest in later:
        first = await offloader.tree(manifest).find(manifest.first_offset)
        if first is not None:
            return first.last_timestamp_ms
    return None


async def delete_parts(
    offloader: LedgerOffloader, stream: str, seen: Sequence[Manifest], *, env: Env | None = None
) -> None:
    """Delete a stream with all of its parts, the newest part first. `seen` is from `live_manifests`.

    Raises `Conflict` if a part was begun since. The parts before it are then still there, except those that
    were deleted, and so is the new one: look again. If nothing was live, it only makes sure of that.
    """
    for manifest in reversed(seen):
        # Looked up before each deletion: a writer may begin a part when it finds the last one gone.
        await refuse_unseen(offloader, stream, {each.stream for each in seen})
        await delete_stream(offloader, manifest.stream, seen=manifest, env=env)
    await refuse_new_parts(offloader, stream, env=env)


async def refuse_unseen(offloader: LedgerOffloader, stream: str, known: Collection[str]) -> None:
    """Raise `Conflict` if a stream has a live part whose name is not `known`."""
    for manifest in await live_manifests(offloader, stream):
        if manifest.stream not in known:
            raise _unseen(manifest.stream, stream)


def _unseen(part: str, stream: str) -> Conflict:
    return Conflict(f"{part!r} was begun meanwhile as a part of stream {stream!r}; run again")


async def refuse_new_parts(offloader: LedgerOffloader, stream: str, *, env: Env | None = None) -> None:
    """Make sure that a stream whose parts were all deleted gets no other part, unless it is begun again.

    Raises `Conflict` if one was begun meanwhile: it has data, which the caller did not see.
    """
    while True:
        live, recorded = await _looked(offloader, stream)
        # A stream that somebody has begun again is another one, and the parts are its own.
        if (not live and not recorded) or any(each.stream == stream for each in live):
            return
        if live:
            raise _unseen(live[0].stream, stream)
        for name in recorded:
            with suppress(Conflict):  # somebody has claimed it, and the next look finds that
                writer = await StreamWriter.claim(offloader, name, is_new=True, expected_version=0, env=env)
                await delete_stream(offloader, name, seen=writer.manifest, env=env)
