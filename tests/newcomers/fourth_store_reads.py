"""Fourth set, stores: reads, sums and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from newcomers.fourth_sound import Client, same
from newcomers.proofs import data_of, fill
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory, SummedMemory
from offload.contracts.store import Body, Buffer, Span, Suffix, check_key
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


# Sums, and what is retained


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
