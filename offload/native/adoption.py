"""Finding what a crash left: complete fragments that the manifest does not name yet.

Invariants (docs/commit-protocol.md, step "resolve"): only fragments of attempts that run in the manifest, for
another writer and for no job, are offered; they continue `next_offset` in one chain without a hole; each was
read as a whole, and all of its checksums held. Whoever adopts them first compares the last chunk with the
source, and commits under the writer that the manifest names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping
from uuid import UUID

from offload.contracts.store import Listed, ObjectStore
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt, Denied, NotFound, UnsupportedFormat
from offload.model.attempt import Leftover
from offload.model.manifest import AttemptKind, Manifest
from offload.native.fragment_check import check_fragment
from offload.native.fragment_writer import entry_of
from offload.native.key_ring import NO_SERVICE, KeyRing


async def find_leftovers(
    store: ObjectStore, manifest: Manifest, ring: KeyRing | None = None
) -> list[Leftover]:
    """See `LedgerOffloader.leftovers`."""
    # An attempt that does not run is condemned: a sweep may delete its fragments at any time, also after they
    # were adopted. A job's attempts are its own to append, and the writer's own are still being uploaded.
    left = {
        running.attempt: running.ledger_id
        for running in manifest.running
        if running.writer != manifest.writer and running.kind is AttemptKind.STREAM
    }
    # A clean start has nothing to look for, so it pays for no listing.
    return await find_complete(store, manifest, left, ring) if left else []


async def find_complete(
    store: ObjectStore, manifest: Manifest, attempts: Mapping[UUID, int], ring: KeyRing | None = None
) -> list[Leftover]:
    """Return the fragments of these attempts that continue the manifest in one chain.

    `attempts` maps each attempt to its ledger. A damaged fragment is left out: it was never committed, so
    nothing is lost.
    """
    keys = StreamKeys(manifest.stream)
    found: list[Leftover] = []
    next_offset = manifest.next_offset
    async for listed in uploaded_of(store, manifest, attempts):
        # The listing ascends by offset. Several attempts may have a fragment at one offset: the first that is
        # complete continues the chain, and the others no longer fit. After a hole nothing fits.
        parsed = keys.parse_fragment(listed.key)
        if parsed is None or parsed[0] != next_offset:
            continue
        leftover = await complete(
            store, listed, stream=manifest.stream, incarnation=manifest.incarnation, ring=ring
        )
        # The object names its own ledger. If that is not the announced one, it is not what was prepared.
        if leftover is not None and leftover.entry.ledger_id == attempts[leftover.entry.attempt]:
            found.append(leftover)
            next_offset = leftover.entry.next_offset
    return found


async def uploaded_of(
    store: ObjectStore, manifest: Manifest, attempts: Container[UUID]
) -> AsyncGenerator[Listed, None]:
    """Yield the fragments of these attempts behind the manifest's end, in order of offsets, unread."""
    keys = StreamKeys(manifest.stream)
    async for listed in store.list(keys.data, after=keys.before_fragments_of(manifest.next_offset)):
        parsed = keys.parse_fragment(listed.key)
        if parsed is not None and parsed[1] in attempts:
            yield listed


async def complete(
    store: ObjectStore, listed: Listed, *, stream: str, incarnation: UUID, ring: KeyRing | None = None
) -> Leftover | None:
    """Read a fragment as a whole. Return None if it is damaged, or of another stream or incarnation.

    Raises `Denied` if it is encrypted and its key is missing: that is no reason to drop it.
    """
    # The receipt was lost with the writer, so nothing shows that the bytes are sound. Every byte is read
    # before a commit names it. Errors of the store are raised: taken for damage, they would drop a sound
    # attempt.
    try:
        checked = await check_fragment(store, listed.key, size_bytes=listed.size_bytes, ring=ring)
    except (Corrupt, NotFound, UnsupportedFormat):
        return None
    if checked.tail.stream != stream or checked.tail.trailer.incarnation != incarnation:
        return None
    if checked.tail.checksums is None:
        raise Denied(f"{listed.key} is encrypted, and {NO_SERVICE}")
    return Leftover(
        entry=entry_of(checked.tail.trailer, checked.checksum),
        last_chunk_offset=int(checked.tail.table["offset"][-1]),
        last_chunk_checksum=int(checked.tail.checksums[-1]),
    )
