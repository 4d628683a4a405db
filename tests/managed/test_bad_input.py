"""Managed ledgers over a broken log, clock, disk, tier or notes. In doubt, no local copy is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload import (
    ObjectStoreOffloader,
    Retention,
    StreamWriter,
    TierOptions,
    delete_stream,
    trim,
)
from offload.contracts.events import LedgersOffloaded, LocalLedgerDeleted, StreamPaused, StreamResumed
from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LocalLedger
from offload.contracts.store import Buffer
from offload.ground.errors import (
    BeingRebuilt,
    Corrupt,
    Denied,
    Diverged,
    Fenced,
    Misuse,
    NoSpace,
    OffloadError,
    RootsLost,
    StreamDeleted,
    TryAgain,
)
from offload.log.folder_log import FolderLog
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.managed.cursors import StoreCursors
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.log_source import LogStream
from offload.managed.policy import LedgerPolicy
from offload.managed.rules import LedgerAction
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.store.faults import Fault, Rule
from offload.store.memory import MemoryStore

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


class BentLog(MemoryLog):
    """A log whose answers a test bends."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(STREAM, disk=disk)
        self.bend: Callable[[list[LocalLedger]], list[LocalLedger]] = lambda ledgers: ledgers
        self.handle: Callable[[ReadHandle], ReadHandle] = lambda handle: handle
        self.errors: dict[str, OffloadError] = {}
        self.committed: int | None = None

    def _raise(self, name: str) -> None:
        if name in self.errors:
            raise self.errors[name]

    @property
    def ledgers(self) -> Sequence[LocalLedger]:
        return self.bend(list(super().ledgers))

    @property
    def committed_offset(self) -> int:
        return super().committed_offset if self.committed is None else self.committed

    async def open_ledger(self, ledger_id: int) -> ReadHandle:
        return self.handle(await super().open_ledger(ledger_id))

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        self._raise("append")
        return await super().append(records, timestamp_ms=timestamp_ms)

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        self._raise("roll")
        return await super().roll(now_ms=now_ms)

    async def save_note(self, name: str, data: bytes) -> None:
        self._raise("save_note")
        await super().save_note(name, data)


class BentHandle(ReadHandle):
    """A handle whose table or data a test bends."""

    def __init__(
        self,
        inner: ReadHandle,
        *,
        table: Callable[[ChunkTable], ChunkTable] = lambda table: table,
        data: Callable[[bytes], bytes] = lambda data: data,
    ) -> None:
        self._inner, self._table, self._bent = inner, table, data

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def first_offset(self) -> int:
        return self._inner.first_offset

    @property
    def next_offset(self) -> int:
        return self._inner.next_offset

    @property
    def where(self) -> str:
        return self._inner.where

    async def table(self) -> ChunkTable:
        return self._table(await self._inner.table())

    async def read(self, rows: ChunkTable) -> Buffer:
        return self._bent(bytes(await self._inner.read(rows)))


# The log.


def test_a_sealed_ledger_of_zero_length_is_corrupt_and_nothing_is_copied() -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        await fill(ledger, 10, 5)
        empty = LocalLedger(ledger_id=5, first_offset=10, next_offset=10, size_bytes=0, closed_ms=1)
        log.bend = lambda ledgers: [ledgers[0], empty, ledgers[1]]

        await ledger.step()

        assert isinstance(ledger.error, Corrupt)
        assert await world.complete() == []
        with pytest.raises(Corrupt):
            await world.open(LAG, log=log)

    run(scenario)


@pytest.mark.parametrize(
    "bend",
    [
        lambda each: replace(each, size_bytes=each.size_bytes + 1),
        lambda each: replace(each, size_bytes=0),
        lambda each: replace(each, next_offset=each.next_offset - 1),
        lambda each: replace(each, next_offset=each.next_offset + 1),
        lambda each: replace(each, first_offset=each.first_offset + 1),
    ],
)
def test_a_log_that_states_a_wrong_length_is_corrupt_and_keeps_its_copies(
    bend: Callable[[LocalLedger], LocalLedger],
) -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        await fill(ledger, 10, 10, 5)
        log.bend = lambda ledgers: [bend(each) if each.ledger_id == 10 else each for each in ledgers]

        for _ in range(3):
            await ledger.step()
            world.clock.now += 400

        assert isinstance(ledger.error, Corrupt)
        assert world.told(StreamPaused) == 1
        assert world.local()[-2:] == [10, 20]
        assert 10 not in await world.complete()

    run(scenario)


