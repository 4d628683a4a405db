"""Puts: whole, durable, and unseen until they return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from offload.errors import Misuse, NotFound
from offload.store.port import Body, Listed, ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import StoreClauses, body_of, listed


class PutClauses(StoreClauses):
    """Of the port's clauses: puts are whole, puts are durable."""

    def test_puts_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """What another client reads is what was put, from however many windows."""
        windows = [b"first", b"-", b"third" * 1000]

        run(store.put("a/key", body_of(*windows)))

        assert run(other.get("a/key")) == b"".join(windows)
        assert self.keys_in_store() == {"a/key"}

    def test_puts_replace_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A shorter object leaves nothing of the longer one before it."""
        run(store.put("key", Body.of(b"a long object")))

        run(store.put("key", Body.of(b"short")))

        assert run(other.get("key")) == b"short"
        assert run(listed(other, awaiting=["key"])) == [Listed("key", 5)]

    def test_puts_are_whole_while_replaced(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A reader beside a writer finds one object or the other, never a mixture."""
        versions = [bytes([letter]) * 50_000 for letter in b"abcdef"]

        async def write() -> None:
            for version in versions:
                await store.put("key", body_of(*halves(version)))

        async def scenario() -> set[bytes]:
            await store.put("key", Body.of(versions[0]))
            writing = asyncio.create_task(write())
            seen = set()
            while not writing.done():
                seen.add(await other.get("key"))
                await asyncio.sleep(0)  # a store need not
            await writing
            return seen

        assert run(scenario()) <= set(versions)

    def test_puts_are_invisible_until_they_return(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """Between the windows of its body an object is neither listed nor readable."""
        seen: list[object] = []

        async def windows() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.sleep(0.01)
            seen.extend(await listed(other))
            with pytest.raises(NotFound):
                await other.get("key")
            yield b"second"

        run(store.put("key", Body(size_bytes=11, windows=windows)))

        assert seen == []
        assert run(other.get("key")) == b"firstsecond"

    def test_an_empty_object_is_an_object(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """An object of no bytes is there: it is read, and listed."""
        run(store.put("put", Body.of(b"")))
        run(store.create("created", b""))

        assert run(other.get("put")) == run(other.get("created")) == b""
        assert run(listed(other, awaiting=["created", "put"])) == [Listed("created", 0), Listed("put", 0)]

    def test_a_failing_body_leaves_nothing_visible(self, run: Run, store: ObjectStore) -> None:
        """The body's own error comes through, and the key stays as it was."""
        run(store.put("old", Body.of(b"old")))

        for key in ("old", "new"):
            with pytest.raises(ZeroDivisionError):
                run(store.put(key, failing_body(b"some bytes")))

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

    @pytest.mark.parametrize("announced", [0, 4, 6])
    def test_a_body_of_another_size_is_refused(self, run: Run, store: ObjectStore, announced: int) -> None:
        """Five bytes that were announced as fewer or more are `Misuse`, and nothing is visible."""
        body = Body(size_bytes=announced, windows=Body.of(b"fiver").windows)

        with pytest.raises(Misuse):
            run(store.put("key", body))

        assert self.keys_in_store() == set()

    def test_a_cancelled_put_leaves_nothing_visible(self, run: Run, store: ObjectStore) -> None:
        """Cancelled while it waits for a window, a put is as if it had never been."""

        async def scenario() -> None:
            waiting = asyncio.Event()

            async def windows() -> AsyncIterator[bytes]:
                yield b"first"
                waiting.set()
                await asyncio.sleep(60)

            putting = asyncio.create_task(store.put("key", Body(size_bytes=10, windows=windows)))
            reached = asyncio.create_task(waiting.wait())
            await asyncio.wait({putting, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting  # or its error, where it did not come as far as to wait

        run(scenario())

        assert self.keys_in_store() == set()

    def test_a_put_may_be_repeated(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The same body, put again, is the same object: a body can be read twice."""
        body = body_of(b"one", b"two")

        run(store.put("key", body))
        run(store.put("key", body))

        assert run(other.get("key")) == b"onetwo"

    def test_puts_are_durable(self, run: Run, store: ObjectStore) -> None:
        """What was written outlives its client, which is all of durability that a test can see."""

        async def scenario() -> None:
            passing = self.open_store()
            await passing.put("put", Body.of(b"put"))
            await passing.create("created", b"created")
            await passing.aclose()

        run(scenario())

        assert self.keys_in_store() == {"put", "created"}
        assert run(store.get("put")) == b"put"
        assert run(store.get("created")) == b"created"


def failing_body(data: bytes) -> Body:
    """A body that breaks off after its first window, which is all that it announced."""

    async def windows() -> AsyncIterator[bytes]:
        yield data
        raise ZeroDivisionError

    return Body(size_bytes=len(data), windows=windows)


def halves(data: bytes) -> tuple[bytes, bytes]:
    """The two halves of some bytes."""
    middle = len(data) // 2
    return data[:middle], data[middle:]
