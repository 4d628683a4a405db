"""Writers of the older versions of fragments, roots and groups, as releases up to 0.2 wrote them.

They share no code with the program, so a change of the program cannot change the old bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import google_crc32c
import numpy as np

from offload.formats.group import Group
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries
from offload.model.manifest import Manifest

INDEX_RECORD: Final = struct.Struct(">QqQIIB3sI")
TRAILER: Final = struct.Struct(">4sHBB16s32s16s16sQQQQQQqqQIIII")
ENTRY_1: Final = struct.Struct(">QQQqqQQQ16sIBB2s")
ENTRY_2: Final = struct.Struct(">QQQqqQQQ16sIIIBB2s")
RUNNING: Final = struct.Struct(">16sQQ16sB7s")
ROOT_HEADER: Final = struct.Struct(">4sHBBQ16s16sQQ16s16s16s")
GROUP_HEADER: Final = struct.Struct(">4sHBB32s16s16sQI")
INCARNATION: Final = UUID(int=1)
ATTEMPT: Final = UUID(int=0xA1)


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


def sealed(body: bytes) -> bytes:
    """Return the bytes and their CRC-32C."""
    return body + crc32c(body).to_bytes(4, "big")


def fragment_1(
    chunks: Sequence[bytes],
    table: ChunkTable,
    *,
    stream: str = "orders",
    incarnation: UUID = INCARNATION,
    attempt: UUID = ATTEMPT,
    ledger_id: int = 77,
    epoch: int = 3,
    base_version: int = 5,
    copied: int = 0,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a fragment of version 1. `table` is that of the chunks."""
    data = b"OLFH\0\1" + bytes(10) + b"".join(chunks)
    index, position = [], 16
    for chunk, row in zip(chunks, table, strict=True):
        numbers = [int(row[name]) for name in ("offset", "timestamp_ms", "records", "type")]
        offset, timestamp_ms, records, kind = numbers
        index.append(
            INDEX_RECORD.pack(
                offset, timestamp_ms, position, len(chunk), records, kind, bytes(3), zlib.crc32(chunk)
            )
        )
        position += len(chunk)
    name, text = stream.encode(), b""
    if metadata:
        text = json.dumps(dict(metadata), sort_keys=True, separators=(",", ":")).encode()
    description = struct.pack(">II", len(name), len(text)) + name + text
    parts = b"".join(index) + description
    trailer = TRAILER.pack(
        b"OLFT",
        1,
        0,
        copied,
        bytes(16),
        hashlib.sha256(name).digest(),
        incarnation.bytes,
        attempt.bytes,
        ledger_id,
        epoch,
        base_version,
        int(table["offset"][0]),
        int(table["offset"][-1]) + int(table["records"][-1]),
        int(table["records"][table["type"] == 0].sum()),
        int(table["timestamp_ms"].min()),
        int(table["timestamp_ms"].max()),
        len(data),
        len(chunks),
        len(description),
        crc32c(data),
        crc32c(parts),
    )
    return data + parts + sealed(trailer)


def root_1(manifest: Manifest) -> bytes:
    """Return a root of version 1. It cannot have groups."""
    return _root(manifest, version=1)


def root_2(manifest: Manifest) -> bytes:
    """Return a root of version 2."""
    return _root(manifest, version=2)


def group_1(group: Group) -> bytes:
    """Return a group object of version 1."""
    header = GROUP_HEADER.pack(
        b"OLMG",
        1,
        group.kind,
        0,
        hashlib.sha256(group.stream.encode()).digest(),
        group.incarnation.bytes,
        group.uid.bytes,
        group.version,
        len(group.entries),
    )
    return sealed(header + entries_2(group.entries))


def entries_1(entries: Entries) -> bytes:
    """Return entries as roots of version 1 had them."""
    return b"".join(
        ENTRY_1.pack(*_begin(row), row["kind"], row["copied"], bytes(2)) for row in _rows(entries)
    )


def entries_2(entries: Entries) -> bytes:
    """Return entries as roots of version 2 and groups of version 1 had them."""
    return b"".join(
        ENTRY_2.pack(*_begin(row), row["fragments"], row["ledgers"], row["kind"], row["copied"], bytes(2))
        for row in _rows(entries)
    )


def _rows(entries: Entries) -> list[dict[str, Any]]:
    names = entries.dtype.names or ()
    return [
        {name: row[name] if isinstance(row[name], np.void) else int(row[name]) for name in names}
        for row in entries
    ]


def _begin(row: dict[str, Any]) -> list[Any]:
    """Return the fields that come first in both versions. The ledger of a group was its root version."""
    names = (
        "first_offset", "records", "messages", "first_timestamp_ms", "last_timestamp_ms", "data_size_bytes",
        "stored_size_bytes",
    )  # fmt: skip
    ledger = row["root_version"] if row["kind"] else row["ledger_id"]
    return [*(row[name] for name in names), ledger, bytes(row["attempt"]), row["checksum"]]


def _root(manifest: Manifest, *, version: int) -> bytes:
    name = manifest.stream.encode()
    totals = [
        manifest.first_offset,
        manifest.next_offset,
        manifest.messages,
        manifest.data_size_bytes,
        manifest.stored_size_bytes,
    ]
    if version == 2:
        totals += [manifest.fragments, manifest.ledgers, manifest.last_ledger_id]
    head = ROOT_HEADER.pack(
        b"OLMR",
        version,
        manifest.state,
        0,
        manifest.version,
        manifest.incarnation.bytes,
        manifest.writer.bytes,
        manifest.epoch,
        manifest.source_epoch,
        manifest.committer.bytes,
        manifest.commit_id.bytes,
        manifest.parent_commit_id.bytes,
    )
    counts = struct.pack(">III", len(name), len(manifest.running), len(manifest.entries))
    running = b"".join(
        RUNNING.pack(each.attempt.bytes, each.ledger_id, each.epoch, each.writer.bytes, each.kind, bytes(7))
        for each in manifest.running
    )
    entries = (entries_1 if version == 1 else entries_2)(manifest.entries)
    return sealed(head + struct.pack(f">{len(totals)}Q", *totals) + counts + name + running + entries)