@pytest.mark.parametrize("what", ["table", "data"])
def test_records_out_of_order_are_corrupt_and_those_before_them_are_kept(what: str) -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        await fill(ledger, 10, 10, 5)

        def swapped(table: ChunkTable) -> ChunkTable:
            return table[[1, 0, *range(2, len(table))]]

        def turned(data: bytes) -> bytes:
            half = 62
            return data[half : 2 * half] + data[:half] + data[2 * half :] if len(data) > half else data

        def bent(handle: ReadHandle) -> ReadHandle:
            if handle.first_offset != 10:
                return handle
            return BentHandle(handle, table=swapped) if what == "table" else BentHandle(handle, data=turned)

        log.handle = bent
        for _ in range(3):
            await ledger.step()
            world.clock.now += 400

        assert isinstance(ledger.error, Corrupt)
        assert 10 in world.local()
        log.handle = lambda handle: handle
        world.clock.now += 400
        await ledger.step()
        assert ledger.error is None
        assert world.told(StreamResumed) == 1
        assert (await world.tier().load_manifest(STREAM)).next_offset == 20

    run(scenario)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_sealed_ledger_that_is_lost_while_the_log_is_open_pauses_the_ledger(lost: int) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        del world.disk.ledgers[lost]

        await ledger.step()

        assert isinstance(ledger.error, Corrupt)
        assert await world.complete() == []
        with pytest.raises(Corrupt):
            await ledger.offload_prefix(22)

    run(scenario)


def test_a_ledger_that_is_lost_between_two_openings_is_a_gap_that_a_person_decides() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10)
        await ledger.step()
        await fill(ledger, 0, 5)
        await ledger.close()
        del world.disk.ledgers[:2]
        ledger = await world.open(LAG)
        await ledger.roll()

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert await world.complete() == [0]
        assert world.local() == [20, 25]
        assert await ledger.append([b"more"]) == 25  # no offset is given twice

    run(scenario)


def test_a_hole_between_two_openings_is_corrupt() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.close()
        del world.disk.ledgers[1]

        with pytest.raises(Corrupt, match="first offset of a ledger"):
            await world.open(LAG)

    run(scenario)


def test_what_a_replicated_log_does_not_acknowledge_is_not_offloaded_nor_shown() -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        records = await fill(ledger, 10, 10, 5)
        log.committed = 15

        assert await ledger.step() > 1
        assert ledger.error is None
        assert await world.complete() == [0]
        with pytest.raises(TryAgain, match="acknowledges records up to offset 15"):
            await ledger.offload_prefix(22)
        assert await bodies(ledger) == records[:15]
        log.committed = None
        await ledger.step()
        assert await world.complete() == [0, 10]

    run(scenario)


def test_an_entry_that_is_larger_than_a_fragment_has_a_fragment_of_its_own() -> None:
    async def scenario(world: World) -> None:
        tier = ObjectStoreOffloader(
            world.store, env=world.env(), options=TierOptions(fragment_size_bytes=1000)
        )
        world.tier = lambda: tier  # type: ignore[method-assign]
        ledger = await world.open(LAG)
        records = [b"small", b"x" * 5000, b"small too"]
        for each in records:
            await ledger.append([each])
        await ledger.roll()

        await ledger.step()
        world.clock.now += 61
        await ledger.step()

        assert world.local() == [3]
        assert len(await world.attempts()) > 1
        assert await bodies(ledger) == records

    run(scenario)


# The disk.


def test_a_disk_that_fills_during_an_append_acknowledges_nothing_and_later_goes_on() -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        records = await fill(ledger, 10, 5)
        log.errors["append"] = NoSpace("the disk is full")
        with pytest.raises(NoSpace):
            await ledger.append([b"lost"])
        del log.errors["append"]

        assert await ledger.append([b"kept"]) == 15
        assert await bodies(ledger) == [*records, b"kept"]

    run(scenario)


