"""Tests of a tier that an older program wrote: fragments and groups of version 1, roots of version 2.

`data/tiers/README.md` describes the tier. What its streams hold is read from the files of their sources, so
the program under test does not vouch for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import pytest
from osiris_data import DATA, index_of

from offload import (
    AtOffset,
    AtTime,
    Corrupt,
    MemoryHandle,
    ObjectStoreOffloader,
    Plugins,
    StreamDeleted,
    StreamReader,
    StreamWriter,
    TierOptions,
    UnsupportedFormat,
    open_source,
    verify,
)
from offload import sync as sync_all
from offload.formats.checksums import crc32c
from offload.formats.chunk import ChunkHeader
from offload.formats.fragment_trailer import FragmentTrailer
from offload.formats.group import Group
from offload.formats.keys import StreamKeys
from offload.formats.root import decode_root
from offload.model.compression import BlockCodec, Compression
from offload.model.entry import Entry, EntryKind, entries_of_rows
from offload.model.manifest import Manifest
from offload.native.fragment_check import check_fragment
from offload.native.fragment_writer import entry_of
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact
from offload.upkeep.copy.tier import copy
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import VerifyLevel

T = TypeVar("T")
FORMAT_1: Final = Path(__file__).parents[1] / "data" / "tiers" / "format-1"
SOURCES: Final = {
    "orders": FORMAT_1 / "source" / "orders",
    "tiny": DATA / "tiny",
    "gone": FORMAT_1 / "source" / "gone",
}
COMMITTED: Final = {"orders": range(28, 80), "tiny": range(10)}
ORDERS: Final = StreamKeys("orders")
LEFT: Final = UUID("da711448-96c8-4a19-a4b2-d2bc815a47c5")
"""The attempt that a crash left complete, with the offsets from 80 to 96."""
LARGE: Final = 1 << 20
ZSTD: Final = Compression.parse("zstd:3")


@pytest.fixture
def store() -> MemoryStore:
    """Return a copy of the old tier in memory."""
    files = (path for path in (FORMAT_1 / "tier").rglob("*") if path.is_file())
    return MemoryStore(
        objects={path.relative_to(FORMAT_1 / "tier").as_posix(): path.read_bytes() for path in files}
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


def opened(store: MemoryStore, *, fragment_size_bytes: int = 500) -> ObjectStoreOffloader:
    """Return today's program on the tier. It compresses."""
    options = TierOptions(fragment_size_bytes=fragment_size_bytes, compression=ZSTD)
    return ObjectStoreOffloader(store, options=options)


def source_bytes(stream: str, offsets: range) -> bytes:
    """Return the chunks that begin within `offsets`, cut at the positions in the source's own indexes."""
    found = b""
    for segment in sorted(SOURCES[stream].glob("*.segment")):
        raw, rows = segment.read_bytes(), index_of(segment)
        stops = [*(position for _, _, _, position, _ in rows[1:]), len(raw)]
        chunks = [(row[0], raw[row[3] : stop]) for row, stop in zip(rows, stops, strict=True)]
        found += b"".join(chunk for offset, chunk in chunks if offset in offsets)
    return found


async def no_errors(reports: AsyncIterator[Any]) -> list[Any]:
    done = [report async for report in reports]
    assert [report.error for report in done] == [None] * len(done)
    return done


async def sync(store: MemoryStore, stream: str = "orders") -> Manifest:
    """Sync a stream from its source, which is ahead of the tier."""
    source = open_source(f"rabbitmq://{SOURCES[stream]}", plugins=Plugins.find())
    await no_errors(sync_all(source, opened(store)))
    return await opened(store).load_manifest(stream)


async def compact_all(store: MemoryStore, *streams: str) -> int:
    """Merge what can be merged, and return the number of runs."""
    offloader = opened(store, fragment_size_bytes=LARGE)
    done = await no_errors(compact(offloader, streams=streams, fragment_size_bytes=LARGE))
    return sum(report.runs for report in done)


