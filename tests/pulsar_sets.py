"""Ledgers that Pulsar's own classes wrote, and the rule by which their entries are made again.

`data/pulsar/MANIFEST.json` has a row for each set. Small sets are stored beside it. Of larger sets it has
only the checksums, because our writer makes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import numpy as np
from kit.world import Clock
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey
from offload_pulsar.ledger_metadata import LedgerMetadata

from offload import EntryLedger, EntryRun
from offload.contracts.store import Body
from offload.store.memory import MemoryStore

ORDERS: Final = "public/default/persistent/orders-partition-0"
DATA: Final = Path(__file__).parent / "data" / "pulsar"
MANIFEST: Final = json.loads((DATA / "MANIFEST.json").read_text())
SETS: Final[dict[str, Any]] = {row["set"]: row for row in MANIFEST["sets"]}
V1_SETS: Final = [name for name, row in SETS.items() if row.get("format") == 1]
REPEATABLE: Final = [
    name for name in V1_SETS if name != "messages" and not name.startswith(("defect-", "sparse-"))
]
"""The sets of format V1 that Pulsar's writer made as one whole ledger, by a rule."""


@cache
def pattern(seed: str) -> bytes:
    """Return the 2^20 bytes of a seed, twice, so that every slice of them is one slice."""
    blocks = (sha256(f"{seed}:{number}".encode()).digest() for number in range(2**15))
    return b"".join(blocks) * 2


def sizes_of(rule: dict[str, Any]) -> list[int]:
    kind, *numbers = rule["lengths"].split()
    values, count = [int(each) for each in numbers], rule["entries"]
    if kind == "fixed":
        return values * count
    if kind == "list":
        return [values[number % len(values)] for number in range(count)]
    step, modulus, least = values
    return [least + number * step % modulus for number in range(count)]


def entries_of(rule: dict[str, Any]) -> list[bytes]:
    made = []
    for entry, size in enumerate(sizes_of(rule), rule["first_entry"]):
        if rule["seed"] == "counter":
            made.append(((entry + 31 * np.arange(size)) % 256).astype(np.uint8).tobytes())
        else:
            start = 7919 * entry % 2**20
            made.append(pattern(rule["seed"])[start : start + size])
    return made


def metadata_of(row: dict[str, Any]) -> LedgerMetadata:
    """Return the metadata of the ledger of a set, as the rule of the sets has it."""
    stated, bookies = row["ledger_metadata"], row["ledger_metadata"]["bookies"]
    return LedgerMetadata.of(
        length=row["ledger_length"],
        last_entry=row["last_entry"],
        bookies=tuple(bookies),
        ensemble=len(bookies),
        write_quorum=min(2, len(bookies)),
        ack_quorum=min(2, len(bookies)),
        digest=stated["digest"],
        ctime_ms=None if stated["ctime"] < 0 else stated["ctime"],
        custom={key: value.encode() for key, value in stated["custom"].items()},
    )


def objects_of(name: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the row and the bytes of each object of a stored set."""
    for each in SETS[name]["objects"]:
        data = (DATA / name / each["key"]).read_bytes()
        assert sha256(data).hexdigest() == each["sha256"]
        yield each, data


async def store_of(*names: str) -> MemoryStore:
    """Return a store with the objects of stored sets, and their metadata."""
    store = MemoryStore()
    for name in names:
        for row, data in objects_of(name):
            await store.put(row["key"], Body.of(data, metadata=row["user_metadata"]))
    return store


def uid_of(name: str) -> UUID:
    return UUID(SETS[name]["uuid"])


class ListedEntries(EntryLedger):
    """A ledger of entries in a list. `stated` is its length, if that is to be wrong."""

    is_sealed = True
    ledger_id = last_entry = length = 0

    def __init__(self, ledger_id: int, entries: list[bytes], *, stated: int | None = None) -> None:
        self.ledger_id, self.kept = ledger_id, entries
        self.last_entry = len(entries) - 1
        self.length = sum(map(len, entries)) if stated is None else stated

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        return EntryRun.of(self.kept[first : last + 1], first=first, timestamps_ms=0)


class PulsarBrokers:
    """A bucket that Pulsar's brokers fill and trim, and a clock."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store, self.clock = store or MemoryStore(), Clock(0.0)
        self.uids: dict[int, UUID] = {}

    async def offload(
        self, ledger_id: int, entries: Sequence[bytes], *, name: str = ORDERS, block: int = 300
    ) -> PulsarKey:
        """Offload a ledger."""
        uid = self.uids[ledger_id] = uuid4()
        bucket = PulsarBucket(self.store, block_size_bytes_max=block)
        names = BrokerNames(managed_ledger=name)
        await bucket.offload(ListedEntries(ledger_id, [*entries]), uid, names=names)
        return PulsarKey(uid, ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that was offloaded."""
        await PulsarBucket(self.store).delete(ledger_id, self.uids[ledger_id])
