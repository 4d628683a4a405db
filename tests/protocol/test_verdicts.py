"""Tests of the result of a commit that an earlier call may have made.

A caller sends a change again after `OutcomeUnknown`, on a manifest that may be old. `TryAgain`, `Conflict`
and `Misuse` promise that the change is not in, so the newest manifest must have shown that.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from protocol_sweep import Sweep
from protocol_world import NOTHING_COMMITTED, STREAM, Ledger, Process, World

from offload.commit.job import Announce
from offload.commit.log import REQUESTS_MAX
from offload.commit.writer import Append, Prepare
from offload.contracts.capabilities import Capabilities
from offload.contracts.change import Change, CommitVerdict
from offload.ground.errors import Corrupt, Denied, Fenced, NoSpace, OffloadError, OutcomeUnknown, TryAgain
from offload.model.manifest import Manifest
from offload.model.tree import Tree
from offload.store.faults import Fault, Rule
from offload.store.wrap import StoreDecorator
from offload.write import writer as stream_writer


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


Sent = tuple[Process, Callable[[], Coroutine[Any, Any, Any]]]


def writer_in_doubt(world: World) -> Sent:
    """Return a writer and its append, which makes groups of two fragments."""
    writer, ledger = world.process("writer"), Ledger(0, 6)
    world.run(writer.claim())
    receipt = world.run(writer.upload(ledger, world.run(writer.prepare(ledger))))
    return writer, lambda: writer.append(receipt)


def job_in_doubt(world: World) -> Sent:
    """Return a job and its append."""
    world.run(world.process("writer").claim())
    job, ledger = world.process("job"), Ledger(0, 6)
    world.run(job.begin_job())
    receipts = world.run(job.copy([ledger], world.run(job.announce(ledger))))
    return job, lambda: job.guest.append(receipts)


def compaction_in_doubt(world: World) -> Sent:
    """Return a job and its replacement."""
    writer, job = world.process("writer"), world.process("job", chunks_per_fragment=9)
    world.run(writer.claim())
    world.run(writer.offload(Ledger(0, 4), Ledger(4, 6)))
    world.run(job.begin_job())
    run = world.run(job.plan(0, 4))
    receipt = world.run(job.copy_run(run))
    return job, lambda: job.guest.replace(run.entries, [receipt])


def land_unheard(process: Process, act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Send the change. The create lands, its reply is lost, and the listing behind it fails."""
    process.start(act()).run_to("create", "*/root.*")
    process.step(Fault.LOSE_REPLY)
    process.step(Fault.FAIL_BEFORE)
    with pytest.raises(OutcomeUnknown):
        process.finish()


def end_of(process: Process) -> OffloadError | None:
    """Return the error that a stalled job raised on the way to its end."""
    try:
        process.finish()
    except OffloadError as error:
        return error
    return None


def requests_of_the_second_call(scene: Callable[[World], Sent]) -> int:
    with World() as world:
        process, act = scene(world)
        land_unheard(process, act)
        before = len(process.store.calls)
        world.run(act())
        return len(process.store.calls) - before


SCENES = (writer_in_doubt, job_in_doubt, compaction_in_doubt)
PLACES = [
    pytest.param(scene, number, id=f"{scene.__name__}-{number}")
    for scene in SCENES
    for number in range(requests_of_the_second_call(scene))
]


@pytest.mark.parametrize(("scene", "number"), PLACES)
def test_a_second_call_never_denies_a_commit_that_is_in(
    scene: Callable[[World], Sent], number: int, world: World
) -> None:
    """The store refuses any of its requests."""
    process, act = scene(world)
    land_unheard(process, act)

    process.start(act())
    for _ in range(number):
        process.step()
    process.step(Fault.FAIL_BEFORE)
    error = end_of(process)

    assert not isinstance(error, NOTHING_COMMITTED)
    world.check()
    world.check_what_was_told()
    roots = world.roots
    world.run(act())
    assert world.roots == roots, "what is in is not committed again"


def announcement_in_doubt(world: World) -> Sent:
    """A job's announcement landed without a reply. The offloader's own method sends it again."""
    world.run(world.process("writer").claim())
    job = world.process("job")
    base = world.run(job.begin_job()).manifest
    attempts = [(job.env.uuid(), 0)]
    change = Announce(job=job.guest.uid, incarnation=base.incarnation, attempts=attempts)
    return job, lambda: job.offloader.commit_manifest(STREAM, change, base=base, committer=change.job)


def test_a_refused_look_at_what_a_crash_left_denies_no_commit(world: World) -> None:
    """A listing precedes the first change on a base. If the store refuses it, the outcome is in doubt."""
    job, act = announcement_in_doubt(world)
    land_unheard(job, act)

    job.start(act())
    job.step(Fault.FAIL_BEFORE)

    assert isinstance(end_of(job), OutcomeUnknown)
    world.check_what_was_told()


