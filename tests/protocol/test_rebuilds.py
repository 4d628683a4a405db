"""Tests of rebuilds: lost data comes back, intact data is left alone, and a rival is noticed.

This is 2.9 of the commit protocol. `tests/tier/test_rebuild.py` tests the choice between rival fragments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from campaign import few
from protocol_world import KEYS, STREAM, Crash, Ledger, Process, World

from offload.commit.rebuild import JUMP, NUMBER_MAX
from offload.contracts.store import Listed, ObjectStore
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.ground.errors import Conflict, Corrupt, Fenced, Misuse, NotOffloaded
from offload.model.manifest import StreamState
from offload.store.faults import Fault
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.rebuild.survey import OnTails, Tail, read_tails
from offload.upkeep.sweep.tier import sweep


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


async def one_by_one(
    store: ObjectStore, keys: StreamKeys, rows: Sequence[Listed], tell: OnTails
) -> Mapping[str, Tail]:
    """A process of the world stalls before one request at a time."""
    found: dict[str, Tail] = {}
    for row in rows:
        found.update(await read_tails(store, keys, [row], tell))
    return found


def rebuilding(process: Process, **how: Any) -> Coroutine[Any, Any, RebuildReport]:
    return rebuild(process.offloader, STREAM, env=process.env, read_tails=one_by_one, **how)


def rebuilt(world: World, name: str = "operator", **how: Any) -> RebuildReport:
    return world.run(rebuilding(world.process(name), **how))


def written(world: World, *ledgers: Ledger, first_offset: int = 0, source_epoch: int = 0) -> UUID:
    """Make a stream of these ledgers, and return its incarnation."""
    writer = world.process(f"writer of {ledgers[0].where} {len(world.processes)}")
    world.run(writer.claim(first_offset=first_offset, source_epoch=source_epoch))
    world.run(writer.offload(*ledgers))
    return writer.holder.manifest.incarnation


def begun_again(world: World, *ledgers: Ledger) -> UUID:
    """Lose all roots, and let a sync that sees no data begin the stream again."""
    world.objects.lose_roots()
    hidden = {key: data for key, data in world.objects.items() if key.startswith((KEYS.data, KEYS.groups))}
    for key in hidden:
        del world.objects[key]
    incarnation = written(world, *ledgers, first_offset=ledgers[0].first_offset)
    world.objects.update(hidden)
    return incarnation


def extent(world: World) -> tuple[int, int, int]:
    return world.root.state, world.root.first_offset, world.root.next_offset


# Two at once.


def requests_of_a_rebuild() -> int:
    with World() as world:
        written(world, Ledger(0, 4), Ledger(4, 8))
        world.objects.lose_roots()
        operator = world.process("operator")
        world.run(rebuilding(operator))
        return len(operator.store.calls)


@few("moments of a rival, a crash or a fault; make test has one of six", 6)
@pytest.mark.parametrize("request_number", range(requests_of_a_rebuild()))
def test_a_rebuild_that_another_overtook_commits_nothing(request_number: int, world: World) -> None:
    """It stalls anywhere. The rebuild that ends first wins, and the other one gets an error."""
    written(world, Ledger(0, 4), Ledger(4, 8))
    world.objects.lose_roots()
    one, other = world.process("one"), world.process("other")
    one.start(rebuilding(one))
    for _ in range(request_number):
        one.step()
    try:
        world.run(rebuilding(other))
    except Conflict:  # the commit of the first is in already
        assert one.finish().manifest is not None
    else:
        newest = world.root
        with pytest.raises((Conflict, Fenced)):
            one.finish()
        assert world.root is newest

    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_only_one_of_two_rebuilds_in_step_commits(world: World) -> None:
    """Both look, and both create the same number as a fence. One of them must take a higher number."""
    written(world, Ledger(0, 4), Ledger(4, 8))
    world.objects.lose_roots()
    one, other = world.process("one"), world.process("other")
    one.start(rebuilding(one))
    other.start(rebuilding(other))
    while one.busy or other.busy:
        for process in (one, other):
            if process.busy:
                process.step()

    outcomes = []
    for process in (one, other):
        try:
            outcomes.append(process.finish().manifest is not None)
        except Fenced:
            outcomes.append(False)
    assert sorted(outcomes) == [False, True]
    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_a_rebuild_that_passed_over_another_stops(world: World) -> None:
    """The other one knew only lower numbers, so its fence and its commit are below this fence."""
    written(world, Ledger(0, 4))
    world.objects.lose_roots()
    one, other = world.process("one"), world.process("other")
    other.start(rebuilding(other)).run_to("create", f"{KEYS.roots}*")
    dict.__setitem__(world.objects, KEYS.group(0, 50, UUID(int=5), 1), b"")
    one.start(rebuilding(one)).run_to("create", f"{KEYS.roots}*")
    assert other.finish().manifest is not None

    with pytest.raises(Conflict, match="another process committed root"):
        one.finish()

    assert rebuilt(world).manifest is not None
    assert extent(world) == (StreamState.LIVE, 0, 4)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.DELAY, Fault.FAIL_BEFORE])
@pytest.mark.parametrize("create", [1, 2], ids=["fence", "commit"])
def test_a_rebuild_outlives_a_lost_create(create: int, fault: Fault, world: World) -> None:
    written(world, Ledger(0, 4))
    world.objects.lose_roots()
    operator = world.process("operator")
    operator.start(rebuilding(operator)).run_to("create", f"{KEYS.roots}*", times=create)
    operator.step(fault)

    assert operator.finish().manifest is not None

    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 4)


# What vanishes, and what is written meanwhile.


@pytest.mark.parametrize(("operation", "times"), [("get", 2), ("list", 2)], ids=["read", "looked for again"])
def test_a_fragment_that_vanishes_during_a_rebuild_stops_it(operation: str, times: int, world: World) -> None:
    written(world, Ledger(0, 4), Ledger(4, 8))
    world.objects.lose_roots()
    operator = world.process("operator")
    gone = max(world.fragments)
    operator.start(rebuilding(operator)).run_to(operation, f"{KEYS.data}*", times=times)
    if operation == "get":
        operator.run_to("get", gone)
    world.objects.pop(gone)

    with pytest.raises(Conflict, match="was deleted meanwhile: stop every sweep"):
        operator.finish()

    assert all(root.state == StreamState.REBUILDING for root in world.history)


def test_a_rebuild_over_a_manifest_that_moves_on_changes_nothing(world: World) -> None:
    """The operator was wrong, because a writer still runs."""
    old = written(world, Ledger(0, 4))
    begun_again(world, Ledger(2, 6))
    operator = world.process("operator")
    operator.start(rebuilding(operator, incarnation=old)).run_to("create", f"{KEYS.roots}*")
    written(world, Ledger(6, 8))
    newest = world.root

    with pytest.raises(Conflict, match="stop every writer"):
        operator.finish()

    world.check()
    assert world.root is newest


# A stream that was deleted.


def test_a_deleted_stream_is_not_rebuilt_unless_asked(world: World) -> None:
    old = written(world, Ledger(0, 4))
    world.run(world.process("remover").delete_stream())
    tombstone = world.root

    report = rebuilt(world)

    assert report.manifest is None
    assert [row.incarnation for row in report.histories] == [old]
    assert world.root is tombstone
    assert rebuilt(world, "asked", incarnation=old).manifest is not None
    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 4)


def test_a_deleted_stream_without_data_cannot_be_rebuilt(world: World) -> None:
    written(world, Ledger(0, 4))
    world.run(world.process("remover").delete_stream())
    cleaner = world.process("cleaner")
    world.run(sweep(cleaner.offloader, grace_seconds=0, env=cleaner.env))

    with pytest.raises(Conflict, match="was deleted, and no fragment of it is left"):
        rebuilt(world)


# The newest roots are lost, others are left.


def test_lost_newest_roots_are_rebuilt_on_those_that_are_left(world: World) -> None:
    writer = world.process("writer")
    world.run(writer.claim(source_epoch=3))
    world.run(writer.offload(Ledger(0, 4)))
    left = world.roots[-1]
    world.run(writer.offload(Ledger(4, 8)))
    world.objects.lose_roots(above=left)

    assert rebuilt(world).manifest is not None

    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 8)
    assert world.root.source_epoch == 3
    with pytest.raises(Fenced):
        world.run(writer.offload(Ledger(8, 10)))


def test_a_group_of_a_lost_root_proves_the_loss(world: World) -> None:
    """An append of four fragments makes groups; the fragments were uploaded under an older root."""
    writer = world.process("writer")
    world.run(writer.claim())
    [attempt] = world.run(writer.holder.prepare([0]))
    receipt = world.run(writer.upload(Ledger(0, 8), attempt))
    left = world.roots[-1]
    world.run(writer.holder.prepare([8]))
    world.run(writer.append(receipt))
    assert world.groups
    world.objects.lose_roots(above=left)

    assert rebuilt(world).manifest is not None

    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_fragments_of_a_remaining_root_win_over_uncommitted_uploads_of_a_job(world: World) -> None:
    """A job's fragment has a higher epoch, and is longer: without the root it would be chosen."""
    writer, job = world.process("writer"), world.process("job", chunks_per_fragment=9)
    world.run(writer.claim())
    world.run(writer.claim())
    world.run(job.begin_job())
    attempts = world.run(job.announce(Ledger(0, 4)))
    world.run(job.copy([Ledger(0, 4)], attempts))
    world.run(writer.offload(Ledger(0, 2), Ledger(2, 6)))
    left = world.roots[-1]
    named = [row["attempt"] for row in world.root.fragments]
    world.run(writer.offload(Ledger(6, 8)))
    world.objects.lose_roots(above=left)

    rebuilt(world)

    assert extent(world) == (StreamState.LIVE, 0, 8)
    assert [row["attempt"] for row in world.root.fragments][: len(named)] == named


