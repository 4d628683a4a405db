"""Tests of Pulsar's contract: the order of writes, what failures leave, and reads of Pulsar's objects."""

from __future__ import annotations

import asyncio
import dataclasses
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey, PulsarLedger
from offload_pulsar import ledger as ledger_module
from offload_pulsar.index import PulsarIndex
from pulsar_sets import REPEATABLE, SETS, ListedEntries, entries_of, metadata_of, objects_of, store_of, uid_of

from offload import EntryRun
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.ground.errors import Corrupt, Misuse, NotOffloaded, OutcomeUnknown, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

UID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
NAMES = BrokerNames(managed_ledger="public/default/persistent/orders-partition-0", cluster="here")
ENTRIES = [bytes([number]) * (number * 7 % 30) for number in range(40)]
STORED = [name for name in REPEATABLE if SETS[name]["stored"]]
VERSION = {"s3managedledgeroffloaderformatversion": "1"}


async def read_all(ledger: PulsarLedger, *, first: int | None = None, size_bytes: int = 200) -> list[bytes]:
    """Return every entry from `first` on, run by run."""
    at, entries = ledger.first_entry if first is None else first, list[bytes]()
    while at <= ledger.last_entry:
        found = run_entries(await ledger.entries(at, ledger.last_entry, size_bytes=size_bytes))
        entries += found
        at += len(found)
    return entries


def run_entries(run: EntryRun) -> list[bytes]:
    places = zip(run.starts.tolist(), run.ends.tolist(), strict=True)
    return [bytes(run.data[start:end]) for start, end in places]


def bucket(store: ObjectStore, block: int = 200) -> PulsarBucket:
    return PulsarBucket(store, block_size_bytes_max=block)


def offload(store: ObjectStore, ledger: ListedEntries | None = None, *, block: int = 200) -> None:
    asyncio.run(bucket(store, block).offload(ledger or ListedEntries(7, ENTRIES), UID, names=NAMES))


async def unfinished(store: MemoryStore) -> int:
    return len(await store.unfinished_uploads(""))


@pytest.mark.parametrize("name", STORED)
def test_a_set_of_pulsar_is_written_again_and_read(name: str) -> None:
    row = SETS[name]

    async def scenario() -> tuple[MemoryStore, list[bytes]]:
        store, stated = MemoryStore(), row["objects"][0]["user_metadata"]
        names = BrokerNames(
            managed_ledger=stated["managedledgername"],
            cluster=stated["pulsarclustername"],
            software_version=stated["s3managedledgeroffloadersoftwareversion"],
            software_commit=stated["s3managedledgeroffloadersoftwaregitsha"],
        )
        ours = bucket(store, row["max_block_size"])
        ledger = ListedEntries(row["ledger"], entries_of(row["entries"]))
        await ours.offload(ledger, uid_of(name), names=names, metadata=metadata_of(row))
        theirs = bucket(await store_of(name))
        return store, await read_all(await theirs.open(row["ledger"], uid_of(name)))

    store, entries = asyncio.run(scenario())

    assert store.objects == {each["key"]: data for each, data in objects_of(name)}
    for each, _ in objects_of(name):
        assert asyncio.run(store.metadata_of(each["key"])) == each["user_metadata"]
    assert entries == entries_of(row["entries"])


@pytest.mark.parametrize("name", ["v2-one-ledger", "v2-from-2^33", "v2-three-ledgers"])
def test_each_ledger_of_a_v2_object_is_read(name: str) -> None:
    async def scenario() -> None:
        theirs = bucket(await store_of(name))
        for stated in SETS[name]["ledgers"]:
            ledger = await theirs.open(stated["ledger"], uid_of(name))
            assert (ledger.last_entry, ledger.length) == (stated["last_entry"], stated["ledger_length"])
            assert await read_all(ledger) == entries_of(stated["entries"])
            middle = (ledger.first_entry + ledger.last_entry) // 2
            (entry,) = run_entries(await ledger.entries(middle, middle, size_bytes=1))
            assert entry == entries_of(stated["entries"])[middle - ledger.first_entry]

    asyncio.run(scenario())


