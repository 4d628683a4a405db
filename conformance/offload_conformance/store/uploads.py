"""Multipart uploads: capability `multipart`, asserted both ways."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from offload.contracts.store import Body, ObjectStore
from offload.errors import Misuse, NotFound, OffloadError
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import StoreClauses, listed

UNFINISHED: Final = 12
CLOCKS_APART_SECONDS_MAX: Final = 86_400
"""How far the store's clock may be off. Seconds or microseconds are off by decades."""


class UploadClauses(StoreClauses):
    """Nothing is visible before `complete`; parts stand in the order of their numbers."""

    def test_uploads_are_as_declared(self, run: Run, store: ObjectStore) -> None:
        """An upload begins where uploads are declared, and is refused with `Misuse` where they are not."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.abort()

        self.run_upload(run, store, scenario)

        assert self.keys_in_store() == set()

    def test_uploads_are_whole(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Parts put in any order and at once become one object, seen only when complete."""

        async def scenario() -> None:
            parts = parts_for(store, 4)
            upload = await store.start_upload("a/key")
            await upload.put_part(3, parts[2])
            await asyncio.gather(*(upload.put_part(n, parts[n - 1]) for n in (4, 2, 1)))
            assert await listed(other) == []
            await upload.complete()
            assert await other.get("a/key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    @pytest.mark.parametrize("order", [(1,), (1, 2), (2, 1)], ids=str)
    def test_uploads_may_be_short(self, run: Run, store: ObjectStore, order: tuple[int, ...]) -> None:
        """One part is an upload; the last of two may come first."""

        async def scenario() -> None:
            parts = parts_for(store, len(order))
            upload = await store.start_upload("key")
            for number in order:
                await upload.put_part(number, parts[number - 1])
            await upload.complete()
            assert await store.get("key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    def test_uploads_take_a_part_again(self, run: Run, store: ObjectStore) -> None:
        """A part whose reply was lost is put a second time, and stands once."""

        async def scenario() -> None:
            parts = parts_for(store, 3)
            upload = await store.start_upload("key")
            for number in (2, 2, 3, 1, 3):
                await upload.put_part(number, parts[number - 1])
            await upload.complete()
            assert await store.get("key") == b"".join(parts)

        self.run_upload(run, store, scenario)

    def test_uploads_replace_whole(self, run: Run, store: ObjectStore) -> None:
        """The object before stays until the upload is complete."""

        async def scenario() -> None:
            (part,) = parts_for(store, 1)
            await store.put("key", Body.of(b"old"))
            upload = await store.start_upload("key")
            await upload.put_part(1, part)
            assert await store.get("key") == b"old"
            await upload.complete()
            assert await store.get("key") == part

        self.run_upload(run, store, scenario)

    def test_an_aborted_upload_leaves_nothing(self, run: Run, store: ObjectStore) -> None:
        """An aborted upload leaves no object, as often as it is aborted."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.put_part(1, parts_for(store, 1)[0])
            await upload.abort()
            await upload.abort()
            assert self.keys_in_store() == set()

        self.run_upload(run, store, scenario)

    def test_uploads_lack_no_part(self, run: Run, store: ObjectStore) -> None:
        """Completing an upload that lacks a part raises `Misuse`, and nothing is visible."""

        async def scenario() -> None:
            first, _, last = parts_for(store, 3)
            upload = await store.start_upload("key")
            await upload.put_part(1, first)
            await upload.put_part(3, last)
            with pytest.raises(Misuse):
                await upload.complete()
            await upload.abort()
            with pytest.raises(NotFound):
                await store.get("key")

        self.run_upload(run, store, scenario)

    def test_uploads_of_one_key_do_not_mix(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Of two uploads of one key side by side the later is the object, whole, or it is refused."""

        async def scenario() -> None:
            ours = parts_for(store, 3)
            theirs = [part.upper() for part in ours[1:]]
            first, second = await store.start_upload("key"), await other.start_upload("key")
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

        self.run_upload(run, store, scenario)

    def test_unfinished_uploads_can_be_forgotten(self, run: Run, store: ObjectStore) -> None:
        """An unfinished upload that the store tells of can be aborted, twice, and is told of no more."""

        async def scenario() -> None:
            done, dropped, left = [await store.start_upload(f"data/{n}") for n in range(3)]
            for upload in (done, dropped, left):
                await upload.put_part(1, b"part")
            await done.complete()
            await dropped.abort()
            told = [await store.unfinished_uploads(prefix) for prefix in ("data/0", "data/1", "data/2")]
            assert [*told[0], *told[1]] == []
            assert {each.key for each in told[2]} <= {"data/2"}
            for unfinished in told[2]:
                await store.abort_upload(unfinished)
                await store.abort_upload(unfinished)
            assert [*await store.unfinished_uploads("data/2")] == []
            await left.abort()
            assert self.keys_in_store() == {"data/0"}

        self.run_upload(run, store, scenario)

    def test_unfinished_uploads_are_all_told(self, run: Run, store: ObjectStore) -> None:
        """If a store tells of unfinished uploads below a prefix, it tells of all, each under its own key."""

        async def scenario() -> None:
            there = [f"data/{n:02}" for n in range(UNFINISHED)]
            uploads = [await store.start_upload(key) for key in [*there, "other/key"]]
            for upload in uploads:
                await upload.put_part(1, b"part")
            try:
                told = sorted(each.key for each in await store.unfinished_uploads("data/"))
                assert told in ([], there)
            finally:
                for upload in uploads:
                    await upload.abort()
            assert [*await store.unfinished_uploads("data/")] == []

        self.run_upload(run, store, scenario)

    def test_unfinished_uploads_tell_when_they_began(self, run: Run, store: ObjectStore) -> None:
        """`started_ms` is in milliseconds since 1970: a sweep aborts what seems to be old."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.put_part(1, b"part")
            now_ms = time.time() * 1000
            try:
                for each in await store.unfinished_uploads("key"):
                    off_seconds = abs(each.started_ms - now_ms) / 1000
                    assert off_seconds < CLOCKS_APART_SECONDS_MAX, f"began {off_seconds:.0f} s from now"
            finally:
                await upload.abort()

        self.run_upload(run, store, scenario)

    def run_upload(self, run: Run, store: ObjectStore, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run `scenario` where uploads are declared; else assert that they are refused."""

        async def declared() -> None:
            if store.capabilities.multipart:
                await scenario()
                return
            with pytest.raises(Misuse):
                await store.start_upload("key")

        run(declared())


def parts_for(store: ObjectStore, count: int) -> list[bytes]:
    """Different parts of the least size that the store takes, or of 1,000 bytes; the last is shorter."""
    size = max(1000, store.capabilities.part_size_bytes_min)
    return [bytes([ord("a") + n]) * size for n in range(count - 1)] + [b"last"]
