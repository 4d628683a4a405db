"""Tests of the levels of verify: their findings and requests, and resuming an interrupted verify."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from campaign import CAMPAIGN, few
from osiris_writer import append_chunks, write_stream
from small_tier import Objects, marked_chunks

from offload import ObjectStoreOffloader, Plugins, open_source
from offload import sync as sync_all
from offload.contracts.store import Listed, ObjectStore, Span, Suffix
from offload.formats.anchor import TierAnchor
from offload.formats.checksums import crc32c
from offload.formats.group import Group
from offload.formats.keys import TIER_ANCHOR
from offload.ground.env import Env
from offload.ground.errors import Misuse, NotFound, OffloadError
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.wrap import StoreDecorator
from offload.upkeep.verify.groups import ReadGroups
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify

MANIFEST, CHECKSUM, BYTES = VerifyLevel
FRAGMENTS = 11
PAGES = (1, 3, 1000) if CAMPAIGN else (1, 1000)
STEP = 1 if CAMPAIGN else 23
"""The distance of damaged objects in the list of one kind: `make test` damages every third."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Return two streams of eleven fragments in groups of two, with mega-groups. Tests damage
    copies of it.
    """
    folder = tmp_path_factory.mktemp("grouped")
    store = MemoryStore(objects={TIER_ANCHOR: TierAnchor(branching_factor=2).encode()})

    async def make() -> None:
        offloader = ObjectStoreOffloader(store)
        for stream in ("early", "late"):
            write_stream(folder / stream, marked_chunks(1))
            for number in range(FRAGMENTS):
                if number:
                    append_chunks(folder / stream, marked_chunks(1, first_number=number))
                source = open_source(f"rabbitmq://{folder}/{stream}", plugins=Plugins.find())
                async for report in sync_all(source, offloader):
                    assert report.error is None, report.error

    asyncio.run(make())
    assert len(of_kind(store.objects, "mgroup")) == 2
    return store.objects


def of_kind(objects: Objects, suffix: str) -> list[str]:
    return sorted(key for key in objects if key.endswith(f".{suffix}"))


def groups_of(objects: Objects) -> list[str]:
    return [key for key in sorted(objects) if key.endswith("group")]


def superseded_roots(objects: Objects) -> set[str]:
    roots = [
        of_kind({k: b"" for k in objects if k.startswith(f"{s}/")}, "manifest") for s in ("early", "late")
    ]
    return {root for own in roots for root in own[:-1]}


def without(objects: Objects, *gone: str) -> Objects:
    return {key: raw for key, raw in objects.items() if key not in gone}


def flipped(objects: Objects, key: str) -> Objects:
    raw = bytearray(objects[key])
    raw[len(raw) // 2] ^= 1
    return objects | {key: bytes(raw)}


def verified(
    tier: Objects | ObjectStore, level: VerifyLevel, *, after: str = "", page_rows_max: int = 1000
) -> VerifyReport:
    store = tier if isinstance(tier, ObjectStore) else MemoryStore(objects=dict(tier))
    return asyncio.run(verify(store, level=level, after=after, page_rows_max=page_rows_max))


def blamed(tier: Objects | ObjectStore, level: VerifyLevel, *, page_rows_max: int = 1000) -> list[str]:
    return [damage.where for damage in verified(tier, level, page_rows_max=page_rows_max).damages]


class TestEachLevel:
    @few("sizes of pages at each level of a verify; make test has one size for each level", 2)
    @pytest.mark.parametrize("level", VerifyLevel)
    @pytest.mark.parametrize("page_rows_max", PAGES)
    def test_a_sound_tier_has_no_damage(
        self, objects: Objects, level: VerifyLevel, page_rows_max: int
    ) -> None:
        report = verified(objects, level, page_rows_max=page_rows_max)

        assert (report.damages, report.unreferenced) == ([], [])
        assert report.streams == 2
        assert report.judged_to == max(objects.keys() - {TIER_ANCHOR})

    @few("sizes of pages at each level of a verify; make test has one size for each level", 2)
    @pytest.mark.parametrize("level", VerifyLevel)
    @pytest.mark.parametrize("page_rows_max", PAGES)
    def test_a_missing_fragment_is_named(
        self, objects: Objects, level: VerifyLevel, page_rows_max: int
    ) -> None:
        for key in of_kind(objects, "fragment")[::STEP]:
            assert blamed(without(objects, key), level, page_rows_max=page_rows_max) == [key]

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_all_missing_fragments_are_named(self, objects: Objects, level: VerifyLevel) -> None:
        fragments = of_kind(objects, "fragment")

        assert blamed(without(objects, *fragments), level, page_rows_max=3) == fragments

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_fragment_of_another_size_is_named(self, objects: Objects, level: VerifyLevel) -> None:
        for key in of_kind(objects, "fragment")[::STEP]:
            for changed in (b"", objects[key][:-1], objects[key] + b"\0"):
                [damage] = verified(objects | {key: changed}, level).damages
                assert (damage.where, damage.what) == (key, "object size")

    @few("sizes of pages at each level of a verify; make test has one size for each level", 2)
    @pytest.mark.parametrize("level", VerifyLevel)
    @pytest.mark.parametrize("page_rows_max", PAGES)
    def test_a_missing_or_damaged_group_is_named_alone(
        self, objects: Objects, level: VerifyLevel, page_rows_max: int
    ) -> None:
        """The objects below it are explained, because nobody can say if they are named."""
        for key in groups_of(objects)[::STEP]:
            for damaged in (without(objects, key), flipped(objects, key)):
                report = verified(damaged, level, page_rows_max=page_rows_max)
                assert [damage.where for damage in report.damages] == [key]
                assert {row.reason for row in report.unreferenced} == {
                    "the group that would say whether it is named is damaged"
                }

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_damaged_newest_root_or_anchor_is_named(self, objects: Objects, level: VerifyLevel) -> None:
        others = {*of_kind(objects, "fragment"), *groups_of(objects), *superseded_roots(objects)}
        for key in objects.keys() - others:
            assert blamed(flipped(objects, key), level) == [key]

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_missing_anchor_is_named(self, objects: Objects, level: VerifyLevel) -> None:
        for key in of_kind(objects, "anchor"):
            assert blamed(without(objects, key), level) == [key]

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_fragment_that_was_committed_since_the_listing_is_checked(
        self, objects: Objects, level: VerifyLevel
    ) -> None:
        """A long listing may miss it; a new listing shows it."""
        late = [of_kind(objects, "fragment")[-1], groups_of(objects)[0]]

        class Listing(StoreDecorator):
            async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
                async for row in self.inner.list(prefix, after=after):
                    if prefix or row.key not in late:
                        yield row

        whole, seen = verified(objects, level), verified(Listing(MemoryStore(objects=dict(objects))), level)

        assert seen == whole
        assert blamed(Listing(MemoryStore(objects=objects | {late[0]: b""})), level) == late[:1]


class TestGroups:
    """Tests of groups: a verify needs them to find other objects, and judges them too."""

    @pytest.mark.parametrize("level", VerifyLevel)
    @pytest.mark.parametrize("page_rows_max", PAGES)
    def test_each_group_is_read_once(self, objects: Objects, level: VerifyLevel, page_rows_max: int) -> None:
        store = FaultyStore(MemoryStore(objects=dict(objects)))

        verified(store, level, page_rows_max=page_rows_max)

        read = [key for operation, key in store.calls if operation == "get" and key.endswith("group")]
        assert sorted(read) == groups_of(objects)

    @pytest.mark.parametrize("page_rows_max", PAGES)
    def test_the_cache_of_groups_is_bounded(
        self, objects: Objects, page_rows_max: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beyond the limit they are read again, and the report is the same."""
        whole = verified(objects, BYTES)
        read: list[ReadGroups] = []
        monkeypatch.setattr(ReadGroups, "__init__", _kept(ReadGroups.__init__, read))
        monkeypatch.setattr("offload.upkeep.verify.groups.NAMES_MAX", 3)

        assert verified(objects, BYTES, page_rows_max=page_rows_max) == whole
        assert max(len(one._sizes) for one in read) == 3

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_group_that_disappears_after_it_was_read_is_named(
        self, objects: Objects, level: VerifyLevel
    ) -> None:
        """Its content is cached, but the listing does not show it."""
        victim = of_kind(objects, "group")[2]

        class Going(StoreDecorator):
            async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
                raw = await self.inner.get(key, span)
                if key == victim:
                    await self.inner.delete([key])
                return raw

            async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
                async for row in self.inner.list(prefix, after=after):
                    if row.key != victim:
                        yield row

        [damage] = verified(Going(MemoryStore(objects=dict(objects))), level).damages

        assert (damage.where, damage.found) == (victim, "absent")

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_group_that_grows_after_it_was_read_is_named(
        self, objects: Objects, level: VerifyLevel
    ) -> None:
        """Its listed size is compared with the size that was read."""
        victim = of_kind(objects, "group")[2]

        class Growing(StoreDecorator):
            async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
                async for row in self.inner.list(prefix, after=after):
                    yield Listed(row.key, row.size_bytes + (row.key == victim))

        [damage] = verified(Growing(MemoryStore(objects=dict(objects))), level).damages

        assert (damage.where, damage.what) == (victim, "object size")


