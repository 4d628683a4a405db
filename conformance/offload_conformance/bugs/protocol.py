"""Bugs that show under the faults of the protocol layer: stores, and tiers on sound stores."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.capabilities import Capabilities
from offload.contracts.change import Change
from offload.contracts.events import Event, FragmentUploaded
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Conflict, Denied, Fenced, OutcomeUnknown, TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.fragment_check import CheckedFragment, load_own_tail
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.memory import MemoryStore
from offload.store.retry import RetryingStore
from offload.store.wrap import StoreDecorator
from offload_conformance.bugs.offloader.damage import ChecksNothingItReads
from offload_conformance.bugs.registry import bug


class SuiteTier(ObjectStoreOffloader):
    """A tier as the suite makes it; with `under`, a layer is between retries and the store."""

    KIND = "offloader"
    under: type[StoreDecorator] = StoreDecorator

    def __init__(self, store: ObjectStore, *, env: Env, options: TierOptions) -> None:
        super().__init__(self.patient(self.under(store), env), env=env, options=options, emit=self.heard)

    def patient(self, store: ObjectStore, env: Env) -> ObjectStore:
        return RetryingStore(store, clock=env.monotonic, sleep=env.sleep, random=env.random)

    def heard(self, event: Event) -> None:
        """Receive an event."""


@bug("protocol/crashes_lose_nothing")
class LocksTheStream(SuiteTier):
    """Locks a stream when it is claimed, until it is closed.

    A lock without a lease: a dead process holds it for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.locked: set[str] = set()

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Claim) and stream not in self.locked:
            await self.open(create=True)
            try:
                await self.data.create(f"{StreamKeys(stream).prefix}lock", b"")
            except AlreadyExists as exc:
                raise Conflict(f"stream {stream!r} is locked") from exc
            self.locked.add(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("protocol/cancelled_requests_lose_nothing")
class TearsWhatIsCancelled(MemoryStore):
    """Leaves half an object behind if a create is cancelled.

    The file gets its final name before its bytes are written: `open(path, "x")`.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.objects[key] = data[: len(data) // 2]
        for _ in range(6):
            await asyncio.sleep(0)
        self.objects[key] = data


@bug("protocol/whole_leftovers_are_adopted")
class AdoptsNothing(SuiteTier):
    """Copies complete fragments of a crash again.

    A restart begins its ledger again; this is simple, but each crash costs a full upload.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return []


@bug("protocol/damaged_leftovers_are_not_adopted")
class AdoptsUnread(SuiteTier):
    """Adopts a fragment of a crash by its trailer alone.

    If the end exists, the rest is assumed to; this is true only of a file that was written in order.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        async def trusting(
            store: ObjectStore, key: str, *, size_bytes: int, **ring: object
        ) -> CheckedFragment:
            tail, _ = await load_own_tail(store, key, size_bytes=size_bytes)
            return CheckedFragment(tail=tail, checksum=crc32c(await store.get(key)))

        with patch("offload.native.adoption.check_fragment", trusting):
            return await super().leftovers(manifest)


class _AsksAgain(StoreDecorator):
    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except OutcomeUnknown:
            try:
                await super().create(key, data)
            except AlreadyExists as exc:
                raise Conflict(f"{key!r} is another's") from exc


@bug("protocol/lost_replies_commit_once")
class TakesItsEchoForARival(SuiteTier):
    """Takes its own commit, whose reply was lost, for a rival's.

    A repeated create finds the object of the first one.
    """

    under = _AsksAgain


class _Forgiving(StoreDecorator):
    async def put(self, key: str, body: Body) -> None:
        with suppress(TryAgain):
            await super().put(key, body)


@bug("protocol/refused_requests_may_be_repeated")
class TakesARefusalForAnAnswer(SuiteTier):
    """Continues after a refused put.

    A library raises no error, and its status is not checked.
    """

    under = _Forgiving


class _Strict(StoreDecorator):
    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists as exc:
            raise Conflict(f"{key!r} is another's") from exc


@bug("protocol/changes_sent_twice_are_in_once")
class TakesExistsForLoss(SuiteTier):
    """Takes an existing object for another writer's, and gives up.

    The second request gets 412, even if both requests came from the same writer.
    """

    under = _Strict


@bug("protocol/late_requests_change_nothing")
class CreatesOverwhatIsThere(MemoryStore):
    """Replaces an existing object on create.

    A server ignores `If-None-Match`; nobody notices until one of two writers is late.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


class _ByOffset(StoreDecorator):
    @staticmethod
    def shared(key: str) -> str:
        return re.sub(r"\.[0-9a-f-]{36}\.fragment", f".{UUID(int=0)}.fragment", key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.shared(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.shared(key), span)


@bug("protocol/late_requests_change_nothing")
class NamesFragmentsByOffset(SuiteTier):
    """Gives the fragments of two attempts at one offset the same name.

    The name describes the content, so a late put of a dead writer overwrites the data of its successor.
    """

    under = _ByOffset


@bug("protocol/slow_replies_reorder_nothing")
class AppendsAsTheyCome(SuiteTier):
    """Names fragments in the order in which their uploads end.

    `asyncio.as_completed` loses the order of the source.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ended: list[Entry] = []
        super().__init__(*args, **kwargs)

    def heard(self, event: Event) -> None:
        if isinstance(event, FragmentUploaded):
            self.ended.append(event.entry)

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        entries = [entry for entry in self.ended if entry.attempt == attempt.uid]
        return Receipt(attempt=attempt, entries=entries)


@bug("protocol/throttling_is_waited_out")
class AsksAgainAtOnce(SuiteTier):
    """Repeats a request at once if the store asked for a pause.

    Retries ignore `Retry-After`, so the store throttles them for ever.
    """

    def patient(self, store: ObjectStore, env: Env) -> ObjectStore:
        async def hasty(_: float) -> None:
            await asyncio.sleep(0)

        return RetryingStore(store, clock=env.monotonic, sleep=hasty, random=env.random)


@bug("protocol/paused_writers_are_fenced")
class CleansUpWhenFenced(SuiteTier):
    """Deletes its uploads when it is fenced.

    It seems tidy, but its last commit may be in, and then its successor's stream names those objects.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Fenced:
            if isinstance(change, Append):
                keys = StreamKeys(stream)
                entries = change.entries
                await self.data.delete([keys.fragment(e.first_offset, e.attempt) for e in entries])
            raise


@bug("protocol/rivals_make_one_history")
class ChecksThenCreates(MemoryStore):
    """Checks if an object exists, and then writes it.

    It uses two requests instead of one: exists, then put. It sometimes loses a race.
    """

    async def create(self, key: str, data: bytes) -> None:
        await asyncio.sleep(0)
        if key in self.objects:
            raise AlreadyExists(key)
        await self.put(key, Body.of(data))


@bug("protocol/sweeps_take_only_garbage")
class AnnouncesLate(SuiteTier):
    """Announces an attempt at its commit, and not before its upload.

    This saves a commit, but a sweep then deletes objects that are about to be named.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Prepare):
            self.late = change
            return change.apply(base)
        if isinstance(change, Append):
            newest = await self.load_manifest(stream)
            base = await super().commit_manifest(stream, self.late, base=newest, committer=committer)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _OneAtATime(StoreDecorator):
    async def delete(self, keys: Sequence[str]) -> None:
        try:
            await super().create("deleting", b"")
        except AlreadyExists as exc:
            raise Denied("another delete is under way") from exc
        await super().delete(keys)
        await super().delete(["deleting"])


@bug("protocol/dead_sweeps_are_ended_by_the_next")
class LocksItsDeletes(SuiteTier):
    """Deletes under a lock.

    A process that dies during a deletion leaves the lock, and nothing is deleted any more.
    """

    under = _OneAtATime


@bug("protocol/damaged_replies_are_errors")
class ChecksNothing(SuiteTier, ChecksNothingItReads):
    """Returns received bytes without checking their checksums.

    It relies on the checksums of TLS and of the store, but a proxy that shortens a reply has none.
    """


class _Strong(StoreDecorator):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, strong_listing=True)


@bug("protocol/late_listings_change_nothing")
class TrustsEveryListing(SuiteTier):
    """Commits to a store whose listings may be late.

    The capabilities are hard-coded for the most common store.
    """

    under = _Strong


@bug("protocol/walks_go_as_the_model_says")
class KeepsOneBitOfTheEpoch(SuiteTier):
    """Accepts a writer as the current one if both epochs are even, or both odd.

    Each claim flips a flag, which fences the previous writer, but not the one before it.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None and isinstance(change, Prepare | Append):
            newest = await self.load_manifest(stream)
            if newest.epoch % 2 == base.epoch % 2:
                base, change = newest, replace(change, writer=newest.writer)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("protocol/walks_go_as_the_model_says")
class DeletesWithoutACommit(SuiteTier):
    """Deletes the objects of an attempt, and leaves it running in the manifest.

    The manifest is left to the writer, and the writer then names deleted objects.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        manifest = await self.log(attempt.stream).load_newest()
        if manifest is None or not manifest.runs(attempt.uid):
            return await super().delete_offloaded(attempt)
        rows = [row.key async for row in self.data.list(StreamKeys(attempt.stream).data)]
        return await self.data.delete([key for key in rows if str(attempt.uid) in key])


@bug("protocol/walks_go_as_the_model_says")
class KeepsWhatItLoaded(SuiteTier):
    """Keeps the manifest that it loaded until it commits something itself.

    Only its own writes clear the cache, so with two processes one reads outdated data.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loaded: dict[str, Manifest] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream not in self.loaded:
            self.loaded[stream] = await super().load_manifest(stream)
        return self.loaded[stream]

    async def commit_manifest(self, stream: str, *args: Any, **kwargs: Any) -> Manifest:
        self.loaded.pop(stream, None)
        return await super().commit_manifest(stream, *args, **kwargs)
