"""Tests of jobs, which append to a stream without a claim. They disturb nobody and lose nothing.

This is 2.10 of the commit protocol. The writer has committed [0, 4), and the job adds [4, 8) in two attempts.
Groups have two entries, so the job's appends make groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from campaign import few
from protocol_sweep import Sweep
from protocol_world import STREAM, Crash, Ledger, Process, World, chunk, source

from offload.contracts.source import Snapshot
from offload.copy.history import agreement
from offload.ground.errors import Conflict, Diverged, OffloadError, OutcomeUnknown, StreamDeleted
from offload.store.faults import Call, Fault
from offload.write.writer import StreamWriter

ADDED = (Ledger(4, 6), Ledger(6, 8))

MOMENTS_LEFT = "moments of a rival, a crash or a fault; make test has one of six"


def stream(world: World) -> Process:
    """Return a writer that has committed [0, 4)."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 4)))
    return w0


def calls_of_a_run() -> int:
    with World() as world:
        w0 = stream(world)
        before = len(w0.store.calls)
        world.run(w0.offload(*ADDED))
        return len(w0.store.calls) - before


def calls_of_a_job() -> list[Call]:
    with World() as world:
        stream(world)
        job = world.process("job")
        world.run(job.do_job(*ADDED))
        return list(job.store.calls)


CALLS = calls_of_a_job()
OPERATIONS = [call.operation for call in CALLS]
ANNOUNCED = OPERATIONS.index("create")
"""The request that announces the job's attempts. The next request confirms it."""
APPENDED = len(OPERATIONS) - 1 - OPERATIONS[::-1].index("create")
"""The request that creates the root of the append."""
PLACES = [
    pytest.param(number, fault, id=f"{fault.name}-{number}-{call.operation}")
    for number, call in enumerate(CALLS)
    for fault in (Fault.LOSE_REPLY, Fault.FAIL_BEFORE, Fault.DELAY, Fault.DENY, Fault.CUT)
    if fault.fits(call.operation)
]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def error_of(process: Process) -> OffloadError | None:
    """Return the error that a stalled job raised on the way to its end."""
    try:
        process.finish()
    except OffloadError as error:
        return error
    return None


def stalled(world: World, request_number: int) -> Process:
    """Return a job that stalls before its request of this number."""
    job = world.process("job")
    job.start(job.do_job(*ADDED))
    for _ in range(request_number):
        job.step()
    return job


def next_ledger(world: World) -> Ledger:
    return Ledger(world.root.next_offset, world.root.next_offset + 4)


def assert_whole(world: World, *, next_offset: int) -> None:
    """Assert that every invariant held, every result is true, and a sweep leaves only named objects."""
    world.check()
    world.check_what_was_told()
    world.run(Sweep(world.process("sweeper")).run())
    world.check()
    world.check_nothing_is_left()
    assert (world.root.running, world.root.next_offset) == (frozenset(), next_offset)


def test_a_job_appends_and_the_stream_stays_its_writers(world: World) -> None:
    w0, job = stream(world), world.process("job")
    before = world.root

    world.run(job.do_job(*ADDED))

    assert (world.root.writer, world.root.epoch) == (before.writer, before.epoch)
    assert world.root.committer == job.guest.uid.bytes
    world.run(w0.offload(next_ledger(world)))
    assert_whole(world, next_offset=12)


@few(MOMENTS_LEFT, 3)
@pytest.mark.parametrize("request_number", range(calls_of_a_run()))
def test_a_job_between_any_two_requests_of_a_writer_loses_nothing(request_number: int, world: World) -> None:
    """If the job comes first, the writer gets `Conflict`, and continues behind it."""
    w0, job = stream(world), world.process("job")
    w0.start(w0.offload(*ADDED))
    for _ in range(request_number):
        w0.step()
    begin = world.root.next_offset
    world.run(job.do_job(next_ledger(world)))
    world.check()

    error = error_of(w0)

    assert isinstance(error, Conflict) == (begin == 4)
    world.run(w0.offload(next_ledger(world)))
    assert_whole(world, next_offset=12 if begin == 4 else 16)


