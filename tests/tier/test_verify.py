"""Tests of verify: any damage to one object of a tier is reported for that object and for no other."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import small_tier
from campaign import CAMPAIGN
from small_tier import Objects

from offload.formats.checksums import crc32c
from offload.formats.fragment_trailer import TRAILER
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import NotOffloaded
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.verify.report import VerifyReport
from offload.upkeep.verify.tier import verify

SAMPLE = 5
"""The number of damaged bytes of one object. The campaign damages each bit of each byte."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Return a small tier. Tests damage copies of it."""
    return small_tier.make(tmp_path_factory.mktemp("small"))


def verified(objects: Objects, *, stream: str | None = None) -> VerifyReport:
    return asyncio.run(verify(MemoryStore(objects=dict(objects)), stream=stream))


def blamed(objects: Objects) -> set[str]:
    """Return the objects that a report names as damaged."""
    return {damage.where for damage in verified(objects).damages}


def kind_of(key: str) -> str:
    kinds = {"data": "fragment", "groups": "group", "metadata": "root"}
    return kinds[key.split("/")[1]] if key.count("/") == 2 else "anchor"


def roots(objects: Objects, stream: str) -> list[str]:
    return sorted(key for key in objects if key.startswith(f"{stream}/metadata/"))


def keys_of(objects: Objects, group: str) -> list[str]:
    """Return keys by their role, because the UUIDs in them differ from run to run."""
    unnamed = {row.key for row in verified(objects).unreferenced}
    fragments = {key for key in objects if kind_of(key) == "fragment"}
    match group:
        case "anchors":
            return [key for key in objects if kind_of(key) == "anchor"]
        case "newest roots":
            return [roots(objects, stream)[-1] for stream in ("tiny", "marked")]
        case "superseded roots":
            return [key for stream in ("tiny", "marked") for key in roots(objects, stream)[:-1]]
        case "groups":
            return [key for key in objects if kind_of(key) == "group"]
        case "named fragments":
            return sorted(fragments - unnamed)
        case "unreferenced fragments":
            return sorted(fragments & unnamed)
    raise AssertionError(group)


GROUPS = (
    "anchors",
    "newest roots",
    "superseded roots",
    "groups",
    "named fragments",
    "unreferenced fragments",
)


