"""Tests of replacing: copies replace committed fragments, and no other process is deceived or disturbed.

This is the step "replace" of the commit protocol. The writer has committed [0, 12) in fragments of two, of
ledgers 0 and 4. Groups have two entries, so the replaced range [4, 8) is in a group within a kilo-group.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from campaign import few
from protocol_sweep import Sweep
from protocol_world import STREAM, Crash, Ledger, Process, World

from offload.contracts.events import Event
from offload.ground.errors import (
    Absent,
    Conflict,
    Misuse,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StreamDeleted,
)
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import EntryKind
from offload.read.reader import StreamReader
from offload.store.faults import Call, Fault
from offload.upkeep.compact.runs import FragmentRun

ADDED = Ledger(12, 16)
MOMENTS_LEFT = "moments of a rival, a crash or a fault; make test has one of six"


def stream(world: World) -> Process:
    """Return a writer that has committed [0, 12): a kilo-group and a group."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 4), Ledger(4, 12)))
    assert world.newest().entries["kind"].tolist() == [EntryKind.KILO_GROUP, EntryKind.GROUP]
    return w0


def compactor(world: World, name: str = "compactor") -> Process:
    """Return a process whose fragments are as large as any run here."""
    return world.process(name, chunks_per_fragment=100)


def calls(act: Callable[[World], tuple[Process, Coroutine[Any, Any, Any]]]) -> list[Call]:
    with World() as world:
        stream(world)
        process, job = act(world)
        before = len(process.store.calls)
        world.run(job)
        return list(process.store.calls)[before:]


def _compaction(world: World) -> tuple[Process, Coroutine[Any, Any, Any]]:
    process = compactor(world)
    return process, process.compact(4, 8)


def _run_of_the_writer(world: World) -> tuple[Process, Coroutine[Any, Any, Any]]:
    return world.processes[0], world.processes[0].offload(ADDED)


def _trim(world: World) -> tuple[Process, Coroutine[Any, Any, Any]]:
    guest = world.process("guest")
    return guest, guest.trim(6)


CALLS = calls(_compaction)
OPERATIONS = [call.operation for call in CALLS]
REPLACED = len(OPERATIONS) - 1 - OPERATIONS[::-1].index("create")
"""The request that creates the root of the replacement."""
UPLOADED = next(
    i for i, call in enumerate(CALLS) if call.key.endswith(".fragment") and call.operation == "put"
)
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
    """Return the error that a stalled process raised on the way to its end."""
    try:
        process.finish()
    except OffloadError as error:
        return error
    return None


def stalled(world: World, request_number: int) -> Process:
    """Return a compaction that stalls before its request of this number."""
    process = compactor(world)
    process.start(process.compact(4, 8))
    for _ in range(request_number):
        process.step()
    return process


def prepared(world: World, process: Process, first: int, end: int) -> tuple[FragmentRun, list[Receipt]]:
    """Return a copy of a range that is uploaded but not committed."""
    world.run(process.begin_job())
    run = world.run(process.plan(first, end))
    return run, [world.run(process.copy_run(run))]


def cut_of(world: World) -> list[int]:
    """Return the first offsets of the live fragments."""
    return [row["first_offset"] for row in world.root.fragments]


def assert_whole(world: World, *, next_offset: int = 12) -> None:
    """Assert that every invariant held, every result is true, and a sweep leaves only named objects."""
    world.check()
    world.check_what_was_told()
    world.run(Sweep(world.process("sweeper")).run())
    world.check()
    world.check_nothing_is_left()
    assert (world.root.running, world.root.next_offset) == (frozenset(), next_offset)


def clean_up(world: World, process: Process) -> None:
    """Abort the job from another process, whether it succeeded or failed."""
    if process.job is not None:
        other = compactor(world, "cleaner")
        world.run(other.begin_job(uid=process.job.uid))
        world.run(other.guest.abort())


def test_fragments_in_a_group_become_one_and_nothing_else_changes(world: World) -> None:
    stream(world)
    before, process = world.root, compactor(world)

    world.run(process.compact(4, 8))

    assert cut_of(world) == [0, 2, 4, 8, 10]
    assert world.newest().entries["kind"].tolist() == [EntryKind.KILO_GROUP, EntryKind.GROUP]
    for name in ("first_offset", "next_offset", "writer", "epoch", "messages", "data_size_bytes", "ledgers"):
        assert world.root.fields[name] == before.fields[name]
    assert world.root.fields["stored_size_bytes"] < before.fields["stored_size_bytes"]
    assert_whole(world)


