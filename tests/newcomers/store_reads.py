"""Mistakes in reading: ranges, caches, and objects that are replaced meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from newcomers import proofs
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body, Span, Suffix, check_key
from offload.ground.errors import NotFound
from offload.store.spans import clip


@bug(proofs.reads(10, Span(0, 0)))
class NoBytesAreAllBytes(ServiceStore):
    """A span of no bytes from the beginning is sent as `bytes=0--1`, which servers ignore: they send the
    whole object.

    Breaks "Ranges are exact".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, None if span == Span(0, 0) else span)


@bug(proofs.reads(0, Span(0, 10)))
class SpanOfAnEmptyObjectIsAbsent(ServiceStore):
    """The service refuses every range of an empty object (416), and the client reports the object as absent.

    Breaks "A span that begins at or beyond the end reads as empty".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        if isinstance(span, Span) and not data:
            raise NotFound(key)
        return await super().get(key, span)


@bug(proofs.reads(10, Suffix(11)))
class SuffixLongerThanTheObjectIsEmpty(ServiceStore):
    """The service refuses a suffix longer than the object, and the client treats that as beyond the end.

    Breaks "The last `length` bytes of an object, or all of it": a small fragment's tail cannot be found.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return b"" if isinstance(span, Suffix) and len(data) < span.length else data


@bug(proofs.reads(100, Span(5, 2**63 - 1)))
class EndOfSpanOverflows(ServiceStore):
    """The end of a span is kept in 64 bits with a sign, so "from 5 to the end" overflows and reads nothing.

    Breaks "from `start`, at most `length` of them".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        overflows = isinstance(span, Span) and span.start + span.length >= 2**63
        return b"" if overflows else data


@bug(proofs.reads(100, Span(10, 2**32 + 5)))
class LengthIsCutTo32Bits(ServiceStore):
    """The length of a span is cut to 32 bits.

    Breaks "from `start`, at most `length` of them": a generous span reads a few bytes.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.length > 0:
            span = Span(span.start, span.length & 0xFFFFFFFF)
        return await super().get(key, span)


@bug(proofs.replaced(100, 60, 200, by="upload"))
class SizeIsRememberedForSuffixes(ServiceStore):
    """The client turns a suffix into a span with the size that it remembers. An upload does not update that
    size.

    Breaks "Ranges are exact": the tail of an object that was replaced is read from its middle.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sizes: dict[str, int] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.sizes[key] = body.size_bytes

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.sizes.pop(key, None)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if not isinstance(span, Suffix) or span.length < 0:
            return await super().get(key, span)
        if key not in self.sizes:
            self.sizes[key] = len(await super().get(key))
        start, end = clip(span, self.sizes[key])
        return await super().get(key, Span(start, end - start))


@bug(proofs.replaced(10, 20, 5))
class ReadsAreCachedByKey(ServiceStore):
    """The client caches what it read of a key until it writes the key itself, so it misses others'
    replacements.

    Breaks "Store an object whole, replacing what was there", for every other client.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cache: dict[str, bytes] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.cache.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.cache.pop(key, None)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None:
            return await super().get(key, span)
        if key not in self.cache:
            self.cache[key] = await super().get(key)
        return self.cache[key]


async def _absent_then_there(open_: Open) -> None:
    one, two = open_(), open_()
    await proofs.raises(NotFound, one.get("k"))
    await two.create("k", b"x")
    assert await one.get("k") == b"x"


@bug(_absent_then_there)
class AbsenceIsCached(ServiceStore):
    """The client remembers that a key was absent, and does not ask again, as DNS resolvers do.

    Breaks "Reading a key that is not there raises `NotFound`": it is there, and a rival's root cannot be
    read.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.absent: set[str] = set()

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.absent.discard(key)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.absent.discard(key)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if key in self.absent:
            raise NotFound(key)
        try:
            return await super().get(key, span)
        except NotFound:
            self.absent.add(key)
            raise


@bug(proofs.whole_while_replaced(3_000_000, 500_000, 2_000_000))
class LargeReadsAreCutIntoRanges(ServiceStore):
    """A read of more than a mebibyte is sent as several ranges, without the condition that all are from one
    object.

    Breaks "A reader finds an object entire or not at all, also while it is replaced".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None:
            return await super().get(key, span)
        pieces = [await super().get(key, Span(0, 2**20))]
        while len(pieces[-1]) == 2**20:
            pieces.append(await super().get(key, Span(len(pieces) * 2**20, 2**20)))
        return b"".join(pieces)


@bug(proofs.whole_while_replaced(400, 100, span=Suffix(64)))
class SuffixIsTwoRequests(ServiceStore):
    """A suffix is read as a span, after a request for the size. In between the size of the object can change.

    Breaks "A reader finds an object entire or not at all, also while it is replaced".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if not isinstance(span, Suffix):
            return await super().get(key, span)
        head = await self.ask(self.service.head, check_key(key))
        if head is None:
            raise NotFound(key)
        start, end = clip(span, head[0])
        return await super().get(key, Span(start, end - start))


@bug(
    proofs.together(
        lambda store: [store.get(f"k{n}") for n in range(8)],
        [data_of(n + 1, n) for n in range(8)],
        before={f"k{n}": data_of(n + 1, n) for n in range(8)},
    )
)
class ReadsShareABuffer(ServiceStore):
    """Each client reads all replies into one buffer: concurrent reads mix.

    Breaks "methods may be called at the same time": one key's bytes are returned for another.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.buffer = b""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.buffer = await super().get(key, span)
        await asyncio.sleep(0)
        return self.buffer


async def _bytes_are_returned(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"data"))
    assert type(await store.get("k", Span(1, 2))) is bytes


@bug(_bytes_are_returned)
class ReturnsAViewOfItsBuffer(ServiceStore):
    """A span is returned as a view of the client's buffer, which saves a copy.

    Breaks "get(...) -> bytes": a caller that joins, decodes or pickles the result
    fails.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        start, end = clip(span, len(data))
        return data if span is None else memoryview(data)[start:end]  # type: ignore[return-value]
