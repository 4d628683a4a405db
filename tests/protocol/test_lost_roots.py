"""Tests of lost roots: an accident removed all roots of a stream, or the newest. Nobody may cause more loss.

Commit-protocol, steps 0, 2, 6 and 8. `rebuild` has tests of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import UUID

import pytest
from protocol_world import KEYS, STREAM, Ledger, Process, World

from offload.commit.guest import Abort
from offload.commit.writer import Claim
from offload.contracts.store import Body, Listed
from offload.formats.keys import StreamKeys
from offload.ground.errors import Absent, Conflict, RootsLost
from offload.native.lost_roots import newest_base
from offload.native.offloader import ObjectStoreOffloader
from offload.store.faults import Call, Fault, Rule
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.sweep.page import Why
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.tier import Sweeper, sweep
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify
from offload.write.writer import StreamWriter

COMMAND = "run: offload rebuild memory://"


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


async def abort(process: Process) -> None:
    """Abort an attempt as a guest, as anyone may."""
    base = await process.offloader.load_manifest(STREAM)
    change = Abort(attempts=frozenset({process.env.uuid()}))
    await process.offloader.commit_manifest(STREAM, change, base=base, committer=process.env.uuid())


def committed(world: World, *ledgers: Ledger) -> Process:
    """Return a writer that has committed these ledgers, by default [0, 8).

    This is more than the root itself names.
    """
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(*ledgers or [Ledger(0, 8)]))
    return w0


def lose_newest(world: World) -> int:
    """Lose the roots of a writer that claimed and committed [8, 12), and return the remaining root."""
    committed(world)
    before = world.roots[-1]
    w1 = world.process("w1")
    world.run(w1.claim())
    world.run(w1.offload(Ledger(8, 12)))
    world.objects.lose_roots(above=before)
    return before


def refused(world: World, job: Coroutine[Any, Any, Any]) -> RootsLost:
    """Return the error of a job that may neither commit nor delete anything."""
    before = dict(world.objects)

    with pytest.raises(RootsLost) as caught:
        world.run(job)

    assert dict(world.objects) == before
    return caught.value


ACTS: dict[str, Callable[[Process], Coroutine[Any, Any, Any]]] = {
    "claim": lambda process: process.claim(first_offset=8),
    "job": lambda process: process.do_job(Ledger(8, 10)),
    "compaction": lambda process: process.compact(2, 6),
    "trim": lambda process: process.trim(4),
    "delete": lambda process: process.delete_stream(),
    "abort": abort,
}


@pytest.mark.parametrize("act", [*ACTS, "read"])
def test_a_stream_without_roots_is_neither_begun_again_nor_taken_for_absent(act: str, world: World) -> None:
    """Step 0: data proves that there was a root. The error names the remedy."""
    committed(world)
    world.objects.lose_roots()
    acts = ACTS | {"read": lambda process: process.offloader.load_manifest(STREAM)}

    error = refused(world, acts[act](world.process("p")))

    assert COMMAND in str(error)
    assert "all roots" in str(error)
    assert error.stream == STREAM


@pytest.mark.parametrize("kept", ["fragment", "group"])
def test_one_object_is_enough_to_refuse_a_birth(kept: str, world: World) -> None:
    committed(world)
    world.objects.lose_roots()
    left = next(key for key in sorted(world.objects) if key.endswith(kept))
    for key in world.fragments | world.groups - {left}:
        if key != left:
            dict.pop(world.objects, key)

    error = refused(world, world.process("p").claim())

    assert error.where == left


def test_a_claim_without_a_base_is_refused_as_well(world: World) -> None:
    """Step 2: the commit of a birth looks for data itself."""
    committed(world)
    world.objects.lose_roots()
    uid = world.process("p").env.uuid()
    change = Claim(stream=STREAM, writer=uid, first_offset=0)

    refused(world, world.process("q").offloader.commit_manifest(STREAM, change, base=None, committer=uid))


def test_a_stream_that_lost_roots_and_had_no_data_is_begun_again(world: World) -> None:
    """Nothing else was lost, and the stream looks like one that never began."""
    world.run(world.process("w0").claim())
    world.objects.lose_roots()

    world.run(world.process("p").claim())

    assert world.roots == [1]


def test_a_birth_between_two_listings_is_no_loss(world: World) -> None:
    """Step 0: data without a root may be a rival's, which has a root by now."""
    reader, rival = world.process("reader"), world.process("rival")
    reader.start(reader.offloader.load_manifest(STREAM)).run_to("list", KEYS.data)
    world.run(rival.claim())
    world.run(rival.offload(Ledger(0, 4)))

    manifest = reader.finish()

    assert manifest.version == world.roots[-1]


