"""Puts: whole, durable, and unseen until they return."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import cycle, islice, pairwise
from typing import Final

import pytest

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix
from offload.errors import Misuse, NotFound, TryAgain
from offload.store.spans import clip
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    DIGITS,
    MIB,
    SIZES,
    StoreClauses,
    body_of,
    drawn,
    halves,
    listed,
    make_sure_of,
    windows_of,
)

REPLACEMENTS: Final = {
    "small": (50_000, 3, 70_000, 0, 9, 20_000),
    "large": (9 * MIB, 64, 5 * MIB, 11 * MIB),
}
"""Sizes that follow one another under one key. Large ones are what SDKs read and write in pieces."""

CONTENTS: Final = {
    "text.gz": gzip.compress(b"compressed " * 50, mtime=0),
    "broken.gz": b"\x1f\x8b\x08 the magic of gzip, and nothing behind it",
    "data.zst": b"\x28\xb5\x2f\xfd the magic of zstd",
    "page.html": b"\xef\xbb\xbf<html>\r\n</html>\r\n\n",
    "error.xml": b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>",
    "data.json": b'{"error": {"code": 404, "message": "no such object"}}',
    "chunks": b"5;chunk-signature=00\r\nhello\r\n0;chunk-signature=00\r\n\r\n",
    "bytes": bytes(range(256)) * 3,
    "zeros": bytes(70_000),
}
"""By the end of a key: what a proxy, an SDK or a database may take for something that it should change."""

WRITES: Final = 8
SECOND_SECONDS: Final = 0.2
"""How long a put may take to overtake another one that waits for its body."""

LOOKS: Final = 100
LOOK_SECONDS: Final = 0.01
"""How often, and after what pauses, a key is looked at whose put was cancelled and goes on nevertheless."""

PARTS_READ: Final = (None, Span(0, 1 << 40), Span(5, 30_000), Suffix(6 * MIB))


class PutClauses(StoreClauses):
    """Of the port's clauses: puts are whole, puts are durable."""

    @pytest.mark.parametrize("size_bytes", SIZES)
    def test_puts_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore, size_bytes: int) -> None:
        """What another client reads is what was put, of any size and from however many windows."""
        data = drawn(min(size_bytes, store.capabilities.put_size_bytes_max or size_bytes))

        run(store.put("a/key", body_of(*windows_of(data))))

        make_sure_of(run(other.get("a/key")), data, "what was put")
        assert run(listed(other, awaiting=["a/key"])) == [Listed("a/key", len(data))]
        assert self.keys_in_store() == {"a/key"}

    @pytest.mark.parametrize("name", CONTENTS)
    def test_contents_are_kept_as_they_are(
        self, run: Run, store: ObjectStore, other: ObjectStore, name: str
    ) -> None:
        """No content is special, whatever it looks like and whatever its key ends in."""
        data = CONTENTS[name]
        run(store.put(f"put/{name}", Body.of(data)))
        run(store.create(f"created/{name}", data))

        for key in (f"put/{name}", f"created/{name}"):
            for span in (None, Span(0, 3), Span(1, len(data)), Suffix(4)):
                start, end = clip(span, len(data))
                assert run(other.get(key, span)) == data[start:end]
            assert run(listed(other, key, awaiting=[key])) == [Listed(key, len(data))]

    def test_puts_replace_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A shorter object leaves nothing of the longer one before it."""
        run(store.put("key", Body.of(b"a long object")))

        run(store.put("key", Body.of(b"short")))

        assert run(other.get("key")) == b"short"
        assert run(listed(other, awaiting=["key"])) == [Listed("key", 5)]

    @pytest.mark.parametrize("sizes", REPLACEMENTS)
    def test_puts_are_whole_while_replaced(
        self, run: Run, store: ObjectStore, other: ObjectStore, sizes: str
    ) -> None:
        """A reader beside writers finds one object or the other, of another size too, never a mixture.

        There are two writers, with a client each, and they put at the same time.
        """
        versions = [bytes([ord("a") + n]) * size for n, size in enumerate(REPLACEMENTS[sizes])]

        async def write() -> None:
            for one, two in islice(pairwise(cycle(versions)), WRITES):
                puts = (client.put("key", body_of(*halves(v))) for client, v in ((store, one), (other, two)))
                await asyncio.gather(*puts)

        async def scenario() -> None:
            await store.put("key", Body.of(versions[-1]))
            writing = asyncio.create_task(write())
            for span in cycle(PARTS_READ):
                is_last = writing.done()
                try:
                    read = await other.get("key", span)
                except (
                    TryAgain
                ):  # it may notice that the object was replaced, and leave the rest to its caller
                    if is_last:
                        raise
                    continue
                allowed = [version[slice(*clip(span, len(version)))] for version in versions]
                if read not in allowed:
                    found = {chr(byte): read.count(byte) for byte in sorted({*read})}
                    pytest.fail(f"expected one of the objects that were put; found {found} by {span}")
                if is_last:
                    break
                await asyncio.sleep(0)  # a store need not
            await writing

        run(scenario())

    def test_puts_are_invisible_until_they_return(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """Between the windows of its body an object is neither listed nor readable."""
        seen: list[object] = []

        async def windows() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.sleep(0.01)
            seen.extend(await listed(other))
            with raises(NotFound, "a read between the windows of a body"):
                await other.get("key")
            yield b"second"

        run(store.put("key", Body(size_bytes=11, windows=windows)))

        assert seen == []
        assert run(other.get("key")) == b"firstsecond"
        run(self.whole_beside_another_put(store, other))

    async def whole_beside_another_put(self, store: ObjectStore, other: ObjectStore) -> None:
        """Assert that a put that waits for its second window is whole, although another began after it."""
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def windows() -> AsyncIterator[bytes]:
            yield DIGITS
            begun.set()
            await go_on.wait()
            yield DIGITS

        first = asyncio.create_task(store.put("beside", Body(size_bytes=2 * len(DIGITS), windows=windows)))
        await begun.wait()
        second = asyncio.create_task(other.put("beside", Body.of(b"short")))
        await asyncio.wait([second], timeout=SECOND_SECONDS)  # it may wait until the first has ended
        go_on.set()
        both = asyncio.gather(first, second)
        while True:
            is_last = both.done()
            with suppress(NotFound):
                found = await other.get("beside")
                assert found in (DIGITS * 2, b"short"), f"two puts of one key at once are read as {found!r}"
            if is_last:
                break
            await asyncio.sleep(0)
        await both

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
            with raises(ZeroDivisionError, f"a put of {key!r} with a body that raises it"):
                run(store.put(key, failing_body(b"some bytes")))

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

    @pytest.mark.parametrize("announced", [0, 4, 6])
    def test_a_body_of_another_size_is_refused(self, run: Run, store: ObjectStore, announced: int) -> None:
        """Five bytes that were announced as fewer or more are `Misuse`, and nothing is visible."""
        body = Body(size_bytes=announced, windows=Body.of(b"fiver").windows)

        with raises(Misuse, f"a put of 5 bytes that were announced as {announced}"):
            run(store.put("key", body))

        assert self.keys_in_store() == set()

    @pytest.mark.parametrize("windows_before", [0, 1, 3])
    @pytest.mark.parametrize("key", ["old", "new"])
    def test_a_cancelled_put_leaves_nothing_visible(
        self, run: Run, store: ObjectStore, windows_before: int, key: str
    ) -> None:
        """Cancelled while it waits for a window, a put is as if it had never been, also later."""

        async def scenario() -> None:
            waiting, arrived, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
            is_read_on = False

            async def windows() -> AsyncIterator[bytes]:
                nonlocal is_read_on
                try:
                    for _ in range(windows_before):
                        yield b"before"
                    waiting.set()
                    await arrived.wait()
                    is_read_on = True
                    yield b"behind"
                finally:
                    left.set()

            size_bytes = windows_before * len(b"before") + len(b"behind")
            putting = asyncio.create_task(store.put(key, Body(size_bytes=size_bytes, windows=windows)))
            reached = asyncio.create_task(waiting.wait())
            await asyncio.wait({putting, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            putting.cancel()
            with raises(asyncio.CancelledError, "a put that was cancelled"):
                await putting  # or its error, where it did not come as far as to wait
            arrived.set()  # whoever reads on, reads now
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), LOOKS * LOOK_SECONDS)
            for _ in range(LOOKS if is_read_on else 0):
                if self.keys_in_store() != {"old"} or await store.get("old") != b"old":
                    pytest.fail("a put that was cancelled: its body was read on, and now it is an object")
                await asyncio.sleep(LOOK_SECONDS)

        run(store.put("old", Body.of(b"old")))
        run(scenario())

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

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
