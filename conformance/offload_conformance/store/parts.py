"""Uploads of 1,024 parts or of none, and calls after the end of an upload.

`uploads` tests uploads of a few parts. Here, part numbers have two, three and four digits, so that an order
by text shows.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pytest

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore, Span, Suffix, Upload
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound, OffloadError
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    CANCELS,
    cancelled_after,
    keys,
    listed,
    make_sure_of,
    make_sure_of_keys,
    moment,
    turns_of,
)
from offload_conformance.store.edges import KINDS
from offload_conformance.store.uploads import UploadClauses, parts_for

GIB: Final = 2**30
PARTS: Final = 1024
"""More parts than a page of any list of parts has. In parts of 5 MiB, the least of S3, they make 5 GiB."""

PARTS_MIN: Final = 12
"""At least so many parts that numbers have two digits: as text, 10 sorts before 9."""

MODEST_SIZE_BYTES: Final = 64 * 2**20
PART_SIZE_BYTES_MIN: Final = 16
READ_SIZE_BYTES: Final = 1024
"""The size of a read: 64 of the smallest parts, or a single larger part."""

AT_ONCE: Final = 4

COMPLETES: Final = 6
"""How often a `complete` is cancelled, each time at another moment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned upload: parts of one size, the last one of half of it. All words of eight bytes differ."""

    parts: int
    part_size_bytes: int

    @classmethod
    def of(cls, capabilities: Capabilities, size_bytes: int) -> Plan:
        """Plan an upload of `size_bytes` or more, in fewer than 1,024 parts if these exceed 64 MiB."""
        most = min(PARTS, capabilities.parts_max or PARTS)
        least = max(PART_SIZE_BYTES_MIN, capabilities.part_size_bytes_min, -(-size_bytes // most))
        part_size_bytes = -(-least // 8) * 8
        room = max(size_bytes, MODEST_SIZE_BYTES) // part_size_bytes
        return cls(min(most, max(PARTS_MIN, room)), part_size_bytes)

    @property
    def size_bytes(self) -> int:
        """The size of the whole object."""
        return (self.parts - 1) * self.part_size_bytes + self.part_size_bytes // 2

    @property
    def parts_read(self) -> int:
        """The number of parts in one read: one, or as many as `READ_SIZE_BYTES` holds."""
        return max(1, READ_SIZE_BYTES // self.part_size_bytes)

    def part(self, number: int) -> bytes:
        """Return one part, of words of eight bytes that count through the object."""
        first = (number - 1) * self.part_size_bytes
        end = min(first + self.part_size_bytes, self.size_bytes)
        return array("Q", range(first // 8, -(-end // 8))).tobytes()[: end - first]


class UploadPartClauses(UploadClauses):
    """The clauses on uploads of many parts or none, and on the end of an upload."""

    upload_size_bytes: int = 0
    """The size of the upload in many parts, up to 5 GiB. 0 means as small as the store's parts may be."""

    def test_uploads_may_have_many_parts(
        self, run: Run, store: ObjectStore, other: ObjectStore, note: Callable[[str], None]
    ) -> None:
        """An upload of 1,024 parts, or of as many as 64 MiB allow, put in random order, is read back exactly.

        Until it is complete no listing shows it, and its parts hide no key that is listed after it.
        """

        async def scenario() -> None:
            plan = Plan.of(store.capabilities, self.upload_size_bytes)
            if plan.parts < PARTS:
                note(f"{plan.parts} parts of {plan.part_size_bytes:,} bytes; more with `--upload-size 5GiB`")
            upload = await store.start_upload("key")
            await put_parts(upload, plan)
            await store.put("key2", Body.of(b""))
            found = keys(await listed(other, awaiting=["key2"]))
            make_sure_of_keys(found, ["key2"], f"a listing beside an upload of {plan.parts} parts")
            await upload.complete()
            for number in range(1, plan.parts + 1, plan.parts_read):
                await read_behind(other, plan, number)
            assert await other.get("key", Span(plan.size_bytes, 1)) == b""
            assert await other.get("key", Suffix(3)) == plan.part(plan.parts)[-3:]

        self.run_upload(run, store, scenario)

    def test_uploads_of_no_part_are_empty_or_refused(self, run: Run, store: ObjectStore) -> None:
        """An upload that is completed without a part is an empty object, or `Misuse` and no object."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            try:
                await upload.complete()
            except Misuse:
                await upload.abort()
                assert self.keys_in_store() == set()
            else:
                assert await store.get("key") == b""

        self.run_upload(run, store, scenario)

    def test_parts_are_numbered_from_one(self, run: Run, store: ObjectStore) -> None:
        """A part below 1, or far behind the only other one, is `Misuse`, at the latest in `complete`."""

        async def make_sure(number: int, error: type[OffloadError]) -> None:
            first, last = parts_for(store, 2)
            for numbers in ((number,), (number, 1)):
                upload = await store.start_upload("key")
                with raises(error, f"an upload of parts {numbers}"):  # any of the calls may raise
                    for each in numbers:
                        await upload.put_part(each, first if each == 1 else last)
                    await upload.complete()
                await upload.abort()

        async def scenario() -> None:
            for number, error in KINDS["number: int"].edges():
                assert error is not None, "each edge of the table is refused"
                await make_sure(number, error)
            await make_sure((store.capabilities.parts_max or PARTS) + 1, Misuse)
            with raises(NotFound, "a read of an object whose upload was not completed"):
                await store.get("key")

        self.run_upload(run, store, scenario)

    def test_a_completed_upload_is_over(self, run: Run, store: ObjectStore) -> None:
        """Completing or aborting a completed upload fails or changes nothing, not even a newer object."""

        async def scenario() -> None:
            (part,) = parts_for(store, 1)
            upload = await store.start_upload("key")
            await upload.put_part(1, part)
            await upload.complete()
            for content in (part, b"newer"):
                for again in (upload.complete, upload.abort):
                    with suppress(OffloadError):
                        await again()
                    assert await store.get("key") == content
                await store.put("key", Body.of(b"newer"))

        self.run_upload(run, store, scenario)

    @pytest.mark.parametrize("aborted", ["before the other is completed", "afterwards"])
    def test_an_upload_may_be_begun_again(
        self, run: Run, store: ObjectStore, other: ObjectStore, aborted: str
    ) -> None:
        """An unfinished upload of a key adds nothing to a second one, and aborting it does no harm."""

        async def scenario() -> None:
            first, second, last = parts_for(store, 3)
            left = await store.start_upload("key")
            await left.put_part(1, second)
            await left.put_part(2, last)
            upload = await other.start_upload("key")
            await upload.put_part(1, first)
            if aborted != "afterwards":
                await left.abort()
            await upload.complete()
            if aborted == "afterwards":
                await left.abort()
            make_sure_of(await store.get("key"), first, "the object of the second upload")

        self.run_upload(run, store, scenario)

    def test_a_cancelled_part_may_be_put_again(self, run: Run, store: ObjectStore) -> None:
        """A part whose calls were cancelled at any moment can be put again, and the object is whole.

        If `complete` is cancelled, the key has the whole object or the one before, and both can be aborted.
        """

        async def complete_is_cancelled() -> None:
            first, last = parts_for(store, 2)
            await store.put("key", Body.of(b"before"))
            turns = 0
            for number in range(COMPLETES):
                upload = await store.start_upload("key")
                await upload.put_part(1, first)
                await upload.put_part(2, last)
                if not turns:
                    turns = await turns_of(upload.complete())
                    await store.put("key", Body.of(b"before"))
                    continue
                await cancelled_after(1 + (turns - 1) * number // COMPLETES, upload.complete())
                with suppress(OffloadError):
                    await upload.abort()
                found = await store.get("key")
                assert found in (b"before", first + last), f"{len(found)} bytes after a cancelled `complete`"

        async def scenario() -> None:
            first, last = parts_for(store, 2)
            upload = await store.start_upload("key")
            await upload.put_part(1, first)
            turns = await turns_of(upload.put_part(2, last))
            for number in range(CANCELS):
                await cancelled_after(moment(number, turns), upload.put_part(2, last))
            await upload.put_part(2, last)
            await upload.complete()
            make_sure_of(await store.get("key"), first + last, "an upload with a cancelled part")

        self.run_upload(run, store, scenario)
        self.run_upload(run, store, complete_is_cancelled)


async def put_parts(upload: Upload, plan: Plan) -> None:
    """Put all parts in a random order, a few at once."""
    numbers = [*range(1, plan.parts + 1)]
    random.Random(plan.parts).shuffle(numbers)
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await upload.put_part(number, plan.part(number))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def read_behind(store: ObjectStore, plan: Plan, number: int) -> None:
    """Read some parts with the byte before them, and compare them with the plan."""
    before = plan.part(number - 1)[-1:] if number > 1 else b""
    last = min(number + plan.parts_read, plan.parts + 1)
    wanted = before + b"".join(plan.part(each) for each in range(number, last))
    start = (number - 1) * plan.part_size_bytes - len(before)
    read = bytes(await store.get("key", Span(start, len(wanted))))
    assert (len(read), crc32c(read)) == (len(wanted), crc32c(wanted)), (
        f"the bytes of part {number}, or of one of the next, differ from those that were put"
    )
