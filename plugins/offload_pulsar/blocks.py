"""Data blocks: the parts of a data object. A block has a header, whole entries, and perhaps padding.

```text
block     header (128 bytes) | entry | entry | ... | padding
entry     size (4 bytes) | id (8 bytes) | as many bytes as the size says
padding   FE DC DE AD FE DC ..., from its first byte on, cut anywhere
```

Invariants: entry ids within a block rise by one. No entry crosses the end of its block. Integers are
big-endian. Nothing carries a checksum, so a flipped bit in the bytes of an entry cannot be found here.

A V1 object has one ledger. In V2 each block also names its ledger, and an object may have several of them.
Where a block ends is known from the index, never from the bytes behind it: in V1 the next header looks like
a negative size, and in V2 like a large positive one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.contracts.store import Buffer
from offload.formats.layout import layout
from offload.ground.errors import Corrupt, Misuse

__all__ = [
    "ENTRY_HEADER_SIZE_BYTES",
    "HEADER_SIZE_BYTES",
    "BlockCutter",
    "BlockHeader",
    "CutBlock",
    "FoundEntries",
    "encode_entries",
    "padding",
    "walk",
]


Positions = npt.NDArray[np.uint64]

BLOCK_MAGIC_V1: Final = bytes.fromhex("fbdbabcb")
BLOCK_MAGIC_V2: Final = bytes.fromhex("26a66d32")
PADDING: Final = bytes.fromhex("fedcdead")

BLOCK_HEADER_V1: Final = layout(
    "Data block header, V1",
    ("magic", "4s", "`FB DB AB CB`"),
    ("header_size_bytes", "Q", "128"),
    ("block_size_bytes", "Q", "the whole block, with header and padding"),
    ("first_entry_id", "Q", "the id of the first entry"),
    ("reserved", "100s", "zero, and refused otherwise"),
)

BLOCK_HEADER_V2: Final = layout(
    "Data block header, V2",
    ("magic", "4s", "`26 A6 6D 32`"),
    ("header_size_bytes", "Q", "128"),
    ("block_size_bytes", "Q", "the whole block, with header and padding"),
    ("first_entry_id", "Q", "the id of the first entry in its ledger, which need not be 0"),
    ("ledger_id", "Q", "the ledger of all entries of the block"),
    ("reserved", "92s", "zero, and refused otherwise"),
)

ENTRY_HEADER: Final = layout(
    "Entry header",
    ("size_bytes", "i", "the size of the entry without this header; a negative number is padding"),
    ("entry_id", "q", "one more than the id of the entry before"),
)

HEADER_SIZE_BYTES: Final = BLOCK_HEADER_V1.size_bytes
ENTRY_HEADER_SIZE_BYTES: Final = ENTRY_HEADER.size_bytes
assert HEADER_SIZE_BYTES == BLOCK_HEADER_V2.size_bytes == 128
assert ENTRY_HEADER_SIZE_BYTES == 12

_RUN_MIN: Final = 16
_RUN_MAX: Final = 2**16
"""Entries of one size that are looked at in one step: the first time, and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """The header of a data block. `ledger_id` is None in V1, where the key of the object has it."""

    block_size_bytes: int
    first_entry_id: int
    ledger_id: int | None = None

    def encode(self) -> bytes:
        """Return the 128 bytes: V2 if there is a ledger id, else V1."""
        values: dict[str, Any] = {
            "header_size_bytes": HEADER_SIZE_BYTES,
            "block_size_bytes": self.block_size_bytes,
            "first_entry_id": self.first_entry_id,
        }
        if self.ledger_id is None:
            return BLOCK_HEADER_V1.pack(magic=BLOCK_MAGIC_V1, reserved=b"", **values)
        return BLOCK_HEADER_V2.pack(magic=BLOCK_MAGIC_V2, ledger_id=self.ledger_id, reserved=b"", **values)

    @classmethod
    def decode(cls, raw: Buffer, *, where: str, position: int = 0) -> BlockHeader:
        """Undo `encode`. `raw` may be longer. Raises `Corrupt` with the byte; `position` is that of `raw`."""
        if len(raw) < HEADER_SIZE_BYTES:
            raise Corrupt(
                "size of a block header", where, expected=HEADER_SIZE_BYTES, found=len(raw), position=position
            )
        magic = bytes(raw[:4])
        if magic not in (BLOCK_MAGIC_V1, BLOCK_MAGIC_V2):
            known = f"{BLOCK_MAGIC_V1.hex()} or {BLOCK_MAGIC_V2.hex()}"
            raise Corrupt("magic of a block", where, expected=known, found=magic.hex(), position=position)
        table = BLOCK_HEADER_V1 if magic == BLOCK_MAGIC_V1 else BLOCK_HEADER_V2
        values = table.unpack(raw)
        for name, expected in (
            ("header_size_bytes", HEADER_SIZE_BYTES),
            ("reserved", bytes(len(values["reserved"]))),
        ):
            if values[name] != expected:
                at = position + table.offset_of(name)
                found = "other bytes" if name == "reserved" else values[name]
                wanted = "zero" if name == "reserved" else expected
                raise Corrupt(f"{name} of a block", where, expected=wanted, found=found, position=at)
        return cls(
            block_size_bytes=values["block_size_bytes"],
            first_entry_id=values["first_entry_id"],
            ledger_id=values.get("ledger_id"),
        )

    def check(self, expected: BlockHeader, *, where: str, position: int) -> None:
        """Raise `Corrupt` if this is not the header that the index led to. The block begins at `position`."""
        table = BLOCK_HEADER_V1 if self.ledger_id is None else BLOCK_HEADER_V2
        for name in ("ledger_id", "block_size_bytes", "first_entry_id"):
            wanted, found = getattr(expected, name), getattr(self, name)
            if wanted != found:
                at = position + (table.offset_of(name) if found is not None else 0)
                raise Corrupt(f"{name} of a block", where, expected=wanted, found=found, position=at)