def flips(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield copies of `raw` with one changed bit in some of its bytes. The campaign changes each bit."""
    random_bits = random.Random(len(raw))
    every = range(len(raw))
    if CAMPAIGN:
        places = [(position, bit) for position in every for bit in range(8)]
    else:
        chosen = sorted(random_bits.sample(every, min(SAMPLE, len(raw))))
        places = [(position, random_bits.randrange(8)) for position in chosen]
    for position, bit in places:
        changed = bytearray(raw)
        changed[position] ^= 1 << bit
        yield position, bytes(changed)


class TestOneFlippedBit:
    @pytest.mark.parametrize("group", GROUPS)
    def test_a_flipped_bit_is_reported_for_its_object_alone(self, objects: Objects, group: str) -> None:
        asyncio.run(self._flip_all(objects, keys_of(objects, group)))

    async def _flip_all(self, objects: Objects, keys: list[str]) -> None:
        assert keys
        for key in keys:
            stream = None if key == "tier.anchor" else key.split("/")[0]
            for position, changed in flips(objects[key]):
                store = MemoryStore(objects=objects | {key: changed})
                report = await verify(store, stream=stream)
                assert {damage.where for damage in report.damages} == {key}, (key, position)

    def test_the_position_of_damage_in_a_fragment_is_reported(self, objects: Objects) -> None:
        [key] = [key for key in objects if key.startswith("tiny/data/")]
        for position in (0, 5, 16, 100, 1500, 3000, 3900):
            changed = bytearray(objects[key])
            changed[position] ^= 1

            [damage] = verified(objects | {key: bytes(changed)}).damages

            assert damage.stream == "tiny"
            assert damage.position <= position


class TestWholeObjects:
    def test_two_swapped_objects_of_one_kind_are_both_named(self, objects: Objects) -> None:
        pairs = [pair for pair in itertools.combinations(objects, 2) if kind_of(pair[0]) == kind_of(pair[1])]
        assert len(pairs) > 80

        for one, other in pairs:
            swapped = objects | {one: objects[other], other: objects[one]}
            assert {one, other} <= blamed(swapped), (one, other)

    def test_two_swapped_objects_of_different_kinds_are_named(self, objects: Objects) -> None:
        """The exception is a group whose newest root is damaged too: then nobody knows if it is named."""
        pairs = [pair for pair in itertools.combinations(objects, 2) if kind_of(pair[0]) != kind_of(pair[1])]
        [group], newest = keys_of(objects, "groups"), roots(objects, "marked")[-1]

        for one, other in pairs if CAMPAIGN else pairs[::9]:
            swapped = objects | {one: objects[other], other: objects[one]}
            known = {one, other} - ({group} if newest in (one, other) else set())
            assert known <= blamed(swapped), (one, other)

    def test_an_older_root_under_the_key_of_the_newest_is_found(self, objects: Objects) -> None:
        *_, before, newest = roots(objects, "marked")

        assert blamed(objects | {newest: objects[before]}) == {newest}

    @pytest.mark.parametrize("group", GROUPS)
    def test_a_shortened_or_lengthened_object_is_named(self, objects: Objects, group: str) -> None:
        for key in keys_of(objects, group):
            raw = objects[key]
            for changed in (b"", raw[:1], raw[: len(raw) // 2], raw[:-1], raw + b"\0", b"\0" * len(raw)):
                assert blamed(objects | {key: changed}) == {key}, (key, len(changed))

    @pytest.mark.parametrize("group", ["anchors", "groups", "named fragments"])
    def test_a_missing_object_is_named(self, objects: Objects, group: str) -> None:
        for key in keys_of(objects, group):
            assert blamed({k: raw for k, raw in objects.items() if k != key}) == {key}

    @pytest.mark.parametrize("group", ["superseded roots", "unreferenced fragments"])
    def test_a_missing_object_that_the_sweep_may_delete_is_not_damage(
        self, objects: Objects, group: str
    ) -> None:
        for key in keys_of(objects, group):
            assert blamed({k: raw for k, raw in objects.items() if k != key}) == set()

    def test_a_fragment_of_another_incarnation_is_found(self, objects: Objects, tmp_path: Path) -> None:
        """The same source is synced to another tier, with the same names and data and other attempts."""
        other = small_tier.make(tmp_path)
        [mine] = [key for key in objects if key.startswith("tiny/data/")]
        [theirs] = [key for key in other if key.startswith("tiny/data/")]

        assert blamed(objects | {mine: other[theirs]}) == {mine}


class TestSoundButNotTheOne:
    """Tests of objects with valid checksums that still differ from the newest root."""

    def test_a_rewritten_fragment_under_the_same_key_is_found(self, objects: Objects) -> None:
        [key] = [key for key in objects if key.startswith("tiny/data/")]
        raw = bytearray(objects[key])
        trailer = len(raw) - TRAILER.size_bytes
        raw[trailer + TRAILER.offset_of("epoch") + 7] ^= 1
        raw[-4:] = crc32c(bytes(raw[trailer:-4])).to_bytes(4, "big")

        [damage] = verified(objects | {key: bytes(raw)}).damages

        assert (damage.where, damage.what) == (key, "object checksum")

    @pytest.mark.parametrize("field", ["first_timestamp_ms", "last_timestamp_ms", "ledger_id"])
    def test_a_root_that_differs_from_the_fragment_is_found(self, objects: Objects, field: str) -> None:
        """A wrong time in the root alone would make every lookup by time wrong."""
        newest = roots(objects, "tiny")[-1]
        manifest = decode_root(objects[newest], where=newest)
        entries = manifest.entries.copy()
        entries[field] += 1
        changed = encode_root(replace(manifest, entries=entries))

        [damage] = verified(objects | {newest: changed}).damages

        assert damage.where.startswith("tiny/data/")
        assert damage.what in {"first timestamp", "last timestamp", "ledger"}

    @pytest.mark.parametrize("field", ["first_timestamp_ms", "last_timestamp_ms"])
    def test_a_root_that_differs_from_its_group_is_found(self, objects: Objects, field: str) -> None:
        newest = roots(objects, "marked")[-1]
        manifest = decode_root(objects[newest], where=newest)
        entries = manifest.entries.copy()
        entries[field][0] += 1
        changed = encode_root(replace(manifest, entries=entries))

        [damage] = verified(objects | {newest: changed}).damages

        assert (damage.where, damage.what) == (*keys_of(objects, "groups"), f"group {field}")


class TestAllIsWell:
    def test_a_sound_tier_has_no_damage_and_every_byte_of_it_was_read(self, objects: Objects) -> None:
        report = verified(objects)

        assert report.damages == []
        assert (report.streams, report.objects) == (2, len(objects))
        assert report.bytes == sum(map(len, objects.values()))

    def test_an_object_that_no_root_names_is_explained(self, objects: Objects) -> None:
        running, condemned = sorted(row.reason for row in verified(objects).unreferenced)

        assert condemned.startswith("trimmed, replaced by a copy, or of an upload that was given up")
        assert running.startswith("its attempt runs")

    def test_the_reported_attempts_agree_with_the_keys(self, objects: Objects) -> None:
        for row in verified(objects).unreferenced:
            assert f".{row.attempt}." in row.key

    @pytest.mark.parametrize(
        "key",
        [
            "README",
            "notes/today.txt",
            "tiny/notes.txt",
            "tiny/data/backup.fragment",
            "tiny/metadata/root.1.manifest",
            "marked/data/deeper/00000000000000000000.e3dffbb7-2acd-4917-b1e9-4d192617e981.fragment",
        ],
    )
    def test_a_foreign_object_is_explained_and_not_damage(self, objects: Objects, key: str) -> None:
        report = verified(objects | {key: b"hello"})

        assert report.damages == []
        [row] = [row for row in report.unreferenced if row.key == key]
        assert (row.attempt, row.reason.split(";")[0]) == (None, "not an object of this format")

    @pytest.mark.parametrize("key", ["tier.probe.0b1c", "tier.check.0b1c.a"])
    def test_the_remains_of_a_store_trial_are_reported_as_such(self, objects: Objects, key: str) -> None:
        report = verified(objects | {key: b"hello"})

        assert report.damages == []
        [row] = [row for row in report.unreferenced if row.key == key]
        assert (row.attempt, row.reason) == (
            None,
            "of a trial of the store that runs or was interrupted; nothing reads it, and a sweep removes it",
        )

    def test_a_verify_can_be_limited_to_one_stream(self, objects: Objects) -> None:
        [victim] = [key for key in objects if key.startswith("tiny/data/")]
        damaged = objects | {victim: objects[victim][::-1]}

        assert verified(damaged, stream="marked").damages == []
        assert [damage.where for damage in verified(damaged, stream="tiny").damages] == [victim]

    def test_a_verify_of_an_unknown_stream_is_an_error(self, objects: Objects) -> None:
        with pytest.raises(NotOffloaded, match="'orders'"):
            verified(objects, stream="orders")

    def test_a_verify_changes_nothing(self, objects: Objects) -> None:
        store = MemoryStore(objects=dict(objects))

        asyncio.run(verify(store))

        assert store.objects == objects


def test_a_tier_that_is_made_during_a_verify_has_not_lost_its_anchor(objects: Objects) -> None:
    """The tier is not judged either: without the anchor, nobody knows which store has the roots."""
    born: Objects = {}

    async def make(operation: str, _key: str) -> None:
        if operation == "list":  # the anchor was requested and was absent
            born.update(objects)

    store = FaultyStore(MemoryStore(objects=born), before=make)

    with pytest.raises(NotOffloaded, match="became a tier while it was verified: run again"):
        asyncio.run(verify(store))
