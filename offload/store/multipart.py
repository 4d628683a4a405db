"""Helpers for the backends of remote stores: gathering a body in memory, and sending it in parts.

Invariant: an upload in parts that does not complete is aborted, for every kind of failure.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import check_metadata
from offload.contracts.store import Body, Buffer, ObjectStore, begin_upload
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse

__all__ = [
    "check_create",
    "check_put",
    "check_upload_part",
    "part_numbers",
    "parts_of",
    "put_in_parts",
    "whole",
    "windows_in_memory",
]


async def windows_in_memory(body: Body) -> tuple[list[Buffer], int]:
    """Return the windows of a body, not joined, and their CRC-32C, which is computed only if nobody knows it.

    Raises `Misuse` if they are not `body.size_bytes` together.
    """
    windows, size = list[Buffer](), 0
    async for window in body.windows():
        windows.append(window)
        size += len(window)
        body.check_size(size, is_end=False)
    body.check_size(size)
    if (checksum := body.crc32c()) is None:
        checksum = 0
        for window in windows:
            checksum = crc32c(window, checksum)
    return windows, checksum


def check_create(key: str, data: bytes, capabilities: Capabilities) -> None:
    """Raise `Misuse` if `data` is more than one create takes."""
    most = capabilities.create_size_bytes_max
    if most is not None and len(data) > most:
        raise Misuse(f"cannot create {key!r}: it has {len(data)} bytes, and one request takes at most {most}")


def check_put(key: str, body: Body, capabilities: Capabilities) -> dict[str, str]:
    """Return the metadata of `body`, with names in lower case.

    Raises `Misuse` if the store cannot keep it as it is, or if the object is larger than a put takes.
    """
    most = capabilities.put_size_bytes_max
    if most is not None and body.size_bytes > most:
        raise Misuse(f"cannot store {key!r}: it has {body.size_bytes} bytes, and a put takes at most {most}")
    return check_metadata(body.metadata, capabilities)


def check_upload_part(key: str, number: int, data: Buffer, capabilities: Capabilities) -> None:
    """Raise `Misuse` if an upload takes no part of this number or size. Servers answer this in many ways."""
    parts_max, most = capabilities.parts_max, capabilities.part_size_bytes_max
    if number < 1 or (parts_max is not None and number > parts_max):
        limit = "" if parts_max is None else f", and end at {parts_max}"
        raise Misuse(f"part {number} of {key!r}: numbers begin at 1{limit}")
    if most is not None and len(data) > most:
        raise Misuse(f"part {number} of {key!r} has {len(data)} bytes, and the store takes at most {most}")


async def whole(body: Body) -> bytes:
    """Return the bytes of a body, in memory once. Raises `Misuse` if they are not `body.size_bytes`."""
    gathered = io.BytesIO()
    async for window in body.windows():
        # Checked for each window: a body that never ends must not fill the memory.
        body.check_size(gathered.tell() + len(window), is_end=False)
        gathered.write(window)
    body.check_size(gathered.tell())
    return gathered.getvalue()  # returns the buffer without a copy


async def put_in_parts(
    store: ObjectStore, key: str, body: Body, *, part_size_bytes: int, at_once: int
) -> None:
    """Store a body as a multipart upload, with at most `at_once` parts under way.

    Up to `at_once` + 1 parts are in memory.
    """
    upload = await begin_upload(store, key, body.metadata)
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
                    # Checked for each part, as in `whole`: a body that never ends must not fill the store.
                    body.check_size(sent + len(data), is_end=False)
                    # Before the task is made: a part without a turn would be held in memory too.
                    await turns.acquire()
                    number, sent = number + 1, sent + len(data)
                    group.create_task(put(number, data))
        # Before `complete`, which makes the object visible: an object of another size must never be seen.
        body.check_size(sent)
        await upload.complete()
    except BaseExceptionGroup as group_of_errors:  # callers tell errors apart by class, and a group hides it
        await upload.abort()
        raise group_of_errors.exceptions[0] from None
    except BaseException:
        await upload.abort()
        raise


async def parts_of(body: Body, part_size_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the body in parts of `part_size_bytes`. Only the last part may be shorter."""
    held: list[Buffer] = []
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
    """Return the numbers of an upload's parts in order, from 1 on. Raises `Misuse` if one is missing."""
    found = sorted(numbers)
    if found != [*range(1, len(found) + 1)]:
        raise Misuse(f"the upload of {key!r} lacks a part: it has {found}")
    return found