def test_a_sound_stream_with_a_crashed_upload_is_left_alone(world: World) -> None:
    """Neither a fragment of a running attempt nor a group of the very next version proves a loss."""
    written(world, Ledger(0, 8))
    late = world.process("late")
    world.run(late.claim())
    attempt = world.run(late.prepare(Ledger(8, 16)))
    receipt = world.run(late.upload(Ledger(8, 16), attempt))
    late.start(late.append(receipt)).run_to("create", f"{KEYS.roots}*")
    assert any(group[1] == world.roots[-1] + 1 for group in map(KEYS.parse_group, world.groups) if group)
    late.crash()

    with pytest.raises(Conflict, match="nothing is lost"):
        rebuilt(world)


# All roots are lost, and the stream was begun again.


JOINED = {
    "what follows": (Ledger(8, 12), (0, 12)),
    "what overlaps": (Ledger(4, 12), (0, 12)),
    "what overlaps within a fragment": (Ledger(6, 12), (0, 12)),
    "what is in the old one": (Ledger(2, 6), (0, 8)),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_history_that_was_begun_again_is_joined_to_the_old_one(name: str, world: World) -> None:
    newborn, expected = JOINED[name]
    writer = world.process("writer", chunks_per_fragment=2)
    world.run(writer.claim())
    world.run(writer.offload(Ledger(0, 8)))
    old = writer.holder.manifest.incarnation
    new = begun_again(world, newborn)

    asked = rebuilt(world, "asks")
    report = rebuilt(world, incarnation=old)

    assert {row.incarnation for row in asked.histories} == {old, new}
    assert report.manifest is not None
    world.check()
    assert extent(world) == (StreamState.LIVE, *expected)
    assert world.root.incarnation == old.bytes
    written(world, Ledger(expected[1], expected[1] + 2))
    cleaner = world.process("cleaner")
    world.run(sweep(cleaner.offloader, grace_seconds=0, env=cleaner.env))
    world.check()
    world.check_nothing_is_left()


def test_an_old_history_that_was_trimmed_gets_its_beginning_from_the_new_one(world: World) -> None:
    old = written(world, Ledger(0, 8))
    world.run(world.process("trimmer").trim(4))
    cleaner = world.process("cleaner")
    world.run(sweep(cleaner.offloader, grace_seconds=0, env=cleaner.env))
    begun_again(world, Ledger(0, 6))

    report = rebuilt(world, incarnation=old)

    assert report.manifest is not None
    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 8)


