"""The figures of the page on capacity and cost are those of the program, and of runs that are counted."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from follower_world import LAG, RULES, World
from growing_source import GrowingSource, GrowingStream

from offload import ObjectStoreOffloader
from offload.cli.run_check import cost_text
from offload.copy.sync import sync
from offload.follow.follower import Follower
from offload.model.prices import GIB, PRICES
from offload.service.config import RunConfig
from offload.service.costs import MONTH_SECONDS, ROOT_LIFE_SWEEPS, MonthlyCost, cost_of
from offload.service.preview import Growth, StreamPreview
from offload.store.faults import FaultyStore
from offload.upkeep.compact.stream import compact
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.report import VerifyLevel
from offload.upkeep.verify.tier import verify

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "capacity-and-cost.md").read_text(encoding="utf-8")
SENTENCES: Final = " ".join(PAGE.split())
SEGMENT_SIZE_BYTES: Final = 500_000_000
"""The default of RabbitMQ, which the page names."""


def rows_below(head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with this text."""
    [table] = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def month_of(streams: str, rate: str, size: str, max_lag: str, broker: str, ratio: str) -> MonthlyCost:
    """Return the month of an example, as the program computes it."""
    number, per_second, bytes_ = (float(each.replace(",", "")) for each in (streams, rate, size))
    config = RunConfig.model_validate(
        {
            "source": "rabbitmq:///x",
            "tier": "s3://bucket/tier",
            "broker": "rabbitmq-stream://localhost" if broker == "yes" else None,
            "streams": {"*": {"max_lag": max_lag}},
        }
    )
    growth = Growth(
        bytes_per_second=per_second * bytes_,
        chunks_per_second=per_second,
        ledgers_per_second=per_second * bytes_ / SEGMENT_SIZE_BYTES,
    )
    stream = StreamPreview(
        stream="s",
        glob="*",
        source_next_offset=0,
        growth=growth,
        data_size_bytes=100,
        stored_size_bytes=round(100 / float(ratio)),
    )
    cost = cost_of(config, [stream] * int(number))
    assert cost is not None
    return cost


