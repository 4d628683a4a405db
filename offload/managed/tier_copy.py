"""The copy of one log on the tier: what is committed, copying more, and making sure before a local copy goes.

    known       the newest manifest that this process has seen. Nothing is asked for before it is needed
    committed   ends of the tier, each with the time at which it was first seen here. The deletion lag counts
                from it. It is kept as a note beside the log, because no manifest has it. It also proves that
                the tier had the stream, if that is gone

Invariants: the manifest is the truth, and nothing of it is kept a second time; a local copy goes only after
the newest root was loaded again, and each fragment of the ledger was found, whole, under its entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.events import Event, LedgersOffloaded
from offload.contracts.log import LedgerLog, LocalLedger
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.env import Env
from offload.errors import Diverged, Divergence, NotOffloaded, OutcomeUnknown, StreamDeleted, TryAgain
from offload.managed.log_source import LogStream
from offload.model.entry import entries_of_rows
from offload.model.manifest import Manifest
from offload.model.part import StreamPart
from offload.streams.copier import StreamCopier
from offload.streams.parts import check_part
from offload.tracing import span
from offload.upkeep.retention import Retention, plan_trim, trim

COMMITTED_NOTE: Final = "committed"
SEEN_MAX: Final = 10_000
"""The most ends that are remembered. If there are more, the oldest local copies stay a little longer."""


@dataclass(slots=True, kw_only=True)
class TierCopy:
    """One stream's side on the tier. Used by one task at a time."""

    log: LedgerLog
    source: LogStream
    tier: LedgerOffloader
    env: Env
    emit: Callable[[Event], None]
    committed_ms: list[tuple[int, int]] = field(default_factory=list)
    is_known: bool = False
    """Whether the tier was asked for its newest manifest."""
    since_seconds: float = 0.0
    """The moment of the last offload, or of the beginning."""

    _copier: StreamCopier = field(init=False)

    def __post_init__(self) -> None:
        self.since_seconds = self.env.monotonic()
        self._copier = self._fresh_copier()

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest that is known. None if the tier does not have the stream."""
        return self._copier.manifest

    @property
    def is_claimed(self) -> bool:
        """True if this process holds the stream as its writer."""
        return self._copier.writer is not None

    async def load_note(self) -> None:
        """Load the times at which ends of the tier were seen. A note that is damaged counts as none."""
        raw = await self.log.load_note(COMMITTED_NOTE)
        try:
            rows = [] if raw is None else json.loads(raw)
            self.committed_ms = [(int(end), int(ms)) for end, ms in rows]
        except (ValueError, TypeError):
            self.committed_ms = []  # local copies then stay for another lag

    async def look(self) -> Manifest | None:
        """Load the newest manifest. None if the tier does not have the stream.

        Raises `StreamDeleted` if it was deleted, and `Diverged` if it is another one than this process knew.
        """
        known = self._copier.manifest
        try:
            manifest: Manifest | None = await self.tier.load_manifest(self.log.name)
        except StreamDeleted:
            raise
        except NotOffloaded as gone:
            if known is not None or self.committed_ms:
                raise _lost(self.log.name, str(gone)) from gone
            manifest = None
        if manifest is not None and known is not None:
            if manifest.incarnation != known.incarnation:
                raise _lost(self.log.name, "it was deleted and begun again")
            if manifest.next_offset < known.next_offset:
                raise _lost(self.log.name, f"it ends at offset {manifest.next_offset} now")
        self._copier.manifest, self.is_known = manifest, True
        await self._note_end()
        return manifest

    async def offload(self, until: int) -> None:
        """Copy what the tier lacks up to `until`, where a ledger ends. Raises what stopped it.

        What was committed before the error stays. After an error that leaves the root in doubt, the next call
        claims the stream again.
        """
        began = self.env.monotonic()
        before, size = None, self._copier.uploaded_size_bytes
        try:
            with span("offload", stream=self.log.name, until=until):
                async with await self.source.snapshot(self._copier.manifest) as snapshot:
                    await self._compare(snapshot)
                    before = self._copier.start(snapshot)
                    await self._copier.copy(snapshot, until)
        except (TryAgain, OutcomeUnknown):
            known, self._copier = self._copier.manifest, self._fresh_copier()
            self._copier.manifest = known
            raise
        finally:
            self.since_seconds = self.env.monotonic()
            await self._note_end()
        end = self.manifest.next_offset if self.manifest is not None else until
        if before is not None and before < end:
            self.emit(
                LedgersOffloaded(
                    stream=self.log.name,
                    first_offset=before,
                    next_offset=end,
                    stored_size_bytes=self._copier.uploaded_size_bytes - size,
                    seconds=self.env.monotonic() - began,
                )
            )

    async def confirm(self, ledger: LocalLedger) -> None:
        """Make sure that the tier has all of a ledger, now. Raises the doubt as an error.

        Costs a look at the root, and one small request for each fragment of the ledger.
        """
        manifest = await self.look()
        if manifest is None or manifest.next_offset < ledger.next_offset:
            raise _lost(self.log.name, f"it does not have ledger {ledger.ledger_id}")
        view = self.tier.view_of(manifest)
        at = max(ledger.first_offset, manifest.first_offset)
        async with aclosing(view.walk(at)) as runs:
            async for run in runs:
                for entry in entries_of_rows(run):
                    if at >= ledger.next_offset:
                        return
                    async with await view.open(entry) as handle:
                        await handle.table()
                    at = entry.next_offset
        if at < ledger.next_offset:
            raise _lost(self.log.name, f"its entries end at offset {at}")

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
        self._copier.manifest = report.manifest

    async def release(self) -> None:
        """Stop being the writer. The next offload claims the stream again."""
        if self._copier.writer is not None:
            await self._copier.writer.release()

    async def _compare(self, snapshot: Snapshot) -> None:
        """Raise `Diverged` unless the log continues what is committed."""
        if self.is_claimed:
            await self._copier.compare(snapshot)
            return
        # Not by the copier, which begins a stream that is gone again. Here that is a loss to report.
        manifest = await self.look()
        if manifest is not None:
            await check_part(self.tier, self._copier.part, manifest, snapshot)

    def _fresh_copier(self) -> StreamCopier:
        return StreamCopier(part=StreamPart(self.log.name), offloader=self.tier, env=self.env, emit=self.emit)

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
            await self.log.save_note(COMMITTED_NOTE, json.dumps(kept).encode())


def _lost(stream: str, how: str) -> Diverged:
    return Diverged(
        f"stream {stream!r}: the tier has lost what it had of the stream: {how}; no local copy is deleted; "
        "restore the tier, or see `offload rebuild`",
        kind=Divergence.BEHIND,
    )
