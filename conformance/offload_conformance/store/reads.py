"""Reads: exact ranges, errors for absent keys, no stale answers; and the checksums that a store keeps."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any, Final

import pytest

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import NotFound
from offload.store.spans import clip
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    DIGITS,
    StoreClauses,
    body_of,
    drawn,
    halves,
    in_turn,
    listed,
    make_sure_of,
    naming,
    store_by,
    ways_of,
)
from offload_conformance.store.edges import spans

PIECES: Final = 6
PIECE_SIZE_BYTES: Final = 512 * 1024
"""Large enough for stores that handle long reads in another way than short ones."""

WINDOWS: Final = (7, 4096, 30_000, 1, 2**16)
"""The sizes of the windows of a body."""

EARLIER: Final = 6
"""A read begins up to this many turns of the event loop before a write."""


class StoreReadClauses(StoreClauses):
    """The clauses on reads: ranges are exact, absence is an error, stored checksums are true."""

    def test_ranges_are_exact(self, run: Run, store: ObjectStore) -> None:
        """A range is cut at the end of the object, never padded or shifted. Nobody can write to its bytes.

        Any range of an empty object is empty, and no error.
        """
        objects = {"digits": DIGITS, "empty": b""}

        async def make_sure(key: str, span: Span | Suffix | None) -> None:
            start, end = clip(span, len(objects[key]))
            with naming(f"a read of {span} of {len(objects[key])} bytes"):
                read = await store.get(key, span)
            assert read == objects[key][start:end], f"{span} of {objects[key]!r}"
            assert type(read) is bytes or (type(read) is memoryview and read.readonly)

        for key, data in objects.items():
            run(store.put(key, Body.of(data)))
            asked = [span for span, error in spans() if error is None]
            run(in_turn(partial(make_sure, key), asked))

    def test_hints_change_no_byte(self, run: Run, store: ObjectStore) -> None:
        """A read returns its own span, whatever it and the reads before it have said of what follows.

        What was read ahead belongs to its key, and not to the next object that is read from the same byte on.
        """
        most = store.capabilities.put_size_bytes_max or PIECES * PIECE_SIZE_BYTES
        size_bytes = min(PIECE_SIZE_BYTES, most // PIECES // 8 * 8)  # a multiple of the 8 bytes of a number
        data = array("Q", range(PIECES * size_bytes // 8)).tobytes()
        pieces = [
            Span(start, size_bytes, follows=len(data) - start - size_bytes)
            for start in range(0, len(data), size_bytes)
        ]
        bodies = {"hinted": data, "another": data[::-1]}
        beyond = [
            Span(len(data) - 9, 20, follows=10),
            Span(len(data) - 5, 5, follows=1 << 40),
            Span(len(data), 10, follows=10),
        ]

        async def scenario() -> None:
            for key, body in bodies.items():
                await store.put(key, Body.of(body))

            async def make_sure(span: Span, key: str = "hinted") -> None:
                read = await store.get(key, span)
                wanted = bodies[key][span.start : span.start + span.length]
                make_sure_of(read, wanted, f"the bytes of {span} of {key!r}")

            for order in (pieces, pieces[::-1], [pieces[0], pieces[2], pieces[1], pieces[1]], beyond):
                for span in order:
                    await make_sure(span)
            await asyncio.gather(*(make_sure(span) for span in [*pieces, *pieces, *beyond]))
            for before, span in pairwise(pieces):
                await make_sure(before)
                await make_sure(span, "another")
                await asyncio.gather(
                    make_sure(before, "another"), make_sure(span), make_sure(span, "another")
                )

        run(scenario())

    def test_bytes_that_were_read_never_change(self, run: Run, store: ObjectStore) -> None:
        """The bytes of a read stay the same while a caller keeps them, also if more is read meanwhile.

        So does a slice of them whose whole nobody keeps, and nothing that happens to the object or to the
        client changes them: it is replaced, written in parts, deleted and created, and the client is closed.
        """
        bodies = {
            f"kept.{number}": bytes([number]) * size_bytes
            for number, size_bytes in enumerate((PIECE_SIZE_BYTES, PIECE_SIZE_BYTES, 5_000, 10))
        }

        async def scenario() -> None:
            for key, body in bodies.items():
                await store.put(key, Body.of(body))
            spans = (Span(0, PIECE_SIZE_BYTES), None, Suffix(PIECE_SIZE_BYTES), Span(0, 5, follows=1 << 20))
            kept = [(key, span, await store.get(key, span)) for span in spans for key in [*bodies, *bodies]]
            slices = [(key, span, memoryview(await store.get(key, span))[1:4]) for key, span, _ in kept]

            def make_sure(event: str) -> None:
                for key, span, read in kept:
                    start, end = clip(span, len(bodies[key]))
                    make_sure_of(read, bodies[key][start:end], f"{span or 'all'} of {key!r}, after {event}")
                for key, span, part in slices:
                    make_sure_of(
                        part, bodies[key][1:4], f"a slice of {span or 'all'} of {key!r}, after {event}"
                    )

            make_sure("other reads")
            for way in ways_of(store):
                for key, body in bodies.items():
                    await store_by(way, store, key, b"\xff" * len(body))
                    await store.get(key)
                make_sure(f"its object was replaced by {way}")
            await store.delete([*bodies])
            await store.aclose()
            make_sure("its object was deleted and its client closed")

        run(scenario())

    def test_ranges_are_exact_at_every_border(self, run: Run, store: ObjectStore) -> None:
        """In an object of 8 MiB, ranges and suffixes that begin or end near a power of two are exact.

        So are ranges across the ends of the windows of a body, which a store may keep apart.
        """
        size_bytes = min(LARGE_SIZE_BYTES, store.capabilities.put_size_bytes_max or LARGE_SIZE_BYTES)
        data = array("Q", range(size_bytes // 8 + 1)).tobytes()[:size_bytes]

        async def scenario() -> None:
            await store.put("large", Body.of(data))
            for span in ranges_at_borders():
                start, end = clip(span, size_bytes)
                read = await store.get("large", span)
                assert (len(read), read == data[start:end]) == (end - start, True), f"{span}: wrong bytes"
            windows = [data[start:end] for start, end in pairwise((0, *accumulate(WINDOWS)))]
            await store.put("windows", body_of(*windows))
            for end in accumulate(map(len, windows)):
                for span in (Span(end - 2, 4), Span(end - 1, 1), Span(end, 3)):
                    wanted = b"".join(windows)[span.start : span.start + span.length]
                    make_sure_of(await store.get("windows", span), wanted, f"{span} at the end of a window")

        run(scenario())

    def test_absence_is_an_error(self, run: Run, store: ObjectStore) -> None:
        """Reading a key that was never written, is deleted, or is a part of another raises `NotFound`."""
        run(store.put("folder/key", Body.of(b"")))
        run(store.put("gone", Body.of(b"")))
        run(store.delete(["gone"]))
        absent = ("never", "folder", "folder/ke", "folder/key2", "folder/key/below", "none/key", "gone")

        for key, span in product(absent, (Span(0, 1), Span(3, 0), Suffix(1), Suffix(0), None)):
            with raises(NotFound, f"a read of {span} of {key!r}, which is absent") as caught:
                run(store.get(key, span))
            assert caught.value.key == key

    def test_reading_an_empty_place_writes_nothing(self, run: Run, store: ObjectStore) -> None:
        """Reading in a place that was never written to finds nothing and stores nothing."""
        beside = self.keys_beside()

        assert run(listed(store)) == []
        with raises(NotFound, "a read in an empty place"):
            run(store.get("key"))
        run(store.delete(["key"]))

        assert self.keys_in_store() == set()
        assert self.keys_beside() <= beside

    @pytest.mark.parametrize("size", ["empty", "small", "larger", "two parts", "large"])
    def test_stored_checksums_are_true(self, run: Run, store: ObjectStore, size: str) -> None:
        """The stored checksum is that of the whole object, whichever call stored it, or None.

        Some bodies know their checksum when all of their windows have passed, and some have only a bound.
        """
        can = store.capabilities
        sizes = {"empty": 0, "small": 10, "larger": 80_000, "large": LARGE_SIZE_BYTES}
        size_bytes = sizes.get(size, can.part_size_bytes_min + 1_000)
        data = drawn(min(size_bytes, can.put_size_bytes_max or size_bytes))
        unasked = {"empty": {"upload"}, "two parts": {"create"}, "large": {"create", "upload"}}.get(
            size, set()
        )
        for way in {*ways_of(store)} - unasked:
            run(store_by(way, store, way, data))
        run(store.put("known", summed(data)))
        if can.unsized_put:
            most = min(len(data) + 1_000, can.put_size_bytes_max or len(data) + 1_000)
            run(store.put("bound", replace(summed(data), size_bytes=most, is_bound=True)))
            make_sure_of(run(store.get("bound")), data, "an object of a body with a bound and a checksum")
        make_sure_of(run(store.get("known")), data, "an object of a body that knows its checksum")

        for key in self.keys_in_store():
            found = run(store.stored_crc32c(key))
            assert found in {None, crc32c(data)}, f"{key}: expected {crc32c(data)} or None; found {found}"

    def test_stored_checksums_are_of_what_replaced_an_object(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """A stored checksum is that of the current object, not of one that it replaced.

        This holds for every pair of calls that stored the two, of another size and of the same, and for a
        client that asked for the checksum before.
        """
        before = "nothing"
        for number, way in enumerate(
            way for pair in product(ways_of(store), repeat=2) for way in [*pair] * 2
        ):
            data = drawn(number // 4 % 5 * 300 + 1 + number // 4)
            run(store_by(way, store, "key", data))
            for client in (store, other):
                found = run(client.stored_crc32c("key"))
                if found not in {None, crc32c(data)}:
                    pytest.fail(
                        f"{way} after {before}, of {len(data)} bytes: expected {crc32c(data)} or None; "
                        f"found {found}"
                    )
            before = way

    def test_ranges_are_never_negative(self, run: Run, store: ObjectStore) -> None:
        """A negative start or length is `Misuse`, because stores would interpret it differently."""
        run(store.put("digits", Body.of(DIGITS)))

        for span, error in spans():
            if error is not None:
                with raises(error, f"a read of {span}"):
                    run(store.get("digits", span))

    @pytest.mark.parametrize("span", [Span(0, 5), Span(3, 1 << 40), Suffix(2), None], ids=str)
    def test_reads_are_never_stale(
        self, run: Run, store: ObjectStore, other: ObjectStore, span: Span | Suffix | None
    ) -> None:
        """The next read after a write or delete shows it, also to another client that read the key before.

        If a longer object replaced the first one, the same span reads up to the new end. If one of the same
        size did, the new bytes are read. A read that began before a write does not pass its answer on to a
        later read. Neither does a question for the checksum, the metadata or the row.
        """

        def part_of(data: bytes) -> bytes:
            start, end = clip(span, len(data))
            return data[start:end]

        def absent() -> None:
            with raises(NotFound, "a read of a key that never existed or was deleted"):
                run(other.get("key", span))

        absent()
        before = b""
        contents = (b"before", b"behind", b"after", b"again", b"longer than before")
        for way, data in product(ways_of(store), contents):
            run(store_by(way, store, "key", data))
            found, wanted = run(other.get("key", span)), part_of(data)
            make_sure_of(found, wanted, f"{span or 'all'} of {data!r}, after {before!r}")
            before = data
        run(store.delete(["key"]))
        absent()
        run(store.create("key", b"again"))
        assert run(other.get("key", span)) == part_of(b"again")

        async def overtaken(
            key: str, turns: int, ask: Callable[[str], Awaitable[object]], *wanted: object
        ) -> None:
            asked = asyncio.ensure_future(ask(key))
            for _ in range(turns):
                await asyncio.sleep(0)
            await store.put(key, Body.of(b"written", metadata=described(store, "new")))
            assert await ask(key) in wanted, "the answer of an earlier question"
            await asyncio.gather(asked, return_exceptions=True)

        for turns in range(EARLIER):
            run(overtaken(f"new.{turns}", turns, lambda key: store.get(key, span), part_of(b"written")))
            for ask, *answers in asked_of(store) if span is None else ():
                run(store.put("old", Body.of(b"before it", metadata=described(store, "old"))))
                run(overtaken("old", turns, ask, *answers))


def described(store: ObjectStore, ours: str) -> dict[str, str]:
    """Return metadata, or none if the store keeps none."""
    return {"ours": ours} if store.capabilities.metadata_size_bytes_max else {}


def asked_of(store: ObjectStore) -> Iterator[tuple[Any, ...]]:
    """Yield the questions about an object beside its bytes, with the answers if they are `written`."""

    async def ours(key: str) -> str | None:
        return (await store.metadata_of(key) or {}).get("ours")

    async def row(key: str) -> Sequence[Listed]:
        return await listed(store, key)

    yield store.stored_crc32c, None, crc32c(b"written")
    yield ours, described(store, "new").get("ours")
    if store.capabilities.strong_listing:
        yield row, [Listed("old", len(b"written"))]


def summed(data: bytes) -> Body:
    """Return a body of two windows that knows its checksum once both have passed, at each reading."""
    has_passed = False

    async def windows() -> AsyncIterator[bytes]:
        nonlocal has_passed
        has_passed = False
        for window in halves(data):
            yield window
        has_passed = True

    def known() -> int | None:
        return crc32c(data) if has_passed else None

    return Body(size_bytes=len(data), windows=windows, crc32c=known)


LARGE_SIZE_BYTES: Final = 8 * 2**20 + 3
BORDERS: Final = (1, 4096, 2**16, 2**20, 4 * 2**20, 8 * 2**20)
"""The sizes at which pages, buffers, blocks and parts end, in disks, sockets, SDKs and stores."""


def ranges_at_borders() -> Iterator[Span | Suffix]:
    """Yield ranges that cross each border, or begin or end at it, one byte before it or one byte after it."""
    for border in BORDERS:
        yield Span(border - 1, 2)
        for at in (border - 1, border, border + 1):
            yield from (Span(0, at), Span(at, 1), Suffix(at))
