"""Bugs of offloads: what is checked, copied and reported, and how a source is treated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, ObjectStore
from offload.formats.chunk_check import check_source
from offload.ground.errors import Corrupt, Misuse, OffloadError, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.store.wrap import StoreDecorator
from offload_conformance.bugs.offloader.shared import Around, deleted_but
from offload_conformance.bugs.registry import bug


class _Renamed(Around):
    announced = 0

    @property
    def ledger_id(self) -> int:
        return self.announced


@bug("contract/ledgers_are_those_announced")
class StoresAnyLedger(ObjectStoreOffloader):
    """Stores any ledger under the number that the attempt announced.

    The number is taken from the attempt, and the handle is never asked for its own.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        renamed = _Renamed.around(handle)
        renamed.announced = attempt.ledger_id  # type: ignore[attr-defined]
        return await super().offload(renamed, attempt, manifest=manifest, extra_metadata=extra_metadata)


@bug("contract/offloads_are_checked")
class ForgetsToCheck(ObjectStoreOffloader):
    """Stores chunks whose checksums do not match.

    The source's index is trusted without a check.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def unchecked(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", unchecked):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked_for_length")
class TakesAShortReadForTheEnd(ObjectStoreOffloader):
    """Treats a source that ends too early as complete.

    `while data := source.read()`: nobody compares with what the index says.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except Corrupt:
            return Receipt(attempt=attempt, entries=())


@bug("contract/offloads_are_checked")
class ChecksOnlyTheData(ObjectStoreOffloader):
    """Checks the CRC of a chunk's data, and nothing of its header.

    The format's checksum is checked, but it does not cover the header.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def agree(headers: Any, rows: ChunkTable) -> npt.NDArray[np.bool_]:
            return np.ones(len(rows), np.bool_)

        with patch("offload.formats._chunk_table._agree", agree):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked")
class ChecksTheFirstOfEachRead(ObjectStoreOffloader):
    """Checks only the first chunk of each read.

    The check was written for one chunk, before reads became larger.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def first(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            one = rows[:1]
            check_source(raw[: int(one["size_bytes"][0])], one, where=where)
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", first):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked")
class BlamesTheTier(ObjectStoreOffloader):
    """Blames the tier for damage in the source.

    An error is translated in a place where the file is no longer known.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        try:
            return await super().offload(*args, **kwargs)
        except Corrupt as damage:
            raise damage.within(self.url) from damage


@bug("contract/offloads_are_checked_for_holes")
class TrustsTheTable(ObjectStoreOffloader):
    """Copies the chunks in the table of the source, even if they do not cover the whole range.

    An index lost a record, so the chunk exists and nobody reads it.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        with (
            patch("offload.native.offloader.covering_table", lambda handle: handle.table()),
            patch("offload.formats.fragment._check_table", lambda *args, **kwargs: None),
        ):
            return await super().offload(*args, **kwargs)


@bug("contract/errors_of_the_source_are_passed_on")
class TakesTryAgainForTheEnd(ObjectStoreOffloader):
    """Treats a source that is temporarily unavailable as ended.

    A loop reads until there is no more data, and an error counts as no data.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except TryAgain:
            return Receipt(attempt=attempt, entries=())


class _UploadSlots(ObjectStoreOffloader):
    """Has four slots for uploads. `kept_after` says after which errors a slot is not given back."""

    taken = 0
    kept_after: type[BaseException]

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if self.taken == 4:
            raise TryAgain("all slots are taken")
        self.taken += 1
        try:
            receipt = await super().offload(*args, **kwargs)
        except BaseException as error:
            self.taken -= not isinstance(error, self.kept_after)
            raise
        self.taken -= 1
        return receipt


@bug("contract/errors_of_the_source_are_passed_on")
class LosesSlotsToErrors(_UploadSlots):
    """Loses an upload slot at each error of a source.

    A semaphore is released after the call, and not in a `finally`.
    """

    kept_after = OffloadError


@bug("contract/cancelled_offloads_hinder_nobody")
class LosesSlotsToCancellation(_UploadSlots):
    """Loses an upload slot with each offload that is cancelled.

    `except Exception` releases the slot, and a cancellation is not an `Exception`.
    """

    kept_after = asyncio.CancelledError


@bug("contract/source_handles_stay_open")
class ClosesItsSource(ObjectStoreOffloader):
    """Closes the handle that it copied.

    `async with handle` closes it, but the caller owns the handle and may copy it once more.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        async with handle:
            return await super().offload(handle, *args, **kwargs)


