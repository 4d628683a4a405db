"""One vhost: its folder, its lock, its store, its queues, and the task that restarts it.

    up --the store failed--> restarting --opened again--> up
                                 |
                                 +--failed too often, or fenced--> down --`Vhosts.open`--> up

Every confirm depends on the store. So if the store fails, all queues of the vhost end with it, and begin
again with what is on disk and on the tier. Other vhosts of the process go on.

    <vhost, escaped>/writer.lock      held while this process has the vhost, restarts included
                    /note.vhost       the name
                    /log, /index      the store (`offload_queue.opening`)

A vhost that is not in its folder, and that the tier has, belonged to another machine. It is taken by a claim
of its stream: what was confirmed on the tier is there, and the old owner is fenced. A fenced one stays down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from offload.cache.block_cache import BlockCache
from offload.contracts.offloader import LedgerOffloader
from offload.formats.keys import escape
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Fenced, Misuse, OffloadError, TryAgain
from offload.log.disk import Disk
from offload.log.lock import LogLock
from offload.log.notes import load_note, save_note
from offload_queue.backing_queue import BackingQueue, MessageProperties, PublishedMessages
from offload_queue.declared_queue import DeclaredQueue
from offload_queue.message_store import MessageStore, OnFull
from offload_queue.opening import LOG_SIZE_BYTES_MAX, open_store
from offload_queue.priority_queue import PRIORITY_MAX, PriorityQueue
from offload_queue.queue_tier import QueueTier, take_over
from offload_queue.restarts import GivenUp, RestartLimit, Restarts, down
from offload_queue.variable_queue import VariableQueue, put_into, records_of

__all__ = ["QueueVhost", "VhostSettings"]

NAME_SIZE_BYTES_MAX: Final = 255
"""The longest name of a queue, as in AMQP 0-9-1."""

_LEVEL: Final = "\0"
"""Between the name of a queue and its level of priority, which is one character. No name has it."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VhostSettings:
    """How vhosts are opened and restarted. See `Vhosts`."""

    tier: LedgerOffloader | None
    log_size_bytes_max: int = LOG_SIZE_BYTES_MAX
    on_full: OnFull = "block"
    confirm: Literal["local", "tier"] = "local"
    limit: RestartLimit = field(default_factory=RestartLimit)
    cache: BlockCache | None = None
    env: Env = field(default_factory=Env)
    disk: Disk | None = None


