"""Vhosts: what one failure ends, how often it is opened again, who has a vhost, and what a full log does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import CAMPAIGN
from offload_queue import BackingQueue, MessageProperties, RestartLimit, Vhosts
from offload_queue.ledger_index import index_path, load_index
from offload_queue.log_records import PackedOffsets, StoreState, decode_control, encode_control, message_of
from offload_queue.opening import INDEX_FOLDER
from offload_queue.restarts import GivenUp
from offload_queue.variable_queue import put_into, records_of
from queue_world import QueueWorld, Vhost, bodies_of

from offload import FolderLog
from offload.ground.errors import Conflict, Corrupt, Fenced, Misuse, NoSpace, OffloadError, TryAgain


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    found = QueueWorld(folder=tmp_path)
    asyncio.run(found.begin())
    return found


def vhosts_of(world: QueueWorld, folder: str = "node", **options: Any) -> Vhosts:
    return Vhosts(world.folder / folder, world.tier(), env=world.env(), **options)


def disk_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a task in the background."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


async def settled(vhost: Vhost) -> None:
    """Let the tier's side do what is due."""
    await vhost.store.flush()
    while await vhost.tier.work():
        pass
    await vhost.store.flush()


def test_a_failure_ends_its_vhost_alone_and_opens_it_again(world: QueueWorld) -> None:
    async def lives() -> None:
        async with vhosts_of(world) as vhosts:
            shop, other = await vhosts.open("shop"), await vhosts.open("other/..")
            queue, beside = await shop.declare("orders"), await other.declare("orders")
            await queue.publish([b"kept"])
            shop.store.fail(Corrupt("store", "x", expected=1, found=2))
            with pytest.raises(TryAgain, match="is being restarted"):
                await queue.fetch()
            await beside.publish([b"goes on"])
            await until(lambda: shop.is_up)
            again = await shop.declare("orders")
            assert [(each.body, each.redelivered) for each in await again.fetch(5)] == [(b"kept", True)]

    asyncio.run(lives())


@pytest.mark.parametrize("then", list(GivenUp))
def test_a_vhost_is_opened_again_three_times_in_five_minutes_and_not_a_fourth(
    world: QueueWorld, then: GivenUp
) -> None:
    async def lives() -> None:
        async with vhosts_of(world, limit=RestartLimit(then=then)) as vhosts:
            shop = await vhosts.open("shop")
            for seconds in (0, 100, 100, 99):
                world.clock.now += seconds
                shop.store.fail(OffloadError("again"))
                await asyncio.sleep(0)
                if seconds != 99:
                    await until(lambda: shop.is_up)
            await until(lambda: not shop.is_up)
            await asyncio.sleep(0.05)
            assert not shop.is_up
            with pytest.raises(OffloadError, match="'shop' is down after: again"):
                await shop.declare("orders")
            assert (await vhosts.open("shop")).is_up  # a person has looked

    if then is GivenUp.STOP:
        with pytest.raises(OffloadError, match="again"):
            asyncio.run(lives())
    else:
        asyncio.run(lives())


def test_two_processes_cannot_have_one_folder(world: QueueWorld) -> None:
    async def lives() -> None:
        async with vhosts_of(world) as one, vhosts_of(world) as other:
            await one.open("shop")
            with pytest.raises(Conflict):
                await other.open("shop")

    asyncio.run(lives())


def test_another_machine_has_all_that_was_confirmed_on_the_tier(world: QueueWorld) -> None:
    """The old owner is fenced, with one line that counts what stays in its folder."""

    async def lives() -> None:
        async with vhosts_of(world, "a", confirm="tier") as old:
            shop = await old.open("shop")
            queue = await shop.declare("orders", priority_max=2)
            await queue.publish(
                [b"low", b"high"], properties=[MessageProperties(), MessageProperties(priority=2)]
            )
            async with vhosts_of(world, "b", confirm="tier") as new:
                taken = await (await new.open("shop")).declare("orders", priority_max=2)
                found = await taken.fetch(5)
                assert [(each.body, each.redelivered) for each in found] == [(b"high", True), (b"low", True)]
                local = await queue.put([b"late"])
                with pytest.raises(OffloadError):
                    await local.confirmed
                await taken.publish([b"more"])
            await until(lambda: not shop.is_up)
            assert isinstance(shop.error, Fenced)
        async with vhosts_of(world, "a", confirm="tier") as old:
            with pytest.raises(
                Fenced, match=r"'queues/shop' was taken by .*; 1 messages that were confirmed"
            ):
                await old.open("shop")

    asyncio.run(lives())


