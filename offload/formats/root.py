"""The manifest root: the bytes of one committed manifest, as one immutable object.

```text
header | stream name | running attempts | entries | CRC-32C of all before it
```

Invariants: what is decoded keeps every invariant of `model.manifest`, and so does what is encoded, because
`Manifest.check` is called before a root is written and after it was read. Every byte is under the checksum.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import numpy as np

from offload.errors import Corrupt
from offload.formats.checksums import check_sealed, crc32c
from offload.formats.keys import escape
from offload.formats.layout import layout
from offload.model.entry import ENTRY_DTYPE
from offload.model.manifest import MANIFEST_NUMBERS, AttemptKind, Manifest, Running, StreamState

__all__ = ["decode_root", "encode_root"]


ROOT_FORMAT_VERSION: Final = 2
ROOT_MAGIC: Final = b"OLMR"

ROOT_HEADER: Final = layout(
    "Manifest root header",
    ("magic", "4s", "`OLMR`"),
    ("format_version", "H", "2; a reader also knows 1, and refuses any other"),
    ("state", "B", "0 live, 1 deleted (a tombstone), 2 rebuilding"),
    ("reserved", "B", "zero, and refused otherwise"),
    ("version", "Q", "the number in the object's name; rises by one with each commit"),
    ("incarnation", "16s", "UUID of the stream's incarnation; new at birth and at each rebirth"),
    ("writer", "16s", "UUID of the writer that holds the stream; set only by a claim"),
    ("epoch", "Q", "rises with each claim"),
    ("source_epoch", "Q", "the broker's own leader epoch; never falls"),
    ("committer", "16s", "UUID of who made this commit: the writer, or a guest"),
    ("commit_id", "16s", "UUID of this commit"),
    ("parent_commit_id", "16s", "UUID of the commit before it; zero for the first"),
    ("first_offset", "Q", "first committed offset"),
    ("next_offset", "Q", "first offset that is not committed yet"),
    ("messages", "Q", "records in user chunks, over all entries"),
    ("data_size_bytes", "Q", "stored chunk bytes, over all entries"),
    ("stored_size_bytes", "Q", "size of the objects, over all entries"),
    ("fragments", "Q", "live fragments, at any depth"),
    ("ledgers", "Q", "ledgers that they came from"),
    ("last_ledger_id", "Q", "ledger of the newest fragment; zero where there never was one"),
    ("stream_size_bytes", "I", "length of the stream's name, UTF-8"),
    ("running_count", "I", "number of running attempts"),
    ("entry_count", "I", "number of entries"),
)

RUNNING: Final = layout(
    "Running attempt",
    ("attempt", "16s", "UUID of the attempt"),
    ("ledger_id", "Q", "the ledger that is being copied"),
    ("epoch", "Q", "epoch of the writer that prepared it"),
    ("writer", "16s", "UUID of that writer"),
    (
        "kind",
        "B",
        "0 stream: adopted or dropped by the next claim; 1 job: left alone by claims; 2 copy: a job's too",
    ),
    ("reserved", "7s", "zero, and refused otherwise"),
)

ENTRY: Final = layout(
    "Manifest entry",
    ("first_offset", "Q", "offset of the first record"),
    ("records", "Q", "how many offsets it covers"),
    ("messages", "Q", "how many of them are records of user chunks"),
    ("first_timestamp_ms", "q", "the least timestamp of any chunk"),
    ("last_timestamp_ms", "q", "the greatest timestamp of any chunk"),
    ("data_size_bytes", "Q", "stored chunk bytes; a fragment's index begins at 16 + this"),
    ("stored_size_bytes", "Q", "size of the object"),
    (
        "ledger_id",
        "Q",
        "the ledger that was copied; of a group, the root version that it was made for",
    ),
    ("attempt", "16s", "UUID of the attempt that wrote the object; of a group, its own"),
    ("checksum", "I", "CRC-32C of the object"),
    ("fragments", "I", "1; of a group, how many it holds at any depth"),
    ("ledgers", "I", "1 where another ledger begins with this fragment, else 0; of a group, the sum"),
    ("kind", "B", "0 fragment, 1 group, 2 kilo-group, 3 mega-group"),
    ("copied", "B", "1: a fragment that took the place of others; 0: any other, or a group"),
    ("reserved", "2s", "zero, and refused otherwise"),
)


assert ENTRY.dtype == ENTRY_DTYPE


def encode_root(manifest: Manifest) -> bytes:
    """The root object's bytes."""
    name = manifest.stream.encode()
    header = ROOT_HEADER.pack(
        magic=ROOT_MAGIC,
        format_version=ROOT_FORMAT_VERSION,
        reserved=0,
        stream_size_bytes=len(name),
        running_count=len(manifest.running),
        entry_count=len(manifest.entries),
        **{name: getattr(manifest, name).bytes for name in _ROOT_UUIDS},
        **{name: int(getattr(manifest, name)) for name in MANIFEST_NUMBERS},
    )
    body = b"".join((header, name, *map(_encode_running, manifest.running), manifest.entries.tobytes()))
    return body + crc32c(body).to_bytes(4, "big")


