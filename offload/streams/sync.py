"""Bringing a tier up to date with a source: what is new is copied, everything else is left alone.

Invariants: a stream with nothing new is not touched, not even claimed; nothing is appended to a
history that the source does not continue; what stands before a damaged chunk is committed, and
nothing behind it; one stream's trouble never stops another.

A stream that the source does not continue stays as it is. The source may go on under another name, the
stream's next part (`continue_as`), which begins where the source begins now: so the part holds everything
that the source still has, even if the old stream holds some of it too. To leave out what both hold would need
a comparison of every byte, and one wrong answer would lose data. Nothing on the tier records the link yet.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from offload.contracts.events import CopyBegun, Event
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot, Source, SourceStream
from offload.env import Env
from offload.errors import Corrupt, Diverged, Misuse, NotOffloaded, OffloadError, StoreDenied
from offload.formats.chunk_check import check_source
from offload.formats.keys import escape
from offload.model.manifest import Manifest
from offload.model.totals import totals
from offload.streams.handles import CutHandle
from offload.streams.history import PAGE, agreement, check_same_history, first_damage, newest
from offload.streams.writer import StreamWriter

__all__ = ["StreamReport", "sync"]


LEDGERS_AT_ONCE: Final = 16
CHUNKS_AT_ONCE: Final = 500_000
"""How many ledgers are announced in one commit, and how many rows of their tables are held at once."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """What a sync did for one stream, and what of it is committed now."""

    stream: str
    """Its name on the tier."""

    source_stream: str
    """Its name in the source: another one if it goes on as `stream`."""

    manifest: Manifest | None
    """The newest committed; None where nothing is."""

    uploaded_bytes: int
    """The size of the fragments that the sync made durable, roots not included."""

    error: OffloadError | None = None
    continue_as: str | None = None
    """If the source does not continue the stream: a name under which `sync` can go on (`continue_as`)."""

    def as_json(self) -> dict[str, object]:
        """One line of `offload sync --json`. All but `uploaded_bytes` speaks of the whole stream."""
        committed = totals(self.stream, self.manifest)
        failed = {} if self.error is None else {"error": str(self.error)}
        part = {} if self.continue_as is None else {"continue_as": self.continue_as}
        return {**committed, "uploaded_bytes": self.uploaded_bytes, **failed, **part}


async def sync(
    source: Source,
    offloader: LedgerOffloader,
    *,
    only: Sequence[str] = (),
    continue_as: Mapping[str, str] | None = None,
    extra_metadata: Mapping[str, str] | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] = lambda event: None,
) -> AsyncIterator[StreamReport]:
    """Sync every stream of `source`, or those named in `only`, one report each.

    A stream that fails is reported with its error, and the next one goes on. One that is named twice
    is synced once. Raises `NotOffloaded` if a named stream is not in the source, and any error of opening
    the tier. A report with `StoreDenied` is the last one: the other streams would fail alike.

    `continue_as` names the next part of streams that stopped with `Diverged`, such as `{"orders":
    "orders-part-2"}`. The source's stream is then synced to that part, which begins at the source's first
    offset. What the tier has under the old name stays as it is. Pass it to every later sync too. Raises
    `Misuse` if a part's name is invalid, or is that of a stream of the source. The report's error is `Misuse`
    if the part does not exist yet and the stream has not stopped, and `Diverged` if the part exists and the
    source does not continue it.
    """
    parts = dict(continue_as or {})
    streams = [await source.stream(name) for name in dict.fromkeys(only)] or await source.streams()
    if parts:
        await _check_names(source, parts)
    is_tier = await _is_tier(offloader)
    for stream in streams:
        part = parts.get(stream.name)
        report = await sync_stream(
            stream,
            offloader,
            is_tier=is_tier,
            part=part,
            extra_metadata=extra_metadata or {},
            env=env or Env(),
            emit=emit,
        )
        yield report
        is_tier |= report.manifest is not None
        if isinstance(report.error, StoreDenied):
            return


async def _is_tier(offloader: LedgerOffloader) -> bool:
    """Whether the place is a tier already; if it is none, the first stream makes it one."""
    try:
        await offloader.open()
    except NotOffloaded:
        return False
    return True


async def _check_names(source: Source, parts: Mapping[str, str]) -> None:
    known = {stream.name for stream in await source.streams()}
    for name, part in parts.items():
        escape(part)  # raises for what is no name
        await source.stream(name)
        if part in known:
            raise Misuse(f"stream {name!r} cannot go on as {part!r}: the source has a stream of that name")
        if list(parts.values()).count(part) > 1:
            raise Misuse(f"two streams cannot go on as {part!r}")


async def sync_stream(
    stream: SourceStream,
    offloader: LedgerOffloader,
    *,
    is_tier: bool = True,
    part: str | None = None,
    extra_metadata: Mapping[str, str],
    env: Env,
    emit: Callable[[Event], None] = lambda event: None,
) -> StreamReport:
    """Sync one stream, under its own name or to its next `part`. Errors of the framework are reported.

    If the place was found to be no tier (`is_tier`), it is not asked for a manifest first.
    """
    name = part or stream.name
    error, manifest, going_on, copy = None, None, None, None
    try:
        async with await stream.snapshot() as snapshot:
            try:
                if part is not None:
                    await check_part(offloader, stream.name, part, snapshot)
                copy = _Copy(name, snapshot, offloader, extra_metadata, env, emit)
                manifest = await copy.run(known_to_be_new=not is_tier)
            except Diverged:
                with suppress(OffloadError):
                    going_on = await free_part(offloader, stream.name, snapshot)
                raise
    except OffloadError as exc:
        error = exc
        with suppress(OffloadError):  # the first error is the one to report
            manifest = await newest(offloader, name)
    uploaded = copy.uploaded_size_bytes if copy else 0
    return StreamReport(
        stream=name,
        manifest=manifest,
        uploaded_bytes=uploaded,
        error=error,
        continue_as=going_on,
        source_stream=stream.name,
    )


async def check_part(offloader: LedgerOffloader, stream: str, part: str, snapshot: Snapshot) -> None:
    """Raise unless the source may go on as `part`: it was begun so, or `stream` can go on no more.

    That a part with data holds the source's is checked by whoever appends to it (`check_same_history`).
    """
    begun = await newest(offloader, part)
    if begun is not None:
        if not begun.fragments and begun.next_offset != snapshot.first_offset:
            raise Diverged(
                f"stream {part!r} holds nothing and goes on at offset {begun.next_offset}, "
                f"but the source begins at {snapshot.first_offset}: take another name; {PAGE}"
            )
        return
    stopped = await newest(offloader, stream)
    if stopped is None:
        raise Misuse(f"the tier has no stream {stream!r} yet: sync it without a new name")
    try:
        await check_same_history(offloader, stopped, snapshot)
    except (Diverged, Corrupt):  # or what it would have to continue is damaged on the tier
        return
    raise Misuse(f"the source continues stream {stream!r}: sync it without a new name")


async def free_part(offloader: LedgerOffloader, stream: str, snapshot: Snapshot) -> str:
    """A name for a stream's next part: the first that the tier lacks, or that the source continues."""
    for number in count(2):
        part = f"{stream}-part-{number}"
        begun = await newest(offloader, part)
        if begun is None:
            break
        try:
            await check_part(offloader, stream, part, snapshot)
            await check_same_history(offloader, begun, snapshot)
        except Diverged:
            continue
        break
    return part