def other_chunks(ledger: Ledger, *, epoch: int = 1) -> Ledger:
    """Make the same offsets in a stream that was made again under the same name."""
    from offload.formats.chunk_writer import build_chunk

    offsets = range(ledger.first_offset, ledger.next_offset, 2)
    raw = b"".join(build_chunk([b"x", b"y"], offset=o, timestamp_ms=1, epoch=epoch) for o in offsets)
    return Ledger(ledger.first_offset, ledger.next_offset, raw=raw)


@pytest.mark.parametrize(
    ("newborn", "why"),
    [
        (Ledger(9, 11), r"no fragment of either holds offsets \[8, 9\)"),
        (Ledger(10, 12), r"no fragment of either holds offsets \[8, 10\)"),
        (other_chunks(Ledger(4, 12)), "they hold different chunks from offset 4 on"),
        (Ledger(0, 12), "nothing is lost"),
    ],
    ids=["gap of one", "gap", "other chunks", "all of it"],
)
def test_histories_that_do_not_fit_are_left_as_they_are(newborn: Ledger, why: str, world: World) -> None:
    old = written(world, Ledger(0, 8))
    begun_again(world, newborn)
    before = dict(world.objects)

    with pytest.raises(Conflict, match=why):
        rebuilt(world, incarnation=old)

    assert world.objects == before


