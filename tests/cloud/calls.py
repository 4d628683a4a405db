"""A client of a cloud backend on a server of a test, and the calls that tests make of it."""

from __future__ import annotations

import asyncio
import base64
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pytest
from wire import Answer, Heard

from offload import Body, ObjectStore, OffloadError, Span, Suffix

T = TypeVar("T")
Call = Callable[[ObjectStore], Awaitable[Any]]

DIGITS: Final = b"0123456789"
"""The object `a/key`."""

SECRET_IN_BASE64: Final = base64.b64encode(b"HUSH" * 16).decode()


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


MUTATIONS: Final = (put, create, delete, put_part, upload)


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client of one backend, and a minimal imitation of its service."""

    open: Callable[[Mapping[str, Any]], ObjectStore]
    """Opens a store with these options."""

    login: Mapping[str, Any]
    """Options that sign requests. Each secret is `SECRET_IN_BASE64` or contains `HUSH`."""

    anonymous: Mapping[str, Any]
    """Options that take the login's place, so that no request is signed."""

    answers: Callable[[Heard], Answer]
    """Answers every call of the port with success, as the service does."""

    calls: tuple[Call, ...] = (put, create, get, delete, names)
    """Calls that are one request each."""

    options: Mapping[str, Any] = field(default_factory=dict)

    def given(self, **options: Any) -> Client:
        """Return the client with more options."""
        return replace(self, options={**self.options, **options})

    def of_store(self, url: str | None, call: Callable[[Any], Awaitable[T]], **options: Any) -> T:
        """Return the result of a call of a store at `url`. An option that is None overrides the login."""
        chosen = {**self.login, **self.options, "endpoint_url": url, **options}

        async def main() -> T:
            store = self.open({name: value for name, value in chosen.items() if value is not None})
            try:
                return await call(store)
            finally:
                await store.aclose()

        return asyncio.run(main())

    def error_of(self, url: str | None, call: Call, **options: Any) -> OffloadError:
        """Return the error of a call. Its text must be one line, and its traceback without a secret."""
        with pytest.raises(OffloadError) as caught:
            self.of_store(url, call, **options)
        printed = "".join(traceback.format_exception(caught.value))
        assert "HUSH" not in printed
        assert SECRET_IN_BASE64 not in printed
        assert "\n" not in str(caught.value)
        return caught.value


def asked_range(heard: Heard, size_bytes: int | None = None) -> tuple[int, int] | None:
    """Return the first and the last byte that a request asks for; None if it asks for the whole object."""
    asked = heard.headers.get("x-ms-range") or heard.headers.get("range", "")
    if match := re.fullmatch(r"bytes=(\d+)-(\d+)", asked):
        return int(match[1]), int(match[2])
    if size_bytes is not None and (match := re.fullmatch(r"bytes=-(\d+)", asked)):
        return max(0, size_bytes - int(match[1])), size_bytes - 1
    return None


def part_of(data: bytes, heard: Heard, headers: Mapping[str, str], *, beyond: Answer) -> Answer:
    """Answer a GET with the bytes that it asks for, or with `beyond` if it starts after the last one."""
    asked = asked_range(heard, len(data))
    if asked is None:
        return Answer(200, data, dict(headers))
    start, last = asked[0], min(asked[1], len(data) - 1)
    if start >= len(data):
        return beyond
    content_range = {"Content-Range": f"bytes {start}-{last}/{len(data)}"}
    return Answer(206, data[start : last + 1], content_range | dict(headers))
