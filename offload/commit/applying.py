"""Functions that the changes share: preconditions, appending entries, and the verdict on entries.

A commit that names fragments is in if its last entry is named, since all of them were committed at once. A
later trim may have dropped that entry, and a compaction may have put a copy in its place (`commit.job`). The
manifest can then no longer show whether the change was in.

Invariant: every manifest that these functions return keeps the invariants of `model.manifest`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from offload.contracts.change import CommitVerdict
from offload.ground.errors import Conflict, Misuse, StreamDeleted
from offload.model.entry import TOTALS, Entry, exact_sum, joined_entries, rows_of_entries
from offload.model.manifest import AttemptKind, Manifest, Running, StreamState
from offload.model.tokens import token_of
from offload.model.tree import Tree


def existing(base: Manifest | None) -> Manifest:
    """Return `base` if it is a live stream's.

    Raises `Misuse` if there is none, `StreamDeleted` on a tombstone, `Conflict` during a rebuild.
    """
    if base is None:
        raise Misuse("a stream must be claimed before anything else is committed to it")
    if base.state is StreamState.DELETED:
        raise StreamDeleted(f"stream {base.stream!r} was deleted", epoch=base.epoch)
    if base.state is StreamState.REBUILDING:
        raise Conflict(f"stream {base.stream!r} is being rebuilt; wait until the rebuild is done")
    return base


def attempts_for(manifest: Manifest, owner: UUID, kind: AttemptKind) -> set[UUID]:
    """Return the attempts of this kind that run for a writer or a job."""
    return {each.attempt for each in manifest.running if (each.kind, each.writer) == (kind, owner)}


def announce(base: Manifest, announced: Sequence[Running]) -> Manifest:
    """Return `base` with these attempts running too. Raises `Conflict` if one of them runs already."""
    # The verdict has found no announcement by this author, so an attempt that runs is another author's. If it
    # were announced twice, either author could append it, or drop it during the other's upload.
    runs = {running.attempt for running in base.running}
    for running in announced:
        if running.attempt in runs:
            raise Conflict(
                f"stream {base.stream!r}: attempt {running.attempt} already runs for another author"
            )
    return replace(base, running=(*base.running, *announced))


def without(base: Manifest, attempts: Collection[UUID]) -> Manifest:
    """Return `base` without these attempts among those that run."""
    return replace(base, running=tuple(r for r in base.running if r.attempt not in attempts))


async def verdict_on_entries(tree: Tree, entries: Sequence[Entry], *, over: bool) -> CommitVerdict:
    """Return the verdict on a commit that names `entries`.

    `over` says that none of the attempts that the commit would end runs any more. While one runs, the commit
    is not in. Otherwise the last entry decides for all of them, if there is one.
    """
    # One commit names the entries and ends the attempts. So while an attempt runs, the commit is not in. If a
    # trim has passed its offsets all the same, it trimmed the data of another author.
    if not entries or not over:
        return in_if(over)
    # A trim drops the oldest entries first, so the last entry stays visible longest. A `next_offset` beyond
    # it proves nothing: a job may have appended other data there after the attempt was dropped.
    last = entries[-1]
    found = await tree.find(last.first_offset)
    if is_same(found, last):
        return CommitVerdict.IN
    # Either of these may have removed our entry, or another's at the same offset. To call the change in would
    # let a writer free its source; to call it out would append the same data twice. A copy keeps the token
    # of what it copies, so a copy with another token was not made of our entry.
    is_trimmed = last.first_offset < tree.manifest.first_offset
    is_copied = found is not None and found.copied and token_of(found.attempt) == token_of(last.attempt)
    return CommitVerdict.UNKNOWN if is_trimmed or is_copied else CommitVerdict.OUT


def in_if(is_in: bool) -> CommitVerdict:
    """Return the verdict on a change that is never in doubt: `IN` if `is_in`, else `OUT`."""
    return CommitVerdict.IN if is_in else CommitVerdict.OUT


def is_same(found: Entry | None, entry: Entry) -> bool:
    """Return whether the fragment found at an offset is the one of this entry."""
    return found is not None and (found.first_offset, found.attempt) == (entry.first_offset, entry.attempt)


def append_entries(base: Manifest, entries: Sequence[Entry]) -> Manifest:
    """Return `base` with these entries behind its own.

    Raises `Conflict` if they begin below its end, because then another writer appended first. Raises `Misuse`
    if they begin beyond it or do not touch each other: no other writer can cause or fill such a gap.
    """
    if not entries:
        return base
    expected = base.next_offset
    if entries[0].first_offset < expected:
        where = f"offset {entries[0].first_offset} does not continue {expected}"
        raise Conflict(f"stream {base.stream!r}: {where}: another writer appended first")
    # Each entry is compared with its predecessor, and the first with the base. A hole in a committed stream
    # can never be filled, and the broker may delete the data that belongs there.
    for entry in entries:
        if entry.first_offset != expected:
            where = f"offset {entry.first_offset} does not continue {expected}"
            raise Misuse(f"stream {base.stream!r}: {where}: the appended fragments must touch")
        expected = entry.next_offset
    # A ledger whose first fragment is named already was counted then. After a trim of everything, no such
    # fragment is named, so the ledger counts again.
    rows = rows_of_entries(entries, after_ledger=base.last_ledger_id if base.fragments else None)
    return replace(
        base,
        next_offset=entries[-1].next_offset,
        **{total: getattr(base, total) + exact_sum(rows[total]) for total in (*TOTALS, "ledgers")},
        last_ledger_id=entries[-1].ledger_id,
        entries=joined_entries(base.entries, rows),
    )