@pytest.mark.parametrize("factor", [4, 10])
def test_fragments_in_the_root_become_one(factor: int) -> None:
    with World(factor=factor) as world:
        w0, process = world.process("w0"), compactor(world)
        world.run(w0.claim())
        world.run(w0.offload(Ledger(0, 4), Ledger(4, 14)))
        [begin] = [cut for cut in (4, 8) if (factor == 10 and cut == 4) or (factor == 4 and cut == 8)]

        world.run(process.compact(begin, begin + 4))

        assert begin + 2 not in cut_of(world)
        assert_whole(world, next_offset=14)


def test_compacted_fragments_are_compacted_again_until_a_group_has_one_fragment(world: World) -> None:
    stream(world)

    world.run(compactor(world, "one").compact(0, 4))
    world.run(compactor(world, "another").compact(4, 8))
    world.run(world.processes[0].offload(ADDED))
    world.run(compactor(world, "third").compact(8, 12))

    assert cut_of(world) == [0, 4, 8, 12, 14]
    assert_whole(world, next_offset=16)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("request_number", range(len(calls(_run_of_the_writer))))
def test_a_compaction_between_any_two_requests_of_a_writer_disturbs_neither(
    request_number: int, world: World
) -> None:
    w0 = stream(world)
    w0.start(w0.offload(ADDED))
    for _ in range(request_number):
        w0.step()
    world.run(compactor(world).compact(4, 8))
    world.check()

    assert error_of(w0) is None

    assert_whole(world, next_offset=16)
    assert 6 not in cut_of(world)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_writer_between_any_two_requests_of_a_compaction_disturbs_neither(
    request_number: int, world: World
) -> None:
    w0 = stream(world)
    process = stalled(world, request_number)
    world.run(w0.offload(ADDED))

    assert error_of(process) is None

    assert_whole(world, next_offset=16)
    assert 6 not in cut_of(world)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_claim_between_any_two_requests_of_a_compaction_leaves_it_alone(
    request_number: int, world: World
) -> None:
    stream(world)
    process, w1 = stalled(world, request_number), world.process("w1")
    world.run(w1.claim())

    assert error_of(process) is None

    world.run(w1.offload(ADDED))
    assert_whole(world, next_offset=16)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("rival", [(0, 4), (4, 8), (6, 8), (8, 12)], ids=str)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_rival_compaction_between_any_two_requests_loses_nothing(
    request_number: int, rival: tuple[int, int], world: World
) -> None:
    """If two replace the same fragments, one wins and the other gets an error. Otherwise both succeed."""
    w0 = stream(world)
    world.run(w0.offload(ADDED))
    process, other = stalled(world, request_number), compactor(world, "other")
    was_in = 6 not in cut_of(world)
    if was_in and rival == (6, 8):
        return
    world.run(other.compact(*rival))

    error = error_of(process)

    if error is not None:
        assert rival in ((4, 8), (6, 8))
        assert isinstance(error, OutcomeUnknown if was_in else Conflict)
    clean_up(world, process)
    assert_whole(world, next_offset=16)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("before", [2, 4, 6, 8, 12])
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_trim_between_any_two_requests_of_a_compaction_disturbs_neither(
    request_number: int, before: int, world: World
) -> None:
    """Trimmed fragments are not replaced. Those at the new beginning are, even in a partly trimmed group."""
    stream(world)
    process, guest = stalled(world, request_number), world.process("guest")
    was_in = 6 not in cut_of(world)
    world.run(guest.trim(before))

    error = error_of(process)

    if before <= 4:
        assert error is None
        assert 6 not in cut_of(world)
    elif not was_in:
        assert isinstance(error, Conflict)
    clean_up(world, process)
    assert_whole(world)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("request_number", range(len(calls(_trim))))
