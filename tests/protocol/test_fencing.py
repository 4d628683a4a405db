"""Tests of fencing: a writer whose claim was superseded changes nothing, wherever it stalled.

Commit-protocol 2.2 and 2.7, invariants 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from uuid import UUID

import pytest
from protocol_sweep import Sweep
from protocol_world import STREAM, Ledger, Process, World

from offload.commit.writer import Append
from offload.ground.errors import Conflict, Fenced, StreamDeleted
from offload.model.attempt import Attempt, Receipt
from offload.model.manifest import StreamState
from offload.store.faults import Fault


def ledgers() -> list[Ledger]:
    return [Ledger(0, 4), Ledger(4, 6)]


def requests_of_a_run() -> int:
    with World() as world:
        w0 = world.process("w0")
        world.run(w0.claim())
        before = len(w0.store.calls)
        world.run(w0.offload(*ledgers()))
        return len(w0.store.calls) - before


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def stalled(world: World, request_number: int) -> Process:
    """Return a writer that stalls before a request of its run."""
    w0 = world.process("w0")
    world.run(w0.claim())
    w0.start(w0.offload(*ledgers()))
    for _ in range(request_number):
        w0.step()
    return w0


@pytest.mark.parametrize("request_number", range(requests_of_a_run()))
def test_a_stalled_writer_that_was_fenced_changes_nothing(request_number: int, world: World) -> None:
    """It wakes up after another claimed, and gets `Fenced`. Readers see no change. No object is deleted."""
    w0, w1 = stalled(world, request_number), world.process("w1")
    world.run(w1.claim())
    before, newest = dict(world.objects), world.root

    with pytest.raises(Fenced):
        w0.finish()

    world.check()
    assert world.root is newest
    assert before.items() <= world.objects.items()
    assert "delete" not in {call.operation for call in w0.store.calls}


@pytest.mark.parametrize("request_number", range(requests_of_a_run()))
def test_the_rival_finishes_while_the_fenced_writer_wakes_up(request_number: int, world: World) -> None:
    """Both continue, request by request in turn. The requests of the fenced writer do not harm the rival."""
    w0, w1 = stalled(world, request_number), world.process("w1")
    world.run(w1.claim())
    w1.start(w1.claim_and_offload(*ledgers()))
    while w1.busy:
        w1.step()
        if w0.busy:
            w0.step()

    with pytest.raises(Fenced):
        w0.finish()
    world.run(Sweep(world.process("sweeper")).run())

    world.check()
    assert w1.holder.manifest.version == world.judge.newest
    assert world.root.next_offset == 6
    world.check_nothing_is_left()


def test_a_fenced_writer_that_drops_its_attempts_does_not_become_its_successor(world: World) -> None:
    """Anyone may abort, so that commit succeeds, and its manifest names the successor as the writer."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    attempt = world.run(w0.prepare(Ledger(0, 2)))
    world.run(w1.claim())
    other = world.run(w1.prepare(Ledger(0, 2)))
    world.run(w0.holder.abort([attempt, other]))

    with pytest.raises(Fenced):
        world.run(w0.prepare(Ledger(0, 2)))

    world.check()


def test_a_fenced_writer_stays_fenced(world: World) -> None:
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    world.run(w1.claim())

    for job in (w0.prepare, w0.offload):
        with pytest.raises(Fenced) as caught:
            world.run(job(Ledger(0, 2)))
        assert caught.value.epoch == 2

    world.check()


@pytest.mark.parametrize("seed", range(60))
def test_of_racing_claims_the_last_one_in_history_holds_the_stream(seed: int) -> None:
    """Three claims from one base send requests in any order, and lose some replies. All of them end, and only
    the last one in history can commit.
    """
    with World(seed) as world:
        rivals = [world.process(name) for name in ("w0", "w1", "w2")]
        random = Random(seed)
        for rival in rivals:
            rival.start(rival.claim())
        while busy := [rival for rival in rivals if rival.busy]:
            rival = random.choice(busy)
            assert rival.parked is not None
            lost = rival.parked.operation == "create" and "/root." in rival.parked.key
            rival.step(random.choice([None, Fault.LOSE_REPLY, Fault.DELAY]) if lost else None)
        for rival in rivals:
            rival.finish()
            world.run(rival.store.land())
        world.check()

        holders = [rival for rival in rivals if rival.holder.writer.bytes == world.root.writer]
        assert len(holders) == 1
        for rival in rivals:
            if rival is not holders[0]:
                with pytest.raises(Fenced):
                    world.run(rival.offload(Ledger(0, 2)))
        world.run(holders[0].offload(Ledger(0, 2)))
        world.check()
        assert world.root.next_offset == 2


