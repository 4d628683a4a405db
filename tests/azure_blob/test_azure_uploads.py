"""Tests of large objects on a server: blocks, and two writers of one key."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from offload_azure import AzureOptions, AzureStore
from servers import Place, Running, servers_of

from offload import AlreadyExists, Body, NotFound, Span, Suffix, TryAgain

pytestmark = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


@pytest.fixture
def place(running_server: Running) -> Place:
    return running_server.place()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def store(place: Place, runner: asyncio.Runner) -> Iterator[AzureStore]:
    store = AzureStore(container=place.name, options=AzureOptions.of(place.options))
    yield store
    runner.run(store.aclose())


def test_an_object_too_large_for_one_request_is_stored_whole(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    window, count = os.urandom(2**20), 129

    async def windows() -> AsyncIterator[bytes]:
        for number in range(count):
            yield number.to_bytes(4, "big") + window[4:]

    async def scenario() -> list[bytes]:
        await store.put("k", Body(size_bytes=count * 2**20, windows=windows))
        read = [
            await store.get("k"),
            await store.get("k", Span(2**20 - 1, 100 * 2**20)),
            await store.get("k", Suffix(2**20)),
        ]
        return [hashlib.sha256(data).digest() for data in read]  # asyncio takes the repr of any result

    expected = b"".join(number.to_bytes(4, "big") + window[4:] for number in range(count))
    parts = [expected, expected[2**20 - 1 : 101 * 2**20 - 1], expected[-(2**20) :]]
    assert runner.run(scenario()) == [hashlib.sha256(part).digest() for part in parts]


def test_two_uploads_of_one_key_never_mix_their_parts(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    """Azure lets them share their uncommitted blocks. One upload is stored, the other may be tried again."""

    async def scenario() -> None:
        ours, theirs = await store.start_upload("k"), await store.start_upload("k")
        await ours.put_part(1, b"ours 1 ")
        await theirs.put_part(1, b"theirs 1 ")
        await theirs.put_part(2, b"theirs 2")
        await ours.put_part(2, b"ours 2")
        await ours.complete()
        with pytest.raises(TryAgain):
            await theirs.complete()
        await theirs.abort()

    runner.run(scenario())

    assert place.get("k") == b"ours 1 ours 2"


def test_an_unfinished_upload_is_invisible(place: Place, store: AzureStore, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        left = await store.start_upload("k")
        await left.put_part(1, b"left")
        with pytest.raises(NotFound):
            await store.get("k")
        await store.put("k", Body.of(b"put"))

    runner.run(scenario())

    assert place.get("k") == b"put"
    assert place.keys() == {"k"}


def test_a_create_ignores_blocks_of_an_unfinished_upload(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    """Azurite refuses the create as if the object existed, and answers a read with 404."""

    async def scenario() -> None:
        left = await store.start_upload("k")
        await left.put_part(1, b"left")
        with pytest.raises(NotFound):
            await store.get("k")
        await store.create("k", b"created")
        with pytest.raises(AlreadyExists):
            await store.create("k", b"once more")
        with pytest.raises(TryAgain):
            await left.complete()

    runner.run(scenario())

    assert place.get("k") == b"created"


def test_one_of_many_creates_beside_an_upload_wins(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    async def tried(data: bytes) -> bytes | None:
        try:
            await store.create("k", data)
        except (AlreadyExists, TryAgain):
            return None
        return data

    async def scenario() -> list[bytes]:
        left = await store.start_upload("k")
        await left.put_part(1, b"left")
        tries = await asyncio.gather(*(tried(b"%d" % number) for number in range(8)))
        return [each for each in tries if each is not None]

    assert runner.run(scenario()) == [place.get("k")]
