"""Every bug, and every sound class. Importing this registers the bugs."""

from __future__ import annotations

from typing import Any, Final

from newcomers import (
    offloader_commits,
    offloader_deletion,
    offloader_fourth,
    offloader_handles,
    offloader_late_reads,
    offloader_late_writes,
    offloader_leftovers,
    offloader_manifests,
    offloader_numbers,
    offloader_offloads,
    offloader_place,
    offloader_subclassed,
    offloader_third_reads,
    offloader_third_writes,
    store_connections,
    store_database,
    store_declared,
    store_deletes,
    store_files,
    store_late_reads,
    store_late_writes,
    store_pages,
    store_reads,
    store_reported,
    store_sums,
    store_third,
    store_uploads,
    store_wire_keys,
    store_writes,
)
from newcomers.registry import BUGS
from newcomers.service import ServiceStore
from newcomers.sound import Folder, FolderTier, Ledgers, Memory, SharedMemory, Sqlite, SummedMemory, Tier
from newcomers.table import Table

SOUND: Final[dict[str, Any]] = {
    each.__name__: each
    for each in (
        Folder,
        FolderTier,
        Ledgers,
        Memory,
        ServiceStore,
        SharedMemory,
        Sqlite,
        SummedMemory,
        Table,
        Tier,
    )
}
MODULES: Final = (
    offloader_commits,
    offloader_deletion,
    offloader_fourth,
    offloader_handles,
    offloader_late_reads,
    offloader_late_writes,
    offloader_leftovers,
    offloader_manifests,
    offloader_numbers,
    offloader_offloads,
    offloader_place,
    offloader_subclassed,
    offloader_third_reads,
    offloader_third_writes,
    store_connections,
    store_database,
    store_declared,
    store_deletes,
    store_files,
    store_late_reads,
    store_late_writes,
    store_pages,
    store_reads,
    store_reported,
    store_sums,
    store_third,
    store_uploads,
    store_wire_keys,
    store_writes,
)
"""What registers them."""

__all__ = ["BUGS", "MODULES", "SOUND"]
