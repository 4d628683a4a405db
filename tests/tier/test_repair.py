"""Tests of repairs: damaged and lost fragments come back from a source or a copy, or nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from growing_source import GrowingSource, GrowingStream
from key_world import World as KeyWorld
from kit.world import TierWorld

from offload import ObjectStoreOffloader, StreamWriter, TierOptions, build_chunk
from offload.copy.sync import sync
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.ground.errors import Corrupt, Denied, Diverged, NotOffloaded, OffloadError
from offload.log.memory_handle import MemoryHandle
from offload.model.part import StreamPart
from offload.native.key_ring import KeyRing
from offload.store.memory import MemoryStore
from offload.upkeep.copy.tier import copy
from offload.upkeep.repair import Compared, Elsewhere, RepairedFragment, of_source, of_tier, repair_stream
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import verify

LARGE = 1 << 30


@dataclass
class World(TierWorld):
    """A source of 4 ledgers, each of 3 chunks of 10 records, and a tier with a fragment for each chunk."""

    factor: int = 1024
    ring: Callable[[], KeyRing | None] = lambda: None
    source: GrowingStream = field(default_factory=GrowingStream)

    def __post_init__(self) -> None:
        self.objects[TIER_ANCHOR] = TierAnchor(branching_factor=self.factor).encode()
        for number in range(4):
            if number:
                self.source.roll()
            self.source.append(3, timestamp_ms=1000 * (number + 1))

    @property
    def data(self) -> list[str]:
        """The keys of the fragments that the manifest may name, in order of offsets."""
        return sorted(key for key in self.objects if key.startswith("orders/data/"))

    def tier(self, fragment_size_bytes: int = LARGE) -> ObjectStoreOffloader:
        """Return the tier, as a process opens it."""
        options = TierOptions(fragment_size_bytes=fragment_size_bytes)
        return ObjectStoreOffloader(self.store, options=options, ring=self.ring())

    async def synced(self) -> World:
        """Copy the source to the tier."""
        [report] = [each async for each in sync(GrowingSource([self.source]), self.tier(1))]
        assert report.error is None
        assert len(self.data) == 12
        return self

    async def repaired(
        self, records: Elsewhere | None = None, *, dry_run: bool = False
    ) -> list[RepairedFragment]:
        """Repair the stream from the source."""
        records = records or of_source(GrowingSource([self.source]))
        return [each async for each in repair_stream(self.tier(), "orders", records, dry_run=dry_run)]

    async def damages(self) -> list[str]:
        """Return the objects that a verify of all bytes names."""
        return [damage.where for damage in (await verify(self.tier())).damages]

    async def bodies(self) -> list[bytes]:
        """Return all messages of the tier."""
        return [body for _, body in await self.records()]


def run(scenario: Callable[[World], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        await scenario(await World(**options).synced())  # type: ignore[arg-type]

    asyncio.run(main())


def errors_of(found: list[RepairedFragment]) -> list[type[OffloadError] | None]:
    return [None if each.error is None else type(each.error) for each in found]


@pytest.mark.parametrize("factor", [1024, 2], ids=["in the root", "in groups"])
def test_flipped_and_lost_fragments_come_back_and_the_tier_is_sound(factor: int) -> None:
    """Also the first and the newest one. The sweep deletes the damaged objects, and a repair deletes none."""

    async def scenario(world: World) -> None:
        before, keys = await world.bodies(), world.data
        for number in (0, 4, 11):
            world.flip(keys[number])
        for number in (5, 6):
            del world.objects[keys[number]]

        world.store.calls.clear()
        found = await world.repaired()

        assert errors_of(found) == [None] * 5
        assert {call.operation for call in world.store.calls} == {"get", "list", "put", "create"}
        compared = {each.key: each.compared for each in found}
        assert compared == {
            keys[0]: Compared.INDEX,
            keys[4]: Compared.INDEX,
            keys[5]: Compared.CHUNK_BEHIND,
            keys[6]: Compared.CHUNK_BEHIND,
            keys[11]: Compared.INDEX,
        }
        assert await world.damages() == []
        assert await world.bodies() == before
        manifest = await world.tier().load_manifest("orders")
        assert manifest.running == ()
        await sweep(world.tier(), grace_seconds=0)
        await sweep(world.tier(), grace_seconds=0)
        assert not set(world.data) & {keys[number] for number in (0, 4, 11)}
        assert await world.bodies() == before

    run(scenario, factor=factor)


def test_a_copy_on_another_tier_repairs_too() -> None:
    async def scenario(world: World) -> None:
        other = ObjectStoreOffloader(MemoryStore())
        assert [each.error async for each in copy(world.tier(), other)] == [None]
        before, keys = await world.bodies(), world.data
        world.flip(keys[3])
        del world.objects[keys[7]]

        assert errors_of(await world.repaired(of_tier(other))) == [None, None]
        assert await world.damages() == []
        assert await world.bodies() == before

    run(scenario)


def test_a_damaged_index_is_repaired_by_the_chunks_beside_it() -> None:
    async def scenario(world: World) -> None:
        key = world.data[5]
        world.flip(key, len(world.objects[key]) - 3)

        [found] = await world.repaired()

        assert (found.error, found.compared) == (None, Compared.CHUNK_BEHIND)
        assert await world.damages() == []

    run(scenario)


def test_a_dry_run_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        world.flip(world.data[3])
        before = dict(world.objects)

        [found] = await world.repaired(dry_run=True)

        assert (found.error, found.compared, found.copy) == (None, Compared.INDEX, None)
        assert world.objects == before

    run(scenario)


def test_a_sound_stream_stays_as_it_is() -> None:
    async def scenario(world: World) -> None:
        before = dict(world.objects)

        assert await world.repaired() == []
        assert world.objects == before

    run(scenario)


def other_source(*, change: str) -> GrowingStream:
    """Return a source that differs from that of `World` in one thing."""
    source = GrowingStream(epoch=2 if change == "epoch" else 1)
    for number in range(4):
        if number:
            source.roll()
        for part in range(3):
            is_it = (number, part) == (1, 1)
            time_ms = 1000 * (number + 1) + (is_it and change == "time")
            offset = source.next_offset
            bodies = [bytes([1]) * 1000] * 10
            if is_it and change == "body":
                bodies[4] = bytes([2]) * 1000
            if is_it and change == "size":
                bodies[4] = b"short"
            source.ledgers[-1].append(
                build_chunk(bodies, offset=offset, timestamp_ms=time_ms, epoch=source.epoch)
            )
            source.next_offset += 10
    if change == "cut":
        source.ledgers[1] = [build_chunk([bytes([1]) * 1000] * 30, offset=30, timestamp_ms=2000, epoch=1)]
    if change == "short":
        source.ledgers, source.next_offset = source.ledgers[:1], 30
    if change == "trimmed":
        source.ledgers, source.first_offset = source.ledgers[2:], 60
    if change == "damage":
        raw = bytearray(source.ledgers[1][1])
        raw[500] ^= 1
        source.ledgers[1][1] = bytes(raw)
    return source


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("body", Diverged),
        ("epoch", Diverged),
        ("time", Diverged),
        ("size", Diverged),
        ("cut", Diverged),
        ("short", NotOffloaded),
        ("trimmed", NotOffloaded),
        ("damage", Corrupt),
    ],
)
def test_records_that_are_not_those_of_the_manifest_change_nothing(
    change: str, error: type[OffloadError]
) -> None:
    async def scenario(world: World) -> None:
        world.flip(world.data[4])
        before = dict(world.objects)

        found = await world.repaired(of_source(GrowingSource([other_source(change=change)])))

        assert errors_of(found) == [error]
        assert world.objects == before

    run(scenario)


def test_the_newest_fragment_is_repaired_by_the_chunk_before_it_if_it_is_lost() -> None:
    async def scenario(world: World) -> None:
        del world.objects[world.data[11]]

        [found] = await world.repaired()

        assert (found.error, found.compared) == (None, Compared.CHUNK_BEFORE)
        assert await world.damages() == []
        world.source.append()
        [report] = [each async for each in sync(GrowingSource([world.source]), world.tier())]
        assert report.error is None, "a writer goes on behind it"
        assert len(await world.bodies()) == 130

    run(scenario)


@pytest.mark.parametrize("change", ["time", "size", "epoch"])
def test_other_records_are_refused_also_if_the_fragment_is_lost(change: str) -> None:
    """Records of the same offsets, times and sizes are refused by the chunk behind, which has the epoch."""

    async def scenario(world: World) -> None:
        del world.objects[world.data[4]]
        before = dict(world.objects)

        found = await world.repaired(of_source(GrowingSource([other_source(change=change)])))

        assert errors_of(found) == [Diverged]
        assert world.objects == before

    run(scenario)


class Killed(BaseException):
    """The process is gone."""


def test_a_crash_at_any_request_leaves_the_damage_or_the_repair() -> None:
    async def scenario(world: World) -> None:
        before, key = await world.bodies(), world.data[4]
        world.flip(key)
        damaged = dict(world.objects)
        outcomes = set[bool]()
        for nth in range(1, 1000):
            world.objects.clear()
            world.objects.update(damaged)
            ended = await killed_at(world, nth)
            outcomes.add(is_repaired := await world.damages() == [])
            assert is_repaired or await world.damages() == [key]
            assert [each.key for each in await world.repaired()] == ([] if is_repaired else [key])
            assert await world.bodies() == before
            if ended:
                break

        assert outcomes == {True, False}
        assert ended

    run(scenario)


async def killed_at(world: World, nth: int) -> bool:
    """Run a repair that is killed at its nth write, before or after it. Return True if it ended before."""
    seen = 0
    at, is_after = divmod(nth, 2)

    async def killed(operation: str, key: str) -> None:
        nonlocal seen
        if operation in ("get", "list"):
            return
        seen += 1
        if seen >= at + 1:  # a process that is gone sends nothing more
            raise Killed

    hook = "after" if is_after else "before"
    setattr(world.store, hook, killed)
    try:
        await world.repaired()
    except Killed:
        return False
    finally:
        world.store.before = world.store.after = nothing
    return True


async def nothing(operation: str, key: str) -> None:
    """Let a request pass."""


def test_a_part_is_repaired_by_its_own_records() -> None:
    async def scenario(world: World) -> None:
        tier = world.tier(1)
        await tier.begin_part(StreamPart("orders", 2), before=None)
        writer = await StreamWriter.claim(tier, "orders-part-2", is_new=True, first_offset=200)
        chunk = build_chunk([b"x"] * 10, offset=200, timestamp_ms=9, epoch=1)
        await writer.offload([MemoryHandle([chunk])])
        [key] = [key for key in world.objects if key.startswith("orders-part-2/data/")]
        world.flip(world.data[4])
        world.flip(key, 80)
        source = GrowingStream(first_offset=200, next_offset=210, ledgers=[[chunk]])

        damaged, elsewhere = dict(world.objects), of_source(GrowingSource([source]))

        found = await world.repaired(elsewhere)

        assert [(each.stream, each.error is None) for each in found] == [
            ("orders-part-2", True),
            ("orders", False),
        ]
        world.objects.clear()
        world.objects.update(damaged)
        alone = [each async for each in repair_stream(world.tier(), "orders-part-2", elsewhere)]
        assert [(each.stream, each.error) for each in alone] == [("orders-part-2", None)]

    run(scenario)


def test_an_encrypted_fragment_is_repaired_under_the_key_of_its_stream() -> None:
    keys = KeyWorld()

    async def scenario(world: World) -> None:
        before = await world.bodies()
        world.flip(world.data[4], 300)
        del world.objects[world.data[6]]
        damaged = dict(world.objects)
        ring, world.ring = world.ring, lambda: None
        assert errors_of(await world.repaired()) == [Denied, Denied]
        assert world.objects == damaged
        world.ring = ring

        assert errors_of(await world.repaired()) == [None, None]
        assert await world.damages() == []
        assert await world.bodies() == before
        view = await world.tier().view("orders")
        for offset in (40, 60):
            entry = await view.find(offset)
            assert entry is not None
            assert (entry.encrypted, entry.copied) == (1, 1)

    run(scenario, ring=keys.ring)


def test_damage_of_a_root_is_named_and_left_alone() -> None:
    async def scenario(world: World) -> None:
        oldest = min(key for key in world.objects if "/metadata/root." in key)
        world.flip(oldest, 40)

        [found] = await world.repaired()

        assert (found.key, found.first_offset, errors_of([found])) == (oldest, None, [NotOffloaded])

    run(scenario)