async def bytes_of(store: MemoryStore, stream: str, offset: int | None = None) -> bytes:
    """Return the chunks that a reader gets from the stream, from `offset` on."""
    reader = await StreamReader.open(opened(store), stream)
    async with aclosing(reader.windows(reader.manifest.first_offset if offset is None else offset)) as found:
        return b"".join([bytes(window.data) async for window in found])


async def entries_of(store: MemoryStore, stream: str) -> list[Entry]:
    offloader = opened(store)
    tree = offloader.tree(await offloader.load_manifest(stream))
    return [entry async for leaf in tree.walk() for entry in entries_of_rows(leaf)]


async def assert_sound(store: MemoryStore) -> None:
    """Check every bit of the tier, and that no reader, writer or sweep would miss anything."""
    assert (await verify(store, level=VerifyLevel.BYTES)).damages == []


def trailer_of(store: MemoryStore, stream: str, entry: Entry) -> FragmentTrailer:
    key = StreamKeys(stream).fragment(entry.first_offset, entry.attempt)
    return FragmentTrailer.decode(store.objects[key][-180:], where=key)


async def versions_of(store: MemoryStore, stream: str) -> list[int]:
    """Return the version of each live fragment."""
    return [trailer_of(store, stream, entry).version for entry in await entries_of(store, stream)]


def versions_under(store: MemoryStore, prefix: str) -> set[int]:
    """Return the versions in the headers of all objects under a prefix."""
    return {int.from_bytes(raw[4:6], "big") for key, raw in store.objects.items() if key.startswith(prefix)}


def lose_roots(store: MemoryStore, stream: str) -> None:
    for key in [key for key in store.objects if key.startswith(StreamKeys(stream).roots)]:
        del store.objects[key]


def fragments_in(store: MemoryStore, stream: str) -> set[tuple[int, UUID]]:
    """Return first offset and attempt of every fragment that is stored, named or not."""
    parsed = map(StreamKeys(stream).parse_fragment, store.objects)
    return {found for found in parsed if found is not None}


def resealed(raw: bytes, changed: dict[int, int]) -> bytes:
    """Return an object with other bytes at these positions, and a checksum at its end that is right again."""
    body = bytearray(raw)
    for position, byte in changed.items():
        body[position] = byte
    return bytes(body[:-4]) + crc32c(bytes(body[:-4])).to_bytes(4, "big")


