"""Proofs of mistakes in stores: small calls of the port, compared with what the contract says of them.

Each function takes the values that differ between cases and returns a proof. The proof raises if the contract
is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

from offload.contracts.store import Body, Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound, OffloadError
from offload.store.spans import clip
from offload_conformance.bugs.registry import OpenClient, Proof

THOUSANDS: Final = [f"t/{number:05}" for number in range(2500)]
"""More keys than two pages."""


def data_of(size: int, salt: int = 0) -> bytes:
    """Return bytes from which the position of a cut can be seen."""
    block = b"".join(
        (number * 2654435761 + salt).to_bytes(8, "big")[-4:] for number in range(min(size, 65536) // 4 + 1)
    )
    return (block * (size // len(block) + 1))[:size]


async def names(store: Any, prefix: str = "", after: str = "") -> list[str]:
    """Return the keys that a listing shows."""
    async with aclosing(store.list(prefix, after=after)) as rows:
        return [row.key async for row in rows]


async def level(store: Any, prefix: str = "") -> list[str]:
    """Return the names that a level shows."""
    return [name async for name in store.level(prefix)]


async def fill(store: Any, keys: Iterable[str], data: bytes = b"x") -> None:
    """Put the same bytes under each key."""
    for key in keys:
        await store.put(key, Body.of(data))


async def raises(expected: type[BaseException], call: Awaitable[Any]) -> None:
    """Assert that the call raises this error, and no other."""
    try:
        found = await call
    except expected:
        return
    raise AssertionError(f"expected {expected.__name__}, found {found!r}")


def keeps(*sizes: int) -> Proof:
    """Prove that every object of these sizes reads back unchanged."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        for size in sizes:
            await store.put(f"k{size}", Body.of(data_of(size)))
            assert await store.get(f"k{size}") == data_of(size), size
            assert [(row.key, row.size_bytes) async for row in store.list(f"k{size}")] == [(f"k{size}", size)]

    return proof


def reads(size: int, span: Span | Suffix, *, first: int = 0) -> Proof:
    """Prove that this part of an object has these bytes."""

    async def proof(open_: OpenClient) -> None:
        store, data = open_(), data_of(size)
        await store.put("k", Body.of(data))
        if isinstance(span, Suffix):
            expected = data[max(0, size - span.length) :]
        else:
            expected = data[span.start : span.start + span.length]
        for _ in range(2):
            assert await store.get("k", span) == expected
        assert first >= 0

    return proof


def lists(keys: Sequence[str], *, gone: Sequence[str] = (), prefix: str = "", after: str = "") -> Proof:
    """Prove that a listing shows exactly these keys, without the deleted ones."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await fill(store, keys)
        await store.delete(gone)
        expected = sorted(key for key in {*keys} - {*gone} if key.startswith(prefix) and key > after)
        assert await names(open_(), prefix, after) == expected

    return proof


def levels(keys: Sequence[str], prefix: str = "") -> Proof:
    """Prove that a level shows exactly the keys and folders below the prefix."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await fill(store, keys)
        below = [key[len(prefix) :].partition("/") for key in keys if key.startswith(prefix)]
        assert await level(store, prefix) == sorted({prefix + part + slash for part, slash, _ in below})

    return proof


def apart(one: str, two: str) -> Proof:
    """Prove that two keys are two objects, and that a listing shows both by their names."""

    async def proof(open_: OpenClient) -> None:
        for first, second in ((one, two), (two, one)):
            store = open_()
            await store.delete([one, two])
            await store.put(first, Body.of(b"first"))
            await store.create(second, b"second")
            assert (await store.get(first), await store.get(second)) == (b"first", b"second")
            assert await names(store) == sorted([one, two])

    return proof


def key_round(key: str) -> Proof:
    """Prove that a key is listed, read and deleted by its own name."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await store.put(key, Body.of(b"x"))
        assert await store.get(key) == b"x"
        assert await names(store) == [key]
        await store.delete([key])
        assert await names(store) == []

    return proof


def uploads(
    sizes: Sequence[int], order: Sequence[int] | None = None, *, at_once: bool = False, again: int = 0
) -> Proof:
    """Prove that the parts of an upload are joined in order of their numbers, whatever the order of
    arrival.
    """

    async def proof(open_: OpenClient) -> None:
        store = open_()
        parts = {number: data_of(size, number) for number, size in enumerate(sizes, 1)}
        upload = await store.start_upload("k")
        puts = [upload.put_part(number, parts[number]) for number in order or parts]
        if at_once:
            await asyncio.gather(*puts)
        else:
            for put in puts:
                await put
        if again:
            await upload.put_part(again, parts[again])
        await upload.complete()
        whole = b"".join(parts.values())
        assert await open_().get("k") == whole
        assert await store.stored_crc32c("k") in (None, crc32c(whole))

    return proof


async def broken_body(size: int, after: int, error: BaseException) -> AsyncIterator[bytes]:
    """Yield windows, and then raise an error."""
    yield data_of(after)
    await asyncio.sleep(0)
    raise error


def body_that_fails(error: OffloadError) -> Proof:
    """Prove that an error of the body leaves no object and is raised unchanged."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await raises(
            type(error),
            store.put("k", Body(size_bytes=200_000, windows=lambda: broken_body(200_000, 100_000, error))),
        )
        assert await names(open_()) == []

    return proof


async def windows(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yield these windows."""
    for piece in pieces:
        yield piece


def body_of_another_size(announced: int, size: int) -> Proof:
    """Prove that a body of another length than announced raises `Misuse` and leaves no object."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        half = data_of(size)[: size // 2], data_of(size)[size // 2 :]
        await raises(Misuse, store.put("k", Body(size_bytes=announced, windows=lambda: windows(*half))))
        assert await names(open_()) == []

    return proof


def whole_while_replaced(*sizes: int, rounds: int = 40, span: Span | Suffix | None = None) -> Proof:
    """Prove that a reader during a replacement finds one of the two objects, entire."""

    async def proof(open_: OpenClient) -> None:
        one, two = open_(), open_()
        objects = [data_of(size, turn) for turn, size in enumerate(sizes)]
        expected = [data[slice(*clip(span, len(data)))] for data in objects]
        await one.put("k", Body.of(objects[0]))

        async def write() -> None:
            for turn in range(rounds):
                await one.put("k", Body.of(objects[turn % len(objects)]))

        writing = asyncio.create_task(write())
        try:
            while not writing.done():
                assert await two.get("k", span) in expected
                await asyncio.sleep(0)
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing

    return proof


def many_times(
    call: Callable[[Any, int], Awaitable[Any]], times: int, *, ignore: type[BaseException] = NotFound
) -> Proof:
    """Prove that a call can be repeated any number of times, and that the next call works."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await fill(store, [f"seed/{number:03}" for number in range(5)])
        async with asyncio.timeout(10):
            for number in range(times):
                with suppress(ignore):
                    await call(store, number)
            assert await store.get("seed/000") == b"x"

    return proof


def answers(
    expected: type[BaseException],
    call: Callable[[Any], Awaitable[Any]],
    *,
    before: Sequence[str] = (),
    stays: Sequence[str] | None = None,
) -> Proof:
    """Prove that a call raises this error and changes nothing."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await fill(store, before)
        await raises(expected, call(store))
        assert await names(open_()) == sorted(before if stays is None else stays)

    return proof
