"""Checking a whole fragment against the entry that names it in a manifest, or that will."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from offload.formats.fragment import FragmentTail
from offload.ground.errors import Absent, Corrupt, NotFound, NotOffloaded
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.fragment_check import check_fragment
from offload.native.fragment_reader import check_entry
from offload.native.offloader import ObjectStoreOffloader
from offload.read.reader import newer_manifest

__all__ = ["is_checked"]


async def is_checked(
    offloader: ObjectStoreOffloader,
    manifest: Manifest,
    entry: Entry,
    key: str,
    *,
    opens: Callable[[FragmentTail], Awaitable[bool]] | None = None,
) -> bool:
    """Read a fragment whole, and return True if it is sound; False if it was trimmed meanwhile.

    `opens` is that of `check_fragment`.
    Raises `Corrupt` if it is damaged, and `Absent` if it is gone and the newest manifest still names it.
    """
    try:
        checked = await check_fragment(
            offloader.store,
            key,
            size_bytes=entry.stored_size_bytes,
            tail_size_bytes=entry.tail_size_bytes,
            ring=offloader.ring,
            opens=opens,
        )
    except NotFound:
        with suppress(NotOffloaded):  # deleted meanwhile
            await newer_manifest(offloader, manifest, Absent(key, manifest.stream))
        return False
    check_entry(checked.tail.trailer, manifest, entry, where=key)
    if checked.checksum != entry.checksum:
        raise Corrupt("object checksum", key, expected=entry.checksum, found=checked.checksum)
    return True
