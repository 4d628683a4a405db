"""Finding what a crash left: complete fragments that the manifest does not name yet.

Invariants (docs/commit-protocol.md, step "resolve"): only fragments of attempts that run in the
manifest, for another writer and for no job, are offered; they continue `next_offset` in one chain
without hole; each was read whole and every checksum of it held. Whoever adopts them compares the
last chunk with the source first, and commits under the writer that the manifest names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping
from uuid import UUID

from offload.contracts.store import Listed, ObjectStore
from offload.errors import Corrupt, NotFound, UnsupportedFormat
from offload.formats.keys import StreamKeys
from offload.model.attempt import Leftover
from offload.model.manifest import AttemptKind, Manifest
from offload.native.fragment_check import check_fragment
from offload.native.fragment_writer import entry_of


async def find_leftovers(store: ObjectStore, manifest: Manifest) -> list[Leftover]:
    """See `LedgerOffloader.leftovers`."""
    left = {
        running.attempt: running.ledger_id
        for running in manifest.running
        if running.writer != manifest.writer and running.kind is AttemptKind.STREAM
    }
    return await find_complete(store, manifest, left) if left else []


async def find_complete(
    store: ObjectStore, manifest: Manifest, attempts: Mapping[UUID, int]
) -> list[Leftover]:
    """Fragments of these attempts, each with its ledger, that continue the manifest in one chain.

    A fragment that does not hold is left out; it is no one's yet.
    """
    keys = StreamKeys(manifest.stream)
    found: list[Leftover] = []
    next_offset = manifest.next_offset
    async for listed in uploaded_of(store, manifest, attempts):
        parsed = keys.parse_fragment(listed.key)
        if parsed is None or parsed[0] != next_offset:
            continue
        leftover = await complete(store, listed, stream=manifest.stream, incarnation=manifest.incarnation)
        if leftover is not None and leftover.entry.ledger_id == attempts[leftover.entry.attempt]:
            found.append(leftover)
            next_offset = leftover.entry.next_offset
    return found


async def uploaded_of(
    store: ObjectStore, manifest: Manifest, attempts: Container[UUID]
) -> AsyncGenerator[Listed, None]:
    """What these attempts have in the store from where the manifest ends on, in order of offsets, unread."""
    keys = StreamKeys(manifest.stream)
    async for listed in store.list(keys.data, after=keys.before_fragments_of(manifest.next_offset)):
        parsed = keys.parse_fragment(listed.key)
        if parsed is not None and parsed[1] in attempts:
            yield listed


async def complete(store: ObjectStore, listed: Listed, *, stream: str, incarnation: UUID) -> Leftover | None:
    """The fragment, read whole; None where it does not hold, or is of another stream or incarnation."""
    try:
        checked = await check_fragment(store, listed.key, size_bytes=listed.size_bytes)
    except (Corrupt, NotFound, UnsupportedFormat):
        return None
    if checked.tail.stream != stream or checked.tail.trailer.incarnation != incarnation:
        return None
    return Leftover(
        entry=entry_of(checked.tail.trailer, checked.checksum),
        last_chunk_offset=int(checked.tail.index["offset"][-1]),
        last_chunk_checksum=int(checked.tail.index["checksum"][-1]),
    )
