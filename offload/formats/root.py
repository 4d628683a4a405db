"""The manifest root: one immutable object with the bytes of one committed manifest.

```text
header | stream name | running attempts | entries | CRC-32C of all before it
```

Invariants: every manifest that is encoded or decoded keeps the invariants of `model.manifest`.
`Manifest.check` is called before a root is written and after a root was read. Every byte is under the
checksum.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import numpy as np

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.keys import escape
from offload.formats.layout import layout
from offload.ground.errors import Corrupt
from offload.model.entry import ENTRY_DTYPE
from offload.model.manifest import MANIFEST_NUMBERS, AttemptKind, Manifest, Running, StreamState

__all__ = ["decode_root", "encode_root"]


ROOT_FORMAT_VERSION: Final = 3
ROOT_MAGIC: Final = b"OLMR"

ROOT_HEADER: Final = layout(
    "Manifest root header",
    ("magic", "4s", "`OLMR`"),
    ("format_version", "H", "3; a reader also knows 1 and 2, and refuses any other"),
    ("state", "B", "0 live, 1 deleted (a tombstone), 2 rebuilding"),
    ("reserved", "B", "zero, and refused otherwise"),
    ("version", "Q", "the number in the object's name; rises by one with each commit"),
    ("incarnation", "16s", "UUID of the stream's incarnation; new at birth and at each rebirth"),
    ("writer", "16s", "UUID of the writer that holds the stream; only a claim sets it"),
    ("epoch", "Q", "rises with each claim"),
    ("source_epoch", "Q", "the broker's own leader epoch; never falls"),
    ("committer", "16s", "UUID of the author of this commit: the writer, or a guest"),
    ("commit_id", "16s", "UUID of this commit"),
    ("parent_commit_id", "16s", "UUID of the commit before it; zero for the first"),
    ("first_offset", "Q", "first committed offset"),
    ("next_offset", "Q", "first offset that is not committed yet"),
    ("messages", "Q", "records in user chunks, over all entries"),
    ("data_size_bytes", "Q", "plain size of all chunks, over all entries"),
    ("stored_size_bytes", "Q", "size of the objects, over all entries"),
    ("fragments", "Q", "live fragments, at any depth"),
    ("ledgers", "Q", "ledgers from which these fragments came"),
    ("last_ledger_id", "Q", "ledger of the newest fragment; zero if there never was one"),
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
        "0 stream: the next claim adopts or drops it; 1 job: claims leave it alone; 2 copy: as 1",
    ),
    ("reserved", "7s", "zero, and refused otherwise"),
)

ENTRY: Final = layout(
    "Manifest entry",
    ("first_offset", "Q", "offset of the first record"),
    ("records", "Q", "number of offsets that it covers"),
    ("messages", "Q", "number of records in user chunks among them"),
    ("first_timestamp_ms", "q", "the least timestamp of any chunk"),
    ("last_timestamp_ms", "q", "the greatest timestamp of any chunk"),
    ("data_size_bytes", "Q", "plain size of all chunks"),
    ("stored_size_bytes", "Q", "size of the object; for a group, of all its fragments"),
    ("ledger_id", "Q", "the ledger that was copied; zero for a group"),
    ("root_version", "Q", "for a group, the root version for which it was made; zero for a fragment"),
    ("attempt", "16s", "UUID of the attempt that wrote the object; for a group, the group's own UUID"),
    ("checksum", "I", "CRC-32C of the object"),
    ("tail_size_bytes", "I", "size of a fragment's tail, which ends the object; zero for a group"),
    ("fragments", "I", "1; for a group, the number of its fragments at any depth"),
    ("ledgers", "I", "1 if another ledger begins with this fragment, else 0; for a group, the sum"),
    ("kind", "B", "0 fragment, 1 group, 2 kilo-group, 3 mega-group"),
    ("copied", "B", "1: a fragment that replaced others; 0: any other fragment, or a group"),
    ("codec", "B", "compression of a fragment's chunks, as in its trailer; zero for a group"),
    ("encrypted", "B", "1: an encrypted fragment; 0: any other fragment, or a group"),
    ("reserved", "4s", "zero, and refused otherwise"),
)


# The rows of a manifest are stored and loaded as they are in memory, so the memory is a part of the format.
assert ENTRY.dtype == ENTRY_DTYPE


def encode_root(manifest: Manifest) -> bytes:
    """Return the root object's bytes."""
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
    """Undo `encode_root`. Raises `Corrupt` for any damaged bit, `UnsupportedFormat` for another version."""
    if raw[:6] in (ROOT_MAGIC + b"\0\1", ROOT_MAGIC + b"\0\2"):
        from offload.formats.older_manifests import upgraded_root  # here: it imports this module's layouts

        # It checks the old bytes under their own checksum, and the new ones are checked again below.
        raw = upgraded_root(raw, where=where)
    fields = _decode_header(raw, where)
    # The lengths add up to the size of the object, or else a slice below would come out short without an
    # error.
    at = ROOT_HEADER.size_bytes
    name = raw[at : at + fields["stream_size_bytes"]]
    at += len(name)
    running_size = fields["running_count"] * RUNNING.size_bytes
    running = _decode_running(raw[at : at + running_size], where, at)
    at += running_size
    entries = np.frombuffer(raw, ENTRY.dtype, count=fields["entry_count"], offset=at)
    try:
        stream, state = name.decode(), StreamState(fields["state"])
        escape(stream)  # raises for a name that no key can hold
    except ValueError as exc:
        raise Corrupt("root name or state", where, expected="UTF-8, 0..2", found=str(exc)) from exc
    plain: dict[str, Any] = {name: fields[name] for name in MANIFEST_NUMBERS}
    plain |= {name: UUID(bytes=fields[name]) for name in _ROOT_UUIDS}
    manifest = Manifest(**plain | {"stream": stream, "state": state, "running": running, "entries": entries})
    # The checksum shows that these are the bytes of a writer, and not that the writer was right. A commit
    # copies the entries that it does not change, so a mistake that passes here would stay for ever.
    manifest.check(where)
    return manifest


def _decode_header(raw: bytes, where: str) -> dict[str, Any]:
    if len(raw) < ROOT_HEADER.size_bytes + 4:
        raise Corrupt("root size", where, expected=f">= {ROOT_HEADER.size_bytes + 4}", found=len(raw))
    fields = ROOT_HEADER.unpack(raw)
    # Before the checksum: an object of another kind is not a damaged root, and the error must say so.
    if fields["magic"] != ROOT_MAGIC:
        raise Corrupt("root magic", where, expected=ROOT_MAGIC, found=fields["magic"])
    check_sealed("root", raw, version=fields["format_version"], known=ROOT_FORMAT_VERSION, where=where)
    # After the checksum, so it is no flipped bit: a newer program means something by it, and the next commit
    # of this program would lose it.
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
        # Refused, and not left out: the next commit would no longer name the attempt, and a sweep would
        # delete its objects.
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


_ROOT_UUIDS: Final = ("incarnation", "writer", "committer", "commit_id", "parent_commit_id")