EXAMPLES: Final = {row[0]: row[1:] for row in rows_below("example")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_what_the_program_computes(name: str) -> None:
    cost = month_of(*EXAMPLES[name][:6])

    assert EXAMPLES[name][6:] == [
        f"{cost.work.fragments:,.0f}",
        f"{cost.work.commits:,.0f}",
        f"{cost.work.data_stored_bytes / GIB:,.0f}",
        f"{cost.work.roots_stored_bytes / GIB:,.0f}",
        f"{cost.requests:,.0f}",
        f"{cost.storage:,.0f}",
    ]


def test_the_estimate_on_the_page_is_that_of_the_example() -> None:
    assert f"```text\n{cost_text(month_of(*EXAMPLES['**hundred**'][:6]))}\n```\n" in PAGE


def test_the_short_formulas_are_those_of_the_program() -> None:
    """The dollars of a busy stream, its old roots, and the fragments of the run beside a broker."""
    busy = month_of("1", "100", "1", "30s", "no", "1")
    asked = month_of("1", "100", "1", "30s", "yes", "1")
    fast, slow = (month_of("1", rate, "1000", "5s", "no", "1") for rate in ("20000", "10"))
    rolls = (20_000 * 1000 * (1 / 16_000_000 - 1 / SEGMENT_SIZE_BYTES)) * MONTH_SECONDS
    beside = (fast.work.fragments + rolls + slow.work.fragments) * 301 / MONTH_SECONDS

    assert busy.requests == pytest.approx(194 / 30, rel=0.01)
    assert asked.requests == pytest.approx(busy.requests / 2, rel=0.01)
    assert busy.work.commits / 30 * ROOT_LIFE_SWEEPS == pytest.approx(21_600, rel=0.01)
    assert busy.work.roots_stored_bytes == pytest.approx(21_600 * 56 * 1024, rel=0.01)
    assert pytest.approx(9600, rel=0.01) == 56 * 1024 * 5 / 30
    assert f"made 945 fragments; the formula has {beside:.0f}." in SENTENCES
    assert beside == pytest.approx(945, rel=0.04)


@pytest.mark.parametrize("row", rows_below("MB/s of all streams"), ids=lambda row: "-".join(row[:2]))
def test_each_outage_follows_from_the_formulas(row: list[str]) -> None:
    rate, hours = (float(each.replace(",", "")) for each in row[:2])
    benchmarks = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    mib = min(
        map(int, re.findall(r"^\| sync, (?:direct|fsspec) \| [\d.]+ \| (\d+) \|", benchmarks, re.MULTILINE))
    )
    backlog = rate * 3600 * hours / 1000
    minutes = backlog * 1000 / (int(mib) * 2**20 / 10**6 - rate) / 60

    assert row[2:] == [
        f"{backlog:,.0f}",
        f"{minutes:,.0f}",
        f"{rate * 3.6 * (hours + 1) / 0.9:,.0f}",
    ]


async def followed(number: int) -> World:
    """Return a stream of so many small fragments, whose requests are no longer counted."""
    world = World()
    follower = world.follower()
    for _ in range(number):
        world.source.append()
        await world.run(follower, seconds=LAG)
    await follower.release()
    return world


async def synced(number: int) -> tuple[World, GrowingSource]:
    """Return so many streams of one fragment each."""
    world = World()
    source = GrowingSource([GrowingStream(name=f"s{at}") for at in range(number)])
    await sync_more(world, source)
    return world, source


async def sync_more(world: World, source: GrowingSource, *, chunks: int = 1) -> None:
    for stream in source.held:
        stream.append(chunks)
    async for report in sync(source, world.tier(), env=world.clock.env()):
        assert report.error is None


async def merges(number: int) -> FaultyStore:
    world = await followed(number)
    world.store.calls.clear()
    async for done in compact(world.tier(), fragment_size_bytes=2**26):
        assert done.fragments == number - 1  # the newest stays
    return world.store


async def reads(number: int) -> FaultyStore:
    world = await followed(number)
    world.store.calls.clear()
    assert await world.committed() == 10 * number
    return world.store


async def syncs(number: int, chunks: int) -> FaultyStore:
    world, source = await synced(number)
    world.store.calls.clear()
    await sync_more(world, source, chunks=chunks)
    return world.store


async def sweeps(number: int) -> FaultyStore:
    world, _ = await synced(number)
    world.store.calls.clear()
    await sweep(world.tier(), env=world.clock.env())
    return world.store


async def verifies(number: int) -> FaultyStore:
    world, _ = await synced(number)
    world.store.calls.clear()
    await verify(world.tier(), level=VerifyLevel.BYTES, env=world.clock.env())
    return world.store


async def stands_by(number: int) -> FaultyStore:
    """Return the store of a process that stands by for so many looks at the root."""
    world = World()
    leader = world.follower()
    world.source.append()
    await world.run(leader, seconds=LAG)
    store = FaultyStore(world.store.inner)
    tier = ObjectStoreOffloader(store, env=world.clock.env())
    standby = Follower(source=world.source, offloader=tier, rules=RULES, env=world.clock.env())
    end = world.clock.now + number * RULES.takeover_seconds / 2
    while world.clock.now < end:
        world.source.append()
        await leader.step()
        world.clock.now += await standby.step()
    return store


WORK: Final[dict[str, Callable[[int], Awaitable[FaultyStore]]]] = {
    "look of a process that stands by": stands_by,
    "stream without new data in a sync": partial(syncs, chunks=0),
    "stream with one new fragment in a sync": partial(syncs, chunks=1),
    "stream in a sweep": sweeps,
    "stream in a verify": verifies,
    "fragment that is merged": merges,
    "small fragment that is read": reads,
}


@pytest.mark.parametrize("row", rows_below("work, for each"), ids=lambda row: row[0])
def test_each_number_of_requests_is_what_one_more_costs(row: list[str]) -> None:
    few, many = (
        Counter(call.operation for call in asyncio.run(WORK[row[0]](number)).calls) for number in (10, 14)
    )

    assert row[1:] == [
        f"{(many[one] + many[other] - few[one] - few[other]) / 4:g}"
        for one, other in (("list", ""), ("get", ""), ("put", "create"))
    ]


def test_all_kinds_of_work_are_on_the_page() -> None:
    assert [row[0] for row in rows_below("work, for each")] == [*WORK]


def test_the_dollars_of_idle_streams_follow_from_their_requests() -> None:
    work = {row[0]: [int(cell) for cell in row[1:]] for row in rows_below("work, for each")}
    [s3] = [price for price in PRICES if "s3" in price.schemes]
    streams_a_month = {"sweep": 10_000 * 30, "verify": 10_000 * 30 / 7}

    for name, times in streams_a_month.items():
        lists, gets, _ = work[f"stream in a {name}"]
        dollars = s3.of(writes=0, lists=times * lists, reads=times * gets)
        assert f"| {10_000 * lists:,} LIST and {10_000 * gets:,} GET: {dollars:.2f} dollars a month |" in PAGE
    looks = 30 * 86_400 / 30  # of a process that stands by, in the middle one in 30 s
    assert f"{s3.of(writes=0, lists=2 * looks, reads=2 * looks):.2f} dollars a month for a busy" in " ".join(
        PAGE.split()
    )
