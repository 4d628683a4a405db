"""Replacing fragments: one commit puts copies in the place of committed fragments, for compaction.

Readers, writers and trims rest on what is committed, so a replacement changes as little as can be: the same
offsets, the same records, messages and chunk bytes, of the same ledger. Only how they are cut into objects
changes, and with it the totals `fragments` and `stored_size_bytes`.

    stopped              left behind                                 cured by
    before the commit    copies of attempts that run                 `abort` of the job
    after it             fragments, and groups, that no root names   the sweep

Where the fragments stand in a group, the way down to them is made anew (`manifest.tree.edited`), for groups
never change. Invariants: the base names exactly the fragments that were copied, next to each other in one
run; the copies' attempts run for this job, as copies, begin with the same eight bytes as all that they copy,
and end with the commit; the newest fragment stays.
Rejected: deleting the old objects here, since readers may hold them (docs/adr/0015-replacing-fragments.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from offload.errors import Conflict, Misuse, OutcomeUnknown
from offload.formats.manifest import (
    AttemptKind,
    Entries,
    Entry,
    Manifest,
    decode_entries,
    encode_entries,
    joined,
)
from offload.manifest.changes import OfJob, is_named
from offload.manifest.tokens import token_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(OfJob):
    """Name `new` where `old` is named, and drop the attempts of `new`, all in one commit.

    Raises `Misuse` where the two cannot be the same records. `Conflict` says that nothing of it is in, nor
    will be: `old` is not what stands there any more, or somebody aborted the copies. Where the attempts are
    over and what stands there was trimmed, or is another copy, nothing tells: `OutcomeUnknown`.
    """

    old: Sequence[Entry]
    new: Sequence[Entry]

    def __post_init__(self) -> None:
        for entries in (self.old, self.new):
            if not entries or any(one.next_offset != two.first_offset for one, two in pairwise(entries)):
                raise Misuse("what is replaced, and what replaces it, are fragments that touch each other")
        if len(self.new) > len(self.old):
            raise Misuse(f"{len(self.new)} fragments in the place of {len(self.old)}: a group could burst")
        if not all(entry.copied for entry in self.new):
            raise Misuse("only copies, uploaded under attempts of kind copy, take the place of fragments")
        if len({token_of(entry.attempt) for entry in (*self.old, *self.new)}) > 1:
            raise Misuse("copies under another token than what they copy")
        said, found = _content_of(self.old), _content_of(self.new)
        if said != found or len({entry.ledger_id for entry in (*self.old, *self.new)}) > 1:
            raise Misuse(f"copies of one ledger with {found} in the place of {said}")

    @property
    def attempts(self) -> frozenset[UUID]:
        """Those of the copies."""
        return frozenset(entry.attempt for entry in self.new)

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. Whether `base` names `old` is for `edit` to say."""
        base = self.begun_on(base)
        own = self.own(base, AttemptKind.COPY)
        begin, end = self.old[0].first_offset, self.old[-1].next_offset
        if begin < base.first_offset:
            if not own & self.attempts:
                raise OutcomeUnknown(
                    f"stream {base.stream!r}: offsets below {base.first_offset} were trimmed, "
                    f"and nothing tells whether job {self.job} had replaced fragments there"
                )
            raise Conflict(f"stream {base.stream!r}: offsets below {base.first_offset} were trimmed")
        if end >= base.next_offset:
            raise Conflict(f"stream {base.stream!r} ends at {base.next_offset}: its newest fragment stays")
        for attempt in self.attempts - own:
            raise Conflict(f"stream {base.stream!r}: attempt {attempt} runs not as a copy for job {self.job}")
        size_bytes = sum(e.stored_size_bytes for e in self.new) - sum(e.stored_size_bytes for e in self.old)
        return replace(
            base,
            stored_size_bytes=base.stored_size_bytes + size_bytes,
            fragments=base.fragments + len(self.new) - len(self.old),
            running=tuple(r for r in base.running if r.attempt not in self.attempts),
        )

    @property
    def edits(self) -> int | None:
        """See `Change.edits`."""
        return self.old[0].first_offset

    def edit(self, run: Entries) -> Entries:
        """See `Change.edit`. `Conflict` where `run` does not name `old`, one behind the other."""
        at = int(np.searchsorted(run["first_offset"], np.uint64(self.old[0].first_offset)))
        end = at + len(self.old)
        if decode_entries(run[at:end]) != list(self.old):
            offsets = f"[{self.old[0].first_offset}, {self.old[-1].next_offset})"
            raise Conflict(f"other fragments hold {offsets} now, or not all of them stand in one group")
        rows = encode_entries(self.new, after_ledger=None if run["ledgers"][at] else self.new[0].ledger_id)
        return joined(run[:at], rows, run[end:])

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`. All copies were committed at once, so the last one speaks for all."""
        over = not self.own(manifest, AttemptKind.COPY) & self.attempts
        return manifest.incarnation == self.incarnation and is_named(marked, self.new[-1], over=over)

    @property
    def mark(self) -> int | None:
        """See `Change.mark`."""
        return self.new[-1].first_offset


def _content_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """What entries tell of the records in their fragments, however those are cut."""
    return {
        "first_offset": entries[0].first_offset,
        "next_offset": entries[-1].next_offset,
        "messages": sum(entry.messages for entry in entries),
        "data_size_bytes": sum(entry.data_size_bytes for entry in entries),
        "first_timestamp_ms": min(entry.first_timestamp_ms for entry in entries),
        "last_timestamp_ms": max(entry.last_timestamp_ms for entry in entries),
    }
