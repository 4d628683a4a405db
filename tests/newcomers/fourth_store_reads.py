"""Fourth set, stores: reads, sums and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from newcomers.fourth_sound import Client, same
from newcomers.proofs import data_of, fill, reads
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory, SummedMemory
from offload.contracts.store import Body, Buffer, Span, Suffix, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound, TryAgain

T = TypeVar("T")
RING: Final = 64

# Reads


async def _reads_stay(open_: Open) -> None:
    store = open_()
    for number in range(100):
        await store.put(f"k{number}", Body.of(data_of(500, number)))
    held = [await store.get(f"k{number}") for number in range(100)]
    assert all(bytes(read) == data_of(500, number) for number, read in enumerate(held))


@bug(_reads_stay)
class RingOfBuffers(SharedMemory):
    """Small reads take turns in a ring of 64 buffers, whoever still refers to one.

    Breaks "They never change, for as long as anything refers to them". Costs a consumer that holds more than
    64 reads their bytes.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ring = [bytearray(64 * 1024) for _ in range(RING)]
        self.turn = 0

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]
        data = await super().get(key, span)
        if len(data) > 64 * 1024:
            return data
        self.turn += 1
        buffer = self.ring[self.turn % RING]
        buffer[: len(data)] = data
        return memoryview(buffer)[: len(data)].toreadonly()


async def _ahead_is_of_one_key(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(data_of(300, 1)))
    await store.put("b", Body.of(data_of(300, 2)))
    assert await store.get("a", Span(0, 100, follows=200)) == data_of(300, 1)[:100]
    assert await store.get("b", Span(100, 100)) == data_of(300, 2)[100:200]


@bug(_ahead_is_of_one_key)
class ReadAheadByPosition(SharedMemory):
    """What was read ahead is kept by its position alone, and answers a read of another object there.

    Breaks "Each call returns the bytes of its own span alone, with the hint and without it". Costs a reader
    of two objects at once the bytes of one.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ahead: dict[int, bytes] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if not isinstance(span, Span) or span.length <= 0 or span.start < 0:
            return await super().get(key, span)
        held = self.ahead.pop(span.start, b"")
        if len(held) >= span.length:
            self.ahead = {span.start + span.length: held[span.length :]}
            await asyncio.sleep(0)
            return held[: span.length]
        if span.follows <= 0:
            return await super().get(key, span)
        data = await super().get(key, Span(span.start, span.length + span.follows))
        self.ahead = {span.start + span.length: data[span.length :]}
        return data[: span.length]


@bug(reads(1000, Span(10, 2**32 + 20)))
class EndsIn32Bits(SharedMemory):
    """The end of a range is computed in 32 bits, and wraps.

    Breaks "A span is clipped at the object's end". Costs a caller who asks for all that there is: a few bytes
    come, or none.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.start >= 0 and span.start + span.length >= 2**32:
            end = (span.start + span.length) % 2**32
            span = Span(span.start, max(end - span.start, 0))
        return await super().get(key, span)