def test_an_append_whose_ledger_cannot_be_sealed_is_acknowledged_once_and_sealed_later() -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(replace(LAG, roll_size_bytes=100), log=log)
        log.errors["roll"] = NoSpace("the disk is full")

        assert await ledger.append([b"x" * 200]) == 0
        await ledger.step()
        assert isinstance(ledger.error, NoSpace)
        del log.errors["roll"]
        world.clock.now += 400
        await ledger.step()

        assert ledger.error is None
        assert await world.complete() == [0]
        assert await bodies(ledger) == [b"x" * 200]

    run(scenario)


def test_a_full_disk_does_not_keep_copies_from_being_deleted() -> None:
    """What is on the tier must go, or the disk stays full."""

    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(replace(LAG, roll_seconds=100), log=log)
        await fill(ledger, 10, 5)
        await ledger.step()
        log.errors.update(roll=NoSpace("full"), save_note=NoSpace("full"))
        ledger.open_cursor("a")
        world.clock.now += 200

        await ledger.step()

        assert world.local() == [10]
        assert isinstance(ledger.error, NoSpace)
        assert world.told(LocalLedgerDeleted) == 1

    run(scenario)


# The clock.


def test_a_clock_that_jumps_ahead_deletes_nothing_by_age() -> None:
    async def scenario(world: World) -> None:
        policy = LedgerPolicy(deletion_lag_seconds=None, retention_seconds=5000, roll_seconds=None)
        ledger = await world.open(policy)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        world.clock.skew_seconds = 30 * 86_400

        await ledger.step()

        assert isinstance(ledger.error, Denied)
        assert (await world.tier().load_manifest(STREAM)).first_offset == 0
        assert world.local() == [0, 10, 20]
        world.clock.skew_seconds = 0
        world.clock.now += 400
        await ledger.step()
        assert ledger.error is None

    run(scenario)


def test_a_clock_that_jumps_ahead_does_not_delete_the_only_copy() -> None:
    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=None, deletion_lag_seconds=None, retention_seconds=5000, roll_seconds=None
        )
        ledger = await world.open(policy)
        await fill(ledger, 10, 10, 5)
        world.clock.skew_seconds = 30 * 86_400

        await ledger.step()

        assert isinstance(ledger.error, Denied)
        assert world.local() == [0, 10, 20]

    run(scenario)


def test_a_clock_that_jumps_back_keeps_copies_longer_and_wakes_the_ledger_within_an_hour() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 5)
        await ledger.step()
        world.clock.skew_seconds = -86_400
        world.clock.now += 61

        assert 1 <= await ledger.step() <= 3600
        assert world.local() == [0, 10]
        assert ledger.error is None
        world.clock.skew_seconds = 0
        await ledger.step()
        assert world.local() == [10]
        assert await bodies(ledger) == records

    run(scenario)


def test_a_lag_that_a_jump_ends_early_deletes_only_what_the_tier_has() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 5)
        await ledger.step()
        await fill(ledger, 0, 10)
        world.store.rules = [Rule(Fault.DENY, "put")]
        await ledger.roll()
        world.clock.skew_seconds = 30 * 86_400

        await ledger.step()

        assert world.local()[0] == 10
        assert (await bodies(ledger))[:15] == records

    run(scenario)


# The tier.


def strip(world: World, keep: Callable[[str], bool]) -> None:
    """Delete the objects that are not kept, as somebody with access to the bucket does."""
    store = world.store.inner
    assert isinstance(store, MemoryStore)
    for key in [key for key in store.objects if not keep(key)]:
        del store.objects[key]