def test_entries_beyond_a_hole_of_ids_are_read_and_the_hole_is_damage() -> None:
    async def scenario() -> None:
        ledger = await bucket(await store_of("sparse-entries-2^32")).open(7, uid_of("sparse-entries-2^32"))
        head, tail = (entries_of(rule) for rule in SETS["sparse-entries-2^32"]["entries"])
        assert run_entries(await ledger.entries(0, 9, size_bytes=10**6)) == head
        assert await read_all(ledger, first=2**32 + 5) == tail
        with pytest.raises(Corrupt, match="entry 10: expected present"):
            await ledger.entries(0, 10, size_bytes=10**6)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name", ["defect-entry-larger-than-block", "defect-declared-length-0", "v2-defect-full-block"]
)
def test_objects_that_lack_entries_are_noticed(name: str) -> None:
    """Pulsar reported success when it wrote them."""

    async def scenario() -> None:
        theirs = bucket(await store_of(name))
        with pytest.raises(Corrupt, match=SETS[name]["uuid"]):
            await read_all(await theirs.open(7, uid_of(name)))

    asyncio.run(scenario())


def test_entries_of_real_producers_are_read() -> None:
    async def scenario() -> list[bytes]:
        return await read_all(await bucket(await store_of("messages")).open(7, uid_of("messages")))

    entries = asyncio.run(scenario())

    assert len(entries) == SETS["messages"]["last_entry"] + 1
    assert sum(map(len, entries)) == SETS["messages"]["ledger_length"]


def test_writes_are_in_pulsars_order() -> None:
    """An upload with one part for each block, and the index last."""
    store = FaultyStore(MemoryStore())

    offload(store)

    data = f"{UID}-ledger-7"
    parts = [each for each in store.calls if each.operation == "put_part"]
    assert [(each.operation, each.key) for each in store.calls] == [
        ("start_upload", data),
        *(("put_part", data) for _ in parts),
        ("complete", data),
        ("put", f"{data}-index"),
    ]
    assert len(parts) > 5


@pytest.mark.parametrize("nth", [1, 2, None])
@pytest.mark.parametrize("operation", ["start_upload", "put_part", "complete", "put"])
def test_a_failed_write_leaves_nothing(operation: str, nth: int | None) -> None:
    """Initiate, part, complete and the put of the index."""
    inner = MemoryStore()
    rule = Rule(Fault.FAIL_BEFORE, operation, nth=nth if operation == "put_part" else None)

    with pytest.raises(TryAgain, match=operation):
        offload(FaultyStore(inner, rules=[rule]))

    assert inner.objects == {}
    assert asyncio.run(unfinished(inner)) == 0


@pytest.mark.parametrize("operation", ["put_part", "complete", "put"])
def test_a_write_whose_reply_is_lost_leaves_nothing(operation: str) -> None:
    inner = MemoryStore()

    with pytest.raises(OutcomeUnknown):
        offload(FaultyStore(inner, rules=[Rule(Fault.LOSE_REPLY, operation)]))

    assert inner.objects == {}
    assert asyncio.run(unfinished(inner)) == 0


def test_a_failed_index_and_a_failed_deletion_leave_garbage_and_say_so() -> None:
    inner = MemoryStore()
    rules = [Rule(Fault.FAIL_BEFORE, "put"), Rule(Fault.FAIL_BEFORE, "delete")]

    with pytest.raises(TryAgain, match="put") as caught:
        offload(FaultyStore(inner, rules=rules))

    assert list(inner.objects) == [f"{UID}-ledger-7"]
    assert any("may be left" in note for note in caught.value.__notes__)

    async def scenario() -> None:
        (found,) = [each async for each in bucket(inner).scan()]
        assert found.finding == "garbage: data without index"
        with pytest.raises(NotOffloaded):
            await bucket(inner).open(7, UID)

    asyncio.run(scenario())


class OpenLedger(ListedEntries):
    is_sealed = False


@pytest.mark.parametrize("ledger", [ListedEntries(7, []), OpenLedger(7, ENTRIES)])
def test_an_empty_or_open_ledger_is_refused_before_any_request(ledger: ListedEntries) -> None:
    store = FaultyStore(MemoryStore())

    with pytest.raises(Misuse, match="empty or open"):
        offload(store, ledger)

    assert store.calls == []


