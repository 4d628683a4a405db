"""Calls of an Azure store on a server of the tests' own, and a server that knows just enough of Azure."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar
from xml.sax.saxutils import escape

import pytest
from offload_azure import AzureOptions
from offload_azure.url import open_container
from wire import Answer, Heard

from offload import Body, ObjectStore, OffloadError, Span, Suffix

T = TypeVar("T")
Call = Callable[[ObjectStore], Awaitable[Any]]
DIGITS = b"0123456789"
KEY = base64.b64encode(b"HUSH" * 16).decode()
SPEAKS = {"x-ms-request-id": "r", "x-ms-version": "2026-02-06"}
TAGGED = SPEAKS | {
    "ETag": '"e"',
    "Last-Modified": "Sat, 21 Nov 2026 19:51:58 GMT",
    "x-ms-blob-type": "BlockBlob",
}
FOLDER = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>"
LOGIN = {"account_name": "acct", "account_key": KEY}


def of_store(url: str | None, call: Callable[[ObjectStore], Awaitable[T]], **options: Any) -> T:
    """What a call of a store with these options returns; by fsspec's client unless they say otherwise."""

    async def main() -> T:
        chosen = {"client": "fsspec"} | LOGIN | {"endpoint_url": url} | options
        given = {name: value for name, value in chosen.items() if value is not None and value != ""}
        store = open_container("container", AzureOptions.of(given))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def error_of(url: str | None, call: Call, **options: Any) -> OffloadError:
    """The error that a call raises. No text of it holds a secret, the whole traceback included."""
    with pytest.raises(OffloadError) as caught:
        of_store(url, call, **options)
    told = "".join(traceback.format_exception(caught.value))
    assert "HUSH" not in told
    assert KEY not in told
    assert "\n" not in str(caught.value)
    return caught.value


async def put(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(DIGITS))


async def create(store: ObjectStore) -> None:
    await store.create("a/key", DIGITS)


async def get(store: ObjectStore) -> bytes:
    return await store.get("a/key")


async def delete(store: ObjectStore) -> None:
    await store.delete(["a/key"])


async def put_part(store: ObjectStore) -> None:
    begun = await store.start_upload("a/key")
    await begun.put_part(1, DIGITS)


async def upload(store: ObjectStore) -> None:
    begun = await store.start_upload("a/key")
    await begun.put_part(1, DIGITS)
    await begun.complete()


async def names(store: ObjectStore) -> list[str]:
    return [row.key async for row in store.list("")]


def reading(span: Span | Suffix) -> Callable[[ObjectStore], Awaitable[bytes]]:
    return lambda store: store.get("a/key", span)


def asked_range(heard: Heard) -> tuple[int, int] | None:
    """The first byte and the last that a request asks for."""
    asked = heard.headers.get("x-ms-range") or heard.headers.get("range", "")
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
    return (int(match[1]), int(match[2])) if match else None


def part_of(data: bytes, heard: Heard, **headers: str) -> Answer:
    """A GET of some bytes, answered as Azure does."""
    asked = asked_range(heard)
    sums = {"x-ms-blob-content-md5": base64.b64encode(hashlib.md5(data).digest()).decode()}
    if asked is None:
        return Answer(200, data, TAGGED | headers)
    start, last = asked[0], min(asked[1], len(data) - 1)
    if start >= len(data):
        return refusal("InvalidRange", 416)
    content_range = {"Content-Range": f"bytes {start}-{last}/{len(data)}"}
    return Answer(206, data[start : last + 1], TAGGED | content_range | sums | headers)


def answers(heard: Heard) -> Answer:
    """Enough of Azure for every call of the port to succeed."""
    match heard.method:
        case "PUT":
            return Answer(201, headers=TAGGED)
        case "DELETE":
            return Answer(202, headers=SPEAKS)
        case "HEAD":
            return Answer(200, DIGITS, TAGGED)
    return page([]) if heard.query.get("comp") == ["list"] else part_of(DIGITS, heard)


def page(keys: Iterable[str], *, following: str = "", folders: Iterable[str] = ()) -> Answer:
    """A page of List Blobs. Those of `folders` bear the mark of a folder."""
    rows = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>1</Content-Length></Properties>"
        f"{FOLDER if key in folders else '<Metadata/>'}</Blob>"
        for key in keys
    )
    inside = f"<Blobs>{rows}</Blobs><NextMarker>{following}</NextMarker>"
    text = f"<EnumerationResults>{inside}</EnumerationResults>"
    return Answer(200, text.encode(), SPEAKS | {"Content-Type": "application/xml"})


def refusal(code: str, status: int, message: str = "m", inside: str = "", **headers: str) -> Answer:
    """An error reply."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{inside}</Error>"
    of_azure = SPEAKS | {"Content-Type": "application/xml", "x-ms-error-code": code}
    return Answer(status, text.encode(), of_azure | headers)