def to_be_joined(world: World) -> UUID:
    old = written(world, Ledger(0, 6))
    begun_again(world, Ledger(4, 12))
    return old


def requests_of_a_join() -> int:
    with World() as world:
        old, operator = to_be_joined(world), world.process("operator")
        world.run(rebuilding(operator, incarnation=old))
        return len(operator.store.calls)


@few("moments of a rival, a crash or a fault; make test has one of six", 6)
@pytest.mark.parametrize("request_number", range(1, requests_of_a_join()))
def test_a_killed_join_is_done_by_the_same_command(request_number: int, world: World) -> None:
    old, killed = to_be_joined(world), world.process("killed")
    killed.crash_before = request_number
    with pytest.raises(Crash):
        world.run(rebuilding(killed, incarnation=old))

    if world.root.state != StreamState.LIVE or world.root.incarnation != old.bytes:
        assert rebuilt(world, incarnation=old).manifest is not None

    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 12)


def test_an_incarnation_without_objects_is_misuse(world: World) -> None:
    written(world, Ledger(0, 4))
    world.objects.lose_roots()

    with pytest.raises(Misuse, match="no sound fragment of history"):
        rebuilt(world, incarnation=UUID(int=7))


# Numbers and epochs.


def test_the_source_epoch_is_kept(world: World) -> None:
    """A leader that was deposed before the loss is refused after it."""
    written(world, Ledger(0, 2), source_epoch=7)
    world.objects.lose_roots()

    rebuilt(world)

    assert world.root.source_epoch == 7
    with pytest.raises(Fenced):
        world.run(world.process("deposed").claim(source_epoch=3))


def test_the_leader_epoch_of_the_last_chunk_is_the_least_source_epoch(world: World) -> None:
    """Fragments of older releases, and of sources that claimed under none, do not record one."""
    written(world, Ledger(0, 2))
    world.objects.lose_roots()

    rebuilt(world)

    assert world.root.source_epoch == 1, "that of the chunks"


def test_a_second_rebuild_begins_above_the_sightings_of_the_first() -> None:
    """Otherwise notes from before would hold, and a fragment would be deleted without its grace.

    There are too few entries for groups, whose names would also contain the numbers of the first rebuild.
    """
    with World(factor=16) as world:
        _rebuild_twice(world)