def test_an_empty_folder_waits_for_the_tier(world: QueueWorld) -> None:
    """Only the tier knows whether the vhost exists. A folder that has it opens without the tier."""

    async def lives() -> None:
        world.away(True)
        async with vhosts_of(world) as vhosts:
            with pytest.raises(TryAgain):
                await vhosts.open("shop")
            world.away(False)
            await (await (await vhosts.open("shop")).declare("orders")).publish([b"x"])
        world.away(True)
        async with vhosts_of(world) as vhosts:
            assert await (await (await vhosts.open("shop")).declare("orders")).length() == 1
        world.away(False)

    asyncio.run(lives())


@pytest.mark.parametrize("on_full", ["block", "refuse"])
def test_a_queue_goes_to_its_bound_while_the_tier_is_away(world: QueueWorld, on_full: Any) -> None:
    async def lives() -> None:
        vhost = await world.open(bound=100_000, on_full=on_full)
        queue = await vhost.queue("a")
        world.away(True)
        sent = 0
        error = NoSpace if on_full == "refuse" else TimeoutError
        with suppress(error):
            while sent < 1000:
                await asyncio.wait_for(queue.publish([b"%05d" % sent + bytes(1000)]), 0.3)
                sent += 1
        assert 80 <= sent <= 100
        assert disk_size(world.folder) < 110_000
        assert len(await queue.fetch(10)) == 10
        with suppress(OffloadError):
            await settled(vhost)
        world.away(False)
        await settled(vhost)
        await queue.publish([b"room"])
        assert await queue.length() == sent - 10 + 1
        assert vhost.store.log_size_bytes <= 75_000
        await vhost.close()

    asyncio.run(lives())


def test_an_old_owner_trims_nothing_that_the_new_one_has(world: QueueWorld) -> None:
    """What was acknowledged at the old owner since its last move is live for the new one."""

    async def lives() -> None:
        old = await world.open()
        queue = await old.queue("a")
        for number in range(8):
            await queue.publish([b"%d" % number * 2000])
            await old.page()
        new = await world.taken_over()
        await queue.ack([each.tag for each in await queue.fetch(7)])
        with pytest.raises(Fenced):
            await old.tier.work()  # a trim
        await old.vanish()
        assert len(await (await new.queue("a")).fetch(8)) == 8
        await new.vanish()

    asyncio.run(lives())


