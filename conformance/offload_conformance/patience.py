"""Repeats calls that a backend refuses for now, so that a correct refusal is no failure of a clause.

A backend may answer `Throttled` to any call, and `TryAgain` to the loser of a race. In a tier such a call is
repeated; here it is too, a bounded number of times, and each repeat is counted for the report. A backend that
always refuses still fails: its last error comes through.

Not repeated: `LedgerOffloader.offload`, because an attempt must not be used again after an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore, Upload
from offload.errors import Throttled, TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import Tree
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.wrap import UploadDecorator

T = TypeVar("T")
Count = Callable[[], None]
"""Called before each repeat, from any thread."""

POLICY: Final = RetryPolicy(
    patience_seconds=float("inf"), attempts_max=12, pause_seconds_first=0.005, pause_seconds_max=0.25
)
"""About a second of pauses in all; more if the backend asks for more, until the clause's deadline."""

_chances: Final = random.Random()
"""Parts of pauses, so that losers of one race do not meet again. Clauses draw from another, by their seed."""


class PatientStore(RetryingStore):
    """Repeats what `RetryingStore` repeats, and `complete` too.

    A tier must not repeat that blindly. A clause may, because it reads back what it wrote.
    """

    __slots__ = ()

    def __init__(self, inner: ObjectStore, count: Count) -> None:
        async def pause(seconds: float) -> None:
            count()
            await asyncio.sleep(seconds)

        super().__init__(inner, policy=POLICY, sleep=pause, random=_chances.random)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level, whole before a name of it is given: one that comes twice is not hidden."""

        async def whole() -> list[str]:
            return [name async for name in self.inner.level(prefix)]

        for name in await self.retry(whole):
            yield name

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload, each call of which is repeated."""
        return _PatientUpload(await super().start_upload(key), self)


class _PatientUpload(UploadDecorator):
    __slots__ = ("_store",)

    def __init__(self, inner: Upload, store: PatientStore) -> None:
        super().__init__(inner)
        self._store = store

    async def complete(self) -> None:
        await self._store.retry(self.inner.complete)


class PatientOffloader(LedgerOffloader):
    """Repeats every call of an offloader but `offload`. Other attributes are the offloader's own."""

    __slots__ = ("_count", "_inner")

    def __init__(self, inner: LedgerOffloader, count: Count) -> None:
        self._inner, self._count = inner, count

    def __getattr__(self, name: str) -> Any:
        """An author's `replace` may use what only their offloader has."""
        return getattr(self._inner, name)

    @property
    def url(self) -> str:
        """The URL of the offloader."""
        return self._inner.url

    async def open(self, *, create: bool = False) -> None:
        """Open, again if refused."""
        await retried(lambda: self._inner.open(create=create), self._count)

    async def streams(self) -> list[str]:
        """List the streams, again if refused."""
        return await retried(self._inner.streams, self._count)

    async def load_manifest(self, stream: str) -> Manifest:
        """Load, again if refused."""
        return await retried(lambda: self._inner.load_manifest(stream), self._count)

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """Load, again if refused."""
        return await retried(lambda: self._inner.load_group(committed, entry), self._count)

    def view_of(self, committed: CommittedStream) -> StreamView:
        """Return the offloader's own view, whose calls are repeated, except for walks."""
        return _PatientView(self._inner.view_of(committed), self._count)

    def tree(self, manifest: Manifest) -> Tree:
        """Return the offloader's own tree, whose loads are not repeated."""
        return self._inner.tree(manifest)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Commit, again if refused: the same change may be committed twice."""
        return await retried(
            lambda: self._inner.commit_manifest(stream, change, base=base, committer=committer), self._count
        )

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """Offload once."""
        return await self._inner.offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        """Open a handle, again if refused; so are its reads."""
        handle = await retried(
            lambda: self._inner.read_offloaded(attempt, manifest=manifest, only=only), self._count
        )
        return _PatientHandle(handle, self._count)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """List them, again if refused."""
        return await retried(lambda: self._inner.leftovers(manifest), self._count)

    async def delete_offloaded(self, attempt: Attempt) -> None:
        """Delete, again if refused: deletion is idempotent."""
        await retried(lambda: self._inner.delete_offloaded(attempt), self._count)

    async def aclose(self) -> None:
        """Close the offloader."""
        await self._inner.aclose()


class _PatientView(StreamView):
    __slots__ = ("_count", "_inner")

    def __init__(self, inner: StreamView, count: Count) -> None:
        self._inner, self._count = inner, count

    @property
    def committed(self) -> CommittedStream:
        return self._inner.committed

    @property
    def where(self) -> str:
        return self._inner.where

    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        return self._inner.walk(offset)

    async def find(self, offset: int) -> Entry | None:
        return await retried(lambda: self._inner.find(offset), self._count)

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await retried(lambda: self._inner.first_since(timestamp_ms), self._count)

    async def last_with_messages(self) -> Entry | None:
        return await retried(self._inner.last_with_messages, self._count)

    async def last_timestamp_ms(self) -> int | None:
        return await retried(self._inner.last_timestamp_ms, self._count)

    def name_of(self, row: Entries) -> str:
        return self._inner.name_of(row)

    async def names(self, where: str) -> bool:
        return await retried(lambda: self._inner.names(where), self._count)

    async def open(self, entry: Entry) -> ReadHandle:
        handle = await retried(lambda: self._inner.open(entry), self._count)
        return _PatientHandle(handle, self._count)


class _PatientHandle(ReadHandle):
    __slots__ = ("_count", "_inner")

    def __init__(self, inner: ReadHandle, count: Count) -> None:
        self._inner, self._count = inner, count

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def first_offset(self) -> int:
        return self._inner.first_offset

    @property
    def next_offset(self) -> int:
        return self._inner.next_offset

    @property
    def where(self) -> str:
        return self._inner.where

    async def table(self) -> ChunkTable:
        return await retried(self._inner.table, self._count)

    async def read(self, rows: ChunkTable) -> bytes:
        return await retried(lambda: self._inner.read(rows), self._count)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def retried(call: Callable[[], Awaitable[T]], count: Count) -> T:
    """Make a call until it is answered, or refused as often as `POLICY` allows."""
    for failures in range(1, POLICY.attempts_max):
        try:
            return await call()
        except TryAgain as error:
            count()
            asked = error.pause_seconds if isinstance(error, Throttled) else None
        await asyncio.sleep((asked or 0.0) + POLICY.pause_seconds(failures, _chances.random()))
    return await call()