@pytest.mark.parametrize("stream", [STREAM, "%s and a/slash", "long " * 60])
def test_a_stream_that_lost_its_anchor_with_its_roots_is_still_found(stream: str) -> None:
    """It is found by its key, or by a fragment if the name is too long. Other folders are no streams."""
    store = MemoryStore()
    offloader = ObjectStoreOffloader(store)

    async def act() -> list[str]:
        await (await StreamWriter.claim(offloader, stream)).offload([Ledger(0, 2)])
        await store.put("else/data/x", Body.of(b""))
        await store.delete([key for key in store.objects if StreamKeys(stream).parse_root(key)])
        await store.delete([StreamKeys(stream).anchor])
        return await offloader.streams()

    assert asyncio.run(act()) == [stream]
    with pytest.raises(RootsLost):
        asyncio.run(offloader.load_manifest(stream))


def test_a_stream_with_only_a_group_left_is_found_by_its_key(world: World) -> None:
    committed(world)
    group = next(iter(world.groups))
    left = {key: world.objects[key] for key in ("tier.anchor", group)}

    assert asyncio.run(ObjectStoreOffloader(MemoryStore(objects=left)).streams()) == [STREAM]


@pytest.mark.parametrize("act", ACTS)
def test_nobody_overtakes_the_proof_that_the_newest_roots_are_lost(act: str, world: World) -> None:
    """Step 6: each commit takes a number, and a proof counts only while it is above the newest."""
    before = lose_newest(world)

    error = refused(world, ACTS[act](world.process("p")))

    assert world.roots[-1] == before
    assert COMMAND in str(error)
    assert f"the newest root is {before}" in str(error)


def test_a_writer_goes_on_if_the_lost_roots_only_named_what_can_be_adopted(world: World) -> None:
    """The attempts run in the root that remains, so the loss heals, although a fragment proves it."""
    w0 = committed(world)
    ledgers = [Ledger(8, 10), Ledger(10, 12)]
    attempts = [world.run(w0.prepare(ledger)) for ledger in ledgers]
    remaining = world.roots[-1]
    for ledger, attempt in zip(ledgers, attempts, strict=True):
        world.run(w0.append(world.run(w0.upload(ledger, attempt))))
    world.objects.lose_roots(above=remaining)

    w1 = world.process("w1")
    world.run(w1.claim())

    assert w1.holder.manifest.next_offset == 12


def test_nobody_deletes_an_attempt_that_a_lost_root_may_name(world: World) -> None:
    w0 = committed(world)
    remaining = world.roots[-1]
    attempt = world.run(w0.prepare(Ledger(8, 10)))
    world.run(w0.append(world.run(w0.upload(Ledger(8, 10), attempt))))
    world.objects.lose_roots(above=remaining)

    refused(world, world.process("p").offloader.delete_offloaded(attempt))


def test_a_claim_of_a_stream_that_is_being_rebuilt_reads_no_fragment(world: World) -> None:
    """The fence names nothing, so all fragments are behind its end. No claim commits on it."""
    committed(world)
    world.rebuilding()
    p = world.process("p")

    with pytest.raises(Conflict):
        world.run(p.claim())

    assert not [call for call in p.store.calls if "/data/" in call.key]


def test_a_rival_that_commits_and_uploads_meanwhile_proves_no_loss(world: World) -> None:
    """Listed after the base was loaded, its fragment is newer than the base, and no newer than the newest."""
    committed(world)
    w1, rival = world.process("w1"), world.process("rival")
    w1.start(w1.claim()).run_to("list", "*/data/")
    world.run(rival.claim())
    rival.start(rival.offload(Ledger(8, 10))).run_to("create", "*/root.*", times=2)

    w1.finish()

    world.check()
    assert w1.holder.manifest.next_offset == 10, "adopted"


