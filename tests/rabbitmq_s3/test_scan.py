"""`offload rabbitmq-s3 scan`: what a bucket lacks, and what no manifest in it names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from command_line import offload
from offload_rabbitmq_s3 import RabbitmqS3Catalogue
from offload_rabbitmq_s3.scanning import RabbitmqS3Scan, ScannedStream, scan_bucket
from rabbitmq_s3_bucket import DATA, MANIFEST, STREAM, Bucket

from offload.contracts.store import Body, ObjectStore
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator


async def scanned(store: ObjectStore) -> tuple[ScannedStream, RabbitmqS3Scan]:
    found = RabbitmqS3Scan()
    await scan_bucket(RabbitmqS3Catalogue(store, "rabbitmq+memory://b"), found)
    return found.streams[0], found


def reasons(stream: ScannedStream) -> dict[str, str]:
    return {one.key.rpartition("/")[2]: one.reason for one in stream.unused}


def test_each_planted_object_is_named_once_with_its_reason() -> None:
    ran = offload("rabbitmq-s3", "scan", f"rabbitmq+file://{DATA / 'batches'}", "--json")

    stream, other = ran.document["streams"]
    assert (ran.code, stream["missing"], stream["error"]) == (0, [], None)
    assert stream["root"] == MANIFEST["batches"]["root"]
    assert {one["object"].rpartition("/")[2]: one["reason"] for one in stream["unused"]} == {
        "00000000000000000000.f28c105d.fragment": "other cut of the same offsets",
        "00000000000000012270.953f48f1.fragment": "behind the next offset: perhaps under way",
        "00000000000000000000.a09f76b5.group": "group without a parent",
        "root.0.39263059.manifest": "older epoch",
        "root.1.a170b338.manifest": "older root",
    }
    assert len(stream["unused"]) == 5
    assert (other["root"], other["objects"]) == (None, 0)
    assert ran.document["strangers"]["objects"] == 3


def test_people_see_a_row_for_each_stream_and_a_line_for_each_object() -> None:
    ran = offload("rabbitmq-s3", "scan", str(DATA / "batches"))

    assert "1.1fb17c23\t0\t12270\t34" in ran.text
    assert "UNUSED " in ran.text
    assert "1 object, 171.7 KiB: other cut of the same offsets" in ran.text
    assert "3 objects of others" in ran.stderr


@pytest.mark.parametrize("prefix", ["", "rabbitmq+file://"])
def test_another_root_can_be_given(prefix: str) -> None:
    stream = MANIFEST["batches"]["stream"]
    scan = ("rabbitmq-s3", "scan", f"{prefix}{DATA / 'batches'}", "--json", "--option")

    given = offload(*scan, f"root={stream}:1.a170b338").document["streams"][0]
    absent = offload(*scan, f"root={stream}:9.00000001")

    assert given["root"].endswith("root.1.a170b338.manifest")
    newest = [one["reason"] for one in given["unused"] if one["object"] == MANIFEST["batches"]["root"]]
    assert newest == ["newer root"]
    assert (absent.code, "has no root 9.00000001" in absent.error) == (1, True)


def test_a_trimmed_group_that_the_root_names_is_in_use_and_its_dead_children_are_not() -> None:
    async def main() -> None:
        bucket = Bucket(branching=3)
        for _ in range(12):
            await bucket.append(bucket.messages(2))
        dead = bucket.fragments()[0]
        raw = await bucket.store.get(f"{bucket.prefix}data/{dead.offset:020d}.{dead.uid:08x}.fragment")
        await bucket.trim(4)
        await bucket.put(f"data/{dead.offset:020d}.{dead.uid:08x}.fragment", bytes(raw))
        leading = bucket.entries[0]
        below = bucket.groups[leading.uid][0]
        assert (leading.kind, below.kind) == (2, 1)
        stream, found = await scanned(bucket.store)

        assert not found.is_bad
        unused = {name: why for name, why in reasons(stream).items() if "root" not in why}
        assert unused == {
            f"{dead.offset:020d}.{dead.uid:08x}.fragment": "below the first offset",
            f"{below.offset:020d}.{below.uid:08x}.group": "below the first offset",
        }

    asyncio.run(main())


def test_what_a_crash_leaves_is_named() -> None:
    async def main() -> None:
        bucket = Bucket(branching=3)
        await bucket.append(bucket.messages(2))
        begun = await bucket.upload(bucket.messages(2))
        bucket.epoch = 2
        await bucket.append(bucket.messages(1))

        stream, found = await scanned(bucket.store)

        assert (
            reasons(stream)[f"{begun.offset:020d}.{begun.uid:08x}.fragment"]
            == "other cut of the same offsets"
        )
        assert sorted(reasons(stream).values()) == ["older epoch", "other cut of the same offsets"]
        assert [(count, size > 0) for _, count, size in found.totals()] == [(1, True)] * 2

    asyncio.run(main())


@pytest.mark.parametrize("folder", ["data/", "metadata/0"])
def test_a_lost_object_is_missing_and_gives_exit_code_1(folder: str, tmp_path: Path) -> None:
    async def main() -> str:
        bucket = Bucket(branching=3)
        for _ in range(4):
            await bucket.append(bucket.messages(2))
        lost = min([row.key async for row in bucket.store.list(bucket.prefix + folder)])
        async for row in bucket.store.list(""):
            if row.key != lost:
                path = tmp_path / row.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(await bucket.store.get(row.key))
        return lost

    lost = asyncio.run(main())
    ran = offload("rabbitmq-s3", "scan", str(tmp_path))

    assert ran.code == 1
    assert f"MISSING {lost}: absent" in ran.text
    # With a lost group, nothing shows which fragments are in use.
    assert ("UNUSED" in ran.text) == (folder == "data/")


def test_a_fragment_of_another_size_is_missing_data() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.append(bucket.messages(2))
        key = min([row.key async for row in bucket.store.list(bucket.prefix + "data/")])
        raw = bytes(await bucket.store.get(key))
        await bucket.store.put(key, Body.of(raw[:-1]))

        stream, found = await scanned(bucket.store)

        assert [(one.key, one.reason) for one in stream.missing] == [(key, "of another size")]
        assert found.is_bad

    asyncio.run(main())


def test_a_stream_with_a_damaged_root_is_not_judged() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.append(bucket.messages(2))
        key = await bucket.persist()
        for row in [row async for row in bucket.store.list(bucket.prefix + "metadata/root.")]:
            if row.key != key:
                await bucket.store.delete([row.key])
        await bucket.store.put(key, Body.of(b"OSIR"))

        stream, found = await scanned(bucket.store)

        assert (stream.unused, found.is_bad) == ([], True)
        assert stream.error is not None

    asyncio.run(main())


def test_a_trim_during_the_scan_is_no_loss() -> None:
    class Trimming(StoreDecorator):
        """A bucket whose retention runs between the read of the root and the listing."""

        is_new = True

        def list(self, prefix: str, *, after: str = "") -> Any:
            return (
                self.trimmed(prefix, after) if prefix == bucket.prefix else super().list(prefix, after=after)
            )

        async def trimmed(self, prefix: str, after: str) -> Any:
            if self.is_new:
                self.is_new = False
                await bucket.trim(2)
            async for row in self.inner.list(prefix, after=after):
                yield row

    bucket = Bucket(branching=3)

    async def main() -> None:
        for _ in range(5):
            await bucket.append(bucket.messages(2))
        stream, found = await scanned(Trimming(bucket.store))

        assert not found.is_bad
        assert stream.first_offset == bucket.first

    asyncio.run(main())


def test_a_stream_without_a_root_is_listed_with_its_objects() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.upload(bucket.messages(2))
        stream, found = await scanned(bucket.store)

        assert (stream.stream, stream.root, list(reasons(stream).values())) == (STREAM, None, ["no root"])
        assert not found.is_bad

    asyncio.run(main())


def test_a_place_without_a_stream_is_an_error(tmp_path: Path) -> None:
    ran = offload("rabbitmq-s3", "scan", str(tmp_path))

    assert ran.code == 1
    assert "has no stream below rabbitmq/stream/" in ran.stderr


def test_a_scan_changes_nothing() -> None:
    async def main() -> None:
        store = MemoryStore()
        bucket = Bucket(store=store)
        await bucket.append(bucket.messages(2))
        before = dict(store.objects)
        await scanned(store)

        assert store.objects == before

    asyncio.run(main())
