"""Index objects: which block of the data object has which entries. One for each data object.

```text
V1    header | LedgerMetadata | block | block | ...
V2    header | group | group | ...        a group: its header | LedgerInfo | block | block | ...
```

An index is the commit marker of its data: Pulsar writes it last. A data object without index is garbage.

Invariants of every index that is encoded or decoded: blocks of one ledger have rising first entries. All
blocks of the object together, in the order of their offsets, begin at 0 and have the part numbers 1, 2, 3
and so on. Each has room for its header, and the last ends with the data object. Part of V2 is that groups
come in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.contracts.store import Buffer
from offload.formats.layout import layout
from offload.ground.errors import Corrupt
from offload_pulsar.blocks import ENTRY_HEADER_SIZE_BYTES, HEADER_SIZE_BYTES
from offload_pulsar.ledger_metadata import LedgerInfo, LedgerMetadata

__all__ = ["LedgerGroup", "PulsarIndex"]


INDEX_MAGIC_V1: Final = bytes.fromhex("de47de47")
INDEX_MAGIC_V2: Final = bytes.fromhex("3d1fb0bc")

INDEX_HEADER_V1: Final = layout(
    "Index header, V1",
    ("magic", "4s", "`DE 47 DE 47`"),
    ("index_size_bytes", "I", "the size of this object"),
    ("data_size_bytes", "Q", "the size of the data object"),
    ("header_size_bytes", "Q", "128, the size of the header of each block"),
    ("block_count", "I", "number of blocks"),
    ("metadata_size_bytes", "I", "the size of the LedgerMetadata message that follows"),
)

INDEX_HEADER_V2: Final = layout(
    "Index header, V2",
    ("magic", "4s", "`3D 1F B0 BC`"),
    ("index_size_bytes", "I", "the size of this object"),
    ("data_size_bytes", "Q", "the size of the data object"),
    ("header_size_bytes", "Q", "128, the size of the header of each block"),
)

GROUP_HEADER: Final = layout(
    "Group header, V2",
    ("ledger_id", "Q", "the ledger of this group"),
    ("block_count", "I", "number of its blocks"),
    ("metadata_size_bytes", "I", "the size of the LedgerInfo message that follows"),
)

INDEX_BLOCK: Final = layout(
    "Block of an index",
    ("first_entry_id", "Q", "the id of the first entry of the block"),
    ("part_number", "I", "1 for the first block of the object, and one more for each that follows"),
    ("offset", "Q", "the byte of the data object at which the block begins"),
)

assert INDEX_HEADER_V1.size_bytes == 32
assert INDEX_HEADER_V2.size_bytes == 24
assert GROUP_HEADER.size_bytes == 16
assert INDEX_BLOCK.size_bytes == 20

HEAD_SIZE_BYTES: Final = INDEX_HEADER_V2.size_bytes
"""So many bytes of an index are enough for `PulsarIndex.stated_size_bytes`."""

BLOCK_SIZE_BYTES_MIN: Final = HEADER_SIZE_BYTES + ENTRY_HEADER_SIZE_BYTES
"""The size of a block with one empty entry."""

GROUPS_MAX: Final = 2**16
"""The most ledgers of one object that are read. The largest that we saw has three."""

IndexRows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LedgerGroup:
    """One ledger in an index: its blocks, and what its metadata says."""

    ledger_id: int
    metadata: LedgerMetadata | LedgerInfo
    blocks: IndexRows
    """Rows of `INDEX_BLOCK`, in the order of their entries."""

    ends: npt.NDArray[np.uint64]
    """The byte of the data object at which each block ends."""

    @property
    def first_entry(self) -> int:
        """The first entry that the object has. In V2 it need not be 0."""
        return int(self.blocks["first_entry_id"][0])

    @property
    def last_entry(self) -> int:
        """The last entry of the ledger, as its metadata says."""
        if isinstance(self.metadata, LedgerMetadata):
            return self.metadata.last_entry
        return self.metadata.entries - 1

    def block_of(self, entry: int) -> int:
        """Return the number of the block that has `entry`, if any has."""
        found = np.searchsorted(self.blocks["first_entry_id"], np.uint64(entry), side="right")
        return int(found) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarIndex:
    """A decoded index of either version."""

    version: int
    data_size_bytes: int
    groups: tuple[LedgerGroup, ...]

    @classmethod
    def decode(cls, raw: Buffer, *, ledger_id: int | None, where: str) -> PulsarIndex:
        """Read an index. `ledger_id` is that of its key: a number in V1, None in V2.

        Raises `Corrupt`, with the byte, for another magic, a cut object, and anything that breaks the
        invariants. Memory is bounded by the size of `raw`, whatever its numbers say.
        """
        version = 2 if ledger_id is None else 1
        magic, table = (
            (INDEX_MAGIC_V2, INDEX_HEADER_V2) if version == 2 else (INDEX_MAGIC_V1, INDEX_HEADER_V1)
        )
        if len(raw) < table.size_bytes:
            raise Corrupt("size of the index", where, expected=f"at least {table.size_bytes}", found=len(raw))
        header = table.unpack(raw)
        for name, expected in (
            ("magic", magic),
            ("index_size_bytes", len(raw)),
            ("header_size_bytes", HEADER_SIZE_BYTES),
        ):
            if header[name] != expected:
                wanted, found = (
                    (each.hex() if isinstance(each, bytes) else each) for each in (expected, header[name])
                )
                raise Corrupt(
                    f"{name} of the index",
                    where,
                    expected=wanted,
                    found=found,
                    position=table.offset_of(name),
                )
        found = _groups_of(raw, header, ledger_id, where)
        ends = _ends(found, header["data_size_bytes"], where)
        groups = tuple(each.checked(end, version, where) for each, end in zip(found, ends, strict=True))
        return cls(version=version, data_size_bytes=header["data_size_bytes"], groups=groups)

    @classmethod
    def stated_size_bytes(cls, head: Buffer) -> int | None:
        """Return the size of the data object, from the first `HEAD_SIZE_BYTES`. None if they are no index."""
        if len(head) < INDEX_HEADER_V2.size_bytes:
            return None
        # Both versions begin alike.
        header = INDEX_HEADER_V2.unpack(head)
        size: int = header["data_size_bytes"]
        return size if header["magic"] in (INDEX_MAGIC_V1, INDEX_MAGIC_V2) else None

    def encode(self) -> bytes:
        """Undo `decode`."""
        if self.version == 1:
            (group,) = self.groups
            message, table = group.metadata.raw, group.blocks.tobytes()
            header = INDEX_HEADER_V1.pack(
                magic=INDEX_MAGIC_V1,
                index_size_bytes=INDEX_HEADER_V1.size_bytes + len(message) + len(table),
                data_size_bytes=self.data_size_bytes,
                header_size_bytes=HEADER_SIZE_BYTES,
                block_count=len(group.blocks),
                metadata_size_bytes=len(message),
            )
            return header + message + table
        body = b"".join(
            GROUP_HEADER.pack(
                ledger_id=each.ledger_id,
                block_count=len(each.blocks),
                metadata_size_bytes=len(each.metadata.raw),
            )
            + each.metadata.raw
            + each.blocks.tobytes()
            for each in self.groups
        )
        header = INDEX_HEADER_V2.pack(
            magic=INDEX_MAGIC_V2,
            index_size_bytes=INDEX_HEADER_V2.size_bytes + len(body),
            data_size_bytes=self.data_size_bytes,
            header_size_bytes=HEADER_SIZE_BYTES,
        )
        return header + body

    @classmethod
    def of_blocks(
        cls, ledger_id: int, metadata: LedgerMetadata, firsts: Sequence[int], sizes: Sequence[int]
    ) -> PulsarIndex:
        """Return the V1 index of blocks that lie back to back: the first entry and the size of each."""
        blocks = np.empty(len(firsts), INDEX_BLOCK.dtype)
        ends = np.cumsum(np.array(sizes, np.uint64), dtype=np.uint64)
        blocks["first_entry_id"] = firsts
        blocks["part_number"] = np.arange(1, len(firsts) + 1)
        blocks["offset"] = ends - np.array(sizes, np.uint64)
        group = LedgerGroup(ledger_id=ledger_id, metadata=metadata, blocks=blocks, ends=ends)
        return cls(version=1, data_size_bytes=int(ends[-1]), groups=(group,))


def _groups_of(raw: Buffer, header: dict[str, Any], ledger_id: int | None, where: str) -> list[_Group]:
    """Cut an index into its groups. V1 has one, whose header is part of the header of the index."""
    if ledger_id is not None:
        counts = header["block_count"], header["metadata_size_bytes"]
        only = _Group.read(raw, INDEX_HEADER_V1.size_bytes, ledger_id, *counts, where)
        if only.end != len(raw):
            raise Corrupt("size of the index", where, expected=only.end, found=len(raw), position=4)
        return [only]
    groups: list[_Group] = []
    seen: set[int] = set()
    at = INDEX_HEADER_V2.size_bytes
    while at < len(raw):
        if len(groups) == GROUPS_MAX:
            raise Corrupt(
                "groups of the index", where, expected=f"at most {GROUPS_MAX}", found="more", position=at
            )
        _need(raw, at, GROUP_HEADER.size_bytes, where)
        fields = GROUP_HEADER.unpack(raw, at)
        if fields["ledger_id"] in seen:
            raise Corrupt(
                "ledger of a group", where, expected="a new one", found=fields["ledger_id"], position=at
            )
        seen.add(fields["ledger_id"])
        begin, counts = at + GROUP_HEADER.size_bytes, (fields["block_count"], fields["metadata_size_bytes"])
        groups.append(_Group.read(raw, begin, fields["ledger_id"], *counts, where))
        at = groups[-1].end
    if not groups:
        raise Corrupt("groups of the index", where, expected="at least 1", found=0, position=at)
    return groups


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """A group whose bytes were cut out, and not checked yet."""

    ledger_id: int
    message: bytes
    blocks: IndexRows
    message_position: int
    blocks_position: int

    @classmethod
    def read(cls, raw: Buffer, at: int, ledger_id: int, count: int, message_size: int, where: str) -> _Group:
        """Cut out a group. Sizes are compared with the object before anything is allocated."""
        _need(raw, at, message_size + count * INDEX_BLOCK.size_bytes, where)
        if not count:
            raise Corrupt("blocks of a ledger", where, expected="at least 1", found=0, position=at)
        table = at + message_size
        blocks = np.frombuffer(raw, INDEX_BLOCK.dtype, count, table)
        return cls(ledger_id, bytes(raw[at:table]), blocks, at, table)

    @property
    def end(self) -> int:
        """The byte of the index at which the group ends."""
        return self.blocks_position + len(self.blocks) * INDEX_BLOCK.size_bytes

    def refuse(self, row: int, name: str, expected: object, where: str) -> Corrupt:
        """Return the error for a number of one block, with its byte."""
        position = self.blocks_position + row * INDEX_BLOCK.size_bytes + INDEX_BLOCK.offset_of(name)
        found = int(self.blocks[name][row])
        return Corrupt(f"{name} of block {row}", where, expected=expected, found=found, position=position)

    def checked(self, ends: npt.NDArray[np.uint64], version: int, where: str) -> LedgerGroup:
        """Read the message, and compare it with the blocks."""
        at = self.message_position
        firsts = self.blocks["first_entry_id"]
        falls = firsts[1:] <= firsts[:-1]
        if falls.any():
            row = int(falls.argmax()) + 1
            raise self.refuse(row, "first_entry_id", f"more than {firsts[row - 1]}", where)
        metadata: LedgerMetadata | LedgerInfo
        if version == 1:
            metadata = LedgerMetadata.decode(self.message, where=where, position=at)
            if firsts[0]:
                raise self.refuse(0, "first_entry_id", 0, where)
        else:
            metadata = LedgerInfo.decode(self.message, where=where, position=at)
            if metadata.ledger_id != self.ledger_id:
                found = metadata.ledger_id
                raise Corrupt("id in LedgerInfo", where, expected=self.ledger_id, found=found, position=at)
        group = LedgerGroup(ledger_id=self.ledger_id, metadata=metadata, blocks=self.blocks, ends=ends)
        if firsts[-1] > group.last_entry:
            raise self.refuse(len(firsts) - 1, "first_entry_id", f"at most {group.last_entry}", where)
        return group


def _ends(groups: Sequence[_Group], data_size: int, where: str) -> list[npt.NDArray[np.uint64]]:
    """Return where the blocks of each group end. Checks parts and offsets of all groups together."""
    offsets = np.concatenate([each.blocks["offset"] for each in groups]).astype(np.uint64)
    parts = np.concatenate([each.blocks["part_number"] for each in groups])
    owners = np.repeat(np.arange(len(groups)), [len(each.blocks) for each in groups])
    rows = np.concatenate([np.arange(len(each.blocks)) for each in groups])
    order = np.argsort(parts, kind="stable")  # by the part numbers, so that offsets which go back are found
    wanted = np.arange(1, len(parts) + 1)
    if (parts[order] != wanted).any():
        at = int((parts[order] != wanted).argmax())
        raise groups[owners[order[at]]].refuse(int(rows[order[at]]), "part_number", int(wanted[at]), where)
    sorted_offsets = offsets[order]
    # Compared without a sum, which could wrap: a stranger chooses the numbers.
    wrong = sorted_offsets >= np.uint64(data_size)
    wrong[0] |= sorted_offsets[0] != 0
    wrong[1:] |= sorted_offsets[1:] <= sorted_offsets[:-1]
    wrong[1:] |= np.diff(sorted_offsets) < BLOCK_SIZE_BYTES_MIN
    if wrong.any():
        at = int(wrong.argmax())
        least = f"at least {int(sorted_offsets[at - 1]) + BLOCK_SIZE_BYTES_MIN}" if at else "0"
        expected = f"{least}, within {data_size} bytes"
        raise groups[owners[order[at]]].refuse(int(rows[order[at]]), "offset", expected, where)
    if data_size - int(sorted_offsets[-1]) < BLOCK_SIZE_BYTES_MIN:
        least = f"at least {int(sorted_offsets[-1]) + BLOCK_SIZE_BYTES_MIN}"
        raise Corrupt("data_size_bytes of the index", where, expected=least, found=data_size, position=8)
    ends = np.empty(len(offsets), np.uint64)
    ends[order] = np.append(offsets[order][1:], np.uint64(data_size))
    bounds = np.cumsum([len(each.blocks) for each in groups])[:-1]
    return np.split(ends, bounds)


def _need(raw: Buffer, at: int, size_bytes: int, where: str) -> None:
    if at + size_bytes > len(raw):
        expected = f"at least {at + size_bytes}"
        raise Corrupt("size of the index", where, expected=expected, found=len(raw), position=at)
