"""The vhosts of one process: each has a folder, a lock, a stream on the tier, and a task that watches it.

    async with Vhosts(folder, tier) as vhosts:
        vhost = await vhosts.open("shop")
        queue = await vhost.declare("orders")
        await queue.publish([b"first", b"second"])
        for message in await queue.fetch(10):
            await queue.ack([message.tag])

    failure of       ends                     and then
    a queue          that queue               it is restarted, as often as the limit allows
    a store          its vhost                it is restarted, as often as the limit allows
    a vhost, too     nothing else: CONTINUE   a person calls `open` again
    often            all vhosts: STOP         the block raises the error

Invariants: a vhost's folder is one level below `folder`, whatever its name is; when the block ends, no task
is left, and every store and lock is closed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from offload.cache.block_cache import BlockCache
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.log.disk import Disk
from offload_queue.message_store import OnFull
from offload_queue.opening import LOG_SIZE_BYTES_MAX
from offload_queue.queue_vhost import QueueVhost, VhostSettings
from offload_queue.restarts import RestartLimit

__all__ = ["Vhosts"]

CACHE_SIZE_BYTES: Final = 32 * 2**20
LOG_SIZE_BYTES_MIN: Final = 2**16


class Vhosts:
    """The vhosts of a folder and a tier. Use it by `async with`; the exit closes all of them.

    `tier` is an open tier, or None: then a full log blocks or refuses publishers until messages are consumed.
    `log_size_bytes_max` is the bound of each vhost on this disk. `on_full` says what a publish does at the
    bound. `confirm` is what a confirmed publish waits for: this disk, or the tier. `limit` says how often a
    vhost or a queue is restarted.
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
        disk: Disk | None = None,
    ) -> None:
        if confirm not in ("local", "tier") or (confirm == "tier" and tier is None):
            raise Misuse(f"confirm is 'local', or 'tier' with a tier, not {confirm!r}")
        if on_full not in ("block", "refuse"):
            raise Misuse(f"on_full is 'block' or 'refuse', not {on_full!r}")
        if log_size_bytes_max < LOG_SIZE_BYTES_MIN:
            raise Misuse(f"a log has at least {LOG_SIZE_BYTES_MIN} bytes, not {log_size_bytes_max}")
        self._folder = Path(folder)
        self._settings = VhostSettings(
            tier=tier,
            log_size_bytes_max=log_size_bytes_max,
            on_full=on_full,
            confirm=confirm,
            limit=limit or RestartLimit(),
            cache=None if tier is None else BlockCache(CACHE_SIZE_BYTES),
            env=env or Env(),
            disk=disk,
        )
        self._vhosts: dict[str, QueueVhost] = {}
        self._watching: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._opening = asyncio.Lock()

    async def open(self, name: str) -> QueueVhost:
        """Return the vhost of this name, and open it if it is not: also one that was given up.

        Raises `Fenced` if another machine has it, `Conflict` if a process here has it, and `TryAgain` if its
        folder is empty and the tier does not answer: only the tier knows whether it exists. Raises `Misuse`
        for a name without a byte, or of more than 4,089 bytes.
        """
        async with self._opening:
            if self._group is None:
                raise Misuse("vhosts are opened inside `async with Vhosts(...)`")
            if (vhost := self._vhosts.get(name)) is None:
                vhost = QueueVhost(name, self._folder, self._settings)
                try:
                    await vhost.start()
                except BaseException:
                    await vhost.aclose()
                    raise
                self._vhosts[name] = vhost
                self._watching.append(self._group.create_task(vhost.supervise()))
            elif vhost.is_given_up:
                vhost.forgive()
                await vhost.start()
            return vhost

    async def __aenter__(self) -> Self:
        """Return it. Nothing is opened yet."""
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the supervision, and close every vhost. Raises the error for which all vhosts stopped."""
        group, self._group = self._group, None
        assert group is not None
        for task in self._watching:
            task.cancel()
        try:
            await group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:  # of a vhost, or else of the body: callers tell errors by class
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        finally:
            for vhost in self._vhosts.values():
                await vhost.aclose()
            if self._settings.cache is not None:
                await self._settings.cache.aclose()
