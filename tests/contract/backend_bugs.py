"""Planted bugs that need a backend of this project as their sound class, which the suite may not import."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import example_path  # noqa: F401 - the examples below
from offload_conformance.bugs import bug
from offload_conformance.bugs.registry import OpenClient
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.ledgers import all_of, copied, ledger, raises
from offload_conformance.bugs.sound.writers import Handle, chunks, removed, writer
from offload_posix import PosixStore
from offload_posix.failures import explained
from offload_sqlite.store import SqliteStore
from offload_sqlite_ledger import offloader as example
from offload_sqlite_ledger.offloader import SqliteLedgers
from offload_sqlite_ledger.reading import DATA, SqliteHandle, SqliteView

from offload.commit.job import Announce
from offload.commit.writer import Claim
from offload.contracts.attempts import prepared_kind
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, Span, Suffix, Upload, check_key
from offload.formats.checksums import crc32c
from offload.formats.chunk import check_stored
from offload.formats.chunk_check import check_source
from offload.ground.errors import Absent, AlreadyExists, Corrupt, Misuse, NotOffloaded, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, row_from, windows_of
from offload.model.entry import Entries, Entry
from offload.model.excerpt import of_fragments
from offload.model.manifest import AttemptKind, CommittedStream, Manifest
from offload.model.tree import EntryTree, Tree
from offload.store.multipart import whole


class Folder(PosixStore):
    """A sound store in the folder that the URL names."""

    KIND: ClassVar = "store"

    def __init__(self, url: str) -> None:
        super().__init__(root=url.partition("://")[2])

    @classmethod
    def keys_at(cls, url: str) -> set[str]:
        """Return the names of the files at the URL."""
        root = Path(url.partition("://")[2])
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


class Sqlite(SqliteStore):
    """A sound store in the file that the URL names."""

    KIND: ClassVar = "store"

    def __init__(self, url: str) -> None:
        super().__init__(url.partition("://")[2])

    @classmethod
    def keys_at(cls, url: str) -> None:
        """Return None: rows are no objects with keys."""


class Ledgers(SqliteLedgers):
    """A sound offloader in the file that the URL names."""

    KIND: ClassVar = "offloader"

    def __init__(self, url: str) -> None:
        super().__init__(url.partition("://")[2])

    @classmethod
    def keys_at(cls, url: str) -> None:
        """Return None: rows are no objects with keys."""


@bug("store/create_is_atomic_between_processes")
class KnowsOnlyItsOwnProcess(Folder):
    """Decides creates by an index that its process read when it began, under a lock of that process.

    A server with several workers, or a client with an index of keys in memory: a lock separates its threads,
    but not other processes.
    """

    lock: ClassVar = threading.Lock()
    known: ClassVar[dict[str, set[str]]] = {}

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        if self.url not in self.known:
            there = {row.key async for row in self.list("")}
            self.known.setdefault(self.url, there)
        await asyncio.sleep(0)
        with self.lock:
            if key in self.known[self.url]:
                raise AlreadyExists(key)
            self.known[self.url].add(key)
        await self.put(key, Body.of(data))


class Viewing(Ledgers):
    """An offloader whose views are of class `VIEW`, and its handles of class `HANDLE`."""

    VIEW = SqliteView
    HANDLE = SqliteHandle

    def view_of(self, committed: CommittedStream) -> SqliteView:
        outer = self

        class View(self.VIEW):
            async def open(self, entry: Entry) -> ReadHandle:
                handle = await super().open(entry)
                handle.__class__ = outer.HANDLE
                return handle

        view = View(EntryTree(committed, self.load_group), self._database)
        view.tier = self
        return view


class Clamped(SqliteView):
    async def find(self, offset: int) -> Entry | None:
        if not self.committed.fragments:
            return None
        return await super().find(
            max(self.committed.first_offset, min(offset, self.committed.next_offset - 1))
        )


async def shows_finds_the_nearest(open_: OpenClient) -> None:
    w = await writer(open_())
    await w.add(chunks(2))
    assert await (await open_().view("s")).find(4) is None


@bug("contract/views_do_not_move", shows_finds_the_nearest)
class FindsTheNearest(Viewing):
    """`find` clamps the offset: beyond the end it is the last fragment, before the beginning the first.

    Breaks "The fragment that holds `offset`, or None if none does."
    """

    VIEW = Clamped


class GoneIsDamage(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        try:
            return await super().open(entry)
        except Absent as exc:
            raise Corrupt("chunks", exc.where, expected="some", found="none") from exc


async def shows_gone_is_corrupt(open_: OpenClient) -> None:
    view, entry, _ = await removed(open_())
    await raises(Absent, view.open(entry))


@bug("contract/deletion_takes_what_was_trimmed", shows_gone_is_corrupt)
class GoneIsCorrupt(Viewing):
    """A fragment whose rows were deleted is reported as damage.

    Breaks "Raises `Absent` if the fragment is gone": a reader of an older view, of which fragments were
    trimmed and removed, reports damage instead of opening a new view.
    """

    VIEW = GoneIsDamage


async def shows_cut_view_is_whole(open_: OpenClient) -> None:
    w = await writer(open_())
    await w.add(chunks(2))
    await w.add(chunks(2, 4), 2)
    whole = (await open_().view("s")).committed
    cut = replace(whole, entries=whole.entries[:1], next_offset=4, fragments=1)
    rows = [row async for run in open_().view_of(cut).walk() for row in run]
    assert len(rows) == 1


@bug("contract/views_find_what_is_committed", shows_cut_view_is_whole)
class CutViewIsWhole(Ledgers):
    """`view_of` keeps only the stream's name and version of its argument, and looks the entries up again.

    Breaks "A view of what an earlier view of this tier said, whole or cut to some of its fragments": each of
    several processes reads the whole stream.
    """

    def view_of(self, committed: CommittedStream) -> SqliteView:
        view = super().view_of(committed)
        tier = self

        class Whole(type(view)):
            async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
                newest = await tier._newest(committed.stream)
                same = newest is not None and newest.version == committed.version
                tree = EntryTree(newest if same else committed, tier.load_group)
                async for run in tree.walk(offset):
                    yield run

        return Whole(EntryTree(committed, self.load_group), self._database)


async def shows_streams_unquoted(open_: OpenClient) -> None:
    await writer(open_(), "a+b")
    assert await open_().streams() == ["a+b"]


@bug("contract/streams_are_listed_by_name", shows_streams_unquoted)
class StreamsUnquoted(Ledgers):
    """Names are kept URL-quoted by `quote`, and unquoted by `unquote_plus`: a `+` in a name is a space in
    `streams`.

    Breaks "The streams that were ever begun here": `offload ls` names a stream that does not exist.
    """

    async def streams(self) -> list[str]:
        return sorted(name.replace("+", " ") for name in await super().streams())


async def shows_returns_parent(open_: OpenClient) -> None:
    w = await writer(open_())
    await w.prepare()
    assert (await open_().load_manifest("s")).version == w.manifest.version


@bug("contract/history_is_linear", shows_returns_parent)
class ReturnsParent(Ledgers):
    """`commit_manifest` returns the manifest with the change in it, but the version of its parent.

    Breaks "return the one that holds it": the version was counted up by the UPDATE alone.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        return replace(manifest, version=max(manifest.version - 1, 1))