def test_uploads_of_a_dropped_attempt_behind_the_end_prove_no_loss(world: World) -> None:
    w0 = committed(world)
    attempt = world.run(w0.prepare(Ledger(8, 10)))
    world.run(w0.upload(Ledger(8, 10), attempt))
    world.run(w0.holder.abort([attempt]))

    world.run(world.process("w1").claim())

    world.check()


def test_a_claim_of_a_sound_stream_costs_one_listing_and_reads_no_fragment(world: World) -> None:
    committed(world)
    w1 = world.process("w1")

    world.run(w1.claim())

    asked = [call for call in w1.store.calls if "/data/" in call.key]
    assert asked == [Call("list", KEYS.data)]


def swept(world: World, *, page_keys_max: int = 1000) -> SweepReport:
    """Run a sweep without a grace, and return its report."""
    process = world.process("sweeper")
    return world.run(sweep(process.offloader, grace_seconds=0, env=process.env, page_keys_max=page_keys_max))


def verified(world: World, level: VerifyLevel = VerifyLevel.BYTES) -> VerifyReport:
    """Return the report of a verify that lists small pages."""
    process = world.process("verifier")
    return world.run(verify(process.offloader, level=level, env=process.env, page_rows_max=3))


@pytest.mark.parametrize("page_keys_max", [3, 1000])
def test_a_sweep_deletes_nothing_if_the_newest_roots_are_lost(page_keys_max: int, world: World) -> None:
    """Step 8: a proof on the last page also protects the garbage and the superseded root on the first."""
    w0 = committed(world, Ledger(0, 4))
    dropped = world.run(w0.prepare(Ledger(4, 6)))
    world.run(w0.upload(Ledger(4, 6), dropped))
    world.run(w0.holder.abort([dropped]))
    world.run(w0.offload(Ledger(4, 8)))
    remaining = world.roots[-1]
    world.run(w0.offload(Ledger(8, 10)))
    world.objects.lose_roots(above=remaining)
    before = dict(world.objects)

    for _ in range(2):
        [row] = swept(world, page_keys_max=page_keys_max).streams

        assert dict(world.objects) == before
        assert [type(error) for error in row.errors] == [RootsLost]
        assert row.deleted.objects.total() == 0


def test_a_sweep_that_waited_for_the_grace_meets_the_proof_again_and_again(world: World) -> None:
    """Step 8: the notes of an earlier run stay, so no later run takes the proof for a new object."""
    w0 = committed(world, Ledger(0, 4))
    remaining = world.roots[-1]
    world.run(w0.offload(Ledger(4, 6)))
    world.objects.lose_roots(above=remaining)
    process = world.process("sweeper")
    sweeper = Sweeper(process.offloader, grace_seconds=60, env=process.env)

    errors = []
    for _ in range(3):
        errors.append([type(error) for error in world.run(sweeper.sweep()).errors])
        process.clock += 60

    assert errors == [[], [RootsLost], [RootsLost]]
    assert len(world.fragments) == 3


def test_a_group_of_a_lost_root_stops_a_sweep_and_a_group_of_the_next_does_not(world: World) -> None:
    """Step 8: losing commits leave groups of newest + 1. A higher group belongs to a lost root."""
    committed(world)
    newest = world.roots[-1]
    group = next(iter(world.groups))
    next_one = KEYS.group(0, newest + 1, UUID(int=1), 1)
    world.objects[next_one] = world.objects[group]
    assert swept(world).errors == []
    assert [damage.where for damage in verified(world, VerifyLevel.MANIFEST).damages] == []

    beyond = KEYS.group(0, newest + 2, UUID(int=1), 1)
    world.objects[beyond] = world.objects[group]

    [error] = swept(world).errors
    assert isinstance(error, RootsLost)
    assert [damage.where for damage in verified(world, VerifyLevel.MANIFEST).damages] == [beyond]


