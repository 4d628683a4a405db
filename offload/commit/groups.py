"""Fetching groups: checked against the entry that names them, kept a while, each requested once at a time.

Invariants: what leaves this module is what the entry says, every bit of it; the memory that groups take is
bounded by `size_bytes_max`, plus one group for each request under way. Groups never change, so what is kept
is never stale.
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
from offload.errors import Absent, Corrupt, NotFound
from offload.formats.checksums import crc32c
from offload.formats.group import Group
from offload.formats.keys import StreamKeys
from offload.model.entry import GROUP_ROOT_VERSION, Entries
from offload.model.manifest import CommittedStream
from offload.store.checked import checked

_Name = tuple[str, str, UUID, bytes]
"""The store that a group came from, and what it was checked against: stream, incarnation, and its entry."""

CACHE_SIZE_BYTES_MAX: Final = 16 * 2**20
"""Some 170 groups of 1,024 entries: all that a lookup at any end of a petabyte needs."""


@dataclass(slots=True)
class GroupCache:
    """The groups that were used last, of any number of streams and tiers."""

    size_bytes_max: int = CACHE_SIZE_BYTES_MAX
    _groups: OrderedDict[_Name, Entries] = field(default_factory=OrderedDict)
    _size_bytes: int = 0
    _turns: WeakValueDictionary[_Name, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def load(self, store: ObjectStore, committed: CommittedStream, entry: Entries) -> Entries:
        """The entries of the group that `entry`, one row, names.

        Raises `Absent` where the object is gone, `Corrupt` where it is not what the entry says.
        """
        name = store.url, committed.stream, committed.incarnation, entry.tobytes()
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            kept = self._groups.get(name)
            if kept is None:
                kept = (await fetch_group(store, committed, entry)).entries
                self._keep(name, kept)
            else:
                self._groups.move_to_end(name)
        return kept

    def _keep(self, name: _Name, entries: Entries) -> None:
        self._groups[name] = entries
        self._size_bytes += entries.nbytes
        while self._size_bytes > self.size_bytes_max and len(self._groups) > 1:
            _, gone = self._groups.popitem(last=False)
            self._size_bytes -= gone.nbytes


async def fetch_group(store: ObjectStore, committed: CommittedStream, entry: Entries) -> Group:
    """The group that `entry`, one row of the stream's tree, names. Raises as `GroupCache.load` does."""
    key = entry_key(committed.stream, entry)
    try:
        return await checked(store, key, partial(_decoded, committed=committed, entry=entry, key=key))
    except NotFound as exc:
        raise Absent(key, committed.stream) from exc
    except Corrupt as exc:
        raise exc.within(key, stream=committed.stream) from exc


def _decoded(raw: bytes, *, committed: CommittedStream, entry: Entries, key: str) -> Group:
    checksum = crc32c(raw)
    if checksum != int(entry["checksum"][0]):
        raise Corrupt("object checksum", key, expected=int(entry["checksum"][0]), found=checksum)
    group = Group.decode(raw, stream=committed.stream, where=key)
    if group.incarnation != committed.incarnation:
        raise Corrupt("group incarnation", key, expected=committed.incarnation, found=group.incarnation)
    said = group.entry(raw)
    if said.tobytes() != entry.tobytes():
        wrong = next(name for name in entry.dtype.names or () if said[name][0] != entry[name][0])
        raise Corrupt(f"group {wrong}", key, expected=entry[wrong][0], found=said[wrong][0])
    return group


def entry_key(stream: str, entry: Entries) -> str:
    """The key of the object that `entry`, one row, names."""
    keys, first_offset, uid = StreamKeys(stream), int(entry["first_offset"][0]), bytes(entry["attempt"][0])
    kind = int(entry["kind"][0])
    if not kind:
        return keys.fragment(first_offset, UUID(bytes=uid))
    return keys.group(first_offset, int(entry[GROUP_ROOT_VERSION][0]), UUID(bytes=uid), kind)
