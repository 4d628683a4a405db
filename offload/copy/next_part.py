"""The parts of a stream for whoever copies to it, and beginning a new one (docs/adr/0025-parts.md).

`PartOnTier` is one part. A copier, a sync and a follower hold one, and ask it for the newest and the next
part; nothing else in `copy`, `follow` and `managed` knows how parts are named, recorded and closed. Readers
have `parts.whole_stream`.

A part begins at the first offset of the source, and gets all that the source still has, even if the part
before holds some of it too. To leave that out would need a comparison of every byte, and one wrong answer
would lose data.

To begin a part takes these steps, each one commit or one object:

    settle     the part before is claimed on the root that was compared. Uploads of a crashed writer are
               adopted, which may close a gap. Of several processes one gets further
    record     the anchor of the new part is created. From here on everybody finds the part
    close      the part before is claimed once more, by whoever is about to claim the first root of the part,
               or to copy its first data
    claim      the first root of the part is claimed. Of several processes one gets it

    stopped after      left behind                             cured by
    settle             a writer without attempts               nothing to cure
    record, close      a part without data                     the next process, which begins with `close`

Invariant: after a part has its first root, the part before takes no more data. Proof: `close` comes after
`record`, and fences every earlier writer. A later writer looks for a later part after its claim and before it
appends (`PartOnTier.refuse_closed`), and finds the record.

Invariant: a replica that lags begins no part. Its source ends before the tier, or its leader epoch is behind.

A part may also begin behind messages that were restored (`copy.after_restore`).

`tests/follow/test_parts.py` kills copiers and lets rivals act at every step, and reads what is left.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from offload.contracts.events import Event, PartBegun
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.copy.history import (
    PAGE,
    check_behind,
    check_same_history,
    end_of_chunk,
    last_chunk,
    source_agrees,
)
from offload.formats.chunk import ChunkHeader
from offload.ground.env import Env
from offload.ground.errors import (
    BeingRebuilt,
    Conflict,
    Corrupt,
    Denied,
    Diverged,
    Divergence,
    Fenced,
    Misuse,
    NotOffloaded,
    OffloadError,
    StreamDeleted,
)
from offload.model.attempt import Leftover
from offload.model.manifest import CommittedStream, Manifest
from offload.model.part import StreamPart
from offload.parts.whole_stream import WholeStream
from offload.write.writer import StreamWriter

_DERIVED: Final = re.compile(r"(.+)-part-([2-9]|[1-9][0-9]{1,8})", re.DOTALL)

FINAL: Final = (Divergence.GAP, Divergence.FORK)
"""The divergences that cannot go away by waiting."""

MOVED: Final = (Diverged, Conflict, Fenced, Corrupt, Denied)
"""The errors of a part that do not matter if the stream has a later part."""


@dataclass(frozen=True, slots=True)
class PartOnTier:
    """A part of a stream on a tier, for whoever copies to it. Immutable: the next part is another object.

    A copier compares its source with the part, prepares its claim, claims, and refuses a part that was
    closed. If the source does not continue the part, the copier goes to the newest one, or begins the next.
    """

    offloader: LedgerOffloader
    recorded: StreamPart
    """The part as its record says. A part that was listed has the header behind which it begins."""

    @classmethod
    def first(cls, offloader: LedgerOffloader, stream: str) -> PartOnTier:
        """Return part 1, which is the stream itself. Sends no request."""
        return cls(offloader, StreamPart(stream))

    @property
    def stream(self) -> str:
        """The name of the whole stream."""
        return self.recorded.first

    @property
    def number(self) -> int:
        """The number of the part."""
        return self.recorded.number

    @property
    def name(self) -> str:
        """The part's own name."""
        return self.recorded.name

    @property
    def behind(self) -> bytes:
        """The header of the chunk behind which the part begins, if a restore began it."""
        return self.recorded.behind

    async def later(self) -> list[PartOnTier]:
        """Return the parts behind this one that were recorded, in order. One listing."""
        parts = await self.offloader.parts(self.stream, after=self.number)
        return [PartOnTier(self.offloader, part) for part in parts]

    async def newest(self) -> PartOnTier | None:
        """Return the newest part behind this one, also if it has no data yet. None if there is none.

        A deleted part is over: it is passed over, and no data is written to it.
        """
        for part in reversed(await self.later()):
            try:
                await self.offloader.load_manifest(part.name)
            except StreamDeleted:
                continue
            except NotOffloaded:
                return part
            return part
        return None

    async def check(self, manifest: Manifest, snapshot: Snapshot) -> None:
        """Raise `Diverged` unless the source continues this part. See `check_same_history`."""
        if manifest.fragments or not await check_empty(self.recorded, manifest, snapshot):
            await check_same_history(self.offloader, manifest, snapshot)

    async def refuse_name_of_part(self) -> None:
        """Raise `Misuse` if this is a whole stream, and the tier has a part of another stream of this name.

        Asks the tier only if the name is like that of a part.
        """
        derived = _DERIVED.fullmatch(self.name) if self.number == 1 else None
        if derived is None:
            return
        first, number = derived[1], int(derived[2])
        try:
            parts = await self.offloader.parts(first, after=number - 1)
        except NotOffloaded:  # the place is not a tier yet
            return
        if StreamPart(first, number) in parts:
            raise Misuse(
                f"stream {self.name!r} of the source has the name of part {number} of stream {first!r} on "
                "the tier: copy it to another tier"
            )

    async def prepare_claim(
        self, before: Manifest | None, expected_version: int | None, *, source_epoch: int, env: Env
    ) -> int | None:
        """Make this part ready for the claim of a copier that has seen `before`.

        If this part has no data yet, the part before is closed. Returns the version that the claim expects.
        Raises `Misuse` if the name is that of a part of another stream.
        """
        await self.refuse_name_of_part()
        if self.number > 1 and (before is None or not before.fragments):
            # Whoever deletes the stream gives a part without a root a tombstone. No claim may revive it.
            expected_version = 0 if before is None else expected_version
            closed = await self.close_before(source_epoch=source_epoch, env=env)
            # The process that recorded the part may have had the master key, and this one lacks it.
            await self.offloader.begin_part(self.recorded, before=closed)
        return expected_version

    async def refuse_closed(self) -> None:
        """Raise `Conflict` if a later part exists. Called after a claim, before anything is appended."""
        later = await self.newest()
        if later is not None:
            raise Conflict(f"stream {self.name!r} continues as {later.name!r}")

    async def close_before(self, *, source_epoch: int, env: Env) -> Manifest | None:
        """Fence every writer of the part before this recorded one. Raises `Fenced` for a deposed source.

        Returns the manifest of the part before. Raises `StreamDeleted` if there were parts before, and all
        were deleted: the stream is over, and whoever deleted it is told that it has no other part. Returns
        None if there was none: a copy of a tier may have brought a later part alone.
        """
        deleted: StreamDeleted | None = None
        for before in reversed(await WholeStream(self.offloader, self.stream).parts()):
            if before.number >= self.number:
                continue
            # The epochs of a stream that was restored have nothing to do with those of the stream before.
            epoch = 0 if self.behind else source_epoch
            try:
                return await _fenced(self.offloader, before.name, source_epoch=epoch, env=env)
            except BeingRebuilt:  # it may have a writer, and no claim fences it now
                raise
            except StreamDeleted as error:
                deleted = deleted or error
            except NotOffloaded:
                continue  # it has no writer, and a claim would begin it
        if deleted is not None:
            raise StreamDeleted(
                f"{deleted}, with all parts before {self.name!r}, which therefore cannot begin; "
                f"`offload delete TIER {self.stream}` ends it too",
                epoch=deleted.epoch,
            ) from deleted
        return None

    async def begin_next(
        self,
        manifest: Manifest,
        stopped: OffloadError,
        snapshot: Snapshot,
        *,
        taken: Collection[str],
        env: Env,
        emit: Callable[[Event], None],
    ) -> PartOnTier:
        """Record the part that follows this one, and return it. The caller copies to it.

        `stopped` is the error of comparing the source with `manifest`, the newest of this part. Returns this
        part itself if the source continues it after all, because uploads of a crashed writer closed the gap.
        Raises `Diverged` if the source may be a replica that lags, or if a stream of the source, of which
        `taken` has the names, needs the name of the part. Raises `Conflict` if another process commits to
        this part, and `stopped` if it is not an error for which a new part is begun.
        """
        await self.refuse_name_of_part()
        await _refuse_lagging(self.offloader, manifest, stopped, snapshot)
        writer = await StreamWriter.claim(
            self.offloader,
            self.name,
            base=manifest,
            source_epoch=snapshot.epoch,
            expected_version=manifest.version,
            agree=partial(source_agrees, snapshot),
            env=env,
        )
        try:
            await self.check(writer.manifest, snapshot)
        except (Diverged, Corrupt) as still:
            await _refuse_lagging(self.offloader, writer.manifest, still, snapshot)
        else:
            return self

        async def begin(following: StreamPart) -> None:
            # The part would take the name from a stream that is not on the tier yet.
            if following.name in taken and following.name not in await self.offloader.streams():
                raise Diverged(
                    f"{stopped}; no new part was begun, because the source has a stream {following.name!r}: "
                    "copy that stream first",
                    kind=stopped.kind if isinstance(stopped, Diverged) else None,
                ) from stopped
            await self.offloader.begin_part(following, before=writer.manifest)

        following = await self.record_next(begin)
        if following.behind:  # a restore was faster
            return following
        ended, first = writer.manifest.next_offset, snapshot.first_offset
        emit(PartBegun(stream=self.stream, part=following.number, first_offset=first, ended_offset=ended))
        return following

    async def record_next(
        self, begin: Callable[[StreamPart], Awaitable[None]], *, behind: bytes = b""
    ) -> PartOnTier:
        """Record the part after this one, and return it. If a rival has recorded one, return that.

        `begin` creates the anchor. It raises `Conflict` if another stream has the name: then the next number
        is tried, unless a rival has recorded a part meanwhile.
        """
        deleted = await self.later()
        # In this order: a part that a rival recorded before the list is seen here, and one that it records
        # after the list makes `begin` fail. The other way round, a part that lives would count as deleted.
        if (rival := await self.newest()) is not None:
            return rival
        following = (deleted[-1] if deleted else self).recorded.following
        while True:
            following = replace(following, behind=behind)
            try:
                await begin(following)
            except Conflict:
                if (rival := await self.newest()) is not None:
                    return rival
                following = following.following
            else:
                return PartOnTier(self.offloader, following)


