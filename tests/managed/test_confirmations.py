"""What an owner makes sure of before a local copy goes, and what it notices about its tier."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Self

import pytest
from managed_world import STREAM, World, bodies, contribute, fill, run

from offload import ObjectStoreOffloader, TierOptions, build_chunk
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt, Diverged, Divergence
from offload.log.memory_log import MemoryLog
from offload.managed.ledger import ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


class ShortView:
    """A view whose entries end before its manifest does, as those of a backend with a mistake."""

    def __init__(self, view: Any, end: int) -> None:
        self.view, self.end = view, end

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """Yield the entries below the end."""
        async for run_ in self.view.walk(offset):
            yield run_[run_["first_offset"] < self.end]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)


class ShortTier:
    """A tier whose views are short."""

    def __init__(self, tier: Any, end: int) -> None:
        self.tier, self.end = tier, end

    def view_of(self, committed: CommittedStream) -> ShortView:
        """Return the short view."""
        return ShortView(self.tier.view_of(committed), self.end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)


class OddView:
    """A view whose fragments differ from those of the log in one column of one chunk."""

    def __init__(self, view: Any, column: str) -> None:
        self.view, self.column = view, column

    async def open(self, entry: Entry) -> OddHandle:
        """Open the odd fragment."""
        return OddHandle(await self.view.open(entry), self.column)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)


class OddHandle:
    """A fragment whose second chunk has another value in one column."""

    def __init__(self, handle: ReadHandle, column: str) -> None:
        self.handle, self.column, self.where = handle, column, handle.where

    async def table(self) -> ChunkTable:
        """Return the odd table."""
        table = (await self.handle.table()).copy()
        table[self.column][1] += 1
        return table

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.handle.aclose()


async def offloaded(world: World, *counts: int) -> tuple[ManagedLedger, list[bytes]]:
    """Return a ledger of which all but the last part is on the tier, and its records."""
    ledger = await world.open(LAG)
    records = await fill(ledger, *counts)
    await ledger.step()
    return ledger, records


@pytest.mark.parametrize("end", [0, 10])
def test_a_ledger_of_which_the_tier_has_no_entry_stays(end: int) -> None:
    """The manifest says that the tier ends behind it, and its entries end before."""

    async def scenario(world: World) -> None:
        ledger, records = await offloaded(world, 10, 10, 5)
        ledger._copy.tier = ShortTier(ledger.tier, end)  # type: ignore[assignment]
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert f"its entries end at offset {end}" in str(ledger.error)
        assert world.local() == ([0, 10, 20] if end == 0 else [10, 20])
        assert await bodies(ledger, end) == records[end:]

    run(scenario)


@pytest.mark.parametrize("column", ["offset", "records", "timestamp_ms", "size_bytes", "type"])
def test_a_ledger_whose_chunks_differ_on_the_tier_stays(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk is the same, so only the confirmation finds it."""

    async def scenario(world: World) -> None:
        ledger, _ = await offloaded(world, 10, 5)
        whole = ledger.tier.view_of
        monkeypatch.setattr(ledger.tier, "view_of", lambda committed: OddView(whole(committed), column))
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert ledger.error.kind is Divergence.FORK
        assert world.local() == [0, 10]

    run(scenario)


def test_a_ledger_goes_although_its_fragment_begins_before_it() -> None:
    """A log was restored with other ledgers than those that the tier has: the same chunks, cut elsewhere."""

    async def scenario(world: World) -> None:
        ledger, records = await offloaded(world, 10, 10, 5)
        await ledger.close()
        first = world.disk.ledgers[0]
        halves = [replace(first, chunks=first.chunks[:5]), replace(first, chunks=first.chunks[5:])]
        for half, (begin, end) in zip(halves, ((0, 5), (5, 10)), strict=True):
            size_bytes = sum(map(len, half.chunks))
            half.facts = replace(
                first.facts, ledger_id=begin, first_offset=begin, next_offset=end, size_bytes=size_bytes
            )
        world.disk.ledgers[:1] = halves
        ledger = await world.open(LAG)
        world.clock.now += 61

        await ledger.step()

        assert ledger.error is None
        assert world.local() == [20]
        assert await bodies(ledger) == records

    run(scenario)


def test_a_ledger_goes_although_the_tier_was_trimmed_within_it() -> None:
    async def scenario(world: World) -> None:
        ledger, records = await offloaded(world, 10, 10, 5)
        await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())
        world.clock.now += 61

        await ledger.step()

        assert ledger.error is None
        assert world.local() == [20]
        assert await bodies(ledger, 10) == records[10:]

    run(scenario)


@pytest.mark.parametrize(
    ("had", "is_known"),
    [
        ((0, 10), True),
        ((0, 25), True),
        ((1, 10), False),
        ((0, 9), False),
        ((10, 25), False),
        (None, False),
        (("another incarnation", 0, 25), False),
    ],
)
def test_a_copy_of_what_was_trimmed_goes_only_if_all_of_it_was_noted(
    had: tuple[Any, ...] | None, is_known: bool
) -> None:
    """The tier is trimmed up to 10. The log has [0, 10), and a note of what the tier had."""

    async def scenario(world: World) -> None:
        ledger, records = await offloaded(world, 10, 10, 5)
        await ledger.close()
        await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())
        note = json.loads(world.disk.notes["committed"])
        if had is None:
            note["had"] = None
        else:
            *other, note["had"]["first_offset"], note["had"]["next_offset"] = had
            note["had"]["incarnation"] = [note["had"]["incarnation"], *other][-1]
        world.disk.notes["committed"] = json.dumps(note).encode()
        ledger = await world.open(LAG)
        world.clock.now += 61

        await ledger.step()

        assert world.local() == ([20] if is_known else [0, 10, 20])
        assert (ledger.error is None) == is_known
        assert await bodies(ledger, 10 if is_known else 0) == records[10 if is_known else 0 :]

    run(scenario)


