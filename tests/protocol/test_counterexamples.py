"""Replays of every counterexample of the commit protocol, and each again without its rule.

A replay is one interleaving, described in its docstring, in which every invariant holds. The last test runs
each replay against a mutant of the code without the rule, and expects the harm that the protocol's text
predicts. So a replay that passes is known to be able to fail.

Groups have two entries here, so that almost every append makes some. Rebuilds (2.9) and the grace of readers
(section 3) are not replayed. They have tests of their own. The sweep is `protocol_sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import pytest
from mutants.protocol import PROTOCOL
from protocol_sweep import Sweep
from protocol_world import KEYS, STREAM, Process, ResendingClient, World

from offload.commit.guest import Abort
from offload.ground.errors import (
    Conflict,
    Corrupt,
    Fenced,
    OffloadError,
    OutcomeUnknown,
    RootsLost,
    StreamDeleted,
)
from offload.model.manifest import AttemptKind, StreamState
from offload.model.tokens import token_for
from offload.read.reader import StreamReader
from offload.store.faults import Fault


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def outcome(world: World, job: Coroutine[Any, Any, Any]) -> OffloadError | None:
    """Return the error that the job raised. A test looks for the harm first, and then at the error."""
    try:
        world.run(job)
    except OffloadError as error:
        return error
    return None


def end_of(process: Process) -> OffloadError | None:
    """Return the error that a stalled job raised on the way to its end."""
    try:
        process.finish()
    except OffloadError as error:
        return error
    return None


def holder_with_upload(world: World) -> tuple[Process, Any]:
    """Return a writer with an attempt that is announced (root 2) and uploaded, but not committed."""
    w0 = world.process("w0")
    world.run(w0.claim())
    attempt = world.run(w0.prepare(world.ledger(0, 2)))
    return w0, world.run(w0.upload(world.ledger(0, 2), attempt))


def test_a_load_is_not_deceived_by_a_zombie(world: World) -> None:
    """2.0. A sweeper lists newest = 2 and stalls; root 3 names F; root 2 is swept; a stalled claimant
    creates it again, on root 1 and not knowing F; the sweeper reads it.
    """
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w1.start(w1.claim_on(world.newest())).run_to("create", "*/root.*")
    attempt = world.run(w0.prepare(world.ledger(0, 2)))
    receipt = world.run(w0.upload(world.ledger(0, 2), attempt))
    stalled = Sweep(world.process("sweeper"))
    world.run(stalled.list_objects())
    stalled.process.start(stalled.load_root()).run_to("get", "*/root.*2.manifest")
    world.run(w0.append(receipt))
    world.run(Sweep(world.process("another")).run())
    assert world.roots == [3]
    w1.step()
    assert world.roots == [2, 3]

    stalled.process.finish()
    world.run(stalled.decide())
    world.run(stalled.delete())

    world.check()
    assert stalled.root is not None
    assert stalled.root.version == 3


def test_a_reader_finds_the_newest_root_across_a_gap(world: World) -> None:
    """2.0, probing. A reader knows root 1; 2 to 4 are committed and 3 is swept."""
    w0 = world.process("w0")
    reader = world.process("reader")
    world.run(w0.claim())
    for first in (0, 2, 4):
        world.run(w0.prepare(world.ledger(first, first + 2)))
    del world.objects[KEYS.root(3)]

    found = world.run(reader.log.load_newest(known=1))

    assert found is not None
    assert found.version == 4


def test_a_create_that_succeeded_is_not_yet_a_commit(world: World) -> None:
    """2.1.4. A claimant stalls with root 1; 2 and 3 are committed, root 2 is swept; its create of
    root 2 succeeds. This must not make it the owner.
    """
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w1.start(w1.claim_on(world.newest())).run_to("create", "*/root.*")
    world.run(w0.offload(world.ledger(0, 2)))
    world.run(Sweep(world.process("sweeper")).run())

    w1.finish()

    world.check()
    assert w1.holder.manifest.version == 4
    assert world.judge.zombies == 1
    assert isinstance(outcome(world, w0.offload(world.ledger(2, 4))), Fenced)


def test_finding_ones_own_root_below_the_newest_is_no_proof(world: World) -> None:
    """2.1.4. The same interleaving with a lost reply. The root of this number is the claimant's zombie."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w1.start(w1.claim_on(world.newest())).run_to("create", "*/root.*")
    world.run(w0.offload(world.ledger(0, 2)))
    world.run(Sweep(world.process("sweeper")).run())
    w1.step(Fault.LOSE_REPLY)

    w1.finish()

    world.check()
    assert w1.holder.manifest.version == 4


