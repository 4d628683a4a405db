"""Parts of a stream: recorded by number, listed in order, and begun again without harm.

A tier need not have parts: `begin_part` of one that records none raises `Misuse`. Such a tier lists no parts
either, and is asked nothing else here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk import CHUNK_HEADER
from offload.ground.errors import Conflict, Misuse, NotOffloaded, StreamDeleted
from offload.model.part import StreamPart
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import drawn_ledger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, deleted
from offload_conformance.offloader.edges import KINDS, TWINS
from offload_conformance.offloader.names import has_room
from offload_conformance.opened import Open
from offload_conformance.raising import raises
from offload_conformance.same import assert_same

NUMBERS: Final = range(2, 13)
"""Numbers of one and of two digits: as texts, 10 is before 2."""

NO_PARTS: Final = "this tier records no parts: `begin_part` raises `Misuse`, and `parts` returns none"
MOMENTS: Final = 12
"""A call is cancelled before one of its first steps on the event loop."""


class PartClauses(OffloaderClauses):
    """The clauses on the record of parts."""

    async def first_of_parts(self, offloader: LedgerOffloader, other: LedgerOffloader) -> str:
        """Return a stream with a part 2. Skip the clause if the tier has no parts."""
        await StreamWriter.claim(offloader, "orders")
        try:
            await offloader.begin_part(behind(StreamPart("orders", 2)), before=None)
        except Misuse:
            assert [await client.parts("orders") for client in (offloader, other)] == [[], []]
            pytest.skip(NO_PARTS)
        return "orders"

    def test_parts_are_listed_in_order(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Parts are listed in the order of their numbers, with all their fields, behind any number.

        A number is left out if another stream has the name of the part. That stream is not a part, and to
        begin the part is `Conflict`.
        """
        first = run(self.first_of_parts(offloader, other))
        taken = random.sample(NUMBERS[1:-1], 2)
        strangers = {n: run(StreamWriter.claim(other, StreamPart(first, n).name)) for n in taken}
        parts = [behind(StreamPart(first, 2))]

        async def scenario() -> None:
            for number in NUMBERS[1:]:
                client, part = random.choice((offloader, other)), behind(StreamPart(first, number))
                before = random.choice((None, await client.load_manifest(first)))
                if number in strangers:
                    with raises(Conflict, f"the beginning of {part.name!r}, a stream of its own"):
                        await client.begin_part(part, before=before)
                    continue
                await client.begin_part(part, before=before)
                parts.append(part)
            for client in (offloader, other):
                assert_listed(await client.parts(first), parts)
                for after in KINDS["after: int"].taken:
                    listed = await client.parts(first, after=after)
                    assert_listed(listed, [part for part in parts if part.number > after], f"behind {after}")
            for stranger in strangers.values():
                assert_same(await other.load_manifest(stranger.manifest.stream), stranger.manifest)

        run(scenario())

    def test_parts_may_be_begun_again(
        self, run: Run, opened: Open, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A part may be begun again, by anyone and at any time: it is listed once, with its data.

        It may have no writer yet, a writer, data, or be deleted since. Several clients may begin it at once.
        """
        first = run(self.first_of_parts(offloader, other))
        part, clients = behind(StreamPart(first, 2)), (offloader, other, opened())

        async def again(client: LedgerOffloader) -> None:
            for before in (None, await client.load_manifest(first)):
                await client.begin_part(part, before=before)
            assert_listed(await client.parts(first), [part])

        async def scenario() -> None:
            await asyncio.gather(*map(again, clients))
            writer = await StreamWriter.claim(other, part.name, first_offset=7)
            await again(offloader)
            ledger = drawn_ledger(3, first_offset=7)
            attempt = await committed(writer, ledger)
            for client in clients:
                await again(client)
                assert await chunks_of(client, attempt) == [*ledger.chunks]
            assert_same(await offloader.load_manifest(part.name), writer.manifest)
            await deleted(writer)
            for client in clients:
                await again(client)
                with raises(StreamDeleted, "a view of a deleted part"):
                    await client.view(part.name)

        run(scenario())

    def test_parts_are_of_one_stream(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A stream has the parts whose record names it, and no others, however similar the names are."""
        first = run(self.first_of_parts(offloader, other))
        names = [name for pair in random.sample(TWINS, 4) for name in pair]
        names += [f"{first}-part", f"{first}-part-2", "Orders", "order"]
        firsts = [each for each in dict.fromkeys(names) if has_room(offloader, StreamPart(each, 99).name)]
        strangers = [f"{first}-part-{each}" for each in ("3", "02", "2x", "-1", "0", "1")]

        async def scenario() -> None:
            for name in strangers:
                await StreamWriter.claim(offloader, name)
            for name in firsts:
                if name != StreamPart(first, 2).name:
                    await StreamWriter.claim(offloader, name)
                await other.begin_part(behind(StreamPart(name, 2)), before=None)
            for client in (offloader, other):
                for name in (first, *firsts):
                    assert_listed(await client.parts(name), [behind(StreamPart(name, 2))], f"of {name!r}")
                for name in strangers:
                    assert_listed(await client.parts(name), [], f"of {name!r}")
                with raises(NotOffloaded, "a view of a part without data"):
                    await client.view(StreamPart(first, 2).name)

        run(scenario())

    def test_parts_outlive_deletions(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A deletion of a part or of the first stream removes no part from the list, and no data of others.

        A part that is begun beside the deletion of another is listed, and can be written.
        """
        first = run(self.first_of_parts(offloader, other))
        parts = [behind(StreamPart(first, number)) for number in NUMBERS[:4]]
        ledger = ledger_of(3)

        async def scenario() -> None:
            writers = [await StreamWriter.claim(offloader, first)]
            for part, following in pairwise(parts):
                writers.append(await StreamWriter.claim(offloader, part.name))
                doomed = random.choice(writers)
                writers.remove(doomed)
                await asyncio.gather(other.begin_part(following, before=None), deleted(doomed))
            last = await StreamWriter.claim(other, parts[-1].name)
            attempt = await committed(last, ledger)
            for client in (offloader, other):
                assert_listed(await client.parts(first), parts)
                assert await chunks_of(client, attempt) == [*ledger.chunks]
                for writer in writers:
                    assert_same(await client.load_manifest(writer.manifest.stream), writer.manifest)

        run(scenario())

    def test_cancelled_beginnings_hinder_nobody(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """If the beginning of a part is cancelled at any moment, the part can be begun, and is listed."""
        first = run(self.first_of_parts(offloader, other))

        async def scenario() -> None:
            for number in NUMBERS[1:4]:
                part = behind(StreamPart(first, number))
                for steps in random.sample(range(MOMENTS), 5):
                    beginning = asyncio.ensure_future(offloader.begin_part(part, before=None))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    beginning.cancel()
                    await asyncio.wait([beginning])
                for client in (offloader, other):
                    await client.begin_part(part, before=None)
            parts = [behind(StreamPart(first, number)) for number in NUMBERS[:4]]
            assert_listed(await other.parts(first), parts)
            await committed(await StreamWriter.claim(offloader, parts[-1].name), ledger_of(3))

        run(scenario())


def behind(part: StreamPart) -> StreamPart:
    """Return the part, behind a chunk of its own if its number is even."""
    [chunk] = ledger_of(1, first_offset=part.number).chunks
    header = b"" if part.number % 2 else chunk[: CHUNK_HEADER.size_bytes]
    return StreamPart(part.first, part.number, header)


def assert_listed(found: Sequence[StreamPart], expected: Sequence[StreamPart], what: str = "") -> None:
    """Assert that a list has these parts, in order and with all their fields."""
    numbers = [part.number for part in expected]
    assert [part.number for part in found] == numbers, what
    assert_same([*found], [*expected])
