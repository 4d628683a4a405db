"""An upload in as many parts as a fragment of 5 GiB has; what an upload of nothing is; and its end.

`uploads` asks what an upload of a few parts is. Here are numbers of two and three digits, and what comes
after the end of an upload.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pytest

from offload.errors import Misuse, NotFound, OffloadError
from offload.formats.checksums import crc32c
from offload.store.capabilities import Capabilities
from offload.store.port import Body, ObjectStore, Span, Suffix, Upload
from offload_conformance.asynchronous import Run
from offload_conformance.store.uploads import UploadClauses, parts_for

GIB: Final = 2**30
USUAL_PART_SIZE_BYTES: Final = 16 * 2**20
"""Of a tier's own uploads, unless an option says otherwise."""

PARTS: Final = 5 * GIB // USUAL_PART_SIZE_BYTES
PARTS_MIN: Final = 12
"""As text, 10 comes before 9."""

MODEST_SIZE_BYTES: Final = 64 * 2**20
PART_SIZE_BYTES_MIN: Final = 16
AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """An upload: so many parts of one size, and the last one of half of it. No two words of it are alike."""

    parts: int
    part_size_bytes: int

    @classmethod
    def of(cls, capabilities: Capabilities, size_bytes: int) -> Plan:
        """Of about `size_bytes`: where that is less than such parts need, as few bytes as 64 MiB allow."""
        least = max(PART_SIZE_BYTES_MIN, capabilities.part_size_bytes_min, -(-size_bytes // PARTS))
        part_size_bytes = -(-least // 8) * 8
        room = max(size_bytes, MODEST_SIZE_BYTES) // part_size_bytes
        return cls(min(PARTS, max(PARTS_MIN, room)), part_size_bytes)

    @property
    def size_bytes(self) -> int:
        """Of the whole object."""
        return (self.parts - 1) * self.part_size_bytes + self.part_size_bytes // 2

    def part(self, number: int) -> bytes:
        """One part, of words of eight bytes that count through the object."""
        first = (number - 1) * self.part_size_bytes
        end = min(first + self.part_size_bytes, self.size_bytes)
        return array("Q", range(first // 8, -(-end // 8))).tobytes()[: end - first]


class PartsClauses(UploadClauses):
    """Uploads of many parts and of none, and what ends them."""

    upload_size_bytes: int = 0
    """Of the upload in many parts. 5 GiB makes it as large as that; 0, as small as its parts may be."""

    def test_uploads_may_have_many_parts(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """An upload in as many parts as 5 GiB have, put in no order, is read back exactly at each border."""

        async def scenario() -> None:
            plan = Plan.of(store.capabilities, self.upload_size_bytes)
            await put_parts(await store.start_upload("key"), plan)
            for number in range(1, plan.parts + 1):
                await read_behind(other, plan, number)
            assert await other.get("key", Span(plan.size_bytes, 1)) == b""
            assert await other.get("key", Suffix(3)) == plan.part(plan.parts)[-3:]

        self.run_upload(run, store, scenario)

    def test_uploads_of_no_part_are_empty_or_refused(self, run: Run, store: ObjectStore) -> None:
        """Completed without a part, an upload is an empty object; or it is `Misuse`, and none is there."""

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
        """A part of number 0 is `Misuse`, at the latest where the upload is completed."""

        async def scenario() -> None:
            zeroth, first = parts_for(store, 2)
            upload = await store.start_upload("key")
            with pytest.raises(Misuse):  # noqa: PT012 - either call may say so
                await upload.put_part(0, zeroth)
                await upload.put_part(1, first)
                await upload.complete()
            await upload.abort()
            with pytest.raises(NotFound):
                await store.get("key")

        self.run_upload(run, store, scenario)

    def test_a_completed_upload_is_over(self, run: Run, store: ObjectStore) -> None:
        """Completed or aborted again, it is refused or changes nothing: not the object, nor a newer one."""

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

    def test_an_upload_may_be_begun_again(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """What a first try left unfinished is no part of a second, and aborting it harms nothing."""

        async def scenario() -> None:
            first, second, last = parts_for(store, 3)
            left = await store.start_upload("key")
            await left.put_part(1, second)
            await left.put_part(2, last)
            upload = await other.start_upload("key")
            await upload.put_part(1, first)
            await upload.complete()
            await left.abort()
            assert await store.get("key") == first

        self.run_upload(run, store, scenario)


async def put_parts(upload: Upload, plan: Plan) -> None:
    """All parts in an order of no meaning, a few at once; then complete."""
    numbers = [*range(1, plan.parts + 1)]
    random.Random(plan.parts).shuffle(numbers)
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await upload.put_part(number, plan.part(number))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    await upload.complete()


async def read_behind(store: ObjectStore, plan: Plan, number: int) -> None:
    """Read one part with the byte before it, and hold it against what was put. Two parts are in memory."""
    before = plan.part(number - 1)[-1:] if number > 1 else b""
    wanted = before + plan.part(number)
    start = (number - 1) * plan.part_size_bytes - len(before)
    read = await store.get("key", Span(start, len(wanted)))
    assert (len(read), crc32c(read)) == (len(wanted), crc32c(wanted)), f"part {number} reads otherwise"