class TestGroupsThatNobodyNames:
    """Tests of groups that a lost commit or a trim leaves. They are explained, and read like other
    objects.
    """

    @pytest.fixture
    def orphan(self, objects: Objects) -> tuple[str, bytes]:
        """Return a second copy of a group under another key, as a commit that lost its number leaves it."""
        [raw, *_] = [objects[key] for key in of_kind(objects, "group")]
        group = replace(Group.decode(raw, stream="early", where="here"), uid=UUID(int=5))
        return group.key, group.encode()

    def test_a_sound_unreferenced_group_is_explained(
        self, objects: Objects, orphan: tuple[str, bytes]
    ) -> None:
        key, raw = orphan

        report = verified(objects | {key: raw}, BYTES)

        assert report.damages == []
        assert [row.key for row in report.unreferenced] == [key]
        assert report.objects == len(objects) + 1
        assert report.bytes == sum(map(len, objects.values())) + len(raw)

    def test_any_damage_of_an_unreferenced_group_is_found_and_the_group_explained(
        self, objects: Objects, orphan: tuple[str, bytes]
    ) -> None:
        key, raw = orphan
        for bit in range(0, len(raw) * 8, 41 if CAMPAIGN else 601):
            damaged = bytearray(raw)
            damaged[bit // 8] ^= 1 << bit % 8
            report = verified(objects | {key: bytes(damaged)}, BYTES)
            assert [damage.where for damage in report.damages] == [key]
            assert [row.key for row in report.unreferenced] == [key]
        for cut in (b"", raw[:1], raw[:-1], raw + b"\0"):
            assert blamed(objects | {key: cut}, BYTES) == [key]

    def test_a_group_under_the_key_of_another_is_damage(
        self, objects: Objects, orphan: tuple[str, bytes]
    ) -> None:
        key, _ = orphan
        [sound, *_] = [objects[key] for key in of_kind(objects, "group")]

        [damage] = verified(objects | {key: sound}, BYTES).damages

        assert (damage.where, damage.what, damage.stream) == (key, "key", "early")

    @pytest.mark.parametrize("level", [MANIFEST, CHECKSUM])
    def test_an_unreferenced_group_is_not_read_below_the_level_bytes(
        self, objects: Objects, orphan: tuple[str, bytes], level: VerifyLevel
    ) -> None:
        key, _ = orphan
        store = FaultyStore(MemoryStore(objects=objects | {key: b""}))

        report = verified(store, level)

        assert (report.damages, [row.key for row in report.unreferenced]) == ([], [key])
        assert ("get", key) not in store.calls

    def test_a_group_that_is_swept_meanwhile_is_not_damage(
        self, objects: Objects, orphan: tuple[str, bytes]
    ) -> None:
        key, raw = orphan
        behind = MemoryStore(objects=objects | {key: raw})

        async def sweep(operation: str, asked: str) -> None:
            if (operation, asked) == ("get", key):
                behind.objects.pop(key)

        assert blamed(FaultyStore(behind, before=sweep), BYTES) == []


def _kept(make: Callable[..., None], made: list[ReadGroups]) -> Callable[..., None]:
    """Return a constructor that also collects the objects it makes in a list."""

    def init(self: ReadGroups, **fields: Any) -> None:
        make(self, **fields)
        made.append(self)

    return init


class TestManifest:
    def test_no_fragment_and_no_superseded_root_is_read(self, objects: Objects) -> None:
        unnamed = "early/data/00000000000000000000.e3dffbb7-2acd-4917-b1e9-4d192617e981.fragment"
        store = FaultyStore(MemoryStore(objects=objects | {unnamed: b"x"}))

        report = verified(store, MANIFEST)

        read = {key for operation, key in store.calls if operation == "get"}
        assert read == objects.keys() - {*of_kind(objects, "fragment"), *superseded_roots(objects)}
        assert [row.key for row in report.unreferenced] == [unnamed]
        assert report.bytes == sum(len(objects[key]) for key in read)
        assert report.objects == len(read) + 2 * FRAGMENTS

    def test_a_flipped_bit_of_a_fragment_is_not_found(self, objects: Objects) -> None:
        """The level `bytes` finds it."""
        for key in of_kind(objects, "fragment"):
            assert blamed(flipped(objects, key), MANIFEST) == []
            assert blamed(flipped(objects, key), BYTES) == [key]


class Keeping(StoreDecorator):
    """A store that keeps the CRC-32C of every object as it was put, except those in `none`."""

    def __init__(self, inner: MemoryStore, *, none: Collection[str] = ()) -> None:
        super().__init__(inner)
        self.objects, self.none = inner.objects, none

    async def stored_crc32c(self, key: str) -> int | None:
        if key not in self.objects:
            raise NotFound(key)
        return None if key in self.none else crc32c(self.objects[key])


class TestChecksum:
    def test_a_flipped_bit_is_found_without_reading_it(self, objects: Objects) -> None:
        fragments = of_kind(objects, "fragment")
        for key in fragments:
            store = FaultyStore(Keeping(MemoryStore(objects=flipped(objects, key))))

            [damage] = verified(store, CHECKSUM).damages

            assert (damage.where, damage.what) == (key, "stored checksum")
            assert damage.expected == crc32c(objects[key])
            asked = [key for operation, key in store.calls if operation == "stored_crc32c"]
            assert sorted(asked) == fragments
            assert not {*fragments} & {key for operation, key in store.calls if operation == "get"}

    def test_objects_without_a_stored_checksum_are_counted(self, objects: Objects) -> None:
        none = of_kind(objects, "fragment")[:3]
        damaged = flipped(objects, none[0])

        report = verified(Keeping(MemoryStore(objects=damaged), none=none), CHECKSUM)

        assert (report.not_compared, report.damages) == (3, [])
        assert verified(damaged, CHECKSUM).not_compared == 2 * FRAGMENTS
        assert verified(damaged, MANIFEST).not_compared == 0

    def test_a_fragment_that_disappears_after_the_listing_is_named(self, objects: Objects) -> None:
        victim = of_kind(objects, "fragment")[4]
        behind = MemoryStore(objects=dict(objects))

        async def remove(operation: str, key: str) -> None:
            if (operation, key) == ("stored_crc32c", victim):
                behind.objects.pop(victim)

        assert blamed(FaultyStore(Keeping(behind), before=remove), CHECKSUM) == [victim]


class TestRate:
    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_verify_keeps_the_given_rate(self, objects: Objects, level: VerifyLevel) -> None:
        """The clock moves only while the code waits."""
        seconds = 0.0

        async def sleep(pause: float) -> None:
            nonlocal seconds
            until = seconds + pause
            await asyncio.sleep(0)
            seconds = max(seconds, until)

        metered = MeteredStore(MemoryStore(objects=dict(objects)))
        env = Env(monotonic=lambda: seconds, sleep=sleep)
        asyncio.run(verify(metered, level=level, bytes_per_second_max=1000, env=env))

        at_once = 4 * max(map(len, objects.values()))
        assert seconds * 1000 <= metered.metrics.bytes_got <= seconds * 1000 + at_once
        assert seconds > 5


class Enough(OffloadError):
    """The error that ends the first part of a verify."""


class TestGoingOn:
    def test_two_parts_of_a_verify_report_the_same_as_one_run(self, objects: Objects) -> None:
        """A verify is interrupted after many objects in turn, on a tier with damage of every kind."""
        fragments, groups = of_kind(objects, "fragment"), groups_of(objects)
        damaged = without(objects, fragments[6], fragments[FRAGMENTS - 1], groups[1], "late/stream.anchor")
        damaged = flipped(flipped(damaged, fragments[5]), groups[-1])
        damaged |= {"README": b"", "early/notes": b"", "early/zoo": b"", "zoo/a": b"", "tier.check.a": b""}
        whole = verified(damaged, BYTES)
        keys = sorted({*damaged, *(damage.where for damage in whole.damages)} - {TIER_ANCHOR})
        assert len(whole.damages) == 6

        for stop in {*keys[:: 5 if CAMPAIGN else 37], *(damage.where for damage in whole.damages)}:
            first = self._interrupted(damaged, stop)
            second = verified(damaged, BYTES, after=stop, page_rows_max=4)
            assert first.judged_to == stop
            first.add(second)
            assert first.as_json() == whole.as_json() | {"judged_to": stop}, stop

    def _interrupted(self, objects: Objects, stop: str) -> VerifyReport:
        report = VerifyReport()

        def progress(now: VerifyReport) -> None:
            if now.judged_to == stop:
                raise Enough

        with pytest.raises(Enough):
            asyncio.run(
                verify(MemoryStore(objects=dict(objects)), report=report, progress=progress, page_rows_max=3)
            )
        return report

    def test_an_error_ends_a_verify_after_the_judged_objects(self, objects: Objects) -> None:
        """Several objects are judged at once; those after the failed one are not reported."""
        victim = of_kind(objects, "fragment")[3]
        report = VerifyReport()

        async def fail(operation: str, key: str) -> None:
            if (operation, key) == ("get", victim):
                await asyncio.sleep(0.05)
                raise Enough

        store = FaultyStore(MemoryStore(objects=dict(objects)), before=fail)
        with pytest.raises(Enough):
            asyncio.run(verify(store, report=report))

        assert report.judged_to == of_kind(objects, "fragment")[2]
        assert report.objects == 4

    def test_a_verify_begins_behind_the_given_object(self, objects: Objects) -> None:
        """Of the objects before, only those that name others are read."""
        fragments = of_kind(objects, "fragment")
        store = FaultyStore(MemoryStore(objects=dict(objects)))

        verified(store, BYTES, after=fragments[5])

        read = {key for operation, key in store.calls if operation == "get"}
        assert read.isdisjoint(fragments[:6])
        assert read >= {*fragments[6:]}

    def test_resuming_behind_an_object_of_another_stream_is_refused(self, objects: Objects) -> None:
        with pytest.raises(Misuse, match="no object of stream 'late'"):
            asyncio.run(
                verify(MemoryStore(objects=dict(objects)), stream="late", after="early/stream.anchor")
            )
