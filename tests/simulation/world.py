"""One history of one stream, made from one seed: processes, a store that fails, clocks and a director.

    figures = simulate(4711)         # raises `Broken`, with the seed and the step, if an invariant breaks

Every request of every process is a turn, which waits until the director gives it. Often the reply waits for
its own turn. So between any two requests of one process, all others may act. The processes, the kinds of
trouble and their frequency are drawn from the seed first (`Weather`). Many histories with some kinds of
trouble each reach more states than one with all kinds (swarm testing: Groce et al., ISSTA 2012).

    trouble          what happens
    refused          the request was not applied; TryAgain
    throttled        the same, with a time to wait
    lost reply       it was applied; OutcomeUnknown
    late             OutcomeUnknown; it is applied at some later time, or at the end
    stall            a process gets no turn for some time
    crash            a process ends; its requests in flight may still land; another process replaces it
    cancel           a caller gives up waiting; the process continues
    clocks           wall clocks jump and differ; steady clocks continue during a suspension
    pages            a listing is read page by page, and other processes act between pages
    flipped bit      a read returns its bytes with one bit wrong; the object is sound
    torn object      a put in flight during a crash leaves a damaged object, as no store should
    resend           a client library repeats a create without an answer

The judge (`protocol_judge`) inspects the objects whenever one of them appears or is deleted. Readers and
writers check their own data and results (`people`). At the end of a history all late requests land, a last
writer and a last sweep run, and then all data must be there and nothing else.
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
from protocol_world import CHUNK_RECORDS, KEYS, STREAM, ResendingClient, chunk

from offload.contracts.events import Event, ManifestCommitted
from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore, Unfinished
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, is_decisive
from offload.formats.root import encode_root
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Denied, OffloadError, OutcomeUnknown, TryAgain
from offload.model.attempt import Receipt
from offload.model.compression import Compression
from offload.model.manifest import NOBODY, Manifest, StreamState
from offload.native import key_ring
from offload.native.offloader import TierOptions
from offload.native.place import TierPlace, TierPlan
from offload.store.stack import stacked_store
from offload.write import writer as stream_writer
from simulation import locksmith
from simulation.broker import Broker
from simulation.judgement import SimulationJudge
from simulation.keys import KeyHouse
from simulation.loop import DirectedLoop
from simulation.notes import Notebook
from simulation.owners import Disk, OwnedBroker
from simulation.store import Crash, Life, SimulatedStore, Turn, is_data
from simulation.weather import GRACE_SECONDS, Weather

T = TypeVar("T")
Person = Callable[["Process"], Coroutine[Any, Any, None]]

EPOCH_MS: Final = 1_700_000_000_000

COMPACTED_SIZE_BYTES: Final = 6 * len(chunk(0))
"""The size of fragments after a compaction: larger than any run in a group of two or three small ones."""


class Broken(AssertionError):
    """A broken invariant, or an error that must not happen."""


class Cancelled(Exception):
    """The error of a job that the director cancelled in place of a caller."""


FAILURES: Final = (TryAgain, OutcomeUnknown, Cancelled)
"""The errors that the store, or a caller's deadline, may cause in any process."""


@dataclass
class Clock:
    """The offsets of a process's clocks: skew for the wall clock, suspension for the steady clock."""

    skew_seconds: float = 0.0
    suspended_seconds: float = 0.0