def test_ones_own_root_is_confirmed_to_be_the_one_that_was_listed(world: World) -> None:
    """2.1.3 with 2.0. A claimant's create of root 2 is in flight. Another's root 2 is listed. Root 3 is
    committed and 2 is swept. Only now the create lands, and the claimant reads its own root 2.
    """
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w1.start(w1.claim_on(world.newest())).run_to("create", "*/root.*")
    w1.step(Fault.DELAY)
    attempt = world.run(w0.prepare(world.ledger(0, 2)))
    w1.run_to("get", "*/root.*2.manifest")
    world.run(w0.append(world.run(w0.upload(world.ledger(0, 2), attempt))))
    world.run(Sweep(world.process("sweeper")).run())
    assert world.run(w1.store.land()) == 1

    w1.finish()

    world.check()
    assert w1.holder.manifest.version == 4


def test_a_name_that_is_taken_is_not_yet_a_loss(world: World) -> None:
    """2.1.5. The create lands, its reply is lost, the client library sends it again: `exists`."""
    w0 = world.process("w0", wrap=ResendingClient)
    w0.start(w0.claim()).run_to("create", "*/root.*")
    w0.step(Fault.LOSE_REPLY)

    w0.finish()

    world.check()
    assert w0.holder.manifest.version == 1
    assert world.roots == [1]


def test_a_commit_creates_no_root_if_roots_were_lost(world: World) -> None:
    """2.1.3. All roots vanish while a create is lost. The commit stops, and creates nothing."""
    w0 = world.process("w0")
    world.run(w0.claim())
    w0.start(w0.prepare(world.ledger(0, 2))).run_to("create", "*/root.*")
    world.objects.lose_roots()
    w0.step(Fault.FAIL_BEFORE)

    error = end_of(w0)

    assert world.roots == []
    assert isinstance(error, Corrupt)


def test_doubt_is_decided_by_content(world: World) -> None:
    """2.1.3. An append lands, its reply is lost, and a guest commits on top. The append is in."""
    w0, guest = world.process("w0"), world.process("guest")
    world.run(w0.claim())
    attempt = world.run(w0.prepare(world.ledger(0, 2)))
    other = world.run(w0.prepare(world.ledger(2, 4)))
    receipt = world.run(w0.upload(world.ledger(0, 2), attempt))
    w0.start(w0.append(receipt)).run_to("create", "*/root.*")
    w0.step(Fault.LOSE_REPLY)
    abort = Abort(attempts=frozenset({other.uid}))
    world.run(guest.offloader.commit_manifest(STREAM, abort, base=world.newest(), committer=guest.env.uuid()))

    w0.finish()

    world.check()
    assert w0.holder.manifest.version == 5
    assert world.root.next_offset == 2


def test_two_writers_of_one_broker_epoch_do_not_both_hold_the_stream(world: World) -> None:
    """2.2. Two processes claim with the same broker epoch, and the first continues."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim(source_epoch=7))
    world.run(w1.claim(source_epoch=7))

    error = outcome(world, w0.offload(world.ledger(0, 2)))

    world.check()
    assert isinstance(error, Fenced)


def test_a_claim_of_an_older_broker_epoch_is_fenced(world: World) -> None:
    """2.2. A broker's old leader wakes up and claims. The new one must continue undisturbed."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim(source_epoch=7))

    error = outcome(world, w1.claim(source_epoch=6))
    world.run(w0.offload(world.ledger(0, 2)))

    world.check()
    assert isinstance(error, Fenced)


def test_a_writer_announces_an_attempt_before_its_uploads(world: World) -> None:
    """2.3. F is uploaded; a sweeper lists it, reads the root, decides and stalls; the append names F; the
    sweeper deletes the objects that it condemned.
    """
    w0, sweep = world.process("w0"), Sweep(world.process("sweeper"))
    world.run(w0.claim())
    w0.start(w0.offload(world.ledger(0, 2))).run_to("put")
    w0.step()
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())

    w0.finish()
    world.run(sweep.delete())

    world.check()
    assert world.root.next_offset == 2


def test_another_cut_never_goes_under_the_same_key(world: World) -> None:
    """2.4. The put of [0, 2) times out; the snapshot grows and [0, 4) is put and committed; then the first
    put lands.
    """
    w0 = world.process("w0", chunks_per_fragment=2)
    world.run(w0.claim())
    w0.start(w0.offload(world.ledger(0, 2))).run_to("put")
    w0.step(Fault.DELAY)
    assert isinstance(end_of(w0), OutcomeUnknown)
    world.run(w0.offload(world.ledger(0, 4)))

    assert world.run(w0.store.land()) == 1

    world.check()
    assert world.root.next_offset == 4
    assert len(world.root.fragments) == 1


