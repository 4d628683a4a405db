"""The CRC-32C that a bucket keeps of its objects, and what a verify makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from command_line import offload
from offload_s3 import S3Options, S3Store
from osiris_data import DATA
from s3_calls import TAGGED, of_store
from servers import Running, servers_of
from servers.places import S3Place
from wire import Answer, wire

from offload import Body, NotFound, ObjectStore
from offload.formats.checksums import crc32c

T = TypeVar("T")
DIGITS = b"0123456789"
KEEPING = ("minio",)
"""Servers that keep the CRC-32C of an object that went up with it, and tell it."""


def of_bucket(place: S3Place, call: Callable[[S3Store], Awaitable[T]]) -> T:
    async def main() -> T:
        store = S3Store(bucket=place.name, options=S3Options.of(place.options))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def place_of(running_server: Running) -> S3Place:
    place = running_server.place()
    assert isinstance(place, S3Place)
    return place


@pytest.mark.parametrize("running_server", KEEPING, indirect=True)
def test_a_checksum_is_kept_of_what_was_put_whole(running_server: Running) -> None:
    async def put_and_ask(store: S3Store) -> int | None:
        await store.put("a/key", Body.of(DIGITS))
        return await store.stored_crc32c("a/key")

    assert of_bucket(place_of(running_server), put_and_ask) == crc32c(DIGITS)


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_absence_is_an_error(running_server: Running) -> None:
    with pytest.raises(NotFound):
        of_bucket(place_of(running_server), lambda store: store.stored_crc32c("a/key"))


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_of_an_object_in_parts_none_is_told_but_a_true_one(running_server: Running) -> None:
    """A checksum of checksums says nothing of the whole."""
    part = bytes(5 * 2**20)

    async def upload_and_ask(store: S3Store) -> int | None:
        upload = await store.start_upload("a/key")
        await upload.put_part(1, part)
        await upload.put_part(2, DIGITS)
        await upload.complete()
        return await store.stored_crc32c("a/key")

    assert of_bucket(place_of(running_server), upload_and_ask) in {None, crc32c(part + DIGITS)}


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "FULL_OBJECT"}, 0xE3069283),
        ({"x-amz-checksum-crc32c": "4waSgw=="}, 0xE3069283),
        ({"x-amz-checksum-crc32c": "4waSgw==-2"}, None),
        ({"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "COMPOSITE"}, None),
        ({"x-amz-checksum-crc32c": "4waSgw==", "ETag": '"e-2"'}, None),
        (
            {"x-amz-checksum-crc32c": "4waSgw==", "ETag": '"e-2"', "x-amz-checksum-type": "FULL_OBJECT"},
            0xE3069283,
        ),
        ({"x-amz-checksum-crc64nvme": "rosUhgpM5eM="}, None),
        ({}, None),
    ],
)
def test_a_reply_is_believed_where_it_is_of_the_whole(headers: dict[str, str], found: int | None) -> None:
    async def ask(store: ObjectStore) -> Any:
        return await store.stored_crc32c("a/key")

    with wire(lambda heard: Answer(headers=TAGGED | headers)) as server:
        assert of_store(server.url, ask) == found

    [heard] = server.heard
    assert (heard.method, heard.headers["x-amz-checksum-mode"]) == ("HEAD", "ENABLED")


@pytest.mark.parametrize("running_server", KEEPING, indirect=True)
def test_a_verify_by_checksums_finds_a_flipped_bit(
    running_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bucket took the damaged bytes for good, with a checksum of their own."""
    place = place_of(running_server)
    for name, option in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "region"),
        ("AWS_ENDPOINT_URL_S3", "endpoint_url"),
    ):
        monkeypatch.setenv(name, place.options[option])
    by_fsspec = ("-o", "client=fsspec")
    assert offload("sync", f"rabbitmq://{DATA}/tiny", place.url, *by_fsspec).code == 0
    sound = offload("verify", place.url, *by_fsspec, "--level", "checksum", "--json")
    [victim] = [key for key in sorted(place.keys()) if key.endswith(".fragment")]
    raw = bytearray(place.get(victim))
    raw[1000] ^= 1
    of_bucket(place, lambda store: store.put(victim, Body.of(bytes(raw))))

    found = {
        level: offload("verify", place.url, *by_fsspec, "--level", level, "--json")
        for level in ("manifest", "checksum", "bytes")
    }

    assert (sound.code, sound.document["not_compared"], sound.document["damages"]) == (0, 0, [])
    assert {level: ran.code for level, ran in found.items()} == {"manifest": 0, "checksum": 1, "bytes": 1}
    [damage] = found["checksum"].document["damages"]
    assert (damage["object"], damage["what"]) == (victim, "stored checksum")
