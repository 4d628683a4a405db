"""Tests of readers in the middle of data that is trimmed, deleted or damaged meanwhile.

The sweep is played by hand here: at once, without any grace, so that every reader is late.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from campaign import few
from offload_conformance import ledger_of

from offload import (
    AtEdge,
    AtTime,
    Corrupt,
    ObjectStoreOffloader,
    StreamDeleted,
    StreamReader,
    StreamWriter,
    TierOptions,
)
from offload.commit.groups import entry_key
from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.source import Snapshot
from offload.copy.history import check_same_history
from offload.formats.anchor import TierAnchor
from offload.formats.group import Group
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import Absent
from offload.model.entry import joined_entries
from offload.model.manifest import Manifest
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.retention import Retention, delete_stream, trim

STREAM = "orders"
KEYS = StreamKeys(STREAM)


class Tier:
    """A tier with one stream of so many fragments, each with one message."""

    def __init__(self, factor: int) -> None:
        self.objects: dict[str, bytes] = {TIER_ANCHOR: TierAnchor(branching_factor=factor).encode()}
        self.events: list[Event] = []
        self.others = self.opened()
        """The offloader of everyone except the reader."""

    def opened(self, store: FaultyStore | None = None) -> ObjectStoreOffloader:
        """Return another offloader, with an empty cache of groups."""
        options = TierOptions(fragment_size_bytes=1)
        return ObjectStoreOffloader(store or MemoryStore(objects=self.objects), options=options)

    async def append(self, records: int, *, first_offset: int = 0) -> None:
        writer = await StreamWriter.claim(self.others, STREAM, first_offset=first_offset)
        await writer.offload([ledger_of(records, first_offset=first_offset)])

    async def reader(self, store: FaultyStore | None = None) -> StreamReader:
        """Return a reader that sends one request at a time and has read nothing."""
        return await StreamReader.open(self.opened(store), STREAM, in_flight=1, emit=self.events.append)

    async def trim(self, before: int, *, sweep: bool = True) -> None:
        await trim(self.others, STREAM, Retention(before_offset=before))
        if sweep:
            await self.sweep()

    async def delete(self, *, sweep: bool = True) -> None:
        await delete_stream(self.others, STREAM)
        if sweep:
            await self.sweep()

    async def sweep(self) -> None:
        """Delete every fragment and group that the newest root does not name."""
        root = self.objects[max(key for key in self.objects if key.startswith(KEYS.roots))]
        named = self.named(decode_root(root, where="the newest root"))
        for key in [*self.objects]:
            if (KEYS.parse_fragment(key) or KEYS.parse_group(key)) and key not in named:
                del self.objects[key]

    def named(self, manifest: Manifest) -> set[str]:
        """Return the keys of all live fragments, and of the groups above them."""
        named: set[str] = set()
        levels = [manifest.entries]
        while levels:
            entries = levels.pop()
            for row in range(len(entries)):
                one = entries[row : row + 1]
                if one["first_offset"][0] + one["records"][0] <= manifest.first_offset:
                    continue
                key = entry_key(STREAM, one)
                named.add(key)
                if one["kind"][0]:
                    levels.append(Group.decode(self.objects[key], stream=STREAM, where=key).entries)
        return named

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Return the offsets that the reader reported as skipped, and assert that it reported
        nothing else.
        """
        assert all(isinstance(event, Skipped) and event.stream == STREAM for event in self.events)
        return [(e.from_offset, e.to_offset) for e in self.events if isinstance(e, Skipped)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await main()

    asyncio.run(whole())


async def offsets(batches: Any) -> list[int]:
    """Return the offsets of all delivered messages. The body of each message is its offset."""
    found = []
    async with aclosing(batches):
        async for batch in batches:
            assert [body.rstrip(b".") for body in batch.bodies] == [b"%d" % batch.offset]
            found.append(batch.offset)
    return found


FACTORS = pytest.mark.parametrize("factor", [2, 3, 1024])
"""Factors with groups of every kind, of some kinds, and without groups."""


@few("cuts of a trim in trees of each kind; make test has a quarter", 4)
@FACTORS
@pytest.mark.parametrize("before", [1, 2, 5, 16, 19])
def test_a_late_reader_continues_at_the_new_beginning(factor: int, before: int) -> None:
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        await tier.trim(before)

        assert await offsets(reader.messages(0)) == [*range(before, 20)]
        assert tier.skipped == [(0, before)]
        assert reader.manifest.first_offset == before

    run(main)


@FACTORS
@pytest.mark.parametrize("position", [1, 4, 7])
def test_an_overtaken_reader_continues_at_the_new_beginning(factor: int, position: int) -> None:
    """Messages that it has read count as read. One or two fragments already requested may still arrive."""
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        batches = reader.messages(0)
        read = [(await anext(batches)).offset for _ in range(position)]
        await tier.trim(15)

        read += await offsets(batches)
        [(stood, goes_on)] = tier.skipped
        assert goes_on == 15
        assert position <= stood <= position + 2
        assert read == [*range(stood), *range(15, 20)]

    run(main)


@FACTORS
def test_a_reader_ahead_of_the_trim_notices_nothing(factor: int) -> None:
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        await tier.trim(15)

        assert await offsets(reader.messages(16)) == [16, 17, 18, 19]
        assert tier.skipped == []

    run(main)


@FACTORS
def test_a_trimmed_fragment_can_be_read_until_it_is_swept(factor: int) -> None:
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        await tier.trim(15, sweep=False)

        assert await offsets(reader.messages(0)) == [*range(20)]
        assert tier.skipped == []

    run(main)


@few("cuts of a trim in trees of each kind; make test has a quarter", 4)
@FACTORS
@pytest.mark.parametrize("before", [1, 2, 3, 7, 12, 19])
def test_a_reader_after_the_trim_begins_at_the_first_live_fragment(factor: int, before: int) -> None:
    """It does not begin at the first fragment of the group."""
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        await tier.trim(before)
        reader = await tier.reader()

        assert await reader.offset_of(AtEdge.FIRST) == before
        assert await offsets(reader.messages(0)) == [*range(before, 20)]
        assert tier.skipped == []

    run(main)


@FACTORS
def test_a_reader_of_an_emptied_stream_reports_the_skipped_offsets(factor: int) -> None:
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        await tier.trim(20)

        assert await offsets(reader.messages(3)) == []
        assert tier.skipped == [(3, 20)]

    run(main)


@FACTORS
def test_a_time_is_looked_up_in_the_remaining_data(factor: int) -> None:
    tier = Tier(factor)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        await tier.trim(15)

        assert await reader.offset_of(AtTime(0)) == 15
        assert await reader.offset_of(AtEdge.LAST) == 19
        assert tier.skipped == []  # no reader was in the trimmed range

    run(main)


@few("seeds of trims beside a reader; make test has four of fifteen", 4)
@FACTORS
@pytest.mark.parametrize("seed", range(5))
def test_each_offset_is_read_or_reported_as_skipped(factor: int, seed: int) -> None:
    """Trims, sweeps and appends happen at any moment of a reader that reads ahead."""
    tier, chance = Tier(factor), random.Random(seed)

    async def main() -> None:
        await tier.append(30)
        reader = await StreamReader.open(tier.opened(), STREAM, emit=tier.events.append)
        read: list[int] = []
        async with aclosing(reader.messages(0)) as batches:
            async for batch in batches:
                read.append(batch.offset)
                if chance.random() < 0.3:
                    newest = await tier.others.load_manifest(STREAM)
                    before = chance.randrange(newest.first_offset, newest.next_offset + 1)
                    await tier.trim(min(before, newest.first_offset + 8), sweep=chance.random() < 0.7)
                if chance.random() < 0.1:
                    end = (await tier.others.load_manifest(STREAM)).next_offset
                    await tier.append(2, first_offset=end)
        left_out = [offset for begin, end in tier.skipped for offset in range(begin, end)]
        assert read == sorted(set(read))
        assert sorted(read + left_out) == [*range(len(read) + len(left_out))]
        assert len(read) + len(left_out) >= 30

    run(main)


class TestDeleted:
    @FACTORS
    @pytest.mark.parametrize("reborn", [False, True])
    def test_a_reader_of_a_deleted_stream_gets_stream_deleted(self, factor: int, reborn: bool) -> None:
        """It gets no data of the new stream of that name, although that has the same offsets."""
        tier = Tier(factor)

        async def main() -> None:
            await tier.append(20)
            reader = await tier.reader()
            batches = reader.messages(0)
            await anext(batches)
            await tier.delete()
            if reborn:
                await tier.append(20)

            with pytest.raises(StreamDeleted, match="was deleted while it was read"):
                await offsets(batches)
            assert tier.events == []

        run(main)

    @FACTORS
    def test_a_lookup_by_time_in_a_deleted_stream_raises_stream_deleted(self, factor: int) -> None:
        tier = Tier(factor)

        async def main() -> None:
            await tier.append(20)
            reader = await tier.reader()
            await tier.delete()

            with pytest.raises(StreamDeleted):
                await reader.offset_of(AtTime(0))

        run(main)


class TestDamage:
    """Tests of damage: every object that the newest manifest names must exist, whatever was
    trimmed elsewhere.
    """

    @few("objects that are missing in trees of each kind; make test has a fifth", 5)
    @FACTORS
    @pytest.mark.parametrize("trimmed", [0, 3])
    @pytest.mark.parametrize("ending", ["fragment", "group", "kgroup", "mgroup"])
    def test_a_missing_object_that_is_still_named_is_damage(
        self, factor: int, trimmed: int, ending: str
    ) -> None:
        tier = Tier(factor)

        async def main() -> None:
            await tier.append(20)
            reader = await tier.reader()
            if trimmed:
                await tier.trim(trimmed)
            gone = [key for key in self.named(tier) if key.endswith(f".{ending}")]
            if not gone:
                assert ending != "fragment"
                return
            key = max(gone)
            del tier.objects[key]

            with pytest.raises(Corrupt, match="expected present, found absent") as caught:
                await offsets(reader.messages(0))
            assert isinstance(caught.value, Absent)
            assert (caught.value.where, caught.value.stream) == (key, STREAM)
            *skips, damage = tier.events
            assert damage == DamageFound(damage=caught.value)
            assert skips in ([], [Skipped(stream=STREAM, from_offset=0, to_offset=3)])

        run(main)

    def named(self, tier: Tier) -> set[str]:
        root = tier.objects[max(key for key in tier.objects if key.startswith(KEYS.roots))]
        return tier.named(decode_root(root, where="the newest root"))

    def test_a_missing_group_that_is_partly_live_is_damage(self) -> None:
        """It begins below the first offset, but is still named."""
        tier = Tier(2)

        async def main() -> None:
            await tier.append(20)
            reader = await tier.reader()
            await tier.trim(3)
            key = min(key for key in self.named(tier) if key.endswith(".group"))
            parsed = KEYS.parse_group(key)
            assert parsed is not None
            assert parsed[0] == 2
            del tier.objects[key]

            with pytest.raises(Absent):
                await offsets(reader.messages(0))

        run(main)

    def test_the_data_before_a_missing_object_is_delivered(self) -> None:
        tier = Tier(1024)

        async def main() -> None:
            await tier.append(20)
            reader = await tier.reader()
            del tier.objects[sorted(self.named(tier))[7]]
            batches = reader.messages(0)
            assert [(await anext(batches)).offset for _ in range(7)] == [*range(7)]
            with pytest.raises(Absent):
                await anext(batches)

        run(main)


def test_the_log_names_skipped_offsets_if_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    tier = Tier(2)

    async def main() -> None:
        await tier.append(20)
        reader = await StreamReader.open(tier.opened(), STREAM)
        await tier.trim(15)
        await offsets(reader.messages(0))

    with caplog.at_level(logging.WARNING):
        run(main)

    [record] = caplog.records
    assert record.getMessage() == "stream 'orders': offsets [0, 15) were trimmed before they were read"


@pytest.mark.parametrize("operation", ["list", "get"])
def test_a_cancelled_wait_during_a_reload_loses_nothing(operation: str) -> None:
    tier = Tier(2)

    async def main() -> None:
        await tier.append(20)
        store, gate = FaultyStore(MemoryStore(objects=tier.objects)), asyncio.Event()
        reader = await tier.reader(store)
        await tier.trim(15)
        waiting = asyncio.Event()

        async def before(asked: str, key: str) -> None:
            if asked == operation and "/root." in key:
                waiting.set()
                await gate.wait()

        store.before = before
        windows = reader.windows(0)
        wait = asyncio.ensure_future(anext(windows))
        await waiting.wait()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert tier.skipped == []
        gate.set()

        read = [int(row["offset"]) async for window in windows for row in window.rows]
        await windows.aclose()
        assert read == [*range(15, 20)]
        assert tier.skipped == [(0, 15)]

    run(main)


def test_a_group_that_is_swept_during_a_reload_is_not_damage() -> None:
    """Two trims and two sweeps: the second comes while the reader asks whether the first is to blame."""
    tier = Tier(2)

    async def main() -> None:
        await tier.append(20)
        store = FaultyStore(MemoryStore(objects=tier.objects))
        offloader = tier.opened(store)
        offloader._groups.size_bytes_max = 1  # so that it fetches each group again
        reader = await StreamReader.open(offloader, STREAM, in_flight=1, emit=tier.events.append)
        await tier.trim(1)
        asked: list[str] = []

        async def before(operation: str, key: str) -> None:
            if operation == "get" and (KEYS.parse_group(key) or KEYS.parse_root(key)):
                asked.append(key)
                if [KEYS.parse_root(key) is None for key in asked[-2:]] == [False, True]:
                    await tier.trim(18)

        store.before = before
        assert await offsets(reader.messages(0)) == [18, 19]
        assert tier.skipped == [(0, 18)]

    run(main)


def test_a_reader_keeps_its_position_if_groups_are_rebuilt() -> None:
    """A rebuild puts the same fragments under other groups, or under none. No data is skipped."""
    tier = Tier(2)

    async def main() -> None:
        await tier.append(20)
        reader = await tier.reader()
        batches = reader.messages(0)
        read = [(await anext(batches)).offset for _ in range(3)]
        newest = await tier.others.load_manifest(STREAM)
        async with aclosing(tier.others.tree(newest).walk()) as runs:
            flat = joined_entries(*[run async for run in runs])
        anew = replace(newest, version=newest.version + 1, entries=flat)
        tier.objects[KEYS.root(anew.version)] = encode_root(anew)
        await tier.sweep()
        assert not any(KEYS.parse_group(key) for key in tier.objects)

        assert read + await offsets(batches) == [*range(20)]
        assert tier.skipped == []
        assert reader.manifest.version == anew.version

    run(main)


def test_an_absent_object_is_a_corrupt_error() -> None:
    error = Absent("orders/data/x", "orders")

    assert isinstance(error, Corrupt)
    assert str(error) == "orders/data/x at byte 0: object: expected present, found absent"


def test_a_sync_compares_histories_even_if_its_view_is_trimmed_and_swept() -> None:
    """For a sync, too, an absent object is damage if nothing was trimmed."""
    tier = Tier(2)

    async def main() -> None:
        await tier.append(20)
        seen = await tier.others.load_manifest(STREAM)
        raw = ledger_of(20)
        source = Snapshot(ledgers=[raw], first_offset=0, next_offset=20, epoch=1)
        await tier.trim(20)

        await check_same_history(tier.opened(), seen, source)

        await tier.append(4, first_offset=20)
        more = Snapshot(ledgers=[ledger_of(24)], first_offset=0, next_offset=24, epoch=1)
        newest = await tier.others.load_manifest(STREAM)
        for key in [key for key in tier.objects if KEYS.parse_fragment(key)]:
            del tier.objects[key]
        with pytest.raises(Absent):
            await check_same_history(tier.opened(), newest, more)

    run(main)
