"""Crashes after every named step and around every request of a run. The next writer completes the work.

This is section 4 of the commit protocol, and invariant 7: after any crash, invariants 1 to 6 hold. The next
writer claims, adopts or drops the uploads, and copies the missing data.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from protocol_sweep import Sweep
from protocol_world import STREAM, Crash, Ledger, Process, World

from offload.commit.log import Step
from offload.store.faults import Fault
from offload.write.writer import StreamWriter

LEDGERS = ((0, 4), (4, 8))
NEXT_OFFSET = 8


def requests_of_a_run() -> int:
    """Return the number of requests of a run that makes a tier, claims after a crash, and copies all."""
    with World(empty=True) as world:
        leave_an_upload(world)
        w1 = world.process("w1", opened=False)
        world.run(w1.claim_and_offload(*all_ledgers()))
        assert world.root.next_offset == NEXT_OFFSET
        return len(w1.store.calls)


def all_ledgers() -> list[Ledger]:
    return [Ledger(first_offset, next_offset) for first_offset, next_offset in LEDGERS]


def leave_an_upload(world: World) -> None:
    """Leave one of two fragments, as a process that crashed between its upload and its append."""
    w0 = world.process("w0", opened=False)
    with pytest.raises(Crash):
        world.run(crash_after_first_put(w0))
    world.check()


async def crash_after_first_put(process: Process) -> None:
    await process.claim()
    attempt = await process.prepare(process.world.ledger(0, 4))
    process.crash_after = len(process.store.calls) + 2  # it first looks for a key of the empty stream
    await process.upload(process.world.ledger(0, 4), attempt)


@pytest.fixture
def world() -> Iterator[World]:
    with World(empty=True) as world:
        yield world


def finish_with_another(world: World) -> None:
    """Run the next writer and a sweep, let late requests of the dead process land, and sweep again."""
    w2, sweeper = world.process("w2", opened=False), world.process("sweeper", opened=False)
    world.run(w2.claim_and_offload(*all_ledgers()))
    world.run(Sweep(sweeper).run())
    for process in world.processes:
        world.run(process.store.land())
    world.run(Sweep(sweeper).run())


def assert_whole(world: World) -> None:
    """Assert that the source's data is committed once, and that no other object is left."""
    world.check()
    assert (world.root.first_offset, world.root.next_offset) == (0, NEXT_OFFSET)
    assert world.root.running == frozenset()
    world.check_nothing_is_left()
    assert world.roots == [world.judge.newest]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_number", range(1, requests_of_a_run() + 1))
def test_a_crash_around_any_request_is_finished_by_the_next_writer(
    request_number: int, when: str, world: World
) -> None:
    """Before: the request was never sent. After: it was applied, and the reply was lost."""
    leave_an_upload(world)
    w1 = world.process("w1", opened=False)
    setattr(w1, f"crash_{when}", request_number)
    with pytest.raises(Crash):
        world.run(w1.claim_and_offload(*all_ledgers()))
    world.check()

    finish_with_another(world)

    assert_whole(world)


@pytest.mark.parametrize("commits_before", range(4))
@pytest.mark.parametrize("step", [step for step in Step if step is not Step.IN_DOUBT])
def test_a_crash_after_any_step_of_any_commit_is_finished_by_the_next_writer(
    step: Step, commits_before: int, world: World
) -> None:
    """Each step is tested in every commit of the run: claim, resolve, prepare and append."""
    leave_an_upload(world)
    w1 = world.process("w1", opened=False)
    crash_at_visit(w1, step, commits_before + 1)
    with pytest.raises(Crash):
        world.run(w1.claim_and_offload(*all_ledgers()))
    assert w1.steps[-1] is step
    world.check()

    finish_with_another(world)

    assert_whole(world)


def crash_at_visit(process: Process, step: Step, visit: int) -> None:
    """Crash when the step is reached for the n-th time."""
    witness = process._witness

    def counting(reached: Step) -> None:
        process.crash_at = step if [*process.steps, reached].count(step) == visit else None
        witness(reached)

    process.offloader._witness = counting


def test_a_crash_in_doubt_is_finished_by_the_next_writer(world: World) -> None:
    """`Step.IN_DOUBT` is reached only if another process committed meanwhile."""
    w0, w1 = world.process("w0", opened=False), world.process("w1", opened=False)
    w0.start(w0.claim()).run_to("create", "*/root.*")
    world.run(w1.claim())
    w0.crash_at = Step.IN_DOUBT
    with pytest.raises(Crash):
        w0.finish()

    finish_with_another(world)

    assert_whole(world)


@pytest.mark.parametrize("request_number", range(1, requests_of_a_run() + 1))
def test_requests_that_land_after_their_senders_crash_do_no_harm(request_number: int, world: World) -> None:
    """The process dies with one write in flight. It lands after others have finished and swept."""
    leave_an_upload(world)
    w1 = world.process("w1", opened=False)
    w1.start(w1.claim_and_offload(*all_ledgers()))
    for _ in range(request_number - 1):
        w1.step()
    w1.step(Fault.DELAY)
    w1.crash()
    world.check()

    finish_with_another(world)

    assert_whole(world)


def test_a_crash_that_left_every_upload_costs_no_upload_again(world: World) -> None:
    """2.6: complete fragments of a running attempt are adopted."""
    leave_an_upload(world)
    w1 = world.process("w1", opened=False)

    world.run(w1.claim())

    world.check()
    assert world.root.next_offset == 2
    assert [call.operation for call in w1.store.calls].count("put") == 0


def test_uploads_that_the_source_disowns_are_left_out(world: World) -> None:
    """2.6: the broker has truncated its log since, and has other data there now."""
    leave_an_upload(world)
    w1 = world.process("w1", opened=False)

    world.run(claim_disowning(w1))

    world.check()
    assert world.root.next_offset == 0
    assert world.root.running == frozenset()


async def claim_disowning(process: Process) -> None:
    async def disown(upload: object) -> bool:
        return False

    base = await process.log.load_newest()
    process.writer = await StreamWriter.claim(
        process.offloader, STREAM, base=base, agree=disown, env=process.env
    )
