"""Calls of an S3 store on a server of the tests' own, and a server that knows just enough of S3."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from offload_s3 import S3Options
from offload_s3.url import open_bucket
from wire import Answer, Heard

from offload import Body, ObjectStore, OffloadError, Span, Suffix

T = TypeVar("T")
Call = Callable[[ObjectStore], Awaitable[Any]]
DIGITS = b"0123456789"
TAGGED = {"ETag": '"e"'}
LOGIN = {"region": "us-east-1", "key": "AKEY", "secret": "HUSH", "token": "HUSH-TOKEN"}


def of_store(url: str | None, call: Callable[[ObjectStore], Awaitable[T]], **options: Any) -> T:
    """What a call of a store with these options returns; by fsspec's client unless they say otherwise."""

    async def main() -> T:
        chosen = {"client": "fsspec"} | LOGIN | {"endpoint_url": url} | options
        store = open_bucket("bucket", S3Options.of(chosen))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def error_of(url: str | None, call: Call, **options: Any) -> OffloadError:
    """The error that a call raises, of which no text holds a secret."""
    with pytest.raises(OffloadError) as caught:
        of_store(url, call, **options)
    assert "HUSH" not in str(caught.value)
    return caught.value


async def put(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(DIGITS))


async def create(store: ObjectStore) -> None:
    await store.create("a/key", DIGITS)


async def get(store: ObjectStore) -> bytes:
    return await store.get("a/key")


async def upload(store: ObjectStore) -> None:
    begun = await store.start_upload("a/key")
    await begun.put_part(1, DIGITS)
    await begun.complete()


async def names(store: ObjectStore) -> list[str]:
    return [row.key async for row in store.list("")]


def reading(span: Span | Suffix) -> Callable[[ObjectStore], Awaitable[bytes]]:
    return lambda store: store.get("a/key", span)


def answers(heard: Heard) -> Answer:
    """Enough of S3 for every call of the port to succeed."""
    match heard.method, sorted(heard.query):
        case "POST", ["uploads"]:
            return xml("InitiateMultipartUploadResult", "<UploadId>u</UploadId>")
        case "POST", ["uploadId"]:
            return xml("CompleteMultipartUploadResult", "<Key>a/key</Key>")
        case "POST", ["delete"]:
            return xml("DeleteResult", "")
        case "GET", ["delimiter" | "encoding-type" | "list-type", *_]:
            return xml("ListBucketResult", "<IsTruncated>false</IsTruncated>")
        case "GET", _:
            return Answer(body=DIGITS, headers=TAGGED)
    return Answer(headers=TAGGED)


def xml(name: str, inside: str, status: int = 200, **headers: str) -> Answer:
    return Answer(
        status, f"<{name}>{inside}</{name}>".encode(), {"Content-Type": "application/xml"} | headers
    )


def refusal(code: str, status: int, inside: str = "", **headers: str) -> Answer:
    return xml("Error", f"<Code>{code}</Code><Message>m</Message>{inside}", status, **headers)