def test_a_sweep_reads_only_the_trailers_of_fragments_that_it_deletes(world: World) -> None:
    w0 = committed(world)
    dropped = world.run(w0.prepare(Ledger(8, 10)))
    world.run(w0.upload(Ledger(8, 10), dropped))
    world.run(w0.holder.abort([dropped]))
    running = world.run(w0.prepare(Ledger(8, 10)))
    world.run(w0.upload(Ledger(8, 10), running))
    process = world.process("sweeper")

    world.run(sweep(process.offloader, grace_seconds=0, env=process.env))

    world.check()
    read = [call.key for call in process.store.calls if call.operation == "get" and "/data/" in call.key]
    assert read == [KEYS.fragment(8, dropped.uid)]
    assert KEYS.fragment(8, dropped.uid) not in world.objects


def test_a_sweep_spares_uploads_that_a_rival_drops_meanwhile(world: World) -> None:
    """A sweep lists, loads and then judges. No object that the loaded root condemns is newer than it."""
    committed(world)
    sweeper, rival = world.process("sweeper"), world.process("rival")
    sweeper.start(sweep(sweeper.offloader, grace_seconds=0, env=sweeper.env)).run_to("list", KEYS.prefix)
    world.run(rival.claim())
    attempt = world.run(rival.prepare(Ledger(8, 10)))
    world.run(rival.upload(Ledger(8, 10), attempt))
    sweeper.step()
    world.run(rival.holder.abort([attempt]))

    report = sweeper.finish()

    world.check()
    assert report.errors == []


@pytest.mark.parametrize("level", VerifyLevel)
def test_a_verify_reports_lost_roots_at_every_level(level: VerifyLevel, world: World) -> None:
    lose_newest(world)
    newest = {key for key in world.fragments | world.groups if "/00000000000000000008." in key}
    newest |= {key for key in world.fragments if "/00000000000000000010." in key}

    damages = verified(world, level).damages
    world.objects.lose_roots()
    [all_lost] = verified(world, level).damages

    assert {damage.where for damage in damages} == newest
    assert all(COMMAND in str(damage) for damage in [*damages, all_lost])
    assert "all roots" in str(all_lost)


def test_a_verify_beside_a_writer_that_commits_and_uploads_finds_no_loss(world: World) -> None:
    committed(world)
    verifier, rival = world.process("verifier"), world.process("rival")
    verifier.start(verify(verifier.offloader, env=verifier.env)).run_to("list", KEYS.roots)
    world.run(rival.claim())
    rival.start(rival.offload(Ledger(8, 10))).run_to("create", "*/root.*", times=2)

    assert verifier.finish().damages == []


def test_a_verify_of_a_stream_to_which_nothing_was_committed_says_so() -> None:
    with World() as world:
        report = verified(world)

    assert (report.streams, report.damages) == (0, [])
    assert "nothing was ever committed" in report.unreferenced[0].reason


def test_a_fragment_of_another_stream_proves_nothing_about_this_one(world: World) -> None:
    """An operator copied objects between prefixes. The versions belong to another history."""
    w0 = committed(world, Ledger(0, 8), Ledger(8, 10))
    [(strange, attempt)] = [
        (key, parsed[1]) for key in world.fragments if (parsed := KEYS.parse_fragment(key)) and parsed[0] == 8
    ]
    store = MemoryStore(objects=dict(world.objects))
    young = ObjectStoreOffloader(store)

    async def act() -> SweepReport:
        writer = await StreamWriter.claim(young, "young")
        keys = StreamKeys("young")
        await store.put(keys.fragment(0, w0.env.uuid()), Body.of(world.objects[strange]))
        await store.put(keys.fragment(8, attempt), Body.of(world.objects[strange]))
        await StreamWriter.claim(young, "young", base=writer.manifest)
        return await sweep(young, stream="young", grace_seconds=0)

    report = asyncio.run(act())

    assert report.errors == []
    assert report.streams[0].deleted.objects[Why.DROPPED] == 2