class Probed(StoreDecorator):
    """A store that each process must probe first."""

    @property
    def capabilities(self) -> Capabilities:
        """Return capabilities that require a probe."""
        return replace(self.inner.capabilities, create_is_probed=True)


def test_a_job_that_goes_on_in_another_process_is_not_denied_its_commit(world: World) -> None:
    """Its append landed without a reply, and the new process cannot even probe the store."""
    job, ledger = world.process("job"), Ledger(0, 6)
    world.run(world.process("writer").claim())
    world.run(job.begin_job())
    receipts = world.run(job.copy([ledger], world.run(job.announce(ledger))))
    land_unheard(job, lambda: job.guest.append(receipts))
    job.crash()
    again = world.process("again", wrap=Probed)
    world.run(again.begin_job(uid=job.guest.uid))

    again.store.rules.append(Rule(Fault.FAIL_BEFORE, "create"))
    again.start(again.guest.append(receipts))

    assert isinstance(end_of(again), OutcomeUnknown)
    world.check_what_was_told()


def test_a_create_that_lands_after_the_second_call_was_not_denied_by_it(world: World) -> None:
    """The first call's create is in flight while the second call fails to store its groups."""
    writer, act = writer_in_doubt(world)
    writer.start(act()).run_to("create", "*/root.*")
    writer.step(Fault.DELAY)
    writer.step(Fault.FAIL_BEFORE)
    assert isinstance(end_of(writer), OutcomeUnknown)

    writer.start(act()).run_to("put", "*/groups/*")
    writer.step(Fault.FAIL_BEFORE)
    assert isinstance(end_of(writer), OutcomeUnknown)

    world.run(writer.store.land())
    world.check()
    world.check_what_was_told()
    assert world.root.next_offset == 6