def test_what_a_job_appended_and_a_trim_took_since_the_comparison_confirms_no_copy() -> None:
    """An append beside the step has looked at the tier, so the newest manifest is not the compared one."""

    async def scenario(world: World) -> None:
        ledger, _ = await offloaded(world, 10, 10)
        await ledger.roll()
        await ledger._copy.agree()
        await contribute(world.tier(), build_chunk([b"other"] * 10, offset=10, timestamp_ms=1, epoch=1))
        await trim(world.tier(), STREAM, Retention(before_offset=20), env=world.env())
        await ledger._copy.look()

        with pytest.raises(Diverged, match=r"nothing shows that it had \[10, 20\)"):
            await ledger._copy.confirm(ledger.log.ledgers[1])

    run(scenario)


def test_a_tier_that_lost_its_newest_record_is_noticed_and_no_copy_goes() -> None:
    """The newest root is gone, with a ledger of one record. An older one is left."""

    async def scenario(world: World) -> None:
        ledger, _ = await offloaded(world, 10, 5)
        await ledger.roll()
        await ledger.step()
        await ledger.append([b"alone"])
        await ledger.roll()
        before = dict(objects_of(world))
        await ledger.step()
        await ledger.close()
        after = objects_of(world)
        for key in set(after) - set(before):
            del after[key]
        ledger = await world.open(LAG)
        await ledger.append([b"more"])
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert "it ends at offset 15 now, not at 16" in str(ledger.error)
        assert world.local() == [0, 10, 15, 16]

    run(scenario)


def objects_of(world: World) -> dict[str, Any]:
    """Return the objects of the store, to change them behind everybody's back."""
    store = world.store.inner
    assert isinstance(store, MemoryStore)
    return store.objects


def test_a_plan_keeps_what_a_step_would_keep_in_doubt() -> None:
    """The fragment of the second ledger is damaged. A step deletes the first one, and stops there."""

    async def scenario(world: World) -> None:
        ledger, records = await offloaded(world, 10, 10, 10, 5)
        key = sorted(key for key in objects_of(world) if key.endswith(".fragment"))[1]
        objects_of(world)[key] = bytes(len(objects_of(world)[key]))
        world.clock.now += 61

        plan = await ledger.plan()

        assert [row.action for row in plan.ledgers] == ["delete-local", "keep", "keep", "keep"]
        assert [row.reason.partition(":")[0] for row in plan.ledgers[1:]] == ["kept in doubt"] * 2 + ["open"]
        assert world.local() == [0, 10, 20, 30]
        await ledger.step()
        assert isinstance(ledger.error, Corrupt)
        assert world.local() == [10, 20, 30]
        assert await bodies(ledger, 10) == records[10:]

    run(scenario)


def test_a_plan_of_a_log_whose_copies_never_go_says_so() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None))
        await fill(ledger, 10, 5)
        await ledger.step()

        plan = await ledger.plan()

        assert plan.ledgers[0].reason == "on the tier, kept for ever"

    run(scenario)


@pytest.mark.parametrize("is_noted", [True, False], ids=["confirmation", "comparison"])
def test_fragments_that_are_compacted_and_swept_while_they_are_looked_at_are_no_loss(is_noted: bool) -> None:
    """The newest root names copies of them. Without its note, the owner compares them before it confirms."""

    async def scenario(world: World) -> None:
        small = ObjectStoreOffloader(
            world.store, options=TierOptions(fragment_size_bytes=200), env=world.env()
        )
        log = MemoryLog(STREAM, disk=world.disk)
        ledger = await ManagedLedger.open(log, small, policy=LAG, env=world.env(), emit=world.events.append)
        records = await fill(ledger, 8, 8, 1, size_bytes=60)
        await ledger.step()
        await ledger.close()
        if not is_noted:
            del world.disk.notes["committed"]
        first = next(key for key in sorted(objects_of(world)) if key.endswith(".fragment"))

        async def before(operation: str, key: str) -> None:
            if (operation, key) == ("get", first):
                world.store.before = nothing
                async for report in compact(world.tier(), fragment_size_bytes=2**20):
                    assert report.error is None
                await sweep(world.tier(), grace_seconds=0.0, uploads_seconds=0.0, env=world.env())
                assert first not in objects_of(world)

        ledger = await world.open(LAG)
        world.store.before = before
        await ledger.offload_prefix(16)
        for _ in range(2):  # without its note, the lag begins again
            await ledger.step()
            assert ledger.error is None
            world.clock.now += 61
        await ledger.step()

        assert ledger.error is None
        assert world.store.before is nothing
        assert world.local() == [16]
        assert await bodies(ledger) == records

    run(scenario)


def test_a_fragment_that_the_newest_root_names_and_that_is_gone_is_a_loss() -> None:
    async def scenario(world: World) -> None:
        ledger, _ = await offloaded(world, 10, 5)
        del objects_of(world)[next(key for key in objects_of(world) if key.endswith(".fragment"))]
        world.clock.now += 61

        await ledger.step()

        assert isinstance(ledger.error, Absent)
        assert world.local() == [0, 10]

    run(scenario)


async def nothing(operation: str, key: str) -> None:
    """Do nothing beside a request."""