def test_an_attempt_that_does_not_run_is_not_appended(world: World) -> None:
    """2.5. Another process drops the attempt, condemns F and stalls before it deletes; the append comes."""
    w0, receipt = holder_with_upload(world)
    other = world.process("other")
    other.start(other.offloader.delete_offloaded(receipt.attempt)).run_to("delete")

    error = outcome(world, w0.append(receipt))
    other.finish()

    world.check()
    assert isinstance(error, Conflict)
    assert world.fragments == set()


def test_only_running_attempts_are_adopted(world: World) -> None:
    """2.6. w0 drops its attempt; a sweeper condemns F and stalls; w1 claims and resolves; the sweeper
    deletes F. A second attempt, left running, makes w1 look for uploads.
    """
    w0, receipt = holder_with_upload(world)
    w1, sweep = world.process("w1"), Sweep(world.process("sweeper"))
    world.run(w0.prepare(world.ledger(2, 4)))
    world.run(w0.holder.abort([receipt.attempt]))
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())

    world.run(w1.claim())
    world.run(sweep.delete())

    world.check()
    assert world.root.next_offset == 0
    assert world.root.running == frozenset()


def test_a_claim_adopts_only_sound_fragments(world: World) -> None:
    """2.6. A fragment of a crashed writer has a flipped bit in one chunk. A claim condemns it."""
    holder_with_upload(world)
    w1 = world.process("w1")
    [key] = world.fragments
    damaged = bytearray(world.objects[key])
    damaged[70] ^= 1
    dict.__setitem__(world.objects, key, bytes(damaged))

    world.run(w1.claim())

    world.check()
    assert world.root.next_offset == 0
    assert world.root.running == frozenset()


def test_a_fenced_writer_deletes_nothing(world: World) -> None:
    """2.7. The append is in, its reply is lost, and another claims. The writer gets `Fenced`, and stops."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    w0.start(w0.offload(world.ledger(0, 2))).run_to("create", "*/root.*", times=2)
    w0.step(Fault.LOSE_REPLY)
    world.run(w1.claim())
    before = dict(world.objects)

    error = end_of(w0)

    world.check()
    assert isinstance(error, Fenced)
    assert dict(world.objects) == before


def test_deleting_a_committed_attempt_is_refused(world: World) -> None:
    """2.7. A writer whose append landed without a reply cleans up after itself."""
    w0, receipt = holder_with_upload(world)
    world.run(w0.append(receipt))

    error = outcome(world, w0.offloader.delete_offloaded(receipt.attempt))

    world.check()
    assert isinstance(error, Conflict)


def test_a_late_create_does_not_bring_a_deleted_stream_back(world: World) -> None:
    """2.7. A commit on the live stream is in flight. It lands after the stream was deleted and swept."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(world.ledger(0, 2)))
    w0.start(w0.prepare(world.ledger(2, 4))).run_to("create", "*/root.*")
    w0.step(Fault.DELAY)
    world.tombstone()
    world.run(Sweep(world.process("sweeper")).run())

    world.run(w0.store.land())

    assert world.fragments == set()
    assert world.newest().state is StreamState.DELETED
    assert isinstance(end_of(w0), StreamDeleted)
    world.check()


def test_a_sweep_spares_objects_that_appeared_after_its_listing(world: World) -> None:
    """2.8. A fragment is announced, uploaded and committed between the first two phases of a sweep."""
    w0, sweep = world.process("w0"), Sweep(world.process("sweeper"))
    world.run(w0.claim())
    first, *rest = sweep.phases()
    world.run(first())
    world.run(w0.offload(world.ledger(0, 2)))

    for phase in rest:
        world.run(phase())

    world.check()
    assert len(world.fragments) == 1


def test_a_sweep_spares_running_attempts_however_long_it_stalls(world: World) -> None:
    """2.8. The sweep decides and stalls. A commit follows, and then the sweep deletes."""
    w0, receipt = holder_with_upload(world)
    sweep = Sweep(world.process("sweeper"))
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    world.run(w0.append(receipt))

    world.run(sweep.delete())

    world.check()
    assert len(world.fragments) == 1


