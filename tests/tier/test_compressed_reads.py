"""Tests of reads of compressed fragments: few requests, no byte twice, and damage hides no sound chunk."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from offload_conformance.ledgers import MemoryLedger

from offload import Misuse, ObjectStoreOffloader, StreamReader, StreamWriter, TierOptions, TierPlan
from offload.contracts.store import Span, Suffix
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment import FragmentTail
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt
from offload.model.attempt import Attempt
from offload.model.compression import Compression
from offload.model.entry import entries_of_rows
from offload.native.fragment_reader import load_tail
from offload.store.memory import MemoryStore

KEYS = StreamKeys("orders")
MIB = 2**20


class Counting(MemoryStore):
    """A store that counts how often each byte of a fragment was fetched, and the requests."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects=objects)
        self.spans: list[tuple[str, int, int]] = []

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if KEYS.parse_fragment(key):
            assert isinstance(span, Span)
            self.spans.append((key, span.start, span.start + span.length))
        return await super().get(key, span)


def texts(size_bytes: int) -> MemoryLedger:
    """Return a ledger with chunks of 1 to 200 JSON messages."""
    draw, chunks, offset, written = Random(5), [], 0, 0
    while written < size_bytes:
        count = draw.choice((1, 3, 40, 200))
        bodies = [
            json.dumps({"order": draw.getrandbits(64), "state": "placed"}).encode() for _ in range(count)
        ]
        chunks.append(build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1))
        offset, written = offset + count, written + len(chunks[-1])
    return MemoryLedger(chunks)


def written(ledger: MemoryLedger, codec: str, **options: Any) -> dict[str, bytes]:
    """Return the objects of a tier with this ledger."""
    objects: dict[str, bytes] = {}

    async def main() -> None:
        chosen = TierOptions(compression=Compression.parse(codec), **options)
        tier = ObjectStoreOffloader(MemoryStore(objects=objects), options=chosen)
        await (await StreamWriter.claim(tier, "orders")).offload([ledger])

    asyncio.run(main())
    return objects


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd:3"])
def test_a_sequential_read_fetches_each_byte_once(codec: str) -> None:
    ledger = texts(6 * MIB)
    store = Counting(written(ledger, codec, fragment_size_bytes=4 * MIB))

    async def main() -> bytes:
        reader = await StreamReader.open(ObjectStoreOffloader(store), "orders")
        return b"".join([window.data async for window in reader.windows(0)])

    assert asyncio.run(main()) == b"".join(ledger.chunks)
    fetched: Counter[str] = Counter()
    for key, start, stop in store.spans:
        fetched[key] += stop - start
    sizes = {key: len(data) for key, data in store.objects.items() if KEYS.parse_fragment(key)}
    assert fetched == {key: size - 16 for key, size in sizes.items()}  # all but the header, each byte once
    assert len(store.spans) <= 2 * (1 + 5)  # the tail and the windows of each fragment


def test_one_message_of_a_compressed_fragment_costs_two_small_requests() -> None:
    store = Counting(written(texts(6 * MIB), "zstd:3"))

    async def main() -> None:
        reader = await StreamReader.open(ObjectStoreOffloader(store), "orders")
        windows = reader.windows(20_000, until=20_001)
        assert await anext(windows)
        await windows.aclose()

    asyncio.run(main())

    (_, *tail), (_, start, stop) = store.spans
    assert tail[1] - tail[0] < 64 * 1024
    assert stop - start < 64 * 1024


def test_one_message_of_bytes_that_do_not_shrink_costs_its_own_chunk() -> None:
    draw = Random(6)
    chunks = [
        build_chunk([draw.randbytes(5000)], offset=offset, timestamp_ms=offset, epoch=1)
        for offset in range(300)
    ]
    store = Counting(written(MemoryLedger(chunks), "zstd:3"))

    async def main() -> bytes:
        reader = await StreamReader.open(ObjectStoreOffloader(store), "orders")
        windows = reader.windows(150, until=151)
        window = await anext(windows)
        await windows.aclose()
        return window.data

    assert asyncio.run(main()) == chunks[150]
    _, (_, start, stop) = store.spans
    assert stop - start == len(chunks[150])


