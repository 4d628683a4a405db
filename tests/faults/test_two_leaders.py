"""Tests of two leaders at once, of a process that slept, and of clocks that jump.

These are real processes on each server and on a folder. SIGSTOP stops them at exact requests, for longer than
the grace of the sweeps that run meanwhile. The result is read past the proxy and judged.
`OFFLOAD_SEED` repeats the random choices. `OFFLOAD_CAMPAIGN=1` runs far longer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise, takewhile
from typing import Any
from uuid import UUID

import pytest
from campaign import CAMPAIGN, few
from faults.actors import WAIT_SECONDS, Actor, Ground, Moment, ground_of, jumpy
from faults.rig import (
    EVERYWHERE,
    SEED,
    Audit,
    Writer,
    assert_sound,
    bare_store,
    guarded,
    read_all,
)
from protocol_judge import DATA, Root, end_of
from protocol_world import CHUNK_RECORDS, Ledger, source
from servers import Running

from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.model.attempt import Receipt
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import Sweeper, sweep

LEAD_SECONDS = 30.0 if CAMPAIGN else 1.0
GRACE_SECONDS = 0.2
AGE_SECONDS = 3600.0
SLEEPS_OF_A_WRITER, SLEEPS_OF_A_SWEEP, ROUNDS = (4, 1000, 40) if CAMPAIGN else (1, 2, 4)
"""The numbers on a server. A folder, where they cost little, has more."""

LEDGERS_MEANWHILE = 9
"""The ledgers that a rival commits, with two roots each. A sweep keeps 16 roots and deletes older ones."""

SLEEPS = {
    "in the middle of an upload": Moment("put", nth=2, when="before"),
    "after its uploads, before its append": Moment("put", nth=3, when="after"),
    "before its create of a root": Moment("create", nth=2, when="before"),
    "after its create of a root": Moment("create", nth=2, when="after"),
}
"""Moments of an offload of three fragments. Its first create is that of `prepare`."""

everywhere = pytest.mark.parametrize("running_server", EVERYWHERE, indirect=True)


@pytest.fixture(scope="module")
def ground(running_server: Running | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Yield one place for all tests of this module. Each test has its own stream."""
    with ground_of(running_server, tmp_path_factory.mktemp("tier")) as ground:
        yield ground


@pytest.fixture(scope="module")
def living() -> Iterator[dict[str, Actor]]:
    """Yield the processes of this module, by name."""
    actors = {name: Actor(name) for name in ("first", "second")}
    yield actors
    for actor in actors.values():
        actor.kill()


@pytest.fixture
def actors(living: dict[str, Actor]) -> Iterator[list[Actor]]:
    """Yield two idle processes. A process that a test leaves within a job is replaced."""
    print(f"OFFLOAD_SEED={SEED}")
    yield [*living.values()]
    for name, actor in living.items():
        if actor.busy:
            actor.kill()
            living[name] = Actor(name)


@dataclass
class Scene:
    """The tier as the test itself sees it: past every proxy, with an audit and a rival writer."""

    ground: Ground
    stream: str
    store: ObjectStore
    audit: Audit
    rival: Writer

    async def assert_whole(self) -> None:
        """Assert that all named objects are there and right, and that a last sweep leaves nothing else."""
        await self.audit.look()
        [row] = (await sweep(self.store, stream=self.stream, grace_seconds=0)).streams
        assert not row.errors, row.errors
        await self.audit.look_again()
        root = self.audit.judge.root
        assert root is not None
        assert self.fragments() == self.living(), "a sweep left something"
        await assert_sound(self.store, self.ground.place)
        assert await read_all(self.store, self.stream) == source(root.first_offset, root.next_offset)

    def fragments(self) -> set[str]:
        """Return the fragments that were seen and not deleted."""
        return {key for key in self.audit.objects if DATA.fullmatch(key)}

    def living(self) -> set[str]:
        """Return the fragments that the newest root names, or whose attempt runs."""
        root = self.audit.judge.root
        assert root is not None
        running = {str(UUID(bytes=uid)) for uid in root.running}
        return {
            key
            for key in self.fragments()
            if key.rpartition("/")[2] in root.named or key.split(".")[-2] in running
        }

    async def go_on(self, chunks: int = 1) -> None:
        """Offload a ledger as the rival."""
        first = self.rival.holder.manifest.next_offset
        await self.rival.holder.offload([Ledger(first, first + chunks * CHUNK_RECORDS)])

    async def trim(self, before_offset: int) -> None:
        """Trim the stream to an offset, as a guest."""
        limit = Retention(before_offset=max(before_offset, 0))
        await trim(self.rival.offloader, self.stream, limit, env=self.rival.env)


