"""Pulsar's contract of offloading, on a store of ours: the order of writes, and what each failure leaves.

```text
1  the ledger is closed and has entries     else Misuse, and nothing is stored
2  an upload of the data object begins      else nothing is stored
3  parts, one block each, in order          else the upload is aborted
4  the upload completes: data is visible    else the upload is aborted
5  the index is put: the ledger is there    else both objects are deleted
```

The index is the commit marker. Whoever records the ledger in Pulsar's metadata does so after step 5. If a
reply is lost in step 4 or 5, the object may be there: it is deleted too, the index before the data, so that
no index is left without data. A request that lands after that leaves garbage, which `scan` shows.

A store that takes no parts gets the data object in one put, in place of steps 2 to 4. Its size must be known
first, so the ledger is read twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from offload.contracts.entries import EntryLedger
from offload.contracts.store import Body, ObjectStore, Span, begin_upload
from offload.entries.chunks import read_run
from offload.formats.keys import TIER_ANCHOR
from offload.ground.errors import Corrupt, Misuse, NotFound, NotOffloaded, OffloadError
from offload.ground.tasks import in_order
from offload_pulsar.blocks import ENTRY_HEADER_SIZE_BYTES, HEADER_SIZE_BYTES, BlockCutter, CutBlock
from offload_pulsar.index import HEAD_SIZE_BYTES, PulsarIndex
from offload_pulsar.ledger import PulsarLedger, Walks
from offload_pulsar.ledger_metadata import LedgerMetadata
from offload_pulsar.names import LEDGER_NAME, BrokerNames, PulsarKey, check_version, lowered

__all__ = ["FoundAttempt", "PulsarBucket"]


BLOCK_SIZE_BYTES_DEFAULT: Final = 64 * 2**20
INDEX_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The largest index that is read: some 3 million blocks. The largest that we saw has 60 KB."""

