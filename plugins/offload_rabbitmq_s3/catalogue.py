"""The plugin's bucket as a tier that can only be read: `offload ls`, `inspect`, `read`, `verify`, and Spark.

A stream has the name of its folder on a broker. A fragment of a stream is one of ours, and a ledger of its
own. Groups are read when a reader reaches them, and a few of them are kept.

**Entries do not count messages** (`StreamView.counts_messages`): they do not show which records are tracking
records. Times in entries are those of the first and the last chunk, so views are not measured: lookups by
time take chunks to be in the order of their times.

Invariants: nothing is changed; a group agrees with the entry that names it; from the first offset to the end,
a walk finds fragments without a hole, whose sizes are those that the root states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final
from uuid import UUID, uuid5

import numpy as np

from offload.contracts.catalogue import Catalogue, EntryView
from offload.contracts.ledger import ReadHandle
from offload.contracts.opening import OpeningContext
from offload.contracts.store import ObjectStore
from offload.ground.errors import Absent, Corrupt, Misuse, NotFound, NotOffloaded
from offload.ground.urls import folder_named
from offload.model.entry import Entries, Entry, EntryKind
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree
from offload.store.read_only import ReadOnlyStore
from offload_rabbitmq_s3.fragment import RabbitmqFragment
from offload_rabbitmq_s3.keys import STREAMS, RabbitmqKey, is_stream_id, stream_prefix
from offload_rabbitmq_s3.objects import RabbitmqManifest, rows_of_stored, uid_of
from offload_rabbitmq_s3.roots import (
    ChosenRoot,
    chosen_root,
    given_roots,
    listed,
    load_manifest,
    roots_of,
)

__all__ = ["PREFIX", "RabbitmqS3Catalogue", "committed_in", "fragment_keys", "key_of"]

PREFIX: Final = "rabbitmq+"

INCARNATIONS: Final = UUID("0d7a7d0e-6c0b-4b0f-9a53-5d5b6c9f3a1e")
"""The space of names of incarnations. They are made of a stream's name, which is never used twice."""

VERSIONS_OF_EPOCH: Final = 10**20
"""The versions of one epoch: more than the sum of two offsets can be."""

GROUPS_KEPT: Final = 64
"""So many groups are in memory: some 100 KiB for each, at the plugin's 1,024 entries."""


def open_catalogue(
    url: str, *, options: Mapping[str, Any] | None = None, context: OpeningContext
) -> RabbitmqS3Catalogue:
    """Return the tier at a URL. Sends no request. Raises `Misuse` for a wrong option or URL."""
    store = context.open_store(url[len(PREFIX) :], context.store_options)
    return RabbitmqS3Catalogue(store, url, roots=given_roots(options or {}))


