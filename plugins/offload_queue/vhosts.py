"""The vhosts of one process: each has a folder, a lock, a stream on the tier, and a task that watches it.

    async with Vhosts(folder, tier) as vhosts:
        vhost = await vhosts.open("shop")
        queue = await vhost.declare("orders")
        await queue.publish([b"first", b"second"])
        for message in await queue.fetch(10):
            await queue.ack([message.tag])

A failure of a store ends its vhost, and the others go on: all of its queues raise the error. It is opened
again at once, as often as the limit allows, and its queues are declared again by whoever wants them. An error
of one queue's method is raised to its caller, and ends nothing else. A vhost that was fenced stays down.

A vhost that has no folder, and that the tier has, belonged to another machine. It is taken over by a claim:
everything that was confirmed on the tier is there, and the old owner is fenced.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import quote

from offload.cache.block_cache import BlockCache
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import Fenced, Misuse, OffloadError, TryAgain
from offload_queue.backing_queue import BackingQueue, MessageProperties, PublishedMessages
from offload_queue.message_store import MessageStore, OnFull
from offload_queue.opening import LOG_FOLDER, LOG_SIZE_BYTES_MAX, open_store
from offload_queue.priority_queue import PRIORITY_MAX, PriorityQueue
from offload_queue.queue_tier import QueueTier, take_over
from offload_queue.restarts import GivenUp, RestartLimit, Restarts
from offload_queue.variable_queue import VariableQueue, put_into, records_of

__all__ = ["QueueVhost", "Vhosts"]

CACHE_SIZE_BYTES: Final = 32 * 2**20
NAME_SIZE_BYTES_MAX: Final = 80
"""A name has three bytes in a file's name for each of its own, and a file's name has 255."""

_log: Final = logging.getLogger(__name__)


class QueueVhost:
    """One vhost that is open in this process. `Vhosts.open` returns it."""

    def __init__(self, vhosts: Vhosts, name: str) -> None:
        self.name, self._vhosts = name, vhosts
        self.error: OffloadError | None = None
        """The last failure of its store. None if there was none."""
        self._restarts = Restarts(vhosts.limit)
        self._up = asyncio.Event()
        self._store: MessageStore | None = None
        self._tier: QueueTier | None = None
        self._queues: dict[str, VariableQueue] = {}
        self._declaring = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        """True unless the vhost failed and is not open again."""
        return self._store is not None and self._store.failed is None

    @property
    def store(self) -> MessageStore:
        """The store. Raises its failure if the vhost is down."""
        if self._store is None or self._store.failed is not None:
            raise TryAgain(f"vhost {self.name!r} is down: {self.error}") from self.error
        return self._store

    async def declare(self, name: str, *, priority_max: int | None = None) -> BackingQueue:
        """Return the queue of this name. A new one is durable; its priorities are 0 to `priority_max`.

        Raises `Misuse` for a name that is empty or longer than 255 bytes.
        """
        if not 0 < len(name.encode()) <= 255:
            raise Misuse(f"the name of a queue has 1 to 255 bytes, not {len(name.encode())}")
        if priority_max is not None and priority_max < 1:
            raise Misuse(f"the highest priority is at least 1, not {priority_max}")
        async with self._declaring:
            if priority_max is None:
                return await self._plain(name)
            # RabbitMQ's names of levels.
            levels = range(min(priority_max, PRIORITY_MAX) + 1)
            return PriorityQueue([await self._plain(f"{name} 00 {chr(level)}") for level in levels])

    async def publish(
        self,
        queues: Sequence[VariableQueue],
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
    ) -> PublishedMessages:
        """Put each message into several queues of this vhost, and store it once. See `BackingQueue.put`."""
        await self.store.room()
        if properties is None:
            properties = [MessageProperties()] * len(bodies)
        numbers = [each.stored.number for each in queues]
        return put_into(self.store, queues, records_of([], bodies, properties, numbers), tier=self._tier)

    async def _plain(self, name: str) -> VariableQueue:
        found = self._queues.get(name)
        if found is None or found.is_over:
            store, tier = self.store, self._tier
            found = self._queues[name] = VariableQueue(store, await store.declare(name), tier)
        self.store.check()
        return found

    # For `Vhosts`.

    async def begin(self) -> None:
        """Open the store and the tier's side, and take the vhost over if another machine had it."""
        vhosts, took = self._vhosts, None
        folder, stream = vhosts.folder / quote(self.name, safe=""), f"queues/{self.name}"
        if vhosts.tier is not None and not (folder / LOG_FOLDER).exists():
            took = await take_over(vhosts.tier, stream, vhosts.env)
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        store = await open_store(
            folder,
            log_size_bytes_max=vhosts.log_size_bytes_max,
            on_full=vhosts.on_full,
            instance=took,
            env=vhosts.env,
        )
        tier = None
        try:
            if vhosts.tier is not None:
                confirms = vhosts.confirm == "tier"
                tier = QueueTier(store, vhosts.tier, stream, confirms=confirms, cache=vhosts.cache)
                # A tier that is away stops nothing. One that another machine has ends this vhost.
                with suppress(TryAgain):
                    await tier.meet()
                tier.start()
        except BaseException:
            await store.aclose()
            raise
        self._queues, self._store, self._tier = {}, store, tier

    async def watch(self) -> None:
        """Wait for failures of the store, and open it again. Returns when it stays down."""
        while (store := self._store) is not None:
            await store.ended.wait()
            failure = store.failed
            self.error = failure if isinstance(failure, OffloadError) else TryAgain(repr(failure))
            await self.end()
            while not self.is_up:
                _log.error("vhost %r failed: %s", self.name, self.error)
                if isinstance(self.error, Fenced) or not self._restarts.allow(self._vhosts.env.monotonic()):
                    if self._vhosts.limit.then is GivenUp.STOP:
                        raise self.error
                    return
                try:
                    await self.begin()
                except OffloadError as error:
                    self.error = error

    async def end(self) -> None:
        """Close queues, tier and store. The files are released."""
        store, tier = self._store, self._tier
        for queue in self._queues.values():
            with suppress(OffloadError):
                await queue.aclose()
        if tier is not None:
            await tier.aclose()
        if store is not None:
            await store.aclose()
        self._store = self._tier = None

    def forgive(self) -> None:
        """Forget the failures: a person opens the vhost again."""
        self._restarts.forget()