@bug(same(lambda store: store.get("k", Suffix(10)), b"", before={"k": b""}))
class SuffixOfNothing(SharedMemory):
    """The server refuses a suffix of an empty object (status 416), and the client takes that for a wrong
    call.

    Breaks "The last `length` bytes of an object, or the whole object if it is shorter". Costs a reader that
    begins at the end of an object: an empty one stops it.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if isinstance(span, Suffix) and self.objects.get(key) == b"":
            raise Misuse(f"{key!r}: the range cannot be satisfied")
        return data


async def _cancelled_is_cancelled(open_: Open) -> None:
    store = open_()
    await fill(store, ["k"])
    task = asyncio.create_task(store.get("k"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()


@bug(_cancelled_is_cancelled)
class CancelledIsTryAgain(Client):
    """Whatever ends a request early is taken for a lost connection, a cancellation too.

    Breaks, of the guide's rules for cancellation, "Do not catch `CancelledError` without raising it again".
    Costs a caller with a deadline, whose task goes on.
    """

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        try:
            return await super().ask(request, *arguments)
        except asyncio.CancelledError as exc:
            raise TryAgain(f"{self.url}: the connection was lost") from exc


async def _errors_are_ours(open_: Open) -> None:
    store = open_()
    await fill(store, ["k"])
    for _ in range(200):
        with suppress(TryAgain):
            assert await store.get("k") == b"x"


@bug(_errors_are_ours)
class ResetIsNotTranslated(Client):
    """The server closes a connection after 60 requests, and the error of the socket reaches the caller.

    Breaks "Every method may raise `TryAgain`, `OutcomeUnknown` (mutations), `Denied` or `NoSpace`", and no
    other. Costs the retries of the framework, which know only these.
    """

    asked = 0

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        self.asked += 1
        if self.asked % 60 == 0:
            await asyncio.sleep(0)
            raise ConnectionResetError("connection reset by peer")
        return await super().ask(request, *arguments)


async def _others_stay_open(open_: Open) -> None:
    one, two = open_(), open_()
    await fill(one, ["k"])
    await two.get("k")
    await one.aclose()
    assert await two.get("k") == b"x"


@bug(_others_stay_open)
class PoolOfThePlace(Client):
    """The clients of a place share a pool, and the first one that is closed closes it for all of them.

    Breaks "Release connections and threads": those of another store are not its own. Costs a process with two
    clients the second one.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pool = self.service.__dict__.setdefault("pool", {"open": True})
        self.pool["open"] = True

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        if not self.pool["open"]:
            raise TryAgain(f"{self.url}: the pool is closed")
        return await super().ask(request, *arguments)

    async def aclose(self) -> None:
        self.pool["open"] = False


# Sums, and what is retained


async def _sums_of_equal_sizes(open_: Open) -> None:
    store = open_()
    for number in range(3):
        await store.put("k", Body.of(data_of(100, number)))
        assert await store.stored_crc32c("k") == crc32c(data_of(100, number))


@bug(_sums_of_equal_sizes)
class SumsByKeyAndSize(SummedMemory):
    """Sums are remembered by key and size.

    Breaks "If `stored_crc32c` returns a number, it is the object's CRC-32C". Costs a check after a
    replacement of equal size, which finds damage that is not there, or misses some.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        size = len(await self.get(key))
        if (key, size) not in self.kept:
            self.kept[key, size] = await super().stored_crc32c(key)
        return self.kept[key, size]  # type: ignore[no-any-return]


async def _nothing_has_no_sum(open_: Open) -> None:
    try:
        found = await open_().stored_crc32c("absent")
    except NotFound:
        return
    assert found is None, found


@bug(_nothing_has_no_sum)
class NothingHasASum(SummedMemory):
    """The sum of an absent object is zero, that of no bytes.

    Breaks "For an absent object, returns None or raises `NotFound`". Costs a check that takes an object that
    is gone for an empty one.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return await super().stored_crc32c(key) if check_key(key) in self.objects else 0


async def _one_line(open_: Open) -> None:
    store = open_()
    await fill(store, ["k"])
    found = await store.retained("k")
    assert found is None or len(found.splitlines()) == 1, found


@bug(_one_line)
class RetainedIsAReport(SharedMemory):
    """The reason why bytes are retained is the answer of the server, with its lines.

    Breaks "It is one line for a person". Costs the table in which a command shows it.
    """

    async def retained(self, key: str) -> str | None:
        await self.get(key)
        return "versioning: enabled\nnoncurrent versions: kept for 30 days\n"


async def _nothing_is_not_retained(open_: Open) -> None:
    try:
        found = await open_().retained("absent")
    except NotFound:
        return
    assert found is None, found


@bug(_nothing_is_not_retained)
class NothingIsRetained(SharedMemory):
    """The reason is that of the bucket, and no object is looked for.

    Breaks "For an absent object, returns None or raises `NotFound`". Costs a command that shreds: it reports
    bytes that were never there.
    """

    async def retained(self, key: str) -> str | None:
        check_key(key)
        return "the bucket keeps deleted versions for 30 days"
