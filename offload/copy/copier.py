"""Copying what a source has beyond a tier, with one kept writer, from one snapshot after another.

A sync uses a copier for one snapshot, and a follower keeps one for as long as it leads.

Invariants: nothing is appended to a history that the source does not continue; chunks before a damaged one
are committed, and nothing behind it; a stream with nothing new is not claimed.

The histories are compared with the tier before the stream is claimed, and again if the claim shows that
somebody else has appended. After that no other writer appends, or this one is fenced. So each later snapshot
is compared with the last chunk that was copied, which needs no request. A job needs no claim, and may append
beside the writer. A commit of the writer then shows an end that its own appends did not make
(`StreamWriter.reached`), or is refused. Either ends the copy with `Conflict`, and the next one begins with a
comparison.

A stream that has a later part takes no more data. `copy.next_part` has the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.events import CopyBegun, Event
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.copy.after_restore import open_behind
from offload.copy.history import agreement, check_continues, check_same_history, first_damage, newest
from offload.copy.instance import Instance
from offload.copy.next_part import PartOnTier
from offload.formats.chunk import CHUNK_HEADER
from offload.formats.chunk_check import check_source
from offload.ground.env import Env
from offload.ground.errors import Conflict, Corrupt, Diverged, Divergence, OffloadError, TryAgain
from offload.model.chunk_table import row_from
from offload.model.manifest import Manifest
from offload.read.handles import CutHandle
from offload.write.writer import StreamWriter

LEDGERS_AT_ONCE: Final = 16
CHUNKS_AT_ONCE: Final = 500_000
"""The most ledgers that one commit announces, and the number of table rows in memory that ends a batch."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class StreamCopier:
    """Copies one stream of a source to one stream of a tier. Used by one task at a time."""

    part: PartOnTier

    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    env: Env = field(default_factory=Env)
    emit: Callable[[Event], None] = lambda event: None
    instance: Instance | None = None
    """The identity that the claims of this copier have. None: they have none."""
    writer: StreamWriter | None = None
    manifest: Manifest | None = None
    """The newest manifest that this copier has seen."""
    expected_version: int | None = None
    """If given, the stream is claimed only if its newest root has this version."""
    check: Callable[[Manifest, Snapshot], Awaitable[object]] | None = None
    """Raises `Diverged` unless a snapshot continues what is committed. By default `PartOnTier.check`."""

    _last: bytes | None = None
    """The last chunk that was copied."""
    _is_loaded: bool = False
    """True if `manifest` was loaded before the snapshot that is compared next."""
    _is_small: bool = False
    """True if the last chunk was copied and forgotten."""

    @property
    def offloader(self) -> LedgerOffloader:
        """The tier."""
        return self.part.offloader

    @property
    def stream(self) -> str:
        """The name on the tier."""
        return self.part.name

    @property
    def uploaded_size_bytes(self) -> int:
        """The size of all fragments that were uploaded completely."""
        return self.writer.uploaded_size_bytes if self.writer else 0

    def start(self, snapshot: Snapshot) -> int:
        """Return the first offset that the tier lacks, by the newest manifest that was seen."""
        return snapshot.first_offset if self.manifest is None else self.manifest.next_offset

    async def load(self, *, known_to_be_new: bool = False) -> Manifest | None:
        """Load the newest manifest, and return it. For a source that needs it before its snapshot."""
        self.manifest = None if known_to_be_new else await newest(self.offloader, self.stream)
        self._is_loaded = True
        return self.manifest

    async def compare(self, snapshot: Snapshot, *, known_to_be_new: bool = False) -> None:
        """Raise `Diverged` unless the source continues what is committed.

        The manifest is loaded if this copier holds no stream yet, unless the stream is `known_to_be_new`, or
        `load` was called for this snapshot. Raises `TryAgain` if a rival has appended since, and the source
        cuts its chunks elsewhere.
        """
        if self.writer is not None and self._is_small:
            await check_same_history(self.offloader, self.writer.manifest, snapshot)
            return
        if self.writer is not None:
            await check_continues(self.writer.manifest, self._last, snapshot)
            return
        if not self._is_loaded:
            await self.load(known_to_be_new=known_to_be_new)
        self._is_loaded = False
        # A restore that was killed right after it recorded the part left it without a root.
        if self.manifest is None and self.part.behind:
            self.manifest = await open_behind(self.part, env=self.env)
        if self.manifest is not None:
            await self._check(self.manifest, snapshot)

    async def _check(self, manifest: Manifest, snapshot: Snapshot) -> None:
        if self.check is None:
            await self.part.check(manifest, snapshot)
        else:
            await self.check(manifest, snapshot)
        await _check_cut(snapshot, manifest)

    def make_small(self) -> None:
        """Forget the last chunk while this copier waits. The next comparison reads it from the tier."""
        self._last, self._is_small = None, True

    def go_on_behind(self, manifest: Manifest) -> None:
        """Go on behind what a job appended beside the writer of this copier. The caller has compared it."""
        assert self.writer is not None, "a copier without a writer compares by itself"
        self.manifest = self.writer.manifest = manifest
        self.writer.reached, self._last = manifest.next_offset, None

    async def copy(self, snapshot: Snapshot, until: int, *, ahead: bool = False) -> None:
        """Copy what the tier lacks up to the offset `until`, at which a chunk begins or the snapshot ends.

        Claims the stream first if this copier does not hold it. With `ahead`, the last commit also announces
        the attempt of the next copy, so that this needs one commit less. Raises the error that stopped the
        copy. Data that was committed before the error stays.
        """
        start, has = self.start(snapshot), f"[{snapshot.first_offset}, {snapshot.next_offset})"
        _log.debug("stream %r: the source has offsets %s, to copy from %d", self.stream, has, start)
        if start >= until:
            return
        if self.manifest is not None:
            await _check_cut(snapshot, self.manifest)
        await self._check_first_chunk(snapshot, start)
        self.emit(CopyBegun(stream=self.stream, first_offset=start, next_offset=until))
        if self.writer is None:
            self.writer = await self._claim(snapshot)
        try:
            await self._append(self.writer, snapshot, until, ahead=ahead)
        finally:
            self.manifest = self.writer.manifest

    async def _check_first_chunk(self, snapshot: Snapshot, start: int) -> None:
        """Raise `Corrupt` if the first chunk to copy is damaged.

        A sync of a damaged source is usually run again and again. Without this check, each run would claim
        the stream and add a root, and copy nothing.
        """
        first = (await _batch(snapshot, start, snapshot.next_offset))[0]
        rows = (await first.table())[:1]
        try:
            check_source(await first.read(rows), rows, where=first.where)
        except Corrupt as damage:
            raise _named(damage, self.stream, start) from damage

    async def _claim(self, snapshot: Snapshot) -> StreamWriter:
        before = self.manifest
        expected_version = await self.part.prepare_claim(
            before, self.expected_version, source_epoch=snapshot.epoch, env=self.env
        )
        writer = await StreamWriter.claim(
            self.offloader,
            self.stream,
            base=before,
            is_new=before is None,
            first_offset=snapshot.first_offset,
            source_epoch=snapshot.epoch,
            expected_version=expected_version,
            writer=None if self.instance is None else self.instance.fresh_writer(self.env.uuid()),
            agree=agreement(self.offloader, self.stream, snapshot, check=self.check),
            env=self.env,
        )
        # Between the first comparison and the claim a rival may have begun the stream or appended to it, and
        # the claim may have adopted leftovers. The source must continue what is committed now.
        if before is None or writer.manifest.next_offset != before.next_offset:
            await self._check(writer.manifest, snapshot)
        # One may have been begun after our look. A stream that is only just born may have one too: a copy of
        # a tier may have brought a later part alone.
        await self.part.refuse_closed()
        return writer

    async def _append(self, writer: StreamWriter, snapshot: Snapshot, until: int, *, ahead: bool) -> None:
        while writer.manifest.next_offset < until:
            batch = await _batch(snapshot, writer.manifest.next_offset, until)
            # The writer has committed every ledger before the damaged one. The sound part of that ledger is
            # copied under a new attempt, since another cut must not reuse the keys of the first.
            try:
                await writer.offload(batch, extra_metadata=self.extra_metadata, ahead=ahead)
            except Corrupt:
                await self._append_up_to_damage(writer, snapshot)
                raise
            _refuse_end_of_others(writer)
            await self._remember(batch[-1], snapshot)
            # A stream may have very many ledgers, and each open one holds its table and a file.
            for ledger in batch:
                await ledger.aclose()

    async def _append_up_to_damage(self, writer: StreamWriter, snapshot: Snapshot) -> None:
        """Commit the chunks before the damaged one, and raise an error that names its offset.

        Returns if no chunk is damaged now. Then the damage was not in the source's files.
        """
        _refuse_end_of_others(writer)
        ledger = (await _batch(snapshot, writer.manifest.next_offset, snapshot.next_offset))[0]
        found = await first_damage(ledger)
        if found is None:
            return
        offset, damage = found
        if offset > ledger.first_offset:
            sound = CutHandle(ledger, first_offset=ledger.first_offset, next_offset=offset)
            await writer.offload([sound], extra_metadata=self.extra_metadata)
            _refuse_end_of_others(writer)
            await self._remember(sound, snapshot)
        raise _named(damage, self.stream, offset) from damage

    async def _remember(self, copied: ReadHandle, snapshot: Snapshot) -> None:
        raw = bytes(await copied.read((await copied.table())[-1:]))
        # A chunk may be large, and a process has many copiers. The header is all that is compared, unless the
        # source compares records.
        self._last = raw if snapshot.holds else raw[: CHUNK_HEADER.size_bytes]
        self._is_small = False


