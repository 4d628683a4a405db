"""Tests of lost replies, lost requests, late requests and cancelled calls, at every request of a run.

This is 2.1 of the commit protocol: the listing decides, not the reply of the store. A run ends in success or
in an error whose class is true. Another run completes the work and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from campaign import few
from protocol_sweep import Sweep
from protocol_world import Ledger, Process, World

from offload.ground.errors import Conflict, Corrupt, Fenced, OffloadError, OutcomeUnknown, TryAgain
from offload.store.faults import Call, Fault


def ledgers() -> list[Ledger]:
    return [Ledger(0, 4), Ledger(4, 6)]


def calls_of_a_run() -> list[Call]:
    with World(empty=True) as world:
        w0 = world.process("w0", opened=False)
        world.run(w0.claim_and_offload(*ledgers()))
        return list(w0.store.calls)


CALLS = calls_of_a_run()
PLACES = [
    pytest.param(number, fault, id=f"{fault.name}-{number}-{call.operation}")
    for number, call in enumerate(CALLS)
    for fault in (Fault.LOSE_REPLY, Fault.FAIL_BEFORE, Fault.DELAY, Fault.DENY, Fault.CUT)
    if fault.fits(call.operation)
]
LATE = [place for place in PLACES if place.values[1] is Fault.DELAY]


@pytest.fixture
def world() -> Iterator[World]:
    with World(empty=True) as world:
        yield world


def run_with(world: World, number: int, fault: Fault) -> tuple[Process, OffloadError | None]:
    """Run with a fault at one request. Return the process and the error, if any."""
    w0 = world.process("w0", opened=False)
    w0.start(w0.claim_and_offload(*ledgers()))
    for _ in range(number):
        w0.step()
    w0.step(fault)
    try:
        w0.finish()
    except OffloadError as error:
        return w0, error
    return w0, None


def assert_whole(world: World) -> None:
    """Assert that all data is committed once, and that a sweep deletes none of it."""
    world.run(Sweep(world.process("sweeper")).run())
    world.check()
    assert world.root.next_offset == 6
    assert [row["first_offset"] for row in world.root.fragments] == [0, 2, 4]
    assert world.root.running == frozenset()
    world.check_nothing_is_left()


@few("moments of a rival, a crash or a fault; make test has one of six", 6)
@pytest.mark.parametrize(("number", "fault"), PLACES)
def test_one_fault_anywhere_gives_a_true_error_and_another_run_cures_it(
    number: int, fault: Fault, world: World
) -> None:
    w0, error = run_with(world, number, fault)
    world.check()

    world.run(w0.store.land())
    if error is not None:
        world.run(w0.claim_and_offload(*ledgers()))

    world.check_what_was_told()
    assert_whole(world)


@pytest.mark.parametrize(("number", "fault"), LATE)
def test_a_write_that_lands_after_all_is_done_changes_nothing(
    number: int, fault: Fault, world: World
) -> None:
    """The late request lands after another process has repeated the whole run."""
    w0, _ = run_with(world, number, fault)
    w1 = world.process("w1", opened=False)
    world.run(w1.claim_and_offload(*ledgers()))
    done = world.judge.newest

    world.run(w0.store.land())

    assert world.judge.newest == done
    world.check_what_was_told()
    assert_whole(world)


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda n: f"{n}-{CALLS[n].operation}")
def test_a_cancelled_run_is_completed_by_the_next(number: int, world: World) -> None:
    w0 = world.process("w0", opened=False)
    w0.start(w0.claim_and_offload(*ledgers()))
    for _ in range(number):
        w0.step()
    w0.cancel()
    world.check()

    world.run(w0.claim_and_offload(*ledgers()))

    assert_whole(world)


COMMIT_CREATES = [
    number for number, call in enumerate(CALLS) if "/root." in call.key and call.operation == "create"
]


@pytest.mark.parametrize("number", COMMIT_CREATES)
def test_a_lost_reply_to_a_commit_costs_nothing_but_a_look(number: int, world: World) -> None:
    """2.1.3: the root is ours. The run continues as if the reply had arrived, and makes no root twice."""
    _, error = run_with(world, number, Fault.LOSE_REPLY)

    assert error is None
    assert world.roots == list(range(1, len(COMMIT_CREATES) + 1))
    assert_whole(world)


@pytest.mark.parametrize("number", COMMIT_CREATES)
def test_a_lost_commit_is_sent_again_with_the_same_bytes(number: int, world: World) -> None:
    """2.1.3: the newest root is still n, so the same bytes are sent for n+1. Both creates make one root."""
    w0, error = run_with(world, number, Fault.DELAY)
    before = dict(world.objects)

    landed = world.run(w0.store.land())

    assert error is None
    assert landed == 0
    assert world.objects == before
    assert_whole(world)


def test_a_store_that_never_answers_makes_the_outcome_unknown(world: World) -> None:
    """No create gets a reply, and none lands in time. The caller gets exactly `OutcomeUnknown`."""
    w0 = world.process("w0", opened=False)
    world.run(w0.claim())
    w0.store.chances = {Fault.DELAY: 1.0}

    with pytest.raises(OutcomeUnknown):
        world.run(w0.prepare(ledgers()[0]))
    w0.store.chances = {}
    world.run(w0.store.land())

    assert world.judge.newest == 2
    world.run(w0.claim_and_offload(*ledgers()))
    assert_whole(world)


@few("moments of a rival, a crash or a fault; make test has one of six", 6)
@pytest.mark.parametrize("seed", range(40))
def test_a_bad_network_only_causes_more_runs(seed: int) -> None:
    """Faults of every kind happen at random, and two rivals run often. All data is in once at the end."""
    with World(seed, empty=True) as world:
        rivals = [world.process(name, opened=False) for name in ("w0", "w1")]
        for rival in rivals:
            rival.store.random.seed(f"{seed}/{rival.name}")
            rival.store.chances = {
                Fault.LOSE_REPLY: 0.08,
                Fault.DELAY: 0.08,
                Fault.FAIL_BEFORE: 0.08,
                Fault.CUT: 0.05,
            }
        for turn in range(200):
            rival = rivals[turn % 2]
            # A reply that was cut short shows as bytes that break the format.
            with suppress(TryAgain, OutcomeUnknown, Conflict, Fenced, Corrupt):
                world.run(rival.claim_and_offload(*ledgers()))
            world.run(rivals[turn % 3 % 2].store.land())
            world.check()
            if world.judge.root and world.root.next_offset == 6:
                break

        for rival in rivals:
            rival.store.chances = {}
            world.run(rival.store.land())
            world.check_what_was_told()
        world.run(rivals[0].claim_and_offload(*ledgers()))
        assert_whole(world)
