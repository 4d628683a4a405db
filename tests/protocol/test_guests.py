"""Tests of guests, which trim or delete a stream without a claim, and disturb nobody if they stall.

This is 2.7 and 2.10 of the commit protocol. Groups have two entries, so a trim ends within groups of two
kinds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from protocol_sweep import Sweep
from protocol_world import Crash, Ledger, Process, World

from offload.ground.errors import OffloadError, StreamDeleted
from offload.model.entry import EntryKind
from offload.model.manifest import StreamState
from offload.store.faults import Call, Fault

BEFORE = 6
"""The first offset after the trim, within the second group and within the kilo-group."""


def stream(world: World) -> Process:
    """Return a writer that has committed [0, 12) in fragments of two: a kilo-group and a group."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 4), Ledger(4, 12)))
    assert world.newest().entries["kind"].tolist() == [EntryKind.KILO_GROUP, EntryKind.GROUP]
    return w0


def requests_of_a_run() -> int:
    with World() as world:
        w0 = stream(world)
        before = len(w0.store.calls)
        world.run(w0.offload(Ledger(12, 16)))
        return len(w0.store.calls) - before


def calls_of_a_trim() -> list[Call]:
    with World() as world:
        stream(world)
        guest = world.process("guest")
        world.run(guest.trim(BEFORE))
        return list(guest.store.calls)


CALLS = calls_of_a_trim()
CREATE = [call.operation for call in CALLS].index("create")
LOADED = [call.key.endswith("group") for call in CALLS].index(True)
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


def assert_trimmed(world: World, *, next_offset: int = 12) -> None:
    """Assert that the right data is left, in the root, which the judge has checked, and after a sweep."""
    world.run(Sweep(world.process("sweeper")).run())
    world.check()
    world.check_nothing_is_left()
    assert (world.root.first_offset, world.root.next_offset) == (BEFORE, next_offset)


@pytest.mark.parametrize("request_number", range(requests_of_a_run()))
def test_a_trim_between_any_two_requests_of_a_writer_disturbs_neither(
    request_number: int, world: World
) -> None:
    """The writer continues undisturbed, because an append does not depend on trimmed data."""
    w0, guest = stream(world), world.process("guest")
    w0.start(w0.offload(Ledger(12, 16)))
    for _ in range(request_number):
        w0.step()
    world.run(guest.trim(BEFORE))
    world.check()

    w0.finish()

    assert_trimmed(world, next_offset=16)


@pytest.mark.parametrize("request_number", range(len(CALLS)))
def test_a_writer_between_any_two_requests_of_a_trim_disturbs_neither(
    request_number: int, world: World
) -> None:
    """The counts still hold, because committed fragments do not change."""
    w0, guest = stream(world), world.process("guest")
    guest.start(guest.trim(BEFORE))
    for _ in range(request_number):
        guest.step()
    world.run(w0.offload(Ledger(12, 16)))

    guest.finish()

    assert_trimmed(world, next_offset=16)


@pytest.mark.parametrize(("number", "fault"), PLACES)
def test_a_fault_anywhere_in_a_trim_is_cured_by_running_it_again(
    number: int, fault: Fault, world: World
) -> None:
    stream(world)
    guest = world.process("guest")
    guest.start(guest.trim(BEFORE))
    for _ in range(number):
        guest.step()
    guest.step(fault)
    error: OffloadError | None = None
    try:
        guest.finish()
    except OffloadError as exc:
        error = exc
    world.check()
    world.run(guest.store.land())

    if error is not None:
        world.run(guest.trim(BEFORE))

    assert_trimmed(world)


def test_a_lost_reply_to_a_trim_costs_nothing_but_a_look(world: World) -> None:
    stream(world)
    before = world.judge.newest
    guest = world.process("guest")
    guest.start(guest.trim(BEFORE))
    for _ in range(CREATE):
        guest.step()
    guest.step(Fault.LOSE_REPLY)

    guest.finish()

    assert world.judge.newest == before + 1
    assert_trimmed(world)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_number", range(1, len(CALLS) + 1))