async def check_empty(part: StreamPart, committed: CommittedStream, snapshot: Snapshot) -> bool:
    """Raise `Diverged` unless the source continues this part without data.

    Returns False if nothing shows whether it does. `part` was listed.
    """
    if part.behind and committed.next_offset == end_of_chunk(part.behind):
        await check_behind(part.name, part.behind, snapshot)
        return True
    # A part that a crash left without data has nothing to compare. It must not begin behind what the source
    # still has: a copy would leave that out.
    if part.number > 1 and snapshot.first_offset < committed.next_offset:
        raise Diverged(
            f"stream {part.name!r} holds nothing and continues at offset {committed.next_offset}, "
            f"but the source begins at {snapshot.first_offset}; {PAGE}",
            kind=Divergence.FORK,
        )
    return False


async def _fenced(offloader: LedgerOffloader, stream: str, *, source_epoch: int, env: Env) -> Manifest:
    """Claim a live stream. Raises as `load_manifest` if it is not live, also if it was deleted meanwhile."""
    while True:
        base = await offloader.load_manifest(stream)
        # Without the version, the claim of a process that stalls here would begin a deleted stream again.
        with suppress(Conflict):
            writer = await StreamWriter.claim(
                offloader,
                stream,
                base=base,
                source_epoch=source_epoch,
                expected_version=base.version,
                agree=never,
                env=env,
            )
            return writer.manifest