def test_a_sweep_whose_listing_breaks_off_deletes_nothing(world: World) -> None:
    """Step 8: a proof may be on the missing pages. The next sweep deletes."""
    w0 = committed(world)
    dropped = world.run(w0.prepare(Ledger(8, 10)))
    world.run(w0.upload(Ledger(8, 10), dropped))
    world.run(w0.holder.abort([dropped]))
    process = world.process("sweeper")
    process.store.rules.append(Rule(Fault.FAIL_BEFORE, "list", KEYS.roots, nth=8))
    before = dict(world.objects)

    first = world.run(sweep(process.offloader, grace_seconds=0, env=process.env, page_keys_max=3))
    after_first = dict(world.objects)
    process.store.rules.clear()
    second = world.run(sweep(process.offloader, grace_seconds=0, env=process.env, page_keys_max=3))

    world.check()
    assert (len(first.errors), after_first) == (1, before)
    assert (second.errors, KEYS.fragment(8, dropped.uid) in world.objects) == ([], False)


def test_a_root_that_the_caller_knows_and_no_listing_shows_is_lost(world: World) -> None:
    """No other proof is left."""
    with pytest.raises(RootsLost, match="root 3 was committed, but no root is there"):
        world.run(world.process("p").offloader.log(STREAM).load_newest(known=3))


def test_a_fragment_that_vanishes_before_its_trailer_is_read_proves_nothing(world: World) -> None:
    log = world.process("p").offloader.log(STREAM)
    gone = Listed(KEYS.fragment(0, UUID(int=1)), 1 << 20)

    assert world.run(newest_base(log, [gone], at_once=1))[0] == 0


def begun_again(world: World, *, shown_by: str = "version and epoch") -> set[str]:
    """A stream of [0, 8) that an older release began again at 8 after an accident. The old fragments.

    That release took the stream for absent: its data was out of sight, and it is back now.
    """
    w0 = committed(world, Ledger(0, 4))
    world.run(w0.offload(Ledger(4, 8)))
    world.objects.lose_roots()
    old = {key: world.objects[key] for key in world.fragments}
    for key in world.fragments | world.groups:
        dict.pop(world.objects, key)
    w1 = world.process("w1")
    for _ in range(2 if shown_by == "version" else 1):
        world.run(w1.claim(first_offset=8))
    world.run(w1.offload(Ledger(8, 12)))
    world.run(w1.offload(Ledger(12, 16)))
    if shown_by == "epoch":  # a copy says when it was made, and keeps the epoch of what it copies
        world.run(world.process("compactor").compact(8, 12))
        assert swept(world).errors == []
    for key, raw in old.items():
        dict.__setitem__(world.objects, key, raw)
    return set(old)


@pytest.mark.parametrize("shown_by", ["version and epoch", "version", "epoch"])
def test_a_stream_that_was_begun_again_after_a_loss_keeps_its_old_fragments(
    shown_by: str, world: World
) -> None:
    """Step 8. The new life's numbers have reached those of the old one, so they prove no newer root."""
    old = begun_again(world, shown_by=shown_by)
    before = dict(world.objects)

    for page_keys_max in (3, 1000):
        [error] = swept(world, page_keys_max=page_keys_max).errors

        assert isinstance(error, RootsLost)
        assert "begun again" in str(error)
        assert COMMAND in str(error)
        assert dict(world.objects) == before
    for level in VerifyLevel:
        damages = verified(world, level).damages
        assert damages
        assert {damage.where for damage in damages} <= old
        assert all(COMMAND in str(damage) for damage in damages)


def test_a_rebuild_settles_which_life_of_a_stream_goes_on(world: World) -> None:
    """Its fence is far above the fragments that it left out, which a sweep may then delete."""
    old = begun_again(world)
    process = world.process("rebuilder")
    chosen = world.newest().incarnation
    world.run(rebuild(process.offloader, STREAM, incarnation=chosen, env=process.env))

    report = swept(world)

    assert report.errors == []
    assert not old & world.fragments


