"""Multipart uploads, both where the capability `multipart` is declared and where it is not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import pytest

from offload.contracts.store import Body, Listed, ObjectStore, Suffix, Upload
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound, OffloadError
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    LIMIT_SIZE_BYTES_MAX,
    StoreClauses,
    drawn,
    in_turn,
    listed,
    make_sure_of,
    make_sure_of_keys,
    refuses,
)

T = TypeVar("T")

UNFINISHED: Final = 110
UNFINISHED_MOST: Final = 1_010
"""The number of uploads that are started: more than a page of most stores, or of any if that is quick."""

GOING_ON: Final = 12
"""More uploads of one client than one digit counts."""

QUICK_SECONDS: Final = 0.5
LARGE_PART_SIZE_BYTES: Final = 6 * 2**20 + 5
PARTS_MAX: Final = 1_000
"""The largest limits of parts that are reached. A test of larger ones would take long."""

BESIDE_DATA: Final = ("data_/x", "dataX", "DATA/0000", "data.1", "other/key")
"""Keys that are not below `data/`, but that a pattern, a folder or an ignored case would include."""

CLOCKS_APART_SECONDS_MAX: Final = 15 * 60
"""How far the store's clock may be off: S3 refuses requests beyond. A mistake in the zone is off by more."""

ZONE: Final = "SUITE-05:30"
"""A time zone, which is 5 hours and a half ahead of UTC: no whole number of hours, as in India."""


