"""Processes in one event loop that a test kills or pauses at each of their requests.

A `Process` has its own view of the store and the key service of a world. Its moments are those before and
after each request. At one of them, a test lets a rival run, or raises `Crash`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from campaign import CAMPAIGN
from key_world import Service, World

from offload import ObjectStoreOffloader
from offload.contracts.keys import KeyService
from offload.store.faults import FaultyStore

Act = Callable[[], Awaitable[None]]


class Crash(Exception):
    """The process is killed here."""


async def crash(_world: World) -> None:
    """Kill the process."""
    raise Crash


async def nothing() -> None:
    """Let the process go on."""


@dataclass
class Process:
    """A process of a world. It awaits `act` at moment `number`, counted from 1, and `watch` at each."""

    world: World
    number: int = 0
    act: Act = nothing
    watch: Act = nothing
    moments: int = 0
    store: FaultyStore = field(init=False)
    service: KeyService = field(init=False)

    def __post_init__(self) -> None:
        self.store = FaultyStore(self.world.store.inner, before=self._moment, after=self._moment)
        self.service = _Watched(self.world.service, self._moment)

    def tier(self, label: str | None = None) -> ObjectStoreOffloader:
        """Return the tier, with a ring of keys that is still empty."""
        ring = self.world.ring(label)
        ring.service = self.service
        return ObjectStoreOffloader(self.store, ring=ring)

    async def _moment(self, *_request: str) -> None:
        self.moments += 1
        await self.watch()
        if self.moments == self.number:
            await self.act()


async def at_every_moment(
    make: Callable[[], Awaitable[World]],
    work: Callable[[Process], Awaitable[None]],
    act: Callable[[World], Awaitable[None]],
    *,
    watch: Callable[[World], Awaitable[None]] | None = None,
) -> AsyncIterator[World]:
    """Run `work` in a fresh world for each of its moments, with `act` at that moment. Yield each world.

    `make test` takes one of three moments. In the last world, `work` has run undisturbed.
    """
    for number in count(1, 1 if CAMPAIGN else 3):
        world = await make()
        process = Process(world, number, partial(act, world))
        if watch is not None:
            process.watch = partial(watch, world)
        with suppress(Crash):
            await work(process)
        yield world
        if process.moments < number:
            assert number > 10, "the work has requests"
            return


@dataclass
class _Watched(KeyService):
    service: Service
    moment: Callable[[], Awaitable[None]]

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        await self.moment()
        return await self.service.wrap(label, key, context)

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        await self.moment()
        return await self.service.unwrap(label, wrapped, context)

    async def create(self, label: str) -> None:
        await self.moment()
        await self.service.create(label)

    async def destroy(self, label: str) -> float:
        await self.moment()
        seconds = await self.service.destroy(label)
        await self.moment()
        return seconds
