"""Jobs beside an owner: they need no claim, so the owner's fence does not show what they appended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from managed_world import MANUAL, STREAM, World, contribute, fill, run

from offload import build_chunk
from offload.ground.errors import Conflict, Diverged, Divergence, TryAgain
from offload.managed.ledger import ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.store.faults import Fault, Rule
from offload.two_sides.choice import ReadPriority
from offload.upkeep.compact.stream import compact
from offload.upkeep.retention import Retention, trim

LAG = LedgerPolicy(offload_size_bytes=None, deletion_lag_seconds=60, roll_seconds=None)


async def leading(world: World, policy: LedgerPolicy = LAG) -> ManagedLedger:
    """Return a ledger that holds the stream, with [0, 10) on the tier, and 3 more chunks in its log alone."""
    ledger = await world.open(policy)
    await fill(ledger, 10, 0)
    await ledger.offload_prefix(10)
    for body in (b"mine-10", b"mine-11", b"mine-12"):
        await ledger.append([body])
    await ledger.roll()
    await ledger.append([b"open"])
    return ledger


def rivals_chunk(world: World, offset: int, *, records: int = 1) -> bytes:
    """Return a chunk like those of the log at this moment, with other records of the same size."""
    bodies = [f"job--{offset + rank}".encode() for rank in range(records)]
    return build_chunk(bodies, offset=offset, timestamp_ms=int(world.clock.now * 1000), epoch=1)


def noted_end(world: World) -> int:
    """Return the end of what the tier is noted to have had of the log."""
    return int(json.loads(world.disk.notes["committed"])["had"]["next_offset"])


async def delivered(ledger: ManagedLedger, start: int) -> list[bytes]:
    """Return what a read delivers before it fails, or ends."""
    found: list[bytes] = []
    try:
        async for batch in ledger.read(start):
            found += batch.bodies
    except Diverged:
        pass
    return found


@pytest.mark.parametrize("priority", list(ReadPriority)[:2])
def test_what_a_job_appended_beside_an_owner_is_no_proof_and_is_not_delivered(priority: ReadPriority) -> None:
    """The tier was trimmed since: it shows no more whose records it had."""

    async def scenario(world: World) -> None:
        ledger = await leading(world, replace(LAG, read_priority=priority))
        await contribute(world.tier(), rivals_chunk(world, 10, records=3))
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert ledger.error.kind is Divergence.FORK
        for refused in (ledger.offload_prefix(13), ledger.append([b"more"]), ledger.plan()):
            with pytest.raises(Diverged):
                await refused
        assert not any(body.startswith(b"job") for body in await delivered(ledger, 8))
        await trim(world.tier(), STREAM, Retention(before_offset=13), env=world.env())
        for _ in range(3):
            world.clock.now += 400
            await ledger.step()
        assert world.local()[-2:] == [10, 13]
        assert noted_end(world) == 10
        assert b"mine-10" in b"".join(world.disk.ledgers[-2].chunks)

    run(scenario)


def test_a_log_that_has_diverged_takes_no_append_while_the_tier_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        ledger, asked = await leading(world), list[str]()
        await contribute(world.tier(), rivals_chunk(world, 10, records=3))
        world.clock.now += 61
        await ledger.step()
        assert isinstance(ledger.error, Diverged)

        async def down(operation: str, key: str) -> None:
            asked.append(operation)
            with pytest.raises(Diverged):
                await ledger.append([b"more"])
            raise TryAgain("the store does not answer")

        world.store.before = down
        world.clock.now += 400
        await ledger.step()

        assert asked

    run(scenario)


def test_an_end_that_a_look_has_seen_is_not_believed_before_it_is_compared() -> None:
    """A trim by retention loads the newest root. `offload_prefix` must not take its end for done."""

    async def scenario(world: World) -> None:
        ledger = await leading(world, MANUAL)
        await contribute(world.tier(), rivals_chunk(world, 10, records=3))
        await ledger._copy.look()

        with pytest.raises(Diverged):
            await ledger.offload_prefix(13)

        assert noted_end(world) == 10

    run(scenario)


def test_a_job_that_appends_the_chunks_of_the_log_is_no_rival() -> None:
    """It is a back-fill, of which the owner knows nothing."""

    async def scenario(world: World) -> None:
        ledger = await leading(world)
        await contribute(world.tier(), b"".join(world.disk.ledgers[1].chunks))
        world.clock.now += 61
        await ledger.step()  # sees this end for the first time: the deletion lag begins
        world.clock.now += 61

        await ledger.step()

        assert ledger.error is None
        assert world.local() == [13]
        assert noted_end(world) == 13
        await ledger.roll()
        await ledger.offload_prefix(14)
        assert await delivered(ledger, 10) == [b"mine-10", b"mine-11", b"mine-12", b"open"]

    run(scenario)


def test_a_last_chunk_of_the_log_does_not_vouch_for_what_another_job_appended_before_it() -> None:
    """One job appends other records, and the next one the last chunk of the log. The times differ."""

    async def scenario(world: World) -> None:
        ledger = await leading(world)
        world.clock.now += 1
        await contribute(world.tier(), rivals_chunk(world, 10, records=2))
        await contribute(world.tier(), world.disk.ledgers[1].chunks[2])

        with pytest.raises(Diverged, match="are not those of"):
            await ledger.plan()

        assert noted_end(world) == 10

    run(scenario)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_chunks_of_the_same_size_and_time_are_told_apart_by_their_bytes(is_compacted: bool) -> None:
    """A job appended the last chunks of the log behind other records. A compaction may have joined both."""

    async def scenario(world: World) -> None:
        ledger = await leading(world)
        for chunk in (rivals_chunk(world, 10), *world.disk.ledgers[1].chunks[1:]):
            await contribute(world.tier(), chunk, ledger_id=1)
        if is_compacted:
            [report] = [each async for each in compact(world.tier(), fragment_size_bytes=2**20)]
            assert report.fragments == 2
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert ledger.error.kind is Divergence.FORK
        assert noted_end(world) == 10
        assert 10 in world.local()

    run(scenario)


@pytest.mark.parametrize("before_offset", [12, 13])
def test_a_comparison_behind_a_trim_does_not_vouch_for_what_a_read_has_seen_before_it(
    before_offset: int,
) -> None:
    """A read began at a root with records of a job. They are trimmed. The rest is a copy, or empty."""

    async def scenario(world: World) -> None:
        ledger = await leading(world, replace(LAG, read_priority=ReadPriority.TIER_FIRST))
        world.clock.now += 1
        await contribute(world.tier(), rivals_chunk(world, 10, records=2))
        await contribute(world.tier(), world.disk.ledgers[1].chunks[2])
        trimmed = list[str]()

        async def before(operation: str, key: str) -> None:
            if operation == "get" and "/data/00000000000000000010." in key and not trimmed:
                trimmed.append(key)
                retention = Retention(before_offset=before_offset)
                await trim(world.tier(), STREAM, retention, env=world.env())
                await ledger.plan()

        world.store.before = before

        assert await delivered(ledger, 10) == [b"mine-10", b"mine-11", b"mine-12", b"open"]
        assert trimmed

    run(scenario)


def test_what_a_job_appended_behind_a_commit_whose_reply_was_lost_is_not_noted() -> None:
    """The owner's commit is in, and is judged by the newest root, which ends behind the job's records."""

    async def scenario(world: World) -> None:
        ledger = await leading(world)
        rule = Rule(Fault.LOSE_REPLY, "create", "*/root.*", nth=2)  # the first one announces

        async def before(operation: str, key: str) -> None:
            if rule.matched == 2 and operation == "list":
                world.store.before = nothing
                await contribute(world.tier(), rivals_chunk(world, 13))

        async def nothing(operation: str, key: str) -> None:
            pass

        world.store.rules, world.store.before = [rule], before

        with pytest.raises(Conflict, match="run again, which compares the histories"):
            await ledger.offload_prefix(13)
        with pytest.raises(Diverged):
            await ledger._copy.agree()

        assert noted_end(world) == 13

    run(scenario)
