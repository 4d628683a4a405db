"""A process ends at each call of its disk and at each request to its tier, and power is cut at each call.

`Life` publishes, consumes, moves to the tier, and consumes from there. After its end the vhost is opened:
what was confirmed and not acknowledged is there, in order, and nothing else but what was acknowledged.
"""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from campaign import CAMPAIGN, keeping
from log_disks import CountingDisk, FailingDisk, Killed, KilledDisk, PowerDisk, failing_at
from offload_queue.opening import LOG_FOLDER
from queue_world import QueueWorld, Vhost, bodies_of

from offload.ground.errors import NoSpace, OffloadError


class Life:
    """What publishers and consumers of queue `a` and `b` know."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.confirmed: set[bytes] = set()
        self.acked: set[bytes] = set()

    async def publish(self, vhost: Vhost, count: int, *, size: int = 20) -> None:
        new = [b"%05d" % (len(self.published) + each) + bytes(size) for each in range(count)]
        self.published += new
        queue = await vhost.queue("a")
        await queue.publish(new)
        self.confirmed.update(new)

    async def consume(self, vhost: Vhost, count: int, *, requeue: bool = False) -> None:
        queue = await vhost.queue("a")
        found = await queue.fetch(count)
        assert all(each.redelivered for each in found if each.body in self.acked)
        if requeue:
            await queue.requeue([each.tag for each in found])
        else:
            self.acked.update(each.body for each in found)
            await queue.ack([each.tag for each in found])

    async def live(self, vhost: Vhost) -> None:
        await self.publish(vhost, 5)
        await self.consume(vhost, 2)
        await self.publish(vhost, 4, size=3000)
        await vhost.page()
        await self.consume(vhost, 2, requeue=True)
        await self.consume(vhost, 3)
        await self.publish(vhost, 3)
        await vhost.page()
        await self.consume(vhost, 4)
        await vhost.page()
        await self.publish(vhost, 1)

    async def check(self, vhost: Vhost) -> None:
        vhost.check()
        found = await bodies_of(await vhost.queue("a"))
        assert found == sorted(set(found))
        assert set(found) <= set(self.published)
        assert self.confirmed - self.acked <= set(found)
        again = await (await vhost.queue("a")).fetch(100)
        assert [each.body for each in again] == found
        assert all(each.redelivered for each in again if each.body in self.acked)
        vhost.check()

    async def check_and_go_on(self, world: QueueWorld) -> None:
        vhost = await world.open()
        await self.check(vhost)
        await self.publish(vhost, 1)
        await vhost.page()
        await vhost.close()
        vhost = await world.open()
        await self.check(vhost)
        await vhost.close()


async def lived(world: QueueWorld, disk: CountingDisk) -> Life:
    """Return a life that ended when the disk or the tier did."""
    life = Life()
    with suppress(Killed, OffloadError):
        vhost = await world.open(disk=disk)
        try:
            await life.live(vhost)
            await vhost.close()
        except (Killed, OffloadError):
            await vhost.vanish()
            raise
    return life


def worlds(tmp_path: Path) -> Callable[[str], QueueWorld]:
    """Return a maker of worlds in folders of their own."""

    def world(name: str) -> QueueWorld:
        (tmp_path / name).mkdir()
        found = QueueWorld(folder=tmp_path / name)
        asyncio.run(found.begin())
        return found

    return world


def chosen(count: int, every: int) -> range:
    """Return the calls at which a life ends: all of them in the campaign."""
    return range(0 if CAMPAIGN else count % every, count, 1 if CAMPAIGN else every)


def calls_of_a_life(tmp_path: Path) -> int:
    disk = CountingDisk()
    asyncio.run(lived(worlds(tmp_path)("whole"), disk))
    return len(disk.calls)


@pytest.mark.parametrize("part", keeping([0.5], [0.0, 0.5, 0.99], "other parts of the last write"))
def test_a_process_that_is_killed_at_any_call_of_its_disk_loses_nothing(tmp_path: Path, part: float) -> None:
    count = calls_of_a_life(tmp_path)
    assert count > 50
    for left in chosen(count, 11):
        world = worlds(tmp_path)(str(left))
        life = asyncio.run(lived(world, KilledDisk(left, part=part)))
        asyncio.run(life.check_and_go_on(world))
        shutil.rmtree(world.folder)


def test_a_power_cut_at_any_call_of_the_disk_loses_nothing(tmp_path: Path) -> None:
    """Contents that were not synced are there or not, page by page."""
    draw = random.Random(5)
    for left in chosen(calls_of_a_life(tmp_path), 13):
        world = worlds(tmp_path)(str(left))
        folder = world.folder / "0" / LOG_FOLDER
        folder.parent.mkdir()
        disk = PowerDisk(folder, left)
        life = asyncio.run(lived(world, disk))
        shutil.move(folder, tmp_path / "lost")
        disk.after_power_cut(folder, draw)
        asyncio.run(life.check_and_go_on(world))
        shutil.rmtree(world.folder)
        shutil.rmtree(tmp_path / "lost")


def test_a_process_that_is_killed_at_any_request_to_the_tier_loses_nothing(tmp_path: Path) -> None:
    counted = worlds(tmp_path)("counted")
    asyncio.run(lived(counted, CountingDisk()))
    requests = len(counted.store.calls)
    assert requests > 20
    for left in chosen(requests, 5):
        for after in (False, True):
            world = worlds(tmp_path)(f"{left}-{after}")
            calls = [left]

            async def end(_operation: str, _key: str, calls: list[int] = calls) -> None:
                calls[0] -= 1
                if calls[0] < 0:
                    raise Killed("at the tier")

            if after:
                world.store.after = end
            else:
                world.store.before = end
            life = asyncio.run(lived(world, CountingDisk()))
            world = QueueWorld(folder=world.folder, store=type(world.store)(world.store.inner))
            asyncio.run(life.check_and_go_on(world))
            shutil.rmtree(world.folder)


@pytest.mark.parametrize("name", ["write", "create", "sync_folder", "set_time"])
def test_a_disk_that_fails_once_takes_back_what_was_not_confirmed(tmp_path: Path, name: str) -> None:
    """For example, a full disk in a roll. The vhost goes on, or opens again with all that was confirmed."""
    for number in range(6 if CAMPAIGN else 2):
        world, disk = worlds(tmp_path)(f"{number}"), FailingDisk()

        async def lives(world: QueueWorld = world, disk: FailingDisk = disk, number: int = number) -> Life:
            vhost, life = await world.open(disk=disk, bound=16 * 300), Life()
            await life.publish(vhost, 3)
            disk.fails = failing_at(number, error=errno.ENOSPC, name=name)
            for _ in range(4):
                with suppress(OffloadError):
                    await life.publish(vhost, 2, size=100)
                vhost.check()
                if vhost.store.failed is None:
                    assert set(await bodies_of(await vhost.queue("a"))) == life.confirmed
            await vhost.vanish()
            return life

        asyncio.run(asyncio.run(lives()).check_and_go_on(world))


def test_the_tag_of_a_message_that_was_taken_back_is_not_given_again(tmp_path: Path) -> None:
    """Otherwise, the consumer that has got it would acknowledge somebody else's message."""
    world, disk = worlds(tmp_path)("full"), FailingDisk()

    async def lives() -> None:
        vhost = await world.open(disk=disk)
        queue = await vhost.queue("a")
        disk.fails = lambda name: errno.ENOSPC if name == "write" else 0
        put = await queue.put([b"lost", b"lost too"])
        [seen, _] = await queue.fetch(2)
        with pytest.raises(NoSpace):
            await put.confirmed
        disk.fails = lambda name: 0

        await queue.publish([b"kept"])
        [found] = await queue.fetch(2)
        assert (found.body, found.redelivered) == (b"kept", False)
        assert await queue.ack([seen.tag]) == []
        assert await queue.depth() == 1
        vhost.check()
        await vhost.close()
        assert await bodies_of(await (await world.open()).queue("a")) == [b"kept"]

    asyncio.run(lives())


def test_acknowledgements_wait_quietly_for_room_on_a_full_disk(tmp_path: Path) -> None:
    world, disk = worlds(tmp_path)("full"), FailingDisk()

    async def lives() -> None:
        vhost = await world.open(disk=disk)
        queue = await vhost.queue("a")
        await queue.publish([b"%d" % number for number in range(4)])
        disk.fails = lambda name: errno.ENOSPC if name == "write" else 0
        before, slept = disk.calls.count("write"), list[float]()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0)

        vhost.store.env = replace(vhost.store.env, sleep=sleep)
        await queue.ack([each.tag for each in await queue.fetch(3)])
        await asyncio.sleep(0.1)
        assert 1 < disk.calls.count("write") - before <= len(slept)
        disk.fails = lambda name: 0
        with suppress(NoSpace):  # of the write that is under way
            await queue.flush()
        await queue.flush()
        await vhost.vanish()
        assert await bodies_of(await (await world.open()).queue("a")) == [b"3"]

    asyncio.run(lives())
