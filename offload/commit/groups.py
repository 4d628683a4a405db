"""Fetching groups: each is checked against the entry that names it, and cached.

Invariants: a group that leaves this module is the one that the entry names, bit for bit; the memory that
groups take is bounded by `size_bytes_max`, plus one group for each request under way; no group is requested
twice at the same time. Groups never change, so a cached one is never stale.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from offload.contracts.store import ObjectStore
from offload.formats.checksums import crc32c
from offload.formats.group import Group
from offload.formats.keys import StreamKeys
from offload.ground.errors import Absent, Corrupt, NotFound
from offload.model.entry import Entries
from offload.model.manifest import CommittedStream
from offload.store.checked import checked

_Name = tuple[str, str, UUID, bytes]
"""The URL of a group's store, and what the group was checked against: stream, incarnation, and its entry."""

CACHE_SIZE_BYTES_MAX: Final = 16 * 2**20
"""About 170 groups of 1,024 entries: enough for lookups at both ends of a petabyte."""


@dataclass(slots=True)
class GroupCache:
    """A cache of the groups that were used last, of any number of streams and tiers."""

    size_bytes_max: int = CACHE_SIZE_BYTES_MAX
    _groups: OrderedDict[_Name, Group] = field(default_factory=OrderedDict)
    _size_bytes: int = 0
    _turns: WeakValueDictionary[_Name, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def load(self, store: ObjectStore, committed: CommittedStream, entry: Entries) -> Entries:
        """Return the entries of the group that `entry`, one row, names.

        Raises `Absent` if the object is gone, `Corrupt` if it is not what the entry says.
        """
        return (await self.load_group(store, committed, entry)).entries

    async def load_group(self, store: ObjectStore, committed: CommittedStream, entry: Entries) -> Group:
        """Return the group that `entry`, one row, names. Raises as `load` does."""
        # The name has every byte of the entry. A damaged root that says something else of the same object
        # must not be answered from the cache: its entry was never checked.
        name = store.url, committed.stream, committed.incarnation, entry.tobytes()
        # One lock for each group, so that several who want it make one request. A lock, not a shared task:
        # the first may be cancelled, and the next then fetches for itself. The dictionary is weak, so a lock
        # goes when nobody holds it or waits for it.
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            kept = self._groups.get(name)
            if kept is None:
                # After an error nothing is kept, so the next caller asks the store again.
                kept = await fetch_group(store, committed, entry)
                self._keep(name, kept)
            else:
                self._groups.move_to_end(name)
        return kept

    def _keep(self, name: _Name, group: Group) -> None:
        self._groups[name] = group
        self._size_bytes += group.entries.nbytes
        # The newest group stays even if it alone exceeds the limit: its caller uses it now.
        while self._size_bytes > self.size_bytes_max and len(self._groups) > 1:
            _, gone = self._groups.popitem(last=False)
            self._size_bytes -= gone.entries.nbytes


async def fetch_group(store: ObjectStore, committed: CommittedStream, entry: Entries) -> Group:
    """Fetch the group that `entry`, one row of the stream's tree, names. Raises as `GroupCache.load` does."""
    key = entry_key(committed.stream, entry)
    try:
        return await checked(store, key, partial(_decoded, committed=committed, entry=entry, key=key))
    except NotFound as exc:
        raise Absent(key, committed.stream) from exc
    except Corrupt as exc:
        raise exc.within(key, stream=committed.stream) from exc


def _decoded(raw: bytes, *, committed: CommittedStream, entry: Entries, key: str) -> Group:
    # The checksum comes first, so that its error means damaged bytes. An error of the checks below means that
    # the group was written wrongly.
    checksum = crc32c(raw)
    if checksum != int(entry["checksum"][0]):
        raise Corrupt("object checksum", key, expected=int(entry["checksum"][0]), found=checksum)
    group = Group.decode(raw, stream=committed.stream, where=key)
    if group.incarnation != committed.incarnation:
        raise Corrupt("group incarnation", key, expected=committed.incarnation, found=group.incarnation)
    # Lookups choose a group by the offsets, times and totals of its entry. If the group held anything else,
    # they would find wrong data or none, so each column must agree.
    said = group.entry(raw)
    if said.tobytes() != entry.tobytes():
        wrong = next(name for name in entry.dtype.names or () if said[name][0] != entry[name][0])
        raise Corrupt(f"group {wrong}", key, expected=entry[wrong][0], found=said[wrong][0])
    return group


def entry_key(stream: str, entry: Entries) -> str:
    """Return the key of the object that `entry`, one row, names."""
    keys, first_offset, uid = StreamKeys(stream), int(entry["first_offset"][0]), bytes(entry["attempt"][0])
    kind = int(entry["kind"][0])
    if not kind:
        return keys.fragment(first_offset, UUID(bytes=uid))
    return keys.group(first_offset, int(entry["root_version"][0]), UUID(bytes=uid), kind)
