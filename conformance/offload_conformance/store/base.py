"""The base of every family of store clauses: the place, its clients, and helpers that make bodies.

Invariants: the clauses use only the port of the store under test. Only `keys_in_store` looks at what is
really stored. A store that declares late listings gets time to show an effect.
"""

from __future__ import annotations

import asyncio
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

import pytest

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX, Capabilities
from offload.contracts.store import Body, Buffer, Listed, ObjectStore
from offload.ground.errors import Denied, OffloadError
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.contender import ContenderTask, job_of
from offload_conformance.declared import Declared
from offload_conformance.findings import NOTE
from offload_conformance.raising import raises

T = TypeVar("T")

DIGITS: Final = b"0123456789"
MIB: Final = 2**20

SIZES: Final = (1, 2**16, MIB, 8 * MIB, 17 * MIB)
"""Sizes of objects.

SDKs, stores and proxies switch methods at 64 KiB, at 1, 4, 5 and 8 MiB, and at 16 MiB.
"""

LIMIT_SIZE_BYTES_MAX: Final = 32 * 2**20
"""The largest declared limit of bytes that is reached and exceeded. Larger ones would take long."""

WRITES_AT_ONCE: Final = 100
AT_ONCE: Final = 16

CANCELS: Final = 24
"""How often a call is cancelled, at moments spread over it: more often than most clients have connections."""

ROWS_BEYOND: Final = 1_000
"""A listing is left after this many rows more than there are keys, because it might never end."""

LATE_LOOKS_MAX: Final = 200
LATE_PAUSE_SECONDS: Final = 0.05
"""A listing that may be late is repeated this often, after pauses of this length: ten seconds in all."""


class StoreClauses(Asynchronous, ABC):
    """The place of a test, and clients of it."""

    layer: ClassVar[str] = "store"

    capabilities: ClassVar[Capabilities | Declared | None] = None
    """The capabilities that the author declares, if they are declared apart from the store's own answer."""

    key_size_bytes_max = KEY_SIZE_BYTES_MAX
    """The size limit of the keys that the tests use, if it is below the limit that the store declares."""

    newest_kept: ClassVar[int] = 16
    """While listings run, so many of a folder's greatest keys exist at any moment: as many as a sweep keeps.

    1 is the strictest value. It suits a store whose pages each show a single moment.
    """

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """Return a fresh client of the same place, which is empty when a test begins."""

    def borrow_store(self) -> ObjectStore:
        """Return a client of the place that may have served other tests. By default, it is a fresh one."""
        return self.open_store()

    async def give_back(self, client: ObjectStore) -> None:
        """End the use of a client of `borrow_store`. By default, it is closed."""
        await client.aclose()

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """Return the keys that are really stored, found by other means than the store."""

    def keys_beside(self) -> set[str]:
        """Return what is stored beside this test's place, if the place is part of a larger one."""
        return set()

    def elsewhere(self, keys: Sequence[str]) -> ContenderTask:
        """Return the task by which another process opens the same place and may create these keys.

        The task names this class, its file, and those attributes of its instance that are paths or plain JSON
        values.
        """
        return job_of(self)

    def open_unreachable(self) -> ObjectStore | None:
        """Return a client whose server cannot be reached; None if there is no server or no way to say so."""
        return None

    @pytest.fixture
    def open_client(self, run: Run) -> Iterator[Callable[[], ObjectStore]]:
        """Return a function that opens clients. They are closed after the test."""
        clients: list[ObjectStore] = []

        async def on_the_loop() -> ObjectStore:
            return self.open_store()

        def open_client() -> ObjectStore:
            clients.append(run(on_the_loop()))
            return clients[-1]

        yield open_client
        for client in clients:
            run(client.aclose())

    @pytest.fixture
    def store(self, run: Run) -> Iterator[ObjectStore]:
        """The client under test."""
        yield from self._for_the_test(run)

    @pytest.fixture
    def other(self, run: Run) -> Iterator[ObjectStore]:
        """A second client of the same place."""
        yield from self._for_the_test(run)

    def _for_the_test(self, run: Run) -> Iterator[ObjectStore]:
        async def on_the_loop() -> ObjectStore:
            return self.borrow_store()

        client = run(on_the_loop())
        yield client
        run(self.give_back(client))

    @pytest.fixture
    def note(self, request: pytest.FixtureRequest) -> Callable[[str], None]:
        """Return a function that notes in the report why a clause ran with fewer objects than it could."""
        node: pytest.Item = request.node

        def note(words: str) -> None:
            node.stash[NOTE] = words

        return note

    def holds_no_tier(self, run: Run, store: ObjectStore) -> None:
        """Assert that a store without atomic creates is refused as a tier: `Denied`, and nothing stored."""
        with raises(Denied, "a tier on a store without atomic creates"):
            run(ObjectStoreOffloader(store).open(create=True))
        assert self.keys_in_store() == set(), "a place that is refused as a tier must stay unchanged"


async def listed(
    store: ObjectStore, prefix: str = "", *, after: str = "", awaiting: Sequence[str] | None = None
) -> list[Listed]:
    """Return a whole listing.

    If the store may be late, repeat it until it has the keys `awaiting`, or time is up.
    """
    looks = 1 if awaiting is None or store.capabilities.strong_listing else LATE_LOOKS_MAX
    most = float("inf") if awaiting is None else len(awaiting) + ROWS_BEYOND
    for look in range(looks):
        rows = []
        async for row in store.list(prefix, after=after):
            rows.append(row)
            if len(rows) > most:
                break
        if awaiting is None or keys(rows) == list(awaiting):
            break
        if look < looks - 1:
            await asyncio.sleep(LATE_PAUSE_SECONDS)
    return rows