def test_a_claim_that_tells_no_broker_epoch_keeps_the_recorded_one(world: World) -> None:
    """Section 1: source_epoch never falls."""
    w0, w1, w2 = (world.process(name) for name in ("w0", "w1", "w2"))
    world.run(w0.claim(source_epoch=7))
    world.run(w1.claim())

    with pytest.raises(Fenced):
        world.run(w2.claim(source_epoch=6))

    world.check()
    assert world.root.source_epoch == 7


def test_a_writer_of_a_deleted_stream_learns_of_the_deletion(world: World) -> None:
    """2.7: the tombstone has no writer, and a higher epoch."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 2)))
    world.tombstone()

    with pytest.raises(StreamDeleted):
        world.run(w0.offload(Ledger(2, 4)))

    world.check()
    assert world.newest().state is StreamState.DELETED


def test_a_claim_on_a_tombstone_is_a_rebirth(world: World) -> None:
    """2.7: a new incarnation begins at the declared first offset. Numbers and epochs continue. No upload of
    the old one is adopted, and its writer stays fenced.
    """
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim(source_epoch=3))
    attempt = world.run(w0.prepare(Ledger(0, 2)))
    world.run(w0.upload(Ledger(0, 2), attempt))
    tomb = world.tombstone()

    world.run(w1.claim(first_offset=10))
    world.run(w1.offload(Ledger(10, 12)))

    world.check()
    born = w1.holder.manifest
    assert world.judge.history[tomb.version + 1].parent_commit_id == tomb.commit_id.bytes
    assert (born.first_offset, born.next_offset) == (10, 12)
    assert born.incarnation != tomb.incarnation
    assert (born.epoch, born.source_epoch) == (tomb.epoch + 1, 3)
    with pytest.raises(Fenced):
        world.run(w0.prepare(Ledger(2, 4)))


@pytest.mark.parametrize("lives", [1, 2, 3])
def test_a_claim_that_stalls_over_deaths_and_rebirths_revives_no_dead_incarnation(lives: int) -> None:
    """2.7: the claim began the first incarnation, finds the last one's tombstone, and is applied again."""
    with World(empty=True) as world:
        w0, rival, person = (world.process(name, opened=False) for name in ("w0", "rival", "person"))
        w0.start(w0.claim()).run_to("create", "*/root.*")
        w0.step()  # it landed; and before its writer looks,
        for _ in range(lives - 1):
            world.run(person.delete_stream())
            world.run(rival.claim())
        world.run(person.delete_stream())
        dead = {root.incarnation for root in world.history}

        w0.finish()

        world.check()
        assert len(dead) == lives
        assert world.root.incarnation not in dead


def test_a_writer_stalled_across_death_and_rebirth_is_fenced(world: World) -> None:
    """2.7: numbers continue, so its create meets an existing root, or leaves a zombie."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w0.start(w0.offload(Ledger(0, 2))).run_to("create", "*/root.*", times=2)
    world.tombstone()
    world.run(w1.claim(first_offset=10))
    world.run(Sweep(world.process("sweeper")).run())

    with pytest.raises(Fenced):
        w0.finish()

    world.check()
    assert world.root.writer == w1.holder.writer.bytes
    assert world.root.next_offset == 10


def test_a_claim_leaves_a_stream_alone_that_is_being_rebuilt(world: World) -> None:
    """2.9: the fence of a rebuild names no data. If it became live, a sweep would delete all data."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 2)))
    world.rebuilding()
    before = dict(world.objects)

    with pytest.raises(Conflict):
        world.run(w1.claim())

    assert dict(world.objects) == before