def test_a_sweep_spares_fragments_that_a_new_epoch_may_still_adopt(world: World) -> None:
    """2.8. w1 has claimed but not resolved. A sweep decides by that root and stalls. Then w1 adopts F."""
    holder_with_upload(world)
    w1, sweep = world.process("w1"), Sweep(world.process("sweeper"))
    w1.start(w1.claim()).run_to("list", "*/data/", times=2)  # the first was before the claim
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    w1.finish()

    world.run(sweep.delete())

    world.check()
    assert world.root.next_offset == 2


def test_nobody_deletes_an_object_if_roots_were_lost(world: World) -> None:
    """2.9. Without a root nobody knows which objects a rebuild names, so they all stay."""
    w0, receipt = holder_with_upload(world)
    world.run(w0.append(receipt))
    world.objects.lose_roots()

    deletion = outcome(world, w0.offloader.delete_offloaded(receipt.attempt))
    swept = outcome(world, Sweep(world.process("sweeper")).run())

    assert len(world.fragments) == 1
    assert isinstance(deletion, RootsLost)
    assert isinstance(swept, RootsLost)


def stalled_with_a_group(world: World) -> tuple[Process, Any]:
    """Return a writer that stored a group for root 6 but did not create it, and an attempt to drop."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(world.ledger(0, 2)))
    other = world.run(w0.prepare(world.ledger(4, 6)))
    w0.start(w0.offload(world.ledger(2, 4))).run_to("create", "*/root.*", times=2)
    [key] = world.groups
    assert KEYS.parse_group(key) is not None
    assert ".00000000000000000006." in key
    return w0, other


def test_a_group_is_stored_before_the_root_that_names_it(world: World) -> None:
    """2.1. At no moment does a root name an absent group."""
    w0 = world.process("w0")
    world.run(w0.claim())

    world.run(w0.offload(world.ledger(0, 8)))

    world.check()
    assert {name.rpartition(".")[2] for name in world.root.groups} == {"group", "kgroup"}


def test_an_entry_agrees_with_its_group(world: World) -> None:
    """2.1. A reader selects groups by their entries, and totals are sums of entries."""
    w0 = world.process("w0")
    world.run(w0.claim())

    world.run(w0.offload(world.ledger(0, 4)))

    world.check()
    assert len(world.root.groups) == 1


def test_a_sweep_spares_a_group_whose_number_is_not_decided(world: World) -> None:
    """2.8. A sweep finds a group for root 6 while root 5 is the newest, and stalls. Root 6 is created."""
    w0, _ = stalled_with_a_group(world)
    sweep = Sweep(world.process("sweeper"))
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    w0.finish()

    world.run(sweep.delete())

    world.check()
    assert len(world.root.groups) == 1


def test_a_writer_that_lost_a_number_makes_its_groups_again(world: World) -> None:
    """2.8. A guest takes number 6; a sweep condemns the group that was made for it, and stalls; the writer
    goes on and creates root 7; the sweep deletes what it condemned.
    """
    w0, other = stalled_with_a_group(world)
    guest, sweep = world.process("guest"), Sweep(world.process("sweeper"))
    world.run(guest.offloader.delete_offloaded(other))
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    w0.finish()

    world.run(sweep.delete())

    world.check()
    world.check_nothing_is_left()
    assert (world.judge.newest, world.root.next_offset, len(world.root.groups)) == (7, 4, 1)


def test_a_trim_that_another_one_overtook_counts_again(world: World) -> None:
    """2.10. A guest counts the fragments of [0, 6) and stalls. Another guest trims [0, 2)."""
    w0, guest, other = (world.process(name) for name in ("w0", "guest", "other"))
    world.run(w0.claim())
    world.run(w0.offload(world.ledger(0, 8)))
    guest.start(guest.trim(6)).run_to("create", "*/root.*")
    world.run(other.trim(2))

    guest.finish()

    world.check()
    assert (world.root.first_offset, world.root.fields["fragments"]) == (6, 1)


def job_with_upload(world: World, first_offset: int = 0) -> tuple[Process, Any]:
    """Return a job on a claimed stream, with an attempt that is announced and uploaded."""
    job = world.process("job")
    if not world.roots:
        world.run(world.process("w0").claim())
    world.run(job.begin_job())
    ledger = world.ledger(first_offset, first_offset + 2)
    return job, world.run(job.copy([ledger], world.run(job.announce(ledger))))


def test_a_job_whose_attempt_does_not_run_is_not_appended(world: World) -> None:
    """2.10. A job is aborted; a sweep condemns what it uploaded, and stalls; the job appends; the sweep
    deletes.
    """
    job, receipts = job_with_upload(world)
    other, sweep = world.process("other"), Sweep(world.process("sweeper"))
    world.run(other.begin_job(uid=job.guest.uid))
    world.run(other.guest.abort())
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    error = outcome(world, job.guest.append(receipts))

    world.run(sweep.delete())

    world.check()
    assert isinstance(error, Conflict)


def test_a_job_does_not_append_what_another_one_announced(world: World) -> None:
    """2.10. Otherwise the job that announced it would get `Conflict`, and append the data again."""
    _, receipts = job_with_upload(world)
    other = world.process("other")
    world.run(other.begin_job())

    error = outcome(world, other.guest.append(receipts))

    world.check()
    assert isinstance(error, Conflict)


def test_a_job_adds_nothing_to_a_stream_that_was_born_since(world: World) -> None:
    """2.10. A job begins, and stalls before it announces. The stream is deleted and begins again."""
    w0, job = world.process("w0"), world.process("job")
    world.run(w0.claim())
    world.run(job.begin_job())
    world.run(w0.delete_stream())
    world.run(w0.claim())

    error = outcome(world, job.announce(world.ledger(0, 2)))

    world.check()
    assert isinstance(error, StreamDeleted)


def test_a_jobs_doubt_is_decided_by_content(world: World) -> None:
    """2.1.3. A job's append lands, its reply is lost, and another process commits on top of it."""
    job, receipts = job_with_upload(world)
    job.start(job.guest.append(receipts)).run_to("create", "*/root.*")
    job.step(Fault.LOSE_REPLY)
    world.run(world.process("w1").claim())

    job.finish()

    world.check()
    assert world.root.next_offset == 2


