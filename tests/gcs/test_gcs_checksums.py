"""The CRC-32C that the service keeps of an object, and what a verify makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from offload_gcs import GcsOptions, GcsStore
from osiris_data import DATA
from servers import Place, Running, servers_of
from wire import Answer, wire

from offload import Body, NotFound, ObjectStoreOffloader, Plugins, VerifyLevel, open_source, sync, verify
from offload.formats.checksums import crc32c

T = TypeVar("T")
DIGITS = b"0123456789"
SERVERS = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)


def of_bucket(place: Place, call: Callable[[GcsStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = GcsStore(bucket=place.name, options=GcsOptions.of(place.options))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


@SERVERS
def test_a_checksum_is_kept_of_every_object(running_server: Running) -> None:
    async def put_and_ask(store: GcsStore) -> int | None:
        await store.put("a/key", Body.of(DIGITS))
        return await store.stored_crc32c("a/key")

    assert of_bucket(running_server.place(), put_and_ask) == crc32c(DIGITS)


@SERVERS
def test_absence_is_an_error(running_server: Running) -> None:
    with pytest.raises(NotFound):
        of_bucket(running_server.place(), lambda store: store.stored_crc32c("a/key"))


@pytest.mark.parametrize(("body", "found"), [(b'{"crc32c": "4waSgw=="}', 0xE3069283), (b"{}", None)])
def test_a_reply_that_names_none_is_none(body: bytes, found: int | None) -> None:
    async def ask(url: str) -> int | None:
        store = GcsStore(bucket="bucket", options=GcsOptions.of({"endpoint_url": url, "token": "ya29.x"}))
        try:
            return await store.stored_crc32c("a/key")
        finally:
            await store.aclose()

    with wire(lambda heard: Answer(body=body, headers={"Content-Type": "application/json"})) as server:
        assert asyncio.run(ask(server.url)) == found

    [heard] = server.heard
    assert (heard.method, "alt" in heard.query) == ("GET", False)


@SERVERS
def test_a_verify_by_checksums_finds_a_flipped_bit(running_server: Running) -> None:
    """Where the bucket took the damaged bytes for good, with a checksum of their own."""

    async def found(store: GcsStore) -> dict[str, list[str]]:
        source = open_source(f"rabbitmq://{DATA}/tiny", plugins=Plugins.find())
        async for report in sync(source, ObjectStoreOffloader(store)):
            assert report.error is None, report.error
        sound = await verify(store, level=VerifyLevel.CHECKSUM)
        assert (sound.damages, sound.not_compared) == ([], 0)
        [victim] = [row.key async for row in store.list("tiny/data/")]
        raw = bytearray(await store.get(victim))
        raw[1000] ^= 1
        await store.put(victim, Body.of(bytes(raw)))
        return {
            level.value: [damage.what for damage in (await verify(store, level=level)).damages]
            for level in (VerifyLevel.MANIFEST, VerifyLevel.CHECKSUM)
        }

    assert of_bucket(running_server.place(), found) == {"manifest": [], "checksum": ["stored checksum"]}
