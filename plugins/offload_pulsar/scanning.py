"""What is in a bucket, and what Pulsar's own metadata says of it.

Pulsar's metadata names each attempt by ledger and UUID. Three things can disagree with it: an attempt that is
named and not there, an attempt that nothing names, and one that was never completed.

```text
                        named as complete   named, not complete   not named
both objects, whole     sound               unfinished            nobody's
data of another size    missing             unfinished            nobody's
data without index      missing             unfinished            nobody's
index without data      missing             unfinished            nobody's
no object               missing             -                     -
```

A missing ledger is lost if BookKeeper's copy was deleted. An unfinished one is Pulsar's own business: its
next attempt deletes it. Nobody's objects may belong to topics whose metadata was not given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from offload.contracts.store import ObjectStore
from offload_pulsar.bucket import FoundAttempt, PulsarBucket
from offload_pulsar.ledger_metadata import LedgerInfo, OffloadContext
from offload_pulsar.names import PulsarKey

__all__ = ["BucketScan", "NamedAttempts", "ScannedAttempt", "scan_bucket"]


MISSING: Final = "missing"
LOST: Final = "lost: missing, and deleted from BookKeeper"
UNFINISHED: Final = "unfinished"
NOBODYS: Final = "nobody's"
STRANGERS_MAX: Final = 20
"""So many objects of strangers are named. The others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedAttempt:
    """One attempt, in the bucket or only in the metadata."""

    managed_ledger: str | None
    ledger_id: int | None
    """None for an attempt of V2, which may have several."""

    uid: UUID
    data_size_bytes: int | None
    index_size_bytes: int | None
    finding: str
    """What the objects are, such as `whole`. `absent` if there are none."""

    named: str = ""
    """What the metadata makes of it. Empty if no metadata was given, or if it agrees."""

    @property
    def size_bytes(self) -> int:
        """The size of its objects."""
        return (self.data_size_bytes or 0) + (self.index_size_bytes or 0)

    @property
    def is_bad(self) -> bool:
        """True if somebody must act: data is missing."""
        return self.finding.startswith("broken") or self.named in (MISSING, LOST)

    def as_json(self) -> dict[str, Any]:
        """Return the attempt for `--json`."""
        return {
            "managed_ledger": self.managed_ledger,
            "ledger": self.ledger_id,
            "attempt": str(self.uid),
            "data_bytes": self.data_size_bytes,
            "index_bytes": self.index_size_bytes,
            "finding": self.finding,
            "metadata": self.named,
        }


class NamedAttempts:
    """The attempts that Pulsar's metadata names."""

    def __init__(self, records: Iterable[LedgerInfo]) -> None:
        self._contexts: dict[tuple[int, UUID], tuple[LedgerInfo, OffloadContext]] = {}
        self._uids: dict[UUID, tuple[int, UUID]] = {}
        for each in records:
            if each.offloaded is not None:
                name = each.ledger_id, each.offloaded.uid
                self._contexts[name] = each, each.offloaded
                self._uids.setdefault(each.offloaded.uid, name)
        self._seen: set[tuple[int, UUID]] = set()

    def __len__(self) -> int:
        return len(self._contexts)

    def verdict(self, found: FoundAttempt) -> str:
        """Say what the metadata makes of an attempt in the bucket. Empty if it agrees."""
        assert found.key is not None
        ledger_id, uid = found.key.ledger_id, found.key.uid
        name = self._uids.get(uid) if ledger_id is None else (ledger_id, uid)
        if name is None or name not in self._contexts:
            return NOBODYS
        self._seen.add(name)
        _, context = self._contexts[name]
        if not context.is_complete:
            return UNFINISHED
        return "" if found.finding == "whole" else _missing(context)

    def missing(self) -> Iterator[ScannedAttempt]:
        """Yield the complete attempts of which no object was seen so far."""
        for name, (info, context) in self._contexts.items():
            if context.is_complete and name not in self._seen:
                yield ScannedAttempt(
                    managed_ledger=None,
                    ledger_id=info.ledger_id,
                    uid=context.uid,
                    data_size_bytes=None,
                    index_size_bytes=None,
                    finding="absent",
                    named=_missing(context),
                )


def _missing(context: OffloadContext) -> str:
    return LOST if context.is_deleted_from_bookkeeper else MISSING


async def scan_bucket(
    store: ObjectStore,
    found: BucketScan,
    *,
    managed_ledger: str | None = None,
    progress: Callable[[BucketScan], None] = lambda found: None,
) -> None:
    """Add everything in `store` to `found`, or only what has the name `managed_ledger`."""
    async with aclosing(PulsarBucket(store).scan(with_stated_sizes=True)) as attempts:
        async for each in attempts:
            if not each.is_gone and managed_ledger in (None, each.managed_ledger):
                found.add(each)
            progress(found)
    if managed_ledger is None:  # an upload has no name yet
        uploads = [each.key for each in await store.unfinished_uploads("")]
        found.unfinished_uploads += [key for key in uploads if PulsarKey.parse(key) is not None]
    if found.named is not None:
        found.attempts += found.named.missing()


@dataclass(slots=True, kw_only=True)
class BucketScan:
    """The result of a scan. `named` is None if no metadata was given."""

    named: NamedAttempts | None = None
    attempts: list[ScannedAttempt] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    stranger_count: int = 0
    stranger_size_bytes: int = 0
    unfinished_uploads: list[str] = field(default_factory=list)
    """The keys of uploads that never ended, or that are running. Their parts are stored, and no listing of
    objects has them. Not every store can list them."""

    size_bytes: int = 0
    objects: int = 0

    def add(self, found: FoundAttempt) -> None:
        """Count one attempt, or one object of a stranger."""
        sizes = [size for size in (found.data_size_bytes, found.index_size_bytes) if size is not None]
        self.size_bytes += sum(sizes)
        self.objects += len(sizes)
        if found.key is None:
            self.stranger_count += 1
            self.stranger_size_bytes += sum(sizes)
            if len(self.strangers) < STRANGERS_MAX:
                self.strangers.append(found.name)
            return
        self.attempts.append(
            ScannedAttempt(
                managed_ledger=found.managed_ledger,
                ledger_id=found.key.ledger_id,
                uid=found.key.uid,
                data_size_bytes=found.data_size_bytes,
                index_size_bytes=found.index_size_bytes,
                finding=found.finding,
                named="" if self.named is None else self.named.verdict(found),
            )
        )

    @property
    def is_bad(self) -> bool:
        """True if data is missing."""
        return any(each.is_bad for each in self.attempts)

    def totals(self) -> list[tuple[str, int, int]]:
        """Return each finding with the number of its attempts and their bytes."""
        counts, sizes = Counter[str](), Counter[str]()
        for each in self.attempts:
            name = ", ".join(text for text in (each.finding, each.named) if text)
            counts[name] += 1
            sizes[name] += each.size_bytes
        return [(name, count, sizes[name]) for name, count in counts.most_common()]

    def as_json(self) -> dict[str, Any]:
        """Return the scan for `--json`."""
        return {
            "objects": self.objects,
            "bytes": self.size_bytes,
            "attempts": [each.as_json() for each in self.attempts],
            "unfinished_uploads": self.unfinished_uploads,
            "strangers": {"objects": self.stranger_count, "bytes": self.stranger_size_bytes},
            "totals": [
                {"finding": name, "attempts": count, "bytes": size} for name, count, size in self.totals()
            ],
        }
