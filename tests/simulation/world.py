"""One history of one stream, from one seed: processes, a store that fails, clocks, a director.

    figures = simulate(4711)         # raises `Broken`, with the seed and the step, where an invariant does

Every request of every process is a turn. A turn waits until the director gives it, and so does, often, the
reply: between any two requests of one process all others may do whatever they do. What goes wrong, how
often, and who there is at all is drawn from the seed first (`Weather`): a history with all kinds of trouble
is a narrow walk, many histories with some kinds each go far (swarm testing: Groce et al., ISSTA 2012).

    trouble          what happens
    refused          the request was not applied; TryAgain
    throttled        the same, with a time to wait
    lost reply       it was applied; OutcomeUnknown
    late             OutcomeUnknown; it is applied at some later time, or when all is over
    stall            a process gets no turn for a while, however long
    crash            a process is gone, its requests under way may still land; another one takes its place
    cancel           a caller gives up waiting; the process lives on
    clocks           wall clocks jump and differ; steady clocks run on over a suspension
    pages            a listing is read page by page, and the world goes on between two of them
    flipped bit      a read returns its bytes with one bit wrong; the object is sound
    torn object      a put that was under way in a crash leaves its object damaged, as no store should
    resend           a client library that sends a create again when it hears no answer

The judge (`protocol_judge`) looks at the objects themselves, at each moment at which one of them appears or
goes. What readers are given and what writers are told is checked by whoever they are (`people`). At the end
of a history what is late lands, a last writer and a last sweep come by, and then all must be there, and
nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

import pytest
from protocol_judge import LIVE, Objects
from protocol_world import CHUNK_RECORDS, KEYS, STREAM, ResendingClient, WitnessedOffloader, chunk

from offload.contracts.events import Event, ManifestCommitted
from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore, Unfinished
from offload.env import Env
from offload.errors import OffloadError
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, is_decisive
from offload.formats.root import encode_root
from offload.model.attempt import Receipt
from offload.model.manifest import NOBODY, Manifest, StreamState
from offload.native.offloader import TierOptions
from offload.native.place import TierPlace, TierPlan
from offload.store.stack import stacked_store
from offload.streams import writer as stream_writer
from simulation.broker import Broker
from simulation.judgement import SimulationJudge
from simulation.loop import DirectedLoop
from simulation.store import Crash, Life, SimulatedStore, Turn, is_data
from simulation.weather import GRACE_SECONDS, Weather

T = TypeVar("T")
Person = Callable[["Process"], Coroutine[Any, Any, None]]

EPOCH_MS: Final = 1_700_000_000_000

COMPACTED_SIZE_BYTES: Final = 6 * len(chunk(0))
"""How large a compaction makes fragments: larger than any run in a group of two or three small ones."""


class Broken(AssertionError):
    """An invariant was broken, or something raised that must not."""


@dataclass
class Clock:
    """A process's clocks: `skew_seconds` is added to the wall clock, `suspended_seconds` to the steady
    one."""

    skew_seconds: float = 0.0
    suspended_seconds: float = 0.0


class Process:
    """One process: its store, its clocks, its names, and an offloader over all of it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.random = Random(f"{world.seed}/{name}")
        self.dead = self.stopping = False
        self.stalled_until = 0
        self.saw_losses = 0
        """How many losses there were when the present job began."""
        self.clock = Clock()
        self.tasks: list[asyncio.Task[None]] = []
        self.job: asyncio.Task[Any] | None = None
        self.env = Env(
            uuid=lambda: UUID(int=self.random.getrandbits(128), version=4),
            monotonic=lambda: world.loop.now + self.clock.suspended_seconds,
            now_ms=lambda: EPOCH_MS + int((world.loop.now + self.clock.skew_seconds) * 1000),
            sleep=asyncio.sleep,
            random=self.random.random,
        )
        size_bytes = self.random.choice((1, 2 * len(chunk(0))))
        if world.weather.compactors:
            size_bytes = COMPACTED_SIZE_BYTES if name.startswith("compactor") else 1
        self.resends = world.weather.resends and self.random.random() < 0.5
        deadline_seconds = self.random.choice((600.0, 20.0, 4.0))
        self.limits = RequestLimits(deadline_seconds=deadline_seconds) if world.weather.guarded else None
        self.place = TierPlace(
            data=self._store(is_data if world.weather.split else None),
            env=self.env,
            plan=TierPlan(commit_store="simulated://roots" if world.weather.split else ""),
            open_store=lambda url: self._store(is_decisive),
        )
        self.offloader = WitnessedOffloader(
            self.place.data,
            env=self.env,
            options=TierOptions(fragment_size_bytes=size_bytes, uploads_max=2),
            emit=self._emit,
            open_store=self.place.open_store,
            factor=world.weather.factor,
        )

    def _store(self, holds: Callable[[str], bool] | None) -> ObjectStore:
        """A store as this process has it, which holds all keys or some."""
        store: ObjectStore = SimulatedStore(self, self.world, holds=holds)
        if self.resends:
            store = ResendingClient(store)
        return store if self.limits is None else stacked_store(store, self.env, self.limits)

    async def do(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job that the director may cancel, as a caller's deadline does. Then `Cancelled` is raised."""
        self.job = task = asyncio.ensure_future(job)
        self.saw_losses = self.world.judge.losses
        try:
            return await task
        except asyncio.CancelledError:
            if self.world.is_over or self.dead:
                raise
            raise Cancelled from None
        except (AssertionError, LookupError) as seen:
            if not isinstance(seen, OffloadError) and (self.world.in_doubt or self.lived_through_a_loss):
                raise Cancelled from seen  # what is seen while roots are lost, nobody answers for
            raise
        finally:
            self.job = None
            if self.lived_through_a_loss:  # nor for what was told
                self.offloader.commits.clear()

    @property
    def lived_through_a_loss(self) -> bool:
        """Whether roots were lost, or came back, since the present job began."""
        return self.saw_losses != self.world.judge.losses

    async def rest(self, seconds: float = 3.0) -> bool:
        """Do nothing for a while. False once the process is to end."""
        await asyncio.sleep(self.random.random() * seconds)
        return not self.stopping

    def start(self, person: Coroutine[Any, Any, None]) -> None:
        """Have somebody act in this process."""
        task = self.world.loop.create_task(person)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.dead:
            self.world.fail(f"{self.name}: {type(error).__name__}: {error}", error)

    def _emit(self, event: Event) -> None:
        if isinstance(event, ManifestCommitted):
            self.world.judge.told(event.manifest, self.name)


class Cancelled(Exception):
    """The director took the place of a caller who gave up."""


@dataclass
class Figures:
    """What happened in one history, or in many."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Sum up."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.counts.update(other.counts)


class World:
    """See the module's head."""

    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        # Drawn apart: the rest is as it would be without them.
        weather = Weather.of(self.random).with_guests(Random(f"{seed}/jobs"))
        self.weather = weather.on_a_tier(Random(f"{seed}/tier"))
        self.tell = tell
        self.broker = Broker(self.weather.first_offset)
        self.judge = SimulationJudge(self.broker)
        self.objects = Objects(self.judge)
        self.life = Life()
        self.unfinished: dict[str, Unfinished] = {}
        self.loop = DirectedLoop(self._direct)
        self.processes: list[Process] = []
        self.turns: list[Turn] = []
        self.late: list[Callable[[], None]] = []
        self.torn = self.judge.torn
        self.deletes_at_once = False
        """Whether somebody deletes an attempt that was committed once: that waits for no grace."""
        self.lost_anchor = ""
        """Its key."""
        self.receipts: list[Receipt] = []
        """What jobs uploaded lately."""

        self.figures = Figures(seeds=1)
        self.is_calm = self.is_over = False
        self.started: dict[str, int] = Counter()
        self.roles: dict[str, tuple[int, Person]] = {}
        """How many there are of each, and what they do."""
        self._failure: tuple[str, BaseException | None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits for which step."""
        self._begin_tier()

    def _begin_tier(self) -> None:
        """What is there before anybody lives: nothing, or anchors, or what is left of a stream of old."""
        if self.weather.births:
            return
        anchor = TierAnchor(branching_factor=self.weather.factor)
        if self.weather.split:
            stores = {"commit_store": "simulated://roots", "data_store": "simulated://data"}
            anchor = replace(anchor, uid=str(UUID(int=9)), **stores)
        self.objects[TIER_ANCHOR] = anchor.encode()
        self.objects[KEYS.anchor] = StreamAnchor(stream=STREAM).encode()
        if self.weather.first_version:
            tombstone = Manifest(
                stream=STREAM,
                version=self.weather.first_version,
                incarnation=UUID(int=8),
                writer=NOBODY,
                epoch=self.weather.first_version,
                source_epoch=0,
                committer=NOBODY,
                commit_id=UUID(int=8),
                state=StreamState.DELETED,
                first_offset=0,
                next_offset=0,
            )
            self.objects[KEYS.root(tombstone.version)] = encode_root(tombstone)

    def restore_the_broker(self) -> None:
        """The broker's log goes on from what the tier holds."""
        if self.judge.root is not None and self.judge.root.state == LIVE:
            self.broker.restore(self.judge.root)
            self.happened("restorations")

    # Who there is.

    def process(self, role: str) -> Process:
        """A new process: the n-th of its role. Once all is calm, its clocks are right."""
        self.started[role] += 1
        process = Process(self, f"{role}.{self.started[role]}")
        if self.weather.clocks_jump and not self.is_calm:
            process.clock.skew_seconds = self.random.choice((0.0, -3600.0, 3600.0, 40.0, -40.0))
        self.processes.append(process)
        return process

    def begin(self, role: str, person: Person) -> None:
        """Have somebody of this role live in a process of their own, and in another one after each crash."""
        process = self.process(role)
        process.start(person(process))

    @property
    def living(self) -> list[Process]:
        """The processes that have not crashed, and have something to do."""
        return [process for process in self.processes if not process.dead and not self._has_ended(process)]

    def _has_ended(self, process: Process) -> bool:
        return all(task.done() for task in process.tasks)

    # What happens.

    def fail(self, how: str, error: BaseException | None = None) -> None:
        """Something happened that must not. The history ends there."""
        if self._failure is None:
            self._failure = how, error

    def check(self) -> None:
        """Raise `Broken` where anything was broken at any moment so far."""
        if self.judge.violations:
            self.fail(self.judge.violations[0])
        if self._failure is not None:
            how, error = self._failure
            raise Broken(f"{self._where()}: {how}") from error

    @property
    def ledger_chunks(self) -> tuple[int, ...]:
        """How many chunks ledgers may have. Where fragments are compacted, there are some to compact."""
        return (4, 6) if self.weather.compactors else (1, 1, 2, 3)

    @property
    def page_keys(self) -> int:
        """How many keys the next page of a listing has."""
        return 1000 if self.is_calm else self.random.randint(1, self.weather.page_keys)

    def happened(self, what: str) -> None:
        """Count it."""
        self.figures.counts[what] += 1

    def now_ms(self) -> int:
        """The true time, which is also the store's."""
        return EPOCH_MS + int(self.loop.now * 1000)

    def chance(self, of: float) -> bool:
        """Whether it happens; never once all is calm."""
        return bool(of) and not self.is_calm and self.random.random() < of

    def say(self, what: str) -> None:
        """For whoever reads a replay."""
        if self.tell is not None:
            self.tell(f"{self.figures.steps:5} {self.loop.now:9.1f} s  {what}")

    def _direct(self, wait: float | None) -> None:
        """Every task waits: decide what is next."""
        self.check()
        if self.is_calm:
            return self._go_on_calmly(wait)
        self._trouble()
        turns = [turn for turn in self.turns if turn.process.stalled_until <= self.figures.steps]
        if turns and not (wait is not None and self.random.random() < 0.03):
            self.figures.steps += 1
            self._give(self.random.choice(turns))
            self.loop.now += self.random.random() * 0.2
        elif wait is not None:
            self.figures.steps += bool(self.turns) and not turns  # so that stalls end where all stall
            self.loop.now += wait
        elif self.late:
            self._land()
        else:  # all are stalled; the first of them wakes up
            for process in self.living:
                process.stalled_until = 0
        while self._waiting and self._waiting[0][0] <= self.figures.steps:
            self._waiting.pop(0)[1].set_result(None)
        return None

    def _go_on_calmly(self, wait: float | None) -> None:
        if self.turns:
            self.figures.steps += 1
            self._give(self.turns[0])
        elif wait is not None:
            self.loop.now += wait
        else:
            self.fail("nobody can go on")
            self.check()

    def _give(self, turn: Turn) -> None:
        self.turns.remove(turn)
        self.say(f"{turn.process.name:10} {turn.operation:10} {turn.key}")
        if not turn.given.done():  # nor was cancelled just now
            turn.given.set_result(None)

    def _trouble(self) -> None:
        """What befalls processes, between two turns."""
        weather = self.weather
        if self.late and self.random.random() < weather.landing:
            self._land()
        if self.chance(weather.stall):
            process = self._somebody()
            process.stalled_until = self.figures.steps + self.random.choice((5, 20, 80, 300))
            self.happened("stalls")
            self.say(f"{process.name} stalls")
        if self.chance(weather.crash):
            self.crash(self._anybody())
        if self.chance(weather.tears / 20) and (
            puts := [turn for turn in self.turns if turn.torn is not None]
        ):
            self.crash(self.random.choice(puts).process)
        if self.chance(weather.cancel) and (job := self._anybody().job) is not None:
            job.cancel()
            self.happened("cancels")
        if self.chance(weather.pause):
            self.loop.now += self.random.choice((GRACE_SECONDS, 3 * GRACE_SECONDS, 20.0))
            self.happened("pauses")
            self.say("time passes")
        if weather.clocks_jump and self.chance(0.02):
            self._jump(self._anybody().clock)
        if self.chance(weather.truncates):
            self._truncate()

    def _truncate(self) -> None:
        """A new leader of the broker goes on near the end of what the tier holds."""
        root = self.judge.root
        end = self.broker.first_offset if root is None or root.state != LIVE else root.next_offset
        offset = after(end, self.random.choice((-1, 0, 0, 0, 1, 1, 2, 3)))
        self.broker.cut(offset)
        self.happened("truncations")
        self.say(f"the broker's log is cut at {offset}")

    def _somebody(self) -> Process:
        """One that is about to change something, where a stall hurts most, or anybody."""
        changing = [turn.process for turn in self.turns if turn.act is not None]
        return self.random.choice(changing) if changing and self.random.random() < 0.7 else self._anybody()

    def _anybody(self) -> Process:
        return self.random.choice(self.living)

    def _jump(self, clock: Clock) -> None:
        if self.random.random() < 0.3:
            clock.suspended_seconds += self.random.random() * 2 * GRACE_SECONDS
        else:
            clock.skew_seconds += self.random.choice((-1, 1)) * self.random.random() * 10 * GRACE_SECONDS
        self.happened("clock jumps")

    def crash(self, process: Process) -> None:
        """The process is gone; of its requests under way some may land. Another process takes its place."""
        process.dead = True
        self.happened("crashes")
        self.say(f"{process.name} crashes")
        for turn in [turn for turn in self.turns if turn.process is process]:
            self.turns.remove(turn)
            if turn.torn is not None and turn.key not in self.objects and self.chance(self.weather.tears):
                self.happened("torn objects")
                turn.torn()
                self.torn.add(turn.key)
            elif turn.act is not None and self.random.random() < 0.4:
                self.late.append(turn.act)
        role = process.name.partition(".")[0]
        if not self.is_calm and role in self.roles:
            successor = self.process(role)
            successor.start(self.roles[role][1](successor))

    def _land(self) -> None:
        self.say("what was late lands")
        self.happened("landings")
        self.late.pop(self.random.randrange(len(self.late)))()

    # A whole history.

    def run(self, life: Callable[[World], Coroutine[Any, Any, None]]) -> Figures:
        """Live it to its end. Raises `Broken`."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stream_writer, "COMMIT_ENTRIES", self.weather.commit_entries)
                self.loop.run_until_complete(life(self))
            self.check()
            counts = {
                "zombies": self.judge.zombies,
                "roots": len(self.judge.history),
                "healed losses": self.judge.healed,
            }
            self.figures.counts.update(counts)
            return self.figures
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{self._where()}: {type(error).__name__}: {error}") from error
        finally:
            self._close()

    def _where(self) -> str:
        return f"seed {self.seed}, step {self.figures.steps}"

    @property
    def is_time_up(self) -> bool:
        """Whether the last turn with trouble is over."""
        return self.figures.steps >= self.weather.steps

    async def until(self, step: int) -> None:
        """Wait for a turn, or for the last one with trouble."""
        step = min(step, self.weather.steps)
        if step > self.figures.steps:
            self._waiting.append((step, self.loop.create_future()))
            await self._waiting[-1][1]

    async def calm_down(self, *, crashing: float = 0.3) -> None:
        """No more trouble: some crash, the others end what they do; then all that was late lands."""
        self.is_calm = True
        for process in self.living:
            process.stopping = True
            if self.random.random() < crashing:
                self.crash(process)
        await self._all_ended(process for process in self.processes if not process.dead)
        while self.late:
            self._land()
        self.judge.all_stopped = True
        self.check()

    def go_on(self) -> None:
        """Trouble begins again, and everybody lives again, in other processes."""
        self.is_calm = self.judge.all_stopped = False
        for role, (count, person) in self.roles.items():
            for _ in range(count):
                self.begin(role, person)

    @property
    def in_doubt(self) -> bool:
        """Whether an anchor or roots are lost, or roots may have been rebuilt beside people who live on."""
        return self.judge.loss is not None or bool(self.judge.perhaps_gone or self.lost_anchor)

    async def _all_ended(self, processes: Iterable[Process]) -> None:
        tasks = [task for process in processes for task in process.tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    def _close(self) -> None:
        """Cancel what is left. No store answers any more, so nothing can wait for one."""
        self.is_over = self.is_calm = True
        for process in self.processes:
            process.dead = True
        self._failure = None
        self.judge.violations.clear()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        with suppress(Crash, Broken):
            self.loop.run_until_complete(_silently(tasks))
        self.loop.close()


async def _silently(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def after(offset: int, chunks: int) -> int:
    """The offset so many chunks behind another."""
    return offset + chunks * CHUNK_RECORDS