class Process:
    """A process with its own store, clocks and names, and an offloader that uses them."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.random = Random(f"{world.seed}/{name}")
        self.dead = self.stopping = False
        self.stalled_until = 0
        self.saw_losses = 0
        """The number of losses when the current job began."""
        self.saw_denials = 0
        """The number of denials by the key service that had ended when the current job began."""
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
        coding = Random(f"{world.seed}/{name}/coding")  # drawn separately, so nothing else changes
        codec = coding.choice(("none", "lz4", "zstd:1")) if world.weather.compresses else "none"
        self.ring = locksmith.ring_of(self, coding)
        self.offloader = locksmith.GuardedOffloader(
            self.place.data,
            env=self.env,
            options=TierOptions(
                fragment_size_bytes=size_bytes, uploads_max=2, compression=Compression.parse(codec)
            ),
            emit=self._emit,
            open_store=self.place.open_store,
            factor=world.weather.factor,
            ring=self.ring,
        )
        self.offloader.process = self

    def requests(self) -> SimulatedStore:
        """Return a store by which the process makes requests of any kind."""
        return SimulatedStore(self, self.world)

    def _store(self, holds: Callable[[str], bool] | None) -> ObjectStore:
        """Return the store of this process, for all keys or for some."""
        store: ObjectStore = SimulatedStore(self, self.world, holds=holds)
        if self.resends:
            store = ResendingClient(store)
        return store if self.limits is None else stacked_store(store, self.env, self.limits)

    async def do(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job. Raises `Cancelled` if the director cancels it, as a caller's deadline does."""
        self.job = task = asyncio.ensure_future(job)
        self.saw_losses = self.world.judge.losses
        self.saw_denials = self.world.house.denials - (self.world.house.state == "denying")
        try:
            return await task
        except asyncio.CancelledError:
            if self.world.is_over or self.dead:
                raise
            raise Cancelled from None
        except (AssertionError, LookupError) as seen:
            if not isinstance(seen, OffloadError) and (self.world.in_doubt or self.lived_through_a_loss):
                raise Cancelled from seen  # no promise holds during a loss of roots
            raise
        finally:
            self.job = None
            if self.lived_through_a_loss:  # results from a loss need not hold
                self.offloader.commits.clear()

    @property
    def lived_through_a_loss(self) -> bool:
        """Return True if roots were lost, or came back, since the current job began."""
        return self.saw_losses != self.world.judge.losses

    @property
    def may_be_denied(self) -> bool:
        """Return True if a key may be missing: the process has none, the service denied, or a shred began."""
        if not self.world.weather.encrypts:
            return False
        house = self.world.house
        return self.ring is None or self.saw_denials != house.denials or house.is_shredding

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The errors that the process must expect: also damage if reads flip bits, any during a loss."""
        if self.world.in_doubt or self.lived_through_a_loss:
            return (*FAILURES, OffloadError)
        damage = (Corrupt,) if self.world.weather.flips else ()
        return (*FAILURES, *damage, Denied) if self.may_be_denied else (*FAILURES, *damage)

    async def rest(self, seconds: float = 3.0) -> bool:
        """Do nothing for a while. Return False if the process should end."""
        await asyncio.sleep(self.random.random() * seconds)
        return not self.stopping

    def start(self, person: Coroutine[Any, Any, None]) -> None:
        """Start a role in this process."""
        task = self.world.loop.create_task(person)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.dead:
            self.world.fail(f"{self.name}: {type(error).__name__}: {error}", error)

    def _emit(self, event: Event) -> None:
        if isinstance(event, ManifestCommitted):
            self.world.judge.told(event.manifest, self.name)


@dataclass
class Figures:
    """The counts of events in one history, or in many."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Add the counts of other histories."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.counts.update(other.counts)


