"""Every clause of `ObjectStore`, as tests of the same name.

Where a clause says what others see, the test opens a second client of the same place; where it says
what is stored, `keys_in_store` looks by other means, so that reads and writes that share one mistake
are still found out. The tests write a few megabytes in all, unless the least part size is larger.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import ClassVar, Final

import pytest

from offload.errors import AlreadyExists, Misuse, NotFound
from offload.formats.checksums import crc32c
from offload.store.port import KEY_SIZE_BYTES_MAX, Body, Listed, ObjectStore, Span, Suffix
from offload_conformance.asynchronous import Asynchronous, Run

DIGITS: Final = b"0123456789"

UNORDERED: Final = (
    "a0",
    "a/b",
    "a.b",
    "a-b",
    "a/b0",
    "B",
    "é",
    "z",
    "日本",
    "\U0001f4be",
    "a/é/x",
    "a/b.c/d",
)
"""Keys on which wrong orders differ: `/` is a byte between `.` and `0`, and UTF-8 is not UTF-16."""

NO_KEYS: Final = (
    "",
    "/",
    "/abs",
    "a/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.hidden",
    "nul\0",
    "k" * 1025,
    "é" * 513,
)

SPANS: Final = (
    (Span(0, 10), DIGITS),
    (Span(0, 0), b""),
    (Span(0, 1), b"0"),
    (Span(3, 4), b"3456"),
    (Span(9, 1), b"9"),
    (Span(9, 5), b"9"),
    (Span(3, 1 << 40), b"3456789"),
    (Span(10, 1), b""),
    (Span(11, 1), b""),
    (Span(1 << 40, 1 << 40), b""),
    (Suffix(1), b"9"),
    (Suffix(10), DIGITS),
    (Suffix(11), DIGITS),
    (Suffix(1 << 40), DIGITS),
    (Suffix(0), b""),
    (None, DIGITS),
)


class StoreConformance(Asynchronous, ABC):
    """What every store must pass. Subclass it as the package's docstring shows."""

    layer: ClassVar[str] = "store"

    key_size_bytes_max = KEY_SIZE_BYTES_MAX
    """Less only for a store that sets something before each key."""

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """A fresh client of the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """The keys that are really there, found by other means than the store."""

    @pytest.fixture
    def open_client(self, run: Run) -> Iterator[Callable[[], ObjectStore]]:
        """Opens clients that are closed after the test."""
        clients: list[ObjectStore] = []

        def open_client() -> ObjectStore:
            clients.append(self.open_store())
            return clients[-1]

        yield open_client
        for client in clients:
            run(client.aclose())

    @pytest.fixture
    def store(self, open_client: Callable[[], ObjectStore]) -> ObjectStore:
        """The client under test."""
        return open_client()

    @pytest.fixture
    def other(self, open_client: Callable[[], ObjectStore]) -> ObjectStore:
        """A second client of the same place."""
        return open_client()

    # Puts are whole

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
        assert run(listed(other)) == [Listed("key", 5)]

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
        """No bytes are not no object."""
        run(store.put("put", Body.of(b"")))
        run(store.create("created", b""))

        assert run(other.get("put")) == run(other.get("created")) == b""
        assert run(listed(other)) == [Listed("created", 0), Listed("put", 0)]

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
            await waiting.wait()
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting

        run(scenario())

        assert self.keys_in_store() == set()

    def test_a_put_may_be_repeated(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The same body, put again, is the same object: a body can be read twice."""
        body = body_of(b"one", b"two")

        run(store.put("key", body))
        run(store.put("key", body))

        assert run(other.get("key")) == b"onetwo"

    # Puts are durable

    def test_puts_are_durable(self, run: Run, store: ObjectStore) -> None:
        """What was written outlives its client, which is all of the clause that a test can see."""

        async def scenario() -> None:
            passing = self.open_store()
            await passing.put("put", Body.of(b"put"))
            await passing.create("created", b"created")
            await passing.aclose()

        run(scenario())

        assert self.keys_in_store() == {"put", "created"}
        assert run(store.get("put")) == b"put"
        assert run(store.get("created")) == b"created"

    # Create is atomic

    def test_create_never_replaces(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The second create raises `AlreadyExists`, whoever sends it, and changes nothing."""
        run(store.create("key", b"first"))

        for client in (store, other):
            with pytest.raises(AlreadyExists) as caught:
                run(client.create("key", b"second"))
            assert caught.value.key == "key"

        assert run(other.get("key")) == b"first"

    def test_create_yields_to_a_put(self, run: Run, store: ObjectStore) -> None:
        """An object that was put is there for a create as well, an empty one too."""
        run(store.put("key", Body.of(b"")))

        with pytest.raises(AlreadyExists):
            run(store.create("key", b"created"))

        assert run(store.get("key")) == b""

    def test_create_succeeds_after_deletion(self, run: Run, store: ObjectStore) -> None:
        """Absent again is absent."""
        run(store.create("key", b"first"))
        run(store.delete(["key"]))

        run(store.create("key", b"second"))

        assert run(store.get("key")) == b"second"

    def test_create_is_atomic(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Of many tasks over two clients, exactly one creates, and its bytes are what is read."""

        async def contend(key: str, contender: int) -> bytes | None:
            client = (store, other)[contender % 2]
            return await created(client, key, b"%d" % contender)

        async def scenario(key: str) -> None:
            winners = [won for won in await asyncio.gather(*(contend(key, n) for n in range(16))) if won]
            assert winners == [await store.get(key)]

        assert store.capabilities.atomic_create, "a store without it cannot hold a manifest"
        for key in ("race/0", "race/1", "race/2"):
            run(scenario(key))

    def test_create_is_atomic_between_threads(self, run: Run, store: ObjectStore) -> None:
        """The same, for clients in threads with event loops of their own."""
        contenders, rounds = 4, 5
        start = threading.Barrier(contenders)
        winners: list[tuple[str, bytes]] = []

        async def contend(contender: int) -> None:
            client = self.open_store()
            for key in (f"race/{n}" for n in range(rounds)):
                start.wait(timeout=120)
                if won := await created(client, key, b"%d" % contender):
                    winners.append((key, won))
            await client.aclose()

        threads = [
            threading.Thread(target=asyncio.run, args=(contend(contender),))
            for contender in range(contenders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(winners) == [(f"race/{n}", run(store.get(f"race/{n}"))) for n in range(rounds)]

    # Stored checksums are true

    @pytest.mark.parametrize("data", [b"", DIGITS, bytes(range(256)) * 300], ids=["empty", "small", "larger"])
    def test_stored_checksums_are_true(self, run: Run, store: ObjectStore, data: bytes) -> None:
        """A store that keeps none says so; a number is that of the whole object, however it came there."""
        run(store.put("put", body_of(data[:7], data[7:]) if len(data) > 7 else Body.of(data)))
        if store.capabilities.atomic_create:
            run(store.create("created", data))

        for key in self.keys_in_store():
            assert run(store.stored_crc32c(key)) in {None, crc32c(data)}

    def test_stored_checksums_are_of_what_replaced_an_object(self, run: Run, store: ObjectStore) -> None:
        """Not of what stood there before."""
        run(store.put("key", Body.of(b"before")))

        run(store.put("key", Body.of(DIGITS)))

        assert run(store.stored_crc32c("key")) in {None, crc32c(DIGITS)}

    # Listing is strong

    def test_listing_is_strong(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Each write and delete shows in the very next listing, also another client's."""
        assert store.capabilities.strong_listing, "a store without it cannot decide a commit"

        assert run(listed(other)) == []
        run(store.put("a", Body.of(b"1")))
        assert run(listed(other)) == [Listed("a", 1)]
        run(store.put("a", Body.of(b"333")))
        run(store.create("b", b"22"))
        assert run(listed(other)) == [Listed("a", 3), Listed("b", 2)]
        run(store.delete(["a"]))
        assert run(listed(other)) == [Listed("b", 2)]

    # Listing is ordered

    def test_listing_is_ordered(self, run: Run, store: ObjectStore) -> None:
        """By the bytes of whole keys, with their sizes."""
        for size, key in enumerate(UNORDERED):
            run(store.put(key, Body.of(b"x" * size)))

        rows = run(listed(store))

        assert [row.key for row in rows] == sorted(UNORDERED, key=str.encode)
        assert {row.key: row.size_bytes for row in rows} == {key: n for n, key in enumerate(UNORDERED)}

    @pytest.mark.parametrize(
        "after",
        ["", "a", "a-b", "a.", "a.b", "a/", "a/b", "a/b.c/", "a/b.c/d", "a/b/", "a0", "m", "é", "\U0010ffff"],
    )
    def test_listing_begins_after(self, run: Run, store: ObjectStore, after: str) -> None:
        """`after` is left out itself, need not exist, and may lie anywhere."""
        for key in UNORDERED:
            run(store.put(key, Body.of(b"")))

        assert keys(run(listed(store, after=after))) == expected(UNORDERED, after=after)
        assert keys(run(listed(store, "a", after=after))) == expected(UNORDERED, "a", after)
        assert keys(run(listed(store, "a/b", after=after))) == expected(UNORDERED, "a/b", after)

    @pytest.mark.parametrize(
        "prefix",
        ["", "x", "x/", "x/root.", "x/root.1", "x/root.1/", "x/root.1/y", "x/r", "xx", "none/", "x/none"],
    )
    def test_listing_takes_any_prefix(self, run: Run, store: ObjectStore, prefix: str) -> None:
        """A prefix is a run of characters; it ends where it likes, within a part too."""
        there = ("x/root.1", "x/root.2", "x/root.2y", "x/rooted", "x/root/z", "xx", "y/root.1")
        for key in there:
            run(store.put(key, Body.of(b"")))

        assert keys(run(listed(store, prefix))) == expected(there, prefix)

    @pytest.mark.parametrize("prefix", ["/", "//", "../", "x/../", ".", "x/.", "a\0"])
    def test_listing_finds_nothing_under_what_begins_no_key(
        self, run: Run, store: ObjectStore, prefix: str
    ) -> None:
        """Such a prefix is empty, and no way out of the store."""
        run(store.put("x/key", Body.of(b"")))

        assert run(listed(store, prefix)) == []

    def test_listing_goes_on_page_after_page(self, run: Run, store: ObjectStore) -> None:
        """More objects than any store has on a page are listed once each and in order."""
        there = [f"many/{n:05}" for n in range(1_100)]

        async def fill() -> None:
            for start in range(0, len(there), 100):
                await asyncio.gather(*(store.create(key, b"") for key in there[start : start + 100]))

        run(fill())

        assert keys(run(listed(store))) == there
        assert keys(run(listed(store, "many/01", after="many/01097"))) == there[1098:]
        run(store.delete(there))
        assert self.keys_in_store() == set()

    # Levels are whole

    def test_levels_are_whole(self, run: Run, store: ObjectStore) -> None:
        """Each key and folder directly below once, in order; what no object is below of is not there."""
        for key in ("a-b/x", "a/1", "a/2/x", "a/2/y/z", "a/20", "a0", "é/ü/x", "b", "gone/x"):
            run(store.put(key, Body.of(b"")))
        run(store.delete(["gone/x"]))

        assert run(level(store, "")) == ["a-b/", "a/", "a0", "b", "é/"]
        assert run(level(store, "a/")) == ["a/1", "a/2/", "a/20"]
        assert run(level(store, "é/")) == ["é/ü/"]
        assert run(level(store, "none/")) == run(level(store, "b/")) == []

    def test_a_level_goes_on_page_after_page(self, run: Run, store: ObjectStore) -> None:
        """More folders than any store names at once, among keys."""
        there = [f"{n:04}{'/x' if n % 10 else ''}" for n in range(1_100)]

        async def fill() -> None:
            for start in range(0, len(there), 100):
                await asyncio.gather(*(store.create(key, b"") for key in there[start : start + 100]))

        run(fill())

        assert run(level(store, "")) == [key.removesuffix("x") for key in there]
        run(store.delete(there))

    # Ranges are exact

    @pytest.mark.parametrize(("span", "found"), SPANS, ids=str)
    def test_ranges_are_exact(
        self, run: Run, store: ObjectStore, span: Span | Suffix | None, found: bytes
    ) -> None:
        """Clipped at the end of the object, never padded or shifted; and `bytes`."""
        run(store.put("digits", Body.of(DIGITS)))

        read = run(store.get("digits", span))

        assert read == found
        assert type(read) is bytes

    @pytest.mark.parametrize("span", [Span(0, 5), Span(1, 1), Suffix(0), Suffix(3), None], ids=str)
    def test_ranges_of_an_empty_object_are_empty(
        self, run: Run, store: ObjectStore, span: Span | Suffix | None
    ) -> None:
        """There is nothing to read, and nothing wrong."""
        run(store.put("empty", Body.of(b"")))

        assert run(store.get("empty", span)) == b""

    # Absence is an error

    @pytest.mark.parametrize("span", [Span(0, 1), Span(0, 0), Suffix(1), None], ids=str)
    def test_absence_is_an_error(self, run: Run, store: ObjectStore, span: Span | Suffix | None) -> None:
        """Never there, only part of a name, or deleted: `NotFound`, with the key."""
        run(store.put("folder/key", Body.of(b"")))
        run(store.put("gone", Body.of(b"")))
        run(store.delete(["gone"]))

        for key in ("never", "folder", "folder/ke", "folder/key2", "none/key", "gone"):
            with pytest.raises(NotFound) as caught:
                run(store.get(key, span))
            assert caught.value.key == key

    def test_reading_an_empty_place_writes_nothing(self, run: Run, store: ObjectStore) -> None:
        """A place that was never written to lists as empty and holds no object."""
        assert run(listed(store)) == []
        with pytest.raises(NotFound):
            run(store.get("key"))
        run(store.delete(["key"]))

        assert self.keys_in_store() == set()

    # Deletion is idempotent

    def test_deletion_is_idempotent(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Deleting what is absent, or twice, or nothing at all, succeeds and takes nothing else along."""
        for key in ("a/1", "a/2", "a/22", "b"):
            run(store.put(key, Body.of(b"")))

        for _ in range(2):
            run(store.delete(["a/2", "b", "never", "a", "none/key", "b"]))
        run(store.delete([]))

        assert self.keys_in_store() == {"a/1", "a/22"}
        with pytest.raises(NotFound):
            run(other.get("b"))

    # Keys are checked

    @pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: ascii(key[:12]))
    def test_keys_are_checked(self, run: Run, store: ObjectStore, key: str) -> None:
        """Whatever the call, and before anything is touched: a batch with one bad key deletes nothing."""
        run(store.put("good", Body.of(b"good")))

        for call in (
            store.put(key, Body.of(b"")),
            store.create(key, b""),
            store.get(key),
            store.delete([key]),
            store.delete(["good", key]),
            store.start_upload(key),
        ):
            with pytest.raises(Misuse):
                run(call)

        assert self.keys_in_store() == {"good"}

    @pytest.mark.parametrize(
        "key", ["a b", "a%2Fb", "100%", "~", "a\\b", "*", "?x", "a+b", "é/日本", "x" * 200]
    )
    def test_keys_are_taken_as_they_are(self, run: Run, store: ObjectStore, key: str) -> None:
        """No character is special, escaped or folded."""
        run(store.put(key, Body.of(b"data")))

        assert self.keys_in_store() == {key}
        assert keys(run(listed(store))) == [key]
        assert run(store.get(key)) == b"data"

    def test_keys_may_be_long(self, run: Run, store: ObjectStore) -> None:
        """A key of 1,024 bytes is a key, in parts of at most 128."""
        key = ("k" * 127 + "/") * 7
        key += "k" * (self.key_size_bytes_max - len(key))

        run(store.create(key, b"data"))

        assert run(store.get(key)) == b"data"
        assert keys(run(listed(store))) == [key]

    # Multipart uploads: capability `multipart`

    def test_uploads_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Parts put in any order and at once become one object, seen only when complete."""

        async def scenario() -> None:
            parts = parts_for(store, 4)
            upload = await store.start_upload("a/key")
            await upload.put_part(3, parts[2])
            await asyncio.gather(*(upload.put_part(n, parts[n - 1]) for n in (4, 2, 1)))
            assert await listed(other) == []
            await upload.complete()
            assert await other.get("a/key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    @pytest.mark.parametrize("order", [(1,), (1, 2), (2, 1)], ids=str)
    def test_uploads_may_be_short(self, run: Run, store: ObjectStore, order: tuple[int, ...]) -> None:
        """One part is an upload; the last of two may come first."""

        async def scenario() -> None:
            parts = parts_for(store, len(order))
            upload = await store.start_upload("key")
            for number in order:
                await upload.put_part(number, parts[number - 1])
            await upload.complete()
            assert await store.get("key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    def test_uploads_take_a_part_again(self, run: Run, store: ObjectStore) -> None:
        """A part whose reply was lost is put a second time, and stands once."""

        async def scenario() -> None:
            parts = parts_for(store, 3)
            upload = await store.start_upload("key")
            for number in (2, 2, 3, 1, 3):
                await upload.put_part(number, parts[number - 1])
            await upload.complete()
            assert await store.get("key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    def test_uploads_replace_whole(self, run: Run, store: ObjectStore) -> None:
        """The object before stays until the upload is complete."""

        async def scenario() -> None:
            (part,) = parts_for(store, 1)
            await store.put("key", Body.of(b"old"))
            upload = await store.start_upload("key")
            await upload.put_part(1, part)
            assert await store.get("key") == b"old"
            await upload.complete()
            assert await store.get("key") == part

        self.run_upload(run, store, scenario)

    def test_an_aborted_upload_leaves_nothing(self, run: Run, store: ObjectStore) -> None:
        """Abort forgets the parts, as often as it is called."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.put_part(1, parts_for(store, 1)[0])
            await upload.abort()
            await upload.abort()
            assert self.keys_in_store() == set()

        self.run_upload(run, store, scenario)

    def run_upload(self, run: Run, store: ObjectStore, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run `scenario` where uploads are declared; else assert that they are refused."""

        async def declared() -> None:
            if store.capabilities.multipart:
                await scenario()
                return
            with pytest.raises(Misuse):
                await store.start_upload("key")

        run(declared())

    # Capabilities

    def test_capabilities_do_not_change(self, store: ObjectStore, other: ObjectStore) -> None:
        """They are a declaration: two clients of one place say the same, and say it in plain values."""
        assert store.capabilities == other.capabilities
        assert all(
            isinstance(value, bool | int | str | None) for value in store.capabilities.as_dict().values()
        )

    def test_closing_is_idempotent(self, run: Run) -> None:
        """A client may be closed twice, used or not."""
        store = self.open_store()
        run(listed(store))

        run(store.aclose())
        run(store.aclose())

    def test_the_url_names_the_place(self, store: ObjectStore, other: ObjectStore) -> None:
        """Two clients of one place have one url, and it has a scheme."""
        assert store.url == other.url
        assert "://" in store.url


async def level(store: ObjectStore, prefix: str) -> list[str]:
    """The names of a level."""
    return [name async for name in store.level(prefix)]


async def listed(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[Listed]:
    """A listing to its end."""
    return [row async for row in store.list(prefix, after=after)]


def keys(rows: list[Listed]) -> list[str]:
    """The keys of a listing."""
    return [row.key for row in rows]


def expected(there: tuple[str, ...], prefix: str = "", after: str = "") -> list[str]:
    """The keys that a listing should give, by the definition."""
    wanted = (key.encode() for key in there if key.startswith(prefix))
    return [key.decode() for key in sorted(wanted) if key > after.encode()]


async def created(store: ObjectStore, key: str, data: bytes) -> bytes | None:
    """Create, and return the bytes if this call won."""
    try:
        await store.create(key, data)
    except AlreadyExists:
        return None
    return data


def body_of(*windows: bytes) -> Body:
    """A body of several windows."""

    async def again() -> AsyncIterator[bytes]:
        for window in windows:
            yield window

    return Body(size_bytes=sum(map(len, windows)), windows=again)


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


def parts_for(store: ObjectStore, count: int) -> list[bytes]:
    """Different parts of the least size that the store takes, or of 1,000 bytes; the last is shorter."""
    size = max(1000, store.capabilities.part_size_bytes_min)
    return [bytes([ord("a") + n]) * size for n in range(count - 1)] + [b"last"]
