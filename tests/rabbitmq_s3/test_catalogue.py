"""Buckets of rabbitmq-stream-s3, read in place."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from command_line import offload
from offload_rabbitmq_s3 import RabbitmqKey, RabbitmqS3Catalogue
from offload_rabbitmq_s3.roots import given_roots
from rabbitmq_s3_bucket import (
    CHUNK,
    DATA,
    MANIFEST,
    STREAM,
    Bucket,
    Named,
    bodies_of,
    header_of,
    manifest_of,
)
from spark.in_process import Tier

from offload import StreamReader
from offload.contracts.events import Skipped
from offload.contracts.store import Body, ObjectStore
from offload.ground.errors import Absent, Corrupt, Misuse, NotOffloaded, UnsupportedFormat
from offload.model.position import AtTime
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload.upkeep.verify.tier import verify

URL = "rabbitmq+memory://b"


def tier_of(store: ObjectStore, **given: Any) -> RabbitmqS3Catalogue:
    return RabbitmqS3Catalogue(store, URL, **given)


class Counting(StoreDecorator):
    """A store that counts the requests of readers, and the bytes that they get."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()
        self.size_bytes = 0

    async def get(self, key: str, span: Any = None) -> Any:
        self.requests["get"] += 1
        found = await super().get(key, span)
        self.size_bytes += len(found)
        return found

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Any]:
        self.requests["list"] += 1
        return super().list(prefix, after=after)

    def taken(self) -> tuple[dict[str, int], int]:
        """Return what was counted, and begin again."""
        found = dict(self.requests), self.size_bytes
        self.requests.clear()
        self.size_bytes = 0
        return found


async def chunks_from(tier: RabbitmqS3Catalogue, offset: int = 0, stream: str = STREAM) -> bytes:
    """Return all chunks from the one that holds an offset, as a reader gets them."""
    reader = await StreamReader.open(tier, stream)
    async with aclosing(reader.windows(max(offset, reader.manifest.first_offset))) as windows:
        return b"".join([bytes(window.data) async for window in windows])


async def bodies_from(tier: RabbitmqS3Catalogue, offset: int = 0) -> list[bytes]:
    reader = await StreamReader.open(tier, STREAM)
    return [bytes(body) async for batch in reader.messages(offset) for body in batch.bodies]


# The data of the generator


@pytest.mark.parametrize("name", MANIFEST)
def test_a_bucket_of_the_generator_is_read_as_its_manifest_says(name: str, tmp_path: Path) -> None:
    told, url = MANIFEST[name], f"rabbitmq+file://{DATA / name}"
    [row] = offload("ls", url, "--json").objects
    printed = offload("read", url, told["stream"], "--from", "0")
    verified = offload("verify", url, "--json")
    shown = offload("inspect", url, told["stream"], "--json").document

    assert row["messages"] == told["next_offset"] - told["first_offset"]
    assert (row["first_offset"], row["next_offset"]) == (told["first_offset"], told["next_offset"])
    assert row["bytes"] == told["total_size"]
    assert (printed.code, len(printed.lines)) == (0, told["messages"])
    assert (verified.code, verified.document["damages"]) == (0, [])
    assert verified.document["bytes"] == told["total_size"]
    assert {each["object"] for each in [*shown["groups"], *shown["fragments"]]} <= {*told["objects"]}
    assert ("note: stream" in printed.stderr) == (name == "batches")