class RabbitmqS3Catalogue(Catalogue):
    """The streams of a bucket. `store` is only read. `roots` are read instead of the newest ones."""

    def __init__(
        self, store: ObjectStore, url: str, *, roots: Mapping[str, RabbitmqKey] | None = None
    ) -> None:
        self._url, self._given = url, roots or {}
        self._store = ReadOnlyStore(store, lambda: Misuse(f"{url} is the broker's, and is never changed"))
        self._groups: OrderedDict[RabbitmqKey, Entries] = OrderedDict()
        self._notes: dict[str, str] = {}
        self._unseen = dict(self._given)  # given roots that were not looked for yet

    @property
    def url(self) -> str:
        """The URL, with `rabbitmq+`."""
        return self._url

    @property
    def store(self) -> ObjectStore:
        """The bucket. Requests that would change it are refused."""
        return self._store

    @property
    def notes(self) -> Sequence[str]:
        """A note for each stream that has several roots, and that was looked at."""
        return [*self._notes.values()]

    @property
    def unproved(self) -> Sequence[str]:
        """See `Catalogue.unproved`."""
        return ["the bucket has checksums of messages alone, so epochs, filters and trailers may be damaged"]

    async def open(self) -> None:
        """Raise as `streams` does."""
        await self.streams()

    async def streams(self) -> list[str]:
        """Return the streams, in order of names.

        Raises `NotOffloaded` if there is none, or if a given root or its stream is absent.
        """
        folders = [name async for name in self._store.level(STREAMS) if name.endswith("/")]
        names = [name.removeprefix(STREAMS).removesuffix("/") for name in folders]
        if not (found := sorted(filter(is_stream_id, names))):
            folder = folder_named(self._store.url)
            why = "" if folder is None or folder.exists() else f": there is no folder {folder}"
            raise NotOffloaded(f"{self._url} has no stream below {STREAMS}{why}")
        for stream, root in [*self._unseen.items()]:
            if stream not in found:
                raise NotOffloaded(
                    f"option 'root': {self._url} has no stream {stream!r}; it has {listed(found)}"
                )
            await roots_of(self._store, stream, root)
            self._unseen.pop(stream, None)
        return found

    async def view(self, stream: str) -> RabbitmqS3View:
        """Return the stream as its newest root has it, or the one that the option `root` names."""
        root = await self.root(stream)
        self._notes.pop(stream, None)
        if root.note is not None:
            self._notes[stream] = root.note
        return RabbitmqS3View(EntryTree(committed_in(root), self.load_group), self._store, root.manifest)

    async def root(self, stream: str) -> ChosenRoot:
        """Return the root that `view` reads. Raises as `chosen_root`, and as `streams` if roots are given."""
        if self._unseen:
            await self.streams()
        return await chosen_root(self._store, stream, self._given.get(stream))

    def view_of(self, committed: CommittedStream) -> RabbitmqS3View:
        """Return a view of these entries. See `Catalogue.view_of`."""
        return RabbitmqS3View(EntryTree(committed, self.load_group), self._store)

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()

    async def load_group(self, committed: CommittedStream, row: Entries) -> Entries:
        """Return the entries of a group. Groups never change, so each is read once, by this process."""
        key = key_of(committed.stream, row)
        if (kept := self._groups.get(key)) is None:
            kept = await self._read(key, row)
            while len(self._groups) >= GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups[key] = kept
        self._groups.move_to_end(key)
        return kept

    async def _read(self, key: RabbitmqKey, row: Entries) -> Entries:
        try:
            group = await load_manifest(self._store, key)
        except NotFound as gone:
            raise Absent(str(key), key.stream) from gone
        except Corrupt as damage:
            raise damage.within(damage.where, stream=key.stream) from damage
        entries, last = group.entries, int(row["first_offset"][0]) + int(row["records"][0]) - 1
        newest = int(entries["first_offset"][-1])
        claims = (
            ("first offset", int(row["first_offset"][0]), group.first_offset),
            ("first timestamp", int(row["first_timestamp_ms"][0]), group.first_timestamp_ms),
            ("last timestamp", int(row["last_timestamp_ms"][0]), int(entries["last_timestamp_ms"][-1])),
            ("offset of the last entry", min(newest, last), newest),
        )
        for what, expected, found in claims:
            if expected != found:
                raise Corrupt(what, str(key), expected=expected, found=found, stream=key.stream)
        return rows_of_stored(entries, last + 1)