async def _refuse_lagging(
    offloader: LedgerOffloader, manifest: Manifest, stopped: OffloadError, snapshot: Snapshot
) -> None:
    """Raise unless `stopped` is final, and the source is at least as new as the tier."""
    if isinstance(stopped, Diverged) and stopped.kind not in FINAL:
        raise Diverged(
            f"{stopped}; no new part was begun, because the source may be a replica that lags",
            kind=stopped.kind,
        ) from stopped
    epoch = max(manifest.source_epoch, await _last_epoch(offloader, manifest, stopped))
    if 0 < snapshot.epoch < epoch:
        raise Diverged(
            f"{stopped}; no new part was begun, because the source's leader epoch {snapshot.epoch} is behind "
            f"{epoch}, which is on the tier: the source may be a replica that lags",
            kind=stopped.kind if isinstance(stopped, Diverged) else None,
        ) from stopped


async def _last_epoch(offloader: LedgerOffloader, manifest: Manifest, stopped: OffloadError) -> int:
    """Return the leader epoch of the last committed chunk. Raises `stopped` if that is not damage of it."""
    # The root has the epoch of the last claim. A writer that leads for months copies chunks of later epochs.
    try:
        raw = await last_chunk(offloader, manifest) if manifest.fragments else None
    except (Corrupt, Denied):  # neither the last chunk nor its key is needed to begin a part
        return 0
    if not isinstance(stopped, Diverged):
        raise stopped  # the chunk is sound, so the damage is in the source
    return 0 if raw is None else ChunkHeader.decode(raw, where=f"last chunk of {manifest.stream!r}").epoch


async def never(leftover: Leftover) -> bool:
    """Agree to no leftover: what an earlier writer did not commit is dropped."""
    return False
