"""Failures of stores and queues: what each ends, how it begins again, and which names nobody may have."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.world import TierWorld
from log_disks import FailingDisk
from offload_queue import DeclaredQueue, GivenUp, MessageProperties, QueueVhost, RestartLimit, Vhosts

from offload.ground.errors import (
    Conflict,
    Corrupt,
    Denied,
    Fenced,
    Misuse,
    OffloadError,
    TryAgain,
)

BOTH = [MessageProperties(), MessageProperties(priority=7)]
"""A message of the lowest level, and one of a high one."""


@dataclass
class World(TierWorld):
    """A tier, and a machine with a folder and a disk."""

    folder: Path = field(default_factory=Path)
    disk: FailingDisk = field(default_factory=FailingDisk)

    def vhosts(self, **options: Any) -> Vhosts:
        options.setdefault("disk", self.disk)
        return Vhosts(options.pop("folder", self.folder), self.tier(), env=self.env(), **options)

    def breaks(self, vhost: QueueVhost | None = None) -> None:
        """Let every sync fail, of one vhost or of all."""
        self.disk.fails = lambda name: errno.EIO if name == "sync" else 0

    def claims(self) -> int:
        """Return the number of fragments of the vhost: an owner that takes it writes one."""
        return len(self.data)

    def mends(self) -> None:
        self.disk.fails = lambda name: 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(folder=tmp_path / "vhosts")
    asyncio.run(world.tier().open(create=True))
    return world


async def settled(vhost: QueueVhost) -> None:
    """Wait until a vhost is up, or given up."""
    async with asyncio.timeout(5):
        while not (vhost.is_up or vhost.is_given_up):  # noqa: ASYNC110 - nobody but a test waits for this
            await asyncio.sleep(0.001)


async def failed(world: World, vhost: QueueVhost, queue: DeclaredQueue, *, stays: bool = False) -> None:
    """Let the store of a vhost fail once, or for as long as the disk does."""
    world.breaks()
    with pytest.raises(OffloadError):
        await queue.publish([b"lost"])
    if not stays:
        world.mends()
    await settled(vhost)


async def bodies(queue: DeclaredQueue) -> list[bytes]:
    return [each.body for each in await queue.fetch(100)]


def test_the_calls_of_a_program(world: World) -> None:
    async def first() -> None:
        async with world.vhosts(log_size_bytes_max=2**20) as vhosts:
            vhost = await vhosts.open("orders")
            queue = await vhost.declare("eu")
            assert await vhost.declare("eu") is queue
            assert await vhosts.open("orders") is vhost
            await queue.publish([b"a", b"b", b"c"])
            found = await queue.fetch(2)
            assert [(each.body, each.redelivered) for each in found] == [(b"a", False), (b"b", False)]
            await queue.ack([found[0].tag])
            assert await queue.depth() == 2

    async def second() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("orders")
            assert vhost.queue_names == ["eu"]
            found = await (await vhost.declare("eu")).fetch(9)
            assert [(each.body, each.redelivered) for each in found] == [(b"b", True), (b"c", False)]

    asyncio.run(first())
    asyncio.run(second())


HOSTILE = (
    "../escaped",
    "/",
    ".",
    "..",
    "a/b",
    "a\\b",
    "\0",
    "\n",
    "%2F",
    "é" * 300,
    "x" * 4089,
    "CON",
    "~",
    " ",
)


def test_no_name_of_a_vhost_leads_out_of_the_folder(world: World) -> None:
    """Each has a folder of its own directly below, and its name in it."""

    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            for name in HOSTILE:
                vhost = await vhosts.open(name)
                queue = await vhost.declare(name.replace("\0", "-")[:100])
                await queue.publish([b"a"])
            for name in ("", "\ud800", "x" * 4090):
                with pytest.raises(Misuse):
                    await vhosts.open(name)

    asyncio.run(scenario())
    found = {path.parent.name: path.read_bytes().decode() for path in world.folder.glob("*/note.vhost")}
    assert sorted(found.values()) == sorted(HOSTILE)
    assert {path.name for path in world.folder.iterdir()} == set(found)
    assert {path.name for path in world.folder.parent.iterdir()} == {"vhosts"}


@pytest.mark.parametrize("name", ["", "a\0b", "\0", "\ud800", "x" * 256, b"bytes", None])
def test_a_queue_needs_a_name(world: World, name: Any) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            with pytest.raises(Misuse):
                await (await vhosts.open("v")).declare(name)

    asyncio.run(scenario())


def test_a_folder_of_another_vhost_is_refused(world: World) -> None:
    (world.folder / "orders").mkdir(parents=True)
    (world.folder / "orders" / "note.vhost").write_bytes(b"other")

    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            with pytest.raises(Corrupt, match="name of the vhost"):
                await vhosts.open("orders")
            assert await vhosts.open("others")

    asyncio.run(scenario())


def test_one_process_has_a_vhost_also_while_it_restarts(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts, world.vhosts() as others:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            with pytest.raises(Conflict):
                await others.open("v")
            await failed(world, vhost, queue, stays=True)  # down, and its log is closed
            with pytest.raises(Conflict):
                await others.open("v")
            world.mends()

        async with world.vhosts() as vhosts:
            assert await vhosts.open("v")

    asyncio.run(scenario())


def test_a_store_that_fails_ends_its_vhost_which_begins_again(world: World) -> None:
    """Handles stay, confirmed messages are there, and the other vhost has not noticed."""

    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost, other = await vhosts.open("v"), await vhosts.open("other")
            queue, quiet = await vhost.declare("q", priority_max=2), await other.declare("q")
            await queue.publish([b"a", b"b"], properties=BOTH)
            await quiet.publish([b"quiet"])
            old = (await queue.fetch(1))[0]
            untouched = other._store
            await failed(world, vhost, queue)

            assert vhost.is_up
            found = await queue.fetch(9)
            assert [(each.body, each.redelivered) for each in found] == [(b"b", True), (b"a", True)]
            assert await queue.ack([old.tag]) == [old.tag], "the same message, which its consumer has done"
            assert other._store is untouched
            assert await bodies(quiet) == [b"quiet"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("last", "is_restarted"), [(300.0, False), (300.5, True)], ids=["at", "after"])
def test_the_fourth_failure_within_the_period_is_the_last(
    world: World, last: float, is_restarted: bool
) -> None:
    """Three restarts in five minutes. Exactly five minutes after the first, it still counts."""

    async def scenario() -> None:
        begun = world.clock.now
        async with world.vhosts() as vhosts:
            vhost, other = await vhosts.open("v"), await vhosts.open("other")
            queue = await vhost.declare("q")
            for seconds in (0, 100, 200):
                world.clock.now = begun + seconds
                await failed(world, vhost, queue)
                assert vhost.is_up
            world.clock.now = begun + last
            await failed(world, vhost, queue)

            assert vhost.is_up == is_restarted
            await (await other.declare("q")).publish([b"goes on"])

    asyncio.run(scenario())


def test_a_vhost_that_was_given_up_waits_for_a_person(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts(limit=RestartLimit(intensity=0)) as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            await queue.publish([b"kept"])
            await failed(world, vhost, queue)
            for call in (queue.depth, lambda: vhost.declare("other")):
                with pytest.raises(OffloadError, match=r"vhost 'v' is down after: .*again") as caught:
                    await call()
                assert type(caught.value) is type(vhost.error)

            world.breaks()
            with pytest.raises(OffloadError):
                await vhosts.open("v")
            assert vhost.is_given_up
            world.mends()
            assert await vhosts.open("v") is vhost
            assert await bodies(queue) == [b"kept"]
            await failed(world, vhost, queue)
            assert vhost.is_given_up, "it is supervised again"

    asyncio.run(scenario())


def test_a_person_gives_a_vhost_all_of_its_restarts_again(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts(limit=RestartLimit(intensity=1)) as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            for _ in range(2):
                await failed(world, vhost, queue)
                assert vhost.is_up
                await failed(world, vhost, queue)
                assert vhost.is_given_up
                await vhosts.open("v")

    asyncio.run(scenario())


def test_a_start_that_fails_is_one_more_failure(world: World) -> None:
    async def scenario() -> None:
        slept = list[float]()
        env = world.env()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0)

        object.__setattr__(env, "sleep", sleep)
        async with Vhosts(world.folder, None, env=env, disk=world.disk) as vhosts:
            vhost = await vhosts.open("v")
            await failed(world, vhost, await vhost.declare("q"), stays=True)
            assert vhost.is_given_up
            pauses = [round(each, 3) for each in slept]
            assert [each for each in pauses if each in (0.075, 0.15, 0.3, 0.6)] == [0.075, 0.15, 0.3]
            world.mends()

    asyncio.run(scenario())


def test_calls_during_a_restart_may_be_tried_again(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            vhost.store.fail(OSError("a disk"))
            for call in (queue.depth, lambda: vhost.declare("other")):
                with pytest.raises(TryAgain, match="vhost 'v' is being restarted after: a disk"):
                    await call()
            await settled(vhost)
            assert await queue.depth() == 0

    asyncio.run(scenario())


def test_with_stop_all_vhosts_end_with_the_error(world: World) -> None:
    async def scenario() -> None:
        vhosts = world.vhosts(limit=RestartLimit(intensity=1, then=GivenUp.STOP))
        async with vhosts:
            vhost = await vhosts.open("v")
            await vhosts.open("other")
            queue = await vhost.declare("q")
            await failed(world, vhost, queue)
            assert vhost.is_up
            world.breaks()
            with pytest.raises(OffloadError):
                await queue.publish([b"lost"])
            world.mends()
            await asyncio.sleep(5)
        raise AssertionError("the block has not ended")

    with pytest.raises(OffloadError, match="Input/output error"):
        asyncio.run(scenario())
    assert not list(world.folder.glob("*.lock"))


def test_an_error_of_the_body_goes_on_as_it_is(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            await vhosts.open("v")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(scenario())


def test_vhosts_are_opened_inside_their_block(world: World) -> None:
    async def scenario() -> None:
        vhosts = world.vhosts()
        with pytest.raises(Misuse):
            await vhosts.open("v")
        async with vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
        assert not vhost.is_up
        for call in (queue.depth(), vhosts.open("v"), vhost.declare("q")):
            with pytest.raises(Misuse):
                await call
        assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []

    asyncio.run(scenario())


class Broken(Exception):
    """A mistake of ours in one queue."""


@pytest.mark.parametrize(
    "error", [Broken("a mistake"), Corrupt("record", "a run", expected=1, found=2)], ids=repr
)
def test_a_queue_that_fails_is_restarted_alone(world: World, error: Exception) -> None:
    """Its fourth failure in the period is the last, until somebody restarts it."""

    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            queue, other = await vhost.declare("q"), await vhost.declare("other")
            await queue.publish([b"a", b"b"])
            await other.publish([b"other"])
            taken, store = await other.fetch(1), vhost._store
            await queue.fetch(1)

            async def fails(queue: Any) -> None:
                raise error

            for _ in range(3):
                with pytest.raises(type(error)):
                    await queue._call(fails)
                found = await queue.fetch(9)
                assert (found[0].body, found[0].redelivered) == (b"a", True)
            with pytest.raises(type(error)):
                await queue._call(fails)
            with pytest.raises(
                Corrupt if isinstance(error, Corrupt) else Denied, match="queue 'q' of vhost 'v' is down"
            ):
                await queue.depth()
            assert vhost._store is store
            assert await other.ack([taken[0].tag]) == [taken[0].tag]
            await queue.restart()
            assert await bodies(queue) == [b"a", b"b"]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [TryAgain("later"), Misuse("no"), TypeError("no")], ids=repr)
def test_a_refusal_is_no_failure(world: World, error: Exception) -> None:
    async def scenario() -> None:
        async with world.vhosts(limit=RestartLimit(intensity=0)) as vhosts:
            queue = await (await vhosts.open("v")).declare("q")
            await queue.publish([b"a"])
            tag = (await queue.fetch(1))[0].tag

            async def refuses(queue: Any) -> None:
                raise error

            with pytest.raises(type(error)):
                await queue._call(refuses)
            assert await queue.ack([tag]) == [tag]

    asyncio.run(scenario())


def test_a_queue_keeps_its_levels(world: World) -> None:
    """The highest level is declared first. So a crash in between leaves a queue that can be completed."""

    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            await vhost.declare("plain")
            queue = await vhost.declare("levels", priority_max=9)
            await queue.publish(
                [b"low", b"high"], properties=[MessageProperties(), MessageProperties(priority=7)]
            )
            for name, priority_max in (("plain", 0), ("levels", None), ("levels", 8), ("levels", 10)):
                with pytest.raises(Misuse, match="priority_max="):
                    await vhost.declare(name, priority_max=priority_max)
            for wrong in (-1, 256, True, "9"):
                with pytest.raises(Misuse):
                    await vhost.declare("wrong", priority_max=wrong)  # type: ignore[arg-type]
            await vhost.store.declare("half\0\x09")
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            assert vhost.queue_names == ["half", "levels", "plain"]
            for name, priority_max in (("plain", 0), ("levels", None), ("levels", 8), ("half", 8)):
                with pytest.raises(Misuse, match="priority_max="):
                    await vhost.declare(name, priority_max=priority_max)
            assert await bodies(await vhost.declare("levels", priority_max=9)) == [b"high", b"low"]
            half = await vhost.declare("half", priority_max=9)
            await half.publish([b"low"])
            assert await half.depth() == 1

    asyncio.run(scenario())


def test_an_interrupted_declaration_is_completed_as_it_was_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            declare, left = vhost.store.declare, 2

            async def interrupted(name: str) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise TryAgain("interrupted")
                return await declare(name)

            monkeypatch.setattr(vhost.store, "declare", interrupted)
            with pytest.raises(TryAgain):
                await vhost.declare("q", priority_max=4)
            monkeypatch.undo()
            with pytest.raises(Misuse, match="priority_max=4"):
                await vhost.declare("q", priority_max=1)
            queue = await vhost.declare("q", priority_max=4)
            await queue.publish([b"low", b"high"], properties=BOTH)
            assert await bodies(queue) == [b"high", b"low"]

    asyncio.run(scenario())


def test_an_error_of_a_condition_is_its_own(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts(limit=RestartLimit(intensity=0)) as vhosts:
            queue = await (await vhosts.open("v")).declare("q")
            await queue.publish([b"a", b"b"])
            tag = (await queue.fetch(1))[0].tag
            for call in (queue.dropwhile, queue.fetchwhile):
                with pytest.raises(ZeroDivisionError):
                    await call(lambda its: 1 // its.priority > 0)
            assert await queue.ack([tag]) == [tag]

    asyncio.run(scenario())


def test_a_ram_target_outlives_a_restart(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            queue.set_ram_target(0)
            await failed(world, vhost, queue)
            await queue.publish([b"a"])
            assert queue.ram_size_bytes == 0

    asyncio.run(scenario())


def test_a_deleted_queue_is_gone_with_all_levels(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q", priority_max=3)
            await queue.publish([b"a"])
            await queue.delete()
            await queue.delete()
            assert vhost.queue_names == []
            with pytest.raises(Misuse):
                await queue.depth()
            assert await (await vhost.declare("q")).depth() == 0

    asyncio.run(scenario())


def test_a_closed_queue_is_opened_by_the_next_declare(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            await queue.publish([b"a"])
            await queue.aclose()
            await failed(world, vhost, await vhost.declare("other"))
            with pytest.raises(Misuse):
                await queue.depth()
            assert await bodies(await vhost.declare("q")) == [b"a"]

    asyncio.run(scenario())


def test_a_message_goes_to_several_plain_queues_at_once(world: World) -> None:
    async def scenario() -> None:
        async with world.vhosts() as vhosts:
            vhost = await vhosts.open("v")
            one, two = await vhost.declare("1"), await vhost.declare("2")
            await (await vhost.publish([one, two], [b"a", b"b"])).confirmed
            assert await bodies(one) == await bodies(two) == [b"a", b"b"]
            levels = await vhost.declare("levels", priority_max=1)
            for wrong in ([], [one, one], [one, levels]):
                with pytest.raises(Misuse):
                    await vhost.publish(wrong, [b"a"])

    asyncio.run(scenario())


def test_another_machine_takes_what_the_tier_confirmed(world: World, tmp_path: Path) -> None:
    """The old owner is fenced by its next commit. It goes down at once, and is not restarted."""

    async def scenario() -> None:
        async with world.vhosts(confirm="tier") as vhosts:
            vhost = await vhosts.open("v")
            queue, levels = await vhost.declare("q"), await vhost.declare("levels", priority_max=1)
            sent = [b"%d" % n for n in range(20)]
            await queue.publish(sent)
            await levels.publish(
                [b"low", b"high"], properties=[MessageProperties(), MessageProperties(priority=1)]
            )

            async with world.vhosts(folder=tmp_path / "second", confirm="tier") as others:
                taken = await others.open("v")
                assert taken.queue_names == ["levels", "q"]
                found = await (await taken.declare("q")).fetch(99)
                assert [(each.body, each.redelivered) for each in found] == [(body, True) for body in sent]
                assert await bodies(await taken.declare("levels", priority_max=1)) == [b"high", b"low"]
                with pytest.raises(Fenced):
                    await queue.publish([b"too late"])
                await settled(vhost)
                with pytest.raises(Fenced, match="vhost 'v' is down"):
                    await queue.depth()
                assert vhost._restarts.recent == 0
                await (await taken.declare("q")).publish([b"goes on"])

    asyncio.run(scenario())


def test_a_takeover_that_is_interrupted_begins_again(world: World, tmp_path: Path) -> None:
    """The stream was claimed, and the claim's state is not in the log: the next start claims it again."""

    async def scenario() -> None:
        async with world.vhosts(confirm="tier") as vhosts:
            await (await (await vhosts.open("v")).declare("q")).publish([b"kept"])
        async with world.vhosts(folder=tmp_path / "second") as vhosts:
            world.disk.fails = lambda name: errno.EIO if name == "write" and world.claims() > 1 else 0
            with pytest.raises(OffloadError):
                await vhosts.open("v")
            assert world.claims() > 1
            world.mends()
            vhost = await vhosts.open("v")
            assert await bodies(await vhost.declare("q")) == [b"kept"]
            await vhost.store.flush()
            assert vhost.is_up

    asyncio.run(scenario())


