"""Tests of the CRC-32C that S3 and GCS keep of an object, and of a verify that compares it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from cloud.calls import DIGITS, Client
from cloud.gcs import GCS, said
from cloud.s3 import S3, TAGGED
from cloud.tiers import CloudTier
from command_line import offload
from offload_cloud.sums import check_sum
from osiris_data import DATA
from servers import Place, Running, servers_of
from wire import Answer, wire

from offload import Body, NotFound, ObjectStore, Plugins, TryAgain
from offload.formats.checksums import crc32c
from offload.opening.by_url import open_store

T = TypeVar("T")
KEEPING = [pytest.param("minio", id="minio"), *servers_of("gcs")]
"""Servers that keep the CRC-32C of an object that was put in one request, and report it."""


async def checksum(store: Any) -> int | None:
    found: int | None = await store.stored_crc32c("a/key")
    return found


def of_place(place: Place, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = open_store(place.url, plugins=Plugins.find(), storage_options=place.options)
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize("running_server", KEEPING, indirect=True)
def test_the_store_keeps_a_checksum_of_an_object_put_whole(running_server: Running) -> None:
    async def put_and_ask(store: ObjectStore) -> int | None:
        await store.put("a/key", Body.of(DIGITS))
        return await checksum(store)

    assert of_place(running_server.place(), put_and_ask) == crc32c(DIGITS)


@pytest.mark.parametrize("running_server", [pytest.param("minio", id="minio")], indirect=True)
def test_bytes_that_changed_since_their_check_are_refused_by_the_server(running_server: Running) -> None:
    """The server compares the checksum of the check, and not one of the bytes that are sent."""
    place = running_server.place()
    changed = replace(Body.of(bytes(100_000)), crc32c=lambda: crc32c(bytes(99_999) + b"\1"))

    async def put(store: ObjectStore) -> None:
        with pytest.raises(TryAgain, match="XAmzContentChecksumMismatch"):
            await store.put("a/key", changed)

    of_place(place, put)

    assert not place.keys()


@pytest.mark.parametrize("running_server", servers_of("s3") + servers_of("gcs"), indirect=True)
def test_the_checksum_of_an_absent_object_is_an_error(running_server: Running) -> None:
    with pytest.raises(NotFound):
        of_place(running_server.place(), checksum)


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_the_checksum_of_an_object_in_parts_is_true_or_none(running_server: Running) -> None:
    """A checksum of checksums is not a checksum of the object."""
    part = bytes(5 * 2**20)

    async def upload_and_ask(store: ObjectStore) -> int | None:
        upload = await store.start_upload("a/key")
        await upload.put_part(1, part)
        await upload.put_part(2, DIGITS)
        await upload.complete()
        return await checksum(store)

    assert of_place(running_server.place(), upload_and_ask) in {None, crc32c(part + DIGITS)}


KEPT = {"x-amz-checksum-crc32c": "4waSgw=="}
OF_WHOLE = {"x-amz-checksum-type": "FULL_OBJECT"}


@pytest.mark.parametrize(
    ("client", "answer", "found"),
    [
        *[
            (S3, Answer(headers=TAGGED | headers), found)
            for headers, found in [
                (KEPT | OF_WHOLE, 0xE3069283),
                (KEPT, 0xE3069283),
                ({"x-amz-checksum-crc32c": "4waSgw==-2"}, None),
                (KEPT | {"x-amz-checksum-type": "COMPOSITE"}, None),
                (KEPT | {"ETag": '"e-2"'}, None),
                (KEPT | OF_WHOLE | {"ETag": '"e-2"'}, 0xE3069283),
                ({"x-amz-checksum-crc64nvme": "rosUhgpM5eM="}, None),
                ({}, None),
            ]
        ],
        (
            GCS,
            said(crc32c="4waSgw=="),
            0xE3069283,
        ),
        (GCS, said(), None),
    ],
)
def test_only_a_checksum_of_the_whole_object_is_returned(
    client: Client, answer: Answer, found: int | None
) -> None:
    """The request asks for no bytes of the object."""
    with wire(lambda heard: answer) as server:
        assert client.of_store(server.url, checksum) == found

    [heard] = server.heard
    assert (heard.method, "alt" in heard.query) == ("HEAD" if client is S3 else "GET", False)
    assert heard.headers.get("x-amz-checksum-mode") == ("ENABLED" if client is S3 else None)


@pytest.mark.parametrize("running_server", KEEPING, indirect=True)
def test_a_verify_by_checksums_finds_a_flipped_bit(
    running_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took the damaged bytes as a new object, with a checksum of their own."""
    place = running_server.place()
    CloudTier(place, monkeypatch)
    assert offload("sync", f"rabbitmq://{DATA}/tiny", place.url).code == 0
    sound = offload("verify", place.url, "--level", "checksum", "--json")
    [victim] = [key for key in sorted(place.keys()) if key.endswith(".fragment")]
    raw = bytearray(place.get(victim))
    raw[1000] ^= 1
    of_place(place, lambda store: store.put(victim, Body.of(bytes(raw))))

    found = {
        level: offload("verify", place.url, "--level", level, "--json")
        for level in ("manifest", "checksum", "bytes")
    }

    assert (sound.code, sound.document["not_compared"], sound.document["damages"]) == (0, 0, [])
    assert {level: ran.code for level, ran in found.items()} == {"manifest": 0, "checksum": 1, "bytes": 1}
    [damage] = found["checksum"].document["damages"]
    assert (damage["object"], damage["what"]) == (victim, "stored checksum")


@pytest.mark.parametrize(("size_bytes", "is_beside"), [(2**20, False), (2**20 + 1, True)])
def test_a_long_reply_is_summed_beside_the_event_loop(size_bytes: int, is_beside: bool) -> None:
    def check() -> None:
        assert (threading.current_thread() is not threading.main_thread()) == is_beside
        raise TryAgain("the sum is wrong")

    with pytest.raises(TryAgain):
        asyncio.run(check_sum(check, size_bytes))