class Vhosts:
    """The vhosts of a folder and a tier. Use it by `async with`; the exit closes all of them.

    `tier` is an open tier, or None: then a full log blocks or refuses publishers until messages are consumed.
    `confirm` is what a confirmed publish waits for. `limit` says how often a vhost is opened again.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        tier: LedgerOffloader | None,
        *,
        log_size_bytes_max: int = LOG_SIZE_BYTES_MAX,
        confirm: Literal["local", "tier"] = "local",
        on_full: OnFull = "block",
        limit: RestartLimit | None = None,
        env: Env | None = None,
    ) -> None:
        if confirm not in ("local", "tier") or (confirm == "tier" and tier is None):
            raise Misuse(f"confirm is 'local', or 'tier' with a tier, not {confirm!r}")
        if on_full not in ("block", "refuse"):
            raise Misuse(f"on_full is 'block' or 'refuse', not {on_full!r}")
        if log_size_bytes_max < 2**16:
            raise Misuse(f"a log has at least {2**16} bytes, not {log_size_bytes_max}")
        self.folder, self.tier, self.log_size_bytes_max = Path(folder), tier, log_size_bytes_max
        self.confirm, self.on_full, self.limit = confirm, on_full, limit or RestartLimit()
        self.env = env or Env()
        self.cache: BlockCache | None = None
        self._vhosts: dict[str, QueueVhost] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._opening = asyncio.Lock()

    async def open(self, name: str) -> QueueVhost:
        """Return the vhost of this name, and open it if it is not: also one that was given up.

        Raises `Fenced` if another machine has it, `Conflict` if a process here has it, and `TryAgain` if its
        folder is empty and the tier does not answer: only the tier knows whether it exists.
        """
        if not 0 < len(name.encode()) <= NAME_SIZE_BYTES_MAX or name in (".", ".."):
            raise Misuse(f"{name!r} is no name of a vhost: 1 to {NAME_SIZE_BYTES_MAX} bytes")
        async with self._opening:
            vhost = self._vhosts.get(name)
            watching = self._watching.get(name)
            if vhost is None or watching is None or watching.done():
                vhost = self._vhosts.setdefault(name, QueueVhost(self, name))
                vhost.forgive()
                await vhost.begin()
                self._watching[name] = self._group.create_task(vhost.watch())
            return vhost

    async def __aenter__(self) -> Self:
        """Return it. Nothing is opened yet."""
        await self._group.__aenter__()
        if self.tier is not None:
            self.cache = BlockCache(CACHE_SIZE_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        for task in self._watching.values():
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, None)
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from error
        finally:
            for vhost in self._vhosts.values():
                await vhost.end()
            if self.cache is not None:
                await self.cache.aclose()