def test_a_publisher_that_waits_for_room_learns_that_its_vhost_has_ended(world: World) -> None:
    async def scenario() -> None:
        async with Vhosts(world.folder, None, log_size_bytes_max=2**16, env=world.env()) as vhosts:
            vhost = await vhosts.open("v")
            queue = await vhost.declare("q")
            await queue.publish([bytes(70_000)])
            store = vhost.store
            while store.log_size_bytes < 70_000:  # noqa: ASYNC110 - nobody but a test waits for this
                await asyncio.sleep(0.001)
            waiting = asyncio.ensure_future(queue.publish([b"waits"]))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            store.fail(TryAgain("it ended"))
            with pytest.raises(TryAgain):
                async with asyncio.timeout(5):
                    await waiting
            await settled(vhost)
            assert await queue.depth() == 1

    asyncio.run(scenario())


def test_a_cancelled_block_closes_all(world: World) -> None:
    async def scenario() -> None:
        ready = asyncio.Event()

        async def block() -> None:
            async with world.vhosts() as vhosts:
                await vhosts.open("v")
                ready.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(block())
        await ready.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        async with world.vhosts() as vhosts:
            assert await vhosts.open("v")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong", [{"on_full": "wait"}, {"confirm": "disk"}, {"log_size_bytes_max": 2**16 - 1}], ids=str
)
def test_wrong_options_are_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        world.vhosts(**wrong)
    with pytest.raises(Misuse):
        Vhosts(world.folder, None, confirm="tier")
