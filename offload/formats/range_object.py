"""An index object of ranges: the first key of each chunk of ledgers whose records are in the order of a key.

```text
header | body, one zstd frame: ledger | about | offsets | shared | rests | key bytes | ledger | ...
```

It is the second content of index objects (decision 46). A key is bytes, and nothing here knows their meaning:
`about` explains the keys of a ledger to those who do. A key is stored as the number of bytes that it shares
with the key before it, and the rest.

Invariants: the ledgers cover exactly the offsets of the object's name, in order; within a ledger the offsets
of ranges ascend, and keys never fall. The checksum covers the object's key, so an object under another key is
damage, and so is the object of a newer format. No size from bytes is believed before it was checked against
the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.block_codecs import compressor, decompressed
from offload.formats.checksums import crc32c
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.layout import layout
from offload.ground.errors import Corrupt, Misuse
from offload.model.compression import BlockCodec, Compression

__all__ = ["LedgerRanges", "decode_ranges", "encode_ranges"]

RANGE_OBJECT_VERSION: Final = 1
RANGE_OBJECT_MAGIC: Final = b"OLRX"
RANGE_BODY_SIZE_BYTES_MAX: Final = 2**28
RANGE_KEY_SIZE_BYTES_MAX: Final = 2**16 - 1
RANGE_KEYS_SIZE_BYTES_MAX: Final = 2**30
"""The sum of the sizes of all keys. They share bytes, so a small object can state much more."""

RANGE_OBJECT_HEADER: Final = layout(
    "Range object header",
    ("magic", "4s", "`OLRX`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("reserved", "H", "zero, and refused otherwise"),
    ("body_size_bytes", "I", "size of the body before its compression, at most 2^28"),
    ("checksum", "I", "CRC-32C of the object's key, the bytes before it, and the compressed body"),
)
RANGE_LEDGER: Final = layout(
    "Range ledger",
    ("first_offset", "Q", "first offset of the ledger"),
    ("next_offset", "Q", "first offset behind the ledger"),
    ("about_size_bytes", "I", "size of the bytes that explain its keys"),
    ("range_count", "I", "number of ranges, at least 1"),
    ("key_bytes", "I", "size of the rests of all keys"),
)
assert (RANGE_OBJECT_HEADER.size_bytes, RANGE_LEDGER.size_bytes) == (16, 28)


@dataclass(frozen=True, slots=True, eq=False)
class LedgerRanges:
    """Where the keys of one ledger are. Range `i` has the offsets from `offsets[i]` to the next one's."""

    first_offset: int
    next_offset: int
    about: bytes
    """It explains the keys, to those who made them."""
    offsets: npt.NDArray[np.uint64]
    """The first offset of each range, ascending. The first one is `first_offset`."""
    keys: Sequence[bytes]
    """One more than ranges: those of range `i` are `keys[i]` to `keys[i + 1]`, both included."""


def encode_ranges(stream: str, name: IndexName, ledgers: Sequence[LedgerRanges]) -> bytes:
    """Return an object with these ledgers, which cover exactly the offsets of the name.

    Raises `Misuse` for keys that fall, for ledgers that leave out offsets, and for too many or too long keys.
    """
    body = b"".join(map(_encode, ledgers))
    edges = [name.first_offset, *(each.next_offset for each in ledgers)]
    is_whole = [each.first_offset for each in ledgers] == edges[:-1] and edges[-1] == name.next_offset
    is_small = sum(map(_keys_size, ledgers)) <= RANGE_KEYS_SIZE_BYTES_MAX
    if not is_whole or not is_small or len(body) > RANGE_BODY_SIZE_BYTES_MAX:
        raise Misuse(f"ranges of stream {stream!r}: ledgers leave out offsets, or have too many keys")
    packed = compressor(Compression(BlockCodec.ZSTD, 9))(body)
    head = RANGE_OBJECT_HEADER.pack(
        magic=RANGE_OBJECT_MAGIC,
        format_version=RANGE_OBJECT_VERSION,
        reserved=0,
        body_size_bytes=len(body),
        checksum=0,
    )[:-4]
    return head + _checksum(stream, name, head, packed).to_bytes(4, "big") + packed


