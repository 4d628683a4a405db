"""Mistakes in commits and offloads, of the third set: the suite missed them at first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

from offload_sqlite_ledger import offloader as example

from newcomers.late import Handle, chunks, writer
from newcomers.ledgers import all_of, raises
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from newcomers.table import Row, Table
from offload.commit.job import Announce
from offload.commit.writer import Claim
from offload.contracts.attempts import prepared_kind
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.formats.checksums import crc32c
from offload.formats.chunk_check import check_source
from offload.ground.errors import Corrupt, Misuse, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, windows_of
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.model.tree import Tree


async def shows_manifest_on_self(open_: Open) -> None:
    tier = open_()
    one, two = await writer(tier, "s"), await writer(tier, "t")
    await asyncio.gather(one.prepare(), two.prepare())
    assert [len((await tier.load_manifest(each)).running) for each in "st"] == [1, 1]


@bug(shows_manifest_on_self)
class ManifestOnSelf(Ledgers):
    """The manifest that a commit has read is an attribute of the offloader, and a concurrent commit of
    another stream overwrites it.

    Breaks "methods may be called at the same time".
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.open(create=isinstance(change, Claim))
        for _ in range(100):
            self._read = await self._newest(stream)
            if self._read is not None:
                verdict = await change.verdict(Tree(self._read, self.load_group))
                if verdict is not CommitVerdict.OUT:
                    return await super().commit_manifest(stream, change, base=base, committer=committer)
            await self.open()
            proposal = await self._proposal(change, self._read, committer)
            if await self._database.write(example._swap(stream, self._read, proposal)):
                return proposal
        raise TryAgain(f"others commit to {stream!r} all the time")


async def shows_first_claim_replaces(open_: Open) -> None:
    tiers = [open_() for _ in range(3)]
    for tier in tiers:
        await tier.open(create=True)
    for number in range(30):  # threads race, so one round may miss it
        writers = await asyncio.gather(*(writer(tier, f"s{number}") for tier in tiers))
        assert len({each.manifest.version for each in writers}) == 3