class TestTheOldTierAlone:
    """The old tier, before today's program writes to it."""

    def test_it_has_every_kind_of_object_in_its_older_version(self, store: MemoryStore) -> None:
        for stream in SOURCES:
            keys = StreamKeys(stream)
            assert versions_under(store, keys.data) == {1}
            assert versions_under(store, keys.roots) == {2}
            assert versions_under(store, f"{stream}/groups/") == {1}
        kinds = [row[3] for row in map(ORDERS.parse_group, store.objects) if row is not None]
        assert set(kinds) == {EntryKind.GROUP, EntryKind.KILO_GROUP, EntryKind.MEGA_GROUP}
        assert sum(map(len, store.objects.values())) < 100_000

    @pytest.mark.parametrize("stream", COMMITTED)
    def test_a_stream_reads_back_with_the_bytes_of_its_source(self, store: MemoryStore, stream: str) -> None:
        manifest = run(opened(store).load_manifest(stream))

        assert range(manifest.first_offset, manifest.next_offset) == COMMITTED[stream]
        assert run(bytes_of(store, stream)) == source_bytes(stream, COMMITTED[stream])

    def test_reading_may_begin_at_every_offset_and_time(self, store: MemoryStore) -> None:
        """A lookup goes through mega-group, kilo-group and group, the first of them trimmed in part."""

        async def main() -> None:
            reader = await StreamReader.open(opened(store), "orders")
            data, at = source_bytes("orders", COMMITTED["orders"]), 0
            while at < len(data):
                header = ChunkHeader.decode(data[at:], where="the source")
                for offset in range(header.offset, header.next_offset):
                    assert await reader.offset_of(AtOffset(offset)) == offset
                    assert await bytes_of(store, "orders", offset) == data[at:]
                assert await reader.offset_of(AtTime(header.timestamp_ms)) == header.offset
                at += header.size_bytes

        run(main())

    @pytest.mark.parametrize("level", VerifyLevel)
    def test_a_verify_finds_no_damage_at_any_level(self, store: MemoryStore, level: VerifyLevel) -> None:
        report = run(verify(store, level=level))

        assert report.damages == []
        left = {row.key for row in report.unreferenced if row.attempt == LEFT}
        assert left == {ORDERS.fragment(offset, LEFT) for offset in (80, 84, 92)}

    @pytest.mark.parametrize("stream", COMMITTED)
    def test_every_entry_says_what_its_object_says(self, store: MemoryStore, stream: str) -> None:
        """Also the size of the tail, which entries of that time did not have."""
        for entry in run(entries_of(store, stream)):
            key = StreamKeys(stream).fragment(entry.first_offset, entry.attempt)
            assert entry == entry_of(trailer_of(store, stream, entry), crc32c(store.objects[key]))
            assert entry.tail_size_bytes > 180

    def test_a_copy_that_the_old_program_made_is_still_marked(self, store: MemoryStore) -> None:
        assert [entry.copied for entry in run(entries_of(store, "tiny"))] == [1, 1, 1, 1, 0, 0]

    def test_a_deleted_stream_stays_deleted_until_a_sync_begins_it_again(self, store: MemoryStore) -> None:
        with pytest.raises(StreamDeleted):
            run(opened(store).load_manifest("gone"))

        run(sync(store, "gone"))

        assert run(bytes_of(store, "gone")) == source_bytes("gone", range(16))
        run(assert_sound(store))

    def test_no_flipped_bit_of_a_root_or_group_goes_unnoticed(self, store: MemoryStore) -> None:
        group = next(key for key in store.objects if ORDERS.parse_group(key))
        root = max(key for key in store.objects if key.startswith(ORDERS.roots))
        for key, decode in ((root, decode_root), (group, partial(Group.decode, stream="orders"))):
            whole = store.objects[key]
            for bit in range(len(whole) * 8):
                raw = bytearray(whole)
                raw[bit // 8] ^= 1 << bit % 8
                with pytest.raises(Corrupt):
                    decode(bytes(raw), where=key)

    def test_a_reserved_byte_of_a_root_or_group_that_is_not_zero_is_refused(self, store: MemoryStore) -> None:
        """It ends the last entry, before the checksum."""
        group = next(key for key in store.objects if ORDERS.parse_group(key))
        with pytest.raises(Corrupt, match="reserved"):
            Group.decode(resealed(store.objects[group], {-5: 1}), stream="orders", where=group)
        root = max(key for key in store.objects if key.startswith(ORDERS.roots))
        with pytest.raises(Corrupt, match="reserved"):
            decode_root(resealed(store.objects[root], {-5: 1}), where=root)

    def test_no_damaged_byte_of_a_fragment_goes_unnoticed(self, store: MemoryStore) -> None:
        entry = run(entries_of(store, "orders"))[-1]
        key = ORDERS.fragment(entry.first_offset, entry.attempt)
        whole = store.objects[key]

        async def main() -> None:
            for at in range(len(whole)):
                store.objects[key] = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
                with pytest.raises(Corrupt):
                    await check_fragment(store, key, size_bytes=len(whole))

        run(main())


class TestTheOldTierContinued:
    """Today's program writes to the old tier, and compresses."""

    def test_a_sync_adopts_what_a_crash_left_and_continues_with_compressed_fragments(
        self, store: MemoryStore
    ) -> None:
        manifest = run(sync(store))

        assert (manifest.first_offset, manifest.next_offset, manifest.running) == (28, 128, ())
        entries = run(entries_of(store, "orders"))
        adopted = [entry.first_offset for entry in entries if entry.attempt == LEFT]
        assert adopted == [80, 84, 92]
        assert {entry.codec for entry in entries if entry.first_offset < 96} == {BlockCodec.NONE}
        assert {entry.codec for entry in entries if entry.first_offset >= 96} == {BlockCodec.ZSTD}
        assert run(versions_of(store, "orders")) == [1] * 11 + [2] * (len(entries) - 11)
        run(assert_sound(store))

    def test_totals_count_old_and_new_fragments_alike(self, store: MemoryStore) -> None:
        manifest = run(sync(store))

        entries = run(entries_of(store, "orders"))
        assert manifest.fragments == len(entries)
        assert manifest.data_size_bytes == len(source_bytes("orders", range(28, 128)))
        assert manifest.stored_size_bytes == sum(entry.stored_size_bytes for entry in entries)
        assert (manifest.messages, manifest.ledgers) == (49 + 3 * 15, 4)

    @pytest.mark.parametrize("offset", [28, 60, 79, 80, 93, 95, 96, 127])
    def test_a_reader_passes_from_old_to_new_fragments(self, store: MemoryStore, offset: int) -> None:
        run(sync(store))

        data = source_bytes("orders", range(28, 128))
        tail = run(bytes_of(store, "orders", offset))
        header = ChunkHeader.decode(tail, where="the first chunk")

        assert header.offset <= offset < header.next_offset
        assert data.endswith(tail)

    def test_the_first_commit_writes_todays_root_and_keeps_the_old_groups(self, store: MemoryStore) -> None:
        before = {key: raw for key, raw in store.objects.items() if ORDERS.parse_group(key)}

        manifest = run(sync(store))

        newest = store.objects[ORDERS.root(manifest.version)]
        assert newest[4:6] == bytes([0, 3])
        assert {key: store.objects[key] for key in before} == before
        assert versions_under(store, "orders/groups/") == {1, 2}
        # Some of the new groups name old ones.
        keys = [key for key in store.objects if ORDERS.parse_group(key) and key not in before]
        made = [Group.decode(store.objects[key], stream="orders", where=key) for key in keys]
        named = {bytes(uid) for group in made for uid in group.entries["attempt"]}
        assert named & {row[2].bytes for row in map(ORDERS.parse_group, before) if row is not None}

    def test_an_idle_sync_writes_nothing(self, store: MemoryStore) -> None:
        before = dict(store.objects)

        run(sync(store, "tiny"))

        assert store.objects == before

    def test_a_reader_that_was_opened_before_reads_on(self, store: MemoryStore) -> None:
        """Meanwhile its fragments and groups are replaced and deleted."""

        async def main() -> None:
            reader = await StreamReader.open(opened(store), "orders", in_flight=1)
            async with aclosing(reader.windows(28)) as windows:
                data = bytes((await anext(windows)).data)
                await sync(store)
                assert await compact_all(store, "orders") > 0
                await sweep(store, grace_seconds=0)
                data += b"".join([bytes(window.data) async for window in windows])

            assert source_bytes("orders", range(28, 128)).startswith(data)
            assert len(data) >= len(source_bytes("orders", range(28, 80)))

        run(main())


class TestUpkeepOfTheOldTier:
    """Today's compaction, rebuild, copy, trim and sweep on the old tier."""

    @pytest.mark.parametrize("is_continued", [False, True], ids=["old", "mixed"])
    def test_a_compaction_merges_old_fragments_into_compressed_ones(
        self, store: MemoryStore, is_continued: bool
    ) -> None:
        end = 128 if is_continued else 80
        if is_continued:
            run(sync(store))
        before = run(opened(store).load_manifest("orders"))

        assert run(compact_all(store, "orders")) >= 3

        after = run(opened(store).load_manifest("orders"))
        for name in ("first_offset", "next_offset", "messages", "data_size_bytes", "ledgers"):
            assert getattr(after, name) == getattr(before, name)
        copies = [entry for entry in run(entries_of(store, "orders")) if entry.copied]
        assert {entry.codec for entry in copies} == {BlockCodec.ZSTD}
        assert {trailer_of(store, "orders", entry).version for entry in copies} == {2}
        assert run(bytes_of(store, "orders")) == source_bytes("orders", range(28, end))
        run(assert_sound(store))

    @pytest.mark.parametrize("stream", COMMITTED)
    def test_a_rebuild_of_old_fragments_alone_restores_the_stream(
        self, store: MemoryStore, stream: str
    ) -> None:
        """It also brings back what was trimmed or never committed, since that is still stored."""
        lose_roots(store, stream)

        report = run(rebuild(opened(store), stream))

        assert report.manifest is not None
        offsets = range(report.manifest.first_offset, report.manifest.next_offset)
        assert offsets == (range(96) if stream == "orders" else range(10))
        assert run(bytes_of(store, stream)) == source_bytes(stream, offsets)
        assert versions_under(store, StreamKeys(stream).roots) == {3}
        run(assert_sound(store))

    def test_a_rebuild_of_old_and_new_fragments_restores_the_stream(self, store: MemoryStore) -> None:
        before = run(sync(store))
        lose_roots(store, "orders")

        report = run(rebuild(opened(store), "orders", begin=28))

        assert report.manifest is not None
        for name in ("first_offset", "next_offset", "messages", "fragments", "stored_size_bytes"):
            assert getattr(report.manifest, name) == getattr(before, name)
        assert run(bytes_of(store, "orders")) == source_bytes("orders", range(28, 128))
        run(assert_sound(store))

    def test_a_rebuild_after_a_compaction_restores_the_stream(self, store: MemoryStore) -> None:
        """Old fragments and the compressed copies of them are both stored."""
        run(sync(store))
        run(compact_all(store))
        for stream, end in (("orders", 128), ("tiny", 10)):
            lose_roots(store, stream)

            assert run(rebuild(opened(store), stream)).manifest is not None

            assert run(bytes_of(store, stream)) == source_bytes(stream, range(end))
        run(assert_sound(store))

    def test_a_rebuild_joins_old_fragments_with_a_stream_that_was_begun_again(
        self, store: MemoryStore
    ) -> None:
        """The chunks of both are compared, and those that the old history lacks are copied into it."""
        old = run(opened(store).load_manifest("orders"))
        again = MemoryStore()

        async def begin_again() -> None:
            writer = await StreamWriter.claim(opened(again), "orders", first_offset=32)
            await writer.offload([MemoryHandle([source_bytes("orders", range(32, 128))])])

        run(begin_again())
        left = {key: raw for key, raw in store.objects.items() if key.startswith(ORDERS.data)}
        store.objects = again.objects | left

        report = run(rebuild(opened(store), "orders", incarnation=old.incarnation))

        assert report.manifest is not None
        assert report.manifest.incarnation == old.incarnation
        assert (report.behind[0].first_offset, report.behind[-1].next_offset) == (96, 128)
        assert run(versions_of(store, "orders")) == [1] * 14 + [2] * len(report.behind)
        assert run(bytes_of(store, "orders")) == source_bytes("orders", range(128))
        run(assert_sound(store))

    @pytest.mark.parametrize("is_continued", [False, True], ids=["old", "mixed"])
    def test_a_copy_of_the_tier_has_the_same_chunks_in_compressed_fragments(
        self, store: MemoryStore, is_continued: bool
    ) -> None:
        if is_continued:
            run(sync(store))
        target = MemoryStore()

        done = run(no_errors(copy(opened(store), opened(target, fragment_size_bytes=LARGE), verify=True)))

        assert {report.stream for report in done if not report.note} == {"orders", "tiny"}
        for stream in COMMITTED:
            assert run(bytes_of(target, stream)) == run(bytes_of(store, stream))
            assert set(run(versions_of(target, stream))) == {2}
            assert {entry.codec for entry in run(entries_of(target, stream))} == {BlockCodec.ZSTD}
        run(assert_sound(target))

    def test_a_copy_continues_in_a_target_that_the_old_program_wrote(self, store: MemoryStore) -> None:
        """The old tier is a copy of the stream up to 80; the source tier is ahead of it."""
        ahead, target = MemoryStore(), store
        run(sync(ahead))

        run(no_errors(copy(opened(ahead), opened(target), streams=["orders"], verify=True)))

        assert run(bytes_of(target, "orders")) == source_bytes("orders", range(28, 128))
        assert 1 in run(versions_of(target, "orders"))
        assert 2 in run(versions_of(target, "orders"))
        run(assert_sound(target))

    def test_a_sweep_deletes_only_what_the_old_program_left_unused(self, store: MemoryStore) -> None:
        """Objects that run, are named, or are above a live group stay."""
        fragments, named = fragments_in(store, "orders"), run(entries_of(store, "orders"))
        live = {(entry.first_offset, entry.attempt) for entry in named}

        report = run(sweep(store, grace_seconds=0))

        assert report.errors == []
        assert fragments_in(store, "orders") == live | {(offset, LEFT) for offset in (80, 84, 92)}
        assert {offset for offset, _ in fragments - fragments_in(store, "orders")} == {0, 12, 20}
        assert len(fragments_in(store, "tiny")) == 6
        gone = [key for key in store.objects if key.startswith("gone/")]
        assert gone == ["gone/stream.anchor", StreamKeys("gone").root(4)]
        run(assert_sound(store))
        for stream, offsets in COMMITTED.items():
            assert run(bytes_of(store, stream)) == source_bytes(stream, offsets)

    def test_a_sweep_takes_over_the_notes_of_the_older_program(self, store: MemoryStore) -> None:
        """Their grace is over. `orders` was never swept, so its objects wait."""
        before = fragments_in(store, "orders")

        run(sweep(store))

        assert fragments_in(store, "orders") == before
        assert len(fragments_in(store, "tiny")) == 6
        assert fragments_in(store, "gone") == set()
        run(assert_sound(store))

    @pytest.mark.parametrize("before_offset", [48, 60, 80, 100])
    def test_a_trim_and_a_sweep_delete_the_oldest_fragments(
        self, store: MemoryStore, before_offset: int
    ) -> None:
        run(sync(store))
        starts = [entry.first_offset for entry in run(entries_of(store, "orders"))]

        report = run(trim(opened(store), "orders", Retention(before_offset=before_offset)))
        run(sweep(store, grace_seconds=0))

        first = report.manifest.first_offset
        assert first == max(start for start in starts if start <= before_offset)
        kept = {offset for offset, _ in fragments_in(store, "orders")}
        assert kept == {start for start in starts if start >= first}
        assert run(bytes_of(store, "orders")) == source_bytes("orders", range(first, 128))
        run(assert_sound(store))


class TestObjectsOfALaterProgram:
    """A tier that a later program wrote in part, before all roots were lost, or with sound roots."""

    def test_a_rebuild_refuses_a_fragment_of_a_later_version(self, store: MemoryStore) -> None:
        """A manifest without the newest fragments would hide them."""
        lose_roots(store, "orders")
        key = ORDERS.fragment(92, LEFT)
        whole = store.objects[key]
        store.objects[key] = whole[:-180] + resealed(whole[-180:], {5: 9})
        before = dict(store.objects)

        with pytest.raises(UnsupportedFormat, match=f"{key}: trailer has format version 9.*upgrade"):
            run(rebuild(opened(store), "orders"))

        assert store.objects == before

    def test_a_rebuild_refuses_a_root_of_a_later_version(self, store: MemoryStore) -> None:
        """The root is sound, so nobody should move it away."""
        key = max(key for key in store.objects if key.startswith(ORDERS.roots))
        store.objects[key] = resealed(store.objects[key], {5: 9})

        with pytest.raises(UnsupportedFormat, match=f"{key}: root has format version 9.*upgrade"):
            run(rebuild(opened(store), "orders"))