class Decoding(Ledgers):
    """An offloader that keeps the manifest in separate columns, of which one is missing."""

    def lossy(self, manifest: Manifest) -> Manifest:
        return manifest

    async def _newest(self, stream: str) -> Manifest | None:
        manifest = await super()._newest(stream)
        return manifest and self.lossy(manifest)


async def shows_kind_is_not_kept(open_: OpenClient) -> None:
    w = await writer(open_())
    job, uid = uuid4(), uuid4()
    await w.commit(Announce(job=job, incarnation=w.manifest.incarnation, attempts=[(uid, 1)]))
    assert [each.kind for each in (await open_().load_manifest("s")).running] == [AttemptKind.JOB]


@bug("contract/commits_are_idempotent_for_every_change", shows_kind_is_not_kept)
class KindIsNotKept(Decoding):
    """The table of running attempts has no column for their kind: a job's come back as the writer's.

    Breaks "Commits are atomic", "entire": the next writer settles a job's attempts, and the job cannot
    append.
    """

    def lossy(self, manifest: Manifest) -> Manifest:
        running = tuple(replace(each, kind=AttemptKind.STREAM) for each in manifest.running)
        return replace(manifest, running=running)


async def shows_cut_is_damaged(open_: OpenClient) -> None:
    w = await writer(tier := open_())
    receipts = [await w.add(chunks(1, 2 * n)) for n in range(3)]
    view = await tier.view("s")
    cut = tier.view_of(of_fragments(view.committed, view.committed.entries[1:2]))
    assert await all_of(await cut.open(receipts[1].entries[0])) == chunks(1, 2)


