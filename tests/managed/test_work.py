"""Claims about the work of a managed ledger that only a slow log, a rival or a full disk shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload import StreamWriter
from offload.contracts.events import StreamPaused, StreamResumed
from offload.contracts.log import LocalLedger
from offload.ground.env import Env
from offload.ground.errors import (
    Denied,
    Diverged,
    Divergence,
    Fenced,
    NoSpace,
    StreamDeleted,
    Throttled,
    TryAgain,
)
from offload.ground.pause import RETRY_SECONDS_MAX
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.managed.budget import ByteBudget
from offload.managed.chores import Chore
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.ledgers import ManagedLedgers
from offload.managed.policy import LedgerPolicy, WhenFull
from offload.two_sides.choice import ReadPriority
from offload.upkeep.retention import Retention, delete_stream, trim

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


class SlowLog(MemoryLog):
    """A log whose appends wait until they may begin, and until they may return."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(STREAM, disk=disk)
        self.may_begin, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.may_begin.set()
        self.may_go_on.set()

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """Wait, append, and wait."""
        await self.may_begin.wait()
        offset = await super().append(records, timestamp_ms=timestamp_ms)
        await self.may_go_on.wait()
        return offset

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """Wait, and seal."""
        await turns(5)
        return await super().roll(now_ms=now_ms)


class TickingWorld(World):
    """A world in which a millisecond passes with each look at the wall clock."""

    def env(self) -> Env:
        def now_ms() -> int:
            self.clock.now += 0.001
            return round(self.clock.now * 1000)

        return replace(super().env(), now_ms=now_ms)


async def turns(count: int = 20) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_an_owner_that_knew_the_tier_does_not_trim_what_a_rival_has_claimed_since() -> None:
    async def scenario(world: World) -> None:
        keeps = LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None, retention_seconds=300)
        owner = await world.open(keeps)
        await fill(owner, 10, 10, 0)
        await owner.step()
        await StreamWriter.claim(world.tier(), STREAM, env=world.env())
        world.clock.now += 1000

        await owner.step()

        assert isinstance(owner.error, Fenced)
        assert (await world.tier().load_manifest(STREAM)).first_offset == 0

    run(scenario)


def test_retention_by_size_counts_what_only_the_log_has() -> None:
    async def scenario(world: World) -> None:
        policy = LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None, retention_size_bytes=1000)
        ledger = await world.open(policy)
        await fill(ledger, 5, 5, 0, size_bytes=8)  # 62 bytes of log for each record
        await ledger.step()
        assert (await world.tier().load_manifest(STREAM)).first_offset == 0
        await fill(ledger, 8, size_bytes=8)  # the tier has less than the limit, and both have more

        await ledger.step()

        assert (await world.tier().load_manifest(STREAM)).first_offset == 5

    run(scenario)


def test_a_ledger_that_never_paused_is_not_reported_as_resumed() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 5, 5)
        for _ in range(3):
            await ledger.step()

        assert world.told(StreamPaused) == world.told(StreamResumed) == 0

    run(scenario)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_chore_that_is_due_again_at_once_leaves_a_moment_to_appends(seconds: float) -> None:
    async def scenario(world: World) -> None:
        work = (await world.open(LAG))._background
        work._chores[0].due_seconds = lambda: seconds

        assert await work.run() == 0.01

    run(scenario)


def test_a_deletion_that_fails_after_the_copy_is_gone_is_no_loss() -> None:
    class HalfDeletes(MemoryLog):
        async def delete(self, ledger_id: int) -> None:
            await super().delete(ledger_id)
            raise TryAgain("the folder could not be synced")

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG, log=HalfDeletes(STREAM, disk=world.disk))
        await fill(ledger, 5, 5)
        await ledger.step()
        world.clock.now += 61
        await ledger.step()
        assert isinstance(ledger.error, TryAgain)
        world.clock.now += RETRY_SECONDS_MAX

        await ledger.step()

        assert ledger.error is None
        assert world.local() == [5]

    run(scenario)


def test_chores_that_pause_for_one_reason_are_one_event() -> None:
    async def scenario(world: World) -> None:
        work = (await world.open(LAG))._background
        for chore, error in zip(work._chores, (Denied("a"), Denied("b"), NoSpace("c")), strict=False):
            chore.pause.wait(error)

        work._report({"NoSpace"})
        assert world.told(StreamPaused) == 1

        work._report({"NoSpace", "Denied"})
        assert world.told(StreamPaused) == 1

    run(scenario)


@pytest.mark.parametrize("kind", [Divergence.GAP, None])
def test_only_a_tier_that_has_the_offsets_of_appends_refuses_them(kind: Divergence | None) -> None:
    """If the tier ends before the log, no append gives an offset a second time."""

    async def scenario(world: World) -> None:
        work = (await world.open(LAG))._background

        assert not work.note(Diverged("the tier lost its end", kind=kind))
        assert work.diverged is None
        for kind_of_other, is_new in ((Divergence.BEHIND, True), (Divergence.FORK, False)):
            assert work.note(Diverged("the tier has other records", kind=kind_of_other)) is is_new

    run(scenario)


