"""Reads that a checksum protects: a damaged reply is fetched once more before damage is reported.

A bit may flip on the way (in a proxy, a network card, the memory of a server) although the stored object is
sound. Only a second reply shows which of the two happened.

Invariants:

- The second reply comes from the store, like the first. Neither this module nor a store below caches replies.
- As long as nothing is damaged, a read costs one request and holds one reply in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from offload.contracts.store import Buffer, ObjectStore, Span, Suffix
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.store.wrap import StoreDecorator

__all__ = ["checked", "checked_buffer"]

T = TypeVar("T")

INLINE_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A reply up to this size is checked on the event loop: about 0.1 ms per MiB. A thread would cost more."""

NO_TURNS: Final = nullcontext()

_log: Final = logging.getLogger(__name__)


async def checked(
    store: ObjectStore,
    key: str,
    check: Callable[[bytes], T],
    *,
    span: Span | Suffix | None = None,
    inline_size_bytes_max: int = INLINE_SIZE_BYTES_MAX,
) -> T:
    """Read an object, or `span` of it, and return what `check` returns for the bytes.

    `check` raises `Corrupt` or `UnsupportedFormat` for bytes that do not verify; one flipped bit can cause
    either. The bytes are then fetched and checked once more. If the second check succeeds, its value is
    returned, and `StoreMetrics.replies_mended` is one higher. If it fails, its error is raised unchanged.
    Errors of the store are raised too: if the second read fails, nobody knows whether the object is damaged.

    Replies larger than `inline_size_bytes_max` are checked in a thread.
    """
    decode = partial(_of_bytes, check)
    return await checked_buffer(store, key, decode, span=span, inline_size_bytes_max=inline_size_bytes_max)


async def checked_buffer(
    store: ObjectStore,
    key: str,
    check: Callable[[Buffer], T],
    *,
    span: Span | Suffix | None = None,
    inline_size_bytes_max: int = INLINE_SIZE_BYTES_MAX,
    turns: AbstractAsyncContextManager[object] = NO_TURNS,
) -> T:
    """Do the same as `checked`, for a `check` that takes the bytes where the store has put them.

    `turns` bounds the checks in threads.
    """
    try:
        return await _checked_once(store, key, check, span, inline_size_bytes_max, turns)
    except (Corrupt, UnsupportedFormat) as error:
        damage = str(error)
    # The second read is outside the handler, because the error's traceback keeps the first reply in memory
    # until the handler ends. It has a request of its own, so it comes without the hint of the first.
    alone = replace(span, follows=0) if isinstance(span, Span) else span
    value = await _checked_once(store, key, check, alone, inline_size_bytes_max, turns)
    _log.warning("a reply was damaged on the way; the second reply is sound: %s", damage)
    if isinstance(store, StoreDecorator):
        store.note_mended()
    return value


async def _checked_once(
    store: ObjectStore,
    key: str,
    check: Callable[[Buffer], T],
    span: Span | Suffix | None,
    inline_size_bytes_max: int,
    turns: AbstractAsyncContextManager[object],
) -> T:
    raw = await store.get(key, span)
    if len(raw) <= inline_size_bytes_max:
        return check(raw)
    async with turns:
        return await asyncio.to_thread(check, raw)


def _of_bytes(check: Callable[[bytes], T], raw: Buffer) -> T:
    return check(bytes(raw))