def _refuse_end_of_others(writer: StreamWriter) -> None:
    """Raise `Conflict` if a job appended beside this writer: its data must be compared first."""
    end = writer.manifest.next_offset
    if end != writer.reached:
        raise Conflict(
            f"stream {writer.manifest.stream!r}: a job has appended up to offset {end} beside this writer, "
            f"which reached {writer.reached}: run again, which compares the histories first"
        )


async def _check_cut(snapshot: Snapshot, manifest: Manifest) -> None:
    """Raise `TryAgain` if a source that cuts its own chunks begins none at the end of the tier.

    It began one where the tier ended when the snapshot was taken. A rival has appended since. Of any other
    source the last chunk was compared, unless it was trimmed. Then this raises `Diverged` if none is there.
    """
    end = manifest.next_offset
    if snapshot.holds is None and manifest.fragments:
        return
    for ledger in snapshot.ledgers:
        if ledger.first_offset < end < ledger.next_offset:
            table = await ledger.table()
            row = row_from(table, end)
            if row == len(table) or int(table["offset"][row]) != end:
                if snapshot.holds is None:
                    raise Diverged(
                        f"stream {manifest.stream!r}: the tier ends at offset {end}, and no chunk of the "
                        "source begins there: the source has another history",
                        kind=Divergence.FORK,
                    )
                raise TryAgain(
                    f"stream {manifest.stream!r}: another process appended up to offset {end} while the "
                    "source was read; run again"
                )


