"""The attempts of a write's tasks: few commits announce them, and no two tries use the same one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from campaign import CAMPAIGN, campaign, few
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_spark.framing import Framer
from offload_spark.spare_attempts import Spares
from offload_spark.spool import Spool
from offload_spark.writing import Begun, Ticket, WrittenTask, commit, give_up, upload
from protocol_world import STREAM, Crash, Ledger, Process, World

from offload import Blocking, Manifest, ObjectStoreOffloader, StreamWriter
from offload.commit.job import Announce
from offload.commit.writer import Claim
from offload.ground.errors import OffloadError
from offload.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def commits_max(tasks: int) -> float:
    """Return how many commits a write to a stream may cost."""
    return 2 + tasks / 64


@settings(max_examples=20 if CAMPAIGN else 3, deadline=None)
@given(
    data=st.data(),
    tasks=st.integers(1, 400 if CAMPAIGN else 130),
    first=st.integers(0, 1000),
    name=st.sampled_from(["", "a"]),
)
def test_tasks_in_any_order_find_attempts_of_their_own_after_few_announcements(
    data: st.DataObject, tasks: int, first: int, name: str
) -> None:
    """Numbers are consecutive, as Spark gives them to the tasks of one write."""
    manifest = Claim(stream="orders", writer=uuid4(), first_offset=0).apply(None)
    spares = Ticket.of(Begun(incarnation=manifest.incarnation), run=uuid4(), job=name, write=name).spares
    numbers = data.draw(st.permutations(range(first, first + tasks)))
    found, announced = dict[int, UUID](), 0
    for number in numbers:
        if spares.of(manifest, number) is None:
            manifest, announced = with_spares(manifest, spares, number), announced + 1
        attempt = spares.of(manifest, number)
        assert attempt is not None
        found[number] = attempt.uid

    assert announced + 1 <= commits_max(tasks), "and the append"
    assert len(set(found.values())) == tasks
    assert len(manifest.running) <= tasks + 5 * 64
    assert replace(spares, run=uuid4()).of(manifest, first) is None, "of another run"


def with_spares(manifest: Manifest, spares: Spares, number: int) -> Manifest:
    uids = spares.around(manifest, number, name=uuid4())
    announce = Announce(job=spares.job, incarnation=manifest.incarnation, attempts=[(uid, 0) for uid in uids])
    return announce.apply(manifest)


def spool_of(first: int, stop: int) -> Spool:
    spool, framer = Spool(), Framer(stream=STREAM, timestamp_ms=1_700_000_000_000)
    rows = {"offset": [*range(first, stop)], "value": [b"%d" % at for at in range(first, stop)]}
    spool.add(framer.chunks(pa.RecordBatch.from_pydict(rows)))
    return spool


@few("numbers of tasks that begin at once; make test has one of three", 3, start=1)
@pytest.mark.parametrize("tasks", [1, 64, 130])
def test_tasks_that_all_begin_at_once_announce_for_each_other(tasks: int) -> None:
    async def main() -> None:
        offloader = ObjectStoreOffloader(MemoryStore())
        begun = (await StreamWriter.claim(offloader, STREAM)).manifest
        ticket = Ticket.of(begun, run=uuid4())
        spools = [spool_of(10 * task, 10 * task + 10) for task in range(tasks)]

        parts = await asyncio.gather(
            *(upload(offloader, STREAM, ticket, spool, number=63 + task) for task, spool in enumerate(spools))
        )
        await commit(offloader, STREAM, parts)

        manifest = await offloader.load_manifest(STREAM)
        assert manifest.version - begun.version <= commits_max(tasks)
        assert (manifest.next_offset, manifest.ledgers, manifest.running) == (10 * tasks, 1, ())
        for spool in spools:
            spool.close()

    asyncio.run(main())


@campaign("commits of a write by Spark; make test counts those of its tasks without Spark")
def test_a_write_by_spark_needs_few_commits(spark: SparkSession, tmp_path: Path) -> None:
    tasks, url = 130 if CAMPAIGN else 8, str(tmp_path / "tier")

    def write(first: int) -> None:
        frame = spark.range(first, first + 10 * tasks, 1, tasks)
        rows = frame.selectExpr("id AS offset", "cast(id AS string) AS value")
        rows.write.format("offload").mode("append").option("stream", "orders").save(url)

    spark.range(10).repartition(3).collect()  # so that the numbers do not begin at 0
    with Blocking(url) as tier:
        tier.run(tier.offloader.open(create=True))
        begun = tier.run(StreamWriter.claim(tier.offloader, "orders")).manifest
        write(0)
        manifest = tier.load_manifest("orders")

        assert manifest.version - begun.version <= commits_max(tasks)
        assert (manifest.next_offset, manifest.running) == (10 * tasks, ())
        assert manifest.fragments == tasks


class Rows(Ledger):
    """The rows of a task, in place of a spool."""

    ledger_id = 0


class Tries:
    """Tries of two tasks of a write, their driver, and a person who gives the job up. They stall and die."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(seed)
        self.world.run(self.world.process("w0").claim())
        self.incarnation = self.world.newest().incarnation
        self.parts: dict[tuple[UUID, int], list[WrittenTask]] = {}
        self.numbers: Counter[UUID] = Counter()

    def begin(self, run: UUID) -> None:
        """Begin a try of either task of a run. Both runs, of two applications, number their tries alike."""
        self.numbers[run] += 1
        task, number = self.random.randrange(2), 60 + self.numbers[run]
        ticket = Ticket.of(Begun(incarnation=self.incarnation), run=run, job="a", write="a")
        process = self.world.process(f"try {number} of {run}")
        process.start(self._try(process, ticket, task, number))

    async def _try(self, process: Process, ticket: Ticket, task: int, number: int) -> None:
        rows = Rows(4 * task, 4 * task + 4)
        part = await upload(process.offloader, STREAM, ticket, rows, number=number)  # type: ignore[arg-type]
        self.parts.setdefault((ticket.run, task), []).append(part)

    def step(self) -> None:
        """Let one try make some requests. Now and then it dies."""
        busy = [process for process in self.world.processes if process.busy]
        if not busy:
            return
        process = self.random.choice(busy)
        if self.random.random() < 0.02:
            process.crash()
        for _ in range(self.random.randrange(12)):
            if process.busy:
                process.step()

    def commit(self, run: UUID) -> None:
        """Commit as the driver does when it has a message of some try of each task."""
        told = [self.parts.get((run, task)) for task in range(2)]
        if all(told):
            self._as_driver(commit, [self.random.choice(parts) for parts in told if parts])

    def give_up(self, run: UUID) -> None:
        """Give the job up, as the driver does after a failed write, or a person after a dead one."""
        self._as_driver(
            give_up, Ticket.of(Begun(incarnation=self.incarnation), run=run, job="a", write="a").job
        )

    def _as_driver(self, act: object, what: object) -> None:
        driver = self.world.process(f"driver {len(self.world.processes)}")
        try:
            self.world.run(act(driver.offloader, STREAM, what))  # type: ignore[operator]
        except OffloadError:
            return

    def end(self) -> None:
        """Let every try run to its end."""
        for process in self.world.processes:
            if process.busy:
                try:
                    process.finish()
                except (OffloadError, Crash):
                    continue


@pytest.fixture(params=range(20 if CAMPAIGN else 6))
def tries(request: pytest.FixtureRequest) -> Iterator[Tries]:
    tries = Tries(request.param)
    with tries.world:
        yield tries


def test_tries_that_stall_die_or_come_late_share_no_attempt_and_revive_none(tries: Tries) -> None:
    runs = [UUID(int=1, version=4), UUID(int=2, version=4)]
    acts = [tries.begin, tries.commit, tries.give_up]
    for _ in range(150):
        act = tries.random.choices([None, *acts], weights=(80, 8, 4, 2))[0]
        tries.step() if act is None else act(tries.random.choice(runs))
    tries.end()
    tries.commit(runs[0])

    tries.world.check()
    ran = [root.running for root in tries.world.history]
    for uid in frozenset().union(*ran):
        first = next(number for number, running in enumerate(ran) if uid in running)
        runs_on = [uid in running for running in ran[first:]]
        assert sorted(runs_on, reverse=True) == runs_on, "an attempt that was dropped runs again"
    told = [part for parts in tries.parts.values() for part in parts]
    used = [part.receipt.attempt.uid for part in told if part.receipt is not None]
    assert len(used) == len(set(used)), "two tries shared an attempt"
