"""Tests of the largest possible root, which every store must create in one request."""

from __future__ import annotations

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.formats.anchor import BRANCHING_FACTOR_MAX
from offload.formats.keys import STREAM_SIZE_BYTES_MAX
from offload.formats.root import ENTRY, ROOT_HEADER, RUNNING
from offload.model.entry import EntryKind

RUNNING_ATTEMPTS = 4096


def test_every_store_can_create_a_full_root() -> None:
    """It has the largest branching factor, the longest name, and thousands of announced attempts."""
    entries = (BRANCHING_FACTOR_MAX - 1) * len(EntryKind) * ENTRY.size_bytes
    running = RUNNING_ATTEMPTS * RUNNING.size_bytes

    full = ROOT_HEADER.size_bytes + STREAM_SIZE_BYTES_MAX + running + entries + 4

    assert (entries, full) == (727_552, 961_216)
    assert full < CREATE_SIZE_BYTES_LEAST