class SkippingLedger(ListedEntries):
    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        run = await super().entries(first, min(last, 9), size_bytes=size_bytes)
        return dataclasses.replace(run, first=first + 1) if first else run


@pytest.mark.parametrize(
    ("ledger", "error"),
    [
        (ListedEntries(7, [*ENTRIES, b"x" * 500, b"y"]), Misuse),
        (ListedEntries(7, ENTRIES, stated=0), Corrupt),
        (ListedEntries(7, ENTRIES, stated=sum(map(len, ENTRIES)) + 1), Corrupt),
        (SkippingLedger(7, ENTRIES), Corrupt),
    ],
)
def test_a_ledger_that_pulsar_would_lose_entries_of_is_refused(
    ledger: ListedEntries, error: type[Exception]
) -> None:
    store = MemoryStore()

    with pytest.raises(error):
        offload(store, ledger)

    assert store.objects == {}
    assert asyncio.run(unfinished(store)) == 0


class LimitedMemory(MemoryStore):
    limits: dict[str, Any] = {}

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, **self.limits)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"parts_max": 3}, "3 parts"),
        ({"parts_max": 10}, "10 parts"),  # padding needs more blocks than the sizes alone
        ({"part_size_bytes_min": 201}, "the least is 201"),
        ({"part_size_bytes_max": 199}, "the most is 199"),
    ],
)
def test_blocks_that_the_store_does_not_take_are_refused(limits: dict[str, Any], says: str) -> None:
    store = LimitedMemory()
    store.limits = limits
    entries = [b"x" * 31] * 11  # one entry fills more than half of a block

    with pytest.raises(Misuse, match=says):
        offload(store, ListedEntries(7, entries))

    assert store.objects == {}
    assert asyncio.run(unfinished(store)) == 0


def test_a_store_without_parts_gets_the_same_objects_in_one_put_each() -> None:
    store, parts = LimitedMemory(), MemoryStore()
    store.limits = {"multipart": False}

    offload(store)
    offload(parts)

    assert store.objects == parts.objects


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_REPLY])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_put_of_a_store_without_parts_leaves_nothing(fault: Fault, nth: int) -> None:
    store = LimitedMemory()
    store.limits = {"multipart": False}

    with pytest.raises((TryAgain, OutcomeUnknown)):
        offload(FaultyStore(store, rules=[Rule(fault, "put", nth=nth)]))

    assert store.objects == {}


def test_a_ledger_of_one_small_block_is_taken_by_a_store_of_large_parts() -> None:
    store = LimitedMemory()
    store.limits = {"part_size_bytes_min": 5 * 2**20}

    offload(store, ListedEntries(7, [b"x"]))

    assert len(store.objects) == 2


def test_deleting_is_idempotent_and_leaves_other_attempts() -> None:
    store, other = MemoryStore(), UUID(int=5)
    offload(store)

    async def scenario() -> None:
        ours = bucket(store)
        await ours.offload(ListedEntries(7, ENTRIES), other, names=NAMES)
        await ours.delete(7, UID)
        await ours.delete(7, UID)
        await ours.delete(8, UID)

        assert sorted(store.objects) == [f"{other}-ledger-7", f"{other}-ledger-7-index"]
        with pytest.raises(NotOffloaded):
            await ours.open(7, UID)

    asyncio.run(scenario())


def test_a_scan_remembers_the_names_of_objects_that_are_there() -> None:
    """A process that runs for months sees many objects come and go."""

    async def main() -> None:
        store = await store_of("exact-fit", "one-entry")
        counted = FaultyStore(store)
        bucket = PulsarBucket(counted)
        kept = {name: store.objects[name] for name in [*store.objects] if str(uid_of("one-entry")) in name}
        for objects, asked in ((dict(store.objects), 2), (kept, 0), (dict(store.objects), 1)):
            store.objects.clear()
            store.objects.update(objects)
            counted.calls.clear()

            assert len([found async for found in bucket.scan()]) == len(objects) // 2

            assert sum(call.operation == "metadata_of" for call in counted.calls) == asked

    asyncio.run(main())


