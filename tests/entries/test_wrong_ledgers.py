"""Tests of stores that answer wrongly: the ledger is named, and no wrong entry is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from entry_store import EntryStore, Ledger, Listed, bodies, synced, with_run

from offload import Corrupt, Diverged, Misuse, ObjectStoreOffloader, OffloadError, TryAgain, sync
from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes
from offload.contracts.source import SourceStream
from offload.entries.ledger import EntryLedgerStream
from offload.store.memory import MemoryStore

SOUND = [b"a%d" % rank for rank in range(4)]
WRONG = [b"b%d" % rank for rank in range(4)]


def u8(*numbers: int) -> Any:
    return np.array(numbers, np.uint64)


def only(entries: int) -> Callable[[EntryRun], EntryRun]:
    """Return a lie: only so many entries of each run."""
    return lambda run: replace(run, starts=run.starts[:entries], ends=run.ends[:entries], timestamps_ms=1)


def later(change: Callable[[EntryRun], EntryRun]) -> Callable[[EntryRun], EntryRun]:
    """Return a lie that is told from the second read on, which is the one for the copy."""
    reads: list[EntryRun] = []

    def run(truth: EntryRun) -> EntryRun:
        reads.append(truth)
        return change(truth) if len(reads) > 1 else truth

    return run


LIES: dict[str, tuple[dict[str, Any], type[OffloadError], str]] = {
    "a length that is too large": ({"length": 9}, Corrupt, "expected the stated length 9, found 8"),
    "a length that is too small": ({"length": 7}, Corrupt, "size of entries 0 to 3"),
    "no length": ({"length": 0}, Corrupt, "size of entries 0 to 3"),
    "a negative length": ({"length": -1}, Corrupt, "length: expected 0 or more, found -1"),
    "a count below zero": ({"last_entry": -2}, Corrupt, "last entry: expected -1 or more, below 2^63"),
    "a huge count": ({"last_entry": 2**62}, Corrupt, "number of entries from 0 on"),
    "a count beyond all offsets": (
        {"last_entry": 2**64},
        Corrupt,
        "last entry: expected -1 or more, below 2^63",
    ),
    "a length without entries": ({"last_entry": -1}, Corrupt, "length without entries"),
    "an id that goes back": ({"ledger_id": 3}, Corrupt, "ledger id: expected above 7, found 3"),
    "an id below zero": ({"ledger_id": -1}, Corrupt, "ledger id"),
    "an offset of its own that leaves a hole": ({"first_offset": 5}, Diverged, "ledger 9 begins at offset 5"),
    "an offset below zero": ({"first_offset": -5}, Corrupt, "first offset"),
    "fewer entries than there are": ({"run": only(3)}, Corrupt, "from 0 on: expected 4, found 3"),
    "no entries": ({"run": only(0)}, Corrupt, "from 0 on: expected 4, found 0"),
    "more entries than asked for": (
        {"run": lambda run: EntryRun.of([*WRONG, b"", b""], first=run.first, timestamps_ms=1)},
        Corrupt,
        "from 0 on: expected 4, found 6",
    ),
    "other entries than asked for": (with_run(first=lambda run: 1), Corrupt, "first entry of a run"),
    "ends that go back": (with_run(ends=lambda run: u8(2, 4, 3, 8)), Corrupt, "position of entry 2"),
    "ends beyond the buffer": (with_run(ends=lambda run: u8(2, 4, 6, 9)), Corrupt, "position of entry 3"),
    "ends that wrap": (with_run(ends=lambda run: u8(2, 4, 6, 2**64 - 1)), Corrupt, "position of entry 3"),
    "starts behind ends": (with_run(starts=lambda run: u8(0, 5, 6, 6)), Corrupt, "position of entry 1"),
    "entries that overlap": (with_run(starts=lambda run: u8(0, 1, 4, 6)), Corrupt, "position of entry 1"),
    "fewer starts than ends": (with_run(starts=lambda run: u8(0)), Corrupt, "starts of entries from 0 on"),
    "signed positions": (with_run(ends=lambda run: run.ends.astype(np.int64)), Misuse, "numpy.uint64"),
    "positions in a list": (with_run(ends=lambda run: run.ends.tolist()), Misuse, "not list"),
    "too few times": (with_run(timestamps_ms=lambda run: np.array([1])), Misuse, "array of 4 numpy.int64"),
    "a time beyond 64 bits": (with_run(timestamps_ms=lambda run: 2**63), Misuse, "does not fit 64 bits"),
    "other sizes at the second read": (
        {"run": later(lambda run: EntryRun.of([b"", *WRONG[1:]], first=run.first, timestamps_ms=1))},
        Corrupt,
        "second read of entries 0 to 3",
    ),
    "other times at the second read": (
        {"run": later(lambda run: replace(run, timestamps_ms=77))},
        Corrupt,
        "of time 77",
    ),
    "fewer entries at the second read": ({"run": later(only(2))}, Corrupt, "expected 4, found 2"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_ledger_is_named_and_nothing_of_it_is_committed(lie: str) -> None:
    """The ledger before it is. When the store answers rightly again, the next sync goes on."""
    lies, kind, text = LIES[lie]
    store = EntryStore(lies={9: dict(lies)})
    store.begin(7, *SOUND)
    store.begin(9, *WRONG)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        report = await synced(store, tier)
        assert type(report.error) is kind
        assert text in str(report.error)
        assert f"ledger {lies.get('ledger_id', 9)}" in str(report.error)
        assert await bodies(tier) == SOUND if report.manifest else kind is Diverged

        store.lies.clear()
        store.restart()  # what a ledger stated once must not become less
        assert (await synced(store, tier)).error is None
        assert await bodies(tier) == SOUND + WRONG

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fact", "value"),
    [("ledger_id", "9"), ("last_entry", None), ("length", 8.0), ("first_offset", "4"), ("length", True)],
)
def test_a_fact_of_the_wrong_type_is_misuse_of_that_stream_alone(fact: str, value: Any) -> None:
    """The other stream of the sync is copied."""
    wrong, sound = EntryStore(), EntryStore()
    for store in (wrong, sound):
        store.begin(7, *SOUND)
    mistaken = type("Mistaken", (Listed,), {fact: value})

    async def listed() -> list[EntryLedger]:
        return [mistaken(ledger) for ledger in wrong.ledgers]

    class Two(EntryStore):
        async def streams(self) -> Sequence[SourceStream]:
            return [EntryLedgerStream("a", listed), EntryLedgerStream("b", sound.list_ledgers)]

    async def run() -> None:
        tier = ObjectStoreOffloader(MemoryStore())
        reports = {report.stream: report async for report in sync(Two(), tier)}

        assert isinstance(reports["a"].error, Misuse)
        assert f"the {fact} of a ledger is {value!r}, which is no integer" in str(reports["a"].error)
        assert reports["b"].error is None
        assert await tier.streams() == ["b"]

    asyncio.run(run())


def test_every_ledger_of_a_listing_is_closed_although_one_cannot_be() -> None:
    closed: list[int] = []

    class Stuck(Listed):
        async def aclose(self) -> None:
            closed.append(self.ledger_id)
            if self.ledger_id == 7:
                raise TryAgain("it cannot be closed")

    store = EntryStore()
    for ledger_id in (7, 9, 12):
        store.begin(ledger_id, *SOUND)

    async def listed() -> list[EntryLedger]:
        return [Stuck(ledger) for ledger in store.ledgers]

    async def run() -> None:
        with pytest.raises(TryAgain, match="cannot be closed"):
            await EntryLedgerStream("orders", listed).mark()

    asyncio.run(run())

    assert closed == [7, 9, 12]


SIZES: dict[str, tuple[Callable[[EntrySizes], EntrySizes], type[OffloadError], str]] = {
    "too few": (lambda found: replace(found, sizes=found.sizes[:2]), Corrupt, "expected 4, found 2"),
    "of others": (lambda found: replace(found, first=1), Corrupt, "first entry of a run"),
    "signed": (lambda found: replace(found, sizes=found.sizes.astype(np.int64)), Misuse, "numpy.uint64"),
    "wrong": (lambda found: replace(found, sizes=u8(1, 3, 2, 2)), Corrupt, ""),
    "too large": (lambda found: replace(found, sizes=u8(3, 2, 2, 2)), Corrupt, "size of entries 0 to 3"),
}


@pytest.mark.parametrize("lie", SIZES)
def test_wrong_sizes_are_found(lie: str) -> None:
    change, kind, text = SIZES[lie]
    store = EntryStore(has_sizes=True, lies={9: {"sizes": change}})
    store.begin(7, *SOUND)
    store.begin(9, *WRONG)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        report = await synced(store, tier)

        if lie != "wrong":  # the sum is right, and so is that of the only chunk
            assert type(report.error) is kind
            assert text in str(report.error)
        assert (await bodies(tier))[:4] == SOUND
        assert len(await bodies(tier)) == (8 if lie == "wrong" else 4)

    asyncio.run(run())


def test_a_ledger_that_is_gone_is_tried_again() -> None:
    store = EntryStore()
    store.begin(7, *SOUND)
    store.begin(9, *WRONG).is_gone = True
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        assert type((await synced(store, tier)).error) is TryAgain
        assert await bodies(tier) == SOUND

        store.ledgers[1].is_gone = False
        assert (await synced(store, tier)).error is None
        assert await bodies(tier) == SOUND + WRONG

    asyncio.run(run())


def test_an_open_ledger_is_the_last_one() -> None:
    """The entries behind it have no offsets until it is sealed."""
    store = EntryStore()
    store.begin(7, *SOUND)
    store.begin(9, *WRONG)
    store.ledgers[0].is_sealed = False
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        report = await synced(store, tier)

        assert "ledger 9 of stream 'orders'" in str(report.error)
        assert "expected a sealed one, found ledger 7, open" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_ledger_that_is_lost_between_others_is_found(is_committed: bool, is_restarted: bool) -> None:
    """A process that restarts finds it only if the tier has the ledgers on both sides."""
    store = EntryStore()
    for ledger_id in (7, 9, 12):
        store.begin(ledger_id, b"%d" % ledger_id)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        if is_committed:
            await synced(store, tier)
        else:
            async with await store.stream_of_this_process.snapshot():
                pass
        del store.ledgers[1]
        if is_restarted:
            store.restart()
        report = await synced(store, tier)

        if not is_committed and is_restarted:
            assert report.error is None
            return
        assert isinstance(report.error, Diverged if is_restarted else Corrupt)
        assert "12" in str(report.error)
        assert await bodies(tier) == ([b"7", b"9", b"12"] if is_committed else [b"7"])

    asyncio.run(run())


@pytest.mark.parametrize("first_offset", [1, 9])
def test_a_first_offset_above_that_of_the_tier_is_refused(first_offset: int) -> None:
    """Whether it is within the tier or behind it: it was another one before."""
    store = EntryStore()
    store.begin(7, *SOUND)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        store.first_offset = first_offset
        store.begin(9, *WRONG)
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Misuse)
        assert f"begins at offset 0 on the tier, and cannot begin at {first_offset}" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


def test_a_newest_ledger_that_is_lost_before_it_was_copied_is_found() -> None:
    """What was in it is lost, and nothing is appended behind the hole."""
    store = EntryStore()
    store.begin(7, *SOUND)
    store.begin(9, *WRONG)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        async with await store.stream_of_this_process.snapshot():
            pass
        del store.ledgers[1]
        report = await synced(store, tier)

        assert isinstance(report.error, Corrupt)
        assert "ledger behind it: expected ledger 9, which was there before" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


def test_damage_behind_a_ledger_that_shrank_is_no_lag_of_a_replica() -> None:
    store = EntryStore()
    ledger = store.begin(7, *SOUND)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        del ledger.entries[2:], ledger.timestamps_ms[2:]
        store.begin(9, *WRONG)
        store.lies[9] = {"length": -1}
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Corrupt)
        assert "ledger 9 of stream 'orders'" in str(report.error)

    asyncio.run(run())


def test_a_ledger_that_is_added_between_committed_ones_is_refused() -> None:
    store = EntryStore()
    store.begin(7, *SOUND)
    store.begin(12, *WRONG)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        store.begin(13, b"more")
        store.ledgers.insert(1, type(store.ledgers[0])(9).add(b"added").seal())
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert "ledger 12 begins at offset 4" in str(report.error)
        assert await bodies(tier) == SOUND + WRONG

    asyncio.run(run())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_ledger_that_shrank_is_refused(is_restarted: bool, is_sealed: bool) -> None:
    store = EntryStore()
    ledger = store.begin(7, *SOUND)
    ledger.is_sealed = is_sealed
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        del ledger.entries[2:], ledger.timestamps_ms[2:]
        if is_restarted:
            store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged if is_restarted else Corrupt)
        assert "orders" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.add(b"more"),
        lambda ledger: ledger.add(b""),
        lambda ledger: ledger.entries.__setitem__(0, b"longer"),
        lambda ledger: setattr(ledger, "is_sealed", False),
    ],
    ids=["grows", "grows by an empty entry", "another length", "open again"],
)
def test_a_sealed_ledger_that_changes_is_refused(change: Callable[[Ledger], object]) -> None:
    store = EntryStore()
    ledger = store.begin(7, *SOUND).seal()
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        change(ledger)
        report = await synced(store, tier)

        assert isinstance(report.error, Corrupt)
        assert "sealed ledger" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_entry_that_was_rewritten_is_found(is_restarted: bool) -> None:
    store = EntryStore()
    ledger = store.begin(7, *SOUND)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        ledger.entries[1] = b"xx"
        ledger.add(b"more")
        if is_restarted:
            store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert "ledger 7 has other entries from 0 on" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


def test_entries_that_went_before_they_were_copied_leave_a_gap() -> None:
    """They keep their offsets as far as this process has seen them."""
    store = EntryStore()
    store.begin(7, *SOUND)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        store.ledgers[0].add(b"not copied")
        store.begin(9, *WRONG)
        store.begin(10, b"last")
        async with await store.stream_of_this_process.snapshot(await tier.load_manifest("orders")):
            pass
        del store.ledgers[:2]
        for _ in range(2):  # a second look finds the same
            report = await synced(store, tier)

            assert isinstance(report.error, Diverged)
            assert "the source begins at offset 9, but offset 4 is the next to be copied" in str(report.error)

    asyncio.run(run())


def test_a_length_that_the_rest_of_a_ledger_exceeds_is_found() -> None:
    """The beginning was copied before, so the sum of all entries is not known."""
    store = EntryStore()
    ledger = store.begin(7, *SOUND)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        ledger.add(*WRONG)
        store.lies[7] = {"length": 7}
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Corrupt)
        assert "size of entries 4 to 7: expected the stated length 7, found 8" in str(report.error)
        assert await bodies(tier) == SOUND

    asyncio.run(run())


def test_a_source_that_counts_in_another_way_is_refused_even_if_all_entries_are_equal() -> None:
    """The chunk says where its ledger begins."""
    store = EntryStore()
    store.begin(7, b"same", b"same")
    ledger = store.begin(9, *[b"same"] * 3)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        del store.ledgers[0]
        ledger.add(b"same", b"same")
        store.lies[9] = {"first_offset": 1}
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert "ledger 9 begins at offset 1, not 2" in str(report.error)
        assert len(await bodies(tier)) == 5

    asyncio.run(run())


@pytest.mark.parametrize("entries", [3, 5])
def test_a_committed_ledger_of_another_size_is_refused_before_later_ones(entries: int) -> None:
    """The process restarted, so only the tier shows what the ledger had."""
    store = EntryStore()
    ledger = store.begin(7, *[b"same"] * 4)
    store.begin(9, *[b"same"] * 4)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        ledger.entries, ledger.timestamps_ms = [b"same"] * entries, [1] * entries
        store.begin(12, *[b"same"] * 4)
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert len(await bodies(tier)) == 8

    asyncio.run(run())


def test_the_newest_committed_ledger_must_not_be_shorter_behind_later_ones() -> None:
    store = EntryStore()
    ledger = store.begin(7, *[b"same"] * 4)
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        ledger.entries, ledger.timestamps_ms = [b"same"] * 3, [1] * 3
        store.begin(12, *[b"same"] * 4)
        store.restart()
        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert len(await bodies(tier)) == 4

    asyncio.run(run())


def test_the_chunks_before_an_entry_that_cannot_be_read_are_copied() -> None:
    """The sizes are known without the entries, so the damage is found when it is copied."""

    def refuse(run: EntryRun) -> EntryRun:
        if run.first + len(run.ends) > 4:
            raise Corrupt("checksum", "a file", expected="that of entry 4", found="another", position=10**9)
        return run

    store = EntryStore(has_sizes=True, lies={7: {"run": refuse}})
    ledger = store.begin(7, *[b"%d" % number for number in range(6)])
    ledger.timestamps_ms = [number * 2000 for number in range(6)]  # each is a chunk by itself
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        for _ in range(2):
            report = await synced(store, tier)
            assert isinstance(report.error, Corrupt)
            assert "at offset 4" in str(report.error)
            assert await bodies(tier) == ledger.entries[:4]
        store.lies.clear()
        assert (await synced(store, tier)).error is None
        assert await bodies(tier) == ledger.entries

    asyncio.run(run())