class UploadClauses(StoreClauses):
    """The clauses on uploads: invisible before `complete`, and ordered by the numbers of their parts."""

    def test_uploads_are_as_declared(self, run: Run, store: ObjectStore) -> None:
        """If `multipart` is declared, an upload can be started; if not, `start_upload` raises `Misuse`.

        A declared limit of parts is kept: a larger part, or one part more, is `Misuse`, at the latest in
        `complete`. Limits above `LIMIT_SIZE_BYTES_MAX` are not reached.
        """
        can = store.capabilities

        async def refused(parts: Sequence[bytes], what: str) -> None:
            upload = await store.start_upload("key")
            with raises(Misuse, what):
                for number, part in enumerate(parts, start=1):
                    await upload.put_part(number, part)
                await upload.complete()
            await upload.abort()

        async def scenario() -> None:
            if can.multipart:
                await (await store.start_upload("key")).abort()
                most = can.part_size_bytes_max
                if most is not None and most <= LIMIT_SIZE_BYTES_MAX:
                    await refused([bytes(most + 1)], f"a part of {most + 1:,} bytes, with {most:,} declared")
                    upload = await store.start_upload("most")
                    await upload.put_part(1, bytes(most))
                    await upload.complete()
                    make_sure_of(await store.get("most"), bytes(most), "an upload of a largest part")
                    await store.delete(["most"])
                count, size_bytes = can.parts_max, can.part_size_bytes_min
                if count is not None and count <= PARTS_MAX and count * size_bytes <= LIMIT_SIZE_BYTES_MAX:
                    await refused([bytes(size_bytes)] * (count + 1), f"{count + 1} parts")
                return
            with raises(Misuse, "an upload in a store that declares no uploads"):
                await store.start_upload("key")

        run(scenario())

        assert self.keys_in_store() == set()

    def test_uploads_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Parts put in any order and at the same time become one object, visible only when complete."""

        async def scenario() -> None:
            parts = parts_for(store, 4)
            upload = await store.start_upload("a/key")
            await upload.put_part(3, parts[2])
            await asyncio.gather(*(upload.put_part(n, parts[n - 1]) for n in (4, 2, 1)))
            assert await listed(other) == []
            completing = asyncio.create_task(upload.complete())
            while not completing.done():
                with suppress(NotFound):
                    end = await other.get("a/key", Suffix(1_000))
                    make_sure_of(end, b"".join(parts)[-1_000:], "an object whose upload is being completed")
                await asyncio.sleep(0)  # a store in memory never yields by itself
            await completing
            data = b"".join(parts)
            make_sure_of(await other.get("a/key"), data, "an upload in four parts")
            assert await other.stored_crc32c("a/key") in {None, crc32c(data)}, "the checksum of an upload"

        self.run_upload(run, store, scenario)

    @pytest.mark.parametrize("order", [(1,), (1, 2), (2, 1)], ids=str)
    def test_uploads_may_be_short(self, run: Run, store: ObjectStore, order: tuple[int, ...]) -> None:
        """An upload may have a single part, and the last of two parts may be put first.

        Parts may be as small as declared, and larger than most buffers, of a size that no unit divides.
        """
        can = store.capabilities
        least, most = can.part_size_bytes_min, can.part_size_bytes_max or LARGE_PART_SIZE_BYTES
        large = min(max(LARGE_PART_SIZE_BYTES, least), most)

        async def scenario() -> None:
            for size_bytes in (max(least, 1_000), max(least, 1), large):
                parts = [*(drawn(size_bytes) for _ in order[1:]), drawn(size_bytes)[: size_bytes // 2 or 1]]
                key = f"of {size_bytes} bytes"  # a late listing has the size of what was replaced
                upload = await store.start_upload(key)
                for number in order:
                    await upload.put_part(number, parts[number - 1])
                await upload.complete()
                what = f"an upload in {len(parts)} parts of {size_bytes:,} bytes"
                make_sure_of(await store.get(key), b"".join(parts), what)
                row = Listed(key, sum(map(len, parts)))
                assert await listed(store, key, awaiting=[key]) == [row]

        self.run_upload(run, store, scenario)

    def test_uploads_take_a_part_again(self, run: Run, store: ObjectStore) -> None:
        """A part that is put again, because its reply was lost, is in the object once."""

        async def scenario() -> None:
            parts = parts_for(store, 3)
            upload = await store.start_upload("key")
            for number in (2, 2, 3, 1, 3):
                await upload.put_part(number, parts[number - 1])
            await asyncio.gather(*(upload.put_part(n, parts[n - 1]) for n in (1, 3, 1, 2, 3)))
            await upload.complete()
            assert await store.get("key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    def test_uploads_replace_whole(self, run: Run, store: ObjectStore) -> None:
        """An upload replaces the earlier object only when it is complete.

        If the key is written meanwhile, the store may refuse the upload, and the key keeps its newer object.
        A deletion is no reason to refuse it, and an unfinished upload is no object.
        """

        async def scenario() -> None:
            (part,) = parts_for(store, 1)
            await store.put("key", Body.of(b"old"))
            upload = await store.start_upload("key")
            await upload.put_part(1, part)
            assert await store.get("key") == b"old"
            await upload.complete()
            assert await store.get("key") == part
            if store.capabilities.metadata_size_bytes_max:
                await self.metadata_is_replaced_whole(store)
            late = await store.start_upload("key")
            await late.put_part(1, part)
            await store.put("key", Body.of(b"newer"))
            try:
                await late.complete()
            except OffloadError:
                await late.abort()
                make_sure_of(await store.get("key"), b"newer", "the object of a key whose upload was refused")
            else:
                make_sure_of(await store.get("key"), part, "the object of an upload beside a put")
            await store.delete(["key"])
            beside = await store.start_upload("key")
            await beside.put_part(1, part)
            if store.capabilities.atomic_create:
                await store.create("key", b"created")
                with suppress(OffloadError):
                    await beside.complete()
                await beside.abort()
            await store.put("deleted", Body.of(b"old"))
            last = await store.start_upload("deleted")
            await last.put_part(1, part)
            await store.delete(["deleted"])
            await last.complete()
            make_sure_of(await store.get("deleted"), part, "the object of an upload beside a deletion")

        self.run_upload(run, store, scenario)

    async def metadata_is_replaced_whole(self, store: ObjectStore) -> None:
        """Assert that the metadata of an upload belongs to its object alone, and appears with it."""
        (part,) = parts_for(store, 1)
        await store.put("key", Body.of(b"old", metadata={"ours": "old"}))
        for end in ("abort", "complete"):
            upload = await store.start_upload("key", metadata={"ours": end})
            await upload.put_part(1, part)
            found = await store.metadata_of("key") or {}
            assert found.get("ours") == "old", "the metadata of an object beside an unfinished upload"
            await (upload.abort() if end == "abort" else upload.complete())
            wanted = "old" if end == "abort" else end
            found = await store.metadata_of("key") or {}
            assert found.get("ours") == wanted, f"the metadata after the {end} of an upload"

    def test_an_aborted_upload_leaves_nothing(self, run: Run, store: ObjectStore) -> None:
        """An aborted upload leaves no object, and it may be aborted again.

        An upload may be aborted without a part, and with many. The object of its key stays as it was, and so
        do the uploads that were begun before and after it.
        """

        async def scenario(there: dict[str, bytes]) -> None:
            for count in (1, 0, 4):
                upload = await store.start_upload("key")
                for number, part in enumerate(parts_for(store, count) if count else [], start=1):
                    await upload.put_part(number, part)
                for _ in range(2):
                    await upload.abort()
                    assert self.keys_in_store() == {*there}
                    assert [*await store.unfinished_uploads("key")] == []
            for key, data in there.items():
                assert await store.get(key) == data
            if not there:
                await store.create("key", b"created")  # nothing holds the key
                await scenario({"key": b"created"})

        self.run_upload(run, store, partial(scenario, {}))
        self.run_upload(run, store, self.others_go_on)

    async def others_go_on(self) -> None:
        """Fail if the abort of a client's first upload takes parts of others: ids may begin alike.

        Nor may the first uploads of two clients be one.
        """
        client, beside = self.open_store(), self.open_store()
        try:
            uploads = [await client.start_upload(f"on/{n}") for n in range(GOING_ON)]
            uploads.append(await beside.start_upload(f"on/{GOING_ON}"))
            for n, upload in enumerate(uploads):
                await upload.put_part(1, b"%d" % n)
            await uploads[0].abort()
            for n, upload in [*enumerate(uploads)][1:]:
                await upload.complete()
                make_sure_of(await client.get(f"on/{n}"), b"%d" % n, "an upload beside one that was aborted")
        finally:
            for each in (client, beside):
                await each.aclose()

    def test_uploads_lack_no_part(self, run: Run, store: ObjectStore) -> None:
        """Completing an upload that lacks a part raises `Misuse`, and nothing is visible.

        The upload can still be aborted.
        """

        async def scenario() -> None:
            for numbers in ((1, 3), (2,), (2, 3)):
                await lacking(numbers)

        async def lacking(numbers: Sequence[int]) -> None:
            first, middle, last = parts_for(store, 3)
            upload = await store.start_upload("key")
            for number in numbers:
                part = (first, middle, last)[number - 1]
                await upload.put_part(number, last if number == numbers[-1] else part)
            with raises(Misuse, f"completing an upload that has only the parts {numbers}"):
                await upload.complete()
            await upload.abort()
            left = [each for each in await store.unfinished_uploads("") if each.key == "key"]
            assert not left, "the store still lists an upload that was aborted"
            with raises(NotFound, "a read of an object whose upload was not completed"):
                await store.get("key")

        self.run_upload(run, store, scenario)

    def test_uploads_of_one_key_do_not_mix(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """If two uploads of one key overlap, the later one to complete is the whole object, or is refused.

        So it is for two clients, and for one. If one of two uploads is aborted by what lists it, the other
        keeps its parts.
        """

        async def scenario(client: ObjectStore) -> None:
            ours = parts_for(store, 3)
            theirs = [part.upper() for part in ours[1:]]
            first, second = await store.start_upload("key"), await client.start_upload("key")
            for number, part in enumerate(ours, start=1):
                await first.put_part(number, part)
            for number, part in enumerate(theirs, start=1):
                await second.put_part(number, part)
            await first.complete()
            assert await other.get("key") == b"".join(ours)
            try:
                await second.complete()
            except OffloadError:
                await second.abort()
                assert await store.get("key") == b"".join(ours)
            else:
                assert await store.get("key") == b"".join(theirs)

        async def one_of_two_is_aborted() -> None:
            first, last = parts_for(store, 2)
            uploads = {name: await store.start_upload("two") for name in (first, last)}
            for name, upload in uploads.items():
                await upload.put_part(1, name)
            shown = await other.unfinished_uploads("two")
            if len({each.upload_id for each in shown}) == len(uploads):
                await other.abort_upload(shown[0])
                left = [each.upload_id for each in await store.unfinished_uploads("two")]
                assert left == [shown[1].upload_id], "the uploads that are left after one of two was aborted"
                completed = []
                for name, upload in uploads.items():
                    with suppress(OffloadError):
                        await upload.complete()
                        completed.append(name)
                assert len(completed) == 1, f"of two uploads, one of them aborted, {len(completed)} completed"
                make_sure_of(await store.get("two"), completed[0], "the upload that was not aborted")
            for upload in uploads.values():
                await upload.abort()

        for client in (other, store):
            self.run_upload(run, store, partial(scenario, client))
        self.run_upload(run, store, one_of_two_is_aborted)

    def test_unfinished_uploads_can_be_forgotten(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """An unfinished upload that the store lists can be aborted, even twice, and is then no longer listed.

        Any client may abort it, not only the one that started it. To abort one that was completed since it
        was listed does no harm to its object.
        """

        async def scenario() -> None:
            done, dropped, left = [await store.start_upload(f"data/{n}") for n in range(3)]
            for upload in (done, dropped, left):
                await upload.put_part(1, b"part")
            listed_before = await store.unfinished_uploads("data/0")
            await done.complete()
            for unfinished in listed_before:
                await other.abort_upload(unfinished)
            await dropped.abort()
            shown = [await store.unfinished_uploads(prefix) for prefix in ("data/0", "data/1", "data/2")]
            assert [*shown[0], *shown[1]] == []
            assert {each.key for each in shown[2]} <= {"data/2"}
            for client in (other, store):
                for unfinished in await client.unfinished_uploads("data/2"):
                    await client.abort_upload(unfinished)
                    await client.abort_upload(unfinished)
                assert [*await client.unfinished_uploads("data/2")] == []
            await left.abort()
            assert self.keys_in_store() == {"data/0"}
            assert await other.get("data/0") == b"part"

        self.run_upload(run, store, scenario)

    @pytest.mark.parametrize("end", ["abort", "complete"])
    def test_parts_beside_an_abort_are_forgotten(self, run: Run, store: ObjectStore, end: str) -> None:
        """If an upload is aborted by a sweep while its parts arrive, its writer's abort leaves nothing of it.

        If the writer completes it instead, the store refuses that, or every part is in the object.
        """

        async def scenario() -> None:
            first, second, last = parts_for(store, 3)
            upload = await store.start_upload("key")
            await upload.put_part(1, first)
            shown = await store.unfinished_uploads("key")
            for each in shown:
                beside = store.abort_upload(each), upload.put_part(2, second)
                await asyncio.gather(*beside, return_exceptions=True)
                with suppress(OffloadError):
                    await upload.put_part(3, last)
            if shown and end == "complete":
                with suppress(OffloadError):
                    await upload.complete()
                    make_sure_of(await store.get("key"), first + second + last, "a completed upload")
                    return
            await upload.abort()
            left = [each.key for each in await store.unfinished_uploads("key")]
            what = "unfinished uploads after a part that ran beside an abort, and a second abort"
            make_sure_of_keys(left, [], what)
            assert self.keys_in_store() == set()

        self.run_upload(run, store, scenario)

    def test_unfinished_uploads_are_all_told(
        self, run: Run, store: ObjectStore, note: Callable[[str], None]
    ) -> None:
        """A store that lists unfinished uploads by a prefix lists all of them, each under its own key.

        Several uploads of one key may be listed as one. Aborting all that is listed leaves none.
        """
        uploads: list[Upload] = []

        async def begin(key: str) -> None:
            upload = await store.start_upload(key)
            uploads.append(upload)
            await upload.put_part(1, b"part")

        async def unfinished_keys(prefix: str) -> list[str]:
            return sorted({each.key for each in await store.unfinished_uploads(prefix)})

        async def scenario() -> None:
            there = [key for key in BESIDE_DATA if not refuses(store, key)]
            there += [f"data/{n:04}" for n in range(UNFINISHED_MOST)]
            began = time.monotonic()
            await in_turn(begin, there[:UNFINISHED])
            if time.monotonic() - began > QUICK_SECONDS:
                there = there[:UNFINISHED]
                note(f"{UNFINISHED} unfinished uploads, because {UNFINISHED_MOST:,} would take long")
            await in_turn(begin, [*there[UNFINISHED:], there[0], there[-1], there[-1]])
            # MinIO lists those of a whole key alone, and all of the bucket.
            lists_any = bool(await unfinished_keys("data/"))
            for prefix in (
                "data/",
                "data",
                "data_",
                "",
                "data/000",
                "data/0001",
                "other/k",
                "other/key",
                "none",
            ):
                if (found := await unfinished_keys(prefix)) or lists_any:
                    wanted = sorted(key for key in there if key.startswith(prefix))
                    make_sure_of_keys(found, wanted, f"unfinished uploads with the prefix {prefix!r}")
            for _ in range(3):
                await in_turn(store.abort_upload, await store.unfinished_uploads("data/"))
            make_sure_of_keys(
                await unfinished_keys("data/"), [], "unfinished uploads after all of them were aborted"
            )

        try:
            self.run_upload(run, store, scenario)
        finally:
            run(in_turn(lambda upload: upload.abort(), uploads))
        for prefix in ("data/", "other/key", ""):
            make_sure_of_keys(
                run(unfinished_keys(prefix)), [], f"unfinished uploads with {prefix!r}, at the end"
            )

    def test_unfinished_uploads_tell_when_they_began(self, run: Run, store: ObjectStore) -> None:
        """`started_ms` is in milliseconds since 1970, because a sweep aborts uploads that look old.

        It is so in any time zone of this process.
        """

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.put_part(1, b"part")
            now_ms = time.time() * 1000
            try:
                for each in await store.unfinished_uploads("key"):
                    off_seconds = abs(each.started_ms - now_ms) / 1000
                    assert off_seconds < CLOCKS_APART_SECONDS_MAX, f"`started_ms` is {off_seconds:.0f} s off"
            finally:
                await upload.abort()

        self.run_upload(run, store, scenario)
        with in_zone(ZONE):
            self.run_upload(run, store, scenario)

    def run_upload(
        self, run: Run, store: ObjectStore, scenario: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run `scenario` if uploads are declared, otherwise skip.

        `uploads_are_as_declared` tests the other case.
        """
        if not store.capabilities.multipart:
            pytest.skip("the store declares that it has no uploads in parts")
        run(scenario())


@contextmanager
def in_zone(zone: str) -> Iterator[None]:
    """Set the time zone of this process, if the system can. `time.time` stays the same."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    set_zone: Callable[[], None] = getattr(time, "tzset", lambda: None)
    set_zone()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        set_zone()


def parts_for(store: ObjectStore, count: int) -> list[bytes]:
    """Return different parts of the least size that the store takes, at least 1,000 bytes.

    The last is shorter.
    """
    size = max(1000, store.capabilities.part_size_bytes_min)
    return [bytes([ord("a") + n]) * size for n in range(count - 1)] + [b"last"]