def test_a_scan_names_what_is_missing_and_what_is_foreign() -> None:
    store, other = MemoryStore(), UUID(int=5)
    offload(store)
    data = store.objects[f"{UID}-ledger-7"]
    store.objects |= {
        f"{UID}-ledger-70": b"data",
        f"{other}-index": b"index",
        "readme.txt": b"hello",
        f"{UID}-ledger-x": b"nearly",
        f"folder/{UID}-ledger-7": data,
    }

    async def scenario() -> list[tuple[str, str, str | None]]:
        return [(each.name, each.finding, each.managed_ledger) async for each in bucket(store).scan()]

    assert asyncio.run(scenario()) == [
        (f"{other}-index", "broken: index without data", None),
        (f"{UID}-ledger-7", "whole", NAMES.managed_ledger),
        (f"{UID}-ledger-70", "garbage: data without index", None),
        (f"{UID}-ledger-x", "not Pulsar's", None),
        (f"folder/{UID}-ledger-7", "not Pulsar's", None),
        ("readme.txt", "not Pulsar's", None),
    ]


@pytest.mark.parametrize("suffix", ["", "-index"])
@pytest.mark.parametrize("metadata", [{}, {"s3managedledgeroffloaderformatversion": "2"}])
def test_an_object_of_another_version_is_not_opened(suffix: str, metadata: dict[str, str]) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await bucket(store).offload(ListedEntries(7, ENTRIES), UID, names=NAMES)
        key = f"{UID}-ledger-7{suffix}"
        await store.put(key, Body.of(bytes(store.objects[key]), metadata=metadata))
        with pytest.raises(Corrupt, match=f"{key} at byte 0: metadata"):
            await bucket(store).open(7, UID)

    asyncio.run(scenario())


def test_an_index_without_data_is_damage() -> None:
    store = MemoryStore()
    offload(store)
    del store.objects[f"{UID}-ledger-7"]

    with pytest.raises(Corrupt, match=f"{UID}-ledger-7 at byte 0: data object: expected present"):
        asyncio.run(bucket(store).open(7, UID))


def test_a_store_without_metadata_is_written_and_read() -> None:
    store = LimitedMemory()
    store.limits = {"metadata_size_bytes_max": 0}
    offload(store)

    async def scenario() -> list[bytes]:
        return await read_all(await bucket(store).open(7, UID))

    assert asyncio.run(scenario()) == ENTRIES


def test_every_cut_data_object_is_noticed_with_its_end() -> None:
    store = MemoryStore()
    offload(store)
    key = f"{UID}-ledger-7"
    data = store.objects[key]

    async def scenario(size: int) -> None:
        await store.put(key, Body.of(bytes(data[:size]), metadata=VERSION))
        with pytest.raises(Corrupt, match=f"{key} at byte {size}"):
            await read_all(await bucket(store).open(7, UID))

    for size in range(0, len(data), 37):
        asyncio.run(scenario(size))