class QueueVhost:
    """The queues of one vhost. `Vhosts.open` returns it."""

    def __init__(self, name: str, folder: Path, settings: VhostSettings) -> None:
        self._stream = f"queues/{name}"  # beside the streams of other programs
        escape(self._stream)
        self.name, self._folder, self._settings = name, folder / escape(name), settings
        self.env = settings.env
        self.error: BaseException | None = None
        """The last failure of its store. None if there was none."""
        self.is_given_up = False
        """True if it is down, and nobody restarts it but a person."""
        self._is_closed = False
        self._restarts = Restarts(settings.limit)
        self._queues: dict[str, DeclaredQueue] = {}
        self._store: MessageStore | None = None
        self._queue_tier: QueueTier | None = None
        self._lock: LogLock | None = None
        self._changing = asyncio.Lock()
        self._started = asyncio.Event()

    # For programs.

    @property
    def is_up(self) -> bool:
        """True unless the vhost failed and is not open again."""
        return self._started.is_set() and self._store is not None and self._store.failed is None

    @property
    def store(self) -> MessageStore:
        """The store. Raises the error for which the vhost does not run, `TryAgain` while it is restarted."""
        if self._is_closed:
            raise Misuse(f"vhost {self.name!r} is closed")
        if self.is_given_up and self.error is not None:
            raise down(f"vhost {self.name!r}", self.error)
        if self._store is None or not self.is_up:
            error = None if self._store is None else self._store.failed
            raise TryAgain(f"vhost {self.name!r} is being restarted after: {error or self.error}")
        return self._store

    @property
    def queue_names(self) -> Sequence[str]:
        """The names of all queues, in order, also of those that this process has not declared."""
        return sorted({each.name.partition(_LEVEL)[0] for each in self.store.queues.values()})

    async def declare(self, name: str, *, priority_max: int | None = None) -> DeclaredQueue:
        """Return the queue of this name. A new one is durable; its priorities are 0 to `priority_max`.

        Raises `Misuse` for a name without a byte, with NUL, or of more than 255 bytes, and if the queue is
        there with other priorities.
        """
        _check_name(name)
        if priority_max is not None and not (type(priority_max) is int and 0 <= priority_max <= PRIORITY_MAX):
            raise Misuse(f"priority_max is 0 to {PRIORITY_MAX}, not {priority_max!r}")
        async with self._changing:
            store, stored = self.store, _stored_names(name, priority_max)
            found = {each.name for each in store.queues.values() if each.name.partition(_LEVEL)[0] == name}
            if found and max(found) != stored[-1]:
                was = None if name in found else ord(max(found)[-1])
                raise Misuse(f"queue {name!r} was declared with priority_max={was}")
            if name not in self._queues:
                # The highest level first: after a crash in between, it tells how many there should be.
                for level in reversed(stored):
                    await store.declare(level)
                queue = DeclaredQueue(self, name, priority_max, Restarts(self._settings.limit))
                queue.begin()
                self._queues[name] = queue
            return self._queues[name]

    async def publish(
        self,
        queues: Sequence[DeclaredQueue],
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
    ) -> PublishedMessages:
        """Put each message into several queues of this vhost, and store it once. See `BackingQueue.put`.

        Raises `Misuse` for a queue with priorities: its messages go to several queues of the store.
        """
        targets = [each.backing for each in queues]
        plain = [each for each in targets if isinstance(each, VariableQueue)]
        if len({id(each) for each in plain}) != len(queues) or not plain:
            raise Misuse("publish to one or more queues without priorities, each once")
        store = self.store
        await store.room()
        properties = [MessageProperties()] * len(bodies) if properties is None else properties
        records = records_of([], bodies, properties, [each.stored.number for each in plain])
        return put_into(store, plain, records, tier=self._queue_tier)

    # For its queues.

    def open_backing(self, name: str, priority_max: int | None) -> BackingQueue:
        """Return a queue on the store as it is now."""
        store = self.store
        stored = {each.name: each for each in store.queues.values()}
        names = _stored_names(name, priority_max)
        levels = [VariableQueue(store, stored[each], self._queue_tier) for each in names]
        return levels[0] if priority_max is None else PriorityQueue(levels)

    def forget(self, queue: DeclaredQueue) -> None:
        """Forget a queue that was closed or deleted."""
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]

    # For `Vhosts`.

    async def start(self) -> None:
        """Take the lock, open the store and all queues. If it raises, the store is closed again."""
        settings, tier = self._settings, self._settings.tier
        try:
            if self._lock is None:
                self._lock = await asyncio.to_thread(_locked, self._folder, self.name)
            self._store = await open_store(
                self._folder,
                log_size_bytes_max=settings.log_size_bytes_max,
                on_full=settings.on_full,
                begin=None if tier is None else partial(take_over, tier, self._stream, self.env),
                env=self.env,
                disk=settings.disk,
            )
            if tier is not None:
                confirms = settings.confirm == "tier"
                side = QueueTier(self._store, tier, self._stream, confirms=confirms, cache=settings.cache)
                self._queue_tier = side
                # A tier that is away stops nothing. One that another machine has ends this vhost.
                with suppress(TryAgain):
                    await side.meet()
                side.start()
            self.is_given_up = False
            self._started.set()
            for queue in list(self._queues.values()):
                queue.begin()
        except BaseException:
            self._started.clear()
            await self._end()
            raise

    def forgive(self) -> None:
        """Forget the restarts: a person has looked at the vhost."""
        self._restarts.forget()

    async def supervise(self) -> None:
        """Restart the vhost whenever its store has failed, until it has failed too often. Never returns.

        Raises the error of the vhost if all vhosts are to stop.
        """
        while True:
            await self._started.wait()
            assert self._store is not None
            await self._store.ended.wait()
            self.error = self._store.failed
            self._started.clear()
            await self._end()
            while not self._started.is_set() and self._may_restart():
                _log.warning("vhost %r is restarted after: %r", self.name, self.error)
                await self.env.sleep(self.env.backoff_seconds(self._restarts.recent - 1, base_seconds=0.1))
                try:
                    await self.start()
                except Exception as failure:  # noqa: BLE001 - whatever it is, it is one failure of the vhost
                    self.error = failure
            if not self._started.is_set() and self.error is not None:
                self.is_given_up = True
                _log.error("vhost %r stays down: %r", self.name, self.error)
                if self._settings.limit.then is GivenUp.STOP:
                    raise self.error

    async def aclose(self) -> None:
        """Close the queues, the store and the lock. Idempotent."""
        for queue in list(self._queues.values()):
            if self.is_up:
                with suppress(OffloadError):
                    await queue.aclose()
        self._is_closed = True
        await self._end()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _may_restart(self) -> bool:
        # Another machine has the vhost of one that was fenced.
        return not isinstance(self.error, Fenced) and self._restarts.allow(self.env.monotonic())

    async def _end(self) -> None:
        for queue in self._queues.values():
            queue.end()
        side, self._queue_tier = self._queue_tier, None
        store, self._store = self._store, None
        for part in (side, store):
            if part is not None:
                with suppress(OffloadError):  # it has failed, or the next start says why it cannot be used
                    await part.aclose()


def _stored_names(name: str, priority_max: int | None) -> list[str]:
    """Return the names of the queues in the store that are one declared queue, by level."""
    return [name] if priority_max is None else [name + _LEVEL + chr(p) for p in range(priority_max + 1)]


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or _LEVEL in name:
        raise Misuse(f"{name!r} is no name of a queue: give a text without NUL")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as exc:
        raise Misuse(f"{name!r} is no name of a queue: it is not valid Unicode") from exc
    if size_bytes > NAME_SIZE_BYTES_MAX:
        raise Misuse(f"the name of a queue has 1 to {NAME_SIZE_BYTES_MAX} bytes, not {size_bytes}")


def _locked(folder: Path, name: str) -> LogLock:
    """Take the folder of a vhost. Blocks. Raises `Conflict` with the process that has it."""
    disk = Disk()
    folder.mkdir(parents=True, exist_ok=True)
    lock = LogLock.take(folder, disk=disk)
    try:
        if (found := load_note(folder, "vhost")) is None:
            save_note(folder, "vhost", name.encode(), disk=disk)
        elif found != name.encode():
            was = found.decode(errors="replace")
            raise Corrupt("name of the vhost", str(folder), expected=name, found=was)
        lock.save(epoch=lock.state.epoch, present=None)
    except BaseException:
        lock.release()
        raise
    return lock