@few(MOMENTS_LEFT, 3)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_writer_between_any_two_requests_of_a_job_loses_nothing(request_number: int, world: World) -> None:
    """If the writer comes first, the job gets `Conflict`, and can work again at the new end."""
    w0 = stream(world)
    job = stalled(world, request_number)
    begin = world.root.next_offset
    world.run(w0.offload(next_ledger(world)))

    error = error_of(job)

    assert isinstance(error, Conflict) == (begin == 4)
    if error is not None:
        world.run(job.guest.abort())
        world.run(job.do_job(next_ledger(world)))
    assert_whole(world, next_offset=12)


@few(MOMENTS_LEFT, 3)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_claim_between_any_two_requests_of_a_job_leaves_it_alone(request_number: int, world: World) -> None:
    """The claim adopts or drops the uploads of the last writer, but not those of the job."""
    w0, w1 = stream(world), world.process("w1")
    world.run(w0.prepare(Ledger(4, 6)))
    job = stalled(world, request_number)
    world.run(w1.claim())

    assert error_of(job) is None

    world.run(w1.offload(next_ledger(world)))
    assert_whole(world, next_offset=12)


def test_one_of_two_rival_jobs_wins_and_the_other_can_announce_again(world: World) -> None:
    """They run request by request in turn."""
    stream(world)
    jobs = [world.process(name) for name in ("one", "other")]
    for job in jobs:
        job.start(job.do_job(*ADDED))
    while any(job.busy for job in jobs):
        for job in jobs:
            if job.busy:
                job.step()

    errors = [error_of(job) for job in jobs]

    assert sorted(type(error).__name__ for error in errors) == ["Conflict", "NoneType"]
    loser = jobs[errors.index(None) - 1]
    world.run(loser.guest.abort())
    world.run(loser.do_job(next_ledger(world)))
    assert_whole(world, next_offset=12)


@few(MOMENTS_LEFT, 3)
@pytest.mark.parametrize("request_number", range(ANNOUNCED + 2, len(CALLS)))
def test_a_job_that_anyone_aborts_appends_nothing(request_number: int, world: World) -> None:
    stream(world)
    job, other = stalled(world, request_number), world.process("other")
    is_in = world.root.next_offset == 8
    world.run(other.begin_job(uid=job.guest.uid))
    world.run(other.guest.abort())

    error = error_of(job)

    assert isinstance(error, Conflict) == (not is_in)
    assert_whole(world, next_offset=8 if is_in else 4)


def test_a_job_that_is_aborted_before_it_knows_that_it_runs_announces_again(world: World) -> None:
    """It has uploaded nothing, so it cannot name a condemned fragment."""
    stream(world)
    job, other = stalled(world, ANNOUNCED + 1), world.process("other")
    world.run(other.begin_job(uid=job.guest.uid))
    world.run(other.guest.abort())

    assert error_of(job) is None

    assert_whole(world, next_offset=8)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_number", range(1, len(CALLS) + 1))
def test_uploads_of_a_crashed_job_stay_until_it_is_aborted(
    request_number: int, when: str, world: World
) -> None:
    """A claim does not resolve it. Only an abort condemns its uploads."""
    stream(world)
    job, other = world.process("job"), world.process("other")
    setattr(job, f"crash_{when}", request_number)
    with pytest.raises(Crash):
        world.run(job.do_job(*ADDED))
    left = world.fragments
    world.run(Sweep(world.process("early")).run())
    world.run(world.process("w1").claim())
    world.check()
    assert world.fragments == left

    if job.job is not None:
        world.run(other.begin_job(uid=job.job.uid))
        for _ in range(2):
            world.run(other.guest.abort())

    assert_whole(world, next_offset=world.root.next_offset)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize(("number", "fault"), PLACES)
def test_a_fault_anywhere_in_a_job_is_cured_by_doing_it_again(
    number: int, fault: Fault, world: World
) -> None:
    """After lost replies, late requests or refusals, the data is in once, or the error denies it."""
    stream(world)
    job = stalled(world, number)
    job.step(fault)
    error = error_of(job)
    world.check()
    world.run(job.store.land())

    again = world.process("again")
    world.run(again.begin_job(uid=None if job.job is None else job.job.uid))
    world.run(again.guest.abort())
    if world.root.next_offset == 4:
        assert error is not None
        world.run(again.do_job(*ADDED))

    assert_whole(world, next_offset=8)


