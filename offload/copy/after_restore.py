"""Going on behind a restore: the archive continues in a new part, and its source is the restored stream.

The target of a restore begins with messages that the archive has already. The new part begins behind the
chunk that ends with the last of them. The part's anchor has the header of this chunk. So a sync of the
target, under the name of the archived stream, finds where to begin, and whether it has the right source.

    settle     the restored part is claimed, and uploads of a crashed writer are adopted. The archive must end
               where it ended for the restore
    record     the anchor of the new part is created, with the header
    close      as in `copy.next_part`
    claim      the first root of the part is claimed. The part begins at the end of the chunk

    stopped after      left behind                             cured by
    settle             a writer without attempts               nothing to cure
    record, close      a part without a root                   the same restore, or the next sync

Invariant: no chunk up to the recorded one is copied to the part, and no chunk behind it is left out. No chunk
has both restored and new messages: the broker had written all restored messages before the target was read
back, and the reading refuses a chunk that has others behind the last one (`restore.read_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from offload.contracts.events import Event, PartBegun
from offload.copy.history import end_of_chunk, newest
from offload.copy.next_part import PartOnTier, never
from offload.ground.env import Env
from offload.ground.errors import BeingRebuilt, Conflict, Diverged, NotOffloaded, StreamDeleted, TryAgain
from offload.model.manifest import CommittedStream, Manifest
from offload.parts.whole_stream import LivePart
from offload.write.writer import StreamWriter

__all__ = ["begin_behind", "open_behind", "refuse_gone_on", "restored_part"]


def restored_part(live: Sequence[LivePart], header: bytes = b"") -> LivePart:
    """Return the part, with its state, behind which a restore of all `live` parts continues.

    It is the newest one, without those that begin behind a restore and were never used. `header` is that of
    the last restored chunk in the target: a part that begins behind it was begun by an earlier run.
    """
    found = live[0]
    for each in live:
        if each.part.behind and each.part.behind == header:
            break
        if not _is_unused(each.part.behind, each.committed):
            found = each
    return found


async def refuse_gone_on(part: PartOnTier) -> None:
    """Raise `Diverged` if the stream continues in a part that no restore began. To be asked before one."""
    for later, manifest in await _live_behind(part):
        if not later.behind and manifest is not None:
            raise _gone_on(later)


async def begin_behind(
    part: PartOnTier,
    restored: CommittedStream,
    header: bytes,
    *,
    env: Env,
    emit: Callable[[Event], None],
) -> PartOnTier:
    """Begin a new part of the stream behind the chunk with this header, and return the part.

    `restored` is the state of `part` that was restored. May be repeated: it then returns the same part.
    Raises `TryAgain` if the archive has grown since, and `Diverged` if the stream continues in another
    part.
    """
    last, begun_behind = part, await _live_behind(part)
    if begun_behind:
        # A sync continues the newest part only, so an earlier part of this header does not count.
        last = begun_behind[-1][0]
        if last.behind == header:
            await open_behind(last, env=env)
            return last
    if used := [later for later, manifest in begun_behind if not _is_unused(later.behind, manifest)]:
        raise _gone_on(used[-1])
    await _settle(part, restored, env)

    # Whoever copies the first data makes sure that it is encrypted if the part before is.
    begun = await last.record_next(partial(part.offloader.begin_part, before=None), behind=header)
    if begun.behind != header:
        raise Conflict(f"stream {part.stream!r} continues as {begun.name!r} meanwhile")
    await open_behind(begun, env=env)
    first, ended = end_of_chunk(header), restored.next_offset
    emit(PartBegun(stream=part.stream, part=begun.number, first_offset=first, ended_offset=ended))
    return begun


async def open_behind(part: PartOnTier, *, env: Env) -> Manifest:
    """Return the newest manifest of a part that begins behind a chunk. If it has no root, claim the first."""
    manifest = await newest(part.offloader, part.name)
    if manifest is not None:
        return manifest
    await part.close_before(source_epoch=0, env=env)
    try:
        writer = await StreamWriter.claim(
            part.offloader,
            part.name,
            is_new=True,
            first_offset=end_of_chunk(part.behind),
            expected_version=0,
            agree=never,
            env=env,
        )
    except Conflict:
        # A rival got the root, and may have begun to copy. Or the stream was deleted, and the part with it.
        return await part.offloader.load_manifest(part.name)
    return writer.manifest


async def _live_behind(part: PartOnTier) -> list[tuple[PartOnTier, Manifest | None]]:
    """Return the parts behind this one that were not deleted, in order, each with its newest manifest."""
    found = list[tuple[PartOnTier, Manifest | None]]()
    for later in await part.later():
        try:
            found.append((later, await part.offloader.load_manifest(later.name)))
        except StreamDeleted:
            continue
        except BeingRebuilt:  # it may have data, and nobody knows how much
            raise
        except NotOffloaded:
            found.append((later, None))
    return found


def _gone_on(later: PartOnTier) -> Diverged:
    return Diverged(
        f"stream {later.stream!r} continues as {later.name!r}: restore that part with --new-part, or all "
        f"parts, into a new stream: offload restore TIER {later.stream} TARGET --new-part"
    )


def _is_unused(behind: bytes, committed: CommittedStream | None) -> bool:
    """Return whether nothing was ever copied to a part: it was recorded alone, or begun by a restore."""
    if committed is None or not behind:
        return committed is None
    return not committed.fragments and committed.next_offset == end_of_chunk(behind)


async def _settle(part: PartOnTier, restored: CommittedStream, env: Env) -> None:
    """Claim the part that was restored. Raises `TryAgain` if it has more than was restored."""
    base = await part.offloader.load_manifest(part.name)
    writer = await StreamWriter.claim(
        part.offloader, part.name, base=base, expected_version=base.version, env=env
    )
    found = writer.manifest
    if found.incarnation != restored.incarnation:
        raise Diverged(f"stream {part.name!r} was deleted and begun again while it was restored")
    if found.next_offset != restored.next_offset:
        raise TryAgain(
            f"stream {part.name!r} has grown to offset {found.next_offset} while it was restored up to "
            f"{restored.next_offset}: stop the sync of its old source"
        )