class World:
    """A world, as the module's docstring describes it."""

    def __init__(
        self,
        seed: int,
        *,
        owned: bool = False,
        noted: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        # These are drawn separately, so they do not change the rest of the draw.
        weather = Weather.of(self.random).with_guests(Random(f"{seed}/jobs"))
        self.weather = weather.on_a_tier(Random(f"{seed}/tier")).with_keys(Random(f"{seed}/keys"))
        if owned:
            self.weather = self.weather.with_owners(Random(f"{seed}/owners"))
        if noted:
            self.weather = self.weather.with_keepers(Random(f"{seed}/notes"))
        self.notebook = Notebook()
        self.tell = tell
        self.disks: dict[str, Disk] = {}
        """The disks of managed ledgers, by role."""
        self.broker = (
            OwnedBroker(0, now=lambda: self.loop.now) if owned else Broker(self.weather.first_offset)
        )
        self.house = KeyHouse(Random(f"{seed}/house"))
        self.graves: list[locksmith.Grave] = []
        """The lives of the stream that were shredded."""
        self.judge = SimulationJudge(self.broker, self.house)
        self.objects = Objects(self.judge)
        self.life = Life()
        self.unfinished: dict[str, Unfinished] = {}
        self.loop = DirectedLoop(self._direct)
        self.processes: list[Process] = []
        self.turns: list[Turn] = []
        self.late: list[Callable[[], None]] = []
        self.torn = self.judge.torn
        self.deletes_at_once = False
        """True or not empty if a process deleted an attempt that was once committed, which needs no grace."""
        self.lost_anchor = ""
        """The key of the lost anchor; empty if none is lost."""
        self.receipts: list[Receipt] = []
        """The newest uploads of jobs."""

        self.figures = Figures(seeds=1)
        self.is_calm = self.is_over = False
        self.started: dict[str, int] = Counter()
        self.roles: dict[str, tuple[int, Person]] = {}
        """The number of processes and the work of each role."""
        self._failure: tuple[str, BaseException | None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The waiting tasks, each with its step."""
        self._begin_tier()

    def _begin_tier(self) -> None:
        """Create the first objects: none, or the anchors, or also the tombstone of an old stream."""
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
        """Let the broker's log continue from the data of the tier."""
        if self.judge.root is not None and self.judge.root.state == LIVE:
            self.broker.restore(self.judge.root)
            self.happened("restorations")

    # Processes.

    def process(self, role: str) -> Process:
        """Make the next process of a role. If the world is calm, its clocks are right."""
        self.started[role] += 1
        process = Process(self, f"{role}.{self.started[role]}")
        if self.weather.clocks_jump and not self.is_calm:
            process.clock.skew_seconds = self.random.choice((0.0, -3600.0, 3600.0, 40.0, -40.0))
        self.processes.append(process)
        return process

    def begin(self, role: str, person: Person) -> None:
        """Start a role in a new process, and in another one after each crash."""
        process = self.process(role)
        process.start(person(process))

    @property
    def living(self) -> list[Process]:
        """Return the processes that have not crashed and still run."""
        return [process for process in self.processes if not process.dead and not self._has_ended(process)]

    def _has_ended(self, process: Process) -> bool:
        return all(task.done() for task in process.tasks)

    # Events.

    def fail(self, how: str, error: BaseException | None = None) -> None:
        """Record a failure. The history ends there."""
        if self._failure is None:
            self._failure = how, error

    def check(self) -> None:
        """Raise `Broken` if anything was broken at any moment so far."""
        if self.judge.violations:
            self.fail(self.judge.violations[0])
        if self._failure is not None:
            how, error = self._failure
            raise Broken(f"{self._where()}: {how}") from error

    @property
    def ledger_chunks(self) -> tuple[int, ...]:
        """Return the possible numbers of chunks of a ledger. They are larger if there are compactions."""
        return (4, 6) if self.weather.compactors else (1, 1, 2, 3)

    @property
    def page_keys(self) -> int:
        """Return the number of keys on the next page of a listing."""
        return 1000 if self.is_calm else self.random.randint(1, self.weather.page_keys)

    def happened(self, what: str) -> None:
        """Count an event."""
        self.figures.counts[what] += 1

    def now_ms(self) -> int:
        """Return the true time, which is also the store's."""
        return EPOCH_MS + int(self.loop.now * 1000)

    def chance(self, of: float) -> bool:
        """Return True with this probability, and never in a calm world."""
        return bool(of) and not self.is_calm and self.random.random() < of

    def say(self, what: str) -> None:
        """Print a line for the reader of a replay."""
        if self.tell is not None:
            self.tell(f"{self.figures.steps:5} {self.loop.now:9.1f} s  {what}")

    def _direct(self, wait: float | None) -> None:
        """Decide what is next. Every task waits."""
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
            self.figures.steps += bool(self.turns) and not turns  # so that stalls end if all processes stall
            self.loop.now += wait
        elif self.late:
            self._land()
        else:  # all processes stall, so wake them up
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
            self.fail("no process can continue")
            self.check()

    def _give(self, turn: Turn) -> None:
        self.turns.remove(turn)
        self.say(f"{turn.process.name:10} {turn.operation:10} {turn.key}")
        if not turn.given.done():  # unless it was cancelled just now
            turn.given.set_result(None)

    def _trouble(self) -> None:
        """Cause trouble between two turns."""
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
        locksmith.trouble(self)

    def _truncate(self) -> None:
        """Let a new leader of the broker continue near the end of the tier."""
        root = self.judge.root
        end = self.broker.first_offset if root is None or root.state != LIVE else root.next_offset
        offset = after(end, self.random.choice((-1, 0, 0, 0, 1, 1, 2, 3)))
        self.broker.cut(offset)
        self.happened("truncations")
        self.say(f"the broker's log is cut at {offset}")

    def _somebody(self) -> Process:
        """Return a process that is about to change an object, where a stall hurts most, or any process."""
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
        """End the process. Some of its requests in flight may land. Another process replaces it."""
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
        """Run a history to its end. Raises `Broken` if an invariant is broken."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stream_writer, "COMMIT_ENTRIES", self.weather.commit_entries)
                patch.setattr(key_ring, "KEPT_SECONDS", self.weather.kept_seconds)
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
        """Return True if the last turn with trouble is over."""
        return self.figures.steps >= self.weather.steps

    async def until(self, step: int) -> None:
        """Wait for this step, or for the last one with trouble."""
        step = min(step, self.weather.steps)
        if step > self.figures.steps:
            self._waiting.append((step, self.loop.create_future()))
            await self._waiting[-1][1]

    async def calm_down(self, *, crashing: float = 0.3) -> None:
        """End the trouble. Some processes crash, the others end their work, and then late requests land."""
        self.is_calm, self.house.state = True, ""
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
        """Let trouble begin again, with new processes for every role."""
        self.is_calm = self.judge.all_stopped = False
        for role, (count, person) in self.roles.items():
            for _ in range(count):
                self.begin(role, person)

    @property
    def in_doubt(self) -> bool:
        """Return True if an anchor or roots are lost, or were rebuilt while other processes continued."""
        return self.judge.loss is not None or bool(self.judge.perhaps_gone or self.lost_anchor)

    async def _all_ended(self, processes: Iterable[Process]) -> None:
        tasks = [task for process in processes for task in process.tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    def _close(self) -> None:
        """Cancel the remaining tasks. No store answers any more, so no task can wait for one."""
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
    """Return the offset that is so many chunks behind another."""
    return offset + chunks * CHUNK_RECORDS