@bug("contract/extra_metadata_is_any_text")
class SendsMetadataAsHeaders(ObjectStoreOffloader):
    """Refuses metadata outside ASCII.

    It is sent as HTTP headers, as user metadata of objects is.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if not all((name + text).isascii() for name, text in kwargs["extra_metadata"].items()):
            raise Misuse("a header must be ASCII")
        return await super().offload(*args, **kwargs)


@bug("contract/extra_metadata_is_any_text")
class AddsToTheMetadata(ObjectStoreOffloader):
    """Adds to the mapping of metadata that its caller gave.

    It adds a default to the caller's mapping, so the next ledger has it too.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if kwargs["extra_metadata"]:
            try:
                kwargs["extra_metadata"]["by"] = "an archive"
            except TypeError as error:
                raise RuntimeError("the mapping cannot be changed") from error
        return await super().offload(*args, **kwargs)


@bug("contract/offloads_may_run_at_once")
class CopiesByOneCursor(ObjectStoreOffloader):
    """Keeps the current handle in the offloader itself.

    An attribute is used instead of a variable, so of two simultaneous ledgers one is stored twice.
    """

    current: ReadHandle

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        self.current = handle
        await asyncio.sleep(0)
        return await super().offload(self.current, *args, **kwargs)


@bug("contract/receipts_tell_what_was_copied")
class CountsEveryRecord(ObjectStoreOffloader):
    """Counts the records of tracking chunks as messages.

    Every record takes an offset, so the offsets are counted.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        return replace(receipt, entries=[replace(each, messages=each.records) for each in receipt.entries])


@bug("contract/receipts_tell_what_was_copied")
class TakesTheLastTimeForTheGreatest(ObjectStoreOffloader):
    """Takes the timestamp of the last chunk for the greatest.

    Time usually rises, until somebody sets a clock.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(handle, *args, **kwargs)
        last_ms = int((await handle.table())["timestamp_ms"][-1])
        *entries, newest = receipt.entries
        return replace(receipt, entries=[*entries, replace(newest, last_timestamp_ms=last_ms)])


class Behind(StoreDecorator):
    """A store that keeps back what is put."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.buffered: dict[str, bytes] = {}

    async def put(self, key: str, body: Body) -> None:
        self.buffered[key] = b"".join([window async for window in body.windows()])

    async def create(self, key: str, data: bytes) -> None:
        for buffered, raw in self.buffered.items():
            await super().put(buffered, Body.of(raw))
        self.buffered.clear()
        await super().create(key, data)


@bug("contract/receipts_are_of_durable_bytes")
class SendsWithTheNextCommit(ObjectStoreOffloader):
    """Sends copied data only with its next commit.

    A transaction stays open until then; if another process commits, the data is missing.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Behind(store))


@bug("contract/receipts_are_of_durable_bytes")
class TidiesUpAtItsClose(ObjectStoreOffloader):
    """Removes uncommitted copies when it is closed.

    An open transaction is rolled back with its connection, but another writer may commit or adopt the copies.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.open_attempts: set[UUID] = set()

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        self.open_attempts.add(receipt.attempt.uid)
        return receipt

    async def aclose(self) -> None:
        rows = [row.key async for row in self.data.list("")]
        mine = [key for key in rows if any(str(uid) in key for uid in self.open_attempts)]
        await self.data.delete(mine)
        await super().aclose()


@bug("contract/ended_offloads_read_no_more")
class GoesOnInTheBackground(ObjectStoreOffloader):
    """Goes on with an offload whose caller was cancelled.

    `asyncio.shield` was meant to protect a single request.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        return await asyncio.shield(asyncio.ensure_future(super().offload(*args, **options)))


@bug("contract/returned_offloads_read_no_more")
class ComparesLater(ObjectStoreOffloader):
    """Reads the ledger once more after `offload` has returned, to compare it.

    A background task, so that the caller need not wait.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        self.comparing = asyncio.ensure_future(handle.read(await handle.table()))
        return receipt


@bug("contract/cancelled_offloads_hinder_nobody")
class CleansUpWhenCancelled(ObjectStoreOffloader):
    """Deletes whatever lies behind the end of a stream when an offload of it is cancelled.

    Nothing is committed there, so it looks like what the cancelled offload has left.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except asyncio.CancelledError:
            await deleted_but(self, attempt, manifest)
            raise


@bug("contract/extra_metadata_is_any_text")
class AddsToTheCallersMetadata(ObjectStoreOffloader):
    """Adds its own names to the mapping that it was given.

    The mapping of the caller is used instead of a copy.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if isinstance(extra_metadata, dict):
            extra_metadata["attempt"] = str(attempt.uid)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
