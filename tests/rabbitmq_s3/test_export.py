"""`offload rabbitmq-s3 export`: a stream of a tier as the plugin's objects."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import osiris_data
import pytest
from command_line import offload
from offload_conformance import MemoryLedger
from offload_rabbitmq_s3 import RabbitmqKey, RabbitmqS3Catalogue
from offload_rabbitmq_s3.exporting import ExportedStream, RabbitmqS3Export
from rabbitmq_s3_bucket import DATA, MANIFEST, STREAM, Bucket, header_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.contracts.catalogue import Catalogue
from offload.contracts.store import Body
from offload.formats.chunk import scan
from offload.ground.errors import Misuse, NotOffloaded
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload.upkeep.verify.tier import verify

ID = "__copy_1795000000000000001"


async def tier_with(chunks: list[bytes], *, fragments: int = 1) -> ObjectStoreOffloader:
    """Return a tier with one stream, `orders`."""
    tier = ObjectStoreOffloader(MemoryStore())
    await tier.open(create=True)
    writer = await StreamWriter.claim(tier, "orders")
    size = -(-len(chunks) // fragments)
    await writer.offload([MemoryLedger(chunks[at : at + size]) for at in range(0, len(chunks), size)])
    return tier


async def exported(tier: Catalogue, store: Any, stream: str = "orders", **given: Any) -> ExportedStream:
    reader = await StreamReader.open(tier, stream)
    return await RabbitmqS3Export(reader=reader, store=store, **{"stream_id": ID, **given}).run()


async def chunks_in(tier: Catalogue, stream: str) -> bytes:
    reader = await StreamReader.open(tier, stream)
    async with aclosing(reader.windows(reader.manifest.first_offset)) as windows:
        return b"".join([bytes(window.data) async for window in windows])


def split(data: bytes) -> list[bytes]:
    """Return chunks that lie back to back."""
    rows = scan(data, where="memory")
    return [data[int(row["position"]) :][: int(row["size_bytes"])] for row in rows]


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
@pytest.mark.parametrize(("size", "branching"), [(64 * 2**20, 1024), (30_000, 3), (1, 3)])
def test_an_exported_stream_is_read_in_place_as_it_is_on_the_tier(
    stream: str, size: int, branching: int
) -> None:
    async def main() -> None:
        data = b"".join(map(osiris_data.chunks_in, osiris_data.segments(stream)))
        store = MemoryStore()
        done = await exported(
            await tier_with(split(data)), store, fragment_size_bytes=size, branching=branching
        )
        found = RabbitmqS3Catalogue(store, "rabbitmq+memory://b")
        report = await verify(found)

        assert await chunks_in(found, ID) == data
        assert (report.damages, report.objects) == ([], done.fragments)
        kinds = (await found.view(ID)).committed.entries["kind"].tolist()
        assert all(kinds.count(kind) < branching for kind in range(3))

    asyncio.run(main())


def test_the_objects_of_the_generator_are_written_byte_for_byte() -> None:
    """With its cuts and its UIDs: fragments, groups and the root."""

    async def main() -> None:
        told = MANIFEST["tiny"]
        keys = [RabbitmqKey.parse(name) for name in told["objects"]]
        uids = {(key.kind, key.number if key.kind is not None else 10): key.uid for key in keys if key}
        data = b"".join(map(osiris_data.chunks_in, osiris_data.segments("tiny")))
        store = MemoryStore()
        await exported(
            await tier_with(split(data)),
            store,
            stream_id=told["stream"],
            fragment_size_bytes=1,
            branching=4,
            uid_of=lambda kind, offset: uids[kind, offset],
        )

        assert sorted(store.objects) == told["objects"]
        for name in told["objects"]:
            assert bytes(await store.get(name)) == (DATA / "tiny" / name).read_bytes()

    asyncio.run(main())


def test_groups_are_those_of_the_plugins_own_rebalancing() -> None:
    async def main() -> None:
        for count in (1, 3, 8, 9, 26, 27, 40):
            bucket, store = Bucket(branching=3), MemoryStore()
            for _ in range(count):
                await bucket.append(bucket.messages(2))
            await exported(await tier_with(bucket.chunks), store, fragment_size_bytes=1, branching=3)
            view = await RabbitmqS3Catalogue(store, "b").view(ID)
            # The same tree over fragments of one chunk, of which there are twice as many.
            single = Bucket(branching=3)
            for chunk in bucket.chunks:
                await single.append([chunk])
            assert view.committed.entries["kind"].tolist() == [each.kind for each in single.entries]

    asyncio.run(main())


class Dying(StoreDecorator):
    """A store at which the process dies before its nth put."""

    def __init__(self, inner: MemoryStore, puts: int) -> None:
        super().__init__(inner)
        self.puts = puts

    async def put(self, key: str, body: Body) -> None:
        if not self.puts:
            raise KeyboardInterrupt
        self.puts -= 1
        await super().put(key, body)


def test_an_export_that_was_killed_is_repeated_and_ends_as_any_other() -> None:
    async def main() -> None:
        bucket, whole = Bucket(), MemoryStore()
        for _ in range(4):
            await bucket.append(bucket.messages(2))
        tier = await tier_with(bucket.chunks)
        given: dict[str, Any] = {"fragment_size_bytes": 1, "branching": 3}
        await exported(tier, whole, **given)
        for puts in range(len(whole.objects)):
            store = MemoryStore()
            with pytest.raises(KeyboardInterrupt):
                await exported(tier, Dying(store, puts), **given)
            assert not any("/root." in key for key in store.objects), "the root comes last"
            await exported(tier, store, **given)
            assert store.objects == whole.objects

    asyncio.run(main())


@pytest.mark.parametrize(
    "name",
    [
        "data/00000000000000000000.00000001.fragment",
        "data/README",
        "metadata/root.1.00000001.manifest",
    ],
)
def test_an_id_that_has_objects_is_refused_before_anything_is_written(name: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.put(f"rabbitmq/stream/{ID}/{name}", Body.of(b"?"))
        before = dict(store.objects)
        with pytest.raises(Misuse, match="choose an id that has no objects"):
            await exported(await tier_with(Bucket().messages(2)), store)

        assert store.objects == before

    asyncio.run(main())


def test_a_finished_export_is_refused_and_a_longer_id_is_not() -> None:
    async def main() -> None:
        store, tier = MemoryStore(), await tier_with(Bucket().messages(2))
        await exported(tier, store)
        with pytest.raises(Misuse, match="root"):
            await exported(tier, store)
        await exported(tier, store, stream_id=ID + "0")

    asyncio.run(main())


def test_a_stream_that_is_trimmed_meanwhile_is_no_whole_export() -> None:
    async def main() -> None:
        bucket = Bucket()
        for _ in range(4):
            await bucket.append(bucket.messages(2))
        tier, store = RabbitmqS3Catalogue(bucket.store, "b"), MemoryStore()
        reader = await StreamReader.open(tier, STREAM)
        await bucket.trim(2)

        with pytest.raises(NotOffloaded, match="was trimmed"):
            await RabbitmqS3Export(reader=reader, store=store, stream_id=ID).run()
        assert not any("/root." in key for key in store.objects)

    asyncio.run(main())


def test_a_trimmed_stream_keeps_its_offsets_and_the_epoch_is_the_newest() -> None:
    async def main() -> None:
        bucket, store = Bucket(), MemoryStore()
        await bucket.append(bucket.messages(2))
        bucket.epoch = 9
        await bucket.append(bucket.messages(2))
        await bucket.trim(1)
        done = await exported(RabbitmqS3Catalogue(bucket.store, "b"), store, STREAM)

        assert done.root is not None
        assert (done.root.number, done.first_offset) == (9, bucket.first)
        assert await chunks_in(RabbitmqS3Catalogue(store, "b"), ID) == b"".join(bucket.chunks)
        assert header_of(bucket.chunks[0])[0] == bucket.first > 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "given",
    [
        {"stream_id": "a/b"},
        {"stream_id": ""},
        {"stream_id": "x" * 256},
        {"fragment_size_bytes": 0},
        {"fragment_size_bytes": 2**32},
        {"branching": 1},
        {"epoch": -1},
        {"epoch": 2**64},
    ],
)
def test_a_wrong_argument_is_misuse(given: dict[str, Any]) -> None:
    async def main() -> None:
        tier = await tier_with(Bucket().messages(1))
        with pytest.raises(Misuse):
            await exported(tier, MemoryStore(), **given)

    asyncio.run(main())


def test_the_command_prints_what_the_metadata_store_would_need(tmp_path: Path) -> None:
    tier, bucket = str(tmp_path / "tier"), tmp_path / "bucket"
    offload("sync", f"rabbitmq://{osiris_data.DATA / 'tiny'}", tier)

    ran = offload("rabbitmq-s3", "export", tier, "tiny", str(bucket), "--id", ID, "--epoch", "5", "--json")
    told = offload(
        *("rabbitmq-s3", "export", tier, "tiny", f"rabbitmq+file://{bucket}"),
        *("--id", "orders", "--fragment-size", "1"),
    )

    document = ran.document
    assert (ran.code, document["epoch"], document["next_offset"]) == (0, 5, 10)
    assert document["root"].endswith(f"/metadata/root.5.{document['uid']}.manifest")
    assert "orders: offsets [0, 10), 3.2 KiB in 10 fragments and 0 groups" in told.text
    assert "{Uid, Epoch} = {" in told.text
    assert "no broker adopts these objects by itself" in told.stderr
    own = offload("read", tier, "tiny", "--from", "0").lines
    for name in (
        ID,
        "orders",
    ):  # the prefix of the URL may be left out, and no id but a folder's is asked for
        assert offload("read", f"rabbitmq+file://{bucket}", name, "--from", "0").lines == own


def test_an_empty_stream_is_refused() -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.persist()
        with pytest.raises(NotOffloaded, match="is empty"):
            await exported(RabbitmqS3Catalogue(bucket.store, "b"), MemoryStore(), STREAM)

    asyncio.run(main())
