"""What an attempt must fit before a byte of it is stored: the same on every kind of tier."""

from __future__ import annotations

from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.errors import Conflict, Misuse
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest

__all__ = ["check_copied", "prepared_kind"]


def prepared_kind(handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> AttemptKind:
    """The kind of the attempt, which `manifest` runs. Raises as `LedgerOffloader.offload` does otherwise."""
    prepared = {(manifest.stream, each.ledger_id, each.attempt): each.kind for each in manifest.running}
    kind = prepared.get((attempt.stream, attempt.ledger_id, attempt.uid))
    if kind is None:
        raise Conflict(f"attempt {attempt.uid} of stream {attempt.stream!r} was not prepared")
    if handle.ledger_id != attempt.ledger_id:
        raise Misuse(f"ledger {handle.ledger_id} under an attempt that announced {attempt.ledger_id}")
    if kind is AttemptKind.JOB and handle.first_offset < manifest.next_offset:
        raise Conflict(
            f"stream {attempt.stream!r} ends at offset {manifest.next_offset} already: "
            f"another came before this job's offset {handle.first_offset}"
        )
    return kind


async def check_copied(view: StreamView, handle: ReadHandle) -> Entry:
    """The first fragment that a copy takes the place of. Raises `Conflict` if it fits none.

    A copy begins where a fragment begins, and ends where one ends.
    """
    first, last = await view.find(handle.first_offset), await view.find(handle.next_offset - 1)
    begins = first is not None and first.first_offset == handle.first_offset
    if first is None or last is None or not begins or last.next_offset != handle.next_offset:
        stream, offsets = view.committed.stream, f"[{handle.first_offset}, {handle.next_offset})"
        raise Conflict(f"stream {stream!r}: no fragments begin and end as a copy of {offsets} does")
    return first