GONE: dict[str, tuple[Callable[[str], bool], type[OffloadError] | tuple[type[OffloadError], ...]]] = {
    "the roots": (lambda key: "/root." not in key, (RootsLost, Diverged)),
    "the fragments": (lambda key: not key.endswith(".fragment"), Corrupt),
    "all": (lambda key: False, Diverged),
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("what", sorted(GONE))
def test_a_tier_that_is_deleted_behind_our_back_costs_no_local_copy(what: str, is_restarted: bool) -> None:
    keep, expected = GONE[what]

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 10, 5)
        await ledger.step()
        strip(world, keep)
        if is_restarted:
            await ledger.close()
            ledger = await world.open(LAG)

        for _ in range(3):
            world.clock.now += 400
            await ledger.step()

        assert isinstance(ledger.error, expected)
        assert world.told(StreamPaused) == 1
        assert world.local() == [0, 10, 20]
        assert world.told(LocalLedgerDeleted) == 0
        assert await ledger.append([b"goes on"]) == 25  # the log is the only copy now, and keeps all
        if what != "the fragments":  # a reader compares the histories, and finds them missing
            assert await bodies(ledger, 20) == [*records[20:], b"goes on"]

    run(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_that_is_deleted_on_the_tier_fences_the_ledger_and_keeps_the_log(is_restarted: bool) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        await delete_stream(world.tier(), STREAM, env=world.env())
        if is_restarted:
            await ledger.close()
            ledger = await world.open(LAG)
        world.clock.now += 400

        await ledger.step()

        assert isinstance(ledger.error, StreamDeleted)
        assert ledger.state is LedgerState.FENCED
        assert world.local() == [0, 10, 20]
        with pytest.raises(Fenced):
            await ledger.append([b"more"])
        await ledger.delete()  # whoever wants it gone everywhere can go on
        assert world.disk.ledgers == []

    run(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("count", [5, 40])
def test_a_stream_that_somebody_began_again_costs_no_local_copy(is_restarted: bool, count: int) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        await delete_stream(world.tier(), STREAM, env=world.env())
        somebody = World(clock=world.clock, store=world.store)
        other = await somebody.open(LAG)
        await fill(other, count, 0)
        await other.step()
        if is_restarted:
            await ledger.close()
            ledger = await world.open(LAG)

        for _ in range(3):
            world.clock.now += 400
            await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert world.local() == [0, 10, 20]
        assert (await world.tier().load_manifest(STREAM)).next_offset == count
        if is_restarted:
            with pytest.raises(Diverged):
                await ledger.offload_prefix(22)
        else:  # it knows which stream was its own
            with pytest.raises(Diverged):
                await ledger.delete()
            assert world.disk.ledgers

    run(scenario)


def test_a_fragment_that_is_damaged_on_the_tier_keeps_the_local_copy() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        store = world.store.inner
        assert isinstance(store, MemoryStore)
        key = world.data[0]
        store.objects[key] = store.objects[key][:-1] + bytes([store.objects[key][-1] ^ 1])
        world.clock.now += 400

        await ledger.step()

        assert isinstance(ledger.error, Corrupt)
        assert world.local() == [0, 10, 20]

    run(scenario)


def test_a_stream_that_was_deleted_can_be_begun_again_under_its_name() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        await ledger.step()
        await ledger.delete()
        assert await world.complete() == []

        ledger = await world.open(LAG)
        records = await fill(ledger, 5, 1)
        await ledger.step()

        assert ledger.error is None
        assert await world.complete() == [0]
        assert await bodies(ledger) == records

    run(scenario)


def test_a_deletion_whose_request_was_lost_can_be_repeated() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        await ledger.step()
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        with pytest.raises(OffloadError):
            await ledger.delete()
        assert world.local() == [0, 10]
        assert await ledger.append([b"it is as before"]) == 15
        world.store.rules = []

        await ledger.delete()

        assert ledger.state is LedgerState.CLOSED
        assert world.disk.ledgers == []

    run(scenario)


def test_a_deletion_that_stops_half_way_takes_no_append_and_can_be_repeated() -> None:
    async def scenario(world: World) -> None:
        log = BentLog(world.disk)
        ledger = await world.open(LAG, log=log)
        await fill(ledger, 10, 5)
        ledger.open_cursor("a")
        await ledger.step()
        log.errors["save_note"] = NoSpace("full")
        with pytest.raises(NoSpace):
            await ledger.delete()
        with pytest.raises(Misuse, match="half deleted"):
            await ledger.append([b"more"])
        log.errors.clear()

        await ledger.delete()

        assert world.disk.ledgers == []

    run(scenario)


def test_a_reader_gets_local_records_while_the_tier_is_away() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 10, 5)
        await ledger.step()
        await ledger.offload_prefix(10)
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]

        assert await bodies(ledger, 12) == records[12:]
        world.clock.now += 61
        world.store.rules = []
        await ledger.step()
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        with pytest.raises(TryAgain):
            await bodies(ledger, 3)  # the tier alone has it
        assert await bodies(ledger, 21) == records[21:]

    run(scenario)


