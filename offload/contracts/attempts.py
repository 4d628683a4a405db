"""Checks of an attempt before any byte of it is stored. They are the same on every kind of tier."""

from __future__ import annotations

from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict, Misuse
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest

__all__ = ["check_copied", "prepared_kind"]


def prepared_kind(handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> AttemptKind:
    """Return the kind of an attempt that runs in `manifest`.

    Raises as `LedgerOffloader.offload` does: `Conflict` if the attempt was not prepared, or if a job's data
    would begin below the end of the stream; `Misuse` if `handle` is of another ledger.
    """
    prepared = {(manifest.stream, each.ledger_id, each.attempt): each.kind for each in manifest.running}
    kind = prepared.get((attempt.stream, attempt.ledger_id, attempt.uid))
    if kind is None:
        raise Conflict(f"attempt {attempt.uid} of stream {attempt.stream!r} was not prepared")
    if handle.ledger_id != attempt.ledger_id:
        raise Misuse(f"the attempt announced ledger {attempt.ledger_id}, not ledger {handle.ledger_id}")
    # Such data can never be appended. Uploaded in vain, it could mislead a rebuild after the loss of all
    # roots, which prefers fragments of a higher epoch (docs/commit-protocol.md, "Guests").
    if kind is AttemptKind.JOB and handle.first_offset < manifest.next_offset:
        raise Conflict(
            f"stream {attempt.stream!r} already ends at offset {manifest.next_offset}: "
            f"another writer or job appended the data at this job's offset {handle.first_offset}"
        )
    return kind


async def check_copied(view: StreamView, handle: ReadHandle) -> Entry:
    """Return the first fragment that a copy replaces.

    A copy begins at the first offset of a fragment and ends with a fragment. Raises `Conflict` otherwise.
    """
    first, last = await view.find(handle.first_offset), await view.find(handle.next_offset - 1)
    begins = first is not None and first.first_offset == handle.first_offset
    if first is None or last is None or not begins or last.next_offset != handle.next_offset:
        stream, offsets = view.committed.stream, f"[{handle.first_offset}, {handle.next_offset})"
        raise Conflict(f"stream {stream!r}: a copy of {offsets} must begin and end with a fragment")
    return first