def test_a_fetch_that_the_tier_ends_half_way_takes_nothing(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open()
        queue = await vhost.queue("a")
        await queue.publish([b"%d" % number * 900 for number in range(8)])
        queue.set_ram_target(0)
        await vhost.page()  # in two moves, which are two runs
        assert len(queue.stored.places.runs) > 1
        first = await queue.fetch(1)
        await queue.requeue([each.tag for each in first])
        world.away(True)
        for call in (queue.fetch, queue.drop):
            with pytest.raises(TryAgain):
                await call(8, ack_required=False)
        assert await queue.length() == 8
        world.away(False)
        assert len(await queue.fetch(8)) == 8
        await vhost.vanish()

    asyncio.run(lives())


def test_one_body_of_a_thousand_queues_is_stored_once_and_freed_by_the_last_ack(world: QueueWorld) -> None:
    """In the log, in memory, and on the tier."""

    async def lives() -> None:
        async with vhosts_of(world, log_size_bytes_max=2**20) as vhosts:
            shop = await vhosts.open("shop")
            queues = [await shop.declare(f"q{number}") for number in range(1000)]
            before = shop.store.log.ledgers[-1].size_bytes
            await (await shop.publish(queues, [os.urandom(100_000)])).confirmed
            assert shop.store.log.ledgers[-1].size_bytes - before < 110_000
            assert shop.store.counts.live_count() == 1
            for queue in queues[:-1]:
                (message,) = await queue.fetch()
                await queue.ack([message.tag])
            assert shop.store.counts.live_count() == 1
            (message,) = await queues[-1].fetch()
            await queues[-1].ack([message.tag])
            assert shop.store.counts.live_count() == 0

    async def on_tier() -> None:
        vhost = await world.open()
        queues = [await vhost.queue(f"q{number}") for number in range(100)]
        body = os.urandom(100_000)
        shared, small = [MessageProperties()], [MessageProperties(headers=b"h")]
        numbers = [queue.stored.number for queue in queues]
        for each, properties in ((body, shared), (b"small", small)):
            await put_into(
                vhost.store, queues, records_of([], [each], properties, numbers), tier=None
            ).confirmed
        before = sum(len(raw) for raw in world.objects.values())
        await vhost.page()
        assert sum(len(raw) for raw in world.objects.values()) - before < 130_000
        for queue in queues:
            queue.set_ram_target(0)
            found = await queue.fetch(2)
            assert [(each.body, each.properties.headers) for each in found] == [(body, b""), (b"small", b"h")]
            await queue.ack([each.tag for each in found])
        await settled(vhost)
        assert sum(run.count for each in queues for run in each.stored.places.runs) == 0
        await vhost.close()

    asyncio.run(lives())
    asyncio.run(on_tier())


def test_a_message_that_is_acknowledged_before_its_batch_is_never_written(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open()
        queue = await vhost.queue("a")
        before = vhost.store.log.ledgers[-1].size_bytes
        put = await queue.put([b"fly" * 10_000, b"stay"])
        (found,) = await queue.fetch()
        assert await queue.ack([found.tag]) == [found.tag]
        await put.confirmed
        assert vhost.store.log.ledgers[-1].size_bytes - before < 1000
        await world.killed(vhost)
        assert await bodies_of(await (await world.open()).queue("a")) == [b"stay"]

    asyncio.run(lives())


def test_a_slow_consumer_beside_many_messages_pins_no_disk(world: QueueWorld) -> None:
    """One message in a thousand stays. The log keeps its bound, and the tier three times what lives."""
    count, bound = (1_000_000, 16 * 2**20) if CAMPAIGN else (100_000, 2**20)

    async def lives() -> None:
        vhost = await world.open(bound=bound)
        fast, slow = await vhost.queue("fast"), await vhost.queue("slow")
        vhost.tier._move_size_bytes = 2**20
        highest, body = 0, bytes(100)
        for at in range(0, count, 1000):
            await fast.publish([b"%08d" % number + body for number in range(at, at + 1000)])
            await slow.publish([b"%08d" % at + body])
            tags = [each.tag for each in await fast.fetch(1000)]
            assert len(await fast.ack(tags)) == 1000
            if vhost.store.log_size_bytes > bound * 3 // 4:
                await settled(vhost)
                highest = max(highest, disk_size(world.folder))
        assert 0 < highest <= bound + 64 * 2**20 // (1 if CAMPAIGN else 64)
        stored = sum(len(raw) for key, raw in world.objects.items() if "/data/" in key)
        batches = sum(each.size_bytes for each in vhost.store.batches)
        live = sum(run.live_size_bytes for run in slow.stored.places.runs)
        assert live <= batches <= 3 * live
        assert stored <= 6 * live + 2**16  # what was trimmed is there until a sweep
        assert [body[:8] for body in await bodies_of(slow)] == [b"%08d" % at for at in range(0, count, 1000)]
        assert await fast.depth() == 0
        await vhost.close()

    asyncio.run(lives())


def test_a_start_reads_damaged_and_absent_index_files_from_their_ledgers(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open(bound=16 * 400)
        queue = await vhost.queue("a")
        for number in range(12):
            await queue.publish([b"%03d" % number + bytes(90)] * 3)
            vhost.store.log_size_bytes_max = 2**20
        await vhost.store.flush()  # behind the index file of the last batch
        folder = world.folder / "0" / INDEX_FOLDER
        files = sorted(folder.glob("*.queues"))
        ledgers = vhost.store.log.ledgers[:-1]
        assert [index_path(folder, each.ledger_id) for each in ledgers] == files
        await vhost.vanish()
        files[0].unlink()
        files[1].write_bytes(files[1].read_bytes()[:-1])
        raw = bytearray(files[2].read_bytes())
        raw[30] ^= 1
        files[2].write_bytes(raw)
        for each in ledgers[:3]:
            assert load_index(folder, each.first_offset, each.next_offset) is None
        vhost = await world.open()
        assert len(await bodies_of(await vhost.queue("a"))) == 36
        vhost.check()
        await vhost.close()

    asyncio.run(lives())


def test_a_clean_stop_redelivers_only_what_was_fetched(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open()
        queue = await vhost.queue("a")
        await queue.publish([b"%d" % number for number in range(6)])
        await vhost.page()
        await queue.fetch(2)
        await vhost.close()
        found = await (await (await world.open()).queue("a")).fetch(9)
        assert [each.redelivered for each in found] == [True, True, False, False, False, False]

    asyncio.run(lives())


def test_deleted_queues_leave_nothing_and_their_names_begin_again(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open()
        queue = await vhost.queue("a")
        await queue.publish([b"deep", b"deeper"])
        await vhost.page()
        await queue.publish([b"near"])
        await queue.delete()
        await queue.delete()
        with pytest.raises(Misuse):
            await queue.length()
        vhost.queues.clear()
        assert await (await vhost.queue("a")).depth() == 0
        await world.killed(vhost)
        vhost = await world.open()
        assert await (await vhost.queue("a")).depth() == 0
        assert vhost.store.counts.live_count() == 0
        await vhost.close()

    asyncio.run(lives())


def test_records_that_are_none_are_refused() -> None:
    """Bits of a control, lengths beyond the record, and offsets that do not ascend."""
    state = encode_control(StoreState("i", 1, 2, False, [], []))
    for position in range(len(state)):
        for bit in range(8):
            raw = bytearray(state)
            raw[position] ^= 1 << bit
            with suppress(Corrupt):
                decode_control(bytes(raw), where="test", offset=0)
    for record in (
        b"",
        b"\1",
        b"\1\0\0\0\0\1" + bytes(12),
        b"\1\0" + b"\xff" * 8 + bytes(8),
        b"\2" + bytes(40),
    ):
        with pytest.raises(Corrupt):
            message_of(record, where="test", offset=0)
    offsets = np.array([3, 4, 300, 70_000])
    packed = PackedOffsets.of(offsets)
    assert packed.unpack().tolist() == offsets.tolist()
    with pytest.raises(ValueError, match="ascend"):
        PackedOffsets(5, 1, b"\0").unpack()
    with pytest.raises(ValueError, match="begin"):
        PackedOffsets(5, 3, b"").unpack()


def test_a_fetch_that_fails_leaves_the_queue_as_it_was(world: QueueWorld) -> None:
    async def lives() -> None:
        vhost = await world.open()
        queue: BackingQueue = await vhost.queue("a")
        await queue.publish([b"%d" % number + bytes(100) for number in range(50)])
        queue.set_ram_target(0)
        await vhost.page()
        world.away(True)
        for _ in range(2):
            with pytest.raises(TryAgain):
                await queue.fetch(5)
        world.away(False)
        assert [each.body[:1] for each in await queue.fetch(3)] == [b"0", b"1", b"2"]
        assert (await queue.length(), await queue.depth()) == (47, 50)
        vhost.check()
        await vhost.close()

    asyncio.run(lives())


def test_a_start_deletes_the_ledgers_that_a_crash_left(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended between its checkpoint and the deletion. Otherwise a full log would stay full."""

    async def never(log: FolderLog, ledger_id: int) -> None:
        raise TryAgain(f"the process ends before the deletion of {ledger_id}")

    async def lives() -> None:
        vhost = await world.open()
        queue = await vhost.queue("a")
        await queue.publish([bytes(1000)] * 10)
        with monkeypatch.context() as patched:
            patched.setattr(FolderLog, "delete", never)
            with suppress(TryAgain):
                await vhost.page()
            await world.killed(vhost)
        vhost = await world.open()
        await until(lambda: vhost.store.log_size_bytes < 5000)
        assert len(await bodies_of(await vhost.queue("a"))) == 10
        await vhost.close()

    asyncio.run(lives())


@pytest.mark.parametrize("ends", ["fails", "closes"])
def test_a_publisher_that_waits_for_room_leaves_when_the_store_ends(world: QueueWorld, ends: str) -> None:
    async def lives() -> None:
        vhost = await world.open(bound=20_000)
        queue = await vhost.queue("a")
        await queue.publish([bytes(25_000)])
        waiting = asyncio.create_task(queue.publish([b"x"]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        if ends == "fails":
            vhost.store.fail(Fenced("another machine has it"))
        else:
            await vhost.store.aclose()
        with pytest.raises(Fenced if ends == "fails" else Misuse):
            await asyncio.wait_for(waiting, 5)
        await vhost.vanish()

    asyncio.run(lives())


def test_a_collection_ends_and_keeps_the_tier_small(world: QueueWorld) -> None:
    """Also if what lives is much larger, or much smaller, than what was acknowledged beside it."""

    async def lives() -> None:
        vhost = await world.open()
        queue, other = await vhost.queue("a"), await vhost.queue("b")
        for keeps_large in (True, False, True):
            for number in range(40):
                is_large = number % 4 == 0
                for each in (queue, other):
                    await each.publish([bytes(5000 if is_large else 10)])
            await vhost.page()
            for each in (queue, other):
                found = await each.fetch(1000)
                tags = [one.tag for one in found if (len(one.body) > 1000) != keeps_large]
                await each.ack(tags)
                await each.requeue([one.tag for one in found])
            await asyncio.wait_for(settled(vhost), 20)
            total, live = vhost.tier._sizes()
            assert total <= 3 * live
            vhost.check()
        await vhost.close()

    asyncio.run(lives())


def test_a_process_that_only_delivered_before_it_was_killed_has_delivered(world: QueueWorld) -> None:
    """It wrote nothing, and the log had been closed. What it delivered is redelivered."""

    async def lives() -> None:
        vhost = await world.open()
        await (await vhost.queue("a")).publish([b"x"])
        await vhost.close()
        vhost = await world.open()
        (found,) = await (await vhost.queue("a")).fetch()
        assert not found.redelivered
        await world.killed(vhost)
        (again,) = await (await (await world.open()).queue("a")).fetch()
        assert again.redelivered

    asyncio.run(lives())