def play(ground: Ground, stream: str, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run `act` on a new stream."""

    async def run() -> None:
        store = guarded(bare_store(ground.place.url, ground.place.options))
        rival = Writer("rival", store, chance=random.Random(f"{SEED} {ground.name} {stream}"))
        try:
            await act(Scene(ground, stream, store, Audit(store, stream, swept=True), rival))
        finally:
            await store.aclose()

    asyncio.run(run())


@few("two leaders of a folder; make test has those of a bucket", 2)
@everywhere
def test_two_leaders_over_and_over_make_one_history(ground: Ground, actors: list[Actor]) -> None:
    """Each claims, offloads, is fenced, and claims again. Nobody sweeps, so all can be read afterwards."""
    for actor in actors:
        actor.do("open", ground.direct(), "led by two", f"{SEED} {ground.name}")
        actor.do("claim")
    for actor in actors:
        actor.begin("lead", LEAD_SECONDS)
    ends = [actor.end(wait_seconds=LEAD_SECONDS + WAIT_SECONDS) for actor in actors]
    assert not [end for end in ends if end.error], ends
    committed = sorted(each for end in ends for each in end.value[0])
    errors = [Counter(end.value[1]) for end in ends]

    async def act(scene: Scene) -> None:
        await scene.audit.look()
        for actor in actors:
            scene.audit.hear(actor.name, actor.do("told"))
        await scene.assert_whole()

        assert committed[-1][1] <= scene.audit.next_offset

    play(ground, "led by two", act)
    print(f"{ground.name}: {len(committed)} ledgers; {[*map(dict, errors)]}")
    for (_, end), (begin, _) in pairwise(committed):
        assert end <= begin, "two were told that they committed the same offset"
    # A server that is slow enough makes the first doubt its commit before it learns of the second's claim.
    assert any(each["Fenced"] or each["OutcomeUnknown"] for each in errors), (
        "the second claimed after the first"
    )


@few("a writer of a folder that slept; make test has one of a bucket", 2)
@everywhere
def test_a_writer_that_slept_is_fenced_and_changes_nothing(ground: Ground, actors: list[Actor]) -> None:
    """A rival claims, appends and trims meanwhile, and two sweeps delete. The stopped request lands late."""
    writer = actors[0]
    chance = random.Random(f"{SEED} {ground.name} moments")

    async def act(scene: Scene, moment: Moment) -> None:
        writer.do("open", ground.stoppable(), scene.stream, f"{SEED} {ground.name}")
        writer.do("claim")
        writer.do("offload", 3)
        stopped = writer.begin_and_stop(ground, moment, "offload", 5)
        assert stopped

        await scene.audit.look()
        await scene.rival.claim(scene.stream)
        for _ in range(LEDGERS_MEANWHILE):
            await scene.go_on()
        await scene.trim(scene.audit.next_offset + CHUNK_RECORDS)
        await scene.audit.look()
        sweeper = Sweeper(scene.store, grace_seconds=GRACE_SECONDS)
        await sweeper.sweep(scene.stream)
        await asyncio.sleep(GRACE_SECONDS)  # the writer sleeps through this time
        [row] = (await sweeper.sweep(scene.stream)).streams
        assert row.deleted.objects["superseded root"] > 1
        assert row.deleted.objects["trimmed"] > 0
        await scene.audit.look()
        newest, keys = scene.audit.newest, ground.place.keys()
        read = await read_all(scene.store, scene.stream)

        outcome = writer.end()

        assert outcome.error == "Fenced", outcome
        await scene.audit.look()
        scene.audit.hear(writer.name, writer.do("told"))
        assert scene.audit.newest == newest
        assert keys <= ground.place.keys(), "a fenced writer deleted something"
        assert await read_all(scene.store, scene.stream) == read
        await scene.go_on()
        await scene.assert_whole()

    chosen = [*SLEEPS] if ground.proxy is None else chance.sample([*SLEEPS], SLEEPS_OF_A_WRITER)
    for name in chosen:
        print(f"{ground.name}: stopped {name}")
        play(ground, f"slept {name}", partial(act, moment=SLEEPS[name]))


@few("a sweep of a bucket that slept; make test has one of a folder", 2, start=1)
@everywhere
def test_a_sweep_that_slept_deletes_nothing_that_was_named_meanwhile(
    ground: Ground, actors: list[Actor]
) -> None:
    """The sweep stops before any of its requests, also a delete. The writer then appends and trims."""
    sweeper = actors[0]
    chance = random.Random(f"{SEED} {ground.name} sweep")

    async def act(scene: Scene) -> None:
        await scene.rival.claim(scene.stream)
        sweeper.do("open", ground.stoppable(), scene.stream, f"{SEED} {ground.name}")
        await copy(scene)
        stops = 0
        for moment in await moments(scene):
            await litter(scene)
            await scene.audit.look()
            garbage = scene.fragments() - scene.living()
            assert garbage
            stopped = sweeper.begin_and_stop(ground, moment, "sweep", 0.0)
            if stopped:
                await append(scene)
                await scene.trim(scene.audit.next_offset - 8 * CHUNK_RECORDS)
                await copy(scene)
                stops += 1
            outcome = sweeper.end()
            await scene.audit.look()
            assert outcome.value == [], outcome
            assert not garbage & ground.place.keys(), (
                "an object stays that was condemned before the sweep began"
            )
            if not stopped:
                break
        print(f"{ground.name}: a sweep slept at {stops} of its requests")
        assert stops
        await scene.assert_whole()

    async def moments(scene: Scene) -> Iterable[Moment]:
        every = (Moment("any", nth, "before") for nth in count(1))
        if ground.proxy is None or CAMPAIGN:
            return every  # to the first number that the sweep does not reach
        begun = ground.proxy.counts["requests"]
        sweeper.do("sweep", 0.0)
        numbers = range(1, ground.proxy.counts["requests"] - begun + 1)
        chosen = chance.sample(numbers, SLEEPS_OF_A_SWEEP - 1)
        return [Moment("delete", 1, "before"), *(Moment("any", nth, "before") for nth in chosen)]

    async def copy(scene: Scene) -> None:
        """Make an attempt that runs, with objects that no root names yet."""
        holder = scene.rival.holder
        first = holder.manifest.next_offset
        [attempt] = await holder.prepare([first])
        ledger = Ledger(first, first + 3 * CHUNK_RECORDS)
        copied.append(
            await scene.rival.offloader.offload(ledger, attempt, manifest=holder.manifest, extra_metadata={})
        )

    async def append(scene: Scene) -> None:
        await scene.rival.holder.append([copied.pop()])

    async def litter(scene: Scene) -> None:
        """Make an attempt that was dropped, with objects."""
        await copy(scene)
        await scene.rival.holder.abort([copied.pop().attempt])

    copied: list[Receipt] = []
    play(ground, "swept asleep", act)


@few("clocks that jump beside a folder; make test has them beside a bucket", 2)
@everywhere
def test_clocks_that_jump_lose_nothing(ground: Ground, actors: list[Actor]) -> None:
    """A writer, a trim by age, and sweeps with both kinds of notes use clocks that jump before each reading.

    A trim by age deletes fragments that are too old by its own clock, oldest first, and never the last one.
    The grace of a sweep protects readers only: named objects and running attempts stay without it.
    """
    writer, trimmer = actors
    chance = random.Random(f"{SEED} {ground.name} clocks")

    async def act(scene: Scene) -> None:
        for actor in actors:
            actor.do("open", ground.direct(), scene.stream, f"{SEED} {ground.name}", True)
        env = jumpy(Env(), f"{SEED} {ground.name}")
        lasting = Sweeper(scene.store, env=env)
        writer.do("claim")
        writer.do("offload", 5)
        await scene.audit.look()
        deleted = trims = 0
        for number in range(ROUNDS if ground.proxy else 4 * ROUNDS):
            seen, before = scene.audit.newest, {*scene.audit.objects}
            # A copy of one round is appended by the next one, however long the sweeps think that took.
            writer.begin(*(("copy", 3) if number % 2 else ("offload", chance.randint(1, 5))))
            trimmer.begin("trim_by_age", AGE_SECONDS)
            reports = [
                await lasting.sweep(scene.stream),
                await sweep(scene.store, stream=scene.stream, env=env),
            ]
            ends = writer.end(), trimmer.end()
            assert not [end for end in ends if end.error], ends
            assert not [error for report in reports for error in report.errors]
            await scene.audit.look()
            scene.audit.hear(writer.name, writer.do("told"))
            deleted += len(before - scene.audit.objects.keys())
            trims += assert_trimmed_by_the_clock(scene.audit, seen, *ends[1].value)
            if number % 2:
                writer.do("append")
        print(f"{ground.name}: {trims} trims, {deleted} objects deleted")
        await scene.rival.claim(scene.stream)
        await scene.assert_whole()

    play(ground, "out of time", act)


def assert_trimmed_by_the_clock(audit: Audit, seen: int, first_offset: int | None, now_ms: int) -> bool:
    """Assert that trims since root `seen` follow the clock and lead to `first_offset`.

    Return True if there was one.
    """
    history = audit.judge.history
    steps = [(history[n - 1], history[n]) for n in range(seen + 1, audit.newest + 1)]
    trims = [(parent, root) for parent, root in steps if root.first_offset != parent.first_offset]
    assert [root.first_offset for _, root in trims] == [first_offset] * len(trims)
    oldest_ms = now_ms - int(AGE_SECONDS * 1000)

    def goes(base: Root) -> int:
        """Return the first offset that a trim planned on this root has."""
        old = [*takewhile(lambda row: row["last_timestamp_ms"] < oldest_ms, base.fragments[:-1])]
        return end_of(old[-1]) if old else base.first_offset

    for _, root in trims:
        assert root.first_offset in {goes(history[n]) for n in range(seen, root.version)}
        assert root.fragments
    return bool(trims)
