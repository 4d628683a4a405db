"""Tests of the keys of streams: a stream that is encrypted stays encrypted, and no key is lost or shown."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from key_world import LABEL, Service, World, append, is_encrypted, living, read, run
from made_fragments import tail_of
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, Retention, StreamWriter, TierOptions, delete_stream, trim
from offload.contracts.keys import KeyService
from offload.contracts.store import Span, Suffix
from offload.formats.anchor import KeyObject, TierAnchor
from offload.formats.checksums import crc32c
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.ground.errors import (
    Absent,
    AlreadyExists,
    Conflict,
    Denied,
    Misuse,
    NoSuchKey,
    OffloadError,
    TryAgain,
)
from offload.model.chunk_table import WINDOW_SIZE_BYTES
from offload.model.labels import MasterKey
from offload.native.key_objects import TRIED_MAX
from offload.native.key_ring import KEPT_MAX, KEPT_SECONDS, KeyRing, StreamKey
from offload.native.place import TierPlan
from offload.store.faults import Fault, Rule
from offload.store.memory import MemoryStore

MARKER: Final = b"a key nobody may ever see here.."
LIFE: Final = UUID(int=1)


def _other_label(sound: KeyObject) -> bytes:
    return replace(sound, label="other").encode()


def _unknown_label(sound: KeyObject) -> bytes:
    return replace(sound, label="nobody").encode()


def _other_wrapped(sound: KeyObject) -> bytes:
    return replace(sound, wrapped="d3JhcHBlZA==").encode()


def _newer_version(sound: KeyObject) -> bytes:
    lines = sound.encode()[: -len(b"crc32c 00000000\n")].replace(b" key 1\n", b" key 99\n")
    return lines + b"crc32c %08x\n" % crc32c(lines)


class TestKeeping:
    """Keys in memory."""

    def test_a_key_is_made_once_and_unwrapped_once_within_its_time(self) -> None:
        async def scenario(world: World) -> None:
            tier = world.tier(world.ring())
            for _ in range(3):
                await append(tier)
                await read(tier)
            world.clock.now = KEPT_SECONDS - 1
            await read(tier)

            assert world.service.calls == ["wrap", "unwrap"]
            assert len(world.key_objects(".key")) == len(world.key_objects(".copy")) == 1

        run(scenario)

    def test_concurrent_ledgers_of_a_new_stream_share_one_key(self) -> None:
        async def scenario(world: World) -> None:
            writer = await StreamWriter.claim(world.tier(world.ring()), "orders")
            await writer.offload([ledger_of(5, first_offset=first) for first in range(0, 40, 5)])

            assert world.service.calls == ["wrap", "unwrap"]

        run(scenario)

    def test_concurrent_readers_unwrap_a_key_once(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            tier = world.tier(world.ring(None))
            world.service.calls.clear()

            assert await asyncio.gather(*(read(tier) for _ in range(8))) == [10] * 8
            assert world.service.calls == ["unwrap"]

        run(scenario)

    @pytest.mark.parametrize("late", [0.0, 1.0])
    def test_a_key_is_unwrapped_again_after_its_time(self, late: float) -> None:
        async def scenario(world: World) -> None:
            tier = world.tier(world.ring())
            await append(tier)
            world.clock.now = KEPT_SECONDS + late
            await read(tier)

            assert world.service.calls == ["wrap", "unwrap", "unwrap"]

        run(scenario)

    def test_use_does_not_prolong_the_time_of_a_key(self) -> None:
        async def scenario(world: World) -> None:
            tier = world.tier(world.ring())
            await append(tier)
            for world.clock.now in (100.0, 200.0, 299.0, 301.0):
                await read(tier)

            assert world.service.calls == ["wrap", "unwrap", "unwrap"]

        run(scenario)

    def test_a_ring_keeps_a_bounded_number_of_keys_and_drops_the_least_used(self) -> None:
        async def scenario(world: World) -> None:
            ring = world.ring()
            names = [f"s{number}" for number in range(KEPT_MAX)]
            for name in names:
                await ring.for_writing(world.store, name, LIFE, base_version=1, refuse_if_over=living)
            # Used again, so it is not the next to go.
            await ring.for_writing(world.store, names[0], LIFE, base_version=1, refuse_if_over=living)
            await ring.for_writing(world.store, "one more", LIFE, base_version=1, refuse_if_over=living)
            assert len(ring._kept) == KEPT_MAX
            world.service.calls.clear()

            await ring.for_writing(world.store, names[0], LIFE, base_version=1, refuse_if_over=living)
            assert world.service.calls == []
            await ring.for_writing(world.store, names[1], LIFE, base_version=1, refuse_if_over=living)
            assert world.service.calls == ["unwrap"]

        run(scenario)

    def test_a_ring_forgets_all_keys_whose_time_is_over(self) -> None:
        async def scenario(world: World) -> None:
            ring = world.ring()
            for name in "abc":
                await ring.for_writing(world.store, name, LIFE, base_version=1, refuse_if_over=living)
            world.clock.now = KEPT_SECONDS
            await ring.for_writing(world.store, "d", LIFE, base_version=1, refuse_if_over=living)

            assert [stream for _, stream, _, _ in ring._kept] == ["d"]

        run(scenario)

    def test_a_closed_ring_keeps_no_key(self) -> None:
        async def scenario(world: World) -> None:
            ring = world.ring()
            shared = ring.shared(new=ring.new, encrypted_only=False)
            await shared.for_writing(world.store, "orders", LIFE, base_version=1, refuse_if_over=living)
            await shared.aclose()
            assert len(ring._kept) == 1

            await ring.aclose()

            assert (ring._kept, shared._kept) == ({}, {})

        run(scenario)

    def test_keys_of_two_stores_are_kept_apart(self) -> None:
        async def scenario(world: World) -> None:
            ring, other = world.ring(), MemoryStore(name="other")

            one = await ring.for_writing(world.store, "a", LIFE, base_version=1, refuse_if_over=living)
            two = await ring.for_writing(other, "a", LIFE, base_version=1, refuse_if_over=living)

            assert one is not None
            assert two is not None
            assert (one.raw == two.raw, one.uid == two.uid) == (False, False)

        run(scenario)


class TestCopies:
    """The two copies of a key object on the tier."""

    def test_both_copies_have_the_same_bytes_and_no_key_in_the_clear(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring(secret=lambda size: MARKER[:size])))

            one, two = (world.objects[key] for key in world.key_objects())
            assert one == two
            assert KeyObject.decode(one, where="here").label == LABEL
            assert not any(MARKER in data for data in world.objects.values())

        run(scenario)

    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    @pytest.mark.parametrize("harm", [World.lose, World.damage])
    def test_a_stream_reads_and_stays_encrypted_with_either_copy(
        self, harm: Callable[[World, str], None], suffix: str
    ) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            harm(world, suffix)

            assert await read(world.tier(world.ring(None))) == 10
            await append(world.tier(world.ring(None)))
            assert await read(world.tier(world.ring(None))) == 20
            assert await is_encrypted(world) == [True, True]

        run(scenario)

    @pytest.mark.parametrize("harm", [World.lose, World.damage])
    def test_the_loss_of_both_copies_is_denied_with_the_name_of_the_stream(
        self, harm: Callable[[World], None]
    ) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            harm(world)
            before = world.data

            with pytest.raises(Denied, match=r"stream 'orders': both copies of its key .* lost or damaged"):
                await read(world.tier(world.ring(None)))
            with pytest.raises(Denied, match="stream 'orders'"):
                await append(world.tier(world.ring(None)))
            assert world.data == before

        run(scenario)

    @pytest.mark.parametrize("fragments", range(1, 5))
    @pytest.mark.parametrize("has_ring", [True, False])
    def test_a_writer_finds_an_encrypted_stream_without_key_objects_at_any_size_of_its_root(
        self, fragments: int, *, has_ring: bool
    ) -> None:
        """In some roots the newest entry is a group, which does not say if its fragments are encrypted."""

        async def scenario(world: World) -> None:
            world.objects[TIER_ANCHOR] = TierAnchor(branching_factor=2).encode()
            for _ in range(fragments):
                await append(world.tier(world.ring()))
            world.lose()

            with pytest.raises(Denied, match="stream 'orders' is encrypted"):
                await append(world.tier(world.ring(None) if has_ring else None))

        run(scenario)

    def test_a_writer_whose_newest_group_was_swept_asks_for_the_newest_root(self) -> None:
        async def scenario(world: World) -> None:
            world.objects[TIER_ANCHOR] = TierAnchor(branching_factor=2).encode()
            tier = world.tier()
            writer = await StreamWriter.claim(tier, "orders")
            for first in (0, 10):
                await writer.offload([ledger_of(10, first_offset=first)])
            old = [key for key in world.objects if "/groups/" in key]
            for key in old:
                del world.objects[key]

            with pytest.raises(Absent):
                await world.tier().encrypts(writer.manifest)
            await trim(tier, "orders", Retention(before_offset=20))
            with pytest.raises(Conflict, match="has a newer root"):
                await world.tier().encrypts(writer.manifest)

        run(scenario)

    @pytest.mark.parametrize("planted", [TRIED_MAX - 1, 3 * TRIED_MAX])
    def test_a_reader_tries_a_bounded_number_of_damaged_objects(self, planted: int) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            keys = StreamKeys("orders")
            parsed = keys.parse_key_object(world.key_objects(".key")[0])
            assert parsed is not None
            life, uid, _ = parsed
            for generation in range(2, planted + 2):
                world.objects[keys.key_objects(life, uid, generation)[0]] = b"damaged"
            world.store.calls.clear()

            reading = read(world.tier(world.ring(None)))
            if planted < TRIED_MAX:
                assert await reading == 10
            else:
                with pytest.raises(Denied, match="are lost or damaged"):
                    await reading
            lists = [call for call in world.store.calls if call.operation == "list" and "/keys/" in call.key]
            assert len(lists) == TRIED_MAX

        run(scenario)

    def test_a_writer_with_a_label_makes_a_new_key_if_its_streams_key_is_half_lost(self) -> None:
        """So new data does not depend on a single copy; the old data is still read with that."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.lose(".key")

            await append(world.tier(world.ring()))

            assert (len(world.key_objects(".key")), len(world.key_objects(".copy"))) == (1, 2)
            assert await read(world.tier(world.ring(None))) == 20

        run(scenario)

    def test_a_key_object_of_another_stream_is_refused(self) -> None:
        async def scenario(world: World) -> None:
            ring = world.ring()
            await append(world.tier(ring))
            await append(world.tier(ring), stream="other")
            mine, theirs = (
                [key for key in world.key_objects() if key.startswith(StreamKeys(name).prefix)]
                for name in ("orders", "other")
            )
            for key, foreign in zip(mine, theirs, strict=True):
                world.objects[key] = world.objects[foreign]

            with pytest.raises(Denied, match=r"stream 'orders'.* of stream 'other'"):
                await read(world.tier(world.ring()))

        run(scenario)

    @pytest.mark.parametrize(
        ("change", "refusal"),
        [({"label": "other"}, "did not wrap this key"), ({"incarnation": str(UUID(int=7))}, "key object")],
    )
    def test_a_key_object_that_was_rewritten_does_not_open(
        self, change: dict[str, str], refusal: str
    ) -> None:
        """Whoever writes to the bucket can make the checksum right again; the service refuses the context."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            for key in world.key_objects():
                found = KeyObject.decode(world.objects[key], where=key)
                world.objects[key] = replace(found, **change).encode()

            with pytest.raises(Denied, match=rf"stream 'orders'.*{refusal}"):
                await read(world.tier(world.ring()))

        run(scenario, service=Service(LABEL, "other"))

    @pytest.mark.parametrize("forge", [_other_label, _unknown_label, _other_wrapped, _newer_version])
    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    def test_one_forged_copy_keeps_nobody_from_the_key(
        self, forge: Callable[[KeyObject], bytes], suffix: str
    ) -> None:
        """Its checksum is right, so only the key service can tell it from the sound copy."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            [name] = world.key_objects(suffix)
            world.objects[name] = forge(KeyObject.decode(world.objects[name], where=name))

            assert await read(world.tier(world.ring(None))) == 10
            await append(world.tier(world.ring(None)))
            assert await is_encrypted(world) == [True, True]

        run(scenario, service=Service(LABEL, "other"))

    def test_equal_copies_that_the_service_refuses_are_asked_about_once(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service.masters.clear()
            world.service.calls.clear()

            with pytest.raises(NoSuchKey, match="stream 'orders'"):
                await read(world.tier(world.ring(None)))
            assert world.service.calls == ["unwrap"]

        run(scenario)

    def test_a_service_is_asked_about_a_bounded_number_of_forged_objects(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            [name] = world.key_objects(".key")
            found = KeyObject.decode(world.objects[name], where=name)
            for generation in range(2, 3 * TRIED_MAX):
                forged = replace(found, generation=generation, label="other")
                own, _ = StreamKeys("orders").key_objects(
                    UUID(found.incarnation), UUID(found.uid), generation
                )
                world.objects[own] = forged.encode()
            world.service.calls.clear()

            with pytest.raises(Denied, match="did not wrap this key"):
                await read(world.tier(world.ring(None)))
            assert world.service.calls == ["unwrap"] * TRIED_MAX

        run(scenario, service=Service(LABEL, "other"))

    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    def test_a_lost_reply_of_a_create_makes_no_second_key(self, suffix: str) -> None:
        async def scenario(world: World) -> None:
            world.store.rules = [Rule(Fault.LOSE_REPLY, "create", f"*{suffix}", nth=1)]

            await append(world.tier(world.ring()))

            assert len(world.key_objects()) == 2
            assert await read(world.tier(world.ring())) == 10

        run(scenario)

    def test_an_object_under_the_name_of_a_new_key_is_not_taken_for_that_key(self) -> None:
        async def scenario(world: World) -> None:
            name, _ = StreamKeys("orders").key_objects(UUID(int=2), LIFE, 1)
            world.objects[name] = b"another object"
            ring = world.ring(None)
            ring.env, ring.new = replace(ring.env, uuid=lambda: LIFE), MasterKey(LABEL)

            with pytest.raises(AlreadyExists):
                await ring.for_writing(
                    world.store, "orders", UUID(int=2), base_version=1, refuse_if_over=living
                )
            assert world.objects[name] == b"another object"

        run(scenario)

    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    def test_a_crash_between_the_copies_costs_the_next_writer_nothing(self, suffix: str) -> None:
        async def scenario(world: World) -> None:
            world.store.rules = [Rule(Fault.FAIL_BEFORE, "create", f"*{suffix}")]
            with pytest.raises(TryAgain):
                await append(world.tier(world.ring()))
            assert world.data == []
            world.store.rules = []

            await append(world.tier(world.ring()))

            assert len(world.key_objects(".key")) == 1
            assert await read(world.tier(world.ring(None))) == 10

        run(scenario)


class TestLives:
    """Rivals, and streams that are deleted and begun again."""

    def test_a_key_object_that_was_deleted_while_it_was_stored_is_tried_again(self) -> None:
        """Its reply was lost, and a rotation replaced it before it was read back."""

        class Gone(MemoryStore):
            async def create(self, key: str, data: bytes) -> None:
                raise AlreadyExists(key)

        async def scenario(world: World) -> None:
            with pytest.raises(TryAgain, match="rotated or shredded while it was stored"):
                await world.ring().for_writing(Gone(), "orders", LIFE, base_version=1, refuse_if_over=living)

        run(scenario)

    def test_a_damaged_reply_does_not_make_a_stored_key_another_one(self) -> None:
        class Flips(MemoryStore):
            async def create(self, key: str, data: bytes) -> None:
                await super().create(key, data)
                raise AlreadyExists(key)  # as to a request that was sent again

            async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
                data = await super().get(key, span)
                replies.append(key)
                return data if len(replies) % 2 == 0 else data[:-1] + b"?"

        replies: list[str] = []

        async def scenario(world: World) -> None:
            assert await world.ring().for_writing(
                Flips(), "orders", LIFE, base_version=1, refuse_if_over=living
            )

        run(scenario)
        assert len(replies) == 4

    def test_a_rival_that_makes_a_key_at_the_same_time_loses_nothing(self) -> None:
        async def scenario(world: World) -> None:
            rings = [world.ring(), world.ring()]
            made = (
                ring.for_writing(world.store, "orders", LIFE, base_version=1, refuse_if_over=living)
                for ring in rings
            )
            keys = await asyncio.gather(*made)
            assert len({key.uid for key in keys if key}) == 2

            for ring, key in zip(rings, keys, strict=True):
                assert key is not None
                wrapped = ring.data_key(key, attempt=uuid4(), first_offset=0)
                other = world.ring(None)
                raw = await other.open(world.store, "orders", LIFE, key.uid, wrapped[1][16:], where="here")
                assert raw == wrapped[0].raw

        run(scenario)

    @pytest.mark.parametrize("label", [LABEL, None])
    def test_a_first_run_that_cannot_encrypt_leaves_nothing_behind(self, label: str | None) -> None:
        async def scenario(world: World) -> None:
            world.service.masters.clear()

            with pytest.raises(Denied):
                await append(world.tier(world.ring(label, encrypted_only=True)))

            assert world.objects == {}

        run(scenario)

    def test_a_stream_that_was_begun_again_has_a_key_of_its_own(self) -> None:
        async def scenario(world: World) -> None:
            tier = world.tier(world.ring())
            await append(tier)
            old = world.key_objects(".key")
            await delete_stream(tier, "orders")

            await append(tier)

            new = [key for key in world.key_objects(".key") if key not in old]
            assert (len(old), len(new)) == (1, 1)
            for key in old:
                del world.objects[key], world.objects[key.replace(".key", ".copy")]
            assert await read(world.tier(world.ring())) == 10

        run(scenario)

    def test_a_key_in_memory_is_not_taken_for_a_key_of_another_life(self) -> None:
        """Somebody without any key puts the objects of the old life's key into the new life."""

        async def scenario(world: World) -> None:
            tier = world.tier(world.ring())
            await append(tier)
            [name] = world.key_objects(".key")
            old = KeyObject.decode(world.objects[name], where=name)
            await delete_stream(tier, "orders")
            writer = await StreamWriter.claim(tier, "orders")
            life = writer.manifest.incarnation
            planted = replace(old, incarnation=str(life)).encode()
            for each in StreamKeys("orders").key_objects(life, UUID(old.uid), 1):
                world.objects[each] = planted

            with pytest.raises(Denied, match="did not wrap this key"):
                await writer.offload([ledger_of(10)])

        run(scenario)

    def test_a_stream_that_was_begun_again_without_a_label_is_not_encrypted(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            await delete_stream(world.tier(), "orders")

            await append(world.tier(world.ring(None)))

            assert await is_encrypted(world) == [False]

        run(scenario)


class TestWriters:
    """A stream that is encrypted is never continued in the clear."""

    def test_a_later_writer_without_a_label_keeps_encrypting(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            await append(world.tier(world.ring(None)))

            assert await is_encrypted(world) == [True, True]
            assert len(world.key_objects(".key")) == 1

        run(scenario)

    def test_a_writer_with_a_label_encrypts_what_follows_in_a_plain_stream(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier())
            await append(world.tier(world.ring()))

            assert await is_encrypted(world) == [False, True]
            assert await read(world.tier(world.ring(None))) == 20

        run(scenario)

    def test_a_writer_without_a_label_writes_a_plain_stream_without_the_service(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring(None)))

            assert await is_encrypted(world) == [False]
            assert (world.service.calls, world.key_objects()) == ([], [])

        run(scenario)

    @pytest.mark.parametrize("appends", [1, 2, 4, 5])
    def test_a_writer_without_a_ring_stores_nothing_in_an_encrypted_stream(self, appends: int) -> None:
        """Groups take two entries here, so the newest fragment is in the root, a group or a kilo-group."""

        async def scenario(world: World) -> None:
            world.objects[TIER_ANCHOR] = TierAnchor(branching_factor=2).encode()
            for _ in range(appends):
                await append(world.tier(world.ring()))
            before = world.data

            with pytest.raises(Denied, match="stream 'orders' is encrypted, and no key service was given"):
                await append(world.tier())
            assert world.data == before

        run(scenario)

    def test_a_writer_without_a_ring_stores_nothing_after_a_trim_of_everything(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            await trim(world.tier(), "orders", Retention(before_offset=10))
            before = world.data

            with pytest.raises(Denied, match="stream 'orders' is encrypted"):
                await append(world.tier())
            assert world.data == before

        run(scenario)

    def test_a_writer_without_a_ring_that_claims_again_looks_for_a_key_again(self) -> None:
        """Each time all is trimmed, so that only the key shows that the stream is encrypted."""

        async def scenario(world: World) -> None:
            without = world.tier()
            for tier, end in ((without, 10), (without, 20), (world.tier(world.ring()), 30)):
                await append(tier)
                await trim(world.tier(), "orders", Retention(before_offset=end))
            before = world.data

            with pytest.raises(Denied, match="stream 'orders' is encrypted"):
                await append(without)
            assert world.data == before

        run(scenario)

    def test_each_fragment_of_a_ledger_has_a_data_key_of_its_own(self) -> None:
        async def scenario(world: World) -> None:
            one_chunk = TierOptions(fragment_size_bytes=1)
            tier = ObjectStoreOffloader(world.store, ring=world.ring(), options=one_chunk)
            await append(tier, records=3)

            tails = [tail_of(world.objects[name]) for name in world.data]
            assert len({tail.wrapped_key for tail in tails}) == 3
            assert await read(tier) == 3

        run(scenario)

    def test_a_reader_without_a_ring_is_told_which_stream_is_encrypted(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))

            with pytest.raises(Denied, match=r"stream 'orders' is encrypted, .* use --keys"):
                await read(world.tier())

        run(scenario)

    def test_a_fragment_of_several_windows_is_encrypted_and_reads_back(self) -> None:
        async def scenario(world: World) -> None:
            writer = await StreamWriter.claim(world.tier(world.ring()), "orders")
            await writer.offload([ledger_of(5, body_size_bytes=WINDOW_SIZE_BYTES // 2)])

            assert await read(world.tier(world.ring(None))) == 5
            assert await is_encrypted(world) == [True]

        run(scenario)

    def test_a_tier_with_hashed_keys_keeps_its_key_objects_readable(self) -> None:
        async def scenario(world: World) -> None:
            tier = ObjectStoreOffloader(world.store, ring=world.ring(), plan=TierPlan(hashed_keys=True))
            await append(tier)

            assert await read(world.tier(world.ring(None))) == 10
            assert len(world.key_objects()) == 2

        run(scenario)

    def test_a_tier_with_a_commit_store_keeps_its_key_objects_there(self) -> None:
        """Its data store may overwrite existing objects, and a key object must never be overwritten."""

        async def scenario(world: World) -> None:
            roots = MemoryStore(name="roots")
            plan = TierPlan(commit_store="memory://roots")

            def tier(ring: KeyRing | None) -> ObjectStoreOffloader:
                return ObjectStoreOffloader(world.store, ring=ring, plan=plan, open_store=lambda url: roots)

            await append(tier(world.ring()))
            await append(tier(world.ring(None)))

            assert await read(tier(world.ring(None))) == 20
            assert len([key for key in roots.objects if "/keys/" in key]) == 2
            assert world.key_objects() == []

        run(scenario)


class TestOwnMasterKeys:
    """Streams whose master key was made for them alone."""

    def test_each_stream_gets_a_master_key_of_its_own(self) -> None:
        async def scenario(world: World) -> None:
            for stream in ("orders", "invoices"):
                await append(world.tier(world.ring("own:shop")), stream=stream)

            found = [KeyObject.decode(world.objects[key], where=key) for key in world.key_objects(".key")]
            assert {one.stream: (one.label, one.own) for one in found} == {
                one.stream: (f"shop-{one.uid}", True) for one in found
            }
            assert len(found) == 2
            assert sorted(world.service.masters) == sorted([LABEL, *(one.label for one in found)])
            assert await read(world.tier(world.ring(None))) == 10
            del world.service.masters[found[0].label]
            with pytest.raises(Denied, match=found[0].stream):
                await read(world.tier(world.ring(None)), found[0].stream)
            assert await read(world.tier(world.ring(None)), found[1].stream) == 10

        run(scenario)

    def test_a_service_that_makes_no_keys_is_refused_before_anything_is_stored(self) -> None:
        class Fixed(Service):
            create = KeyService.create

        async def scenario(world: World) -> None:
            with pytest.raises(Misuse, match="makes no master keys"):
                await append(world.tier(world.ring("own:shop")))
            assert (world.data, world.key_objects()) == ([], [])

        run(scenario, service=Fixed())


class TestServices:
    """Key services that fail, refuse or misbehave."""

    @pytest.mark.parametrize(
        "label", ["../etc", "http://evil", "A", "", "-a", "a" * 65, "own:", "own:" + "a" * 28, "own:own:a"]
    )
    def test_a_label_that_could_be_a_path_or_an_address_is_refused(self, label: str) -> None:
        with pytest.raises(Misuse, match="is no label of a key"):
            World().ring(label)

    def test_a_missing_label_is_denied_and_nothing_is_stored(self) -> None:
        async def scenario(world: World) -> None:
            with pytest.raises(Denied, match="stream 'orders': the key service has no key 'missing'"):
                await append(world.tier(world.ring("missing")))

            assert (world.data, world.key_objects()) == ([], [])

        run(scenario)

    def test_a_label_that_was_removed_is_denied_to_readers(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service.masters.clear()

            with pytest.raises(Denied, match="stream 'orders': the key service has no key 'tier-2026'"):
                await read(world.tier(world.ring()))

        run(scenario)

    def test_another_master_key_under_the_label_is_denied(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service = Service()

            with pytest.raises(Denied, match=r"stream 'orders'.*did not wrap this key"):
                await read(world.tier(world.ring()))

        run(scenario)

    def test_a_service_that_is_down_is_asked_again_later(self) -> None:
        async def scenario(world: World) -> None:
            world.service.is_down = True
            with pytest.raises(TryAgain):
                await append(world.tier(world.ring()))
            assert (world.data, world.key_objects()) == ([], [])
            world.service.is_down = False
            tier = world.tier(world.ring())
            await append(tier)

            world.service.is_down = True
            assert await read(tier) == 10  # its key is kept
            with pytest.raises(TryAgain):
                await read(world.tier(world.ring()))

        run(scenario)

    @pytest.mark.parametrize("size", [0, 31, 33])
    def test_a_service_that_returns_a_key_of_a_wrong_length_is_denied(self, size: int) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service.unwraps_to = lambda key: (key + key)[:size]

            with pytest.raises(Denied, match=f"stream 'orders': .* a key of {size} bytes"):
                await read(world.tier(world.ring()))

        run(scenario)

    def test_a_service_that_unwraps_another_key_is_denied(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service.unwraps_to = lambda key: bytes(32)

            with pytest.raises(Denied, match=r"orders.*the stream's key does not open its data key"):
                await read(world.tier(world.ring()))

        run(scenario)

    def test_a_key_is_bound_to_its_stream_its_life_and_its_uid(self) -> None:
        class Noting(Service):
            async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
                contexts.append(dict(context))
                return await super().wrap(label, key, context)

        async def scenario(world: World) -> None:
            key = await world.ring().for_writing(
                world.store, "orders", LIFE, base_version=1, refuse_if_over=living
            )

            assert key is not None
            purpose = {"purpose": "ledger-offload stream key"}
            assert contexts == [
                {**purpose, "stream": "orders", "incarnation": str(LIFE), "key": str(key.uid)}
            ]

        contexts = list[dict[str, str]]()
        run(scenario, service=Noting())

    def test_nothing_is_stored_under_a_key_that_the_service_cannot_unwrap(self) -> None:
        async def scenario(world: World) -> None:
            world.objects[TIER_ANCHOR] = TierAnchor().encode()
            world.service.unwraps_to = lambda key: bytes(32)

            with pytest.raises(Denied, match="did not return the key that it has wrapped"):
                await append(world.tier(world.ring()))
            assert (world.data, world.key_objects()) == ([], [])

        run(scenario)

    @pytest.mark.parametrize("size", [0, 4097])
    def test_a_service_that_wraps_to_a_wrong_length_is_denied(
        self, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def wrap(label: str, key: bytes, context: Mapping[str, str]) -> bytes:
            return bytes(size)

        async def scenario(world: World) -> None:
            world.objects[TIER_ANCHOR] = TierAnchor().encode()
            monkeypatch.setattr(world.service, "wrap", wrap)

            with pytest.raises(Denied, match=f"stream 'orders': .* a wrapped key of {size} bytes"):
                await append(world.tier(world.ring()))
            assert world.key_objects() == []

        run(scenario)


class TestSecrecy:
    """A key is in memory and nowhere else."""

    def test_no_key_is_in_a_repr_an_error_or_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        shown: list[str] = []

        async def scenario(world: World) -> None:
            ring = world.ring(secret=lambda size: MARKER[:size])
            events: list[Any] = []
            tier = ObjectStoreOffloader(world.store, ring=ring, emit=events.append)
            await append(tier)
            key = await ring.for_writing(world.store, "orders", LIFE, base_version=1, refuse_if_over=living)
            assert key is not None
            shown.extend(map(repr, [ring, key, ring.data_key(key, attempt=LIFE, first_offset=0), events]))
            world.service.unwraps_to = lambda key: key + b"x"
            for harm in (lambda: None, world.damage):
                harm()
                with pytest.raises(OffloadError) as caught:
                    await read(world.tier(world.ring()))
                shown.append(repr(caught.value) + repr(caught.value.__cause__))

        run(scenario)

        text = "".join(shown) + caplog.text
        for spelled in (MARKER.decode(), MARKER.hex()):
            assert spelled not in text

    def test_a_streams_key_cannot_be_pickled(self) -> None:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(StreamKey(uid=LIFE, incarnation=LIFE, raw=MARKER))
