"""Tests of the upload of one fragment: what a repeated put sends, and how many threads compress at once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from made_fragments import chunks_of, peak_below, tail_of
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_keys import open_environment
from offload_posix import PosixStore

from offload import ObjectStoreOffloader, StreamReader, StreamWriter, TierOptions
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body
from offload.formats.checksums import crc32c
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment import SOURCE_EPOCH
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt, OutcomeUnknown
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.compression import Compression
from offload.model.labels import MasterKey
from offload.native import spool
from offload.native.fragment_writer import FragmentWriter
from offload.native.key_ring import KeyRing
from offload.store.memory import MemoryStore
from offload.store.retry import RetryingStore

KEYS = StreamKeys("orders")


class LosesReplies(MemoryStore):
    """A store that loses the reply to the first put of a fragment. It records the windows of each put."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[bytes]] = []

    async def put(self, key: str, body: Body) -> None:
        if not KEYS.parse_fragment(key):
            await super().put(key, body)
            return
        windows: list[bytes] = []
        self.sent.append(windows)
        async for window in body.windows():
            windows.append(window)  # noqa: PERF401 - a body that raises must leave what came before
        await super().put(key, Body.of(b"".join(windows)))
        if len(self.sent) == 1:
            raise OutcomeUnknown("the reply was lost")


class Changes(MemoryLedger):
    """A ledger with other chunks of the same sizes after its first passes."""

    def __init__(self, chunks: list[bytes], later: list[bytes]) -> None:
        super().__init__(chunks)
        self._later, self.reads = later, 0

    async def read(self, rows: ChunkTable) -> bytes:
        self.reads += 1
        if self.reads == 1:
            return await super().read(rows)
        return await MemoryLedger(self._later).read(rows)


def one_chunk(letter: bytes) -> list[bytes]:
    return [build_chunk([letter * 10_000], offset=0, timestamp_ms=7, epoch=1)]


async def claimed(store: Any, coding: str, **options: Any) -> tuple[ObjectStoreOffloader, StreamWriter]:
    """Return a tier that stores new fragments in a coding, such as `zstd encrypted`, and a writer."""
    codec, _, is_encrypted = coding.partition(" ")
    chosen = TierOptions(compression=Compression.parse(codec), **options)
    ring = KeyRing(service=open_environment("keyenv:"), new=MasterKey("tests"))
    tier = ObjectStoreOffloader(store, options=chosen, ring=ring if is_encrypted else None)
    return tier, await StreamWriter.claim(tier, "orders")


@pytest.fixture(autouse=True)
def _master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_TESTS", "bWFzdGVyIGtleSBvZiAzMiBieXRlcyBmb3IgdGVzdHM=")


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "none encrypted", "zstd encrypted"])
def test_a_repeated_put_sends_the_same_windows(codec: str) -> None:
    store = LosesReplies()

    async def main() -> bytes:
        tier, writer = await claimed(RetryingStore(store), codec)
        await writer.offload([MemoryLedger(chunks_of([70_000, 10, 2_000_000, 3_000_000], first_offset=0))])
        (entry,) = [row async for row in store.list(KEYS.data)]
        reader = await StreamReader.open(tier, "orders")
        assert [window async for window in reader.windows(0)]
        return store.objects[entry.key]

    stored = asyncio.run(main())

    first, second = store.sent
    assert first == second
    assert b"".join(first) == stored


@pytest.mark.parametrize(
    ("codec", "unsent"), [("none", 1), ("lz4", 1), ("zstd", 1), ("none encrypted", 2), ("zstd encrypted", 2)]
)
def test_a_source_that_changes_before_a_repeated_put_is_corrupt_before_the_object_is_complete(
    codec: str, unsent: int
) -> None:
    """The receipt of the first pass would name bytes that the second one has replaced."""
    store = LosesReplies()

    async def main() -> None:
        _, writer = await claimed(RetryingStore(store), codec)
        await writer.offload([Changes(one_chunk(b"a"), one_chunk(b"b"))])

    with pytest.raises(Corrupt, match="bytes of a second read"):
        asyncio.run(main())

    first, second = store.sent
    assert len(second) == len(first) - unsent  # the tail, and no other bytes under a nonce that was used
    (fragment,) = [raw for key, raw in store.objects.items() if KEYS.parse_fragment(key)]
    assert crc32c(fragment) == crc32c(b"".join(first))