def test_a_compaction_between_any_two_requests_of_a_trim_makes_it_count_again(
    request_number: int, world: World
) -> None:
    """The counts do not hold any more. The trim counts again, and the totals are right."""
    stream(world)
    guest = world.process("guest")
    guest.start(guest.trim(6))
    for _ in range(request_number):
        guest.step()
    was_trimmed = world.root.first_offset
    if was_trimmed <= 4:
        world.run(compactor(world).compact(4, 8))

    assert error_of(guest) is None

    assert world.root.first_offset == (was_trimmed or 4)
    assert_whole(world)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("is_reborn", [False, True])
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_deletion_ends_a_compaction_even_after_a_rebirth(
    request_number: int, is_reborn: bool, world: World
) -> None:
    stream(world)
    process, other = stalled(world, request_number), world.process("other")
    has_begun = process.job is not None
    world.run(other.delete_stream())
    if is_reborn:
        world.run(other.claim())
        world.run(other.offload(Ledger(0, 4), Ledger(4, 12)))
    newest = world.root

    error = error_of(process)

    if has_begun or not is_reborn:
        assert isinstance(error, StreamDeleted | Conflict)
        assert world.root is newest
    world.check()
    world.check_what_was_told()


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_number", range(1, len(CALLS) + 1))
def test_a_sweep_deletes_uploads_of_a_crashed_compaction_after_its_abort(
    request_number: int, when: str, world: World
) -> None:
    w0 = stream(world)
    process = compactor(world)
    setattr(process, f"crash_{when}", request_number)
    with pytest.raises(Crash):
        world.run(process.compact(4, 8))
    world.check()

    clean_up(world, process)

    world.run(w0.offload(ADDED))
    assert_whole(world, next_offset=16)


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize(("number", "fault"), PLACES)
def test_a_fault_anywhere_in_a_compaction_is_cured_by_doing_it_again(
    number: int, fault: Fault, world: World
) -> None:
    stream(world)
    process = stalled(world, number)
    process.step(fault)
    error = error_of(process)
    world.check()
    world.run(process.store.land())

    clean_up(world, process)
    if 6 in cut_of(world):
        assert error is not None
        world.run(compactor(world, "again").compact(4, 8))

    assert cut_of(world) == [0, 2, 4, 8, 10]
    assert_whole(world)


def test_a_lost_reply_to_a_replacement_costs_nothing_but_a_look(world: World) -> None:
    stream(world)
    process = stalled(world, REPLACED)
    before = world.judge.newest
    process.step(Fault.LOSE_REPLY)

    assert error_of(process) is None

    assert world.judge.newest == before + 1
    assert_whole(world)


def test_a_replacement_that_is_in_stays_in_once(world: World) -> None:
    w0, process = stream(world), compactor(world)
    run, receipts = prepared(world, process, 4, 8)
    world.run(process.guest.replace(run.entries, receipts))
    world.run(w0.offload(ADDED))
    before = world.judge.newest

    world.run(process.guest.replace(run.entries, receipts))

    assert world.judge.newest == before
    assert_whole(world, next_offset=16)


def test_a_replacement_that_was_replaced_since_is_in_doubt(world: World) -> None:
    """It looks like a replacement that was aborted before another's copy replaced the fragments."""
    process, other = compactor(world), compactor(world, "other")
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 8), Ledger(8, 16)))
    run, receipts = prepared(world, process, 0, 4)
    world.run(process.guest.abort())
    world.run(other.compact(0, 4))

    with pytest.raises(OutcomeUnknown):
        world.run(process.guest.replace(run.entries, receipts))

    assert_whole(world, next_offset=16)


def test_a_replacement_whose_copies_run_was_never_in(world: World) -> None:
    stream(world)
    process, other = compactor(world), compactor(world, "other")
    run, receipts = prepared(world, process, 4, 8)
    world.run(other.compact(4, 8))

    with pytest.raises(Conflict):
        world.run(process.guest.replace(run.entries, receipts))

    world.run(process.guest.abort())
    assert_whole(world)