def test_a_commit_that_is_in_already_is_not_made_again(world: World) -> None:
    """ "Commits are idempotent", also on a base that shows the change: no second root, no attempt twice."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 2)))
    roots = world.roots

    claim, _, append = (change for change, _ in w0.offloader.commits)
    for change in (claim, append):
        found = world.run(
            w0.offloader.commit_manifest(STREAM, change, base=world.newest(), committer=w0.holder.writer)
        )
        assert found.version == world.judge.newest

    world.check()
    assert world.roots == roots


def test_an_append_of_what_another_attempt_committed_is_a_conflict(world: World) -> None:
    """2.5: entries begin at next_offset. That the range is committed does not make it this change."""
    w0 = world.process("w0")
    world.run(w0.claim())
    late = world.run(w0.prepare(Ledger(0, 2)))
    receipt = world.run(w0.upload(Ledger(0, 2), late))
    world.run(w0.offload(Ledger(0, 2)))

    with pytest.raises(Conflict):
        world.run(w0.append(receipt))

    world.check()
    assert late.uid.bytes in world.root.running


def test_an_attempt_that_is_announced_twice_runs_once(world: World) -> None:
    """The reply to the first announcement was lost. The caller loads the manifest and announces again."""
    w0 = world.process("w0")
    world.run(w0.claim())
    attempt = world.run(w0.prepare(Ledger(0, 2)))
    change, _ = w0.offloader.commits[-1]

    again = world.run(
        w0.offloader.commit_manifest(STREAM, change, base=world.newest(), committer=w0.holder.writer)
    )

    world.check()
    assert [running.attempt for running in again.running] == [attempt.uid]


def test_of_attempts_that_were_announced_together_none_runs_twice_when_one_is_dropped(world: World) -> None:
    """2.1.3: the other attempts still run, so the announcement is in. Found by the simulation."""
    w0, person = world.process("w0"), world.process("person")
    world.run(w0.claim())
    w0.start(w0.holder.prepare([0, 2])).run_to("create", "*/root.*")
    w0.step()  # it landed; and before its writer looks,
    dropped, stays = sorted(world.root.running)
    world.run(person.offloader.delete_offloaded(Attempt(stream=STREAM, ledger_id=0, uid=UUID(bytes=dropped))))

    announced = w0.finish()

    world.check()
    assert {attempt.uid.bytes for attempt in announced} == {dropped, stays}
    assert world.root.running == {stays}


def test_a_base_whose_group_is_swept_is_no_damage(world: World) -> None:
    """2.1: a newer root then decides if the change is in. Found by the simulation."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    late = world.run(w0.prepare(Ledger(0, 2)))
    receipt = world.run(w0.upload(Ledger(0, 2), late))
    for first_offset in range(0, 8, 2):
        world.run(w0.offload(Ledger(first_offset, first_offset + 2)))
    assert world.groups
    world.run(w1.trim(8))
    world.run(Sweep(w1).run())
    assert not world.groups

    another = world.process("another")  # one that has not read the group yet
    change = Append(writer=w0.holder.writer, entries=receipt.entries, finished=frozenset({late.uid}))
    committed = another.offloader.commit_manifest(
        STREAM, change, base=w0.holder.manifest, committer=w0.holder.writer
    )
    with pytest.raises(Conflict):  # its attempt runs still, so it is not in, and what it names is trimmed
        world.run(committed)

    world.check()
    assert world.root.next_offset == 8


def test_an_attempt_that_copied_nothing_ends_with_its_append(world: World) -> None:
    """An append without entries still drops its attempts, however often its reply is lost."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    attempt = world.run(w0.prepare(Ledger(0, 2)))
    other = world.run(w0.prepare(Ledger(2, 4)))
    receipt = Receipt(attempt=attempt, entries=[])
    w0.start(w0.append(receipt)).run_to("create", "*/root.*")
    world.run(w1.offloader.delete_offloaded(other))

    w0.finish()

    world.check()
    assert world.root.running == frozenset()