def test_a_deletion_and_a_rebirth_look_like_no_loss(world: World) -> None:
    """This also holds for old uploads, and for late uploads of the old writer and its job."""
    w0, job = committed(world, Ledger(0, 4)), world.process("job")
    late = world.run(w0.prepare(Ledger(4, 6)))
    world.run(job.begin_job())
    copies = world.run(job.announce(Ledger(4, 8)))
    uploads = (w0, w0.upload(Ledger(4, 6), late)), (job, job.copy([Ledger(4, 8)], copies))
    for process, upload in uploads:
        process.start(upload)
        process.step()  # it has found out that the stream is not encrypted
    world.run(world.process("p").delete_stream())
    w1 = world.process("w1")
    world.run(w1.claim(first_offset=0))

    first = swept(world)  # of the new life there is only a root
    world.run(w1.offload(Ledger(0, 8)))
    w0.finish()
    job.finish()
    world.run(world.process("compactor").compact(0, 4))
    old = {KEYS.fragment(4, attempt.uid) for attempt in (late, *copies)}
    assert len(old & world.fragments) == 2
    damages = [verified(world, level).damages for level in VerifyLevel]
    second = swept(world)

    world.check()
    assert (first.errors, second.errors, damages) == ([], [], [[], [], []])
    assert not old & world.fragments


def test_copies_whose_commit_is_lost_stay_as_long_as_a_root_names_what_they_replaced(world: World) -> None:
    """Step 8: a sweep deleted the originals, the root with the copy was lost, and the job was dropped."""
    committed(world)
    compactor = world.process("compactor")
    world.run(compactor.compact(0, 4))
    before = world.roots[-2]
    assert swept(world).errors == []
    world.objects.lose_roots(above=before)
    world.run(compactor.guest.abort())
    objects = dict(world.objects)

    for page_keys_max in (3, 1000):
        [error] = swept(world, page_keys_max=page_keys_max).errors

        assert isinstance(error, Absent)
        assert COMMAND.removeprefix("run: ") in str(error)
        assert dict(world.objects) == objects
    [absent, *_] = verified(world, VerifyLevel.MANIFEST).damages
    assert COMMAND.removeprefix("run: ") in str(absent)


@pytest.mark.parametrize("page_keys_max", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("gone", range(4))
def test_a_sweep_deletes_nothing_of_a_stream_that_misses_any_named_fragment(
    gone: int, page_keys_max: int, world: World
) -> None:
    """The fragment is missing at the beginning, between pages, or at the end."""
    w0 = committed(world)
    dropped = world.run(w0.prepare(Ledger(2, 4)))
    world.run(w0.upload(Ledger(2, 4), dropped))
    world.run(w0.holder.abort([dropped]))
    garbage = KEYS.fragment(2, dropped.uid)
    missing = sorted(world.fragments - {garbage})[gone]
    dict.pop(world.objects, missing)

    [error] = swept(world, page_keys_max=page_keys_max).errors

    assert isinstance(error, Absent)
    assert error.where == missing
    assert garbage in world.objects


def test_a_named_object_that_is_not_listed_is_no_damage_if_it_is_new(world: World) -> None:
    w0 = committed(world)
    sweeper = world.process("sweeper")
    sweeper.start(sweep(sweeper.offloader, grace_seconds=0, env=sweeper.env)).run_to("list", KEYS.roots)
    world.run(w0.offload(Ledger(8, 10)))

    report = sweeper.finish()

    world.check()
    assert report.errors == []


def test_a_named_object_that_is_not_listed_is_no_damage_if_it_was_trimmed_since(world: World) -> None:
    """The object was committed after the listing, and trimmed and swept after the root was loaded."""
    w0 = committed(world)
    sweeper = world.process("sweeper")
    sweeper.start(sweep(sweeper.offloader, grace_seconds=0, env=sweeper.env)).run_to("list", KEYS.roots)
    world.run(w0.offload(Ledger(8, 10)))
    sweeper.run_to("get", "*/data/*")
    world.run(world.process("trimmer").trim(10))
    assert swept(world).errors == []

    report = sweeper.finish()

    world.check()
    assert report.errors == []


@pytest.mark.parametrize("page_keys_max", [1, 2, 3, 1000])
def test_a_sweep_of_a_sound_stream_asks_for_no_fragment(page_keys_max: int, world: World) -> None:
    committed(world)
    process = world.process("sweeper")

    world.run(
        sweep(process.offloader, grace_seconds=0, env=process.env, page_keys_max=page_keys_max, roots_kept=99)
    )

    assert [call for call in process.store.calls if call.operation == "get" and "/data/" in call.key] == []