# The notes.


def test_a_cursor_beyond_the_end_begins_again_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """What it acknowledged was lost with a disk, so the next records with those offsets are others."""

    async def scenario(world: World) -> None:
        place = StoreCursors(MemoryStore(), "orders")
        ledger = await world.open(MANUAL)
        await fill(ledger, 10)
        await ledger.close()
        await place.save(b'{"version": 1, "cursors": {"billing": 7, "search": 30}}')

        ledger = await type(ledger).open(
            MemoryLog(STREAM, disk=world.disk),
            world.tier(),
            policy=MANUAL,
            cursors=place,
            env=world.env(),
        )

        assert ledger.cursors == {"billing": 7, "search": 10}
        assert "'search' (30)" in caplog.text
        with pytest.raises(Misuse, match="ends at offset 10"):
            ledger.acknowledge("billing", 11)
        with pytest.raises(Misuse):
            ledger.open_cursor("new", 11)
        with pytest.raises(Misuse):
            ledger.reset_cursor("billing", 11)

    run(scenario)


@pytest.mark.parametrize(
    "note",
    [b"", b"null", b"{}", b'{"version": 1, "cursors": {"a": -1}}', b'{"version": 1, "cursors": []}', b"\xff"],
)
def test_damaged_cursors_are_corrupt_at_opening(note: bytes) -> None:
    async def scenario(world: World) -> None:
        world.disk.notes["cursors"] = note

        with pytest.raises(Corrupt, match="cursors"):
            await world.open()

    run(scenario)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\xff",
        b"5",
        b"{}",
        b"[[10, 0]]",
        b"[" * 5000,
        b'{"ends": [], "had": []}',
        b'{"ends": [[1e999, 5]], "had": null}',
        b'{"ends": [[20, 0], [10, 0]], "had": null}',
        b'{"ends": [[-1, 0]], "had": null}',
        b'{"ends": [[true, 0]], "had": null}',
        b'{"ends": [[10, 0, 1]], "had": null}',
        b'{"ends": [["10", "0"]], "had": null}',
        b'{"ends": [[99999999999999999999999, 0]], "had": null}',
        b'{"ends": [[10, 0]], "had": {"incarnation": "", "first_offset": 0.5, "next_offset": 10}}',
        b'{"ends": [[10, 0]], "had": {"incarnation": "", "first_offset": 0}}',
    ],
)
def test_a_damaged_note_of_times_only_makes_local_copies_stay_longer(note: bytes) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 5)
        await ledger.step()
        await ledger.close()
        world.disk.notes["committed"] = note
        world.clock.now += 61
        ledger = await world.open(LAG)
        await ledger.append([b"more"])

        await ledger.step()

        assert ledger.error is None
        assert world.local() == [0, 10]
        world.clock.now += 61
        await ledger.step()
        assert world.local() == [10]
        assert await bodies(ledger) == [*records, b"more"]

    run(scenario)


def test_a_failure_of_the_tier_does_not_keep_cursors_from_being_saved() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        world.store.rules = [Rule(Fault.DENY)]
        await ledger.step()
        assert isinstance(ledger.error, Denied)
        ledger.open_cursor("a", 0)
        ledger.acknowledge("a", 7)
        world.clock.now += 1

        await ledger.step()

        assert b'"a": 7' in world.disk.notes["cursors"]
        assert isinstance(ledger.error, Denied)

    run(scenario)


