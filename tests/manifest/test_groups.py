"""Tests of loading groups: a group that differs from its entry is refused, and the error names its key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest

from offload.commit.groups import GroupCache, entry_key, fetch_group
from offload.formats.group import Group
from offload.formats.root import ENTRY
from offload.ground.errors import Absent, Corrupt, TryAgain
from offload.model.entry import Entries, Entry, EntryKind, rows_of_entries
from offload.model.manifest import Manifest
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

MANIFEST: Final = Manifest(
    stream="orders",
    version=9,
    incarnation=UUID(int=1),
    writer=UUID(int=2),
    epoch=1,
    source_epoch=0,
    committer=UUID(int=2),
    commit_id=UUID(int=3),
    first_offset=0,
    next_offset=0,
)


def group(number: int = 0, **changes: Any) -> Group:
    """Return a group of two fragments, with the other groups of its kind beside it."""
    fragments = [
        Entry(
            first_offset=10 * number + 5 * i,
            records=5,
            messages=5,
            first_timestamp_ms=i,
            last_timestamp_ms=i,
            data_size_bytes=100,
            stored_size_bytes=300,
            ledger_id=number,
            attempt=UUID(int=7),
            checksum=i,
        )
        for i in range(2)
    ]
    plain: dict[str, Any] = {
        "stream": MANIFEST.stream,
        "incarnation": MANIFEST.incarnation,
        "kind": EntryKind.GROUP,
        "uid": UUID(int=100 + number),
        "version": 4,
        "entries": rows_of_entries(fragments),
    }
    return Group(**plain | changes)


def naming(one: Group) -> Entries:
    """Return the entry that names this group."""
    return one.entry(one.encode())


def refusal(objects: dict[str, bytes], entry: Entries) -> Corrupt:
    """Return the error with which the group that `entry` names is refused."""
    with pytest.raises(Corrupt) as refused:
        asyncio.run(GroupCache().load(MemoryStore(objects=objects), MANIFEST, entry))
    return refused.value


def test_a_sound_group_is_loaded_as_it_was_stored() -> None:
    one = group()
    store = MemoryStore(objects={one.key: one.encode()})

    entries = asyncio.run(GroupCache().load(store, MANIFEST, naming(one)))

    assert entries.tobytes() == one.entries.tobytes()
    assert entry_key("orders", naming(one)) == one.key


def test_a_fragments_entry_has_the_key_of_a_fragment() -> None:
    row = group().entries[1:]

    assert entry_key("orders", row) == f"orders/data/{5:020}.{UUID(int=7)}.fragment"


def test_a_missing_group_is_refused() -> None:
    error = refusal({}, naming(group()))

    assert (error.where, error.stream, error.what) == (group().key, "orders", "object")


def test_a_group_with_any_flipped_bit_is_refused() -> None:
    one = group()
    raw, entry = one.encode(), naming(one)

    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        error = refusal({one.key: bytes(damaged)}, entry)
        assert (error.where, error.stream) == (one.key, "orders")


@pytest.mark.parametrize("size_bytes", [0, 1, 100, -1])
def test_a_shortened_group_is_refused(size_bytes: int) -> None:
    one = group()

    assert refusal({one.key: one.encode()[:size_bytes]}, naming(one)).where == one.key


def test_another_group_under_the_key_is_refused() -> None:
    one, other = group(), group(1)

    assert refusal({one.key: other.encode()}, naming(one)).where == one.key


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "group stream": {"stream": "invoices"},
    "group incarnation": {"incarnation": UUID(int=99)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_sound_group_from_elsewhere_is_refused(what: str) -> None:
    """Its checksum matches its entry: a root of ours names it, but it belongs elsewhere."""
    foreign = group(**CHANGES[what])

    error = refusal({group().key: foreign.encode()}, naming(foreign))

    assert (error.where, error.what) == (group().key, what)


@pytest.mark.parametrize("name", [name for name in ENTRY.dtype.names or () if name != "reserved"])
def test_a_group_that_differs_from_its_entry_is_refused(name: str) -> None:
    """The object is sound, but any one field differs. If the field is part of the key, the object
    is absent.
    """
    one = group()
    wrong = naming(one).copy()
    if name == "attempt":
        wrong[name] = np.void(UUID(int=98).bytes)
    else:
        wrong[name] += 1

    error = refusal({one.key: one.encode()}, wrong)

    assert error.where == entry_key("orders", wrong)


@pytest.mark.parametrize("name", ["uid", "version", "kind"])
def test_a_group_that_differs_from_its_key_is_refused(name: str) -> None:
    """The object has the checksum of the entry, and the content of another group."""
    one = group()
    others = {"uid": UUID(int=98), "version": 5, "kind": EntryKind.KILO_GROUP}
    other = replace(one, **{name: others[name]})
    if name == "kind":
        above = np.frombuffer(naming(group()).tobytes(), ENTRY.dtype)
        other = replace(other, entries=above)
    raw = other.encode()
    entry = naming(one).copy()
    entry["checksum"] = other.entry(raw)["checksum"]

    error = refusal({one.key: raw}, entry)

    assert error.where == one.key


class Kept:
    """A cache over a store with so many groups, which records its requests."""

    def __init__(self, groups: int, *, size_bytes_max: int = 2**20) -> None:
        self.groups = [group(number) for number in range(groups)]
        self.objects = {one.key: one.encode() for one in self.groups}
        self.store = FaultyStore(MemoryStore(objects=self.objects))
        self.cache = GroupCache(size_bytes_max=size_bytes_max)

    async def load(self, number: int, *, manifest: Manifest = MANIFEST) -> Entries:
        return await self.cache.load(self.store, manifest, naming(self.groups[number]))

    @property
    def requests(self) -> list[str]:
        """Return the keys that were requested, in order."""
        return [call.key for call in self.store.calls]


GROUP_SIZE_BYTES: Final = 2 * ENTRY.size_bytes


def test_a_recently_used_group_costs_no_request() -> None:
    async def main() -> None:
        first = await kept.load(0)
        assert (await kept.load(0)).tobytes() == first.tobytes()

    kept = Kept(1)
    asyncio.run(main())

    assert len(kept.requests) == 1


def test_tiers_with_one_cache_share_its_memory_and_not_their_groups() -> None:
    """A copy of a tier's folder names the same groups, but only its own store shows if it has them."""

    async def main() -> None:
        await kept.load(0)
        with pytest.raises(Absent):
            await kept.cache.load(MemoryStore(name="copy"), MANIFEST, naming(kept.groups[0]))

    kept = Kept(1)
    asyncio.run(main())