@pytest.mark.parametrize("name", MANIFEST)
def test_the_chunks_of_a_bucket_are_those_of_the_generator(name: str) -> None:
    async def main() -> None:
        tier, told = tier_of(await loaded(name)), MANIFEST[name]

        data = await chunks_from(tier, stream=told["stream"])

        assert hashlib.sha256(data).hexdigest() == told["sha256_of_chunks"]
        for offset in range(0, told["next_offset"], max(told["next_offset"] // 50, 1)):
            found = await chunks_from(tier, offset, told["stream"])
            assert data.endswith(found)
            begin, end, _ = header_of(found)
            assert begin <= offset < end

    asyncio.run(main())


def test_arrow_and_spark_read_and_count_the_messages_of_a_bucket() -> None:
    import offload as package

    told = MANIFEST["batches"]
    with package.open(f"rabbitmq+file://{DATA / 'batches'}") as found:
        stream = found[told["stream"]]
        assert stream.count() == stream.to_arrow(columns=["offset"]).num_rows == told["messages"]
    store = asyncio.run(loaded("batches"))
    tier = Tier(make=lambda: tier_of(store))
    with tier.blocking:
        rows = tier.rows(tier.plan(stream=told["stream"], minpartitions="5"))
    assert len(rows) == told["messages"]


async def loaded(name: str) -> MemoryStore:
    """Return a bucket of the generator in memory."""
    store = MemoryStore()
    for path in (DATA / name).rglob("*"):
        if path.is_file():
            await store.put(str(path.relative_to(DATA / name)), Body.of(path.read_bytes()))
    return store


# Groups, trims and roots


def test_a_stream_is_read_from_every_offset_and_time_at_any_depth_of_groups() -> None:
    async def main() -> None:
        for count in (1, 2, 3, 10, 28):
            bucket = Bucket(branching=3)
            for _ in range(count):
                await bucket.append(bucket.messages(3))
            tier = tier_of(bucket.store)
            whole = b"".join(bucket.chunks)
            assert (
                max(each.kind for each in bucket.entries) == (0, 0, 1, 2, 3)[(1, 2, 3, 10, 28).index(count)]
            )
            reader = await StreamReader.open(tier, STREAM)
            for chunk in bucket.chunks[:: count // 9 + 1]:
                begin, end, time_ms = header_of(chunk)
                expected = whole[whole.index(chunk) :]
                for offset in range(begin, end):
                    assert await chunks_from(tier, offset) == expected
                assert await reader.offset_of(AtTime(time_ms)) == begin

    asyncio.run(main())


def test_a_trim_within_a_group_leaves_its_dead_children_out() -> None:
    async def main() -> None:
        bucket = Bucket(branching=3)
        for _ in range(20):
            await bucket.append(bucket.messages(2))
        for _ in range(20):
            await bucket.trim(1)
            tier = tier_of(bucket.store)
            view = await tier.view(STREAM)
            assert (view.committed.first_offset, view.committed.next_offset) == (bucket.first, bucket.next)
            assert await chunks_from(tier) == b"".join(bucket.chunks)
            assert (await verify(tier)).damages == []
            for offset in range(bucket.first, bucket.next):
                found = await view.find(offset)
                assert found is not None
                assert found.first_offset <= offset < found.next_offset
            assert await view.find(bucket.first - 1) is None
        assert bucket.first == bucket.next
        assert view.committed.messages == 0

    asyncio.run(main())


def test_the_root_of_the_highest_epoch_and_then_of_the_highest_offsets_is_read() -> None:
    async def main() -> None:
        bucket = Bucket(epoch=2)
        for _ in range(12):  # by uid alone, the newest would not come out on top each time
            await bucket.append(bucket.messages(2))
        await bucket.trim(1)
        older = await tier_of(bucket.store).root(STREAM)
        later = Bucket(store=bucket.store, epoch=3)
        await later.append(later.messages(1))
        tier = tier_of(bucket.store)
        first = older.key

        assert (older.manifest.next_offset, older.manifest.first_offset) == (bucket.next, bucket.first)
        assert len(older.rivals) == 12
        assert await chunks_from(tier) == b"".join(later.chunks)
        [note] = [note for note in tier.notes if "root 3." in note]
        assert "and 8 more" in note
        given = tier_of(bucket.store, roots={STREAM: first})
        assert await chunks_from(given) == b"".join(bucket.chunks)
        assert any("as option root says" in note for note in given.notes)

    asyncio.run(main())


def test_a_root_is_named_by_stream_epoch_and_uid() -> None:
    key = RabbitmqKey("__a=_1", None, 12, 0xAB)

    assert given_roots({"root": "__a=_1:12.000000ab"}) == {"__a=_1": key}
    assert set(given_roots({"root": "a:1.000000ab,b:2.000000cd"})) == {"a", "b"}
    for wrong in ("a", "a:1", "a:01.000000ab", ":1.000000ab", "../a:1.000000ab", "a:1.ab", "a:1.000000ab,"):
        with pytest.raises(Misuse, match=r"STREAM:EPOCH\.UID"):
            given_roots({"root": wrong})


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("__absent_1:1.00000001", "has no stream '__absent_1'; it has __batches_1795000000000000000, "),
        (
            "__batches_1795000000000000000:9.00000001",
            "9.00000001 of stream '__batches_1795000000000000000'; it has 1.1fb17c23, 1.a170b338, 0.39263059",
        ),
        (
            "__batches_17950000000000000009:9.00000001",
            "9.00000001 of stream '__batches_17950000000000000009'; it has none",
        ),
    ],
)
def test_a_given_root_that_is_absent_stops_each_command_whichever_stream_it_reads(
    root: str, says: str, tmp_path: Path
) -> None:
    url, target = f"rabbitmq+file://{DATA / 'batches'}", tmp_path / "tier"
    for ran in (
        offload("ls", url, "--option", f"root={root}"),
        offload("read", url, "batches", "--option", f"root={root}"),
        offload("read", url, MANIFEST["batches"]["stream"], "--option", f"root={root}"),
        offload("sync", url, str(target), "--source-option", f"root={root}"),
    ):
        assert (ran.code, ran.stdout) == (1, b"")
        assert len(ran.stderr.splitlines()) == 1
        assert says in ran.stderr
    assert not target.exists()


def test_a_given_root_that_is_absent_is_an_error_of_a_catalogue_that_nobody_opened() -> None:
    async def main() -> None:
        bucket = Bucket()
        for _ in range(7):
            await bucket.append(bucket.messages(1))
        for stream, says in (
            (STREAM, r"no root 9\.00000001 .* has (1\.\w{8},? ){5}and 2 more$"),
            ("__absent_1", "no stream '__absent_1'"),
        ):
            tier = tier_of(bucket.store, roots={stream: RabbitmqKey(stream, None, 9, 1)})
            for _ in range(2):
                with pytest.raises(NotOffloaded, match=says):
                    await tier.view(STREAM)

    asyncio.run(main())


def test_a_given_root_is_looked_for_once() -> None:
    async def main() -> None:
        bucket, other = Bucket(), Bucket(stream="__other_1")
        await bucket.append(bucket.messages(1))
        other.store = bucket.store
        await other.append(other.messages(1))
        store = Counting(bucket.store)
        tier = tier_of(store, roots={STREAM: (await tier_of(bucket.store).root(STREAM)).key})
        await tier.open()
        store.taken()
        await tier.view("__other_1")

        assert store.taken()[0] == {"list": 1, "get": 1}

    asyncio.run(main())


def test_a_group_of_another_root_at_the_same_offset_is_another_group() -> None:
    """One process reads both roots, so it has the group of the other root at hand."""

    async def main() -> None:
        first = Bucket()
        second = Bucket(store=first.store, epoch=2, random=random.Random(8))
        tier = tier_of(first.store)
        for bucket in (first, second):
            for _ in range(3):
                await bucket.append(bucket.messages(2))
            [group] = bucket.entries
            assert (group.kind, group.offset) == (1, 0)
            assert await chunks_from(tier) == b"".join(bucket.chunks)
        assert first.chunks != second.chunks

    asyncio.run(main())


def test_the_layout_is_named_if_it_is_missing_in_the_url(tmp_path: Path) -> None:
    error = offload("ls", str(DATA / "batches")).error

    assert "is no tier" in error
    assert error.endswith("; it has objects of rabbitmq+file://: put that before it")
    assert "objects of" not in offload("ls", tmp_path).error


def test_only_a_verify_says_what_a_bucket_cannot_prove() -> None:
    url = f"rabbitmq+file://{DATA / 'tiny'}"

    assert offload("ls", url).stderr == offload("read", url, "tiny").stderr == ""
    assert "note: not proved: the bucket has checksums of messages alone" in offload("verify", url).stderr


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.mkdir()

    assert f"there is no folder {absent}" in offload("ls", f"rabbitmq+file://{absent}").stderr
    assert offload("ls", f"rabbitmq+file://{empty}").stderr.endswith("below rabbitmq/stream/\n")


def test_a_later_state_has_a_higher_version_and_the_same_incarnation() -> None:
    async def main() -> None:
        bucket, seen = Bucket(), []
        tier = tier_of(bucket.store)
        for step in ("append", "append", "trim", "depose"):
            if step == "append":
                await bucket.append(bucket.messages(3))
            elif step == "trim":
                await bucket.trim(1)
            else:  # the history is cut, and begins anew at a lower offset
                bucket.epoch, bucket.entries, bucket.first, bucket.next = 2, [], 0, 0
                await bucket.persist()
            seen.append((await tier.view(STREAM)).committed)

        versions = [each.version for each in seen]
        assert versions == sorted({*versions})
        assert len({each.incarnation for each in seen}) == 1

    asyncio.run(main())


# Changes under a reader


def test_a_fragment_that_retention_deleted_is_skipped_and_reported() -> None:
    async def main() -> None:
        bucket, events = Bucket(branching=3), list[Any]()
        for _ in range(9):
            await bucket.append(bucket.messages(2))
        tier = tier_of(bucket.store)
        reader = await StreamReader.open(tier, STREAM, emit=events.append)
        await bucket.trim(5)
        kept = bodies_of(bucket.chunks)

        found = [bytes(body) async for batch in reader.messages(0) for body in batch.bodies]

        assert found[-len(kept) :] == kept
        assert [event.to_offset for event in events if isinstance(event, Skipped)] == [bucket.first]

    asyncio.run(main())


def test_a_fragment_or_a_group_that_the_newest_root_names_and_that_is_lost_is_damage() -> None:
    async def main() -> None:
        for folder in ("data", "metadata/0"):
            bucket = Bucket(branching=3)
            for _ in range(4):
                await bucket.append(bucket.messages(2))
            lost = min([row.key async for row in bucket.store.list(bucket.prefix + folder)])
            await bucket.store.delete([lost])

            with pytest.raises(Absent, match=lost):
                await bodies_from(tier_of(bucket.store))
            report = await verify(tier_of(bucket.store))
            assert [damage.where for damage in report.damages] == [lost] or "metadata" in folder
            assert len(report.damages) == 1

    asyncio.run(main())


def test_a_root_that_is_replaced_between_listing_and_read_is_looked_for_again() -> None:
    class Replacing(StoreDecorator):
        """A store that deletes the root that is asked for, once, as a broker's garbage collection does."""

        is_new = True

        async def get(self, key: str, span: Any = None) -> Any:
            if "/root." in key and self.is_new:
                self.is_new = False
                await self.inner.delete([key])
                await bucket.append(bucket.messages(1))
            return await super().get(key, span)

    bucket = Bucket()

    async def main() -> None:
        await bucket.append(bucket.messages(1))
        assert await chunks_from(tier_of(Replacing(bucket.store))) == b"".join(bucket.chunks)

    asyncio.run(main())


# What a reader costs


def test_opening_at_an_offset_costs_one_list_and_one_get_and_one_get_for_each_group() -> None:
    async def main() -> None:
        bucket = Bucket(branching=3)
        for _ in range(29):
            await bucket.append(bucket.messages(2))
        keys = [row.key async for row in bucket.store.list(bucket.prefix + "metadata/root.")]
        newest = str((await tier_of(bucket.store).root(STREAM)).key)
        await bucket.store.delete([key for key in keys if key != newest])
        store = Counting(bucket.store)
        tier = tier_of(store)

        view = await tier.view(STREAM)
        assert store.taken()[0] == {"list": 1, "get": 1}
        assert [each.kind for each in bucket.entries] == [3, 0, 0]
        await view.find(bucket.next - 1)
        assert store.taken()[0] == {}
        deep = await view.find(0)
        assert store.taken()[0] == {"get": 3}
        assert deep is not None
        await view.find(1)
        assert store.taken()[0] == {}, "groups are kept"

    asyncio.run(main())


@pytest.mark.parametrize(("records", "gets", "most"), [(2, 1, 0.1), (1, 2, 1.2)])
def test_a_table_costs_its_index_and_the_headers_of_chunks_of_one_record(
    records: int, gets: int, most: float
) -> None:
    async def main() -> None:
        bucket = Bucket()
        chunks = [bucket.chunk([b"y" * 300] * records, offset=at * records, time_ms=at) for at in range(500)]
        await bucket.append(chunks)
        store = Counting(bucket.store)
        view = await tier_of(store).view(STREAM)
        entry = await view.find(0)
        assert entry is not None
        store.taken()

        table = await (await view.open(entry)).table()

        requests, size_bytes = store.taken()
        assert requests == {"get": gets}
        assert size_bytes < 20 * 500 + most * entry.data_size_bytes
        assert len(table) == 500

    asyncio.run(main())


def test_headers_far_apart_are_read_without_what_is_between_them() -> None:
    async def main() -> None:
        bucket = Bucket()
        large = bucket.chunk([b"z" * 2**20, b"z" * 2**20], offset=1, time_ms=1)
        one = bucket.chunk([b"a"], offset=0, time_ms=0)
        await bucket.append([one, large, bucket.chunk([], offset=3, time_ms=2)])
        store = Counting(bucket.store)
        view = await tier_of(store).view(STREAM)
        store.taken()
        entry = await view.find(0)
        assert entry is not None

        table = await (await view.open(entry)).table()

        assert table["type"].tolist() == [0, 0, 1]
        assert store.taken() == ({"get": 3}, 3 * 20 + 2 * 48)

    asyncio.run(main())


# Bad input


def test_a_flipped_bit_is_found_or_is_in_the_list_of_what_nothing_proves() -> None:
    """In each byte of a small bucket, one bit. No reader ever gets another message."""

    async def main() -> None:
        bucket = Bucket(branching=2)
        for _ in range(3):
            await bucket.append(bucket.messages(3))
        newest = (await tier_of(bucket.store).root(STREAM)).key
        roots = [row.key async for row in bucket.store.list(bucket.prefix + "metadata/root.")]
        await bucket.store.delete([key for key in roots if key != str(newest)])
        expected, unproved = bodies_of(bucket.chunks), Counter[str]()
        for row in [row async for row in bucket.store.list("")]:
            raw = bytes(await bucket.store.get(row.key))
            for at in range(len(raw)):
                changed = bytearray(raw)
                changed[at] ^= 1 << at % 8
                await bucket.store.put(row.key, Body.of(bytes(changed)))
                report = await verify(tier_of(bucket.store))
                if not report.damages and not report.unchecked:
                    unproved[place_of(row.key, at, raw)] += 1
                    assert await bodies_from(tier_of(bucket.store)) == expected
            await bucket.store.put(row.key, Body.of(raw))
        assert {*unproved} == {"epoch of the first or the last chunk"}

    asyncio.run(main())


def place_of(key: str, at: int, raw: bytes) -> str:
    """Name the part of an object that a byte is in."""
    if key.endswith("fragment"):
        start = 8
        while start + 48 <= len(raw) and raw[start] == 0x50:
            *_, size, trailer, filtered = CHUNK.unpack_from(raw, start)
            end = start + 48 + size + trailer + filtered
            if start + 16 <= at < start + 24:
                is_inner = start > 8 and raw[end] == 0x50
                return (
                    "epoch of a chunk between others" if is_inner else "epoch of the first or the last chunk"
                )
            start = end
    return f"{key.rpartition('.')[2]} at byte {at}"


def test_a_group_that_names_itself_or_a_higher_kind_is_damage() -> None:
    async def main() -> None:
        for kind in (1, 2, 3):
            bucket = Bucket()
            await bucket.append(bucket.messages(2))
            [entry] = bucket.entries
            group = Named(0, entry.first_ms, entry.last_ms, 1, 0, 5)
            itself = Named(0, entry.first_ms, entry.last_ms, kind, 0, 5)
            await bucket.put("metadata/00000000000000000000.00000005.group", manifest_of(1, [itself]))
            root = manifest_of(0, [group], (bucket.next, entry.last_ms, entry.size))
            bucket.epoch = 2
            await bucket.put("metadata/root.2.00000001.manifest", root)

            with pytest.raises(Corrupt, match="entry 0"):
                await bodies_from(tier_of(bucket.store))

    asyncio.run(main())


@pytest.mark.parametrize("total", [-1, 1])
def test_a_total_size_that_the_fragments_do_not_have_is_damage(total: int) -> None:
    async def main() -> None:
        bucket = Bucket(branching=2)
        for _ in range(5):
            await bucket.append(bucket.messages(2))
        size = sum(each.size for each in bucket.fragments())
        bucket.epoch = 2
        last_ms = bucket.fragments()[0].last_ms
        root = manifest_of(0, bucket.entries, (bucket.next, last_ms, size + total))
        await bucket.put("metadata/root.2.00000001.manifest", root)

        [damage] = (await verify(tier_of(bucket.store))).damages

        assert damage.what == "total size"

    asyncio.run(main())


def test_two_fragments_that_were_swapped_are_found() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.append(bucket.messages(2))
        await bucket.append(bucket.messages(2))
        keys = [row.key async for row in bucket.store.list(bucket.prefix + "data/")]
        first, second = [bytes(await bucket.store.get(key)) for key in keys]
        await bucket.store.put(keys[0], Body.of(second))
        await bucket.store.put(keys[1], Body.of(first))

        assert len((await verify(tier_of(bucket.store))).damages) == 2

    asyncio.run(main())


def test_a_fragment_cut_at_any_byte_or_with_more_bytes_is_damage() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.append(bucket.messages(3))
        [key] = [row.key async for row in bucket.store.list(bucket.prefix + "data/")]
        raw = bytes(await bucket.store.get(key))
        for changed in [*(raw[:stop] for stop in range(len(raw))), raw + b"\0", raw + raw[-20:]]:
            await bucket.store.put(key, Body.of(changed))
            with pytest.raises((Corrupt, UnsupportedFormat)):
                await bodies_from(tier_of(bucket.store))

    asyncio.run(main())


def test_streams_beside_strangers_are_listed_and_one_without_a_root_is_not_there() -> None:
    async def main() -> None:
        store = MemoryStore()
        names = ["__a=_1", "__a=_10", "x" * 250]
        for name in names:
            bucket = Bucket(store=store, stream=name)
            await bucket.append(bucket.messages(2))
        for stranger in (
            "README",
            "rabbitmq/README",
            "rabbitmq/stream/file",
            "rabbitmq/stream/a b/x",
            "other/x",
        ):
            await store.put(stranger, Body.of(b"?"))
        for stranger in ("data/x", "metadata/root.x", "metadata/root.9.zz.manifest"):
            await store.put(f"rabbitmq/stream/__a=_1/{stranger}", Body.of(b"?"))
        await store.put("rabbitmq/stream/begun/data/x", Body.of(b"?"))
        tier = tier_of(store)

        assert await tier.streams() == sorted([*names, "begun"])
        for name in names:
            assert (await tier.view(name)).committed.stream == name
        for absent in ("begun", "__a=", "a/../__a=_1", "", "a b", "\0"):
            with pytest.raises(NotOffloaded):
                await tier.view(absent)

    asyncio.run(main())


def test_a_stream_of_the_first_generation_is_named_and_refused() -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.put("rabbitmq/stream/__old_1/metadata/manifest", Body.of(b"OSIR\0\0\0\1" + bytes(25)))

        with pytest.raises(UnsupportedFormat, match="metadata/manifest is of an older generation"):
            await tier_of(store).view("__old_1")

    asyncio.run(main())


def test_a_size_that_only_an_entry_states_allocates_nothing() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.append(bucket.messages(1))
        [entry] = bucket.entries
        size = 2**32
        lie = Named(0, entry.first_ms, entry.last_ms, 0, size, entry.uid)
        bucket.epoch = 2
        await bucket.put("metadata/root.2.00000001.manifest", manifest_of(0, [lie], (2**40, 0, size)))
        store = Counting(bucket.store)

        with pytest.raises(Corrupt, match="size of the index"):
            await bodies_from(tier_of(store))
        assert store.taken()[1] < 1000

    asyncio.run(main())


def test_nothing_in_the_bucket_can_be_changed_through_the_tier() -> None:
    async def main() -> None:
        tier = tier_of(MemoryStore())
        with pytest.raises(Misuse, match="never changed"):
            await tier.store.put("rabbitmq/x", Body.of(b""))

    asyncio.run(main())