class RabbitmqS3View(EntryView):
    """One stream, as one root has it."""

    __slots__ = ("_last", "_root", "_store")

    def __init__(self, tree: EntryTree, store: ObjectStore, root: RabbitmqManifest | None = None) -> None:
        """`root` has the times that a walk compares. A view that another process planned has none."""
        super().__init__(tree)
        self._store, self._root = store, root
        self._last: tuple[Entry, ReadHandle] | None = None

    @property
    def where(self) -> str:
        """The prefix of the stream: which of its roots was read is in the notes of the catalogue."""
        return f"{STREAMS}{self.committed.stream}"

    @property
    def is_measured(self) -> bool:
        """False: times are those of the first and the last chunk."""
        return False

    def name_of(self, row: Entries) -> str:
        """Return the key of a fragment or of a group."""
        return str(key_of(self.committed.stream, row))

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """See `StreamView.walk`. From the first offset on, it checks what only the whole tree can show."""
        committed, size_bytes, reached = self.committed, 0, None
        async with aclosing(self.tree.walk(offset)) as runs:
            async for run in runs:
                if offset <= committed.first_offset and reached is None:
                    self._check("first offset", committed.first_offset, int(run["first_offset"][0]))
                    if (root := self._root) is not None:
                        stated = root.first_timestamp_ms, root.first_last_timestamp_ms
                        times = (int(run[f"{edge}_timestamp_ms"][0]) for edge in ("first", "last"))
                        self._check("times of the first fragment", stated, tuple(times))
                size_bytes += sum(run["data_size_bytes"].tolist())
                reached = int(run["first_offset"][-1]) + int(run["records"][-1])
                yield run
        if offset <= committed.first_offset:
            self._check("total size", committed.data_size_bytes, size_bytes)
            self._check(
                "next offset", committed.next_offset, committed.first_offset if reached is None else reached
            )

    async def names(self, where: str) -> bool:
        """See `StreamView.names`. Loads at most one group of each level."""
        key, committed = RabbitmqKey.parse(where), self.committed
        if key is None or key.kind is None or key.stream != committed.stream:
            return True
        entries, offset = committed.entries, max(key.number, committed.first_offset)
        while True:
            ends = entries["first_offset"] + entries["records"]
            one = entries[ends > np.uint64(offset)][:1]
            if not len(one) or one["kind"][0] <= key.kind:
                return bool(len(one)) and self.name_of(one) == where
            entries = await self.tree.load(committed, one)

    async def open(self, entry: Entry) -> ReadHandle:
        """Return a handle. Its table is read when it is first asked for. The last handle is kept."""
        if self._last is None or self._last[0] != entry:
            key = RabbitmqKey(
                self.committed.stream, EntryKind.FRAGMENT, entry.first_offset, uid_of(entry.attempt)
            )
            self._last = entry, RabbitmqFragment(self._store, str(key), self.committed.stream, entry)
        return self._last[1]

    def _check(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise Corrupt(what, self.where, expected=expected, found=found, stream=self.committed.stream)


def committed_in(root: ChosenRoot) -> CommittedStream:
    """Return the state of a stream that its root has."""
    manifest, stream = root.manifest, root.key.stream
    rows = rows_of_stored(manifest.entries, manifest.next_offset)
    # A root without entries keeps the next offset, and nothing is before it.
    first_offset = manifest.first_offset if len(rows) else manifest.next_offset
    return CommittedStream(
        stream=stream,
        version=root.key.number * VERSIONS_OF_EPOCH + manifest.next_offset + first_offset,
        incarnation=uuid5(INCARNATIONS, stream),
        first_offset=first_offset,
        next_offset=manifest.next_offset,
        messages=manifest.next_offset - first_offset,
        data_size_bytes=manifest.total_size_bytes,
        stored_size_bytes=manifest.total_size_bytes,
        fragments=len(rows),
        ledgers=len(rows),
        counts_messages=False,
        entries=rows,
    )


def key_of(stream: str, row: Entries) -> RabbitmqKey:
    """Return the key of the object that one entry names."""
    uid = int.from_bytes(bytes(row["attempt"][0])[12:], "big")
    return RabbitmqKey(stream, EntryKind(int(row["kind"][0])), int(row["first_offset"][0]), uid)


def fragment_keys(stream: str, rows: Entries) -> list[str]:
    """Return the keys of the fragments of a run of entries, many times faster than `key_of` one by one."""
    folder = stream_prefix(stream) + "data"
    uids = np.frombuffer(rows["attempt"].tobytes(), ">u4")[3::4].tolist()
    starts = rows["first_offset"].tolist()
    return [f"{folder}/{start:020d}.{uid:08x}.fragment" for start, uid in zip(starts, uids, strict=True)]
