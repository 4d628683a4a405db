"""Probes: each tries one capability of a store, whatever the store declares, and reports what it saw.

Of strong listings and of durability only a lack can be seen. A probe that sees none leaves them undecided.
Probes write only below `probe/`. Knows no pytest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from offload.contracts.store import Body, ObjectStore
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload_conformance.declared import Finding

CONTENDERS: Final = 8
LOOKS: Final = 3
DATA: Final = b"0123456789"

Seen = tuple[Finding, str]
"""A finding, and the observation that shows it."""

Probe = Callable[[ObjectStore, ObjectStore], Awaitable[Seen]]


async def found_by(probe: Probe, store: ObjectStore, other: ObjectStore) -> Seen:
    """Run a probe with two clients of one place. An unexpected error is a finding too."""
    try:
        return await probe(store, other)
    except Exception as error:  # noqa: BLE001 - a capability that is not there yet may raise anything
        return Finding.BROKEN, f"{type(error).__name__}: {error}"


async def atomic_create(store: ObjectStore, other: ObjectStore) -> Seen:
    """Create a key by one client after the other, then a key by many at once."""
    try:
        alone = [await _creates(store, "probe/one", b"1"), await _creates(other, "probe/one", b"2")]
    except Misuse as error:
        return Finding.ABSENT, f"create is refused: {error}"
    if alone == [True, True]:
        return Finding.ABSENT, "the second create of a key succeeded"
    if alone != [True, False]:
        return Finding.BROKEN, "the first create of a key did not succeed"
    clients = [(store, other)[n % 2] for n in range(CONTENDERS)]
    won = await asyncio.gather(*(_creates(each, "probe/many", b"%d" % n) for n, each in enumerate(clients)))
    winners = sum(won)
    if winners > 1:
        return Finding.ABSENT, f"of {CONTENDERS} creates at once {winners} succeeded"
    return (Finding.WORKS if winners else Finding.BROKEN), f"of creates at once {winners} succeeded"


async def _creates(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        await store.create(key, data)
    except AlreadyExists:
        return False
    return True


async def strong_listing(store: ObjectStore, other: ObjectStore) -> Seen:
    """List by one client after the other client wrote or deleted a key."""
    for look in range(LOOKS):
        key = f"probe/{look}"
        await store.put(key, Body.of(DATA))
        if [row.key async for row in other.list("probe/")] != [key]:
            return Finding.ABSENT, "a listing lacked a key that was written before"
        await store.delete([key])
        if [row.key async for row in other.list("probe/")]:
            return Finding.ABSENT, "a listing showed a key that was deleted before"
    return Finding.UNDECIDED, f"{2 * LOOKS} listings were up to date"


async def multipart(store: ObjectStore, other: ObjectStore) -> Seen:
    """Upload two parts, the last one first."""
    try:
        upload = await store.start_upload("probe/upload")
    except Misuse as error:
        return Finding.ABSENT, f"an upload is refused: {error}"
    part = b"p" * max(1000, store.capabilities.part_size_bytes_min)
    await upload.put_part(2, DATA)
    await upload.put_part(1, part)
    await upload.complete()
    whole = await other.get("probe/upload") == part + DATA
    return (Finding.WORKS if whole else Finding.BROKEN), "an upload was completed and read"


async def server_checksum(store: ObjectStore, other: ObjectStore) -> Seen:
    """Read the stored checksum of an object. The port shows only CRC-32C, and no comparison during a put."""
    await store.put("probe/sum", Body.of(DATA))
    kept, says = await other.stored_crc32c("probe/sum"), store.capabilities.server_checksum
    if kept is None:
        decided = says in (None, "crc32c")
        return (Finding.ABSENT if decided else Finding.UNDECIDED), "the store shows no CRC-32C"
    if kept != crc32c(DATA):
        return Finding.BROKEN, "the stored checksum is wrong"
    return (Finding.WORKS if says else Finding.UNDECIDED), "the store shows the object's CRC-32C"


async def durable(store: ObjectStore, other: ObjectStore) -> Seen:
    """Read an object after its client was closed: a test can see no more of durability."""
    await store.put("probe/kept", Body.of(DATA))
    await store.aclose()
    try:
        await other.get("probe/kept")
    except NotFound:
        return Finding.ABSENT, "an object was gone after its client was closed"
    return Finding.UNDECIDED, "an object was still there after its client was closed"


PROBES: Final[Mapping[str, Probe]] = {
    "atomic_create": atomic_create,
    "strong_listing": strong_listing,
    "multipart": multipart,
    "server_checksum": server_checksum,
    "durable": durable,
}
