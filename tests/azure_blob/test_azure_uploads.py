"""Large objects on a server: in blocks, and two writers of one key at a time."""

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


def test_what_is_too_large_for_one_request_is_one_object(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    window, count = os.urandom(2**20), 129

    async def windows() -> AsyncIterator[bytes]:
        for number in range(count):
            yield number.to_bytes(4, "big") + window[4:]

    async def scenario() -> tuple[bytes, bytes, bytes]:
        await store.put("k", Body(size_bytes=count * 2**20, windows=windows))
        return (
            await store.get("k"),
            await store.get("k", Span(2**20 - 1, 100 * 2**20)),
            await store.get("k", Suffix(2**20)),
        )

    whole, part, end = runner.run(scenario())

    expected = b"".join(number.to_bytes(4, "big") + window[4:] for number in range(count))
    assert hashlib.sha256(whole).digest() == hashlib.sha256(expected).digest()
    assert part == expected[2**20 - 1 : 101 * 2**20 - 1]
    assert end == expected[-(2**20) :]


def test_of_two_uploads_of_one_key_none_takes_in_the_others_parts(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    """They share the parts that are in no list yet. One is stored; the other may be put again."""

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


def test_an_upload_that_is_left_lying_is_not_seen(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        left = await store.start_upload("k")
        await left.put_part(1, b"left")
        with pytest.raises(NotFound):
            await store.get("k")
        await store.put("k", Body.of(b"put"))

    runner.run(scenario())

    assert place.get("k") == b"put"
    assert place.keys() == {"k"}


def test_blocks_of_an_upload_that_is_left_lying_are_no_object_to_a_create(
    place: Place, store: AzureStore, runner: asyncio.Runner
) -> None:
    """Azurite says that the object exists, and that it does not."""

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


def test_of_creates_beside_an_upload_one_is_in(
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
