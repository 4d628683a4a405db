"""Writing ledgers of a tier as Pulsar's objects, and the records that Pulsar's metadata needs.

```text
tier     fragment | fragment | fragment | fragment      each names its ledger
Pulsar   ledger 7            | ledger 9   | (ledger 12: the newest, which may still grow)
```

A record of the stream becomes an entry, untouched. Every ledger is one attempt with a new UUID, written by
`PulsarBucket.offload`, so a failed export leaves nothing of the ledger at which it failed. A ledger that has
a complete attempt of the same topic in the bucket is left alone, so an export can be repeated.

Rejected: writing the metadata too. ZooKeeper is not ours, and a broker that runs would overwrite it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import numpy as np

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.entries import EntryLedger, EntryRun
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse
from offload.read.reader import Messages, StreamReader
from offload_pulsar.bucket import RUN_SIZE_BYTES, PulsarBucket
from offload_pulsar.bucket_ledger import differing_entries
from offload_pulsar.ledger_metadata import LedgerInfo, LedgerMetadata, OffloadContext
from offload_pulsar.names import LEDGER_ID_MAX, BrokerNames, PulsarKey

__all__ = ["Export", "ExportPlan", "ExportedLedger", "TierLedger", "driver_metadata", "plan_export"]


DRIVERS: Final[Mapping[str, str]] = {
    "aws-s3": "AWS_S3",
    "S3": "S3",
    "google-cloud-storage": "GOOGLE_CLOUD_STORAGE",
    "azureblob": "AZURE_BLOB",
    "aliyun-oss": "ALIYUN_OSS",
}
"""The names of Pulsar's drivers, and those that its metadata also has."""