class Counting(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        newest = await self.tier.load_manifest(self.committed.stream)  # type: ignore[attr-defined]
        if (newest.version, newest.fragments) == (self.committed.version, self.committed.fragments):
            return await super().open(entry)
        if newest.version == self.committed.version:
            raise Corrupt("fragments", self.where, expected=newest.fragments, found=self.committed.fragments)
        return await super().open(entry)


@bug("contract/views_find_what_is_committed", shows_cut_is_damaged)
class CutIsDamaged(Viewing):
    """A view opens a fragment only if it has as many as its version has.

    Breaks "whole or cut to some of its fragments": a task of Spark reports damage of a sound stream.
    """

    VIEW = Counting


class FromItsOffset(SqliteView):
    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        if offset and await self.find(offset) is None:
            return
        async with aclosing(super().walk(offset)) as runs:
            async for run in runs:
                yield run


async def shows_walks_from_what_it_holds(open_: OpenClient) -> None:
    w = await writer(tier := open_(), first=5)
    await w.add(chunks(1, 5))
    found: list[Entries] = []
    async with aclosing((await tier.view("s")).walk(2)) as runs:
        found += [run async for run in runs]
    assert len(found) == 1


@bug("contract/numbers_that_nothing_has_find_nothing", shows_walks_from_what_it_holds)
class WalksFromWhatItHolds(Viewing):
    """A walk from an offset that was trimmed has nothing.

    Breaks "from the one that holds `offset` on": a reader behind retention sees an empty stream.
    """

    VIEW = FromItsOffset


class GreatestSinceTheEpoch(SqliteView):
    async def last_timestamp_ms(self) -> int | None:
        times = self.committed.entries["last_timestamp_ms"].tolist()
        return max([-1, *times]) if times else None


async def shows_nothing_before_the_epoch(open_: OpenClient) -> None:
    await copied(open_(), "s", ledger(0, 1, time_ms=-5000))
    assert await (await open_().view("s")).last_timestamp_ms() == -5000


@bug("contract/views_find_what_is_committed", shows_nothing_before_the_epoch)
class NothingBeforeTheEpoch(Viewing):
    """The search for the greatest time begins with -1, "less than any".

    Breaks "The greatest timestamp of any chunk": timestamps have a sign.
    """

    VIEW = GreatestSinceTheEpoch


class Following(SqliteView):
    async def last_timestamp_ms(self) -> int | None:
        newest = await self.tier.load_manifest(self.committed.stream)
        return await EntryTree(newest, self.tier.load_group).last_timestamp_ms()


async def shows_follows_the_times(open_: OpenClient) -> None:
    written = await copied(open_(), "s", ledger(0, 1, time_ms=1000))
    view = await open_().view("s")
    await written.offload([ledger(1, 1, time_ms=9000)])
    assert await view.last_timestamp_ms() == 1000


@bug("contract/views_do_not_move", shows_follows_the_times)
class FollowsTheTimes(Viewing):
    """A view reads the last time from the newest manifest, and everything else from its own.

    Breaks "What a view says never changes": it raises once the stream is deleted.
    """

    VIEW = Following


class GoneByAttempt(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        try:
            return await super().open(entry)
        except Absent as exc:
            raise Absent(f"attempt {entry.attempt}", self.committed.stream) from exc


async def shows_gone_by_another_name(open_: OpenClient) -> None:
    view, entry, _ = await removed(open_())
    gone = await raises(Absent, view.open(entry))
    assert await view.names(gone.where)


@bug("contract/deletion_takes_what_was_trimmed", shows_gone_by_another_name)
class GoneByAnotherName(Viewing):
    """`Absent` has the name of the attempt, and `name_of` that of the fragment.

    Breaks "as `Absent` has it": the caller cannot tell if the data was trimmed or lost.
    """

    VIEW = GoneByAttempt


class NothingFound(SqliteHandle):
    async def read(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        raw, row = b"".join(data for (data,) in found), row_from(self._table, first)
        start, checksums = int(rows["position"][0]), self._checksums[row : row + len(rows)]
        check_stored(raw, rows, checksums, window_position=start, where=self.where)
        return raw


async def shows_gone_handle_is_damaged(open_: OpenClient) -> None:
    _, _, handle = await removed(open_())
    await raises(Absent, all_of(handle))


@bug("contract/deletion_takes_what_was_trimmed", shows_gone_handle_is_damaged)
class GoneHandleIsDamaged(Viewing):
    """A handle that reads no rows still checks them: too few bytes are damage.

    Breaks "If it was trimmed and removed, `open`, or the handle that it returned, raises `Absent`": a
    reader during retention reports damage.
    """

    HANDLE = NothingFound


async def shows_counts_what_is_wanted(open_: OpenClient) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks())
    handle = await w.tier.read_offloaded(receipt.attempt, only=range(2**64))
    assert await all_of(handle) == chunks()


@bug("contract/reads_are_verbatim_when_narrowed", shows_counts_what_is_wanted)
class CountsWhatIsWanted(Ledgers):
    """`len(only)`, which Python refuses for a range of 2^63 offsets or more.

    Breaks "narrows it to the fragments that hold some of these offsets": they go up to 2^64.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        if only is not None and len(only) == 0:
            raise NotOffloaded(f"nothing is wanted of attempt {attempt.uid}")
        return await super().read_offloaded(attempt, manifest=manifest, only=only)


async def shows_manifest_on_self(open_: OpenClient) -> None:
    tier = open_()
    one, two = await writer(tier, "s"), await writer(tier, "t")
    await asyncio.gather(one.prepare(), two.prepare())
    assert [len((await tier.load_manifest(each)).running) for each in "st"] == [1, 1]


@bug("contract/history_is_linear", shows_manifest_on_self)
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


async def shows_first_claim_replaces(open_: OpenClient) -> None:
    tiers = [open_() for _ in range(3)]
    for tier in tiers:
        await tier.open(create=True)
    for number in range(30):  # threads race, so one round may miss it
        writers = await asyncio.gather(*(writer(tier, f"s{number}") for tier in tiers))
        assert len({each.manifest.version for each in writers}) == 3


@bug("contract/claims_fence_at_once", shows_first_claim_replaces)
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


async def shows_one_read_for_all(open_: OpenClient) -> None:
    w = await writer(open_())
    attempt, raw = await w.prepare(), chunks(4)
    handle = Moved(raw, 1000, first=2)
    receipt = await w.tier.offload(handle, attempt, manifest=w.manifest, extra_metadata={})
    await w.commit(w.append(receipt))
    assert await all_of(await w.tier.read_offloaded(attempt)) == raw


@bug("contract/receipts_tell_what_was_copied", shows_one_read_for_all)
class OneReadForAll(InWindows):
    """All of a ledger is read in one call, as if its chunks were always adjacent.

    Breaks "`position` is the handle's own and means nothing else": a handle may join several objects.
    """

    def windows(self, table: ChunkTable) -> Sequence[ChunkTable]:
        return [table]


async def shows_position_in_the_window(open_: OpenClient) -> None:
    w = await writer(open_())
    attempt, handle = await w.prepare(), Moved(chunks(4), 4096)
    at = int(handle._table["position"][2])
    handle._data = handle._data[:at] + bytes([handle._data[at] ^ 1]) + handle._data[at + 1 :]
    offload = w.tier.offload(handle, attempt, manifest=w.manifest, extra_metadata={})
    damage = await raises(Corrupt, offload)
    assert damage.position >= at + 4096


@bug("contract/offloads_are_checked", shows_position_in_the_window)
class PositionInTheWindow(InWindows):
    """Damage is reported at a byte of the window that was read, not of the file.

    Breaks "`Corrupt` names it and its file": an operator who looks at that byte finds no damage.
    """

    def checks(self, raw: bytes, rows: ChunkTable, where: str) -> list[int]:
        rows = rows.copy()
        rows["position"] -= rows["position"][0]
        return super().checks(raw, rows, where)


async def shows_jobs_are_copies(open_: OpenClient) -> None:
    w = await writer(open_())
    uid, incarnation = uuid4(), w.manifest.incarnation
    await w.commit(Announce(job=uuid4(), incarnation=incarnation, attempts=[(uid, 1)]))
    attempt = Attempt(stream="s", ledger_id=1, uid=uid)
    receipt = await w.tier.offload(Handle(chunks()), attempt, manifest=w.manifest, extra_metadata={})
    assert [each.copied for each in receipt.entries] == [0]


@bug("contract/jobs_outlive_claims", shows_jobs_are_copies)
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


async def shows_metadata_of_two_kilobytes(open_: OpenClient) -> None:
    w = await writer(open_())
    await w.upload(chunks(), metadata={"note": "x" * 3000})


@bug("contract/extra_metadata_is_any_text", shows_metadata_of_two_kilobytes)
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


@bug("store/bytes_that_were_read_never_change", proofs.keeps(2, 5))
class TextLooksLikeText(Sqlite):
    """Bytes that are valid UTF-8 are stored as text, for which SQLite counts characters and stops at a zero.

    Breaks "Store an object whole": `length` and `substr` of text are not those of bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await whole(body)
        try:
            stored: bytes | str = data.decode()
        except UnicodeDecodeError:
            stored = data
        row = (check_key(key).encode(), stored)
        await self.write(lambda db: db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", row))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data: bytes | str = await super().get(key, span)
        return data.encode() if isinstance(data, str) else data


class _Plain(Folder):
    """The paths of objects, for classes that use `open` and `os` in the ordinary way."""

    def path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def made(self, key: str) -> str:
        path = self.path(key)
        with explained("making the folder of", path):
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            except FileExistsError as exc:
                raise Misuse(f"{key!r}: an object has the name of its folder") from exc
        return path

    def write(self, key: str, data: bytes, staging: str) -> None:
        """Write a file of this name, and rename it to that of the key."""
        path = self.made(key)
        with explained("writing", path):
            with open(staging, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staging, path)


async def _beside_its_temporary_name(open_: OpenClient) -> None:
    store = open_()
    await store.put("x.tmp", Body.of(b"mine"))
    await store.put("x", Body.of(b"x"))
    assert await store.get("x.tmp") == b"mine"
    assert await proofs.names(store) == ["x", "x.tmp"]


@bug("store/keys_are_taken_as_they_are", _beside_its_temporary_name)
class TemporaryNamesAreKeys(_Plain):
    """A put writes `KEY.tmp` beside the key and renames it: a key `KEY.tmp` is overwritten and gone.

    Breaks "Keys are whole names", and "Listing": the put of one key destroys another.
    """

    async def put(self, key: str, body: Body) -> None:
        await asyncio.to_thread(self.write, key, await whole(body), self.path(key) + ".tmp")


async def _nothing_before_complete(open_: OpenClient) -> None:
    store, other = open_(), open_()
    upload = await store.start_upload("folder/k")
    await upload.put_part(1, b"x" * 10)
    assert await proofs.names(other) == []
    assert await proofs.level(other) == []
    await upload.complete()
    assert await proofs.names(other) == ["folder/k"]


@bug("store/uploads_are_whole", _nothing_before_complete)
class PartsAreListedAsObjects(_Plain):
    """Parts of an upload wait as files `KEY.part-1` beside the key, and listings show them.

    Breaks "Nothing is visible under its key until `complete` returns", and what listings are of: objects.
    """

    async def start_upload(self, key: str) -> Upload:
        return _PartFiles(self, check_key(key))


class _PartFiles(Upload):
    def __init__(self, store: _Plain, key: str) -> None:
        self.store, self.key = store, key
        self.parts: dict[int, str] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse("numbers begin at 1")
        self.parts[number] = f"{self.key}.part-{number}"
        await self.store.put(self.parts[number], Body.of(data))

    async def complete(self) -> None:
        if not self.parts or sorted(self.parts) != [*range(1, len(self.parts) + 1)]:
            raise Misuse("a part is missing")
        data = [await self.store.get(name) for _, name in sorted(self.parts.items())]
        if {*map(len, data[:-1])} - {len(data[0])}:
            raise Misuse("parts differ in size")
        await self.store.put(self.key, Body.of(b"".join(data)))
        await self.abort()

    async def abort(self) -> None:
        await self.store.delete(list(self.parts.values()))


@bug("store/uploads_are_whole", proofs.uploads([300_000] * 6, at_once=True))
class PartsSeekInOneFile(_Plain):
    """Concurrent parts share one file: each seeks, yields to the loop, and writes where another has sought.

    Breaks "parts may be put in any order and at the same time".
    """

    async def start_upload(self, key: str) -> Upload:
        return _Seeking(self, check_key(key))


class _Seeking(Upload):
    def __init__(self, store: _Plain, key: str) -> None:
        self.store, self.key = store, key
        self.sizes: dict[int, int] = {}
        self.file: Any = None
        self.name = ""

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse("numbers begin at 1")
        if self.file is None:
            self.name = self.store.made("_") + os.urandom(8).hex()
            self.name = f"{self.store._root}/.part-{os.path.basename(self.name)}"
            self.file = open(self.name, "w+b")  # noqa: ASYNC230, SIM115 - as authors write
        self.sizes[number] = len(data)
        self.file.seek((number - 1) * max(self.sizes.values()))
        await asyncio.sleep(0)
        self.file.write(data)

    async def complete(self) -> None:
        if not self.sizes or sorted(self.sizes) != [*range(1, len(self.sizes) + 1)]:
            raise Misuse("a part is missing")
        if {self.sizes[number] for number in sorted(self.sizes)[:-1]} - {self.sizes[1]}:
            raise Misuse("parts differ in size")
        self.file.close()
        path = self.store.made(self.key)
        with explained("writing", path):
            os.replace(self.name, path)

    async def abort(self) -> None:
        if self.file is not None:
            self.file.close()
            with suppress(FileNotFoundError):
                os.unlink(self.name)


async def shows_delete_below_an_object(open_: OpenClient) -> None:
    store = open_()
    await store.put("a", Body.of(b"x"))
    await store.delete(["a/b"])


@bug("store/deletion_is_idempotent", shows_delete_below_an_object)
class DeleteBelowAnObject(Folder):
    """Deleting `a/b` beside an object `a` is refused, as putting it would be.

    Breaks "Deleting what is absent succeeds".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if os.path.isfile(os.path.dirname(f"{self._root}/{check_key(key)}")):  # noqa: ASYNC240 - as authors write
                raise Misuse(f"deleting {key!r}: not a directory")
        await super().delete(keys)


async def shows_descriptors_stay(open_: OpenClient) -> None:
    store, before = open_(), len(os.listdir("/proc/self/fd"))
    for key in ("a", "b", "c", "d"):
        await store.put(key, Body.of(b"x"))
        await store.get(key)
    await store.aclose()
    assert len(os.listdir("/proc/self/fd")) <= before


@bug("store/closing_is_idempotent", shows_descriptors_stay)
class DescriptorsStay(Folder):
    """Files that were read stay open for the next read, even after the client is closed.

    Breaks "Release connections and threads": the process runs out of descriptors.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._readers: dict[str, int] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if key not in self._readers:
            self._readers[key] = os.open(f"{self._root}/{key}", os.O_RDONLY)
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in {*keys} & {*self._readers}:
            os.close(self._readers.pop(key))


class Unchecked(SqliteHandle):
    async def unchecked(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        if not found:
            raise Absent(self.where, self._stream)
        return b"".join(data for (data,) in found)


class ChecksNoHints(Unchecked):
    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        return await self.unchecked(rows)


async def damaged(tier: Ledgers) -> ReadHandle:
    """Return a handle on three chunks, of which the first is damaged."""
    w = await writer(tier)
    receipt = await w.add(chunks())
    with sqlite3.connect(tier._database.path) as db:
        [(raw,)] = db.execute("SELECT data FROM chunks WHERE offset = 0").fetchall()
        db.execute("UPDATE chunks SET data = ? WHERE offset = 0", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    return await (await tier.view("s")).open(receipt.entries[0])


async def shows_hints_are_not_checked(open_: OpenClient) -> None:
    handle = await damaged(open_())
    table = await handle.table()
    await raises(Corrupt, handle.read_on(table[:1], table[1:]))


@bug("contract/damage_is_an_error", shows_hints_are_not_checked)
class HintsAreNotChecked(Viewing):
    """Only `read` compares checksums, and a reader that goes on calls `read_on`.

    Breaks "Return what `read` returns": damage reaches whoever reads a stream to its end.
    """

    HANDLE = ChecksNoHints