def test_a_job_gets_no_success_for_a_trimmed_append_of_another(world: World) -> None:
    """2.1.3 with 2.10. A job is aborted before its append. A writer appends there, and all is trimmed."""
    job, receipts = job_with_upload(world)
    other = world.process("other")
    job.start(job.guest.append(receipts)).run_to("create", "*/root.*")
    world.run(other.begin_job(uid=job.guest.uid))
    world.run(other.guest.abort())
    world.run(other.claim())
    world.run(other.offload(world.ledger(0, 2)))
    world.run(other.trim(2))

    error = end_of(job)

    world.check()
    world.check_what_was_told()
    assert isinstance(error, OutcomeUnknown)


def test_a_claim_keeps_the_attempts_of_a_job(world: World) -> None:
    """2.10. A writer claims and resolves the attempts of the writer before it. The job continues."""
    job, receipts = job_with_upload(world)
    w1 = world.process("w1")
    world.run(w1.claim())
    world.run(w1.prepare(world.ledger(2, 4)))
    world.run(world.process("w2").claim())

    error = outcome(world, job.guest.append(receipts))

    world.check()
    assert error is None


def test_a_claim_does_not_adopt_the_uploads_of_a_job(world: World) -> None:
    """2.10. The upload is whole and continues the stream. The job would append it once more."""
    job, receipts = job_with_upload(world)
    w1 = world.process("w1")
    world.run(w1.claim())
    world.run(w1.prepare(world.ledger(0, 2)))
    world.run(world.process("w2").claim())

    error = outcome(world, job.guest.append(receipts))

    world.check()
    assert error is None


def compacting(world: World, *appended: tuple[int, int]) -> tuple[Process, Process]:
    """Return a writer of more than [0, 8), which is in a kilo-group, and a process with large fragments."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(*(world.ledger(first, end) for first, end in ((0, 8), *appended))))
    return w0, world.process("compactor", chunks_per_fragment=100)


def prepared_copy(world: World, process: Process, first: int, end: int) -> tuple[Any, Any]:
    """Return a run of fragments, and a copy of it that is uploaded but not committed."""
    world.run(process.begin_job())
    run = world.run(process.plan(first, end))
    return run, world.run(process.copy_run(run))


def test_only_one_of_two_copies_replaces_the_same_fragments(world: World) -> None:
    """2.11. Two jobs copy [0, 4), and one commits. The other job's fragments are not named any more."""
    _, first = compacting(world, (8, 12))
    run, copy = prepared_copy(world, first, 0, 4)
    world.run(world.process("other", chunks_per_fragment=100).compact(0, 4))

    error = outcome(world, first.guest.replace(run.entries, [copy]))

    world.check()
    assert isinstance(error, Conflict)


def test_a_copy_that_was_aborted_replaces_nothing(world: World) -> None:
    """2.11. A copy is aborted. A sweep condemns it and stalls. The job replaces. The sweep deletes."""
    _, process = compacting(world, (8, 12))
    run, copy = prepared_copy(world, process, 0, 4)
    sweep = Sweep(world.process("sweeper"))
    world.run(process.guest.abort())
    for phase in (sweep.list_objects, sweep.load_root, sweep.decide):
        world.run(phase())
    error = outcome(world, process.guest.replace(run.entries, [copy]))

    world.run(sweep.delete())

    world.check()
    assert isinstance(error, Conflict)


