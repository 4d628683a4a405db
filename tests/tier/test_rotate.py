"""Tests of rotation: the states that it may find, crashes, rivals, and key services that fail.

A state is written as in `1=old 2=new.copy`: generation 1 has both copies and is wrapped by the old master
key, and generation 2 has only the second copy. `~` says that both copies are damaged, `~key` that one is. `!`
says that they are forged: their checksum is right, and no key service unwraps them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from campaign import few
from key_world import LABEL, Service, World, append, fence, is_encrypted, living, read, run
from offload_conformance.ledgers import ledger_of
from rivals import Process, at_every_moment, crash

from offload import StreamWriter, delete_stream
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.ground.errors import (
    Conflict,
    Corrupt,
    Denied,
    Misuse,
    NoSuchKey,
    OutcomeUnknown,
    StoreDenied,
    StreamDeleted,
    TryAgain,
)
from offload.native.key_objects import decode_key_object, store_key, unwrap_key
from offload.native.key_ring import KEPT_SECONDS
from offload.store.faults import Fault, Rule
from offload.upkeep.rotate import Rotated, rotate
from offload.upkeep.shred import plan_shred, shred

LABELS: Final = {"old": LABEL, "new": "tier-2027", "other": "tier-2028"}
WORD: Final = re.compile(r"(\d+)=(\w+)(?:\.(key|copy))?([~!](?:key|copy)?)?")
TEMPLATES: Final[dict[str, World]] = {}
"""A world of each state, of which tests use copies."""


async def made(state: str = "1=old") -> World:
    """Return a world with a stream of ten messages whose key has these objects."""
    if state not in TEMPLATES:
        TEMPLATES[state] = await template(state)
    like, world = TEMPLATES[state], World()
    world.objects.update(like.objects)
    world.service.masters = dict(like.service.masters)
    return world


async def template(state: str) -> World:
    """Make such a world."""
    world = World(service=Service(*LABELS.values()))
    await append(world.tier(world.ring("own:shop" if "own" in state else LABEL)))
    [first] = key_objects(world, ".key")
    raw = await unwrap_key(world.service, first)
    world.lose()
    for word in state.split():
        match = WORD.fullmatch(word)
        assert match is not None
        generation, label, only, damaged = int(match[1]), match[2], match[3], match[4]
        draft = replace(first, generation=generation, label=LABELS.get(label, first.label), wrapped="")
        await store_key(world.store, world.service, draft, raw, world.ring().env, refuse_if_over=living)
        if only is not None:
            world.lose(f"{generation:020}.{'copy' if only == 'key' else 'key'}")
        for suffix in () if damaged is None else [damaged[1:]] if damaged[1:] else ["key", "copy"]:
            (world.damage if damaged and damaged[0] == "~" else world.forge)(f"{generation:020}.{suffix}")
    return world


def key_objects(world: World, suffix: str = "") -> list[KeyObject]:
    """Return the key objects that are sound."""
    objects, keys = [], StreamKeys("orders")
    for name in world.key_objects(suffix):
        try:
            objects.append(decode_key_object(world.objects[name], keys=keys, where=name))
        except Corrupt:
            continue
    return objects


def state_of(world: World) -> str:
    """Return the state of the only key. Nothing is damaged."""
    names = {label: name for name, label in LABELS.items()}
    generations: dict[int, dict[str, KeyObject]] = {}
    for name in world.key_objects():
        one = KeyObject.decode(world.objects[name], where=name)
        generations.setdefault(one.generation, {})[name.rpartition(".")[2]] = one
    words = []
    for generation, copies in sorted(generations.items()):
        [label] = {names.get(one.label, "own") for one in copies.values()}
        words.append(f"{generation}={label}" + ("" if len(copies) == 2 else f".{min(copies)}"))
    return " ".join(words)


async def rotated(world: World | Process, label: str = "new", **changes: Any) -> Rotated:
    """Rotate the keys of the only stream, and return the result."""
    env = (world.world if isinstance(world, Process) else world).ring().env
    changes = {"service": world.service, "env": env, "streams": ["orders"], **changes}
    [one] = [one async for one in rotate(world.tier(), LABELS.get(label, label), **changes)]
    return one


async def judged(world: World) -> None:
    """Assert that the key has a generation that has both copies, and that the service opens it."""
    for one in key_objects(world, ".key"):
        if one in key_objects(world, ".copy"):
            await unwrap_key(world.service, one)
            return
    raise AssertionError("the key is lost")


async def settled(world: World) -> None:
    """Rotate once more. Assert that the new master key alone opens the stream, and that nothing is left."""
    result = await rotated(world)

    assert result.error is None
    assert re.fullmatch(r"\d+=new", state_of(world))
    world.service.masters = {LABELS["new"]: world.service.masters[LABELS["new"]]}
    assert await read(world.tier(world.ring(None))) >= 10
    assert (await rotated(world)).unchanged == 1


@pytest.mark.parametrize(
    ("before", "counted", "after"),
    [
        ("1=old", "rotated", "2=new"),
        ("1=new", "unchanged", "1=new"),
        ("7=new", "unchanged", "7=new"),
        ("1=new.key", "rotated", "2=new"),
        ("1=new.copy", "rotated", "2=new"),
        ("1=new~key", "rotated", "2=new"),
        ("1=new~copy", "rotated", "2=new"),
        ("1=old!key", "rotated", "2=new"),
        ("1=new!key", "rotated", "2=new"),
        ("1=new!copy", "rotated", "2=new"),
        ("1=old 2=new!", "rotated", "3=new"),
        ("1=own!key", "rotated", "2=own"),
        ("1=old 2=new.copy", "rotated", "3=new"),
        ("1=old 2=new", "rotated", "3=new"),
        ("1=old.key 2=new", "rotated", "3=new"),
        ("1=old 2=new~", "rotated", "3=new"),
        ("1=old 2=other 3=new~copy", "rotated", "4=new"),
        ("1=own", "own", "1=own"),
        ("1=own.key", "rotated", "2=own"),
        ("1=own~copy", "rotated", "2=own"),
    ],
)
def test_a_rotation_leaves_one_whole_generation_of_each_key(before: str, counted: str, after: str) -> None:
    async def scenario(_: World) -> None:
        world = await made(before)
        objects = dict(world.objects)

        would = await rotated(world, dry_run=True)
        assert world.objects == objects
        result = await rotated(world)

        assert would == result == replace(Rotated(stream="orders"), **{counted: 1})
        assert (state_of(world), await read(world.tier(world.ring(None)))) == (after, 10)

    run(scenario)


def test_two_copies_that_differ_are_replaced() -> None:
    async def scenario(_: World) -> None:
        world = await made("1=new")
        [copy] = world.key_objects(".copy")
        world.objects[copy] = replace(key_objects(world, ".copy")[0], wrapped="AAAA").encode()

        assert (await rotated(world)).rotated == 1
        assert state_of(world) == "2=new"

    run(scenario)


@pytest.mark.parametrize("before", ["1=old", "1=old 2=new.copy"])
def test_a_rotation_killed_at_any_moment_is_completed_by_the_same_command(before: str) -> None:
    async def scenario(_: World) -> None:
        async for world in at_every_moment(partial(made, before), rotates, crash):
            await judged(world)
            await append(world.tier(world.ring(None)))
            await settled(world)

    run(scenario)


def test_a_killed_move_to_another_service_is_completed_by_the_same_command() -> None:
    """Both services have master keys of the same labels, so a label does not say which one wrapped a key."""
    old = Service(*LABELS.values())

    async def make() -> World:
        world = await made()
        old.masters, world.service.masters = world.service.masters, Service(*LABELS.values()).masters
        return world

    async def move(world: World | Process) -> None:
        assert (await rotated(world, "old", old_service=old)).error is None

    async def scenario(_: World) -> None:
        async for world in at_every_moment(make, move, crash):
            await move(world)
            assert await read(world.tier(world.ring(None))) == 10
            assert (await rotated(world, "old")).unchanged == 1

    run(scenario)


async def reads(world: World) -> None:
    assert await read(world.tier(world.ring(None))) >= 10


async def writes(world: World) -> None:
    await append(world.tier(world.ring()))
    assert all(await is_encrypted(world))
    assert len({one.uid for one in key_objects(world)}) == 1


async def rotates(world: World | Process, *labels: str) -> None:
    for label in labels or ["new"]:
        assert isinstance((await rotated(world, label)).error, Conflict | None)


async def ignore(_operation: str, _key: str) -> None:
    pass


async def shreds(world: World | Process) -> None:
    await shred(world.tier(), await plan_shred(world.tier(), "orders"))


async def begins_again(world: World) -> None:
    await delete_stream(world.tier(), "orders")
    await append(world.tier(world.ring()), 5)


class TestRivals:
    """A process and a rival in one event loop. The rival runs at each moment of the process."""

    def test_a_rotation_that_is_undone_leaves_the_master_key_to_the_next_shred(self) -> None:
        """The stream was deleted, and its older generations still need the master key."""

        async def scenario(_: World) -> None:
            world = await made("1=own.key")
            masters = dict(world.service.masters)

            async def delete(operation: str, key: str) -> None:
                if operation == "create" and key.endswith(".key"):
                    world.store.before = ignore
                    await delete_stream(world.tier(), "orders")

            world.store.before = delete
            assert isinstance((await rotated(world, "new")).error, StreamDeleted)

            assert (state_of(world), world.service.masters) == ("1=own.key", masters)

        run(scenario)

    @few("rivals of a rotation; make test has a reader and a rotation to another label", 3)
    @pytest.mark.parametrize(
        "rival",
        [reads, writes, rotates, lambda world: rotates(world, "other"), lambda w: rotates(w, "other", "old")],
        ids=["reader", "writer", "the same label", "another label", "two rotations"],
    )
    def test_a_key_is_readable_at_every_moment_of_a_rotation(
        self, rival: Callable[[World], Awaitable[None]]
    ) -> None:
        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, rotates, rival, watch=judged):
                await judged(world)
                assert re.fullmatch(r"\d+=\w+", state_of(world))
                await settled(world)

        run(scenario)

    def test_a_rotation_keeps_its_generation_beside_a_newer_one_that_is_not_whole(self) -> None:
        async def rival(world: World) -> None:
            broken = Process(world)
            broken.store.rules = [Rule(Fault.DENY, "create", "*.key")]
            await rotated(broken, "other")

        async def scenario(_: World) -> None:
            worlds = at_every_moment(partial(made, "1=old.copy"), rotates, rival)
            states = [state_of(world) async for world in worlds]
            assert "1=old.copy 2=new 3=other.copy" in states

        run(scenario)

    def test_a_rotation_that_another_one_overtook_says_so(self) -> None:
        """Both would make generation 2. The result must not be taken for one under the new label."""

        async def scenario(_: World) -> None:
            world = await made()
            process = Process(world)

            async def overtake(operation: str, key: str) -> None:
                if operation == "create":
                    process.store.before = ignore
                    await rotates(world, "other")

            process.store.before = overtake
            result = await rotated(process)

            assert "another rotation of its key" in str(result.error)
            assert (result.rotated, state_of(world)) == (0, "2=other")

        run(scenario)

    @pytest.mark.parametrize("label", [None, LABEL], ids=["reader", "writer"])
    def test_rotations_at_any_moment_of_a_process_are_not_noticed(self, label: str | None) -> None:
        async def work(process: Process) -> None:
            if label is None:
                assert await read(process.tier()) == 10
            else:
                await append(process.tier(label))

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, lambda world: rotates(world, "other", "new")):
                assert all(await is_encrypted(world))
                await settled(world)

        run(scenario)

    def test_a_stream_shredded_during_a_rotation_has_no_key_left(self) -> None:
        async def work(process: Process) -> None:
            result = await rotated(process)
            assert isinstance(result.error, StreamDeleted | None)

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, shreds):
                if world.key_objects():
                    assert await read(world.tier(world.ring(None))) == 10  # nobody shredded it

        run(scenario)

    @pytest.mark.parametrize(
        ("is_begun_again", "kind"), [(False, StreamDeleted), (True, Conflict)], ids=["deleted", "begun again"]
    )
    def test_a_key_that_went_with_its_stream_is_not_reported_as_lost(
        self, is_begun_again: bool, kind: type[Exception]
    ) -> None:
        """A writer that had made it for a stream that was deleted meanwhile destroys its master key."""

        async def scenario(_: World) -> None:
            world = await made("1=own.key")
            label = key_objects(world)[0].label

            async def take_back(operation: str, key: str) -> None:
                if operation == "get" and "/keys/" in key:
                    world.store.before = ignore
                    await delete_stream(world.tier(), "orders")
                    await world.service.destroy(label)
                    if is_begun_again:
                        await append(world.tier(world.ring()), 5)

            world.store.before = take_back
            error = (await rotated(world)).error

            assert (type(error), "was deleted" in str(error)) == (kind, True)
            assert (await rotated(world)).rotated == is_begun_again

        run(scenario)

    def test_a_rotation_during_a_shred_leaves_no_key(self) -> None:
        async def rival(world: World) -> None:
            assert isinstance((await rotated(world)).error, StreamDeleted | None)

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, shreds, rival):
                assert world.key_objects() == []

        run(scenario)

    def test_a_rotation_leaves_the_key_of_a_stream_that_was_begun_again(self) -> None:
        async def work(process: Process) -> None:
            assert isinstance((await rotated(process)).error, Conflict | StreamDeleted | None)

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, begins_again):
                assert await read(world.tier(world.ring(None))) in (5, 10)
                assert (await rotated(world)).error is None
                world.service.masters = {LABELS["new"]: world.service.masters[LABELS["new"]]}
                assert await read(world.tier(world.ring(None))) in (5, 10)

        run(scenario)


class TestRequests:
    """Requests whose replies are lost, or that land late."""

    @pytest.mark.parametrize("operation", ["create", "delete"])
    @pytest.mark.parametrize("nth", [1, 2])
    def test_a_lost_reply_is_cured_by_the_same_command(self, operation: str, nth: int) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            world.store.rules = [Rule(Fault.LOSE_REPLY, operation, "*/keys/*", nth=nth)]

            result = await rotated(world)

            assert isinstance(result.error, OutcomeUnknown | None)
            await judged(world)
            await settled(world)

        run(scenario)

    def test_a_generation_that_lands_after_two_newer_ones_is_removed_by_the_next_rotation(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            world.store.rules = [Rule(Fault.DELAY, "create", "*/keys/*")]
            assert isinstance((await rotated(world)).error, OutcomeUnknown)
            world.store.rules = []
            await rotates(world, "other", "old")
            await world.store.land()

            assert await read(world.tier(world.ring(None))) == 10
            assert state_of(world) == "2=new.copy 3=old"
            await settled(world)

        run(scenario)

    def test_a_copy_that_cannot_be_read_back_keeps_the_older_generation(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            damaged: list[str] = []

            async def damage(operation: str, key: str) -> None:
                if operation == "create" and key.endswith(".key"):
                    damaged.append(key)
                    world.damage("2.key")

            world.store.after = damage

            error = (await rotated(world)).error

            assert (
                str(error) == "stream 'orders': its rotated key cannot be read back; the older one was kept"
            )
            assert (len(damaged), await read(world.tier(world.ring(None)))) == (1, 10)
            assert len(world.key_objects()) == 4

        run(scenario)


class TestServices:
    """Key services that fail in the middle, and labels that are wrong."""

    @pytest.mark.parametrize("call", ["wrap", "unwrap"])
    @pytest.mark.parametrize("nth", [1, 2])
    def test_a_service_that_fails_in_the_middle_changes_nothing(self, call: str, nth: int) -> None:
        class Failing(Service):
            def _master(self, asked: str, label: str, context: Any) -> Any:
                master = super()._master(asked, label, context)
                if self.calls.count(call) == nth and asked == call:
                    raise TryAgain("the key service is down")
                return master

        async def scenario(_: World) -> None:
            world = await made()
            failing = Failing(*LABELS.values())
            failing.masters = world.service.masters

            error = (await rotated(world, service=failing)).error

            down = "stream 'orders': the key service is down"
            assert str(error) == ("None" if (call, nth) == ("wrap", 2) else down)
            assert state_of(world) == ("2=new" if error is None else "1=old")
            await settled(world)

        run(scenario)

    @pytest.mark.parametrize(
        ("label", "error"),
        [
            ("missing", "stream 'orders': the key service has no key 'missing'"),
            ("old", "stream 'orders': the key service has no key 'tier-2026'"),
        ],
    )
    def test_a_missing_master_key_is_denied_by_name_and_changes_nothing(self, label: str, error: str) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            objects = dict(world.objects)
            if label == "old":
                del world.service.masters[LABEL]

            result = await rotated(world, label)

            assert (type(result.error), str(result.error)) == (NoSuchKey, error)
            assert world.objects == objects

        run(scenario)

    def test_a_label_that_could_be_a_path_is_refused_before_any_request(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            world.store.calls.clear()

            with pytest.raises(Misuse, match="is no label of a key"):
                await rotated(world, "../x")
            assert [call for call in world.store.calls if call.key != "tier.anchor"] == []

        run(scenario)

    def test_a_key_of_one_stream_that_fails_does_not_stop_the_others(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            await append(world.tier(world.ring()), stream="aaa")
            await append(world.tier(), stream="plain")
            await append(world.tier(world.ring()), stream="gone")
            await delete_stream(world.tier(), "gone")
            for name in world.key_objects():
                if name.startswith("aaa/"):
                    world.objects[name] = b"damaged"
            seen: list[tuple[int, int]] = []

            rows = [
                row
                async for row in rotate(
                    world.tier(),
                    LABELS["new"],
                    service=world.service,
                    progress=lambda *at: seen.append(at),
                )
            ]

            assert [(row.stream, row.rotated, type(row.error)) for row in rows] == [
                ("aaa", 0, Denied),
                ("orders", 1, type(None)),
                ("plain", 0, type(None)),
            ]
            assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]

        run(scenario)

    def test_a_stream_that_is_being_rebuilt_is_reported(self) -> None:
        """Its key is not rotated, and whoever gives up the old master key must know."""

        async def scenario(_: World) -> None:
            world = await made()
            await fence(world)

            rows = [row async for row in rotate(world.tier(), LABELS["new"], service=world.service)]

            assert [(row.stream, row.rotated) for row in rows] == [("orders", 0)]
            assert "is being rebuilt" in str(rows[0].error)
            assert state_of(world) == "1=old"

        run(scenario)

    def test_a_store_that_denies_everything_ends_the_rotation(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            await append(world.tier(), stream="plain")

            async def deny(operation: str, key: str) -> None:
                if "/metadata/" in key:
                    raise StoreDenied("the credentials are wrong")

            world.store.before = deny
            rows = [row async for row in rotate(world.tier(), LABELS["new"], service=world.service)]

            assert [(row.stream, str(row.error)) for row in rows] == [("orders", "the credentials are wrong")]

        run(scenario)


class TestReaders:
    """Processes that keep a key in memory."""

    def test_a_reader_with_its_key_in_memory_notices_no_rotation_until_its_time_is_over(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            tier = world.tier(world.ring(None))
            await reads(world)
            assert await read(tier) == 10
            world.service.calls.clear()

            await rotated(world)
            del world.service.masters[LABEL]
            calls = len(world.service.calls)

            assert await read(tier) == 10
            assert len(world.service.calls) == calls
            world.clock.now = KEPT_SECONDS
            assert await read(tier) == 10
            assert world.service.calls[calls:] == ["unwrap"]

        run(scenario)

    def test_a_writer_goes_on_when_its_key_is_rotated_between_two_ledgers(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            writer = await StreamWriter.claim(world.tier(world.ring()), "orders")
            await writer.offload([ledger_of(5, first_offset=10)])

            await rotated(world)
            del world.service.masters[LABEL]
            await writer.offload([ledger_of(5, first_offset=15)])
            world.clock.now = KEPT_SECONDS
            await writer.offload([ledger_of(5, first_offset=20)])

            assert await read(world.tier(world.ring(None))) == 25
            assert all(await is_encrypted(world))
            assert state_of(world) == "2=new"

        run(scenario)
