"""Reading a fragment as a whole, and checking every byte of it against every checksum.

`verify` uses it, and so does the adoption of fragments that a crash left. The object itself says where its
chunks are, so no manifest is needed.

Memory is one window, or one larger chunk. Everything before the tail comes by one request, if the store can
answer several reads from one reply (`Span.follows`). Threads compute the checksums.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from offload.contracts.store import Buffer, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.formats.chunk import check_chunks
from offload.formats.fragment import FragmentTail
from offload.formats.fragment_trailer import HEADER, TRAILER, FragmentTrailer, check_header
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt
from offload.native.key_ring import KeyRing, unlocked
from offload.store.checked import checked, checked_buffer

CHECK_WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFragment:
    """A fragment whose every byte was read and found sound."""

    tail: FragmentTail
    checksum: int
    """CRC-32C of the whole object."""

    @property
    def is_opened(self) -> bool:
        """True if the chunks were checked too. False if only stored bytes of an encrypted fragment were."""
        return self.tail.checksums is not None


async def check_fragment(
    store: ObjectStore,
    key: str,
    *,
    size_bytes: int,
    tail_size_bytes: int | None = None,
    ring: KeyRing | None = None,
    opens: Callable[[FragmentTail], Awaitable[bool]] | None = None,
) -> CheckedFragment:
    """Read the whole object, and check it against itself and against its key.

    A caller that knows the size of the tail saves a request. `opens` is asked whether the ring opens an
    encrypted fragment. If it returns False, no ring is used.

    Without a `ring`, the stored bytes of an encrypted fragment are checked, and not its chunks: the tail that
    is returned has no checksums of them. Raises `Corrupt` at the first byte or part that is damaged,
    `NotFound` if the object is gone, and errors of `unlocked`.
    """
    # The tail comes first: its index says where the chunks are, and what their checksums should be.
    tail, raw_tail = await load_own_tail(store, key, size_bytes=size_bytes, tail_size_bytes=tail_size_bytes)
    if tail.trailer.encrypted and opens is not None and not await opens(tail):
        ring = None
    if ring is not None:
        tail = await unlocked(store, tail, ring, where=key)
    behind = tail.trailer.tail_start
    check_begin = partial(_header_sum, version=tail.trailer.version, key=key)
    end = HEADER.size_bytes
    checksum = await checked(store, key, check_begin, span=Span(0, end, follows=behind - end))
    for first, stop in tail.windows(0, len(tail.table), size_bytes=CHECK_WINDOW_SIZE_BYTES):
        begin, end = tail.span_of(first, stop)
        check = partial(_check_window, tail=tail, first=first, stop=stop, key=key, before=checksum)
        span = Span(begin, end - begin, follows=behind - end)
        # Always in a thread: beside the stored checksums, the CRC of each chunk is computed as well.
        checksum = await checked_buffer(store, key, check, span=span, inline_size_bytes_max=0)
    # Sections of later programs may lie between the chunks and the tail.
    while end < behind:
        length = min(CHECK_WINDOW_SIZE_BYTES, behind - end)
        span = Span(end, length, follows=behind - end - length)
        check = partial(_continued_sum, span=span, key=key, before=checksum)
        checksum = await checked_buffer(store, key, check, span=span, inline_size_bytes_max=0)
        end += length
    if checksum != tail.trailer.data_checksum:
        raise Corrupt("data checksum", key, expected=tail.trailer.data_checksum, found=checksum)
    return CheckedFragment(tail=tail, checksum=crc32c(raw_tail, checksum))


def _header_sum(raw: bytes, *, version: int, key: str) -> int:
    check_header(raw, version=version, where=key)
    return crc32c(raw)


def _check_window(raw: Buffer, *, tail: FragmentTail, first: int, stop: int, key: str, before: int) -> int:
    """Check chunks against the index and against themselves. Return the object's checksum up to their end."""
    if tail.checksums is None:
        tail.check_stored(raw, first, stop, where=key)
        return crc32c(raw, before)
    rows = tail.table[first:stop]
    plain = tail.chunks_in(raw, first, stop, where=key)
    check_chunks(plain, rows, window_position=int(rows["position"][0]), where=key)
    return crc32c(raw, before)


def _continued_sum(raw: Buffer, *, span: Span, key: str, before: int) -> int:
    if len(raw) != span.length:
        raise Corrupt("object size", key, position=span.start, expected=span.length, found=len(raw))
    return crc32c(raw, before)


def check_key_of(tail: FragmentTail, key: str) -> None:
    """Raise `Corrupt` if the object says that it belongs under another key."""
    expected = StreamKeys(tail.stream).fragment(tail.trailer.first_offset, tail.trailer.attempt)
    if key != expected:
        raise Corrupt("key", key, position=tail.trailer.tail_start, expected=key, found=expected)


async def load_own_tail(
    store: ObjectStore, key: str, *, size_bytes: int, tail_size_bytes: int | None = None
) -> tuple[FragmentTail, bytes]:
    """Read the tail of an object of this size. Return it decoded and as bytes.

    The tail is checked to belong under the object's key. Costs one request, and another one for the trailer
    if `tail_size_bytes` is not known. Raises `Corrupt` if the tail is damaged or larger than that, `NotFound`
    if the object is gone.
    """

    def decode(raw: bytes) -> tuple[FragmentTail, bytes]:
        tail = FragmentTail.decode(raw, where=key, size_bytes=size_bytes)
        check_key_of(tail, key)
        return tail, raw[-tail.trailer.tail_size_bytes :]

    if tail_size_bytes is None:
        tail_size_bytes = (await load_trailer(store, key, size_bytes=size_bytes)).tail_size_bytes
    return await checked(store, key, decode, span=Span(size_bytes - tail_size_bytes, tail_size_bytes))


async def load_trailer(store: ObjectStore, key: str, *, size_bytes: int) -> FragmentTrailer:
    """Read the trailer of an object of this size, by one request. Raises as `load_own_tail` does."""
    if size_bytes < HEADER.size_bytes + TRAILER.size_bytes:
        raise Corrupt(
            "object size", key, expected=f">= {HEADER.size_bytes + TRAILER.size_bytes}", found=size_bytes
        )

    def decode(raw: bytes) -> FragmentTrailer:
        trailer = FragmentTrailer.decode(raw, where=key, position=size_bytes - TRAILER.size_bytes)
        if trailer.size_bytes != size_bytes:
            raise Corrupt("object size", key, expected=trailer.size_bytes, found=size_bytes)
        return trailer

    return await checked(store, key, decode, span=Suffix(TRAILER.size_bytes))