def _rebuild_twice(world: World) -> None:
    written(world, Ledger(0, 2), Ledger(2, 4), Ledger(4, 6))
    trimmer, cleaner, now_ms = world.process("trimmer"), world.process("cleaner"), [1_700_000_000_000]
    env = dataclasses.replace(cleaner.env, now_ms=lambda: now_ms[0])
    world.objects.lose_roots()
    rebuilt(world, "first")
    world.run(trimmer.trim(2))
    world.run(sweep(cleaner.offloader, grace_seconds=3600, env=env))
    now_ms[0] += 3_000_000
    world.objects.lose_roots()

    second = rebuilt(world, "second")

    assert second.manifest is not None
    assert second.manifest.version > 2 * JUMP
    now_ms[0] += 3_000_000
    world.run(trimmer.trim(2))
    world.run(sweep(cleaner.offloader, grace_seconds=3600, env=env))
    assert len(world.fragments) == 3, "seen condemned a moment ago"


@pytest.mark.parametrize("what", ["epoch", "version"])
@pytest.mark.parametrize("number", [NUMBER_MAX, 2**64 - 1])
def test_a_fragment_with_an_impossible_number_is_damage(what: str, number: int, world: World) -> None:
    written(world, Ledger(0, 2))
    writer = world.process("writer")
    world.run(writer.claim())
    ledger = Ledger(2, 4)
    attempt = world.run(writer.prepare(ledger))
    seeming = dataclasses.replace(writer.holder.manifest, **{what: number})  # type: ignore[arg-type]
    world.run(writer.offloader.offload(ledger, attempt, manifest=seeming, extra_metadata={}))
    world.objects.lose_roots()

    report = rebuilt(world)

    [damage] = report.damages
    assert damage.found == number
    assert extent(world) == (StreamState.LIVE, 0, 2)


def test_a_group_made_for_an_impossible_root_is_named(world: World) -> None:
    written(world, Ledger(0, 2))
    key = KEYS.group(0, NUMBER_MAX, UUID(int=5), 1)
    dict.__setitem__(world.objects, key, b"")
    world.objects.lose_roots()

    with pytest.raises(Corrupt, match="root number") as caught:
        rebuilt(world)

    assert caught.value.where == key


@pytest.mark.parametrize("field", ["version", "epoch"])
def test_a_claim_on_the_last_number_is_refused_as_damage(field: str, world: World) -> None:
    written(world, Ledger(0, 2))
    number = 2**64 - 1
    last = dataclasses.replace(world.newest(), version=number)
    last = dataclasses.replace(last, **{field: number})  # type: ignore[arg-type]
    dict.__setitem__(world.objects, KEYS.root(number), encode_root(last))

    with pytest.raises(Corrupt, match=r"below 2\*\*64"):
        world.run(world.process("next").claim())


def test_a_key_of_a_number_beyond_64_bits_is_no_root(world: World) -> None:
    written(world, Ledger(0, 2))
    dict.__setitem__(world.objects, KEYS.root(2**64), encode_root(world.newest()))

    world.run(world.process("next").claim())

    assert StreamKeys(STREAM).parse_root(KEYS.root(2**64)) is None


# The root that is left names what is gone.


def test_a_damaged_group_of_the_root_that_is_left_hides_no_fragment(world: World) -> None:
    writer = world.process("writer")
    world.run(writer.claim())
    world.run(writer.offload(Ledger(0, 8)))
    left, groups = world.roots[-1], list(world.groups)
    world.run(writer.offload(Ledger(8, 12)))
    world.objects.lose_roots(above=left)
    assert groups
    for key in groups:
        del world.objects[key]

    rebuilt(world)

    assert extent(world) == (StreamState.LIVE, 0, 12)


def test_a_lost_group_of_a_sound_root_is_made_again(world: World) -> None:
    written(world, Ledger(0, 8))
    for key in list(world.groups):
        del world.objects[key]

    rebuilt(world)

    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_a_copy_whose_commit_is_lost_takes_the_place_of_what_it_replaced() -> None:
    """The copy's attempt runs in the remaining root, which names originals that a sweep deleted."""
    with World(factor=16) as world:
        written(world, Ledger(0, 8))
        world.run(world.process("compactor", chunks_per_fragment=9).compact(2, 6))
        cleaner = world.process("cleaner")
        world.run(sweep(cleaner.offloader, grace_seconds=0, env=cleaner.env))
        world.objects.lose_roots(above=world.roots[-1] - 1)

        rebuilt(world)

        assert extent(world) == (StreamState.LIVE, 0, 8)
        assert len(world.root.fragments) == 3