def decode_root(raw: bytes, *, where: str) -> Manifest:
    """Undo `encode_root`. Raises `Corrupt` if any bit is off, `UnsupportedFormat` for another version."""
    if raw.startswith(_BEGIN_OF_1):
        from offload.formats.root_v1 import upgraded  # which needs the layouts of this module

        raw = upgraded(raw, where=where)
    fields = _decode_header(raw, where)
    at = ROOT_HEADER.size_bytes
    name = raw[at : at + fields["stream_size_bytes"]]
    at += len(name)
    running_size = fields["running_count"] * RUNNING.size_bytes
    running = _decode_running(raw[at : at + running_size], where, at)
    at += running_size
    entries = np.frombuffer(raw, ENTRY.dtype, count=fields["entry_count"], offset=at)
    try:
        stream, state = name.decode(), StreamState(fields["state"])
        escape(stream)  # a name that no key can hold
    except ValueError as exc:
        raise Corrupt("root name or state", where, expected="UTF-8, 0..2", found=str(exc)) from exc
    plain: dict[str, Any] = {name: fields[name] for name in MANIFEST_NUMBERS}
    plain |= {name: UUID(bytes=fields[name]) for name in _ROOT_UUIDS}
    manifest = Manifest(**plain | {"stream": stream, "state": state, "running": running, "entries": entries})
    manifest.check(where)
    return manifest


def _decode_header(raw: bytes, where: str) -> dict[str, Any]:
    if len(raw) < ROOT_HEADER.size_bytes + 4:
        raise Corrupt("root size", where, expected=f">= {ROOT_HEADER.size_bytes + 4}", found=len(raw))
    fields = ROOT_HEADER.unpack(raw)
    if fields["magic"] != ROOT_MAGIC:
        raise Corrupt("root magic", where, expected=ROOT_MAGIC, found=fields["magic"])
    check_sealed("root", raw, version=fields["format_version"], known=ROOT_FORMAT_VERSION, where=where)
    if fields["reserved"]:
        raise Corrupt("root reserved byte", where, expected=0, found=fields["reserved"], position=7)
    size = ROOT_HEADER.size_bytes + 4 + fields["stream_size_bytes"]
    size += fields["running_count"] * RUNNING.size_bytes + fields["entry_count"] * ENTRY.size_bytes
    if size != len(raw):
        raise Corrupt("root size", where, expected=size, found=len(raw))
    return fields


def _encode_running(running: Running) -> bytes:
    return RUNNING.pack(
        attempt=running.attempt.bytes,
        ledger_id=running.ledger_id,
        epoch=running.epoch,
        writer=running.writer.bytes,
        kind=running.kind,
        reserved=bytes(7),
    )


def _decode_running(raw: bytes, where: str, position: int) -> tuple[Running, ...]:
    rows = [RUNNING.unpack(raw, at) for at in range(0, len(raw), RUNNING.size_bytes)]
    for row in rows:
        if row["kind"] > max(AttemptKind) or row["reserved"] != bytes(7):
            raise Corrupt(
                "running attempt", where, expected="kind 0 to 2", found=row["kind"], position=position
            )
    return tuple(
        Running(
            attempt=UUID(bytes=row["attempt"]),
            ledger_id=row["ledger_id"],
            epoch=row["epoch"],
            writer=UUID(bytes=row["writer"]),
            kind=AttemptKind(row["kind"]),
        )
        for row in rows
    )


_BEGIN_OF_1: Final = ROOT_MAGIC + b"\0\1"
_ROOT_UUIDS: Final = ("incarnation", "writer", "committer", "commit_id", "parent_commit_id")