def test_a_jobs_append_that_was_in_and_replaced_since_is_in_doubt_and_never_refused(world: World) -> None:
    """A job's append lands without a reply. A writer continues behind it, and a compaction replaces it."""
    w0, job = stream(world), world.process("job")
    world.run(job.begin_job())
    receipts = world.run(job.copy([ADDED], world.run(job.announce(ADDED))))
    job.start(job.guest.append(receipts)).run_to("create", "*/root.*")
    job.step(Fault.LOSE_REPLY)
    world.run(w0.offload(Ledger(16, 20)))
    world.run(compactor(world).compact(12, 16))

    error = error_of(job)

    assert isinstance(error, OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        world.run(job.guest.append(receipts))
    assert_whole(world, next_offset=20)


def test_an_append_whose_attempt_runs_was_not_in_despite_a_replacement(world: World) -> None:
    w0, job = stream(world), world.process("job")
    world.run(job.begin_job())
    receipts = world.run(job.copy([ADDED], world.run(job.announce(ADDED))))
    world.run(w0.offload(ADDED))
    world.run(w0.offload(Ledger(16, 20)))
    world.run(compactor(world).compact(12, 16))

    with pytest.raises(Conflict):
        world.run(job.guest.append(receipts))

    world.run(job.guest.abort())
    assert_whole(world, next_offset=20)


def test_a_writer_whose_append_was_replaced_meanwhile_is_in_doubt_and_can_go_on(world: World) -> None:
    """The append lands without a reply. A job continues behind it, and a compaction replaces it."""
    w0, job = stream(world), world.process("job")
    attempt = world.run(w0.prepare(ADDED))
    receipt = world.run(w0.upload(ADDED, attempt))
    w0.start(w0.append(receipt)).run_to("create", "*/root.*")
    w0.step(Fault.LOSE_REPLY)
    world.run(job.do_job(Ledger(16, 20)))
    world.run(compactor(world).compact(12, 16))

    assert isinstance(error_of(w0), OutcomeUnknown)

    world.run(w0.claim())
    world.run(w0.offload(Ledger(20, 24)))
    assert_whole(world, next_offset=24)


def test_the_newest_fragment_is_not_replaced(world: World) -> None:
    stream(world)
    process = compactor(world)

    with pytest.raises(Conflict, match="newest"):
        world.run(process.compact(8, 12))

    world.run(process.guest.abort())
    assert_whole(world)


def test_fragments_in_two_groups_are_not_replaced_at_once(world: World) -> None:
    w0, process = stream(world), compactor(world)
    world.run(w0.offload(ADDED))

    with pytest.raises(Conflict, match="one group"):
        world.run(process.compact(6, 10))

    world.run(process.guest.abort())
    assert_whole(world, next_offset=16)


def test_a_copy_is_not_appended_and_an_upload_for_an_append_replaces_nothing(world: World) -> None:
    stream(world)
    process, job = compactor(world), world.process("job")
    run, copies = prepared(world, process, 4, 8)
    world.run(job.begin_job())
    appended = world.run(job.copy([ADDED], world.run(job.announce(ADDED))))

    with pytest.raises(Conflict):
        world.run(process.guest.append(copies))
    with pytest.raises(Misuse):
        world.run(job.guest.replace(run.entries, appended))

    for guest in (process.guest, job.guest):
        world.run(guest.abort())
    assert_whole(world)


def test_a_copied_range_begins_and_ends_with_committed_fragments(world: World) -> None:
    stream(world)
    process = compactor(world)
    world.run(process.begin_job())
    run = world.run(process.plan(4, 8))
    manifest, [attempt] = world.run(process.guest.prepare_copies([run.entries]))

    for ledger in (Ledger(4, 14), Ledger(12, 14)):
        renamed = Ledger(ledger.first_offset, ledger.next_offset)
        renamed.__class__ = _OfLedger4
        with pytest.raises(Conflict, match="begin and end"):
            world.run(process.offloader.offload(renamed, attempt, manifest=manifest, extra_metadata={}))


class _OfLedger4(Ledger):
    @property
    def ledger_id(self) -> int:
        return 4


@few(MOMENTS_LEFT, 6)
@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_sweep_beside_a_compaction_takes_nothing_that_it_needs(request_number: int, world: World) -> None:
    """This also holds if the sweep stalls between its verdict and its deletes."""
    stream(world)
    process = stalled(world, request_number)
    world.run(Sweep(world.process("swift")).run())
    slow = Sweep(world.process("slow"))
    for phase in (slow.list_objects, slow.load_root, slow.decide):
        world.run(phase())

    assert error_of(process) is None
    world.run(slow.delete())

    assert_whole(world)


def test_a_compaction_whose_sources_are_swept_gives_up(world: World) -> None:
    """Another compaction replaced them. The failed read is not reported as damage."""
    w0 = stream(world)
    process, other = stalled(world, UPLOADED), compactor(world, "other")
    world.run(other.compact(4, 8))
    world.run(w0.offload(ADDED))
    world.run(Sweep(world.process("swift")).run())

    assert isinstance(error_of(process), Conflict)

    world.run(process.guest.abort())
    assert_whole(world, next_offset=16)


@pytest.mark.parametrize("ranges", [[(0, 4)], [(4, 8)], [(0, 4), (4, 8)]], ids=str)
@pytest.mark.parametrize("when", [2, 4, 6])
def test_a_reader_goes_on_at_its_very_offset(
    when: int, ranges: Sequence[tuple[int, int]], world: World
) -> None:
    """The next fragments are replaced and swept. The reader gets each record once, and no event."""
    stream(world)
    told: list[Event] = []
    reader = world.run(
        StreamReader.open(world.process("reader").offloader, STREAM, in_flight=1, emit=told.append)
    )
    others = [compactor(world, f"compactor of {bounds}") for bounds in ranges]
    sweep = Sweep(world.process("swift"))

    async def read() -> list[bytes]:
        bodies: list[bytes] = []
        async with aclosing(reader.messages(0)) as batches:
            async for batch in batches:
                assert batch.offset == len(bodies)
                bodies += batch.bodies
                if len(bodies) == when:
                    for other, bounds in zip(others, ranges, strict=True):
                        await other.compact(*bounds)
                    await sweep.run()
        return bodies

    assert world.run(read()) == [b"record %d of orders" % offset for offset in range(12)]

    assert told == []
    assert cut_of(world) == [cut for cut in range(0, 12, 2) if cut - 2 not in dict(ranges)]
    assert_whole(world)


def test_a_repeated_replacement_whose_group_cannot_be_read_is_not_reported_as_refused(world: World) -> None:
    """It is in since the first call, but the second call cannot check. Found by the simulation."""
    stream(world)
    process = compactor(world)
    run, receipts = prepared(world, process, 4, 8)
    world.run(process.guest.replace(run.entries, receipts))
    again = compactor(world, "again")
    world.run(again.begin_job(uid=process.guest.uid))
    again.start(again.guest.replace(run.entries, receipts)).run_to("get", "*group")
    again.step(Fault.FAIL_BEFORE)

    error = error_of(again)

    assert isinstance(error, OutcomeUnknown)
    assert_whole(world)


def test_an_attempt_with_a_replaced_middle_is_not_read_with_a_hole(world: World) -> None:
    w0, compactor = world.process("w0"), world.process("compactor", chunks_per_fragment=9)
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 12), Ledger(12, 14)))
    found = world.run(w0.offloader.tree(world.newest()).find(0))
    assert found is not None
    attempt = Attempt(stream=STREAM, ledger_id=0, uid=found.attempt)
    world.run(compactor.compact(4, 8))

    with pytest.raises(NotOffloaded, match=r"copies have replaced \[4, 8\)"):
        world.run(w0.offloader.read_offloaded(attempt))

    for begin, end in ((0, 4), (8, 12)):
        rest = world.run(w0.offloader.read_offloaded(attempt, only=range(begin, end)))
        assert (rest.first_offset, rest.next_offset) == (begin, end)