def test_local_retention_asks_the_tier_before_it_deletes_the_only_copy() -> None:
    """The stream was offloaded by hand by a process before. Its log must not leave a gap behind the tier."""

    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=None, deletion_lag_seconds=None, retention_seconds=300, roll_seconds=None
        )
        ledger = await world.open(policy)
        await fill(ledger, 10, 10, 10, 5)
        ledger.open_cursor("slow")
        await ledger.offload_prefix(10)
        await ledger.close()
        del world.disk.notes["committed"]
        ledger = await world.open(policy)
        ledger.drop_cursor("slow")
        world.clock.now += 400

        await ledger.step()
        await ledger.offload_prefix(32)

        assert (await world.complete())[-1] == 20
        assert (await world.tier().load_manifest(STREAM)).next_offset == 30

    run(scenario)


def test_a_plan_names_what_the_next_step_does_and_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10)
        await ledger.step()
        world.clock.now += 61
        await fill(ledger, 0, 10, 5)

        plan = await ledger.plan()

        assert [each.action for each in plan.ledgers] == [
            LedgerAction.DELETE_LOCAL,
            LedgerAction.OFFLOAD,
            LedgerAction.OFFLOAD,
            LedgerAction.KEEP,
        ]
        assert world.told(LocalLedgerDeleted) == 0
        before = world.told(LedgersOffloaded)
        await ledger.step()
        assert world.told(LedgersOffloaded) == before + 1
        assert world.told(LocalLedgerDeleted) == 1

    run(scenario)


def test_a_cancelled_offload_is_taken_up_again_and_names_nothing_twice() -> None:
    """Cancelled at each request in turn: a commit may be accepted although its caller was cancelled."""
    for nth in range(1, 60):
        if asyncio.run(_cancelled_at(nth)):
            return
    raise AssertionError("the offload has more requests than this test cancels")


async def _cancelled_at(nth: int) -> bool:
    """Cancel an offload after a request, and check the next one. Return True if it ended before."""
    world = World()
    ledger = await world.open(LAG)
    records = await fill(ledger, 10, 10, 5)
    reached, released, seen = asyncio.Event(), asyncio.Event(), 0

    async def pause(_operation: str, _key: str) -> None:
        nonlocal seen
        seen += 1
        if seen == nth:
            reached.set()
            await released.wait()

    world.store.after = pause
    task, waiter = asyncio.create_task(ledger.step()), asyncio.create_task(reached.wait())
    await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    is_over = task.done()
    task.cancel()
    waiter.cancel()
    await asyncio.sleep(0)
    released.set()  # some requests are finished although their caller was cancelled
    await asyncio.gather(task, waiter, return_exceptions=True)

    await ledger.step()

    assert ledger.error is None, (nth, ledger.error)
    assert (await world.tier().load_manifest(STREAM)).next_offset == 20
    assert await bodies(ledger) == records
    return is_over


def test_random_bytes_are_no_note_that_passes() -> None:
    random = Random(1)

    async def scenario(world: World) -> None:
        for _ in range(50):
            world.disk.notes["committed"] = random.randbytes(random.randrange(40))
            ledger = await world.open(LAG)
            assert ledger.error is None
            await ledger.close()

    run(scenario)


def test_a_writer_of_its_own_that_claims_the_stream_fences_the_ledger_in_every_call() -> None:
    async def scenario(world: World) -> None:
        for call in ("step", "plan", "offload_prefix", "delete"):
            world = World()
            ledger = await world.open(LAG)
            await fill(ledger, 10, 0)
            await ledger.step()
            await fill(ledger, 10, 5)
            await StreamWriter.claim(world.tier(), STREAM, env=world.env())
            if call == "step":
                await ledger.step()
            else:
                with pytest.raises(Fenced):
                    await (ledger.offload_prefix(22) if call == "offload_prefix" else getattr(ledger, call)())
            assert ledger.state is LedgerState.FENCED, call
            assert world.told(StreamPaused) == 1
            assert world.local() == [0, 10, 20]

    run(scenario)


