"""A survey of everything under a stream's prefix, as far as a rebuild needs it.

It reads the tail of each fragment, the names of roots, groups and index objects, and whole sightings, key
objects and shared notes.

Invariant: `number` is at least as high as every root number that any object mentions. So a root above it is
the newest, and it makes the notes of earlier sweeps void (`upkeep.sweep.notes`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from offload.commit.log import RootLog
from offload.commit.rebuild import NUMBER_MAX
from offload.contracts.store import Listed, ObjectStore
from offload.formats.checksums import crc32c
from offload.formats.keys import NoteName, StreamKeys
from offload.formats.sighting import SIZE_BYTES_MAX, Sighting
from offload.ground.errors import Conflict, Corrupt, NotFound, UnsupportedFormat
from offload.ground.tasks import run_each
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest
from offload.native.anchors import read_anchor
from offload.native.fragment_check import load_own_tail
from offload.native.fragment_writer import entry_of
from offload.native.key_objects import decode_key_object
from offload.native.lost_roots import loss_shown_by_base, loss_shown_by_group
from offload.native.shared_note import read_note

__all__ = ["OnTails", "Tail", "read_tails"]


TAILS_AT_ONCE: Final = 16

Tail = FoundFragment | Corrupt
"""A fragment as its tail describes it, or the damage of the tail."""

OnTails = Callable[[int], None]
"""Called with the number of tails that were read since the last call."""

ReadTails = Callable[[ObjectStore, StreamKeys, Sequence[Listed], OnTails], Awaitable[Mapping[str, Tail]]]
"""Reads the tails of all these fragments, and returns them by key. `read_tails` is one."""


async def read_tails(
    store: ObjectStore, keys: StreamKeys, rows: Sequence[Listed], tell: OnTails
) -> Mapping[str, Tail]:
    """Read the tails of these fragments, several at once.

    Raises `Conflict` if one is deleted meanwhile, and `UnsupportedFormat` if a newer program wrote one.
    """
    found: dict[str, Tail] = {}

    async def read(row: Listed) -> None:
        found[row.key] = await _tail(store, keys, row)
        tell(1)

    await run_each(read, rows, at_once=TAILS_AT_ONCE)
    return found


async def _tail(store: ObjectStore, keys: StreamKeys, row: Listed) -> Tail:
    # `UnsupportedFormat` is raised: a fragment of a newer program is no damage, and a manifest without it
    # would hide sound data.
    try:
        tail, raw = await load_own_tail(store, row.key, size_bytes=row.size_bytes)
    except NotFound as exc:
        raise _vanished(row.key) from exc
    except Corrupt as damage:
        return damage.within(row.key, stream=keys.stream)
    trailer = tail.trailer
    # The fence goes above every number that an object mentions. At the end of the range no commit could
    # follow it, so a number that no writer reaches is damage.
    for what, number in (("epoch", trailer.epoch), ("base version", trailer.base_version)):
        if number >= NUMBER_MAX:
            return _impossible(what, row.key, number, keys)
    return FoundFragment(
        entry=entry_of(trailer, crc32c(raw, trailer.data_checksum)),  # of header, chunks, and the tail
        incarnation=trailer.incarnation,
        epoch=trailer.epoch,
        base_version=trailer.base_version,
        source_epoch=tail.source_epoch,
        stream_key=tail.wrapped_key[0] if trailer.encrypted else None,
    )


@dataclass(slots=True, kw_only=True)
class Survey:
    """The objects of one stream, as the looks so far have found them."""

    store: ObjectStore
    keys: StreamKeys
    read_tails: ReadTails
    progress: Callable[[int, int], None]
    found: dict[str, FoundFragment] = field(default_factory=dict)
    damages: dict[str, Corrupt] = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    """The numbers of all roots that were seen."""
    number: int = 0
    """The highest root number that any object mentions."""
    newest_group: tuple[int, str] = (0, "")
    """The highest root number that a group was made for, and the key of that group."""

    newest_indexes: dict[UUID, tuple[int, str]] = field(default_factory=dict)
    """The highest root number on which an index object was made, and its key, for each life of the stream."""

    @property
    def epoch(self) -> int:
        """The highest epoch that any fragment mentions."""
        return max((each.epoch for each in self.found.values()), default=0)

    def proves_lost_roots(self, log: RootLog, newest: Manifest) -> bool:
        """Return whether an object proves that a root of this incarnation newer than `newest` existed.

        A group's name does not mention its incarnation, so any group counts.
        """
        bases = [
            (each.base_version, key)
            for key, each in self.found.items()
            if each.incarnation == newest.incarnation
        ]
        bases.append(self.newest_indexes.get(newest.incarnation, (0, "")))
        return loss_shown_by_group(log, self.newest_group[1], newest) is not None or any(
            loss_shown_by_base(log, key, version, newest) is not None for version, key in bases
        )

    async def look(self) -> None:
        """List all objects, and read those that were not read before: objects do not change.

        Raises `Conflict` if a fragment that was found before is gone, and `Corrupt` if an object mentions a
        root number that no writer reaches.
        """
        # Roots first, data last: a fragment is stored before the root that names it. So each root that is
        # listed has its fragments in the listing below.
        async for listed in self.store.list(self.keys.roots):
            root = self.keys.parse_root(listed.key)
            if root is not None:
                self._mentions(root, listed.key)
                self.roots.add(root)
        async for listed in self.store.list(self.keys.groups):
            group = self.keys.parse_group(listed.key)
            if group is not None:
                self._mentions(group[1], listed.key)
                self.newest_group = max(self.newest_group, (group[1], listed.key))
        async for listed in self.store.list(self.keys.indexes):
            if (index := self.keys.parse_index(listed.key)) is not None:
                self._mentions(index.version, listed.key)
                self.newest_indexes[index.incarnation] = max(
                    self.newest_indexes.get(index.incarnation, (0, "")), (index.version, listed.key)
                )
        async for listed in self.store.list(self.keys.sightings):
            if self.keys.parse_sighting(listed.key):
                self._mentions(await self._version_of(listed), listed.key)
        async for listed in self.store.list(self.keys.stream_keys):
            if self.keys.parse_key_object(listed.key):
                self._mentions(await self._base_of(listed.key), listed.key)
        async for listed in self.store.list(self.keys.notes):
            if (note := self.keys.parse_note(listed.key)) is not None:
                self._mentions(await self._base_of_note(note), listed.key)
        rows = [row async for row in self.store.list(self.keys.data) if self.keys.parse_fragment(row.key)]
        gone = self.found.keys() - {row.key for row in rows}
        if gone:  # a sweep is alive, against the operator's word: what is chosen next may go as well
            raise _vanished(min(gone))
        fresh = [row for row in rows if row.key not in self.found and row.key not in self.damages]
        read = len(self.found) + len(self.damages)

        def tell(more: int) -> None:
            nonlocal read
            read += more
            self.progress(read, len(rows))

        # Only new ones: a second look at millions of fragments reads those of the last minutes.
        tails = await self.read_tails(self.store, self.keys, fresh, tell)
        for row in fresh:
            self._keep(row.key, tails[row.key])

    async def _version_of(self, listed: Listed) -> int:
        """Return the root number that a sighting mentions.

        Returns 0 if the sighting is damaged or gone: no sweep would believe it.
        """
        if listed.size_bytes > SIZE_BYTES_MAX:
            return 0
        try:
            raw = bytes(await self.store.get(listed.key))
            return Sighting.decode(raw, stream=self.keys.stream, where=listed.key).version
        except (NotFound, Corrupt):
            return 0

    async def _base_of(self, key: str) -> int:
        """Return the root number that a key object mentions. Returns 0 if no sweep would believe it."""
        try:
            decode = partial(decode_key_object, keys=self.keys, where=key)
            return (await read_anchor(self.store, key, decode)).base_version
        except (NotFound, Corrupt, UnsupportedFormat):
            return 0

    async def _base_of_note(self, name: NoteName) -> int:
        """Return the root number that a shared note mentions. Returns 0 if no sweep would believe it."""
        try:
            return (await read_note(self.store, self.keys.stream, name)).base_version
        except (NotFound, Corrupt, UnsupportedFormat):
            return 0

    def _keep(self, key: str, tail: Tail) -> None:
        if isinstance(tail, FoundFragment):
            self._mentions(tail.base_version, key)
            self.found[key] = tail
        else:
            self.damages[key] = tail

    def _mentions(self, number: int, key: str) -> None:
        if number >= NUMBER_MAX:
            raise _impossible("root number", key, number, self.keys)
        self.number = max(self.number, number)


def _impossible(what: str, key: str, number: int, keys: StreamKeys) -> Corrupt:
    return Corrupt(what, key, expected="below 2**63", found=number, stream=keys.stream)


def _vanished(key: str) -> Conflict:
    return Conflict(f"{key} was deleted meanwhile: stop every sweep of the stream, and run again")
