"""Create-if-absent: the base of every commit.

A store that declares no atomic create is tested for the consequence: it is refused as a tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from threading import Barrier
from typing import Final

import pytest

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.contracts.store import Body, Listed, ObjectStore
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload_conformance.asynchronous import Run
from offload_conformance.contenders import contend_in_threads
from offload_conformance.race import winners_of
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    DIGITS,
    LIMIT_SIZE_BYTES_MAX,
    SIZES,
    StoreClauses,
    drawn,
    listed,
    make_sure_of,
)

PROCESSES: Final = 3
ROUNDS: Final = 5
"""The number of processes that race, and the number of keys for which they race."""

RACING: Final = {"race/0": 1, "race/1": 1, "race/2": 2**8, "race/3": 2**17}
"""Keys for which creates race, and half the size of their objects: clients send longer ones otherwise."""

BESIDE: Final = 6
"""A put begins at most this many turns of the event loop before or after a create."""


class CreateClauses(StoreClauses):
    """The clauses on `create`: it is atomic, and it never replaces an object."""

    def test_create_never_replaces(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The second create of a key raises `AlreadyExists`, from any client, and changes nothing.

        After another client has deleted the key, a create succeeds. The next call of a client that was
        refused takes effect.
        """
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        run(store.create("key", b"first"))

        for client in (store, other):
            with raises(AlreadyExists, "a second create of a key") as caught:
                run(client.create("key", b"second"))
            assert caught.value.key == "key"
            run(client.put("next", Body.of(b"next")))
            assert run((other if client is store else store).get("next")) == b"next", "a put after a refusal"
            run(client.delete(["next"]))

        assert run(other.get("key")) == b"first"
        run(other.delete(["key"]))
        run(store.create("key", b"again"))
        assert run(other.get("key")) == b"again"

    @pytest.mark.parametrize("size_bytes", SIZES)
    def test_creates_may_be_as_large_as_declared(
        self, run: Run, store: ObjectStore, other: ObjectStore, size_bytes: int
    ) -> None:
        """`create` takes `create_size_bytes_max` bytes, at least a full root; one byte more is `Misuse`."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        most = store.capabilities.create_size_bytes_max
        if most is not None and most < CREATE_SIZE_BYTES_LEAST:
            pytest.fail(
                f"`create_size_bytes_max`: expected {CREATE_SIZE_BYTES_LEAST:,} or more, for a full root; "
                f"found {most:,}"
            )
        if most is not None and (size_bytes > most or most <= LIMIT_SIZE_BYTES_MAX):
            size_bytes = min(size_bytes, most)
            with raises(Misuse, f"a create of {most + 1:,} bytes, although at most {most:,} are declared"):
                run(store.create("key", drawn(most + 1)))
            assert self.keys_in_store() == set()
        data = drawn(size_bytes)

        run(store.create("key", data))

        make_sure_of(run(other.get("key")), data, "the created object")
        assert run(listed(other, awaiting=["key"])) == [Listed("key", size_bytes)]
        with raises(AlreadyExists, f"a second create after one of {size_bytes:,} bytes"):
            run(other.create("key", b"another"))

    @pytest.mark.parametrize("size_bytes", [10, 300_000])
    def test_create_never_undoes_a_put(
        self, run: Run, store: ObjectStore, other: ObjectStore, size_bytes: int
    ) -> None:
        """A create that runs beside a put never overwrites it: in the end the put's object is there, whole.

        If the create came first, the put replaced its object. If the put came first, the create failed. A
        create that checks first and writes later would overwrite the put.
        """
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        put, made = b"p" * size_bytes, b"c" * (size_bytes * 2)

        async def beside(key: str, turns: int) -> None:
            async def late(call: Awaitable[object], wait: int) -> None:
                for _ in range(wait):
                    await asyncio.sleep(0)
                await call

            await asyncio.gather(
                late(created(store, key, made), max(-turns, 0)),
                late(other.put(key, Body.of(put)), max(turns, 0)),
            )

        for turns in range(-BESIDE, BESIDE + 1):
            key = f"beside/{turns + BESIDE:02}"
            run(beside(key, turns))
            make_sure_of(run(other.get(key)), put, "the object that was put beside a create")

    def test_create_yields_to_a_put(self, run: Run, store: ObjectStore) -> None:
        """A create raises `AlreadyExists` if `put` stored the key before, even an empty object."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        run(store.put("key", Body.of(b"")))

        with raises(AlreadyExists, "a create of a key that holds an empty object"):
            run(store.create("key", b"created"))

        assert run(store.get("key")) == b""

    def test_create_succeeds_after_deletion(self, run: Run, store: ObjectStore) -> None:
        """A deleted key can be created again."""
        run(store.create("key", b"first"))
        run(store.delete(["key"]))

        run(store.create("key", b"second"))

        assert run(store.get("key")) == b"second"

    def test_creates_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A reader beside a create finds no object or the whole object, never its beginning."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        data = DIGITS * 5000

        async def seen_beside_a_create_of(key: str, *, turns_late: int) -> set[bytes]:
            creating = asyncio.create_task(store.create(key, data))
            seen = set()
            for _ in range(turns_late):
                await asyncio.sleep(0)
            while not creating.done():
                with suppress(NotFound):
                    seen.add(bytes(await other.get(key)))
                await asyncio.sleep(0)
            await creating
            return seen

        for n in range(12):
            assert run(seen_beside_a_create_of(f"created/{n}", turns_late=n % 4)) <= {data}
            assert run(other.get(f"created/{n}")) == data

    def test_create_is_atomic(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """If many tasks create one key over two clients, exactly one succeeds, and its bytes are stored."""

        async def contend(key: str, contender: int) -> bytes | None:
            client = (store, other)[contender % 2]
            return await created(client, key, b"%02d" % contender * RACING[key])

        async def scenario(key: str) -> None:
            winners = [won for won in await asyncio.gather(*(contend(key, n) for n in range(16))) if won]
            assert [*map(len, winners)] == [RACING[key] * 2]
            make_sure_of(await store.get(key), winners[0], "the object of the create that succeeded")

        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        for key in RACING:
            run(scenario(key))

    def test_create_is_atomic_between_threads(self, run: Run, store: ObjectStore) -> None:
        """If many threads, each with its own client and event loop, create one key, exactly one succeeds."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        winners: list[tuple[str, bytes]] = []

        async def contend(contender: int, start: Barrier) -> None:
            client = self.open_store()
            try:
                for key in keys:
                    start.wait()
                    won = await created(client, key, b"%d" % contender)
                    winners.extend([(key, won)] if won else [])
            finally:
                await client.aclose()

        keys = [f"race/{n}" for n in range(5)]
        contend_in_threads(4, contend, seconds_max=self.clause_seconds_max)

        assert sorted(winners) == [(key, run(store.get(key))) for key in keys]

    def test_create_is_atomic_between_processes(self, run: Run, store: ObjectStore) -> None:
        """If several processes create one key, exactly one succeeds, and its bytes are stored."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        if store.capabilities.one_process:
            pytest.skip("the store declares that it lives in one process, so no other process can race")
        there = [f"race/{n}" for n in range(ROUNDS)]

        won = run(winners_of(self.elsewhere(there), there, contenders=PROCESSES))

        assert won == [[run(store.get(key))] for key in there]

    def test_create_refuses_its_own_bytes(self, run: Run, store: ObjectStore) -> None:
        """A create raises `AlreadyExists` even if the stored bytes are equal: they may be another's."""
        if not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        for key, data in (("key", b"the same"), ("empty", b""), ("long", drawn(300_000))):
            run(store.create(key, data))

            with raises(AlreadyExists, f"a create of the same {len(data):,} bytes again"):
                run(store.create(key, data))

        assert self.keys_in_store() == {"key", "empty", "long"}


async def created(store: ObjectStore, key: str, data: bytes) -> bytes | None:
    """Create an object. Return its bytes if this call won, otherwise None."""
    try:
        await store.create(key, data)
    except AlreadyExists:
        return None
    return data
