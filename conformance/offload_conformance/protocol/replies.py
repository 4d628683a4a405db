"""Replies: lost, late, refused, slow, sent twice, or telling to wait. What was done is done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix
from offload.env import Env
from offload.errors import OutcomeUnknown, Throttled
from offload.store.faults import Call, Fault
from offload.store.wrap import StoreDecorator
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.crashes import changes_of_a_copy
from offload_conformance.protocol.process import OPTIONS, Process
from offload_conformance.protocol.world import KEYS, World, Worlds

ROOTS_OF_A_COPY = 4
"""Claim, preparation, append, trim."""


class ReplyClauses(ProtocolClauses):
    """Whatever becomes of a request or its reply, a change is in once or not at all."""

    def test_lost_replies_commit_once(self, run: Run, new_world: Worlds) -> None:
        """A change whose reply was lost is in once, whichever it is; a commit then needs no second try."""
        run(each_change_spoiled(new_world, Fault.LOSE_REPLY))

    def test_refused_requests_may_be_repeated(self, run: Run, new_world: Worlds) -> None:
        """A request that was refused before it took effect is sent again, and the end is the same."""

        async def scenario() -> None:
            await each_change_spoiled(new_world, Fault.FAIL_BEFORE)
            world = new_world()
            await world.copied_by(world.process(front=RefusesFirst))
            await world.check()

        run(scenario())

    def test_changes_sent_twice_are_in_once(self, run: Run, new_world: Worlds) -> None:
        """A client library that sends every change a second time by itself commits each of them once."""

        async def scenario() -> None:
            world = new_world()
            process = world.process(front=SendsTwice)
            await process.copy()
            assert len(await world.commits()) == ROOTS_OF_A_COPY
            await world.check_told()
            await world.check()

        run(scenario())

    def test_late_requests_change_nothing(self, run: Run, new_world: Worlds) -> None:
        """What a dead writer had sent takes effect when its successor is done, and nothing changes by it."""

        async def course(number: int) -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            dead.spoil(number, Fault.DELAY)
            with suppress(OutcomeUnknown):  # of an anchor nobody looks what became
                await world.crashed(dead, before=number + 1)
            await successor.copy()
            before = await world.commits()

            await dead.store.land()

            assert await world.commits() == before
            await world.check()

        async def scenario() -> None:
            for number in (await changes_of_a_copy(new_world()))[:-1]:
                await course(number)

        run(scenario())

    def test_slow_replies_reorder_nothing(self, run: Run, new_world: Worlds) -> None:
        """Uploads that are answered in any order are committed in the order of their offsets."""

        async def scenario() -> None:
            world = new_world()
            process = world.process(options=replace(OPTIONS, uploads_max=4))
            writer = await process.claim()
            answering = answer_in_any_order(process, world, count=4)
            await writer.offload([ledger_of(8)])
            await answering
            await world.check(first=0, end=8)

        run(scenario())

    def test_throttling_is_waited_out(self, run: Run, new_world: Worlds) -> None:
        """A store that asks to be left alone for some seconds is left alone for no less, and then obeyed."""

        async def scenario() -> None:
            world = new_world()
            process = world.process()
            throttling = Throttling(process.store.inner, env=process.env)
            process.store.inner = throttling
            await world.copied_by(process, failing=Throttled)
            assert throttling.early == []
            assert throttling.refused > ROOTS_OF_A_COPY
            await world.check()

        run(scenario())


async def each_change_spoiled(new_world: Worlds, fault: Fault) -> None:
    """A run for each request that changes something, in which this happens to it."""
    for number in await changes_of_a_copy(new_world()):
        world = new_world()
        process = world.process()
        process.spoil(number, fault)
        failures = await world.copied_by(process)
        spoiled = process.store.calls[number - 1]
        if spoiled.key.startswith(KEYS.roots):
            assert failures == 0, f"{spoiled.operation} of {spoiled.key}"
        if not failures:
            assert len(await world.commits()) == ROOTS_OF_A_COPY
        await world.check_told()
        await world.check()


def answer_in_any_order(process: Process, world: World, *, count: int) -> asyncio.Future[None]:
    """Hold the replies to so many puts until all are applied; then give them one by one, in any order."""
    waiting: dict[int, asyncio.Event] = {}
    all_there = asyncio.Event()

    async def after(operation: str, key: str) -> None:
        if operation == "put":
            answered = waiting[len(waiting)] = asyncio.Event()
            if len(waiting) == count:
                all_there.set()
            await answered.wait()

    async def answer() -> None:
        await all_there.wait()
        order = [*waiting]
        while order == sorted(order):
            world.random.shuffle(order)
        for number in order:
            waiting[number].set()
            for _ in range(20):  # whoever waits for this reply goes on before the next one comes
                await asyncio.sleep(0)

    process.store.after = after
    return asyncio.ensure_future(answer())


class _Each(StoreDecorator):
    """Asks `about` before each request."""

    async def about(self, operation: str, key: str) -> None:
        """May raise."""

    async def put(self, key: str, body: Body) -> None:
        """Ask, and put."""
        await self.about("put", key)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Ask, and create."""
        await self.about("create", key)
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Ask, and get."""
        await self.about("get", key)
        return await super().get(key, span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Ask, and list."""
        await self.about("list", prefix)
        async for row in super().list(prefix, after=after):
            yield row

    async def delete(self, keys: Sequence[str]) -> None:
        """Ask, and delete."""
        await self.about("delete", keys[0] if keys else "")
        await super().delete(keys)


class RefusesFirst(_Each):
    """Refuses each request when it is first made."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._seen: set[Call] = set()

    async def about(self, operation: str, key: str) -> None:
        """Refuse what is new."""
        call = Call(operation, key)
        if call not in self._seen:
            self._seen.add(call)
            raise Throttled(f"{operation} of {key!r} was refused on purpose")


class Throttling(_Each):
    """Refuses each request when it is first made, and asks to be left alone for some seconds."""

    def __init__(self, inner: ObjectStore, *, env: Env) -> None:
        super().__init__(inner)
        self.refused = 0
        self.early: list[Call] = []
        """Requests that came before the time that it had asked for."""

        self._env = env
        self._seen: set[Call] = set()
        self._until = 0.0

    async def about(self, operation: str, key: str) -> None:
        """Refuse what is new, and note what comes too early."""
        call = Call(operation, key)
        if self._env.monotonic() < self._until:
            self.early.append(call)
        if call not in self._seen:
            self._seen.add(call)
            self.refused += 1
            pause_seconds = 1 + 9 * self._env.random()
            self._until = self._env.monotonic() + pause_seconds
            raise Throttled(f"{operation} of {key!r} was refused on purpose", pause_seconds)


class SendsTwice(StoreDecorator):
    """A client library that did not hear the first answer. Of two answers it tells the second."""

    async def put(self, key: str, body: Body) -> None:
        """Put twice."""
        await super().put(key, body)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Create twice: the second finds the first."""
        await super().create(key, data)
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete twice."""
        await super().delete(keys)
        await super().delete(keys)
