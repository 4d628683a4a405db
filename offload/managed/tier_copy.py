"""The copy of one log on the tier: what is committed, copying more, and making sure before a local copy goes.

    known       the newest manifest that this process has seen. Nothing is asked for before it is needed
    committed   ends of the tier, each with the time at which it was first seen here. The deletion lag counts
                from it. It is kept as a note beside the log, because no manifest has it. It also proves that
                the tier had the stream, if that is gone
    compared    the end of the tier with which the log was compared, and whether the tier is a copy of it
    had         the offsets of this log that the tier is known to have had. It is kept in the same note, and
                stays true when they are trimmed

An end of the tier is believed for one of two reasons. Until then nothing of it is delivered to a reader,
added to `had`, or a reason to delete:

    this process's own commits made it, from an end that was believed (`StreamWriter.reached`)
    it was compared: the last chunk of the tier is in the log, and so are all chunks behind `had`: the last
    one of each fragment by its bytes, which one log has in one history alone, and the others by their
    offsets, times and sizes. A copy may join fragments of several jobs: all of its bytes are compared

To hold the fence is no reason: a job appends without a claim, and compares nothing with this log.

Nothing can be compared with what was trimmed. If a tier was trimmed whole, a log with another history may
append behind it, and then its last chunk is that of the tier. So a trimmed ledger goes by `had` alone. If the
tier has no records, nothing is added to it.

Invariants:

- The manifest is the truth, and nothing of it is kept a second time.
- Nothing is deleted, on either side, unless the newest root was loaded again and this log continues it.
  A process with an older copy of the disk, or with another history, has no say.
- A local copy goes only after each fragment of the ledger was found, whole, under its entry, with the chunks
  that the log has. The trimmed part of the ledger must be in `had`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

import numpy as np

from offload.contracts.events import Event, LedgersOffloaded
from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LedgerLog, LocalLedger
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.copy.copier import StreamCopier
from offload.copy.next_part import PartOnTier
from offload.ground.env import Env
from offload.ground.errors import (
    Absent,
    BeingRebuilt,
    Corrupt,
    Diverged,
    Divergence,
    Fenced,
    NotOffloaded,
    OffloadError,
    StreamDeleted,
)
from offload.ground.outside import json_outside
from offload.ground.tracing import span
from offload.managed.log_source import LogStream
from offload.model.chunk_table import ChunkTable, row_from
from offload.model.entry import entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.read.reader import newer_manifest
from offload.upkeep.retention import Retention, delete_stream, plan_trim, trim
from offload.write.writer import StreamWriter

COMMITTED_NOTE: Final = "committed"
SEEN_MAX: Final = 10_000
"""The most ends that are remembered. If there are more, the oldest local copies stay a little longer."""


CHUNK_COLUMNS: Final = ("offset", "records", "timestamp_ms", "size_bytes", "type")
"""The columns that two tables of the same chunks have in common: their positions differ."""


@dataclass(frozen=True, slots=True)
class _Had:
    """Offsets of the log that the tier is known to have had, in one incarnation of the stream."""

    incarnation: str
    first_offset: int
    next_offset: int

    def joined(self, before: _Had | None) -> _Had:
        """Return these offsets with those that were known before, if there is no gap between them."""
        if before is None or before.incarnation != self.incarnation or before.next_offset < self.first_offset:
            return self
        return _Had(
            self.incarnation,
            min(before.first_offset, self.first_offset),
            max(before.next_offset, self.next_offset),
        )


_End = tuple[UUID, int]
"""An end of the tier: the incarnation of the stream, and its next offset."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """The result of a comparison of the log with the tier."""

    end: _End | None
    """The end of the tier at that moment. None if it did not have the stream."""
    is_copy: bool
    """Whether all of the tier up to there is a copy of this log. Otherwise nothing shows whether it is."""


@dataclass(slots=True, kw_only=True)
class LedgerOnTier:
    """One stream's side on the tier. Used by one task at a time."""

    log: LedgerLog
    source: LogStream
    tier: LedgerOffloader
    env: Env
    emit: Callable[[Event], None]
    manifest: Manifest | None = None
    """The newest manifest that is known. None if the tier does not have the stream. It may not be compared:
    an append looks at the tier while a copy runs. So the copier has a manifest of its own, which is."""
    committed_ms: list[tuple[int, int]] = field(default_factory=list)
    is_known: bool = False
    """Whether the tier was asked for its newest manifest."""
    since_seconds: float = 0.0
    """The moment of the last offload, or of the beginning."""

    _copier: StreamCopier = field(init=False)
    _had: _Had | None = None
    _deleted_epoch: int = 0
    """The leader epoch that the tombstone of a deleted stream has."""
    _compared: _Compared | None = None
    """The last comparison. None if there was none since the log was opened."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.since_seconds = self.env.monotonic()
        self._copier = self._fresh_copier()

    @property
    def end(self) -> int:
        """The end of the tier as far as known, from a manifest or the note. 0 if it is not known."""
        seen = self.committed_ms[-1][0] if self.committed_ms and not self.is_known else 0
        return seen if self.manifest is None else self.manifest.next_offset

    @property
    def is_compared(self) -> bool:
        """Whether the log was compared with the newest manifest that is known, as far as it can be."""
        return self.is_known and self._compared is not None and self._compared.end == _end_of(self.manifest)

    async def load_note(self) -> None:
        """Load what was noted about the tier. A note that is damaged counts as none."""
        try:
            raw = await self.log.load_note(COMMITTED_NOTE)
        except Corrupt:
            raw = None
        # Without it, local copies stay for another lag, and those of trimmed ledgers stay.
        self.committed_ms, had = ([], None) if raw is None else _decode_note(raw)
        self._had = had
        if had is not None and had.next_offset > self.log.next_offset:
            # The log lost its end. Records that it appends there from now on are not those of the tier.
            end = self.log.next_offset
            self._had = _Had(had.incarnation, had.first_offset, end) if had.first_offset < end else None
            await self._save_note()

    async def begin(self) -> None:
        """Let a log without records begin where the tier ends, above its leader epoch. Asks the tier."""
        manifest = await self.look(may_lead=True)
        self._compared = _Compared(_end_of(manifest), is_copy=False)  # an empty log contradicts nothing
        # A new disk counts epochs from the beginning. The tier fences a lower one than it has, also in a
        # stream that was deleted.
        known = self._deleted_epoch if manifest is None else manifest.source_epoch
        end = self.log.next_offset if manifest is None else max(manifest.next_offset, self.log.next_offset)
        epoch = known + 1 if known else 0
        if end > self.log.next_offset or epoch > self.log.epoch:
            await self.log.begin(end, epoch=epoch)

    async def meet(self) -> None:
        """Ask the tier for its newest manifest, and compare the log with it, unless that was done before."""
        if not self.is_compared:
            async with self._looking:
                if not self.is_compared:
                    await self._agree(await self._look())

    async def look(self, *, may_lead: bool = False) -> Manifest | None:
        """Load the newest manifest. None if the tier does not have the stream.

        Raises `StreamDeleted` if it was deleted, and `Fenced` if another process claimed it from this one.
        Raises `Diverged` if it is not the stream that this process knew, or if it ends behind the log, unless
        it `may_lead`: appends would give offsets a second time that the tier has.
        """
        async with self._looking:
            return await self._look(may_lead=may_lead)

    async def _look(self, *, may_lead: bool = False) -> Manifest | None:
        known, writer, ends = self.manifest, self._copier.writer, self.committed_ms[-1:]
        try:
            manifest: Manifest | None = await self.tier.load_manifest(self.log.name)
        except BeingRebuilt:
            raise
        except NotOffloaded as gone:
            if known is not None or self.committed_ms:
                if isinstance(gone, StreamDeleted):
                    raise
                raise _lost(self.log.name, str(gone)) from gone
            manifest = None  # also if a stream of this name was deleted before this one was begun
            self._deleted_epoch = gone.source_epoch if isinstance(gone, StreamDeleted) else 0
        if manifest is not None:
            # The log may begin where the tier ends, and then nothing else shows that this is another stream.
            incarnation = str(known.incarnation) if known is not None else self._had and self._had.incarnation
            if incarnation is not None and incarnation != str(manifest.incarnation):
                raise _lost(self.log.name, "it was deleted and begun again")
            end = max([0 if known is None else known.next_offset, *(end for end, _ in ends)])
            if manifest.next_offset < end:
                raise _lost(self.log.name, f"it ends at offset {manifest.next_offset} now, not at {end}")
            self._refuse_successor(manifest, writer)
            if manifest.next_offset > self.log.next_offset and not may_lead:
                raise Diverged(
                    f"stream {self.log.name!r}: {self.log.where} ends at offset {self.log.next_offset}, but "
                    f"the tier has records up to {manifest.next_offset}: the log is an older copy, or "
                    "another process has appended; it takes no append, and deletes nothing; stop that "
                    "process, or restore the log, or delete it, and it begins where the tier ends",
                    kind=Divergence.BEHIND,
                )
        self.is_known = True
        self._know(manifest)
        await self._note_end()
        return manifest

    def _know(self, manifest: Manifest | None) -> None:
        """Take a manifest that was loaded or committed, unless a newer one is known by now."""
        if _version(manifest) >= _version(self.manifest):
            self.manifest = manifest

    async def agree(self) -> bool:
        """Look, and compare the log with what is committed, unless that was done up to this end.

        Returns False if nothing shows whether they are one history. Raises as `look`, and `Diverged`.
        """
        return await self._agree(await self.look())

    async def _agree(self, manifest: Manifest | None) -> bool:
        if self._compared is None or self._compared.end != _end_of(manifest):
            if manifest is not None and manifest.fragments:
                async with await self.source.snapshot(manifest) as snapshot:
                    manifest = await self._check(manifest, snapshot)
            is_copy = manifest is not None and bool(manifest.fragments)
            self._compared = _Compared(_end_of(manifest), is_copy=is_copy)
        if manifest is not None and self._compared.is_copy:
            await self._note_had(manifest, manifest.next_offset)
        return self._compared.is_copy

    async def _check(self, manifest: Manifest, snapshot: Snapshot) -> Manifest:
        """Raise `Diverged` unless the tier is a copy of the log, as far as nothing else shows it.

        Returns the manifest that was compared: a newer one, if objects of this one were replaced and swept.
        """
        if snapshot.next_offset < manifest.next_offset <= self.log.committed_offset:
            # The log has grown since, and a job was faster to append what is new. Others find that too.
            async with await self.source.snapshot(manifest) as newer:
                return await self._check(manifest, newer)
        await self._copier.part.check(manifest, snapshot)
        had = self._had
        is_known = had is not None and had.incarnation == str(manifest.incarnation)
        begin = max(manifest.first_offset, had.next_offset if had is not None and is_known else 0)
        # The last chunk alone does not show what is before it: two jobs may have appended, the second one
        # records of this log.
        try:
            for ledger in snapshot.ledgers:
                at, until = max(begin, ledger.first_offset), min(manifest.next_offset, ledger.next_offset)
                await self._compare_with(ledger, manifest, at, until, by_bytes=True)
        except Absent as absent:
            return await self._check(await newer_manifest(self.tier, manifest, absent), snapshot)
        return manifest

    def has_agreed(self, committed: CommittedStream | None) -> bool:
        """Return whether all records of this state are known to be those of the log."""
        known = self._compared
        return (
            committed is not None
            and known is not None
            and known.is_copy
            and known.end is not None
            and known.end[0] == committed.incarnation
            and committed.next_offset <= known.end[1]
            and not self.is_outdated(committed)
        )

    def is_outdated(self, committed: CommittedStream) -> bool:
        """Return whether this state has records that were trimmed before they were compared with the log.

        A comparison with a newer root says nothing about them.
        """
        first, newest = committed.first_offset, self.manifest
        if (had := self._had) is not None and had.incarnation == str(committed.incarnation):
            if had.first_offset <= first and committed.next_offset <= had.next_offset:
                return False
            if first < had.first_offset:
                return True
        if newest is None or newest.incarnation != committed.incarnation:
            return False
        return first < newest.first_offset

    async def offload(self, until: int) -> None:
        """Copy what the tier lacks up to `until`, where a ledger ends. Raises what stopped it.

        What was committed before the error stays. After an error the next call compares the log with the tier
        and claims the stream again.
        """
        began, size = self.env.monotonic(), self._copier.uploaded_size_bytes
        try:
            with span("offload", stream=self.log.name, until=until):
                await self._meet_own()
                async with await self.source.snapshot(self._copier.manifest) as snapshot:
                    if self._copier.writer is not None:
                        await self._copier.compare(snapshot)
                    before = self._copier.start(snapshot)
                    await self._copier.copy(snapshot, until)
        except BaseException:
            # A commit may have been accepted although it failed here, or although this task was cancelled.
            writer, self._copier = self._copier.writer, self._fresh_copier()
            with suppress(OffloadError):  # the one that stopped the copy says more
                if writer is not None:
                    self._know(writer.manifest)
                    await self._note_end()
                    await self._note_had(writer.manifest, writer.reached)
            raise
        finally:
            self.since_seconds = self.env.monotonic()
        copied = self._copier.manifest
        end = until if copied is None else copied.next_offset
        if copied is not None:
            self._know(copied)
        if before < end:
            self.emit(
                LedgersOffloaded(
                    stream=self.log.name,
                    first_offset=before,
                    next_offset=end,
                    stored_size_bytes=self._copier.uploaded_size_bytes - size,
                    seconds=self.env.monotonic() - began,
                )
            )
        await self._note_end()
        if copied is not None and before < end:
            self._compared = _Compared(_end_of(copied), is_copy=True)
            await self._note_had(copied, end)

    async def confirm(self, ledger: LocalLedger) -> None:
        """Make sure that the tier has all of a ledger, as it is in the log, or had what was trimmed of it.

        Raises the doubt as an error. The caller has called `agree`. Costs one small request for each
        fragment that is left of the ledger. If an object is gone, the newest root is looked at again: a
        compaction may have replaced it, or a trim dropped it, and a sweep deleted it since.
        """
        while True:
            manifest = self.manifest
            try:
                await self._confirm(ledger, manifest)
            except Absent:
                if not await self.agree() or _version(self.manifest) == _version(manifest):
                    raise
            else:
                return

    async def _confirm(self, ledger: LocalLedger, manifest: Manifest | None) -> None:
        if manifest is None or manifest.next_offset < ledger.next_offset:
            raise _lost(self.log.name, f"it does not have ledger {ledger.ledger_id}")
        at = max(ledger.first_offset, manifest.first_offset)
        self._check_had(manifest, ledger.first_offset, min(at, ledger.next_offset))
        if at < ledger.next_offset:
            async with await self.log.open_ledger(ledger.ledger_id) as local:
                await self._compare_with(local, manifest, at, ledger.next_offset)

    async def _compare_with(
        self, local: ReadHandle, manifest: Manifest, at: int, until: int, *, by_bytes: bool = False
    ) -> None:
        """Raise an error unless the tier has [`at`, `until`) of a local ledger, in whole fragments."""
        if at >= until:
            return
        view, chunks = self.tier.view_of(manifest), await local.table()
        async with aclosing(view.walk(at)) as runs:
            async for run in runs:
                for entry in entries_of_rows(run):
                    if at >= until:
                        return
                    async with await view.open(entry) as handle:
                        ours, theirs = self._same_chunks(chunks, await handle.table(), handle.where)
                        if by_bytes:
                            behind = slice(None) if entry.copied else slice(-1, None)
                            await self._compare_bytes(local, ours[behind], handle, theirs[behind])
                    at = entry.next_offset
        if at < until:
            raise _lost(self.log.name, f"its entries end at offset {at}")

    def _check_had(self, manifest: Manifest, first_offset: int, next_offset: int) -> None:
        """Raise `Diverged` unless the tier, which trimmed these offsets, is known to have had the log's."""
        had = self._had
        is_known = (
            had is not None
            and had.incarnation == str(manifest.incarnation)
            and had.first_offset <= first_offset
            and next_offset <= had.next_offset
        )
        if first_offset < next_offset and not is_known:
            raise Diverged(
                f"stream {self.log.name!r}: the tier was trimmed up to offset {manifest.first_offset}, and "
                f"nothing shows that it had [{first_offset}, {next_offset}) as {self.log.where} has it; no "
                "local copy is deleted; see: offload help embedding#if-a-ledger-has-stopped"
            )

    def _same_chunks(self, ours: ChunkTable, theirs: ChunkTable, where: str) -> tuple[ChunkTable, ChunkTable]:
        """Return the rows of both tables where both have some. Raises `Diverged` if they are other chunks."""
        begin = max(int(ours["offset"][0]), int(theirs["offset"][0]))
        ours, theirs = ours[row_from(ours, begin) :], theirs[row_from(theirs, begin) :]
        both = min(len(ours), len(theirs))
        ours, theirs = ours[:both], theirs[:both]
        if not all(np.array_equal(ours[name], theirs[name]) for name in CHUNK_COLUMNS):
            raise self._forked(where)
        return ours, theirs

    async def _compare_bytes(
        self, local: ReadHandle, ours: ChunkTable, handle: ReadHandle, theirs: ChunkTable
    ) -> None:
        """Raise `Diverged` unless these chunks, which have equal rows, have equal bytes."""
        at = 0
        for window in handle.windows(theirs):
            mine = await local.read(ours[at : at + len(window)])
            if memoryview(mine) != memoryview(await handle.read(window)):
                raise self._forked(handle.where)
            at += len(window)

    def _forked(self, where: str) -> Diverged:
        return Diverged(
            f"stream {self.log.name!r}: the chunks of {where} are not those of {self.log.where}; "
            "no local copy is deleted",
            kind=Divergence.FORK,
        )

    async def trim_target(self, retention: Retention, *, slowest_offset: int | None) -> int | None:
        """Return the offset below which retention deletes records on the tier; None if nothing goes.

        Sends no request, unless the cut lies within a group that is not in memory.
        """
        manifest = self.manifest
        if manifest is None:
            return None
        change = await plan_trim(self.tier.tree(manifest), retention, now_ms=self.env.now_ms())
        if change is None:
            return None
        target = change.first_offset if slowest_offset is None else min(change.first_offset, slowest_offset)
        return target if target > manifest.first_offset else None

    async def trim(self, before_offset: int) -> None:
        """Trim the tier below an offset."""
        report = await trim(
            self.tier,
            self.log.name,
            Retention(before_offset=before_offset),
            seen=self.manifest,
            env=self.env,
        )
        self._know(report.manifest)

    async def release(self) -> None:
        """Stop being the writer. The next offload claims the stream again."""
        if self._copier.writer is not None:
            await self._copier.writer.release()

    async def delete(self) -> None:
        """Delete the stream on the tier, if it is there. One that somebody began anew since stays."""
        try:
            manifest = await self.tier.load_manifest(self.log.name)
        except BeingRebuilt:
            raise
        except NotOffloaded:
            return  # also if an earlier call was interrupted behind it
        known = self.manifest
        if known is not None and manifest.incarnation != known.incarnation:
            raise _lost(self.log.name, "it was deleted and begun again")
        self._refuse_successor(manifest, self._copier.writer)
        await delete_stream(self.tier, self.log.name, seen=manifest, env=self.env)

    def _refuse_successor(self, manifest: Manifest, writer: StreamWriter | None) -> None:
        if writer is not None and manifest.writer != writer.writer:
            raise Fenced(
                f"stream {self.log.name!r}: another process has claimed it, with epoch {manifest.epoch}",
                epoch=manifest.epoch,
            )

    async def _meet_own(self) -> None:
        """Raise `Diverged` unless the log continues what is committed. Costs no request for a kept writer.

        Before the snapshot that is copied is taken: a job may append what the log gets meanwhile.
        """
        writer = self._copier.writer
        # Not by the copier, which begins a stream that is gone again. Here that is a loss to report.
        manifest = await self.look() if writer is None else self.manifest
        await self._agree(manifest)
        if writer is None:
            self._copier.manifest = manifest
        elif manifest is not None and manifest.next_offset != writer.reached:
            self._copier.go_on_behind(manifest)

    def _fresh_copier(self) -> StreamCopier:
        return StreamCopier(
            part=PartOnTier.first(self.tier, self.log.name),
            env=self.env,
            emit=self.emit,
            check=self._check,
        )

    async def _note_end(self) -> None:
        """Remember when the end of the tier was first seen, for the ledgers that are here too."""
        manifest = self.manifest
        first = self.log.first_offset
        # The last one always stays: it proves that the tier had the stream.
        seen = self.committed_ms[-SEEN_MAX:]
        kept = [row for row in seen[:-1] if row[0] > first] + seen[-1:]
        if manifest is not None and manifest.next_offset > max((end for end, _ in kept), default=-1):
            kept.append((manifest.next_offset, self.env.now_ms()))
        if kept != self.committed_ms:
            self.committed_ms = kept
            await self._save_note()

    async def _note_had(self, manifest: Manifest, end: int) -> None:
        """Remember what the tier has up to `end`. The caller knows that it is a copy of this log."""
        if manifest.first_offset >= end:
            return
        has = _Had(str(manifest.incarnation), manifest.first_offset, end).joined(self._had)
        if has != self._had:
            self._had = has
            await self._save_note()

    async def _save_note(self) -> None:
        note = {"ends": self.committed_ms, "had": None if self._had is None else asdict(self._had)}
        await self.log.save_note(COMMITTED_NOTE, json.dumps(note).encode())


def _end_of(manifest: Manifest | None) -> _End | None:
    return None if manifest is None else (manifest.incarnation, manifest.next_offset)


def _version(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.version


def _decode_note(raw: bytes) -> tuple[list[tuple[int, int]], _Had | None]:
    try:
        note = json_outside(raw)
        rows = [(end, ms) for end, ms in note["ends"]]
        had = None if note["had"] is None else _Had(**note["had"])
    except (ValueError, TypeError, KeyError):
        return [], None
    numbers = [each for row in rows for each in row]
    if had is not None:
        numbers += [had.first_offset, had.next_offset]
    is_right = all(type(each) is int and 0 <= each < 2**64 for each in numbers) and all(
        before[0] < after[0] for before, after in pairwise(rows)
    )
    return (rows, had) if is_right else ([], None)


def _lost(stream: str, how: str) -> Diverged:
    return Diverged(
        f"stream {stream!r}: the tier has lost what it had of the stream: {how}; no local copy is deleted; "
        "restore the tier, or see `offload rebuild`"
    )