@dataclass(slots=True)
class _Copy:
    """One sync of one stream."""

    stream: str
    snapshot: Snapshot
    offloader: LedgerOffloader
    extra_metadata: Mapping[str, str]
    env: Env
    emit: Callable[[Event], None]
    writer: StreamWriter | None = None

    @property
    def uploaded_size_bytes(self) -> int:
        """See `StreamReport.uploaded_bytes`."""
        return self.writer.uploaded_size_bytes if self.writer else 0

    async def run(self, *, known_to_be_new: bool) -> Manifest | None:
        """Copy what is new; return the newest manifest. Raises what stopped it; what is committed stays."""
        manifest = None if known_to_be_new else await newest(self.offloader, self.stream)
        if manifest is not None:
            await check_same_history(self.offloader, manifest, self.snapshot)
        start = self.snapshot.first_offset if manifest is None else manifest.next_offset
        has = f"[{self.snapshot.first_offset}, {self.snapshot.next_offset})"
        _log.debug("stream %r: the source has offsets %s, to copy from %d", self.stream, has, start)
        if start < self.snapshot.next_offset:
            await self._check_first_chunk(start)
            until = self.snapshot.next_offset
            self.emit(CopyBegun(stream=self.stream, first_offset=start, next_offset=until))
            self.writer = await self._claim(manifest)
            manifest = await self._append(self.writer)
        if self.snapshot.damage is not None:
            raise self.snapshot.damage
        return manifest

    async def _check_first_chunk(self, start: int) -> None:
        """Find damage at the very place where copying begins before the stream is claimed for nothing."""
        first = (await self._batch(start))[0]
        rows = (await first.table())[:1]
        try:
            check_source(await first.read(rows), rows, where=first.where)
        except Corrupt as damage:
            raise _named(damage, self.stream, start) from damage

    async def _claim(self, manifest: Manifest | None) -> StreamWriter:
        writer = await StreamWriter.claim(
            self.offloader,
            self.stream,
            base=manifest,
            is_new=manifest is None,
            first_offset=self.snapshot.first_offset,
            source_epoch=self.snapshot.epoch,
            agree=agreement(self.offloader, self.stream, self.snapshot),
            env=self.env,
        )
        if manifest is None or writer.manifest.next_offset != manifest.next_offset:
            await check_same_history(self.offloader, writer.manifest, self.snapshot)
        return writer

    async def _append(self, writer: StreamWriter) -> Manifest:
        while writer.manifest.next_offset < self.snapshot.next_offset:
            batch = await self._batch(writer.manifest.next_offset)
            try:
                await writer.offload(batch, extra_metadata=self.extra_metadata)
            except Corrupt:
                await self._append_up_to_damage(writer)
                raise
            for ledger in batch:
                await ledger.aclose()
        return writer.manifest

    async def _append_up_to_damage(self, writer: StreamWriter) -> None:
        """Commit what stands before the damaged chunk, and raise what names it.

        Returns where the damage is not there any more: then it never was in the source's files.
        """
        ledger = (await self._batch(writer.manifest.next_offset))[0]
        found = await first_damage(ledger)
        if found is None:
            return
        offset, damage = found
        if offset > ledger.first_offset:
            sound = CutHandle(ledger, first_offset=ledger.first_offset, next_offset=offset)
            await writer.offload([sound], extra_metadata=self.extra_metadata)
        raise _named(damage, self.stream, offset) from damage

    async def _batch(self, start: int) -> list[ReadHandle]:
        """The next ledgers to copy, from offset `start` on; a broken one ends the batch, or is raised."""
        batch: list[ReadHandle] = []
        chunks = 0
        for ledger in self.snapshot.ledgers:
            if ledger.next_offset <= start:
                continue
            handle = ledger
            if ledger.first_offset < start:
                handle = CutHandle(ledger, first_offset=start, next_offset=ledger.next_offset)
            try:
                chunks += len(await handle.table())
            except Corrupt:
                if not batch:
                    raise
                return batch
            batch.append(handle)
            if len(batch) == LEDGERS_AT_ONCE or chunks >= CHUNKS_AT_ONCE:
                break
        return batch


def _named(damage: Corrupt, stream: str, offset: int) -> Corrupt:
    """The damage, with the chunk's offset in its text."""
    return Corrupt(
        f"damaged chunk at offset {offset}: {damage.what}",
        damage.where,
        expected=damage.expected,
        found=damage.found,
        position=damage.position,
        stream=stream,
    )