def test_a_partly_trimmed_run_is_not_replaced(world: World) -> None:
    """2.11. [0, 4) is copied. A trim removes [0, 2), which the group still lists."""
    _, process = compacting(world, (8, 12))
    run, copy = prepared_copy(world, process, 0, 4)
    world.run(world.process("guest").trim(2))

    error = outcome(world, process.guest.replace(run.entries, [copy]))

    world.check()
    assert isinstance(error, Conflict)


def test_the_newest_fragments_stay_as_they_are(world: World) -> None:
    """2.11. A writer whose last append is in doubt looks for them."""
    _, process = compacting(world)
    run, copy = prepared_copy(world, process, 4, 8)

    error = outcome(world, process.guest.replace(run.entries, [copy]))

    world.check()
    assert isinstance(error, Conflict)


def test_the_entry_of_a_copy_is_marked(world: World) -> None:
    """2.11. Otherwise a writer whose append is in doubt would take the copy for another's append."""
    _, process = compacting(world, (8, 12))

    world.run(process.compact(0, 4))

    world.check()
    assert [row["copied"] for row in world.root.fragments[:2]] == [1, 0]


def test_a_copy_of_a_batch_keeps_its_token(world: World) -> None:
    """2.11. Otherwise a repeated batch would not be found, and would be appended twice."""
    w0, process = compacting(world)
    job, token = world.process("job"), token_for("a batch")
    world.run(job.begin_job())
    attempts = world.run(job.announce(world.ledger(8, 12), token=token))
    world.run(job.guest.append(world.run(job.copy([world.ledger(8, 12)], attempts))))
    world.run(w0.offload(world.ledger(12, 16)))

    world.run(process.compact(8, 12))

    world.check()
    [copy] = [row for row in world.root.fragments if row["first_offset"] == 8]
    assert (copy["copied"], copy["attempt"][:8]) == (1, token)


def test_a_copy_is_never_appended(world: World) -> None:
    """2.11. The copy would fit, because it was uploaded for the stream's end."""
    _, process = compacting(world)
    world.run(process.begin_job())
    entry = replace(world.run(process.plan(4, 8)).entries[0], ledger_id=8)
    manifest, [attempt] = world.run(process.guest.prepare_copies([[entry]]))
    seeming = replace(manifest, running=tuple(replace(r, kind=AttemptKind.JOB) for r in manifest.running))
    offload = process.offloader.offload
    receipt = world.run(offload(world.ledger(8, 12), attempt, manifest=seeming, extra_metadata={}))

    error = outcome(world, process.guest.append([receipt]))

    world.check()
    assert isinstance(error, Conflict)


def test_a_replaced_append_is_not_reported_as_refused(world: World) -> None:
    """2.11. A job's append lands without a reply. A writer continues, and a copy replaces the append."""
    w0, process = compacting(world)
    job = world.process("job")
    ledgers = world.ledger(8, 12), world.ledger(12, 16)
    world.run(job.begin_job())
    receipts = world.run(job.copy(ledgers[:1], world.run(job.announce(ledgers[0]))))
    job.start(job.guest.append(receipts)).run_to("create", "*/root.*")
    job.step(Fault.LOSE_REPLY)
    world.run(w0.offload(ledgers[1]))
    world.run(process.compact(8, 12))

    error = end_of(job)

    world.check()
    world.check_what_was_told()
    assert isinstance(error, OutcomeUnknown)


def test_an_aborted_append_is_not_reported_as_done_if_a_copy_is_there(world: World) -> None:
    """2.11. A writer's attempt is dropped. A job appends at its offsets, and a copy replaces that."""
    w0, process = compacting(world)
    job, other = world.process("job"), world.process("other")
    attempt = world.run(w0.prepare(world.ledger(8, 12)))
    receipt = world.run(w0.upload(world.ledger(8, 12), attempt))
    w0.start(w0.append(receipt)).run_to("create", "*/root.*")
    world.run(other.offloader.delete_offloaded(attempt))
    world.run(job.do_job(world.ledger(8, 12), world.ledger(12, 16)))
    world.run(process.compact(8, 12))

    error = end_of(w0)

    world.check()
    world.check_what_was_told()
    assert isinstance(error, OutcomeUnknown)