def test_the_least_recently_used_group_is_evicted_first() -> None:
    async def main() -> None:
        for number in (0, 1, 0, 2, 0, 1):
            await kept.load(number)

    kept = Kept(3, size_bytes_max=2 * GROUP_SIZE_BYTES)
    asyncio.run(main())

    assert kept.requests == [kept.groups[number].key for number in (0, 1, 2, 1)]


@pytest.mark.parametrize("size_bytes_max", [0, GROUP_SIZE_BYTES, 3 * GROUP_SIZE_BYTES + 1])
def test_the_size_of_the_cache_is_bounded(size_bytes_max: int) -> None:
    """One group always stays: the one in use."""

    async def main() -> None:
        for number in (*range(20), *range(20)):
            await kept.load(number)
            held = sum(group.entries.nbytes for group in kept.cache._groups.values())
            assert held == kept.cache._size_bytes <= max(size_bytes_max, GROUP_SIZE_BYTES)

    kept = Kept(20, size_bytes_max=size_bytes_max)
    asyncio.run(main())

    assert len(kept.cache._turns) == 0


def test_two_simultaneous_loads_of_a_group_send_one_request() -> None:
    async def main() -> None:
        loaded = await asyncio.gather(*(kept.load(0) for _ in range(5)), kept.load(1))
        assert len({entries.tobytes() for entries in loaded}) == 2

    kept = Kept(2)
    asyncio.run(main())

    assert sorted(kept.requests) == [one.key for one in kept.groups]


def held_back(kept: Kept) -> tuple[asyncio.Event, Callable[[str, str], Any]]:
    """Return a gate that holds back every request to the store."""
    gate = asyncio.Event()

    async def wait(_operation: str, _key: str) -> None:
        await gate.wait()

    return gate, wait


def test_a_cancelled_load_does_not_disturb_the_next() -> None:
    """The first caller is cancelled during its request, the second while it waits for its turn."""

    async def main() -> None:
        gate, kept.store.before = held_back(kept)
        tasks = [asyncio.ensure_future(kept.load(0)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[0].cancel()
        await asyncio.sleep(0)
        gate.set()
        entries = await tasks[2]
        assert entries.tobytes() == kept.groups[0].entries.tobytes()
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert (await kept.load(0)).tobytes() == entries.tobytes()

    kept = Kept(1)
    asyncio.run(main())

    assert len(kept.requests) == 2


@pytest.mark.parametrize(
    ("fault", "requests", "error"), [(Fault.FAIL_BEFORE, 1, TryAgain), (Fault.FLIP, 2, Corrupt)]
)
def test_a_failed_load_is_repeated_by_the_next(fault: Fault, requests: int, error: type[Exception]) -> None:
    """A damaged reply is fetched once more, so damage fails a load after two requests."""

    async def main() -> None:
        first, second = await asyncio.gather(kept.load(0), kept.load(0), return_exceptions=True)
        assert isinstance(first, error)
        assert not isinstance(second, BaseException)

    kept = Kept(1)
    kept.store.rules = [Rule(fault, "get", nth=nth + 1) for nth in range(requests)]
    asyncio.run(main())

    assert len(kept.requests) == requests + 1


def test_a_cached_group_serves_only_the_entry_that_it_was_checked_against() -> None:
    """A root that describes the same object differently is damaged, cached or not."""

    async def main() -> None:
        await kept.load(0)
        wrong = naming(kept.groups[0]).copy()
        wrong["messages"] -= 1
        with pytest.raises(Corrupt, match="group messages"):
            await kept.cache.load(kept.store, MANIFEST, wrong)
        with pytest.raises(Corrupt, match="group incarnation"):
            await kept.load(0, manifest=replace(MANIFEST, incarnation=UUID(int=99)))

    kept = Kept(1)
    asyncio.run(main())


def test_streams_do_not_share_groups_in_the_cache() -> None:
    """The same offsets, version and UUID in two streams are two objects."""
    ours, theirs = group(), group(stream="invoices")
    store = MemoryStore(objects={one.key: one.encode() for one in (ours, theirs)})
    invoices = replace(MANIFEST, stream="invoices")
    cache = GroupCache()

    async def main() -> None:
        await cache.load(store, MANIFEST, naming(ours))
        await cache.load(store, invoices, naming(theirs))

    asyncio.run(main())

    assert asyncio.run(fetch_group(store, invoices, naming(theirs))).stream == "invoices"