def padding(size_bytes: int) -> bytes:
    """Return the padding of this size. Its first byte is always `FE`."""
    return (PADDING * (size_bytes // len(PADDING) + 1))[:size_bytes]


def encode_entries(data: Buffer, starts: Positions, ends: Positions, *, first: int) -> bytes:
    """Return the entries `data[start:end]` with their headers, back to back. `first` is the id of the first.

    The caller has checked the positions.
    """
    count = len(starts)
    if not count:
        return b""
    headers = np.empty(count, ENTRY_HEADER.dtype)
    headers["size_bytes"] = ends - starts
    headers["entry_id"] = np.arange(first, first + count)
    size, begin = int(ends[0] - starts[0]), int(starts[0])
    if bool((ends == begin + size * np.arange(1, count + 1, dtype=np.uint64)).all()) and (
        bool((starts[1:] == ends[:-1]).all())
    ):
        # Entries of one size, back to back, are the rows of a table.
        rows = np.empty((count, ENTRY_HEADER_SIZE_BYTES + size), np.uint8)
        rows[:, :ENTRY_HEADER_SIZE_BYTES] = headers.view(np.uint8).reshape(count, -1)
        rows[:, ENTRY_HEADER_SIZE_BYTES:] = np.frombuffer(data, np.uint8, count * size, begin).reshape(
            count, size
        )
        return rows.tobytes()
    view, packed = memoryview(data), memoryview(headers.tobytes())
    pieces: list[memoryview] = []
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        at = number * ENTRY_HEADER_SIZE_BYTES
        pieces += (packed[at : at + ENTRY_HEADER_SIZE_BYTES], view[start:end])
    return b"".join(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBlock:
    """A finished block: one part of the data object."""

    first_entry_id: int
    data: bytes


class BlockCutter:
    """Cuts the entries of one ledger into V1 blocks by Pulsar's rule.

    A block has `block_size_bytes_max` bytes, or exactly what the rest of the ledger needs, if that is less.
    So only the last block has no padding, or one that is full to the byte.

    The ledger states its last entry and its length, and the rule needs both. The cutter raises instead of
    losing entries: `Misuse` for an entry that no block can take, and `Corrupt` for a length that is not the
    sum of the sizes. After an error it cannot be used further.
    """

    def __init__(self, *, last_entry: int, length: int, block_size_bytes_max: int, where: str) -> None:
        if block_size_bytes_max <= HEADER_SIZE_BYTES + ENTRY_HEADER_SIZE_BYTES:
            least = HEADER_SIZE_BYTES + ENTRY_HEADER_SIZE_BYTES + 1
            raise Misuse(f"a block of {block_size_bytes_max} bytes takes no entry: the least is {least}")
        self._entries = last_entry + 1
        self._length = length
        self._most = block_size_bytes_max
        self._where = where
        self._next = 0
        self._written = 0
        self._first = 0
        self._pieces: list[bytes] = []
        self._filled = 0
        self._size = 0

    def add(self, data: Buffer, starts: Positions, ends: Positions) -> Iterator[CutBlock]:
        """Take the next entries, and yield each block that is finished. The caller exhausts the iterator."""
        needed = np.cumsum(ends - starts + np.uint64(ENTRY_HEADER_SIZE_BYTES), dtype=np.uint64)
        at, before, count = 0, 0, len(starts)
        while at < count:
            if not self._size:
                self._begin()
            room = self._size - self._filled
            fitting = int(np.searchsorted(needed, before + room, side="right"))
            if fitting > at:
                taken = int(needed[fitting - 1]) - before
                self._pieces.append(
                    encode_entries(data, starts[at:fitting], ends[at:fitting], first=self._next)
                )
                self._filled += taken
                self._written += taken - ENTRY_HEADER_SIZE_BYTES * (fitting - at)
                self._next += fitting - at
                before, at = before + taken, fitting
            if at < count:
                self._refuse(int(ends[at] - starts[at]))
                yield self._finish()
        if self._next == self._entries:
            self._check_length()
            yield self._finish()

    def _begin(self) -> None:
        rest = ENTRY_HEADER_SIZE_BYTES * (self._entries - self._next) + self._length - self._written
        self._size = min(self._most, HEADER_SIZE_BYTES + rest)
        header = BlockHeader(block_size_bytes=max(self._size, 0), first_entry_id=self._next)
        self._first, self._pieces, self._filled = self._next, [header.encode()], HEADER_SIZE_BYTES

    def _refuse(self, size: int) -> None:
        """Raise for an entry that does not fit this block, unless it begins the next one."""
        most = self._most - HEADER_SIZE_BYTES - ENTRY_HEADER_SIZE_BYTES
        if size > most:
            raise Misuse(
                f"{self._where}: entry {self._next} has {size} bytes, and a block of {self._most} bytes "
                f"takes an entry of at most {most}: choose larger blocks"
            )
        if self._size < self._most:  # this block was to hold all of the rest
            self._wrong_length(f"more: entry {self._next} of {size} bytes does not fit")

    def _check_length(self) -> None:
        if self._written != self._length:
            self._wrong_length(self._written)

    def _wrong_length(self, found: object) -> None:
        raise Corrupt("length of the ledger", self._where, expected=self._length, found=found)

    def _finish(self) -> CutBlock:
        self._pieces.append(padding(self._size - self._filled))
        block = CutBlock(first_entry_id=self._first, data=b"".join(self._pieces))
        assert len(block.data) == self._size
        self._pieces, self._size = [], 0
        return block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundEntries:
    """The entries that one look at a block found, in order. Their bytes are `data[start:end]`."""

    starts: Positions
    ends: Positions
    used_bytes: int
    """Bytes of the data up to the end of the last entry."""

    is_over: bool
    """The entries end here: the block does, or its padding begins."""

    is_damaged: bool = False
    """The walk stopped at damage, which a walk from there would raise."""


def walk(
    data: Buffer,
    *,
    first: int,
    is_last_data: bool,
    where: str,
    position: int = 0,
    entries_max: int | None = None,
    stops_at_damage: bool = False,
) -> FoundEntries:
    """Find the entries in `data`, which begins with an entry header, or with the end of the block.

    `data` ends with the block if `is_last_data` is True; otherwise an entry that is cut off at the end is
    left for later. `first` is the id of the first entry, `position` the byte of `data` in its object.
    `entries_max` ends the walk early. Raises `Corrupt`, with the byte, for an id out of sequence, an entry
    that crosses the end of its block, and padding of other bytes. If it `stops_at_damage`, it returns the
    entries before the damage, and raises only if there are none.
    """
    size, at, entry = len(data), 0, first
    most = size if entries_max is None else entries_max
    starts: list[Positions] = []
    singles: list[int] = []
    sizes: list[Positions] = []
    single_sizes: list[int] = []
    unpack, step, before = ENTRY_HEADER.struct.unpack_from, _RUN_MIN, -1
    is_over = is_damaged = False

    def flush() -> None:
        if singles:
            starts.append(np.array(singles, np.uint64))
            sizes.append(np.array(single_sizes, np.uint64))
            singles.clear()
            single_sizes.clear()

    try:
        while entry - first < most:
            if size - at < ENTRY_HEADER_SIZE_BYTES:
                # Fewer bytes than a header can only be padding, and they may be cut.
                if is_last_data:
                    _check_padding(data, at, where, position)
                    is_over = True
                break
            length, found = unpack(data, at)
            if length < 0:
                _check_padding(data, at, where, position)
                is_over = True
                break
            if found != entry:
                raise Corrupt(
                    "id of an entry", where, expected=entry, found=found, position=position + at + 4
                )
            end = at + ENTRY_HEADER_SIZE_BYTES + length
            if end > size:
                if is_last_data:
                    room = f"at most {size - at - ENTRY_HEADER_SIZE_BYTES}"
                    raise Corrupt(
                        "size of an entry", where, expected=room, found=length, position=position + at
                    )
                break
            if length == before:
                # Several entries of one size: look at many headers at once, and at more each time.
                taken = _run(data, at, length, entry, min(step, most - (entry - first)))
                flush()
                stride = ENTRY_HEADER_SIZE_BYTES + length
                starts.append(at + ENTRY_HEADER_SIZE_BYTES + stride * np.arange(taken, dtype=np.uint64))
                sizes.append(np.full(taken, length, np.uint64))
                at, entry, step = at + taken * stride, entry + taken, min(2 * step, _RUN_MAX)
            else:
                singles.append(at + ENTRY_HEADER_SIZE_BYTES)
                single_sizes.append(length)
                at, entry, before, step = end, entry + 1, length, _RUN_MIN
    except Corrupt:
        if not stops_at_damage or entry == first:
            raise
        is_damaged = True
    flush()
    begin = np.concatenate(starts) if starts else np.empty(0, np.uint64)
    lengths = np.concatenate(sizes) if sizes else np.empty(0, np.uint64)
    return FoundEntries(
        starts=begin, ends=begin + lengths, used_bytes=at, is_over=is_over, is_damaged=is_damaged
    )


def _run(data: Buffer, at: int, length: int, entry: int, most: int) -> int:
    """Return how many entries from byte `at` on have this size and the next ids: at least one."""
    stride = ENTRY_HEADER_SIZE_BYTES + length
    count = min(most, (len(data) - at) // stride)
    headers = np.ndarray((count,), ENTRY_HEADER.dtype, data, at, (stride,))
    good = (headers["size_bytes"] == length) & (headers["entry_id"] == np.arange(entry, entry + count))
    return count if good.all() else int(good.argmin())


def _check_padding(data: Buffer, at: int, where: str, position: int) -> None:
    found = bytes(data[at:])
    expected = padding(len(found))
    if found != expected:
        wrong = next(number for number, byte in enumerate(found) if byte != expected[number])
        raise Corrupt(
            "padding of a block",
            where,
            expected=expected[wrong : wrong + 4].hex(),
            found=found[wrong : wrong + 4].hex(),
            position=position + at + wrong,
        )