async def _batch(snapshot: Snapshot, start: int, until: int) -> list[ReadHandle]:
    """Return the next ledgers to copy, from offset `start` on and at most up to `until`.

    A ledger whose table cannot be read ends the batch. If it is the first, its error is raised.
    """
    batch: list[ReadHandle] = []
    chunks, ledgers_max = 0, min(snapshot.ledgers_at_once or LEDGERS_AT_ONCE, LEDGERS_AT_ONCE)
    for ledger in snapshot.ledgers:
        if ledger.next_offset <= start or ledger.first_offset >= until:
            continue
        handle = ledger
        first_offset, next_offset = max(ledger.first_offset, start), min(ledger.next_offset, until)
        if (first_offset, next_offset) != (ledger.first_offset, ledger.next_offset):
            handle = CutHandle(ledger, first_offset=first_offset, next_offset=next_offset)
        try:
            chunks += len(await handle.table())
        except OffloadError:
            # The sound ledgers before it are copied first. The next batch begins here, and raises.
            if not batch:
                raise
            return batch
        batch.append(handle)
        if len(batch) == ledgers_max or chunks >= CHUNKS_AT_ONCE:
            break
    return batch


def _named(damage: Corrupt, stream: str, offset: int) -> Corrupt:
    """Return the damage with the chunk's offset in its text."""
    return Corrupt(
        f"damaged chunk at offset {offset}: {damage.what}",
        damage.where,
        expected=damage.expected,
        found=damage.found,
        position=damage.position,
        stream=stream,
    )