def test_a_copy_that_stays_in_doubt_is_looked_at_in_minutes_and_not_at_once() -> None:
    """All of the tier was trimmed. Its lag is over, and nothing can be compared."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 5, 5)
        await ledger.step()
        await ledger.close()
        await trim(world.tier(), STREAM, Retention(before_offset=5), env=world.env())
        ledger = await world.open(LAG)
        world.clock.now += 61
        await ledger.step()

        assert world.local() == [0, 5]
        assert await ledger.step() >= 60

    run(scenario)


@pytest.mark.parametrize("lag_ms", range(8))
def test_a_lag_that_ends_during_a_step_is_no_doubt(lag_ms: int) -> None:
    """The wall clock goes on between a rule and the plan of the next step."""

    async def scenario() -> None:
        world = TickingWorld()
        ledger = await world.open(replace(LAG, deletion_lag_seconds=lag_ms / 1000))
        await fill(ledger, 5, 5)
        for _ in range(20):
            seconds = await ledger.step()
            if world.local() == [5]:
                return
            assert seconds < 1
            world.clock.now += seconds
        pytest.fail("the copies stay")

    asyncio.run(scenario())


def test_an_append_that_waited_for_others_is_refused_if_they_have_filled_the_log() -> None:
    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            roll_size_bytes=100, roll_seconds=None, local_size_bytes_max=200, when_full=WhenFull.REJECT
        )
        log = SlowLog(world.disk)
        ledger = await ManagedLedger.open(
            log, world.tier(), policy=policy, budget=ByteBudget(300), env=world.env()
        )
        log.may_begin.clear()
        first, second = (asyncio.create_task(ledger.append([bytes(300)])) for _ in range(2))
        await turns()
        log.may_begin.set()

        assert await first == 0
        with pytest.raises(Throttled):
            await second
        assert ledger.next_offset == 1

    run(scenario)


def test_an_append_during_which_the_ledger_was_fenced_is_not_acknowledged() -> None:
    async def scenario(world: World) -> None:
        log = SlowLog(world.disk)
        ledger = await world.open(LAG, log=log)
        await fill(ledger, 5, 5)
        await ledger.step()
        log.may_go_on.clear()
        under_way = asyncio.create_task(ledger.append([b"late"]))
        await turns()
        await StreamWriter.claim(world.tier(), STREAM, env=world.env())
        await ledger.roll()
        await ledger.step()
        assert ledger.state is LedgerState.FENCED
        log.may_go_on.set()

        with pytest.raises(Fenced):
            await under_way

    run(scenario)


def test_appends_that_pass_the_size_together_seal_no_small_ledger() -> None:
    async def scenario(world: World) -> None:
        log = SlowLog(world.disk)
        policy = LedgerPolicy(offload_size_bytes=None, roll_size_bytes=200, roll_seconds=None)
        ledger = await world.open(policy, log=log)

        async def late() -> None:
            """Append to the next ledger, while other appends still wait to seal the one before it."""
            while len(log.ledgers) == 1:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0)
            await ledger.append([b"late"])

        await asyncio.gather(late(), *(ledger.append([bytes(200)]) for _ in range(4)))

        assert world.local() == [0, 4]
        assert len(await bodies(ledger)) == 5

    run(scenario)


def test_a_reader_that_finds_an_older_tombstone_does_not_fence_a_new_stream() -> None:
    """The stream of this name was deleted before, and the new one has nothing on the tier yet."""

    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=None, roll_seconds=None, read_priority=ReadPriority.TIER_ONLY
        )
        first = await world.open(MANUAL)
        await fill(first, 5, 0)
        await first.offload_prefix(5)
        await first.close()
        await delete_stream(world.tier(), STREAM, env=world.env())
        new = World(clock=world.clock, store=world.store)
        ledger = await new.open(policy)
        await ledger.append([b"new"])

        with pytest.raises(StreamDeleted):
            await bodies(ledger)

        assert ledger.state is LedgerState.OPEN
        assert await ledger.append([b"more"]) == 1

    run(scenario)


def test_a_chore_that_fails_is_tried_again_after_longer_and_longer_times() -> None:
    async def scenario(world: World) -> None:
        runs, pauses = 0, list[float]()

        async def fail() -> None:
            nonlocal runs
            runs += 1
            raise TryAgain("the store does not answer")

        chore = Chore(run=fail, due_seconds=lambda: 0.0, env=world.env())
        for _ in range(12):
            await chore.turn()
            await chore.turn()  # too early
            pauses.append(chore.seconds)
            world.clock.now += chore.seconds

        assert runs == 12
        assert max(pauses[:1]) <= 1
        assert 10 < max(pauses) <= RETRY_SECONDS_MAX
        assert chore.pause.kind == ""

    run(scenario)


def test_a_read_does_not_deliver_what_a_rival_has_written_behind_the_end_of_the_log() -> None:
    """It begins on the tier, where the local copy is gone, and the tier goes on beyond this log."""

    async def scenario(world: World) -> None:
        owner = await world.open(LAG)
        records = await fill(owner, 5, 5)
        await owner.step()
        world.clock.now += 61
        await owner.step()
        rival = await World(clock=world.clock, disk=world.copied_disk(), store=world.store).open(LAG)
        await fill(rival, 0, 5, 0)
        await rival.step()
        found: list[bytes] = []

        async def read() -> None:
            async for batch in owner.read(0):
                found.extend(batch.bodies)

        with pytest.raises((Diverged, Fenced)):
            await read()

        assert found == records[: len(found)]
        with pytest.raises((Diverged, Fenced)):
            await owner.append([b"more"])

    run(scenario)


def test_a_ledger_that_is_woken_again_and_again_leaves_no_moments_behind() -> None:
    async def scenario(world: World) -> None:
        async with ManagedLedgers(world.tier(), env=world.env()) as ledgers:
            ledger = await ledgers.open(MemoryLog(STREAM))
            await turns()
            for rank in range(1000):
                ledgers._wake(ledger, 3000 - rank)

            assert len(ledgers._heap) < 200

    run(scenario)
