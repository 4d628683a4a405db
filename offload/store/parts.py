"""What backends of distant stores share: a body gathered in memory, or sent in parts.

Invariant: an upload in parts that does not complete is aborted, whatever ended it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.errors import Misuse

__all__ = ["check_create", "part_numbers", "parts_of", "put_in_parts", "whole", "windows_in_memory"]


async def windows_in_memory(body: Body) -> list[bytes]:
    """The windows of a body, not joined. Raises `Misuse` where they are not as long as it says."""
    windows, size = [], 0
    async for window in body.windows():
        windows.append(window)
        size += len(window)
        if size > body.size_bytes:
            raise Misuse(f"a body of {body.size_bytes} bytes yielded more")
    if size != body.size_bytes:
        raise Misuse(f"a body of {body.size_bytes} bytes yielded {size}")
    return windows


def check_create(key: str, data: bytes, capabilities: Capabilities) -> None:
    """Raise `Misuse` if `data` is more than one create takes."""
    most = capabilities.create_size_bytes_max
    if most is not None and len(data) > most:
        raise Misuse(f"creating {key!r}: {len(data)} bytes in one request; at most {most} are possible")


async def whole(body: Body) -> bytes:
    """The bytes of a body, in memory once. Raises `Misuse` where they are not as many as it says."""
    gathered = io.BytesIO()
    async for window in body.windows():
        if gathered.tell() + len(window) > body.size_bytes:
            raise Misuse(f"a body of {body.size_bytes} bytes yielded more")
        gathered.write(window)
    if gathered.tell() != body.size_bytes:
        raise Misuse(f"a body of {body.size_bytes} bytes yielded {gathered.tell()}")
    return gathered.getvalue()  # hands its buffer over, and copies nothing


async def put_in_parts(
    store: ObjectStore, key: str, body: Body, *, part_size_bytes: int, at_once: int
) -> None:
    """Store a body as a multipart upload, `at_once` parts under way. Memory: so many parts and one more."""
    upload = await store.start_upload(key)
    try:
        turns = asyncio.Semaphore(at_once)

        async def put(number: int, data: bytes) -> None:
            try:
                await upload.put_part(number, data)
            finally:
                turns.release()

        async with asyncio.TaskGroup() as group:
            sent = number = 0
            async with aclosing(parts_of(body, part_size_bytes)) as parts:
                async for data in parts:
                    await turns.acquire()
                    number, sent = number + 1, sent + len(data)
                    group.create_task(put(number, data))
        if sent != body.size_bytes:
            raise Misuse(f"a body of {body.size_bytes} bytes yielded {sent}")
        await upload.complete()
    except BaseExceptionGroup as group_of_errors:
        await upload.abort()
        raise group_of_errors.exceptions[0] from None
    except BaseException:
        await upload.abort()
        raise


async def parts_of(body: Body, part_size_bytes: int) -> AsyncGenerator[bytes, None]:
    """The body cut anew: every part but the last has `part_size_bytes`."""
    held: list[bytes] = []
    size = 0
    async for window in body.windows():
        held.append(window)
        size += len(window)
        while size >= part_size_bytes:
            data = b"".join(held)
            yield data[:part_size_bytes]
            held, size = [data[part_size_bytes:]], size - part_size_bytes
    if size:
        yield b"".join(held)


def part_numbers(numbers: Iterable[int], key: str) -> list[int]:
    """The numbers of an upload's parts, from 1 on. Raises `Misuse` where one is missing."""
    found = sorted(numbers)
    if found != [*range(1, len(found) + 1)]:
        raise Misuse(f"the upload of {key!r} lacks a part: it has {found}")
    return found