def test_a_dropped_try_of_a_batch_is_not_reported_as_done(world: World) -> None:
    """2.11. A job is aborted. Another try with the same token is appended and copied."""
    w0, process = compacting(world)
    job, again = world.process("job"), world.process("again")
    ledger = world.ledger(8, 12)
    world.run(job.begin_job())
    receipts = world.run(job.copy([ledger], world.run(job.announce(ledger, token=token_for("a batch")))))
    world.run(job.guest.abort())
    world.run(again.begin_job())
    others = world.run(again.copy([ledger], world.run(again.announce(ledger, token=token_for("a batch")))))
    world.run(again.guest.append(others))
    world.run(w0.offload(world.ledger(12, 16)))
    world.run(process.compact(8, 12))

    error = outcome(world, job.guest.append(receipts))

    world.check()
    world.check_what_was_told()
    assert isinstance(error, OutcomeUnknown)


def test_a_trim_that_a_replacement_overtook_counts_again(world: World) -> None:
    """2.11 with 2.10. A trim of [0, 6) is counted and stalls. Then [0, 4) becomes one fragment."""
    _, process = compacting(world, (8, 12))
    guest = world.process("guest")
    guest.start(guest.trim(6)).run_to("create", "*/root.*")
    world.run(process.compact(0, 4))

    guest.finish()

    world.check()
    assert world.root.first_offset == 6


def test_a_reader_goes_on_at_its_offset_within_a_copy(world: World) -> None:
    """2.11. A reader got a part. All parts become one fragment, and a sweep deletes the old ones."""
    _, process = compacting(world, (8, 12))
    sweep, offsets = Sweep(world.process("sweeper")), list[int]()
    reader = world.run(StreamReader.open(world.process("reader").offloader, STREAM, in_flight=1))

    async def read() -> None:
        async with aclosing(reader.messages(0)) as batches:
            async for batch in batches:
                offsets.append(batch.offset)
                if batch.offset == 0:
                    await process.compact(0, 4)
                    await process.compact(4, 8)
                    await sweep.run()

    world.run(read())

    world.check()
    assert offsets == [0, 2, 4, 6, 8, 10]