@pytest.mark.parametrize("is_named", [False, True], ids=["garbage", "named"])
def test_deleting_an_attempt_beside_a_compaction_and_a_sweep_finds_no_damage(
    is_named: bool, world: World
) -> None:
    """The group that it is about to read is made again for a copy, and swept at once."""
    w0, compactor, person = (world.process(name) for name in ("w0", "compactor", "person"))
    world.run(w0.claim())
    garbage = world.run(w0.prepare(Ledger(0, 2)))
    world.run(w0.upload(Ledger(0, 2), garbage))
    world.run(w0.offload(Ledger(0, 8)))
    found = world.run(w0.offloader.tree(world.newest()).find(0))
    assert found is not None
    named = Attempt(stream=STREAM, ledger_id=0, uid=found.attempt)
    person.start(person.offloader.delete_offloaded(named if is_named else garbage))
    person.run_to("list", "*data*").run_to("get", "*/groups/*")
    world.run(compactor.compact(2, 4))
    world.run(Sweep(world.process("sweeper")).run())

    if is_named:
        with pytest.raises(Conflict, match="trim it first"):
            person.finish()
    else:
        person.finish()

    world.check()
    assert any(str(named.uid) in key for key in world.fragments)
    assert is_named or not any(str(garbage.uid) in key for key in world.fragments)


def test_deleting_an_attempt_of_a_stream_whose_group_is_lost_reports_the_damage(world: World) -> None:
    w0 = world.process("w0")
    world.run(w0.claim())
    garbage = world.run(w0.prepare(Ledger(0, 2)))
    world.run(w0.upload(Ledger(0, 2), garbage))
    world.run(w0.offload(Ledger(0, 8)))
    before = world.fragments
    for key in world.groups:
        dict.pop(world.objects, key)
    person = world.process("person")  # one that has not read a group

    with pytest.raises(Absent):
        world.run(person.offloader.delete_offloaded(garbage))

    assert world.fragments == before
