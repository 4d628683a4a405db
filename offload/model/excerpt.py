"""Excerpts of a committed stream, with some of its fragments.

A worker that has one loads no root and no group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from offload.model.entry import TOTALS, Entries, exact_sum
from offload.model.manifest import CommittedStream, Manifest

__all__ = ["of_fragments"]


C = TypeVar("C", bound=CommittedStream)


def of_fragments(committed: C, entries: Entries) -> C:
    """Return `committed` as if it named these fragments, which follow each other, and nothing else."""
    # A ledger is counted in the row at which it begins. If the first row continues one, it counts too.
    changed: dict[str, Any] = {total: exact_sum(entries[total]) for total in TOTALS}
    if isinstance(committed, Manifest):
        changed |= {"last_ledger_id": int(entries["ledger_id"][-1]), "running": ()}
    return replace(
        committed,
        first_offset=int(entries["first_offset"][0]),
        next_offset=int(entries["first_offset"][-1]) + int(entries["records"][-1]),
        ledgers=exact_sum(entries["ledgers"]) + int(entries["ledgers"][0] == 0),
        entries=entries,
        **changed,
    )