HARM: Final[dict[str, tuple[Callable[[World], None], str]]] = {
    "unconfirmed load": (test_a_load_is_not_deceived_by_a_zombie, "which is absent"),
    "probing": (test_a_reader_finds_the_newest_root_across_a_gap, "assert 2 == 4"),
    "success is accepted": (
        test_a_create_that_succeeded_is_not_yet_a_commit,
        "succeeded for .*, but it is not in",
    ),
    "own id is accepted": (
        test_finding_ones_own_root_below_the_newest_is_no_proof,
        "succeeded for .*, but it is not in",
    ),
    "own id unconfirmed": (
        test_ones_own_root_is_confirmed_to_be_the_one_that_was_listed,
        "succeeded for .*, but it is not in",
    ),
    "exists is loss": (test_a_name_that_is_taken_is_not_yet_a_loss, "the name was taken"),
    "lost roots are created again": (test_a_commit_creates_no_root_if_roots_were_lost, r"\[2\] == \[\]"),
    "doubt is not decided by content": (test_doubt_is_decided_by_content, "does not run for this writer"),
    "fence by epoch only": (
        test_two_writers_of_one_broker_epoch_do_not_both_hold_the_stream,
        "without a higher epoch",
    ),
    "source epoch may fall": (test_a_claim_of_an_older_broker_epoch_is_fenced, "another writer"),
    "upload first": (test_a_writer_announces_an_attempt_before_its_uploads, "condemned before"),
    "same key for another cut": (test_another_cut_never_goes_under_the_same_key, "replaced by other bytes"),
    "append without running": (test_an_attempt_that_does_not_run_is_not_appended, "condemned before"),
    "adopt any": (test_only_running_attempts_are_adopted, "condemned before"),
    "adopt unchecked": (test_a_claim_adopts_only_sound_fragments, "the source's bytes"),
    "fenced deletes": (test_a_fenced_writer_deletes_nothing, "which is absent"),
    "delete without a commit": (test_deleting_a_committed_attempt_is_refused, "which is absent"),
    "purge": (test_a_late_create_does_not_bring_a_deleted_stream_back, "State.LIVE"),
    "root first": (test_a_sweep_spares_objects_that_appeared_after_its_listing, "which is absent"),
    "sweep what is unnamed": (
        test_a_sweep_spares_running_attempts_however_long_it_stalls,
        "which is absent",
    ),
    "sweep by epoch": (test_a_sweep_spares_fragments_that_a_new_epoch_may_still_adopt, "which is absent"),
    "sweep undecided groups": (
        test_a_sweep_spares_a_group_whose_number_is_not_decided,
        r"\.group, which is absent",
    ),
    "groups after the root": (
        test_a_group_is_stored_before_the_root_that_names_it,
        r"\.k?group, which is absent",
    ),
    "groups made once": (
        test_a_writer_that_lost_a_number_makes_its_groups_again,
        r"\.group, which a sweep may have condemned before",
    ),
    "wrong total of a group": (
        test_an_entry_agrees_with_its_group,
        r"and .*\.group disagree: \['messages'\]",
    ),
    "wrong time of a group": (
        test_an_entry_agrees_with_its_group,
        r"and .*\.group disagree: \['first_timestamp_ms'\]",
    ),
    "job: append without running": (test_a_job_whose_attempt_does_not_run_is_not_appended, "superseded"),
    "job: append what runs for another": (
        test_a_job_does_not_append_what_another_one_announced,
        "superseded writer changed",
    ),
    "job: any incarnation": (
        test_a_job_adds_nothing_to_a_stream_that_was_born_since,
        r"isinstance\(None, StreamDeleted\)",
    ),
    "job: doubt is not decided by content": (test_a_jobs_doubt_is_decided_by_content, "does not run for job"),
    "job: what was trimmed was in": (
        test_a_job_gets_no_success_for_a_trimmed_append_of_another,
        "success for a commit that is not in",
    ),
    "job: dropped with older writers": (
        test_a_claim_keeps_the_attempts_of_a_job,
        "a writer removed an attempt of a job",
    ),
    "job: adopted": (
        test_a_claim_does_not_adopt_the_uploads_of_a_job,
        "somebody else appended an attempt of a job",
    ),
    "replace: whatever is named": (
        test_only_one_of_two_copies_replaces_the_same_fragments,
        "as stored_size_bytes",
    ),
    "replace: without running": (test_a_copy_that_was_aborted_replaces_nothing, "not announced as a copy"),
    "replace: what was trimmed": (test_a_partly_trimmed_run_is_not_replaced, "a hole or an overlap"),
    "replace: the newest": (test_the_newest_fragments_stay_as_they_are, "the newest fragment was replaced"),
    "replace: a copy does not say so": (
        test_the_entry_of_a_copy_is_marked,
        "a replacement is not marked as a copy",
    ),
    "replace: copies are appended": (test_a_copy_is_never_appended, "superseded writer changed"),
    "replace: what is replaced never was": (
        test_a_replaced_append_is_not_reported_as_refused,
        "got a wrong result",
    ),
    "replace: what is replaced was in": (
        test_an_aborted_append_is_not_reported_as_done_if_a_copy_is_there,
        "success for a commit that is not in",
    ),
    "replace: copies of anybody's": (
        test_a_copy_of_a_batch_keeps_its_token,
        "a copy has another token",
    ),
    "reader: copies are read anew": (
        test_a_reader_goes_on_at_its_offset_within_a_copy,
        r"assert \[0, .*0.* == \[0, 2, 4, 6, 8, 10\]",
    ),
    "reader: copies are left out": (
        test_a_reader_goes_on_at_its_offset_within_a_copy,
        r"assert \[0, .* == \[0, 2, 4, 6, 8, 10\]",
    ),
    "trim: counted before a replacement": (
        test_a_trim_that_a_replacement_overtook_counts_again,
        "as stored_size_bytes",
    ),
    "trim from anywhere": (test_a_trim_that_another_one_overtook_counts_again, "claims 0 as messages"),
}


@pytest.mark.parametrize("name", PROTOCOL)
def test_without_its_rule_a_replay_shows_the_harm(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, harm = HARM[name]
    PROTOCOL[name].take_out(monkeypatch)

    with pytest.raises((AssertionError, OffloadError), match=harm):
        replay(world)


def test_a_resolution_that_was_trimmed_before_its_reply_is_in_doubt(world: World) -> None:
    """2.1.3 with 2.10. w1 adopts the uploads of w0, its reply is lost, and a guest trims them."""
    holder_with_upload(world)
    w1, guest = world.process("w1"), world.process("guest")
    w1.start(w1.claim()).run_to("create", "*/root.*", times=2)
    w1.step(Fault.LOSE_REPLY)
    world.run(guest.trim(2))

    error = end_of(w1)

    world.check()
    assert isinstance(error, OutcomeUnknown)
    world.run(w1.claim())
    world.run(w1.offload(world.ledger(2, 4)))
    assert world.root.next_offset == 4
