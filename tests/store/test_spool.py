"""A body of unknown size is gathered for a store that must know the size first."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.ledgers import ledger_of
from offload_keys import open_environment

from offload import Compression, ObjectStoreOffloader, StreamReader, StreamWriter, TierOptions
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body
from offload.ground.errors import Corrupt, Misuse, NoSpace
from offload.model.labels import MasterKey
from offload.native import spool
from offload.native.key_ring import KeyRing
from offload.native.spool import spooled
from offload.store.memory import MemoryStore

WINDOWS = [bytes([number]) * 1000 for number in range(5)]
WHOLE = b"".join(WINDOWS)


def bound_body(windows: Sequence[bytes | Exception], bound: int = 10_000) -> Body:
    """Return a body of these windows. An exception among them is raised in its turn."""

    async def each() -> AsyncIterator[bytes]:
        for window in windows:
            if isinstance(window, Exception):
                raise window
            yield window

    return Body(size_bytes=bound, windows=each, is_bound=True)


async def read(body: Body) -> bytes:
    return b"".join([window async for window in body.windows()])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files. A body of more than 1,000 bytes goes there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(spool, "SPOOL_SIZE_BYTES_MAX", 1000)
    monkeypatch.setattr(spool, "WINDOW_SIZE_BYTES", 300)
    return tmp_path


@pytest.fixture
def full_disk(folder: Path) -> Iterator[None]:
    """No file can have more than 4,096 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestSpooled(Asynchronous):
    @pytest.mark.parametrize("count", [0, 1, 2, 5])
    def test_the_size_is_exact_and_each_reading_yields_the_same_bytes(
        self, run: Run, folder: Path, count: int
    ) -> None:
        async def scenario() -> tuple[int, bool, bytes, bytes]:
            async with spooled(bound_body(WINDOWS[:count])) as body:
                return body.size_bytes, body.is_bound, await read(body), await read(body)

        assert run(scenario()) == (count * 1000, False, WHOLE[: count * 1000], WHOLE[: count * 1000])
        assert [*folder.iterdir()] == []

    def test_a_small_body_needs_no_folder(self, run: Run, folder: Path) -> None:
        folder.rmdir()

        async def scenario(count: int) -> bytes:
            async with spooled(bound_body(WINDOWS[:count])) as body:
                return await read(body)

        assert run(scenario(1)) == WINDOWS[0]
        with pytest.raises(NoSpace, match="No such file or directory; set TMPDIR"):
            run(scenario(2))
        folder.mkdir()

    def test_an_error_of_the_source_passes_through(self, run: Run, folder: Path) -> None:
        damage = Corrupt("chunk", "here", expected=1, found=2)

        async def scenario() -> None:
            async with spooled(bound_body([*WINDOWS, damage])):
                pytest.fail("a broken body was gathered")

        with pytest.raises(Corrupt) as caught:
            run(scenario())
        assert caught.value is damage

    def test_a_body_beyond_its_bound_is_refused(self, run: Run, folder: Path) -> None:
        async def scenario() -> None:
            async with spooled(bound_body(WINDOWS, bound=4999)):
                pytest.fail("a body that is too long was gathered")

        with pytest.raises(Misuse, match="at most 4999 bytes yielded 5000"):
            run(scenario())

    @pytest.mark.usefixtures("full_disk")
    @pytest.mark.parametrize("windows", [WINDOWS, WINDOWS * 20], ids=["in a buffer", "written through"])
    def test_a_full_disk_is_no_space(self, run: Run, windows: Sequence[bytes]) -> None:
        """The last bytes of a file are in a buffer, and the disk refuses them when it is flushed."""

        async def scenario() -> None:
            async with spooled(bound_body(windows, bound=1_000_000)):
                pytest.fail("more was gathered than the disk holds")

        with pytest.raises(NoSpace, match="File too large; set TMPDIR"):
            run(scenario())

    def test_readings_at_the_same_time_do_not_mix(
        self, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put that was cancelled may still read in a thread when its retry begins."""

        class Slow(tempfile.SpooledTemporaryFile[bytes]):
            def seek(self, *args: int) -> int:
                at = super().seek(*args)
                time.sleep(0.0001)  # another thread gets its turn here
                return at

        monkeypatch.setattr(spool, "SpooledTemporaryFile", Slow)

        async def scenario() -> list[bytes]:
            async with spooled(bound_body(WINDOWS)) as body:
                return await asyncio.gather(*(read(body) for _ in range(8)))

        assert all(found == WHOLE for found in run(scenario()))


class NeedsSizes(MemoryStore):
    """A store that must know the size of an object before its first byte, as Google Cloud Storage does."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, unsized_put=False)

    async def put(self, key: str, body: Body) -> None:
        assert not body.is_bound
        await super().put(key, body)


class TakesBounds(MemoryStore):
    """A store that takes bodies of unknown size. It counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = 0

    async def put(self, key: str, body: Body) -> None:
        self.bounds += body.is_bound
        await super().put(key, body)


class TestOffloading(Asynchronous):
    @pytest.mark.parametrize(("codec", "bounds"), [("zstd", 3), ("lz4", 3), ("none", 0)])
    def test_a_store_with_unsized_put_is_given_the_body_unspooled(
        self, run: Run, codec: str, bounds: int
    ) -> None:
        store = TakesBounds()

        async def scenario() -> None:
            options = TierOptions(compression=Compression.parse(codec), fragment_size_bytes=1)
            async with ObjectStoreOffloader(store, options=options) as tier:
                await (await StreamWriter.claim(tier, "orders")).offload([ledger_of(3)])

        run(scenario())

        assert store.bounds == bounds

    @pytest.mark.parametrize("codec", ["zstd", "lz4", "none", "zstd encrypted", "none encrypted"])
    def test_a_store_without_unsized_put_is_given_only_bodies_of_exact_sizes(
        self, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, codec: str
    ) -> None:
        """A temporary file has no message of an encrypted stream in the clear."""
        monkeypatch.setenv("OFFLOAD_KEY_TESTS", "bWFzdGVyIGtleSBvZiAzMiBieXRlcyBmb3IgdGVzdHM=")
        ledger, written = ledger_of(100, body_size_bytes=200), list[bytes]()
        codec, _, is_encrypted = codec.partition(" ")
        ring = KeyRing(service=open_environment("keyenv:"), new=MasterKey("tests"))

        class Noted(tempfile.SpooledTemporaryFile[bytes]):
            def write(self, data: Any) -> int:
                written.append(bytes(data))
                return super().write(data)

        monkeypatch.setattr(spool, "SpooledTemporaryFile", Noted)

        async def scenario() -> list[bytes]:
            options = TierOptions(compression=Compression.parse(codec), fragment_size_bytes=10_000)
            keys = ring if is_encrypted else None
            async with ObjectStoreOffloader(NeedsSizes(), options=options, ring=keys) as tier:
                writer = await StreamWriter.claim(tier, "orders")
                await writer.offload([ledger])
                reader = await StreamReader.open(tier, "orders")
                return [body async for batch in reader.messages(0) for body in batch.bodies]

        assert run(scenario()) == [b"%d" % offset + b"." * 200 for offset in range(100)]
        assert bool(written) == (codec != "none" or bool(is_encrypted))
        if is_encrypted:
            assert not any(b"...." in data for data in written)
