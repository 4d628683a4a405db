"""A manifest of some fragments alone: a worker that is given one asks the store for no root and no group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from offload.formats.manifest import TOTALS, Entries, Manifest, exact_sum


def of_fragments(manifest: Manifest, entries: Entries) -> Manifest:
    """Return `manifest` as if it named these fragments, which follow each other, and nothing else."""
    totals: dict[str, Any] = {total: exact_sum(entries[total]) for total in TOTALS}
    return replace(
        manifest,
        first_offset=int(entries["first_offset"][0]),
        next_offset=int(entries["first_offset"][-1]) + int(entries["records"][-1]),
        ledgers=exact_sum(entries["ledgers"]) + int(entries["ledgers"][0] == 0),
        last_ledger_id=int(entries["ledger_id"][-1]),
        running=(),
        entries=entries,
        **totals,
    )