def test_every_flipped_bit_outside_of_entries_is_noticed_by_a_reader() -> None:
    """Every block header and entry header, and padding. A reader of all entries also compares the length."""
    store = MemoryStore()
    entries = [b"a" * 30, b"bb", b"", b"c" * 50, b"d"]
    offload(store, ListedEntries(7, entries))
    key = f"{UID}-ledger-7"
    data = bytes(store.objects[key])

    async def is_noticed(damaged: bytes) -> bool:
        await store.put(key, Body.of(damaged, metadata=VERSION))
        try:
            ledger = await bucket(store).open(7, UID)
            found = await read_all(ledger)
        except Corrupt as damage:
            return damage.where == key
        return sum(map(len, found)) != ledger.length

    entry_bytes = {
        start + byte
        for number, start in ((0, 140), (1, 182), (3, 340), (4, 540))
        for byte in range(len(entries[number]))
    }

    async def scenario() -> None:
        for bit in range(0, len(data) * 8, 5):  # at least one bit of every byte
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            assert await is_noticed(bytes(damaged)) == (bit // 8 not in entry_bytes), bit

    asyncio.run(scenario())


def test_a_block_with_more_entries_than_its_index_says_is_damage() -> None:
    store = MemoryStore()
    offload(store)
    key = f"{UID}-ledger-7-index"
    index = PulsarIndex.decode(store.objects[key], ledger_id=7, where=key)
    blocks = index.groups[0].blocks.copy()
    blocks["first_entry_id"][1] -= 1
    changed = dataclasses.replace(index, groups=(dataclasses.replace(index.groups[0], blocks=blocks),))

    async def scenario() -> None:
        await store.put(key, Body.of(changed.encode(), metadata=VERSION))
        ledger = await bucket(store).open(7, UID)
        with pytest.raises(Corrupt, match="last entry of a block"):
            await ledger.entries(0, 0, size_bytes=1)

    asyncio.run(scenario())


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
    window=st.sampled_from([40, 150, 4096]),
)
def test_any_range_by_several_readers_is_that_of_a_list(sizes: list[int], seed: int, window: int) -> None:
    entries, random = [bytes([number % 256]) * size for number, size in enumerate(sizes)], Random(seed)

    async def scenario() -> None:
        store = MemoryStore()
        ours = bucket(store)
        await ours.offload(ListedEntries(7, entries), UID, names=NAMES)
        ledgers = [await ours.open(7, UID) for _ in range(2)]

        async def read(ledger: PulsarLedger) -> None:
            for _ in range(8):
                first = random.randrange(len(entries))
                last = random.randrange(first, len(entries))
                size_bytes = random.choice([1, 50, 10**6])
                run = await ledger.entries(first, last, size_bytes=size_bytes)
                found = run_entries(run)
                assert run.first == first
                assert found == entries[first : first + len(found)]
                assert len(found) == last - first + 1 or sum(map(len, found)) >= size_bytes

        await asyncio.gather(*(read(ledger) for ledger in ledgers for _ in range(2)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "WINDOW_SIZE_BYTES", max(window, ledger_module.HEADER_SIZE_BYTES + 12))
        asyncio.run(scenario())


def test_a_random_entry_is_one_request_once_its_block_was_walked() -> None:
    store = FaultyStore(MemoryStore())
    entries = [bytes([number % 256]) * 900 for number in range(400)]

    async def scenario() -> None:
        ours = bucket(store, 2**20)
        await ours.offload(ListedEntries(7, entries), UID, names=NAMES)
        await read_all(await ours.open(7, UID))
        ledger = await ours.open(7, UID)
        store.calls.clear()
        for number in (399, 3, 200):
            assert run_entries(await ledger.entries(number, number, size_bytes=1)) == [entries[number]]
        assert [each.operation for each in store.calls] == ["get"] * 3

        cold = await bucket(store, 2**20).open(7, UID)
        store.calls.clear()
        assert run_entries(await cold.entries(300, 300, size_bytes=1)) == [entries[300]]
        assert len(store.calls) <= 2

    asyncio.run(scenario())


def test_runs_in_order_share_their_requests() -> None:
    store = FaultyStore(MemoryStore())
    entries = [b"x" * 1000] * 12_000

    async def scenario() -> None:
        ours = bucket(store, 5 * 2**20)
        await ours.offload(ListedEntries(7, entries), UID, names=NAMES)
        for _ in range(2):  # the second time the blocks were walked
            ledger = await ours.open(7, UID)
            store.calls.clear()
            for first in range(0, len(entries), 100):
                await ledger.entries(first, first + 99, size_bytes=10**6)
            assert len(store.calls) <= 8  # 12 MB by windows of 4 MiB

    asyncio.run(scenario())


def test_walks_that_were_not_used_for_longest_are_forgotten() -> None:
    walks = ledger_module.Walks(entries_max=300)
    first = walks.of("a", 0)
    first.starts = np.zeros(100, np.uint64)
    walks.grew("a", 0, 100)
    walks.of("b", 0)
    assert walks.of("a", 0) is first

    walks.of("c", 0)

    assert walks.of("a", 0) is first  # b was older
    for number in range(5):
        walks.of("d", number)
    assert walks.of("a", 0) is not first


def test_the_greatest_ledger_id_has_a_key() -> None:
    store = MemoryStore()

    offload(store, ListedEntries(2**63 - 1, ENTRIES))

    keys = [PulsarKey.parse(key) for key in sorted(store.objects)]
    assert keys == [PulsarKey(UID, 2**63 - 1), PulsarKey(UID, 2**63 - 1, is_index=True)]