def refuses(store: ObjectStore, key: str) -> bool:
    """Return True if the store declares that it cannot hold this key."""
    pattern, most = store.capabilities.keys_refused, store.capabilities.key_size_bytes_max
    return len(key.encode()) > most or (pattern is not None and re.search(pattern, key) is not None)


async def level(store: ObjectStore, prefix: str) -> list[str]:
    """Return the names of a level."""
    return [name async for name in store.level(prefix)]


async def level_like(store: ObjectStore, prefix: str, wanted: Sequence[str]) -> list[str]:
    """Return the names of a level.

    If the store may be late, repeat it until it is `wanted`, or time is up.
    """
    looks = 1 if store.capabilities.strong_listing else LATE_LOOKS_MAX
    for look in range(looks):
        names = await level(store, prefix)
        if names == wanted or look == looks - 1:
            break
        await asyncio.sleep(LATE_PAUSE_SECONDS)
    return names


def keys(rows: Iterable[Listed]) -> list[str]:
    """Return the keys of a listing."""
    return [row.key for row in rows]


def make_sure_of_keys(found: Sequence[str], wanted: Sequence[str], what: str) -> None:
    """Fail unless a listing or a level has the wanted names. `assert` would print thousands of keys."""
    if found == wanted:
        return
    twice = [key for key, count in Counter(found).items() if count > 1]
    wrong = {
        "missing": sorted({*wanted} - {*found}),
        "unexpected": sorted({*found} - {*wanted}),
        "listed twice": sorted(twice),
    }
    words = [f"{word} {some[:3]}{' and more' * (len(some) > 3)}" for word, some in wrong.items() if some]
    pytest.fail(
        f"{what}: expected {len(wanted)} names, found {len(found)}; {'; '.join(words) or 'wrong order'}"
    )


async def in_turn(call: Callable[[T], Awaitable[object]], each: Sequence[T]) -> None:
    """Await a call for each item, a few at once."""
    for start in range(0, len(each), AT_ONCE):
        await asyncio.gather(*map(call, each[start : start + AT_ONCE]))


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Fail with `what` if the store raises an error, for a clause that asks many questions."""
    try:
        yield
    except Exception as error:
        if isinstance(error, AssertionError):
            raise
        pytest.fail(f"{what}: expected no error; found {error!r}")


async def turns_of(call: Coroutine[Any, Any, object]) -> int:
    """Return how many turns of the event loop a call takes."""
    task, turns = asyncio.ensure_future(call), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


def moment(number: int, turns: int) -> int:
    """Return the turn at which to cancel the n-th call.

    The turns cover all of the call except its very start.
    """
    return 1 + (turns - 1) * number // CANCELS


async def cancelled_after(turns: int, call: Coroutine[Any, Any, object]) -> None:
    """Cancel a call after some turns of the event loop, and wait for its end. The call may end earlier.

    Fail if the call takes its cancellation for an error of the store: its caller would work on, or try again.
    """
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    except OffloadError as error:
        if was_running:
            pytest.fail(f"a cancelled call: expected `CancelledError`, or its result; found {error!r}")


def size_of(key: str) -> int:
    """Return the size of the object that `fill` creates under this key."""
    return sum(key.encode()) % 5


async def fill(store: ObjectStore, there: Sequence[str]) -> None:
    """Create all of these keys, many at once. Neighbours differ in size."""
    for start in range(0, len(there), WRITES_AT_ONCE):
        some = there[start : start + WRITES_AT_ONCE]
        await asyncio.gather(*(store.create(key, b"x" * size_of(key)) for key in some))


def drawn(size_bytes: int) -> bytes:
    """Return random bytes: lost, doubled or moved ones show, and nothing can compress them."""
    return random.randbytes(size_bytes)


def windows_of(data: bytes) -> list[bytes]:
    """Return the bytes, cut at a few random places."""
    cuts = sorted(random.sample(range(1, len(data)), min(5, len(data) - 1)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def ways_of(store: ObjectStore) -> list[str]:
    """Return the ways in which objects get into this store: the names that `store_by` knows."""
    can = store.capabilities
    return ["put", *["create"] * can.atomic_create, *["upload"] * can.multipart]


async def store_by(way: str, store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object by `put`, by `delete` and `create`, or by an upload in up to four parts."""
    match way:
        case "put":
            await store.put(key, body_of(*halves(data)))
        case "create":
            await store.delete([key])
            await store.create(key, data)
        case "upload":
            upload = await store.start_upload(key)
            size_bytes = max(store.capabilities.part_size_bytes_min, -(-len(data) // 4), 1)
            for start in range(0, max(len(data), 1), size_bytes):
                await upload.put_part(start // size_bytes + 1, data[start : start + size_bytes])
            await upload.complete()


def make_sure_of(found: Buffer, wanted: bytes, what: str) -> None:
    """Fail unless the bytes are the same. `assert` would print megabytes."""
    if found != wanted:
        pairs = enumerate(zip(found, wanted, strict=False))
        first = next((n for n, (one, other) in pairs if one != other), min(len(found), len(wanted)))
        pytest.fail(
            f"{what}: expected {len(wanted)} bytes, found {len(found)}; they differ from byte {first}"
        )


def body_of(*windows: bytes) -> Body:
    """Return a body of several windows. Each second one is a view, as of a source that reuses its memory."""

    async def again() -> AsyncIterator[Buffer]:
        for number, window in enumerate(windows):
            yield memoryview(window) if number % 2 else window

    return Body(size_bytes=sum(map(len, windows)), windows=again)


def halves(data: bytes) -> tuple[bytes, ...]:
    """Return the two halves of some bytes, without empty ones."""
    middle = len(data) // 2
    return tuple(filter(None, (data[:middle], data[middle:])))
