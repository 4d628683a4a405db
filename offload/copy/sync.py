"""Bringing a tier up to date with a source: new data is copied, everything else is left alone.

Invariants: a stream with nothing new is not touched, not even claimed; nothing is appended to a history that
the source does not continue; chunks before a damaged one are committed, and nothing behind it; one stream's
error does not stop the others, unless the store refuses every request.

A stream that the source does not continue stays as it is, and the report has the error. With `new_part` it
continues in a new part. A stream that has parts is synced to the newest one (`copy.next_part`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot, Source, SourceStream
from offload.copy.copier import StreamCopier
from offload.copy.history import newest
from offload.copy.log_order import LogPlace, LogTurns, end_in_window, log_place
from offload.copy.next_part import FINAL, MOVED, PartOnTier
from offload.ground.env import Env
from offload.ground.errors import AnchorLost, Corrupt, Diverged, NotOffloaded, OffloadError, StoreDenied
from offload.ground.tasks import in_order, one_by_one
from offload.model.manifest import Manifest
from offload.model.part import StreamPart
from offload.model.totals import totals

__all__ = ["StreamReport", "name_notes", "sync"]


STREAMS_AT_ONCE: Final = 8
"""The streams that are synced at the same time. The sync of a small one mostly waits for the store.

Each may hold the tables of a batch, some 20 MB for a huge stream (`copy.copier`), so 16 would be faster
and take more memory. The offloader bounds the uploads of all of them together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The report of a sync on one stream: its outcome, and what is committed now."""

    part: StreamPart
    """The part to which the stream was synced. It is part 1 unless the stream has others."""

    manifest: Manifest | None
    """The newest manifest, or None if nothing was committed."""

    uploaded_bytes: int
    """The size of the fragments that the sync uploaded completely, roots not included."""

    error: OffloadError | None = None

    @property
    def stream(self) -> str:
        """The name of the part on the tier. That of part 1 is the name of the stream in the source."""
        return self.part.name

    @property
    def can_go_on(self) -> bool:
        """Whether the stream can continue in a new part: there is a gap or a fork."""
        error = self.error
        return isinstance(error, Diverged) and error.kind in FINAL

    def as_json(self) -> dict[str, object]:
        """Return one line of `offload sync --json`. The totals are those of the part."""
        committed = totals(self.stream, self.manifest) | {"part": self.part.number}
        failed = {} if self.error is None else {"error": str(self.error)}
        kind = self.error.kind if isinstance(self.error, Diverged) else None
        how = {} if kind is None else {"diverged": kind.value}
        return {**committed, "uploaded_bytes": self.uploaded_bytes, **failed, **how}


async def sync(
    source: Source,
    offloader: LedgerOffloader,
    *,
    only: Sequence[str] = (),
    new_part: bool = False,
    extra_metadata: Mapping[str, str] | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] = lambda event: None,
) -> AsyncGenerator[StreamReport, None]:
    """Sync every stream of `source`, or those named in `only`, and yield one report for each, in this order.

    A few streams are synced at the same time, and each begins in its turn. Streams that share a log are
    synced a window of the log at a time, in the log's order (`copy.log_order`). A caller that stops early
    must close the generator, which cancels the streams that are under way.

    A stream that fails is reported with its error, and the next stream follows. A stream that is named twice
    is synced once. Raises `NotOffloaded` if a named stream is not in the source, and any error of opening
    the tier. A report with `StoreDenied`, or with a lost anchor of the tier, is the last one: the other
    streams would fail in the same way.

    With `new_part`, a stream that the source does not continue gets a new part, which begins at the
    source's first offset. That needs a gap, another history at the tier's end, or a last chunk that is
    damaged on the tier. If the source may only lag, the report's error is `Diverged`, as without `new_part`.
    """
    streams = [await source.stream(name) for name in dict.fromkeys(only)] or await source.streams()
    names = {each.name for each in await source.streams()} if new_part else set[str]()
    is_tier = await _is_tier(offloader)
    turns = LogTurns(STREAMS_AT_ONCE)

    async def synced(stream: SourceStream) -> StreamReport:
        nonlocal is_tier
        place: LogPlace | None = None
        syncing: _StreamSync | None = None
        report: StreamReport | None = None
        while report is None:
            async with turns.turn(place):
                syncing = syncing or _StreamSync(
                    stream=stream.for_tier(offloader),
                    offloader=offloader,
                    is_tier=is_tier,
                    new_part=new_part,
                    taken=names,
                    extra_metadata=extra_metadata or {},
                    env=env or Env(),
                    emit=emit,
                )
                syncing.is_tier = is_tier
                report = await syncing.run()
            place = syncing.place
        # The first stream that commits anything makes the place a tier.
        is_tier |= report.manifest is not None
        return report

    # All wait for their turns, and not each for the one before: a long stream holds back no other.
    async with aclosing(in_order(synced, one_by_one(streams), at_once=len(streams))) as reports:
        async for _, report in reports:
            yield report
            if isinstance(report.error, StoreDenied) or _is_of_the_tier(report.error):
                return


async def name_notes(source: Source, tier: Catalogue) -> list[str]:
    """Return a note if new streams are called as streams of the tier, but for the first word of a path.

    An option of the source that names its streams was then perhaps forgotten, and all would be copied again.
    """
    names = {stream.name for stream in await source.streams()}
    if not any("/" in name for name in names):
        return []
    try:
        known = {*await tier.streams()}
    except NotOffloaded:
        return []
    longer = {name.partition("/")[2]: name for name in known - names}
    for name in sorted(names - known):
        shorter = name.partition("/")[2]
        if other := longer.get(name) or (shorter if shorter in known - names else None):
            why = "if that is the same stream, give the source the options of the earlier run"
            return [f"stream {name!r} is new on the tier, which has {other!r}: {why}, or it is copied again"]
    return []


def _is_of_the_tier(error: OffloadError | None) -> bool:
    """Return whether the tier itself lost its anchor, and not one stream."""
    return isinstance(error, AnchorLost) and error.stream is None


async def _is_tier(offloader: LedgerOffloader) -> bool:
    """Return whether the place is a tier already. If not, the first stream makes it one."""
    try:
        await offloader.open()
    except NotOffloaded:
        return False
    return True


@dataclass(slots=True, kw_only=True)
class _StreamSync:
    """The sync of one stream to its newest part."""

    stream: SourceStream
    offloader: LedgerOffloader
    is_tier: bool
    """If false, no manifest is loaded first, because the place was found to be no tier."""
    new_part: bool
    taken: Collection[str]
    """The names of the source's streams. No new part gets one of them."""
    extra_metadata: Mapping[str, str]
    env: Env
    emit: Callable[[Event], None]
    place: LogPlace | None = None
    """The place of a shared log at which the next turn begins. None if there is no next turn."""

    _end: int | None = None
    """The end of the source at the first turn. What is written later is left to the next sync, or a sync
    that takes several turns would never end beside a broker that writes as fast."""
    _kept: StreamCopier | None = None
    """The copier, which keeps its claim between two turns."""
    _since: Manifest | None = None
    """What a source that needs it was told last."""

    async def run(self) -> StreamReport | None:
        """Sync the stream, and report errors of the framework.

        Returns None if more is to be copied in a later turn, which begins at `place` of a shared log.
        """
        error = None
        copier = self._kept or self._copier(PartOnTier.first(self.offloader, self.stream.name))
        following: PartOnTier | None = copier.part
        try:
            while following is not None:
                if following is not copier.part:
                    copier = self._copier(following)
                if self.stream.needs_since:
                    # A part without a root is numbered on from the part before.
                    self._since = await self._committed(copier) or self._since
                async with await self.stream.snapshot(self._since) as snapshot:
                    following = await self._copied(copier, snapshot)
                    if following is None and self.place is not None:
                        self._kept = copier
                        copier.make_small()
                        return None
                    # The source could not show its end. Everything before the damage is committed now.
                    if following is None and snapshot.damage is not None:
                        raise snapshot.damage
            manifest = copier.manifest
        except OffloadError as exc:
            # The copy may have committed something before the error, so the report names the newest manifest.
            # If that cannot be loaded either, the first error is the one to report.
            error, manifest = exc, None
            with suppress(OffloadError):
                manifest = await newest(self.offloader, copier.stream)
        return StreamReport(
            part=copier.part.recorded,
            manifest=manifest,
            uploaded_bytes=copier.uploaded_size_bytes,
            error=error,
        )

    async def _committed(self, copier: StreamCopier) -> Manifest | None:
        if copier.writer is not None:
            return copier.writer.manifest
        return await copier.load(known_to_be_new=not self.is_tier)

    def _copier(self, part: PartOnTier) -> StreamCopier:
        return StreamCopier(
            part=part,
            extra_metadata=self.extra_metadata,
            env=self.env,
            emit=self.emit,
        )

    async def _until(self, start: int, snapshot: Snapshot) -> int:
        """Return the offset up to which this turn copies. The first turn only finds the place in the log."""
        if self.stream.shared_log is not None and self.place is None and start < snapshot.next_offset:
            return start
        return await end_in_window(self.stream, snapshot, start, snapshot.next_offset)

    async def _copied(self, copier: StreamCopier, snapshot: Snapshot) -> PartOnTier | None:
        """Copy to one part. Return the part in which the stream continues, or None if the copy is done."""
        try:
            await copier.compare(snapshot, known_to_be_new=not self.is_tier)
            until = await self._until(copier.start(snapshot), snapshot)
            await copier.copy(snapshot, until)
            self._end = snapshot.next_offset if self._end is None else min(self._end, snapshot.next_offset)
            self.place = await log_place(self.stream, until) if until < self._end else None
        except MOVED as error:
            self._end = None  # another part may number the same records anew
            if not self.is_tier or isinstance(error, StoreDenied) or _is_of_the_tier(error):
                raise
            later = await copier.part.newest()
            if later is not None:
                return later
            if copier.manifest is None or not self.new_part or not isinstance(error, Diverged | Corrupt):
                raise
            return await copier.part.begin_next(
                copier.manifest,
                error,
                snapshot,
                taken=self.taken,
                env=self.env,
                emit=self.emit,
            )
        return None