def test_a_trim_whose_commit_is_lost_is_done_again_by_the_operators_word(world: World) -> None:
    written(world, Ledger(0, 8))
    world.run(world.process("trimmer").trim(4))
    cleaner = world.process("cleaner")
    world.run(sweep(cleaner.offloader, grace_seconds=0, env=cleaner.env))
    world.objects.lose_roots(above=world.roots[-1] - 1)

    asked = rebuilt(world, "asks")

    assert asked.manifest is None
    assert asked.choice.holes == [(0, 4)]
    assert rebuilt(world, begin=4).manifest is not None
    assert extent(world) == (StreamState.LIVE, 4, 8)


def test_an_end_that_the_manifest_names_is_not_given_up_in_silence(world: World) -> None:
    written(world, Ledger(0, 8))
    del world.objects[max(world.fragments)]
    before = dict(world.objects)

    asked = rebuilt(world, "asks")

    assert asked.manifest is None
    assert asked.choice.holes == [(6, 8)]
    assert dict(world.objects) == before
    assert rebuilt(world, end=6).manifest is not None
    assert extent(world) == (StreamState.LIVE, 0, 6)


# What a joined or repeated rebuild must not do.


def test_a_newborn_that_lost_roots_as_well_is_rebuilt_first(world: World) -> None:
    old = written(world, Ledger(0, 8))
    new = begun_again(world, Ledger(2, 4))
    left = world.roots[-1]
    written(world, Ledger(4, 6), Ledger(6, 8))
    written(world, Ledger(8, 10))
    world.objects.lose_roots(above=left)

    assert {row.incarnation for row in rebuilt(world, "asks").histories} == {old, new}
    with pytest.raises(Conflict, match=f"First rebuild that history: --incarnation {new}"):
        rebuilt(world, "too early", incarnation=old)
    assert rebuilt(world, "first", incarnation=new).manifest is not None
    assert rebuilt(world, "second", incarnation=old).manifest is not None
    assert extent(world) == (StreamState.LIVE, 0, 10)


def test_naming_the_incarnation_of_a_sound_manifest_changes_nothing(world: World) -> None:
    incarnation = written(world, Ledger(0, 8))

    with pytest.raises(Conflict, match="nothing is lost"):
        rebuilt(world, incarnation=incarnation)


def test_numbers_of_the_old_history_prove_no_loss_of_the_newborn(world: World) -> None:
    old = written(world, Ledger(0, 2))
    for first_offset in (2, 4, 6):
        written(world, Ledger(first_offset, first_offset + 2))
    for key in list(world.groups):
        del world.objects[key]
    begun_again(world, Ledger(6, 8))

    assert rebuilt(world, incarnation=old).manifest is not None
    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_a_newborn_whose_groups_are_gone_is_not_joined(world: World) -> None:
    old = written(world, Ledger(0, 4))
    for key in list(world.groups):
        del world.objects[key]
    begun_again(world, Ledger(4, 12))
    assert world.groups
    for key in list(world.groups):
        del world.objects[key]
    before = dict(world.objects)

    with pytest.raises(Corrupt):
        rebuilt(world, incarnation=old)

    assert dict(world.objects) == before


@pytest.mark.parametrize(("epochs", "fits"), [((1, 2), True), ((2, 1), False)])
def test_the_leader_epoch_does_not_fall_where_one_history_follows_the_other(
    epochs: tuple[int, int], fits: bool, world: World
) -> None:
    old = written(world, other_chunks(Ledger(0, 4), epoch=epochs[0]))
    begun_again(world, other_chunks(Ledger(4, 8), epoch=epochs[1]))

    if fits:
        assert rebuilt(world, incarnation=old).manifest is not None
    else:
        with pytest.raises(Conflict, match="at offset 4 the broker's leader epoch falls from 2 to 1"):
            rebuilt(world, incarnation=old)


