"""Races of processes at one server: one create of a key wins, and commits make one history.

`OFFLOAD_SEED` repeats the random choices. The order in which the scheduler runs processes is not repeatable.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.synchronize import Barrier as Gate

import pytest
from campaign import CAMPAIGN
from faults.rig import (
    EVERY_SERVER,
    SEED,
    Audit,
    Writer,
    assert_sound,
    bare_store,
    guarded,
)
from protocol_world import CHUNK_RECORDS, Ledger
from ready import FORKING
from servers import Running, servers_at_risk

from offload.contracts.change import Change
from offload.contracts.store import ObjectStore
from offload.ground.errors import AlreadyExists, Conflict, Fenced, OffloadError, OutcomeUnknown, TryAgain
from offload.model.manifest import Manifest

PROCESSES = 8 if CAMPAIGN else 5
ROUNDS = 300 if CAMPAIGN else 30
RACE_SECONDS = 60.0 if CAMPAIGN else 3.0
PAUSE_SECONDS_MAX = 2.0
"""The longest pause of a racer that lost. Without pauses, racers would fence each other and never commit."""

WAIT_SECONDS = 120.0
STREAM = "orders"

_gate: Gate


def _enter(gate: Gate) -> None:
    global _gate
    _gate = gate


@pytest.fixture(scope="module")
def racers() -> Iterator[ProcessPoolExecutor]:
    """Yield processes that begin each race together. They fork from one that has done the slow imports."""
    gate = FORKING.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, FORKING, _enter, (gate,)) as pool:
        yield pool


@dataclass(frozen=True)
class Where:
    """The URL and options by which a racer reaches the bucket."""

    url: str
    options: dict[str, str]


def _value(round_number: int, racer: int) -> bytes:
    return b"racer %d in round %d" % (racer, round_number)


def _create(where: Where, racer: int) -> list[str]:
    """Return the outcome of each create of this racer."""

    async def run() -> list[str]:
        store = bare_store(where.url, where.options)
        said = []
        try:
            await store.get("begin")  # connects
            for number in range(ROUNDS):
                await asyncio.to_thread(_gate.wait, WAIT_SECONDS)
                said.append(await create_once(store, number))
        finally:
            await store.aclose()
        return said

    async def create_once(store: ObjectStore, number: int) -> str:
        try:
            await store.create(f"races/{number:03}", _value(number, racer))
        except (AlreadyExists, TryAgain, OutcomeUnknown) as error:
            return type(error).__name__
        return "won"

    return asyncio.run(run())


@pytest.mark.parametrize("running_server", EVERY_SERVER, indirect=True)
def test_exactly_one_of_many_creates_of_a_key_wins(
    running_server: Running, racers: ProcessPoolExecutor
) -> None:
    place = running_server.place()
    place.put("begin", b"ready")
    where = Where(place.url, place.options)

    said = list(racers.map(_create, [where] * PROCESSES, range(PROCESSES), timeout=WAIT_SECONDS))

    winners = set()
    for number, outcomes in enumerate(zip(*said, strict=True)):
        assert outcomes.count("won") == 1, f"round {number}: {outcomes}"
        assert set(outcomes) <= {"won", "AlreadyExists"}, f"round {number}: {outcomes}"
        winner = outcomes.index("won")
        assert place.get(f"races/{number:03}") == _value(number, winner)
        winners.add(winner)
    assert len(winners) > 1  # otherwise it was no race


@dataclass(frozen=True)
class Told:
    """The results that a racer got: of each commit, its committed ledgers, and its errors."""

    commits: list[tuple[Change, Manifest | OffloadError]]
    committed: list[tuple[int, int]]
    errors: list[str]


def _commit(where: Where, racer: int, seed: int) -> Told:
    """Claim and offload a ledger repeatedly for a while, beside others that do the same."""

    async def run() -> Told:
        chance = random.Random(f"{seed} {racer}")
        client = bare_store(where.url, where.options)
        told = Told([], [], [])
        try:
            writer = Writer(f"racer-{racer}", client, chance=random.Random(f"{seed} names of {racer}"))
            await asyncio.to_thread(_gate.wait, WAIT_SECONDS)
            end = time.monotonic() + RACE_SECONDS
            while time.monotonic() < end or not told.committed:  # `WAIT_SECONDS` end one that never commits
                try:
                    holder = writer.writer or await writer.claim(STREAM)
                    first = holder.manifest.next_offset
                    next_offset = first + chance.randint(1, 3) * CHUNK_RECORDS
                    await holder.offload([Ledger(first, next_offset)])
                except (Fenced, Conflict, TryAgain, OutcomeUnknown) as error:
                    told.errors.append(type(error).__name__)
                    writer.writer = None
                    await asyncio.sleep(chance.uniform(0, PAUSE_SECONDS_MAX))
                else:
                    told.committed.append((first, next_offset))
            told.commits.extend(writer.commits_told())
        finally:
            await client.aclose()
        return told

    return asyncio.run(run())


@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_many_writers_at_once_make_one_history(running_server: Running, racers: ProcessPoolExecutor) -> None:
    print(f"OFFLOAD_SEED={SEED}")
    place = running_server.place()
    where = Where(place.url, place.options)

    everybody = [where] * PROCESSES, range(PROCESSES), [SEED] * PROCESSES
    told = list(racers.map(_commit, *everybody, timeout=WAIT_SECONDS + RACE_SECONDS))

    async def judge() -> Audit:
        direct = bare_store(place.url, place.options)
        try:
            audit = Audit(guarded(direct), STREAM)
            await audit.look()
            for racer, each in enumerate(told):
                audit.hear(f"racer-{racer}", each.commits)
            await assert_sound(direct, place)
        finally:
            await direct.aclose()
        return audit

    audit = asyncio.run(judge())
    committed = sorted(each for one in told for each in one.committed)
    for (_, end), (begin, _) in pairwise(committed):
        assert end <= begin, "two were told that they committed the same offset"
    assert committed
    assert committed[-1][1] <= audit.next_offset
    errors = [error for one in told for error in one.errors]
    print(f"{len(committed)} ledgers, {audit.newest} roots, {len(errors)} errors: {sorted(set(errors))}")
    holders = {root.writer for root in audit.judge.history.values()}
    assert len(holders) > 1  # otherwise it was no race