def test_a_lost_reply_to_an_append_costs_nothing_but_a_look(world: World) -> None:
    stream(world)
    job = stalled(world, APPENDED)
    before = world.judge.newest
    job.step(Fault.LOSE_REPLY)

    assert error_of(job) is None

    assert world.judge.newest == before + 1
    assert_whole(world, next_offset=8)


def test_an_append_that_is_in_stays_in_once(world: World) -> None:
    """It also stays in once beside newer commits, and in another process with the same UUID."""
    w0, job, again = stream(world), world.process("job"), world.process("again")
    world.run(job.begin_job())
    receipts = world.run(job.copy(ADDED, world.run(job.announce(*ADDED))))
    world.run(again.begin_job(uid=job.guest.uid))
    world.run(job.guest.append(receipts))
    world.run(w0.offload(next_ledger(world)))
    before = world.judge.newest

    world.run(job.guest.append(receipts))
    world.run(again.guest.append(receipts))

    assert world.judge.newest == before
    assert_whole(world, next_offset=12)


@few(MOMENTS_LEFT, 3)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_sweep_beside_a_job_takes_nothing_of_it(request_number: int, world: World) -> None:
    """The job stalls anywhere, and the sweep also stalls between its verdict and its deletes."""
    stream(world)
    job = stalled(world, request_number)
    world.run(Sweep(world.process("swift")).run())
    slow = Sweep(world.process("slow"))
    for phase in (slow.list_objects, slow.load_root, slow.decide):
        world.run(phase())

    assert error_of(job) is None
    world.run(slow.delete())

    assert_whole(world, next_offset=8)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("is_reborn", [False, True])
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_deletion_ends_a_job_even_after_a_rebirth(
    request_number: int, is_reborn: bool, world: World
) -> None:
    """An older job adds nothing to a new stream of the same name, even if its offsets would fit."""
    stream(world)
    job, other = stalled(world, request_number), world.process("other")
    has_begun = job.job is not None
    world.run(other.delete_stream())
    if is_reborn:
        world.run(other.claim())
        world.run(other.offload(Ledger(0, 4)))
    newest = world.root

    error = error_of(job)

    if has_begun or not is_reborn:
        assert isinstance(error, StreamDeleted)
        assert world.root is newest
    world.check()
    world.check_what_was_told()


def test_a_job_gets_no_result_for_an_append_that_a_trim_may_have_passed(world: World) -> None:
    """It was aborted, and the writer's fragments were there before the trim. The job's never were in."""
    w0 = stream(world)
    job, other = stalled(world, APPENDED), world.process("other")
    world.run(other.begin_job(uid=job.guest.uid))
    world.run(other.guest.abort())
    world.run(w0.offload(*ADDED))
    world.run(other.trim(8))

    error = error_of(job)

    assert isinstance(error, OutcomeUnknown)
    assert_whole(world, next_offset=8)


def test_an_append_in_doubt_that_was_trimmed_stays_in_doubt(world: World) -> None:
    stream(world)
    job, other = stalled(world, APPENDED), world.process("other")
    job.step(Fault.LOSE_REPLY)
    world.run(other.trim(8))

    error = error_of(job)

    assert isinstance(error, OutcomeUnknown)
    assert_whole(world, next_offset=8)


def test_a_sync_adopts_nothing_behind_a_jobs_append_from_another_log() -> None:
    """Found by the simulation (seed 4935): the last chunk agreed, but the committed one before it did not."""
    with World() as world:
        w0, job, w1 = (world.process(name) for name in ("w0", "job", "w1"))
        world.run(w0.claim())
        seen_by_the_sync = world.newest()
        attempt = world.run(w0.prepare(Ledger(0, 4)))
        world.run(w0.upload(Ledger(0, 4), attempt))
        world.judge.source = lambda first, end: source(first, end) if first else chunk(0, 2)
        world.run(job.do_job(Ledger(0, 2, raw=chunk(0, 2))))
        log = Snapshot(ledgers=[Ledger(0, 4)], first_offset=0, next_offset=4, epoch=1)

        claim = StreamWriter.claim(
            w1.offloader,
            STREAM,
            base=seen_by_the_sync,
            agree=agreement(w1.offloader, STREAM, log),
            env=w1.env,
        )
        with pytest.raises(Diverged):
            world.run(claim)

        assert world.root.next_offset == 2
