"""What the tasks of a transfer do, and what they are given: nothing that is open, and little that is large.

Invariants: a task that is tried again uploads under attempts of its own; what an earlier run left is reported
only if every byte of it holds and the origin has the same last chunk there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from offload.blocking import Blocking
from offload.errors import Absent, Misuse
from offload.formats.keys import StreamKeys
from offload.offloader import Attempt, CutHandle, LedgerOffloader, Leftover, ReadHandle, Receipt
from offload.source import Snapshot
from offload.store.port import Listed
from offload.tier.adoption import complete
from offload.tier.guest import Job
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.sync import checksum_at
from offload_spark.jobs.verify import is_checked

TASK_SIZE_BYTES_MIN: Final = 4 * 1024 * 1024
TASK_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
"""What is small shares a task up to this, or up to as little as keeps every slot of Spark's busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A ledger at the origin, or a part of one."""

    stream: str
    ledger_id: int
    first_offset: int
    next_offset: int
    size_bytes: int = 0
    """About how many chunk bytes it has; 0 where nobody knows."""

    named: bytes = b""
    """Of a tier's stream, an encoded manifest that names what the part is cut from, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part to be uploaded."""

    part: Part
    job: UUID
    attempt: UUID
    """For the first try; another one announces an attempt of its own."""

    @property
    def size_bytes(self) -> int:
        """See `Part`."""
        return self.part.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What an earlier run uploaded of a part."""

    part: Part
    incarnation: UUID
    rows: Sequence[Listed]

    @property
    def size_bytes(self) -> int:
        """Of the objects."""
        return sum(row.size_bytes for row in self.rows)


Fetch = Callable[[Part], Awaitable[ReadHandle]]
"""A handle on what a part is cut from: its ledger, or as much of it as holds the part."""


class Reach(ABC):
    """How a task reaches the origin. It is pickled: it holds what names the origin, and nothing open."""

    __slots__ = ()

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Fetch]:
        """The origin, open as long as the context is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where tasks read and write."""

    reach: Reach
    url: str
    options: Mapping[str, Any]
    read_back: bool = False
    """Whether tasks read what they uploaded once more before it is named."""

    def upload(self, pieces: Sequence[Piece]) -> list[Receipt]:
        """A task: its pieces, each under the attempt that was announced for it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        tries = context.attemptNumber() if context is not None else 0

        async def work() -> list[Receipt]:
            receipts = await upload(tier.offloader, self.reach, pieces, is_first=not tries)
            if self.read_back:
                await read_back(tier.offloader, receipts)
            return receipts

        with Blocking(self.url, storage_options=dict(self.options)) as tier:
            return tier.run(work())

    def check(self, left: Sequence[Left]) -> list[Leftover]:
        """A task: what holds of what an earlier run uploaded."""

        async def work() -> list[Leftover]:
            async with self.reach.opened() as fetch:
                return [each for one in left for each in await _agreed(tier.offloader, fetch, one)]

        with Blocking(self.url, storage_options=dict(self.options)) as tier:
            return tier.run(work())


class HasSize(Protocol):
    """What costs a task something."""

    @property
    def size_bytes(self) -> int:
        """About how many; 0 where nobody knows."""


Sized = TypeVar("Sized", bound=HasSize)


def tasks_of(items: Sequence[Sized], slots: int) -> Iterator[list[Sized]]:
    """Items in their order, small ones together. One whose size nobody knows is a task of its own."""
    share = sum(item.size_bytes for item in items) // slots
    size_bytes = min(max(share, TASK_SIZE_BYTES_MIN), TASK_SIZE_BYTES_MAX)
    task: list[Sized] = []
    weight = 0
    for item in items:
        cost = item.size_bytes or size_bytes
        if task and weight + cost > size_bytes:
            yield task
            task, weight = [], 0
        task.append(item)
        weight += cost
    if task:
        yield task


async def upload(
    offloader: LedgerOffloader, reach: Reach, pieces: Sequence[Piece], *, is_first: bool
) -> list[Receipt]:
    """Upload pieces of one stream.

    A further try announces other attempts: those of the first one may still be under way.
    """
    stream = pieces[0].part.stream
    job = await Job.begin(offloader, stream, uid=pieces[0].job)
    manifest = job.manifest
    attempts = [Attempt(stream=stream, ledger_id=each.part.ledger_id, uid=each.attempt) for each in pieces]
    if not is_first:
        manifest, attempts = await job.prepare([each.part.ledger_id for each in pieces])
    receipts = []
    async with reach.opened() as fetch:
        for part, attempt in zip((each.part for each in pieces), attempts, strict=True):
            async with await fetch(part) as whole:
                handle = CutHandle(whole, first_offset=part.first_offset, next_offset=part.next_offset)
                receipts.append(
                    await offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})
                )
    return receipts


async def read_back(offloader: LedgerOffloader, receipts: Sequence[Receipt]) -> None:
    """Raise `Corrupt` unless each uploaded fragment, read whole, is what a manifest will say of it."""
    if not isinstance(offloader, ObjectStoreOffloader):
        raise Misuse(f"{offloader.url} is no object store; there are no objects to read back")
    manifest = await offloader.load_manifest(receipts[0].attempt.stream)
    for receipt in receipts:
        for entry in receipt.entries:
            key = StreamKeys(manifest.stream).fragment(entry.first_offset, entry.attempt)
            if not await is_checked(offloader, manifest, entry, key):
                raise Absent(key, manifest.stream)


async def _agreed(offloader: LedgerOffloader, fetch: Fetch, left: Left) -> list[Leftover]:
    """The fragments that hold, and of which the origin has the last chunk."""
    assert isinstance(offloader, ObjectStoreOffloader)
    await offloader.open()
    found = []
    async with await fetch(left.part) as handle:
        origin = Snapshot(ledgers=[handle], first_offset=handle.first_offset, next_offset=handle.next_offset)
        for row in left.rows:
            one = await complete(offloader.store, row, stream=left.part.stream, incarnation=left.incarnation)
            if one and await checksum_at(origin, one.last_chunk_offset) == one.last_chunk_checksum:
                found.append(one)
    return found