@bug(shows_first_claim_replaces)
class FirstClaimReplaces(Ledgers):
    """A stream's first manifest is an `INSERT OR REPLACE`: two concurrent first claims both succeed.

    Breaks "Of two commits on one parent exactly one succeeds".
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.open(create=isinstance(change, Claim))
        if await self._newest(stream) is None and isinstance(change, Claim):
            proposal = await self._proposal(change, None, committer)
            row = (stream, proposal.version, example.encode_root(proposal))
            await self._database.insert("INSERT OR REPLACE INTO manifests VALUES (?, ?, ?)", [row])
            return proposal
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class InWindows(Ledgers):
    """An offloader that copies window by window: a bug overrides the steps `windows` and `checks`."""

    def windows(self, table: ChunkTable) -> Sequence[ChunkTable]:
        return list(windows_of(table))

    def checks(self, raw: bytes, rows: ChunkTable, where: str) -> list[int]:
        return check_source(raw, rows, where=where).tolist()

    async def _insert(self, handle: ReadHandle, table: ChunkTable, attempt: Attempt, *, copied: int) -> Entry:
        checksum = 0
        for rows in self.windows(table):
            raw = await handle.read(rows)
            try:
                checksums = self.checks(raw, rows, handle.where)
            except Corrupt as damage:
                raise damage.within(handle.where, stream=attempt.stream) from damage
            await self._database.insert(example.CHUNK, example._chunks(attempt, rows, checksums, raw))
            checksum = crc32c(raw, checksum)
        return example._entry(table, attempt, checksum, copied=copied)


class Moved(Handle):
    """A ledger whose chunks are not adjacent: each except the first is this many bytes further on."""

    def __init__(self, raw: bytes, by: int, *, first: int = 0) -> None:
        super().__init__(raw)
        self.by, self.first = by, first

    async def table(self) -> ChunkTable:
        table = self._table.copy()
        table["position"][self.first :] += self.by
        return table

    async def read(self, rows: ChunkTable) -> bytes:
        own = self._table[[each in rows["offset"] for each in self._table["offset"]]]
        return await super().read(own)


async def shows_one_read_for_all(open_: Open) -> None:
    w = await writer(open_())
    attempt, raw = await w.prepare(), chunks(4)
    handle = Moved(raw, 1000, first=2)
    receipt = await w.tier.offload(handle, attempt, manifest=w.manifest, extra_metadata={})
    await w.commit(w.append(receipt))
    assert await all_of(await w.tier.read_offloaded(attempt)) == raw


@bug(shows_one_read_for_all)
class OneReadForAll(InWindows):
    """All of a ledger is read in one call, as if its chunks were always adjacent.

    Breaks "`position` is the handle's own and means nothing else": a handle may join several objects.
    """

    def windows(self, table: ChunkTable) -> Sequence[ChunkTable]:
        return [table]


async def shows_position_in_the_window(open_: Open) -> None:
    w = await writer(open_())
    attempt, handle = await w.prepare(), Moved(chunks(4), 4096)
    at = int(handle._table["position"][2])
    handle._data = handle._data[:at] + bytes([handle._data[at] ^ 1]) + handle._data[at + 1 :]
    offload = w.tier.offload(handle, attempt, manifest=w.manifest, extra_metadata={})
    damage = await raises(Corrupt, offload)
    assert damage.position >= at + 4096


@bug(shows_position_in_the_window)
class PositionInTheWindow(InWindows):
    """Damage is reported at a byte of the window that was read, not of the file.

    Breaks "`Corrupt` names it and its file": an operator who looks at that byte finds no damage.
    """

    def checks(self, raw: bytes, rows: ChunkTable, where: str) -> list[int]:
        rows = rows.copy()
        rows["position"] -= rows["position"][0]
        return super().checks(raw, rows, where)


async def shows_jobs_are_copies(open_: Open) -> None:
    w = await writer(open_())
    uid, incarnation = uuid4(), w.manifest.incarnation
    await w.commit(Announce(job=uuid4(), incarnation=incarnation, attempts=[(uid, 1)]))
    attempt = Attempt(stream="s", ledger_id=1, uid=uid)
    receipt = await w.tier.offload(Handle(chunks()), attempt, manifest=w.manifest, extra_metadata={})
    assert [each.copied for each in receipt.entries] == [0]


@bug(shows_jobs_are_copies)
class JobsAreCopies(Ledgers):
    """Every attempt of a job counts as a copy, of which the stream has the original.

    Breaks "Those of kind *copy* are for what takes the place of committed fragments, all others for what is
    appended".
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        copied = int(prepared_kind(handle, attempt, manifest) is not AttemptKind.STREAM)
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        return replace(receipt, entries=[replace(each, copied=copied) for each in receipt.entries])


async def shows_max_of_the_first(open_: Open) -> None:
    first = 2**63 - 3
    w = await writer(open_(), first=first)
    attempt, raw = await w.prepare(), chunks(2, first)
    try:
        receipt = await w.tier.offload(Handle(raw), attempt, manifest=w.manifest, extra_metadata={})
    except Misuse:
        return
    await w.commit(w.append(receipt))
    assert await all_of(await w.tier.read_offloaded(attempt)) == raw


@bug(shows_max_of_the_first)
class MaxOfTheFirst(Table):
    """The database keeps offsets in 63 bits, and only the first offset of a ledger is checked.

    Breaks "a backend that keeps only 63 raises `Misuse` for a ledger that goes further": it is stored, and
    never read again.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if handle.first_offset >= 2**63:
            raise Misuse(f"{self.url} keeps offsets of 63 bits")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    def fetched(self, stream: str, entry: Entry) -> Row:
        entry.next_offset.to_bytes(8, "big", signed=True)
        return super().fetched(stream, entry)


async def shows_metadata_of_two_kilobytes(open_: Open) -> None:
    w = await writer(open_())
    await w.upload(chunks(), metadata={"note": "x" * 3000})


@bug(shows_metadata_of_two_kilobytes)
class MetadataOfTwoKilobytes(Ledgers):
    """Metadata become headers, and the service accepts 2 KB of them.

    Breaks "any text": a longer one stops the ledger for good.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if sum(len(name) + len(value) for name, value in extra_metadata.items()) > 2048:
            raise Misuse("at most 2 KB of metadata")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
