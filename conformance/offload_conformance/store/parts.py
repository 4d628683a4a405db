"""An upload in more than 1,000 parts, or in as many as 64 MiB allow; an upload of nothing; and its end.

`uploads` asks what an upload of a few parts is. Here are numbers of two and three digits, and what comes
after the end of an upload.
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
from offload.errors import Misuse, NotFound, OffloadError
from offload.formats.checksums import crc32c
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
from offload_conformance.store.uploads import UploadClauses, parts_for

GIB: Final = 2**30
PARTS: Final = 1024
"""More than a page of any list of parts has. In parts of 5 MiB, the least of S3, that is 5 GiB."""

PARTS_MIN: Final = 12
"""As text, 10 comes before 9."""

MODEST_SIZE_BYTES: Final = 64 * 2**20
PART_SIZE_BYTES_MIN: Final = 16
READ_SIZE_BYTES: Final = 1024
"""So small parts are read 64 at a time, and larger ones one by one."""

AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """An upload: so many parts of one size, and the last one of half of it. No two words of it are alike."""

    parts: int
    part_size_bytes: int

    @classmethod
    def of(cls, capabilities: Capabilities, size_bytes: int) -> Plan:
        """Of about `size_bytes`: if 1,024 of the least parts need more, as many as 64 MiB allow."""
        most = min(PARTS, capabilities.parts_max or PARTS)
        least = max(PART_SIZE_BYTES_MIN, capabilities.part_size_bytes_min, -(-size_bytes // most))
        part_size_bytes = -(-least // 8) * 8
        room = max(size_bytes, MODEST_SIZE_BYTES) // part_size_bytes
        return cls(min(most, max(PARTS_MIN, room)), part_size_bytes)

    @property
    def size_bytes(self) -> int:
        """Of the whole object."""
        return (self.parts - 1) * self.part_size_bytes + self.part_size_bytes // 2

    @property
    def parts_read(self) -> int:
        """How many parts are read at a time: one, or as many as a read of modest size holds."""
        return max(1, READ_SIZE_BYTES // self.part_size_bytes)

    def part(self, number: int) -> bytes:
        """One part, of words of eight bytes that count through the object."""
        first = (number - 1) * self.part_size_bytes
        end = min(first + self.part_size_bytes, self.size_bytes)
        return array("Q", range(first // 8, -(-end // 8))).tobytes()[: end - first]


class PartsClauses(UploadClauses):
    """Uploads of many parts and of none, and what ends them."""

    upload_size_bytes: int = 0
    """Of the upload in many parts. 5 GiB makes it as large as that; 0, as small as its parts may be."""

    def test_uploads_may_have_many_parts(
        self, run: Run, store: ObjectStore, other: ObjectStore, note: Callable[[str], None]
    ) -> None:
        """An upload in 1,024 parts, or in as many as 64 MiB allow, put in no order, is read back exactly.

        Until it is complete no listing shows it, and its parts hide nothing that is listed behind them.
        """

        async def scenario() -> None:
            plan = Plan.of(store.capabilities, self.upload_size_bytes)
            if plan.parts < PARTS:
                note(f"{plan.parts} parts of {plan.part_size_bytes:,} bytes; more with `--upload-size 5GiB`")
            upload = await store.start_upload("key")
            await put_parts(upload, plan)
            await store.put("key2", Body.of(b""))
            found = keys(await listed(other, awaiting=["key2"]))
            make_sure_of_keys(found, ["key2"], f"a listing behind an upload of {plan.parts} parts")
            await upload.complete()
            for number in range(1, plan.parts + 1, plan.parts_read):
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
            with raises(Misuse, "a part of number 0"):  # either call may say so
                await upload.put_part(0, zeroth)
                await upload.put_part(1, first)
                await upload.complete()
            await upload.abort()
            with raises(NotFound, "reading what was not completed"):
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

    @pytest.mark.parametrize("aborted", ["before the other is completed", "afterwards"])
    def test_an_upload_may_be_begun_again(
        self, run: Run, store: ObjectStore, other: ObjectStore, aborted: str
    ) -> None:
        """What a first try left unfinished is no part of a second, and aborting it harms nothing."""

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
            make_sure_of(await store.get("key"), first, "the upload that was not aborted")

        self.run_upload(run, store, scenario)

    def test_a_cancelled_part_may_be_put_again(self, run: Run, store: ObjectStore) -> None:
        """However often a part is cancelled, at any moment, the upload goes on and is whole."""

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


async def put_parts(upload: Upload, plan: Plan) -> None:
    """All parts in an order of no meaning, a few at once."""
    numbers = [*range(1, plan.parts + 1)]
    random.Random(plan.parts).shuffle(numbers)
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await upload.put_part(number, plan.part(number))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def read_behind(store: ObjectStore, plan: Plan, number: int) -> None:
    """Read some parts with the byte before them, and compare them with what was put."""
    before = plan.part(number - 1)[-1:] if number > 1 else b""
    last = min(number + plan.parts_read, plan.parts + 1)
    wanted = before + b"".join(plan.part(each) for each in range(number, last))
    start = (number - 1) * plan.part_size_bytes - len(before)
    read = await store.get("key", Span(start, len(wanted)))
    assert (len(read), crc32c(read)) == (len(wanted), crc32c(wanted)), (
        f"part {number} or one of the next reads otherwise"
    )