def test_a_stream_that_is_being_rebuilt_is_neither_lost_nor_begun_nor_deleted() -> None:
    async def scenario(world: World) -> None:
        is_rebuilt = False

        class Rebuilding(ObjectStoreOffloader):
            async def load_manifest(self, stream: str) -> Manifest:
                if not is_rebuilt:
                    return await super().load_manifest(stream)
                raise BeingRebuilt(f"stream {stream!r} is being rebuilt")

        tier = Rebuilding(world.store, env=world.env())
        world.tier = lambda: tier  # type: ignore[method-assign]
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        is_rebuilt = True

        await ledger.step()

        assert isinstance(ledger.error, BeingRebuilt)
        assert world.objects == {}
        with pytest.raises(BeingRebuilt):
            await ledger.delete()
        assert world.local() == [0, 10]

    run(scenario)


def test_a_tier_that_somebody_trimmed_to_nothing_proves_nothing_so_copies_stay() -> None:
    """There is no chunk to compare. The next offload compares, and then they go."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        await ledger.step()
        await ledger.close()
        await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())
        ledger = await world.open(LAG)
        world.clock.now += 400

        await ledger.step()
        assert ledger.error is None
        assert world.local() == [0, 10]
        await ledger.roll()
        await ledger.step()

        assert world.local() == [10, 15]

    run(scenario)


def test_a_tier_that_is_deleted_when_no_local_copy_is_left_is_not_begun_anew() -> None:
    """The note about its last end is all that proves that there was something."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 0)
        await ledger.step()
        world.clock.now += 61
        await ledger.step()
        assert world.local() == [10]
        await fill(ledger, 5)
        await ledger.close()
        strip(world, lambda key: False)

        ledger = await world.open(LAG)
        await ledger.roll()
        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert world.objects == {}
        assert world.local() == [10, 15]

    run(scenario)


def test_a_note_of_times_that_is_too_long_counts_as_none(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        (tmp_path / "note.committed").write_bytes(bytes(2**20 + 1))
        log = await FolderLog.open(tmp_path, name=STREAM)

        ledger = await ManagedLedger.open(log, world.tier(), policy=MANUAL)

        assert await ledger.append([b"one"]) == 0
        await ledger.close()

    run(scenario)


def test_who_waits_for_a_log_is_woken_by_what_it_acknowledges_after_the_append() -> None:
    class LateLog(MemoryLog):
        acknowledged = 0

        @property
        def committed_offset(self) -> int:
            return self.acknowledged

    async def scenario(world: World) -> None:
        log = LateLog(STREAM, disk=world.disk)
        stream = LogStream(log)
        waiting = asyncio.ensure_future(stream.changed(await stream.mark()))
        await log.append([b"one"], timestamp_ms=1)
        await asyncio.sleep(0)
        stream.wake()
        await asyncio.sleep(0.01)
        assert not waiting.done()

        log.acknowledged = 1

        assert await asyncio.wait_for(waiting, 60)

    run(scenario)


@pytest.mark.parametrize("is_fenced_first", [True, False])
def test_a_fenced_ledger_leaves_the_cursors_to_the_next_owner_however_it_is_closed(
    is_fenced_first: bool,
) -> None:
    async def scenario(world: World) -> None:
        place = StoreCursors(MemoryStore(), "orders")
        ledger = await ManagedLedger.open(
            MemoryLog(STREAM, disk=world.disk),
            world.tier(),
            policy=LAG,
            cursors=place,
            env=world.env(),
        )
        ledger.open_cursor("a")
        await fill(ledger, 10, 0)
        await ledger.step()
        await fill(ledger, 10, 5)
        ledger.acknowledge("a", 7)
        await StreamWriter.claim(world.tier(), STREAM, env=world.env())
        theirs = b'{"version": 1, "cursors": {"a": 9}}'
        await place.save(theirs)
        if is_fenced_first:
            with pytest.raises(Fenced):
                await ledger.plan()
        # A close that is cancelled while it waits for work that runs.
        working = asyncio.ensure_future(ledger.plan()) if not is_fenced_first else None
        await asyncio.sleep(0)
        if working is None:
            await ledger._work.acquire()
        closing = asyncio.ensure_future(ledger.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        if working is None:
            ledger._work.release()
        else:
            with pytest.raises(Fenced):
                await working

        await ledger.close()

        assert await place.load() == theirs

    run(scenario)
