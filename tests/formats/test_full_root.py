"""What every store must create in one request: a root that holds all that a root may."""

from __future__ import annotations

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.formats.anchor import BRANCHING_FACTOR_MAX
from offload.formats.keys import STREAM_SIZE_BYTES_MAX
from offload.formats.root import ENTRY, ROOT_HEADER, RUNNING
from offload.model.entry import EntryKind

RUNNING_ATTEMPTS = 4096


def test_a_full_root_fits_what_every_store_creates() -> None:
    """With the largest branching factor, the longest name, and thousands of announced attempts."""
    entries = (BRANCHING_FACTOR_MAX - 1) * len(EntryKind) * ENTRY.size_bytes
    running = RUNNING_ATTEMPTS * RUNNING.size_bytes

    full = ROOT_HEADER.size_bytes + STREAM_SIZE_BYTES_MAX + running + entries + 4

    assert (entries, full) == (623_616, 857_280)
    assert full < CREATE_SIZE_BYTES_LEAST
