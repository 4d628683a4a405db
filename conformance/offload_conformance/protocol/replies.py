"""Replies: lost, late, refused, slow, sent twice, or with a request to wait. Each change happens once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix
from offload.ground.env import Env
from offload.ground.errors import OutcomeUnknown, Throttled
from offload.store.faults import Call, Fault
from offload.store.wrap import StoreDecorator
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.crashes import changes_of_a_copy
from offload_conformance.protocol.process import OPTIONS, Process
from offload_conformance.protocol.world import KEYS, World, Worlds

ROOTS_OF_A_COPY = 4
"""The commits of one copy: claim, prepare, append, trim."""


class ReplyClauses(ProtocolClauses):
    """The clauses on replies: whatever happens to a request or its reply, a change happens once or never."""

    def test_lost_replies_commit_once(self, run: Run, new_world: Worlds) -> None:
        """A change whose reply is lost takes effect once, and a commit then needs no second try."""
        run(each_change_spoiled(new_world, Fault.LOSE_REPLY))

    def test_refused_requests_may_be_repeated(self, run: Run, new_world: Worlds) -> None:
        """A request that is refused before it takes effect can be sent again, with the same result."""

        async def scenario() -> None:
            await each_change_spoiled(new_world, Fault.FAIL_BEFORE)
            world = new_world()
            await world.copied_by(world.process(front=RefusesFirst))
            await world.check()

        run(scenario())

    def test_changes_sent_twice_are_in_once(self, run: Run, new_world: Worlds) -> None:
        """If a client library sends every change twice by itself, each is committed once."""

        async def scenario() -> None:
            world = new_world()
            process = world.process(front=SendsTwice)
            await process.copy()
            # More commits would mean that a repeated create was taken for a new one.
            assert len(await world.commits()) == ROOTS_OF_A_COPY
            await world.check_told()
            await world.check()

        run(scenario())

    def test_late_requests_change_nothing(self, run: Run, new_world: Worlds) -> None:
        """If a dead writer's request takes effect after its successor is done, it changes nothing."""

        async def course(number: int) -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            dead.spoil(number, Fault.DELAY)
            with suppress(OutcomeUnknown):  # a tier need not read back whether an anchor was created
                await world.crashed(dead, before=number + 1)
            await successor.copy()
            before = await world.commits()

            # The successor is done: only now does the dead writer's delayed request reach the store.
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
        """A client that a store asks to wait sends nothing for so long, and then completes its job."""

        async def scenario() -> None:
            world = new_world()
            process = world.process()
            throttling = Throttling(process.store.inner, env=process.env)
            process.store.inner = throttling
            await world.copied_by(process, failing=Throttled)
            assert throttling.early == []
            # Without this the clause would pass if nothing had been throttled at all.
            assert throttling.refused > ROOTS_OF_A_COPY
            await world.check()

        run(scenario())


async def each_change_spoiled(new_world: Worlds, fault: Fault) -> None:
    """Run a copy for each request that changes something, with this fault at that request."""
    for number in await changes_of_a_copy(new_world()):
        world = new_world()
        process = world.process()
        process.spoil(number, fault)
        failures = await world.copied_by(process)
        spoiled = process.store.calls[number - 1]
        # A lost or refused commit is cleared up by reading it back, so the caller must not see an error.
        if spoiled.key.startswith(KEYS.roots):
            assert failures == 0, f"{spoiled.operation} of {spoiled.key}"
        if not failures:
            assert len(await world.commits()) == ROOTS_OF_A_COPY
        await world.check_told()
        await world.check()


def answer_in_any_order(process: Process, world: World, *, count: int) -> asyncio.Future[None]:
    """Hold the replies to so many puts until all are applied. Then send them one by one, in random order."""
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
        # The original order would prove nothing.
        while order == sorted(order):
            world.random.shuffle(order)
        for number in order:
            waiting[number].set()
            for _ in range(20):  # the caller that waits for this reply continues before the next one comes
                await asyncio.sleep(0)

    process.store.after = after
    return asyncio.ensure_future(answer())


class _Each(StoreDecorator):
    """A store that calls `about` before each request."""

    async def about(self, operation: str, key: str) -> None:
        """Look at a request before it is sent. May raise."""

    async def put(self, key: str, body: Body) -> None:
        """Call `about`, then put."""
        await self.about("put", key)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Call `about`, then create."""
        await self.about("create", key)
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Call `about`, then get."""
        await self.about("get", key)
        return await super().get(key, span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Call `about`, then list."""
        await self.about("list", prefix)
        async for row in super().list(prefix, after=after):
            yield row

    async def delete(self, keys: Sequence[str]) -> None:
        """Call `about`, then delete."""
        await self.about("delete", keys[0] if keys else "")
        await super().delete(keys)


class RefusesFirst(_Each):
    """A store that refuses each request the first time."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._seen: set[Call] = set()

    async def about(self, operation: str, key: str) -> None:
        """Refuse a request that was not made before."""
        call = Call(operation, key)
        if call not in self._seen:
            self._seen.add(call)
            raise Throttled(f"{operation} of {key!r} was refused on purpose")


class Throttling(_Each):
    """A store that refuses each request the first time, and asks the client to wait for some seconds."""

    def __init__(self, inner: ObjectStore, *, env: Env) -> None:
        super().__init__(inner)
        self.refused = 0
        self.early: list[Call] = []
        """Requests that came before the requested pause was over."""

        self._env = env
        self._seen: set[Call] = set()
        self._until = 0.0

    async def about(self, operation: str, key: str) -> None:
        """Refuse a request that was not made before, and note requests that come too early."""
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
    """A client library that sends every change twice, as after a lost reply, and returns the second reply."""

    async def put(self, key: str, body: Body) -> None:
        """Put twice."""
        await super().put(key, body)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Create twice. The second create finds the object of the first."""
        await super().create(key, data)
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete twice."""
        await super().delete(keys)
        await super().delete(keys)