def test_a_crash_around_any_request_of_a_trim_is_finished_by_the_next(
    request_number: int, when: str, world: World
) -> None:
    stream(world)
    guest, other = world.process("guest"), world.process("other")
    setattr(guest, f"crash_{when}", request_number)
    with pytest.raises(Crash):
        world.run(guest.trim(BEFORE))
    world.check()

    world.run(other.trim(BEFORE))

    assert_trimmed(world)


@pytest.mark.parametrize("further", [2, 4, 6, 12])
def test_the_longer_of_two_concurrent_trims_counts(further: int, world: World) -> None:
    """They run request by request in turn. Neither subtracts a fragment twice."""
    stream(world)
    guests = [world.process(name) for name in ("one", "other")]
    for guest, before in zip(guests, (BEFORE, further), strict=True):
        guest.start(guest.trim(before))
    while any(guest.busy for guest in guests):
        for guest in guests:
            if guest.busy:
                guest.step()

    for guest in guests:
        guest.finish()

    world.check()
    assert world.root.first_offset == max(BEFORE, further)


def test_a_sweep_deletes_a_group_when_no_fragment_in_it_lives(world: World) -> None:
    """Groups are not rewritten. While one fragment lives, the groups above it stay."""
    stream(world)
    guest, left = world.process("guest"), list[tuple[int, int]]()

    for before in range(2, 14, 2):
        world.run(guest.trim(before))
        world.run(Sweep(world.process(f"sweeper of {before}")).run())
        world.check()
        world.check_nothing_is_left()
        left.append((len(world.fragments), len(world.groups)))

    assert left == [(5, 4), (4, 3), (3, 3), (2, 1), (1, 1), (0, 0)]


def test_a_stream_goes_on_after_all_of_it_was_trimmed(world: World) -> None:
    w0, guest = stream(world), world.process("guest")
    world.run(guest.trim(12))

    world.run(w0.offload(Ledger(12, 16)))

    world.check()
    assert (world.root.first_offset, world.root.next_offset) == (12, 16)
    assert world.root.fields["ledgers"] == 1


def test_a_sweep_leaves_only_the_tombstone_of_a_deleted_stream(world: World) -> None:
    """2.7: a sweep deletes every fragment, every group and every older root by its rules."""
    w0, guest = stream(world), world.process("guest")

    world.run(guest.delete_stream())
    world.run(Sweep(world.process("sweeper")).run())

    world.check()
    assert (world.fragments, world.groups) == (set(), set())
    assert world.roots == [world.judge.newest]
    assert world.newest().state is StreamState.DELETED
    with pytest.raises(StreamDeleted):
        world.run(w0.offload(Ledger(12, 16)))


@pytest.mark.parametrize("request_number", range(requests_of_a_run()))
def test_a_deletion_between_any_two_requests_of_a_writer_stops_it(request_number: int, world: World) -> None:
    """The writer gets an error. Its requests in flight leave garbage, which a sweep deletes."""
    w0, guest = stream(world), world.process("guest")
    w0.start(w0.offload(Ledger(12, 16)))
    for _ in range(request_number):
        w0.step()
    world.run(guest.delete_stream())
    world.run(Sweep(world.process("sweeper")).run())
    world.check()

    with pytest.raises(StreamDeleted):
        w0.finish()
    world.run(Sweep(world.process("another")).run())

    world.check()
    assert (world.fragments, world.groups) == (set(), set())
    assert world.newest().state is StreamState.DELETED


@pytest.mark.parametrize("is_reborn", [False, True])
@pytest.mark.parametrize("request_number", range(LOADED, CREATE + 1))
def test_a_trim_of_a_stream_that_was_deleted_meanwhile_changes_nothing(
    request_number: int, is_reborn: bool, world: World
) -> None:
    """Nor does it change a later stream of the same name with the same offsets."""
    stream(world)
    guest, other = world.process("guest"), world.process("other")
    guest.start(guest.trim(BEFORE))
    for _ in range(request_number):
        guest.step()
    world.run(other.delete_stream())
    if is_reborn:
        world.run(other.claim())
        world.run(other.offload(Ledger(0, 12)))
    newest = world.root

    with pytest.raises(StreamDeleted):
        guest.finish()

    world.check()
    assert world.root is newest