def test_the_chunks_before_a_damaged_block_are_delivered() -> None:
    ledger = texts(MIB)
    objects = written(ledger, "zstd:3")
    (key,) = (key for key in objects if KEYS.parse_fragment(key))
    middle = len(objects[key]) // 2
    objects[key] = objects[key][:middle] + bytes([objects[key][middle] ^ 1]) + objects[key][middle + 1 :]
    found: list[bytes] = []

    async def main() -> None:
        reader = await StreamReader.open(ObjectStoreOffloader(MemoryStore(objects=objects)), "orders")
        async for window in reader.windows(0):
            found.append(window.data)  # noqa: PERF401 - the error must leave what came before it

    with pytest.raises(Corrupt, match="checksum of a block") as caught:
        asyncio.run(main())

    whole, before = b"".join(ledger.chunks), b"".join(found)
    assert caught.value.where == key
    assert caught.value.position <= middle < caught.value.position + 64 * 1024
    assert whole.startswith(before)
    assert len(before) > 0.3 * len(whole)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd:3"])
@pytest.mark.parametrize(("name", "what"), [("codec", "codec"), ("data_size_bytes", "data size")])
def test_a_fragment_that_is_not_as_its_entry_says_is_corrupt(codec: str, name: str, what: str) -> None:
    objects = written(texts(1000), codec)

    async def main() -> None:
        tier = ObjectStoreOffloader(MemoryStore(objects=objects))
        manifest = await tier.load_manifest("orders")
        (entry,) = entries_of_rows(manifest.entries)
        await load_tail(tier.store, manifest, entry)
        await load_tail(tier.store, manifest, replace(entry, **{name: (getattr(entry, name) + 1) % 3}))

    with pytest.raises(Corrupt, match=f": {what}: expected"):
        asyncio.run(main())


def test_large_windows_are_decompressed_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompression takes far longer than a checksum, so only 64 KiB are worth no thread."""
    objects = written(texts(6 * MIB), "zstd:3")
    sizes: dict[bool, list[int]] = {True: [], False: []}
    chunks_in = FragmentTail.chunks_in

    def noted(self: FragmentTail, raw: bytes, *args: Any, **named: Any) -> bytes:
        sizes[threading.current_thread() is threading.main_thread()].append(len(raw))
        return chunks_in(self, raw, *args, **named)

    monkeypatch.setattr(FragmentTail, "chunks_in", noted)

    async def main() -> None:
        reader = await StreamReader.open(ObjectStoreOffloader(MemoryStore(objects=objects)), "orders")
        for windows in (reader.windows(0, until=1), reader.windows(0)):
            async for _ in windows:
                pass

    asyncio.run(main())

    assert max(sizes[True]) <= 64 * 1024 < min(sizes[False]) < MIB


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd:3"])
def test_the_windows_of_an_attempt_of_several_fragments_read_back(codec: str) -> None:
    """The windows are those of each fragment, with positions as if the objects were laid end to end."""
    ledger = texts(2 * MIB)
    objects = written(ledger, codec, fragment_size_bytes=300_000)

    async def main() -> None:
        tier = ObjectStoreOffloader(MemoryStore(objects=objects))
        manifest = await tier.load_manifest("orders")
        (uid,) = {entry.attempt for entry in entries_of_rows(manifest.entries)}
        handle = await tier.read_offloaded(Attempt(stream="orders", ledger_id=ledger.ledger_id, uid=uid))
        table, whole = await handle.table(), b"".join(ledger.chunks)
        assert len(manifest.entries) > 3
        for first, stop in ((0, len(table)), (5, len(table) - 5), (len(table) - 1, len(table))):
            windows = [*handle.windows(table[first:stop], size_bytes=100_000)]
            assert np.array_equal(np.concatenate(windows), table[first:stop])
            found = b"".join([await handle.read(window) for window in windows])
            skipped = int(table["size_bytes"][:first].sum())
            assert found == whole[skipped : skipped + len(found)]
            assert len(found) == int(table["size_bytes"][first:stop].sum())
            assert await handle.read(table[first:stop]) == found

    asyncio.run(main())


def test_a_compression_that_is_given_as_a_text_is_refused_at_once() -> None:
    for kind in (TierOptions, TierPlan):
        with pytest.raises(Misuse, match=r"Compression\.parse\('zstd'\)"):
            kind(compression="zstd")  # type: ignore[arg-type]  # the wrong type is the claim