def test_a_hole_with_data_beyond_the_other_history_is_reported(world: World) -> None:
    old = written(world, Ledger(0, 8))
    [gone] = [key for key in world.fragments if KEYS.parse_fragment(key)[0] == 4]  # type: ignore[index]
    begun_again(world, Ledger(2, 6))
    del world.objects[gone]

    report = rebuilt(world, incarnation=old)

    assert report.manifest is None
    assert report.choice.holes == [(4, 6)]


def test_a_hole_that_shows_only_behind_the_fence_is_reported(world: World) -> None:
    """A fragment that was in flight at the first look is there at the second."""
    written(world, Ledger(0, 6))
    world.objects.lose_roots()
    keys = sorted(world.fragments)
    late = world.objects[keys[-1]]
    for key in keys[1:]:
        del world.objects[key]

    async def read_and_land(*asked: Any) -> Mapping[str, Tail]:
        found = await one_by_one(*asked)
        world.objects[keys[-1]] = late
        return found

    operator = world.process("operator")
    report = world.run(rebuild(operator.offloader, STREAM, env=operator.env, read_tails=read_and_land))

    assert report.manifest is None
    assert report.choice.holes == [(2, 4)]
    assert world.root.state == StreamState.REBUILDING


def test_a_rebuild_begins_above_the_base_versions_of_fragments() -> None:
    """No other object has the numbers of the first rebuild, because few entries make no groups."""
    with World(factor=16) as world:
        written(world, Ledger(0, 2))
        world.objects.lose_roots()
        rebuilt(world, "first")
        written(world, Ledger(2, 4))
        world.objects.lose_roots()

        second = rebuilt(world, "second")

        assert second.manifest is not None
        assert second.manifest.version > 2 * JUMP


def test_trimmed_data_does_not_come_back_beside_a_lost_group(world: World) -> None:
    written(world, Ledger(0, 8))
    world.run(world.process("trimmer").trim(4))
    for key in list(world.groups):
        del world.objects[key]

    rebuilt(world)

    assert extent(world) == (StreamState.LIVE, 4, 8)


def test_the_source_epoch_of_a_root_that_is_left_is_kept(world: World) -> None:
    """The leader has claimed, but no fragment records its epoch yet."""
    written(world, Ledger(0, 8), source_epoch=3)
    world.run(world.process("leader").claim(source_epoch=9))
    for key in list(world.groups):
        del world.objects[key]

    rebuilt(world)

    assert world.root.source_epoch == 9


def test_a_last_append_whose_root_is_lost_comes_back_by_the_operators_word(world: World) -> None:
    """It looks like a crash before the commit, so the error explains how to include the append."""
    incarnation = written(world, Ledger(0, 4))
    written(world, Ledger(4, 8))
    world.objects.lose_roots(above=world.roots[-1] - 1)

    with pytest.raises(Conflict, match=rf"reach to offset 8.*--incarnation {incarnation}"):
        rebuilt(world, "asks")
    assert rebuilt(world, incarnation=incarnation).manifest is not None

    world.check()
    assert extent(world) == (StreamState.LIVE, 0, 8)


def test_a_manifest_of_which_no_fragment_is_left_cannot_be_rebuilt(world: World) -> None:
    written(world, Ledger(0, 8))
    for key in list(world.fragments):
        del world.objects[key]

    with pytest.raises(NotOffloaded, match="has no fragment that is sound"):
        rebuilt(world)


def test_data_committed_since_the_first_look_is_no_loss(world: World) -> None:
    written(world, Ledger(0, 4))
    earlier = dict(world.objects)
    written(world, Ledger(4, 8))
    later = {key: data for key, data in world.objects.items() if key not in earlier}
    for key in later:
        del world.objects[key]

    async def read_and_commit(*asked: Any) -> Mapping[str, Tail]:
        found = await one_by_one(*asked)
        world.objects.update(later)
        return found

    operator = world.process("operator")
    with pytest.raises(Conflict, match=r"nothing is lost$"):
        world.run(rebuild(operator.offloader, STREAM, env=operator.env, read_tails=read_and_commit))
