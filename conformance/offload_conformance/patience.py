"""Wrappers that repeat calls which a backend refuses for now, so that a correct refusal fails no clause.

A backend may answer `Throttled` to any call, and `TryAgain` to the loser of a race. A tier repeats such a
call, and so do these wrappers. Invariants: the number of repeats is limited, and each is counted for the
report. A backend that always refuses still fails, with its last error. A wrapper passes on every method of
its contract, also the optional ones: the default of one would hide the backend's own from the clauses.

One call is not repeated: `LedgerOffloader.offload`, because an attempt must not be used again after an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Buffer, ObjectStore, Upload
from offload.ground.errors import OffloadError, Throttled, TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.part import StreamPart
from offload.model.tree import Tree
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.wrap import UploadDecorator

T = TypeVar("T")
Count = Callable[[], None]
"""A function that is called before each repeat, from any thread."""

POLICY: Final = RetryPolicy(
    patience_seconds=float("inf"), attempts_max=12, pause_seconds_first=0.005, pause_seconds_max=0.25
)
"""The limits: about a second of pauses in all, or longer if the backend asks for it, up to the deadline."""

_chances: Final = random.Random()
"""The source of random pauses, so that losers of a race do not collide again.

Clauses have their own, seeded.
"""


class PatientStore(RetryingStore):
    """A store that repeats the same calls as `RetryingStore`, and `complete` too.

    A tier must not repeat `complete` blindly. A clause may, because it reads back what it wrote.
    """

    __slots__ = ()

    def __init__(self, inner: ObjectStore, count: Count) -> None:
        async def pause(seconds: float) -> None:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Repeated, the call would continue as if nobody had cancelled it.
                raise AssertionError("a cancelled call: expected `CancelledError`; found `TryAgain`")
            # Counted before the pause, so that a repeat that a deadline cuts off is in the report too.
            count()
            await asyncio.sleep(seconds)

        super().__init__(inner, policy=POLICY, sleep=pause, random=_chances.random)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level.

        It is read whole first, so that a repeat cannot hide a name that is listed twice.
        """

        async def whole() -> list[str]:
            return [name async for name in self.inner.level(prefix)]

        for name in await self.retry("list", whole):
            yield name

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Start an upload whose calls are repeated."""
        return _PatientUpload(await super().start_upload(key, metadata=metadata), self)


class _PatientUpload(UploadDecorator):
    __slots__ = ("_store",)

    def __init__(self, inner: Upload, store: PatientStore) -> None:
        super().__init__(inner)
        self._store = store

    async def complete(self) -> None:
        await self._store.retry("complete", self.inner.complete)


class PatientOffloader(LedgerOffloader):
    """An offloader that repeats every call except `offload`.

    Other attributes are those of the wrapped one.
    """

    __slots__ = ("_count", "_inner")

    def __init__(self, inner: LedgerOffloader, count: Count) -> None:
        self._inner, self._count = inner, count

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped offloader, which an author's `replace` may need."""
        return getattr(self._inner, name)

    @property
    def url(self) -> str:
        """Return the URL of the offloader."""
        return self._inner.url

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes of the offloader."""
        return self._inner.notes

    @property
    def unproved(self) -> Sequence[str]:
        """Return what no verify of the offloader proves."""
        return self._inner.unproved

    async def open(self, *, create: bool = False) -> None:
        """Open the tier. Repeat the call if it is refused."""
        await retried(lambda: self._inner.open(create=create), self._count)

    async def streams(self) -> list[str]:
        """List the streams. Repeat the call if it is refused."""
        return await retried(self._inner.streams, self._count)

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        """List the parts. Repeat the call if it is refused."""
        return await retried(lambda: self._inner.parts(stream, after=after), self._count)

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        """Begin a part. Repeat the call if it is refused."""
        await retried(lambda: self._inner.begin_part(part, before=before), self._count)

    async def load_manifest(self, stream: str) -> Manifest:
        """Load, again if refused."""
        return await retried(lambda: self._inner.load_manifest(stream), self._count)

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """Load, again if refused."""
        return await retried(lambda: self._inner.load_group(committed, entry), self._count)

    async def view(self, stream: str) -> StreamView:
        """Return the offloader's own view. Repeat the call if it is refused."""
        return _PatientView(await retried(lambda: self._inner.view(stream), self._count), self._count)

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        """Return the offloader's own newer view. Repeat the call if it is refused."""
        newer = await retried(lambda: self._inner.newer_view(known), self._count)
        return None if newer is None else _PatientView(newer, self._count)

    def view_of(self, committed: CommittedStream) -> StreamView:
        """Return the offloader's own view. Its calls are repeated, except walks."""
        return _PatientView(self._inner.view_of(committed), self._count)

    def tree(self, manifest: Manifest) -> Tree:
        """Return the offloader's own tree. Its loads are not repeated."""
        return self._inner.tree(manifest)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Commit a change. Repeat the call if it is refused: the same change may be committed twice.

        Raises `AssertionError` if the change was committed by a call that raised `TryAgain`.
        """

        async def send() -> Manifest:
            try:
                return await self._inner.commit_manifest(stream, change, base=base, committer=committer)
            except TryAgain as error:
                if base is not None and not await self._has(base, change):
                    await self._expect_out(change, base.stream, error)
                raise

        return await retried(send, self._count)

    async def _expect_out(self, change: Change, stream: str, error: TryAgain) -> None:
        """Assert that the newest manifest does not contain a change that was refused."""
        try:
            newest = await self._inner.load_manifest(stream)
        except OffloadError:
            return  # there is no manifest that could contain it
        if await self._has(newest, change):
            done = f"version {newest.version} contains this {type(change).__name__}"
            raise AssertionError(f"expected that `TryAgain` commits nothing; found that {done}: {error}")

    async def _has(self, manifest: Manifest, change: Change) -> bool:
        """Return whether a manifest contains a change. False if its author may not even ask."""
        try:
            return await change.verdict(self._inner.tree(manifest)) is CommitVerdict.IN
        except OffloadError:
            return False

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """Offload a ledger, once: after an error its attempt must not be used again."""
        return await self._inner.offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        """Open a handle. Repeat the call, and each read of the handle, if it is refused."""
        handle = await retried(
            lambda: self._inner.read_offloaded(attempt, manifest=manifest, only=only), self._count
        )
        return _PatientHandle(handle, self._count)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """List the leftovers. Repeat the call if it is refused."""
        return await retried(lambda: self._inner.leftovers(manifest), self._count)

    async def delete_offloaded(self, attempt: Attempt) -> None:
        """Delete an attempt. Repeat the call if it is refused: deletion is idempotent."""
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

    @property
    def is_measured(self) -> bool:
        return self._inner.is_measured

    @property
    def counts_messages(self) -> bool:
        return self._inner.counts_messages

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

    async def read(self, rows: ChunkTable) -> Buffer:
        return await retried(lambda: self._inner.read(rows), self._count)

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        return await retried(lambda: self._inner.read_on(rows, then), self._count)

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        return self._inner.windows(rows, size_bytes=size_bytes)

    async def modified_ms(self) -> int | None:
        return await retried(self._inner.modified_ms, self._count)

    def unknown_sections(self) -> Mapping[str, int]:
        return self._inner.unknown_sections()

    async def aclose(self) -> None:
        await self._inner.aclose()


async def retried(call: Callable[[], Awaitable[T]], count: Count) -> T:
    """Repeat a call until it is answered, or refused as often as `POLICY` allows."""
    for failures in range(1, POLICY.attempts_max):
        try:
            return await call()
        except TryAgain as error:
            count()
            # The pause that the backend asks for comes on top: a shorter one would only be refused again.
            asked = error.pause_seconds if isinstance(error, Throttled) else None
        await asyncio.sleep((asked or 0.0) + POLICY.pause_seconds(failures, _chances.random()))
    return await call()  # the last try: its error is the caller's