@pytest.mark.parametrize("finishes", [False, True], ids=["a part", "all"])
def test_an_append_that_landed_and_was_trimmed_is_never_called_refused(
    finishes: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long append takes several commits. A part ends no attempt, so no other trace shows that it was in."""
    monkeypatch.setattr(stream_writer, "COMMIT_ENTRIES", 6 if finishes else 2)
    writer, act = writer_in_doubt(world)
    writer.start(act()).run_to("create", "*/root.*")
    writer.step(Fault.LOSE_REPLY)
    world.run(world.process("person").trim(4))
    if finishes:
        world.run(world.process("person").trim(6))

    with pytest.raises(OutcomeUnknown, match="trimmed or compacted"):
        writer.finish()

    world.check()
    world.check_what_was_told()


def test_an_old_base_refuses_no_change_that_fits_the_newest(world: World) -> None:
    """The base is from before the announcement, so the attempt does not run in it."""
    writer, ledger = world.process("writer"), Ledger(0, 2)
    world.run(writer.claim())
    old = writer.holder.manifest
    receipt = world.run(writer.upload(ledger, world.run(writer.prepare(ledger))))
    change = Append(writer=old.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))

    world.run(writer.offloader.commit_manifest(STREAM, change, base=old, committer=old.writer))

    world.check()
    assert world.root.next_offset == 2


def test_an_old_base_that_shows_the_change_is_not_believed(world: World) -> None:
    """The base shows our claim. Another writer has claimed since, so our claim must be made again."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    base, (claim, _) = w0.holder.manifest, w0.offloader.commits[0]
    world.run(w1.claim())

    again = world.run(w0.offloader.commit_manifest(STREAM, claim, base=base, committer=base.writer))

    world.check()
    assert (again.version, again.writer) == (world.judge.newest, base.writer)


def test_a_fenced_writer_stops_although_its_commit_is_in(world: World) -> None:
    """Its append landed without a reply, and another claimed on top. A success would not help it."""
    writer, act = writer_in_doubt(world)
    writer.start(act()).run_to("create", "*/root.*")
    writer.step(Fault.LOSE_REPLY)
    world.run(world.process("rival").claim())

    with pytest.raises(Fenced):
        writer.finish()

    world.check()


def test_a_base_whose_group_was_swept_is_judged_by_the_newest(world: World) -> None:
    """A trim removed the group with the last entry of an append. The outcome is in doubt, not damage."""
    w0, w1 = world.process("w0"), world.process("w1")
    world.run(w0.claim())
    world.run(w0.offload(Ledger(0, 4), Ledger(4, 8)))
    old, (append, _) = w0.holder.manifest, w0.offloader.commits[-1]
    world.run(w1.trim(8))
    world.run(Sweep(w1).run())
    assert not world.groups
    another = world.process("another")  # one that has not read the group yet

    with pytest.raises(OutcomeUnknown):
        world.run(another.offloader.commit_manifest(STREAM, append, base=old, committer=old.writer))


def test_a_group_that_is_swept_while_the_newest_is_judged_is_no_damage(world: World) -> None:
    """An append landed without a reply, and others commit on top. Its group is made again and swept."""
    w0, job, compactor = (world.process(name) for name in ("w0", "job", "compactor"))
    ledger = Ledger(0, 8)
    world.run(w0.claim())
    receipt = world.run(w0.upload(ledger, world.run(w0.prepare(ledger))))
    w0.start(w0.append(receipt)).run_to("create", "*/root.*")
    w0.step(Fault.LOSE_REPLY)
    world.run(job.do_job(Ledger(8, 10)))
    w0.run_to("get", "*/groups/*")
    world.run(compactor.compact(0, 4))
    world.run(Sweep(compactor).run())

    w0.finish()

    world.check()
    world.check_what_was_told()
    assert w0.holder.manifest.version == world.judge.newest


def test_a_writer_that_others_always_overtake_is_told_to_try_again(world: World) -> None:
    writer, rival = world.process("writer"), world.process("rival")
    world.run(writer.claim())
    world.run(rival.begin_job())

    writer.start(writer.prepare(Ledger(0, 2)))
    for _ in range(REQUESTS_MAX):
        writer.run_to("create", "*/root.*")
        world.run(rival.announce(Ledger(0, 2)))
        writer.step()
    error = end_of(writer)

    assert isinstance(error, TryAgain)
    world.check()
    world.check_what_was_told()


class DeniesAfterwards(StoreDecorator):
    """A gateway that stores a root, and then denies the permission."""

    async def create(self, key: str, data: bytes) -> None:
        """Store the object, and raise `Denied`."""
        await self.inner.create(key, data)
        if "/root." in key:
            raise Denied("no")


def test_a_refusal_never_wins_over_a_listing_that_shows_the_commit(world: World) -> None:
    writer = world.process("writer", wrap=DeniesAfterwards)

    world.run(writer.claim_and_offload(Ledger(0, 2)))

    world.check()
    assert world.root.next_offset == 2


@pytest.mark.parametrize("refusal", [Denied("no"), NoSpace("full")], ids=["denied", "full"])
def test_a_refused_create_that_did_not_land_is_reported_and_sent_once(
    refusal: OffloadError, world: World
) -> None:
    asked = []

    class Refuses(StoreDecorator):
        async def create(self, key: str, data: bytes) -> None:
            asked.append(key)
            raise refusal

    world.run(world.process("first").claim())
    writer = world.process("writer", wrap=Refuses)

    with pytest.raises(type(refusal)):
        world.run(writer.claim())

    assert len(asked) == 1


def test_a_refusal_does_not_deny_a_create_that_may_land_yet(world: World) -> None:
    """The reply to the first create is lost, and the credentials expire before it is sent again."""
    asked = []

    class LosesThenRefuses(StoreDecorator):
        async def create(self, key: str, data: bytes) -> None:
            asked.append(key)
            raise OutcomeUnknown("no reply") if len(asked) == 1 else Denied("the credentials have expired")

    world.run(world.process("first").claim())
    writer = world.process("writer", wrap=LosesThenRefuses)

    with pytest.raises(OutcomeUnknown, match="the credentials have expired"):
        world.run(writer.claim())

    assert len(asked) == 2


@dataclass(frozen=True, slots=True)
class Backwards(Change):
    """A change with a bug: the stream would end before it begins."""

    def apply(self, base: Manifest | None) -> Manifest:
        """Return a manifest that breaks an invariant of the format."""
        assert base is not None
        return replace(base, first_offset=base.next_offset + 1)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """Return False, because the change is never in."""
        return CommitVerdict.OUT


def test_a_proposal_that_breaks_the_format_is_never_sent(world: World) -> None:
    writer = world.process("writer")
    world.run(writer.claim())
    world.run(writer.offload(Ledger(0, 2)))
    before, base = dict(world.objects), writer.holder.manifest

    with pytest.raises(Corrupt):
        world.run(writer.offloader.commit_manifest(STREAM, Backwards(), base=base, committer=base.writer))

    assert dict(world.objects) == before


def test_a_change_that_needs_a_claim_is_applied_to_a_stream_that_its_caller_did_not_know(
    world: World,
) -> None:
    writer = world.process("writer")
    world.run(writer.claim())
    change = Prepare(writer=writer.holder.writer, attempts=[(writer.env.uuid(), 0)])

    world.run(writer.offloader.commit_manifest(STREAM, change, base=None, committer=change.writer))

    assert len(world.root.running) == 1