@dataclass
class Busy:
    """Counts the threads within a call at once."""

    most: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            time.sleep(0.01)
            try:
                return call(*args)
            finally:
                with self._lock:
                    self._now -= 1

        return counted


@pytest.mark.parametrize(("codec", "bound"), [("zstd", 1), ("lz4", 2), ("none encrypted", 2), ("none", 4)])
@pytest.mark.parametrize("step", ["_code", "_tail"])
def test_the_threads_that_compress_at_once_are_bounded(
    monkeypatch: pytest.MonkeyPatch, codec: str, bound: int, step: str
) -> None:
    """Only compression needs a bound: verbatim chunks cost a checksum, and uploads have their own bound."""
    busy = Busy()
    monkeypatch.setattr(FragmentWriter, step, busy.around(getattr(FragmentWriter, step)))

    async def main() -> None:
        coding_threads_max = 1 if codec == "none" else bound
        _, writer = await claimed(
            MemoryStore(), codec, fragment_size_bytes=1, uploads_max=4, coding_threads_max=coding_threads_max
        )
        await writer.offload([ledger_of(24)])

    asyncio.run(main())

    assert busy.most == bound


class Discards(MemoryStore):
    """A store that takes the windows of fragments and keeps none of them."""

    async def put(self, key: str, body: Body) -> None:
        if not KEYS.parse_fragment(key):
            await super().put(key, body)
            return
        async for _ in body.windows():
            pass


@pytest.mark.parametrize("codec", ["none", "zstd:1", "none encrypted", "zstd:1 encrypted"])
def test_the_memory_of_an_upload_is_a_few_windows(codec: str) -> None:
    ledger = MemoryLedger(chunks_of([2**20] * 48, first_offset=0, is_random=True))

    async def main() -> None:
        _, writer = await claimed(Discards(), codec)
        with peak_below(8 * WINDOW_SIZE_BYTES):
            await writer.offload([ledger])

    assert 8 * WINDOW_SIZE_BYTES < 48 * 2**20
    asyncio.run(main())


class NeedsSizes(PosixStore):
    """A folder that must know the size of an object before its first byte."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, unsized_put=False)


@pytest.mark.parametrize("store", [PosixStore, NeedsSizes])
@pytest.mark.parametrize("codec", ["zstd:1", "zstd:1 encrypted"])
def test_a_cancelled_upload_leaves_no_object_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, store: type[PosixStore]
) -> None:
    monkeypatch.setattr(spool, "SPOOL_SIZE_BYTES_MAX", 1000)
    before, code = open_deleted_files(), FragmentWriter._code

    async def main() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def told(*args: Any) -> bytes:
            if args[2]["offset"][0]:  # a second window is under way
                loop.call_soon_threadsafe(begun.set)
            return code(*args)

        monkeypatch.setattr(FragmentWriter, "_code", told)
        _, writer = await claimed(store(root=tmp_path / "tier"), codec)
        ledger = MemoryLedger(chunks_of([2**20] * 24, first_offset=0, is_random=True))
        task = asyncio.create_task(writer.offload([ledger]))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert not [*tmp_path.rglob("*.fragment")]
    assert not [path for path in tmp_path.rglob(".staging/**/*") if path.is_file()]
    assert open_deleted_files() == before


def open_deleted_files() -> set[str]:
    """Return the files that this process has open and that have no name any more."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself was open
            found.add(os.readlink(link))
    return {name for name in found if name.endswith("(deleted)")}


def test_a_caller_cannot_set_the_source_epoch() -> None:
    """A rebuild reads it from this text. A wrong one would fence the broker's leader."""
    store = MemoryStore()

    async def main() -> None:
        _, writer = await claimed(store, "none")
        await writer.offload([ledger_of(3)], extra_metadata={SOURCE_EPOCH: "9", "by": "hand"})

    asyncio.run(main())

    (fragment,) = [raw for key, raw in store.objects.items() if KEYS.parse_fragment(key)]
    tail = tail_of(fragment)
    assert (tail.metadata, tail.source_epoch) == ({"by": "hand"}, 0)