def driver_metadata(
    driver: str, *, bucket: str, region: str = "", endpoint: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the properties of a driver, in Pulsar's order. Raises `Misuse` for an unknown driver."""
    if driver not in DRIVERS:
        raise Misuse(f"Pulsar has no driver {driver!r} with such objects; it has {', '.join(DRIVERS)}")
    return (
        ("bucket", bucket),
        ("managedLedgerOffloadDriver", DRIVERS[driver]),
        ("region", region),
        ("serviceEndpoint", endpoint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLedger:
    """A ledger of a stream on a tier, and its offsets."""

    ledger_id: int
    first_offset: int
    next_offset: int
    messages: int

    @property
    def entries(self) -> int:
        """The number of its records."""
        return self.next_offset - self.first_offset

    def joined(self, more: StreamLedger) -> StreamLedger:
        """Return this ledger with what follows of it."""
        return StreamLedger(
            ledger_id=self.ledger_id,
            first_offset=self.first_offset,
            next_offset=more.next_offset,
            messages=self.messages + more.messages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutLedger:
    """A ledger that is not exported."""

    ledger: StreamLedger
    reason: str
    is_refusal: bool = False
    """True if it can never be exported."""


@dataclass(slots=True, kw_only=True)
class ExportPlan:
    """The ledgers that are exported, and the reasons why others are not."""

    ledgers: list[StreamLedger] = field(default_factory=list)
    left_out: list[LeftOutLedger] = field(default_factory=list)


async def plan_export(view: StreamView, *, with_oldest: bool, with_newest: bool) -> ExportPlan:
    """Return the plan for a stream. The flags say that the ledgers at its ends are known to be whole."""
    ledgers = await _ledgers_of(view)
    plan = ExportPlan()
    for number, each in enumerate(ledgers):
        odd = each.entries - each.messages
        if number == len(ledgers) - 1 and not with_newest:
            reason = "it is the newest, and may still grow; use --newest if nothing will be added"
            plan.left_out.append(LeftOutLedger(ledger=each, reason=reason))
        elif number == 0 and each.first_offset > 0 and not with_oldest:
            reason = "it is the oldest, and may lack its beginning; use --oldest if nothing was trimmed"
            plan.left_out.append(LeftOutLedger(ledger=each, reason=reason))
        elif odd or each.ledger_id > LEDGER_ID_MAX:
            reason = f"{odd} of its records are no messages" if odd else "Pulsar has no ledger id so large"
            plan.left_out.append(LeftOutLedger(ledger=each, reason=reason, is_refusal=True))
        else:
            plan.ledgers.append(each)
    return plan


async def _ledgers_of(view: StreamView) -> list[StreamLedger]:
    """Return the ledgers of a stream. Neighbouring fragments of one ledger are one."""
    names = ("ledger_id", "first_offset", "records", "messages")
    ledgers: list[StreamLedger] = []
    async with aclosing(view.walk()) as runs:
        async for rows in runs:
            for ledger_id, first, records, messages in zip(
                *(rows[name].tolist() for name in names), strict=True
            ):
                if ledgers and ledger_id < ledgers[-1].ledger_id:
                    what = f"ledger at offset {first} of stream {view.committed.stream!r}"
                    least = f"{ledgers[-1].ledger_id} or more"
                    raise Corrupt(what, view.where, expected=least, found=ledger_id)
                more = StreamLedger(
                    ledger_id=ledger_id,
                    first_offset=first,
                    next_offset=first + records,
                    messages=messages,
                )
                if ledgers and ledger_id == ledgers[-1].ledger_id:
                    more = ledgers.pop().joined(more)
                ledgers.append(more)
    return ledgers


class TierLedger(EntryLedger):
    """A ledger of a stream on a tier, read through a `StreamReader`. `measured` makes it.

    Entries are read in order. A read at another place costs a new request. All entries of a run have the time
    of its newest chunk.
    """

    __slots__ = ("_at", "_closed_ms", "_length", "_messages", "_planned", "_progress", "_reader", "_waiting")

    is_sealed = True

    def __init__(
        self,
        reader: StreamReader,
        planned: StreamLedger,
        length: int,
        closed_ms: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self._reader, self._planned, self._progress = reader, planned, progress
        self._length, self._closed_ms = length, closed_ms
        self._messages: AsyncGenerator[Messages, None] | None = None
        self._waiting: Messages | None = None
        self._at = 0

    @classmethod
    async def measured(
        cls, reader: StreamReader, planned: StreamLedger, progress: Callable[[int, int], None]
    ) -> TierLedger:
        """Return a ledger whose length is known: its records are read once for that.

        Pulsar's blocks depend on the length of the whole ledger, and the index of a tier has it only with
        the framing of chunks.
        """
        ledger, length, newest_ms, entry = cls(reader, planned, 0, 0, progress), 0, 0, 0
        while entry <= ledger.last_entry:
            run = await ledger.entries(entry, ledger.last_entry, size_bytes=RUN_SIZE_BYTES)
            length, entry = length + len(run.data), entry + len(run.starts)
            newest_ms = max(newest_ms, int(np.max(run.timestamps_ms)))
        await ledger.aclose()
        return cls(reader, planned, length, newest_ms, progress)

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._planned.ledger_id

    @property
    def last_entry(self) -> int:
        """The last entry."""
        return self._planned.entries - 1

    @property
    def length(self) -> int:
        """The sum of the sizes of all entries."""
        return self._length

    @property
    def closed_ms(self) -> int | None:
        """The time of the newest record, as it was read: an entry of a manifest may have a bound alone."""
        return self._closed_ms

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return entries of one chunk of the tier, or of several small ones."""
        if self._messages is None or first != self._at:
            await self.aclose()
            self._messages = self._reader.messages_here(self._planned.first_offset + first)
        at, found, size, latest_ms = first, list[bytes](), 0, 0
        while at <= last and (at == first or size < size_bytes):
            batch = self._waiting or await anext(self._messages, None)
            self._waiting = None
            offset = self._planned.first_offset + at
            if batch is None or batch.offset != offset:
                there = "the end" if batch is None else f"offset {batch.offset}"
                where = f"ledger {self.ledger_id} of stream {self._reader.stream!r}"
                raise Corrupt("next record", where, expected=f"offset {offset}", found=there)
            bodies = batch.bodies[: last - at + 1]
            if len(bodies) < len(batch.bodies):
                left = batch.bodies[len(bodies) :]
                self._waiting = replace(batch, offset=offset + len(bodies), bodies=left)
            found += bodies
            at, size = at + len(bodies), size + sum(map(len, bodies))
            latest_ms = max(latest_ms, batch.timestamp_ms)
        self._at = at
        self._progress(len(found), size)
        return EntryRun.of(found, first=first, timestamps_ms=latest_ms)

    async def aclose(self) -> None:
        """Stop reading ahead."""
        if self._messages is not None:
            await self._messages.aclose()
        self._messages, self._waiting = None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedLedger:
    """A ledger that is in the bucket now, and the record of it for Pulsar's metadata."""

    record: LedgerInfo
    was_there: bool
    """True if an earlier export wrote it."""


@dataclass(slots=True, kw_only=True)
class Export:
    """Writes ledgers of one stream to one bucket."""

    bucket: PulsarBucket
    tier: Catalogue
    stream: str
    names: BrokerNames
    driver: str
    properties: tuple[tuple[str, str], ...]
    in_bookkeeper: bool
    """True if BookKeeper has the ledgers, too."""

    env: Env
    progress: Callable[[int, int], None] = lambda entries, size: None
    """Called with the entries and the bytes of each run. A ledger is read twice."""

    async def ledgers(self, plan: ExportPlan) -> AsyncIterator[ExportedLedger]:
        """Write the ledgers of a plan, and yield each when it is durable."""
        there = await self._there()
        reader = await StreamReader.open(self.tier, self.stream)
        for planned in plan.ledgers:
            ledger = await TierLedger.measured(reader, planned, self.progress)
            uid = there.get(planned.ledger_id)
            was_there = uid is not None
            if uid is None:
                uid = self.env.uuid()
                await self._write(ledger, uid)
            else:
                await self._compare(ledger, uid)
            yield ExportedLedger(record=self._record(ledger, uid), was_there=was_there)

    async def _write(self, ledger: TierLedger, uid: UUID) -> None:
        metadata = LedgerMetadata.of(
            length=ledger.length,
            last_entry=ledger.last_entry,
            ctime_ms=ledger.closed_ms,
            custom={
                "application": b"pulsar",
                "component": b"managed-ledger",
                "pulsar/managed-ledger": self.names.managed_ledger.encode(),
            },
        )
        async with aclosing(ledger):
            await self.bucket.offload(ledger, uid, names=self.names, metadata=metadata)

    async def _compare(self, ledger: TierLedger, uid: UUID) -> None:
        """Raise `Misuse` if the bucket has another ledger of this id: ids belong to one BookKeeper."""
        kept, key = await self.bucket.open(ledger.ledger_id, uid), PulsarKey(uid, ledger.ledger_id)
        if (kept.last_entry, kept.length) != (ledger.last_entry, ledger.length):
            raise Misuse(
                f"{key} has {kept.last_entry + 1} entries of {kept.length} bytes, and the ledger on the tier "
                f"has {ledger.last_entry + 1} of {ledger.length}: export it to another bucket"
            )
        async with aclosing(ledger):
            at = 0
            while at <= ledger.last_entry:
                run = await ledger.entries(at, ledger.last_entry, size_bytes=RUN_SIZE_BYTES)
                if (differing := await differing_entries(run, kept)) is not None:
                    first, last = differing
                    raise Misuse(
                        f"{key} and the ledger on the tier differ in entries {first} to {last}: export it to "
                        "another bucket"
                    )
                at += len(run.starts)

    async def _there(self) -> dict[int, UUID]:
        """Return the complete attempts that the bucket has of this topic, or of a topic that is not known."""
        found: dict[int, UUID] = {}
        async with aclosing(self.bucket.scan()) as attempts:
            async for each in attempts:
                if each.key is None or each.key.ledger_id is None or each.finding != "whole":
                    continue
                if each.managed_ledger in (None, self.names.managed_ledger):
                    found[each.key.ledger_id] = each.key.uid
        return found

    def _record(self, ledger: TierLedger, uid: UUID) -> LedgerInfo:
        return LedgerInfo.of(
            ledger_id=ledger.ledger_id,
            entries=ledger.last_entry + 1,
            length=ledger.length,
            closed_ms=ledger.closed_ms or 0,
            offloaded=OffloadContext(
                uid=uid,
                is_complete=True,
                is_deleted_from_bookkeeper=not self.in_bookkeeper,
                timestamp_ms=self.env.now_ms(),
                driver=self.driver,
                properties=self.properties,
            ),
        )