def decode_ranges(raw: bytes | memoryview, stream: str, name: IndexName) -> list[LedgerRanges]:
    """Return the ledgers of a whole object, all of it checked. Raises `Corrupt`."""
    where, size, raw = StreamKeys(stream).index(name), RANGE_OBJECT_HEADER.size_bytes, memoryview(raw)
    if len(raw) < size:
        raise Corrupt("range object size", where, expected=f">= {size}", found=len(raw))
    header = RANGE_OBJECT_HEADER.unpack(bytes(raw[:size]))
    head, packed = bytes(raw[: size - 4]), raw[size:]
    for what, expected, found in (
        ("magic", RANGE_OBJECT_MAGIC, header["magic"]),
        ("format version", RANGE_OBJECT_VERSION, header["format_version"]),
        ("checksum", header["checksum"], _checksum(stream, name, head, packed)),
        ("reserved", 0, header["reserved"]),
    ):
        if found != expected:
            raise Corrupt(f"range object {what}", where, expected=expected, found=found)
    plain_size = min(header["body_size_bytes"], RANGE_BODY_SIZE_BYTES_MAX)
    body = decompressed(packed, BlockCodec.ZSTD, size_bytes=plain_size, where=where, position=size)
    ledgers, at, end, room = list[LedgerRanges](), 0, name.first_offset, RANGE_KEYS_SIZE_BYTES_MAX
    while at < len(body):
        ledger, at = _decode(body, at, where, room)
        room -= _keys_size(ledger)
        if ledger.first_offset != end:
            raise _wrong(where, f"a ledger from offset {end} on", ledger.first_offset)
        ledgers.append(ledger)
        end = ledger.next_offset
    if end != name.next_offset:
        raise _wrong(where, f"ledgers up to offset {name.next_offset}", end)
    return ledgers


def _encode(ledger: LedgerRanges) -> bytes:
    keys, count = [b"", *ledger.keys], len(ledger.offsets)
    shared = [_shared(*pair) for pair in pairwise(keys)]
    rests = [key[known:] for key, known in zip(ledger.keys, shared, strict=True)]
    is_possible = len(ledger.keys) == count + 1 and all(before <= key for before, key in pairwise(keys))
    if not is_possible or max(map(len, keys)) > RANGE_KEY_SIZE_BYTES_MAX:
        raise Misuse(f"keys of the ledger at offset {ledger.first_offset} fall, or one is too long")
    joined = b"".join(rests)
    head = RANGE_LEDGER.pack(
        first_offset=ledger.first_offset,
        next_offset=ledger.next_offset,
        about_size_bytes=len(ledger.about),
        range_count=count,
        key_bytes=len(joined),
    )
    steps = np.diff(ledger.offsets, prepend=np.uint64(ledger.first_offset)).astype(">u4")
    sizes = np.array([*shared, *map(len, rests)], ">u2")
    return b"".join([head, ledger.about, steps.tobytes(), sizes.tobytes(), joined])


def _keys_size(ledger: LedgerRanges) -> int:
    return sum(map(len, ledger.keys))


def _shared(one: bytes, other: bytes) -> int:
    """Return with how many equal bytes both begin."""
    size = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def _decode(body: bytes, at: int, where: str, room: int) -> tuple[LedgerRanges, int]:
    """Return the ledger at a position, and where it ends. Its keys have `room` bytes at most."""
    begin = at + RANGE_LEDGER.size_bytes
    if begin > len(body):
        raise _wrong(where, "a ledger", "its beginning")
    head = RANGE_LEDGER.unpack(body[at:begin])
    count, about_end = head["range_count"], begin + head["about_size_bytes"]
    sizes_at = about_end + 4 * count
    keys_at = sizes_at + 4 * (count + 1)
    end = keys_at + head["key_bytes"]
    if not count or end > len(body):
        raise _wrong(where, f"ranges within {len(body)} bytes", f"{count} that end at {end}")
    offsets = np.cumsum(np.frombuffer(body, ">u4", count, about_end), dtype=np.uint64)
    sizes = np.frombuffer(body, ">u2", 2 * (count + 1), sizes_at).reshape(2, -1)
    whole = sizes.sum(axis=0, dtype=np.int64)
    if whole.max() > RANGE_KEY_SIZE_BYTES_MAX or int(whole.sum()) > room:
        raise _wrong(where, f"keys of {RANGE_KEYS_SIZE_BYTES_MAX} bytes at most", int(whole.sum()))
    shared, rests = sizes.tolist()
    keys, key, start = list[bytes](), b"", keys_at
    for known, rest in zip(shared, rests, strict=True):
        before, key = key, key[:known] + body[start : start + rest]
        start += rest
        if key < before or len(key) != known + rest:
            raise _wrong(where, "keys that ascend", key[:100])
        keys.append(key)
    length = head["next_offset"] - head["first_offset"]
    if start != end or offsets[0] or (np.diff(offsets) == 0).any() or int(offsets[-1]) >= length:
        raise _wrong(where, "ranges in order within their ledger", "others")
    offsets += np.uint64(head["first_offset"])
    about = body[begin:about_end]
    return LedgerRanges(head["first_offset"], head["next_offset"], about, offsets, keys), end


def _checksum(stream: str, name: IndexName, head: bytes, packed: bytes | memoryview) -> int:
    return crc32c(packed, crc32c(StreamKeys(stream).index(name).encode() + head))


def _wrong(where: str, expected: str, found: object) -> Corrupt:
    return Corrupt("ranges", where, expected=expected, found=found, position=RANGE_OBJECT_HEADER.size_bytes)
