"""Values that a caller of managed ledgers gets wrong: each is refused at once, with what is right."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from managed_world import STREAM, World, bodies, fill, run

from offload import AtOffset, AtTime, Blocking, Body, ObjectStoreOffloader, PartOffset, StreamReader
from offload.ground.errors import Corrupt, Misuse, Throttled
from offload.log.folder_log import FolderLog
from offload.log.memory_log import MemoryLog
from offload.managed.cursors import StoreCursors
from offload.managed.ledger import ManagedLedger
from offload.managed.ledgers import ManagedLedgers
from offload.managed.policy import LedgerPolicy, WhenFull
from offload.store.memory import MemoryStore
from offload.two_sides.choice import ReadPriority
from offload.two_sides.tiered import TieredReader


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("when_full", "rejct", "when_full is one of 'block', 'reject', 'grow', not 'rejct'"),
        ("when_full", None, "when_full is one of"),
        ("read_priority", "tier", "read_priority is one of 'local-first', 'tier-first'"),
        ("roll_size_bytes", 1.5, "roll_size_bytes is a finite whole number of bytes"),
        ("roll_size_bytes", "64MiB", "roll_size_bytes is a finite whole number of bytes"),
        ("roll_size_bytes", None, "roll_size_bytes is a number of bytes"),
        ("local_size_bytes_max", True, "local_size_bytes_max is a finite whole number of bytes"),
        ("roll_seconds", "1h", "roll_seconds is a finite number of seconds"),
        ("retention_seconds", timedelta(hours=1), "retention_seconds is a finite number of seconds"),
        ("deletion_lag_seconds", float("nan"), "deletion_lag_seconds is a finite number of seconds"),
    ],
)
def test_an_impossible_value_of_a_policy_is_misuse_that_names_field_and_unit(
    field: str, value: Any, expected: str
) -> None:
    with pytest.raises(Misuse, match=expected):
        LedgerPolicy(**{field: value})


def test_a_choice_given_as_text_does_what_the_choice_does() -> None:
    given: Any = {"when_full": "reject", "read_priority": "tier-first"}
    policy = LedgerPolicy(roll_size_bytes=100, local_size_bytes_max=200, roll_seconds=None, **given)
    assert policy.when_full is WhenFull.REJECT
    assert policy.read_priority is ReadPriority.TIER_FIRST

    async def scenario(world: World) -> None:
        ledger = await world.open(policy)
        with pytest.raises(Throttled):
            await fill(ledger, 10)
        assert await bodies(ledger)
        await ledger.close()

    run(scenario)


@pytest.mark.parametrize("start", ["first", 1.5, None, -1, True, 2**64, AtOffset(-1)])
def test_reading_from_what_is_no_position_is_misuse(start: Any) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 1)
        for batches in (ledger.read(start), ledger.follow(start)):
            with pytest.raises(Misuse, match="is not a position"):
                await anext(batches)
        await ledger.close()

    run(scenario)
    with Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier:
        tier.append("orders", [b"one"])
        with pytest.raises(Misuse, match="is not a position"):
            next(tier.read("orders", start))


@pytest.mark.parametrize("start", ["first", 1.5, None, -1, True, 2**64, AtOffset(-1), AtTime])
def test_a_reader_refuses_what_is_no_position(start: Any) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 2, 0)
        await ledger.offload_prefix(2)
        for reader in (
            await StreamReader.open(world.tier(), STREAM),
            await TieredReader.open(ledger.source, world.tier()),
        ):
            with pytest.raises(Misuse, match="is not a position"):
                await reader.place_of(start)
            for read in (reader.messages, reader.follow):
                with pytest.raises(Misuse, match="is no offset"):
                    await anext(read(start))
        await ledger.close()

    run(scenario)


@pytest.mark.parametrize("tier", ["./tier", None, MemoryStore()])
def test_a_managed_ledger_over_what_is_no_tier_is_misuse(tier: Any) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Misuse, match=r"the tier is what `async with open_tier\(url\) as tier` opens"):
            await ManagedLedger.open(MemoryLog(STREAM), tier)
        with pytest.raises(Misuse, match="the tier is what"):
            ManagedLedgers(tier)

    run(scenario)


@pytest.mark.parametrize("log", ["./orders", None, FolderLog.open("./orders")])
def test_a_managed_ledger_over_what_is_no_log_is_misuse(log: Any) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Misuse, match="the log is a LedgerLog"):
            await ManagedLedger.open(log, world.tier())
        async with ManagedLedgers(world.tier()) as ledgers:
            with pytest.raises(Misuse, match="the log is a LedgerLog"):
                await ledgers.open(log)

    run(scenario)
    if asyncio.iscoroutine(log):
        log.close()


def test_cursors_of_any_size_are_refused_before_all_of_them_is_loaded() -> None:
    async def scenario(world: World) -> None:
        await world.store.put("cursors", Body.of(bytes(3 * 2**20)))
        place = StoreCursors(world.store, "cursors")

        with pytest.raises(Corrupt, match="size of the cursors"):
            await ManagedLedger.open(MemoryLog(STREAM), world.tier(), cursors=place)

        assert len(await place.load() or b"") == 2**20 + 1

    run(scenario)


def test_a_blocking_read_takes_an_offset() -> None:
    with Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier:
        tier.append("orders", [b"one"])
        tier.append("orders", [b"two"])
        for start in (1, AtOffset(1), PartOffset(1, 1)):
            assert [batch.bodies for batch in tier.read("orders", start)] == [[b"two"]]


@pytest.mark.parametrize("records", [b"xyz", "xyz", [], ["x"], [1], [bytearray(b"x")]])
def test_appending_anything_but_a_list_of_bytes_is_misuse(records: Any) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open()
        with pytest.raises(Misuse, match="each record is bytes"):
            await ledger.append(records)
        assert await ledger.append(each for each in [b"a", b"b"]) == 0  # type: ignore[arg-type]
        assert await bodies(ledger) == [b"a", b"b"]
        await ledger.close()

    run(scenario)
    with (
        Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier,
        pytest.raises(Misuse, match="each record is bytes"),
    ):
        tier.append("orders", records)


def test_what_an_embedder_prints_is_short_and_names_the_thing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 5)
        await ledger.offload_prefix(10)
        assert repr(ledger) == "<ManagedLedger 'orders': open, log [0, 15), tier to 10>"
        await ledger.close()
        assert repr(ledger) == "<ManagedLedger 'orders': closed, log [0, 15), tier to 10>"
        assert repr(world.tier()) == f"<ObjectStoreOffloader {world.store.url}>"
        assert repr(world.store) == f"<FaultyStore {world.store.url}>"
        assert repr(MemoryLog("a")) == "<MemoryLog 'a' in memory of 'a'>"
        async with ManagedLedgers(world.tier()) as ledgers:
            log = await FolderLog.open(tmp_path, name="b")
            assert repr(log) == f"<FolderLog 'b' in {log.where}>"
            await ledgers.open(log)
            assert repr(ledgers) == f"<ManagedLedgers on {world.store.url}: 1 open>"

    run(scenario)
    with Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier:
        assert repr(tier) == f"<Blocking of {MemoryStore().url}>"
    assert repr(tier) == f"<Blocking of {MemoryStore().url}, closed>"
