"""Puts: whole, durable, and invisible until they return."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice, pairwise, product
from typing import Final, NoReturn

import pytest

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound, TryAgain
from offload.store.spans import clip
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    DIGITS,
    LIMIT_SIZE_BYTES_MAX,
    MIB,
    SIZES,
    StoreClauses,
    body_of,
    drawn,
    halves,
    in_turn,
    level,
    listed,
    make_sure_of,
    naming,
    refuses,
    store_by,
    ways_of,
    windows_of,
)
from offload_conformance.store.edges import ENDINGS, KINDS, LENGTHS, NO_TEXT, TEXT, described
from offload_conformance.store.metadata import stored_with, ways_with_metadata

REPLACEMENTS: Final = {
    "small": (50_000, 3, 70_000, 0, 9, 20_000),
    "large": (9 * MIB, 64, 5 * MIB, 11 * MIB),
}
"""Sizes that follow one another under one key. SDKs read and write the large ones in pieces."""

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
"""Contents by the end of their key, which a proxy, an SDK or a database might wrongly change."""

ALL_WAYS: Final = ("put", "create", "upload")
WAYS_OF_ENDINGS: Final = {"text": ("put", "upload"), "bytes": ("put", "create")}

WRITES: Final = 8
SLOW_SECONDS: Final = 1.5
"""How long a body pauses: longer than some servers wait for the rest of a request."""

SECOND_SECONDS: Final = 0.2
"""The time that a put has to overtake another one, which waits for its body."""

LOOKS: Final = 100
LOOK_SECONDS: Final = 0.01
"""How often, and after what pauses, the test looks for the object of a cancelled put."""

FAILING: Final = (0, 10, 9 * MIB)
"""The sizes of bodies after which they raise. SDKs send the longest in parts, or while it is read."""

OTHER_SIZES: Final[Sequence[tuple[int, Sequence[bytes]]]] = (
    *((4, (b"four", b"more")), (4, (b"fo", b"ur", b"m")), (9, (b"four", b"more")), (7, (b"four", b"more"))),
    *((9 * MIB - 1, (bytes(8 * MIB), bytes(MIB))), (9 * MIB + 1, (bytes(8 * MIB), bytes(MIB)))),
)
"""Announced sizes and windows of another size: a store may stop to read at the announced size."""

BOUNDS: Final = (
    (0, 1),
    (0, 40 * MIB),
    (5, 5),
    (MIB, 40 * MIB),
    (17 * MIB, 40 * MIB),
    (17 * MIB, 17 * MIB + 1),
)
"""Sizes of bodies, and their bounds. A store that sends parts may choose their size by the bound."""

MANY_SIZE_BYTES: Final = 2**16
WINDOWS: Final = 1_100
"""So many windows of one byte begin a body of up to 64 KiB: more than one system call takes."""

PARTS_READ: Final = (None, Span(0, 1 << 40), Span(5, 30_000), Suffix(6 * MIB))


class PutClauses(StoreClauses):
    """The clauses on `put`: puts are whole and durable."""

    @pytest.mark.parametrize("size_bytes", SIZES)
    def test_puts_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore, size_bytes: int) -> None:
        """Another client reads exactly the bytes that were put, of any size and in any number of windows."""
        data = drawn(min(size_bytes, store.capabilities.put_size_bytes_max or size_bytes))
        windows = windows_of(data)
        if len(data) <= MANY_SIZE_BYTES:
            windows = [bytes([byte]) for byte in data[:WINDOWS]] + [data[WINDOWS:]] * (len(data) > WINDOWS)

        run(store.put("a/key", body_of(*windows)))

        make_sure_of(run(other.get("a/key")), data, "the object")
        assert run(listed(other, awaiting=["a/key"])) == [Listed("a/key", len(data))]
        assert self.keys_in_store() == {"a/key"}

    def test_contents_are_kept_as_they_are(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """No content is changed, whatever format it resembles and however its key ends.

        Nor is the metadata of a store that declares it, whatever a header, a form or a column makes of it.
        """
        contents = contents_of(store)

        async def make_sure(key: str) -> None:
            data = contents[key]
            is_odd = key.partition("/")[2] in CONTENTS
            with naming(f"{key!r}"):
                await store_by(key.partition("/")[0], store, key, data)
                for span in (None, Span(0, 3), Span(1, len(data)), Suffix(4)) if is_odd else (None,):
                    start, end = clip(span, len(data))
                    make_sure_of(await other.get(key, span), data[start:end], f"{span or 'all'} of {key!r}")

        run(in_turn(make_sure, [*contents]))
        for row in run(listed(other, awaiting=sorted(contents))):
            assert row == Listed(row.key, len(contents[row.key]))
        for way, sent in product(ways_with_metadata(store), described(store.capabilities)):
            run(stored_with(store, way, sent, key="described"))
            found = run(other.metadata_of("described")) or {}
            kept = {name: value for name, value in found.items() if name in sent}
            assert kept == sent, f"the metadata of an object stored by {way}"

    def test_puts_replace_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A shorter object leaves nothing of the longer one that it replaces."""
        run(store.put("key", Body.of(b"a long object")))

        run(store.put("key", Body.of(b"short")))

        assert run(other.get("key")) == b"short"
        assert run(listed(other, awaiting=["key"])) == [Listed("key", 5)]

    @pytest.mark.parametrize("sizes", REPLACEMENTS)
    def test_puts_are_whole_while_replaced(
        self, run: Run, store: ObjectStore, other: ObjectStore, sizes: str
    ) -> None:
        """A reader beside writers finds one object or the other, also of another size, never a mixture.

        There are two writers, each with its own client, and they put at the same time.
        """
        most = store.capabilities.put_size_bytes_max or max(REPLACEMENTS[sizes])
        versions = [bytes([ord("a") + n]) * min(size, most) for n, size in enumerate(REPLACEMENTS[sizes])]

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
                    read = bytes(await other.get("key", span))
                except TryAgain:  # a store may notice that the object was replaced while it was read
                    if is_last:
                        raise
                    continue
                allowed = [version[slice(*clip(span, len(version)))] for version in versions]
                if read not in allowed:
                    found = {chr(byte): read.count(byte) for byte in sorted({*read})}
                    pytest.fail(f"a read of {span}: expected one of the objects that were put; found {found}")
                if is_last:
                    break
                await asyncio.sleep(0)  # a store in memory never yields by itself
            await writing

        run(scenario())

    def test_puts_are_invisible_until_they_return(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """While its body is still being sent, an object is neither listed nor readable.

        A body may take its time. The object that it replaces keeps its bytes and its metadata meanwhile.
        """
        seen: list[object] = []

        async def windows() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.sleep(SLOW_SECONDS)
            seen.extend(await listed(other))
            seen.extend(await level(other, ""))
            with raises(NotFound, "a read between the windows of a body"):
                await other.get("key")
            yield b"second"

        run(store.put("key", Body(size_bytes=11, windows=windows)))

        assert seen == []
        assert run(other.get("key")) == b"firstsecond"
        run(self.old_beside_a_put(store, other))
        run(self.whole_beside_another_put(store, other))

    async def old_beside_a_put(self, store: ObjectStore, other: ObjectStore) -> None:
        """Assert that an object stays as it is, in every respect, while a put replaces it."""
        is_described = bool(store.capabilities.metadata_size_bytes_max)
        old, new = ({"ours": each} if is_described else {} for each in ("old", "new"))

        async def windows() -> AsyncIterator[bytes]:
            yield DIGITS
            for client in (store, other):
                assert await client.get("replaced") == b"old"
                assert await client.stored_crc32c("replaced") in {None, crc32c(b"old")}
                found = await client.metadata_of("replaced") or {}
                assert found.get("ours") == old.get("ours"), "the metadata of an object beside a put"
            yield DIGITS

        await store.put("replaced", Body.of(b"old", metadata=old))
        putting = asyncio.create_task(
            store.put("replaced", Body(size_bytes=2 * len(DIGITS), windows=windows, metadata=new))
        )
        try:
            while not putting.done():
                before = await other.get("replaced")
                found = (await other.metadata_of("replaced") or {}).get("ours")
                if await other.get("replaced") == before:
                    wanted = (old if before == b"old" else new).get("ours")
                    assert found == wanted, f"the metadata of an object of {bytes(before)!r} beside a put"
                await asyncio.sleep(0)
        finally:
            await asyncio.gather(putting, return_exceptions=True)
        await putting
        assert await other.get("replaced") == DIGITS * 2
        assert (await other.metadata_of("replaced") or {}).get("ours") == new.get("ours")

    async def whole_beside_another_put(self, store: ObjectStore, other: ObjectStore) -> None:
        """Assert that a put which waits for its second window is whole, although another began after it."""
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
                assert found in (DIGITS * 2, b"short"), f"a mixture of two puts: {found!r}"
            if is_last:
                break
            await asyncio.sleep(0)
        await both

    def test_an_empty_object_is_an_object(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """An object of no bytes exists: it can be read, and it is listed."""
        run(store.put("put", Body.of(b"")))
        run(store.create("created", b""))

        assert run(other.get("put")) == run(other.get("created")) == b""
        assert run(listed(other, awaiting=["created", "put"])) == [Listed("created", 0), Listed("put", 0)]

    def test_a_failing_body_leaves_nothing_visible(self, run: Run, store: ObjectStore) -> None:
        """If a body raises, `put` raises that same error, and the key stays as it was.

        So do its metadata, its checksum and its row, whether nothing, little or much of the body was read.
        """
        can = store.capabilities
        ours = {"ours": "old"} if can.metadata_size_bytes_max else {}
        run(store.put("old", Body.of(b"old", metadata=ours)))

        for key, size_bytes in product(("old", "new"), FAILING):
            body = failing_body(drawn(min(size_bytes, can.put_size_bytes_max or size_bytes)))
            body = replace(body, metadata={"ours": "failed"} if ours else {})
            with raises(
                ZeroDivisionError, f"a put of {key!r} whose body raises it after {size_bytes:,} bytes"
            ):
                run(store.put(key, body))

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"
        assert run(listed(store, awaiting=["old"])) == [Listed("old", 3)]
        assert run(store.stored_crc32c("old")) in {None, crc32c(b"old")}
        assert (run(store.metadata_of("old")) or {}).get("ours") == ours.get("ours")

    def test_a_body_of_another_size_is_refused(self, run: Run, store: ObjectStore) -> None:
        """A body of fewer or more bytes than announced is `Misuse`, and nothing is visible.

        So is a body of more than `put_size_bytes_max`, before any of its windows is read.
        """
        run(store.put("old", Body.of(b"old")))

        for announced, error in [*KINDS["Body.size_bytes: int"].edges(), (4, Misuse), (6, Misuse)]:
            assert error is not None, "each edge of the table is refused"
            for key, data in (("old", b"fiver"), ("new", b"fiver"), ("new", b"" if announced else b"fiver")):
                body = Body(size_bytes=announced, windows=Body.of(data).windows)
                with raises(error, f"a put of {len(data)} bytes that were announced as {announced:,}"):
                    run(store.put(key, body))
        for announced, windows in OTHER_SIZES:
            body = replace(body_of(*windows), size_bytes=announced)
            with raises(Misuse, f"a put of {[*map(len, windows)]} bytes, announced as {announced:,}"):
                run(store.put("new", body))
        self.keeps_its_limit(run, store)

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

    def keeps_its_limit(self, run: Run, store: ObjectStore) -> None:
        """Fail unless a put takes as many bytes as declared, and refuses one more before it reads them."""
        if (most := store.capabilities.put_size_bytes_max) is None:
            return
        for is_bound in {False, store.capabilities.unsized_put}:
            with raises(Misuse, f"a put of {most + 1:,} bytes, although at most {most:,} are declared"):
                run(store.put("new", Body(size_bytes=most + 1, windows=unread, is_bound=is_bound)))
        if most <= LIMIT_SIZE_BYTES_MAX:
            data = drawn(most)
            run(store.put("most", Body.of(data)))
            make_sure_of(run(store.get("most")), data, "the largest object that a put takes")
            run(store.delete(["most"]))

    @pytest.mark.parametrize(("size_bytes", "bound"), BOUNDS)
    def test_bodies_of_unknown_size_are_whole(
        self, run: Run, store: ObjectStore, other: ObjectStore, size_bytes: int, bound: int
    ) -> None:
        """If `unsized_put` is declared, a body shorter than its bound is stored with exactly its bytes."""
        most = self.bound_of(store, bound)
        data = drawn(min(size_bytes, most))
        body = bound_body(data, most)
        run(store.put("key", Body.of(b"a longer object than an empty one")))

        for _ in range(2):  # a retry reads the same body again
            run(store.put("key", body))

            make_sure_of(run(other.get("key")), data, f"the object of a body of at most {most} bytes")
            assert run(listed(other, awaiting=["key"])) == [Listed("key", len(data))]
        assert self.keys_in_store() == {"key"}

    @pytest.mark.parametrize(("size_bytes", "bound"), [(5, 4), (1, 0), (17 * MIB, 9 * MIB)])
    def test_a_body_beyond_its_bound_is_refused(
        self, run: Run, store: ObjectStore, size_bytes: int, bound: int
    ) -> None:
        """If `unsized_put` is declared, a body longer than its bound is `Misuse`, and nothing is changed."""
        most = self.bound_of(store, bound)
        run(store.put("old", Body.of(b"old")))

        for key in ("old", "new"):
            with raises(Misuse, f"a put of {size_bytes} bytes that were announced as at most {most}"):
                run(store.put(key, bound_body(drawn(size_bytes), most)))

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

    def bound_of(self, store: ObjectStore, bound: int) -> int:
        """Return the bound of a test's body. Skip the test if the store is never given such a body."""
        if not store.capabilities.unsized_put:
            pytest.skip("the store does not declare `unsized_put`, so no body of unknown size is given to it")
        return min(bound, store.capabilities.put_size_bytes_max or bound)

    @pytest.mark.parametrize("windows_before", [0, 1, 3])
    @pytest.mark.parametrize("key", ["old", "new"])
    def test_a_cancelled_put_leaves_nothing_visible(
        self, run: Run, store: ObjectStore, windows_before: int, key: str
    ) -> None:
        """A put that is cancelled while it waits for a window has no effect, at that moment or later."""

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
                await putting  # or its own error, if it failed before it waited
            arrived.set()  # if somebody still reads the body, they continue now
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), LOOKS * LOOK_SECONDS)
            for _ in range(LOOKS if is_read_on else 0):
                if self.keys_in_store() != {"old"} or await store.get("old") != b"old":
                    pytest.fail("a cancelled put: its body was read on, and became an object")
                await asyncio.sleep(LOOK_SECONDS)

        run(store.put("old", Body.of(b"old")))
        run(scenario())

        assert self.keys_in_store() == {"old"}
        assert run(store.get("old")) == b"old"

    def test_a_put_may_be_repeated(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Putting the same body again stores the same object: a body can be read twice."""
        body = body_of(b"one", b"two")

        run(store.put("key", body))
        run(store.put("key", body))

        assert run(other.get("key")) == b"onetwo"

    def test_puts_are_durable(self, run: Run, store: ObjectStore) -> None:
        """Objects outlive the client that wrote them; a test can see no more of durability than this."""

        async def scenario() -> None:
            passing = self.open_store()
            await passing.put("put", Body.of(b"put"))
            await passing.create("created", b"created")
            await passing.aclose()

        run(scenario())

        assert self.keys_in_store() == {"put", "created"}
        assert run(store.get("put")) == b"put"
        assert run(store.get("created")) == b"created"


def contents_of(store: ObjectStore) -> dict[str, bytes]:
    """Return contents by their keys, each of which begins with the way to store it.

    They are odd contents, text and bytes under every common ending, and bytes of many sizes.
    """
    sizes = {f"{size_bytes:07}": drawn(size_bytes) for size_bytes in LENGTHS}
    found = {f"{way}/{name}": data for way in ALL_WAYS for name, data in {**CONTENTS, **sizes}.items()}
    for name, data in (("text", TEXT), ("bytes", NO_TEXT)):
        found |= {f"{way}/{name}{end}": data for way in WAYS_OF_ENDINGS[name] for end in ENDINGS}
    can, ways = store.capabilities, ways_of(store)
    limits = {
        "put": can.put_size_bytes_max,
        "create": can.create_size_bytes_max,
        "upload": can.part_size_bytes_max,
    }
    return {
        key: data
        for key, data in found.items()
        if (way := key.partition("/")[0]) in ways and not refuses(store, key)
        if len(data) <= (limits[way] or len(data))
    }


def bound_body(data: bytes, bound: int) -> Body:
    """Return a body of these bytes, in several windows, that announces only that it has at most `bound`."""
    windows = windows_of(data) if data else []
    return replace(body_of(*windows), size_bytes=bound, is_bound=True)


def unread() -> NoReturn:
    """Fail if the windows of a body are read."""
    pytest.fail("a body that the store refuses was read")


def failing_body(data: bytes) -> Body:
    """Return a body that raises after these bytes, which are all that it announced."""

    async def windows() -> AsyncIterator[bytes]:
        for window in halves(data):
            yield window
        raise ZeroDivisionError

    return Body(size_bytes=len(data) or len(DIGITS), windows=windows)