RUN_SIZE_BYTES: Final = 4 * 2**20
NAMES_AT_ONCE: Final = 16
"""The requests for metadata that a scan has in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttempt:
    """One attempt in a bucket, or an object of a stranger."""

    key: PulsarKey | None
    """The key of the data object. None for a stranger."""

    name: str
    """The key as it is listed: of the data object, or of the index if there is no data."""

    data_size_bytes: int | None = None
    index_size_bytes: int | None = None
    """None if the object is absent."""

    stated_size_bytes: int | None = None
    """The size of the data as the index states it. None if it was not asked for, or if there is no index."""

    is_index_damaged: bool = False
    """True if the index was asked, and does not begin like one."""

    managed_ledger: str | None = None
    """The topic partition, from the metadata. None if the store keeps none, or the object has none."""

    is_gone: bool = False
    """True if it was deleted since it was listed, before its name was known."""

    @classmethod
    def of(cls, key: PulsarKey, data: int | None, index: int | None) -> FoundAttempt:
        """Return the attempt with this key of its data, and these sizes of its objects."""
        name = str(key.index if data is None else key)
        return cls(key=key, name=name, data_size_bytes=data, index_size_bytes=index)

    @property
    def is_whole(self) -> bool:
        """True if it has both objects."""
        return self.key is not None and None not in (self.data_size_bytes, self.index_size_bytes)

    @property
    def finding(self) -> str:
        """Say in a few words what it is."""
        if self.key is None:
            return "not Pulsar's"
        if self.index_size_bytes is None:
            return "garbage: data without index"
        if not self.is_whole:
            return "broken: index without data"
        if self.is_index_damaged:
            return "broken: the index is none"
        if self.stated_size_bytes not in (None, self.data_size_bytes):
            return (
                f"broken: {self.data_size_bytes} bytes of data, and its index states {self.stated_size_bytes}"
            )
        return "whole"


class PulsarBucket:
    """The objects of Pulsar's tiered storage in `store`, which belongs to the caller.

    Errors of the store are passed on, so wrap a store that retries if requests are to be repeated.
    """

    def __init__(self, store: ObjectStore, *, block_size_bytes_max: int = BLOCK_SIZE_BYTES_DEFAULT) -> None:
        self._store = store
        self._block_size_bytes_max = block_size_bytes_max
        self._walks = Walks()
        self._names: dict[str, str | None] = {}
        """The managed ledgers of objects that were asked. They never change."""

        self.keeps_metadata: Final = store.capabilities.metadata_size_bytes_max > 0
        """False if the store keeps no metadata: then no object has a name, and no version is checked."""

    async def offload(
        self,
        ledger: EntryLedger,
        uid: UUID,
        *,
        names: BrokerNames,
        metadata: LedgerMetadata | None = None,
    ) -> PulsarIndex:
        """Write a closed ledger, and return its index once both objects are durable.

        `uid` names the attempt, and must be new. `metadata` is BookKeeper's, if it is known. Raises `Misuse`
        for a ledger that is open or empty, an entry that no block takes, and blocks that the store does not
        take as parts. Raises `Corrupt` for a ledger that contradicts itself: another length, or ids that
        skip. After any error nothing of the attempt is visible, unless deleting failed too, which a note of
        the error says.
        """
        where = f"ledger {ledger.ledger_id}"
        if not ledger.is_sealed or ledger.last_entry < 0 or ledger.first_entry:
            raise Misuse(
                f"{where} is empty or open, or was cut, and only a whole closed one can be offloaded"
            )
        if metadata is None:
            metadata = LedgerMetadata.of(length=_length(ledger, where), last_entry=ledger.last_entry)
        if (metadata.length, metadata.last_entry) != (ledger.length, ledger.last_entry):
            raise Misuse(f"the metadata of {where} has another length or last entry than the ledger")
        self._cutter(ledger, where)  # raises before anything is sent
        key = PulsarKey(uid, ledger.ledger_id)
        kept = self._metadata(names, key)
        if self._store.capabilities.multipart:
            self._check_parts(ledger, where)
            firsts, sizes = await self._put_parts(ledger, str(key), kept, where)
        else:
            firsts, sizes = await self._put_whole(ledger, str(key), kept, where)
        index = PulsarIndex.of_blocks(ledger.ledger_id, metadata, firsts, sizes)
        body = Body.of(index.encode(), metadata=self._metadata(names, key.index))
        try:
            await self._store.put(str(key.index), body)
        except BaseException as failure:
            await self._undo(failure, self.delete(ledger.ledger_id, uid))
            raise
        return index

    async def open(self, ledger_id: int, uid: UUID) -> PulsarLedger:
        """Open a ledger of either version, to read it.

        Raises `NotOffloaded` if there is no index: an attempt that did not finish, or none. Raises `Corrupt`
        for a version that is missing or foreign, an index without data, and a damaged index.
        """
        for key in (PulsarKey(uid, ledger_id), PulsarKey(uid)):
            try:
                index = await self.index(key)
            except NotOffloaded:
                continue
            for group in index.groups:
                if group.ledger_id == ledger_id:
                    return PulsarLedger(self._store, str(key), index, group, self._walks)
        raise NotOffloaded(f"ledger {ledger_id} has no index of attempt {uid} in {self._store.url}")

    async def index(self, key: PulsarKey) -> PulsarIndex:
        """Read the index of an attempt, and look whether its data is there. `key` is one of both objects.

        Raises `NotOffloaded` if there is no index, and `Corrupt` as `open` does.
        """
        data_key, index_key = str(key.data), str(key.index)
        try:
            raw = await self._store.get(index_key, Span(0, INDEX_SIZE_BYTES_MAX + 1))
            await self._check_version(index_key)
        except NotFound as exc:
            raise NotOffloaded(f"{self._store.url} has no index {index_key}") from exc
        if len(raw) > INDEX_SIZE_BYTES_MAX:
            most = f"at most {INDEX_SIZE_BYTES_MAX}"
            raise Corrupt("size of the index", index_key, expected=most, found=f"more than {len(raw) - 1}")
        try:
            await self._store.get(data_key, Span(0, 1))
            await self._check_version(data_key)
        except NotFound as exc:
            raise Corrupt("data object", data_key, expected="present", found="absent") from exc
        return PulsarIndex.decode(raw, ledger_id=key.ledger_id, where=index_key)

    async def ledgers(self, key: PulsarKey) -> Sequence[PulsarLedger]:
        """Open all ledgers of an attempt: one in V1, perhaps several in V2. Raises as `index` does."""
        index = await self.index(key)
        return [PulsarLedger(self._store, str(key.data), index, group, self._walks) for group in index.groups]

    async def delete(self, ledger_id: int, uid: UUID) -> None:
        """Delete the index and the data of a V1 ledger. Idempotent.

        V2 objects are left alone: they may have other ledgers.
        """
        key = PulsarKey(uid, ledger_id)
        await self._store.delete((str(key.index),))
        await self._store.delete((str(key),))

    async def scan(self, *, with_stated_sizes: bool = False) -> AsyncGenerator[FoundAttempt, None]:
        """Yield every attempt, and every object of a stranger, in the order of their keys.

        Only strangers lie between the two objects of an attempt in a listing. The name of each attempt is
        asked for once, and remembered. `with_stated_sizes` reads the beginning of each index, too.
        """
        asking = in_order(
            self._sized if with_stated_sizes else self._named, self._listed(), at_once=NAMES_AT_ONCE
        )
        seen: set[str] = set()
        async with aclosing(asking) as rows:
            async for _, named in rows:
                seen.add(named.name)
                yield named
        self._names = {name: of for name, of in self._names.items() if name in seen}

    async def nothing_there(self, of: str = "", because: str = "is it the right place?") -> NotOffloaded:
        """Return the error for a place without a ledger of Pulsar: a wrong folder, or a tier of ours."""
        try:
            await self._store.get(TIER_ANCHOR, Span(0, 1))
        except NotFound:
            return NotOffloaded(f"{self._store.url} has no ledger of Pulsar's{of}: {because}")
        return NotOffloaded(
            f"{self._store.url} is no bucket of Pulsar's, but a tier of this program: "
            "`offload ls` and `offload verify` work on it"
        )

    async def _listed(self) -> AsyncGenerator[FoundAttempt, None]:
        """Yield every attempt and stranger, without the names of managed ledgers."""
        data: tuple[PulsarKey, int] | None = None
        async for row in self._store.list(""):
            key = PulsarKey.parse(row.key)
            # A stranger's key, such as that of a backup of the data, may lie between the two.
            if data is not None and row.key > str(data[0].index):
                yield FoundAttempt.of(data[0], data[1], None)
                data = None
            if key is None:
                yield FoundAttempt(key=None, name=row.key, data_size_bytes=row.size_bytes)
            elif key.is_index:
                yield FoundAttempt.of(key.data, data and data[1], row.size_bytes)
                data = None
            else:
                data = key, row.size_bytes
        if data is not None:
            yield FoundAttempt.of(data[0], data[1], None)

    async def _named(self, found: FoundAttempt) -> FoundAttempt:
        if not self.keeps_metadata or found.key is None:
            return found
        if found.name not in self._names:
            try:
                metadata = await self._store.metadata_of(found.name) or {}
            except NotFound:
                return replace(found, is_gone=True)
            self._names[found.name] = lowered(metadata).get(LEDGER_NAME)
        return replace(found, managed_ledger=self._names[found.name])

    async def _sized(self, found: FoundAttempt) -> FoundAttempt:
        found = await self._named(found)
        if found.key is None or not found.is_whole or found.is_gone:
            return found
        try:
            head = await self._store.get(str(found.key.index), Span(0, HEAD_SIZE_BYTES))
        except NotFound:
            return replace(found, is_gone=True)
        stated = PulsarIndex.stated_size_bytes(head)
        return replace(found, stated_size_bytes=stated, is_index_damaged=stated is None)

    def _metadata(self, names: BrokerNames, key: PulsarKey) -> dict[str, str]:
        return names.metadata(key) if self.keeps_metadata else {}

    async def _check_version(self, key: str) -> None:
        if self.keeps_metadata:
            check_version(await self._store.metadata_of(key) or {}, where=key)

    def _check_parts(self, ledger: EntryLedger, where: str) -> None:
        """Refuse blocks that the store does not take as parts, before anything is sent."""
        takes, block = self._store.capabilities, self._block_size_bytes_max
        needed = _length(ledger, where) + ENTRY_HEADER_SIZE_BYTES * (ledger.last_entry + 1)
        if block < takes.part_size_bytes_min and HEADER_SIZE_BYTES + needed > block:
            least = takes.part_size_bytes_min
            raise Misuse(f"blocks of {block} bytes are too small for {self._store.url}: the least is {least}")
        if takes.part_size_bytes_max is not None and block > takes.part_size_bytes_max:
            most = takes.part_size_bytes_max
            raise Misuse(f"blocks of {block} bytes are too large for {self._store.url}: the most is {most}")
        least_parts = -(-needed // max(block - HEADER_SIZE_BYTES, 1))
        if takes.parts_max is not None and least_parts > takes.parts_max:
            raise Misuse(_too_many(where, takes.parts_max))

    async def _put_parts(
        self, ledger: EntryLedger, key: str, metadata: Mapping[str, str], where: str
    ) -> tuple[list[int], list[int]]:
        """Put every block as a part, and return the first entry and the size of each."""
        upload = await begin_upload(self._store, key, metadata)
        firsts, sizes = list[int](), list[int]()
        parts_max = self._store.capabilities.parts_max
        try:
            async for block in self._blocks(ledger, where):
                if len(firsts) == parts_max:
                    raise Misuse(_too_many(where, len(firsts)))
                firsts.append(block.first_entry_id)
                sizes.append(len(block.data))
                await upload.put_part(len(firsts), block.data)
            await upload.complete()
        except BaseException as failure:
            # Aborting first: if the completion was applied and its reply was lost, deleting undoes it.
            await self._undo(failure, upload.abort())
            await self._undo(failure, self._store.delete((key,)))
            raise
        return firsts, sizes

    async def _put_whole(
        self, ledger: EntryLedger, key: str, metadata: Mapping[str, str], where: str
    ) -> tuple[list[int], list[int]]:
        """Put all blocks as one object, and return the first entry and the size of each."""
        firsts, sizes = list[int](), list[int]()
        async for block in self._blocks(ledger, where):
            firsts.append(block.first_entry_id)
            sizes.append(len(block.data))

        async def windows() -> AsyncIterator[bytes]:
            async for block in self._blocks(ledger, where):
                yield block.data

        try:
            await self._store.put(key, Body(size_bytes=sum(sizes), windows=windows, metadata=metadata))
        except BaseException as failure:
            await self._undo(failure, self._store.delete((key,)))
            raise
        return firsts, sizes

    def _cutter(self, ledger: EntryLedger, where: str) -> BlockCutter:
        return BlockCutter(
            last_entry=ledger.last_entry,
            length=_length(ledger, where),
            block_size_bytes_max=self._block_size_bytes_max,
            where=where,
        )

    async def _blocks(self, ledger: EntryLedger, where: str) -> AsyncIterator[CutBlock]:
        """Yield the blocks of a ledger, in order."""
        at, cutter = 0, self._cutter(ledger, where)
        while at <= ledger.last_entry:
            run = await read_run(ledger, at, ledger.last_entry, size_bytes=RUN_SIZE_BYTES, where=where)
            for block in cutter.add(run.data, run.starts, run.ends):
                yield block
            at += len(run.starts)

    @staticmethod
    async def _undo(failure: BaseException, step: Awaitable[None]) -> None:
        """Clean up after `failure`. If that fails too, the failure gets a note."""
        try:
            await step
        except OffloadError as exc:
            failure.add_note(f"cleaning up failed, and objects of the attempt may be left: {exc}")


def _too_many(where: str, parts_max: int) -> str:
    return f"{where} needs more than the {parts_max} parts that the store takes: choose larger blocks"


def _length(ledger: EntryLedger, where: str) -> int:
    """Return the length of a ledger, which its metadata has. Raises `Misuse` if it states none."""
    if ledger.length is None:
        raise Misuse(f"{where} states no length")
    return ledger.length
