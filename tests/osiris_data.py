"""Real log files of RabbitMQ, and known facts about them: the basis of the format tests.

`MANIFEST` was written beside the files by the program that made them; nothing in it was computed by the
code under test.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent / "data" / "osiris"
MANIFEST: Final[dict[str, Any]] = json.loads((DATA / "MANIFEST.json").read_text())
STREAMS: Final = ("tiny", "batches", "filtered")
TORN: Final = tuple(MANIFEST["torn"]["cases"])

SEGMENT_HEAD: Final = b"OSIL\x00\x00\x00\x01"
INDEX_HEAD: Final = b"OSII\x00\x00\x00\x01"
INDEX_RECORD: Final = struct.Struct(">QqQIB")  # offset, timestamp, epoch, position, type


def body_of(i: int) -> bytes:
    """Return the body of message `i`, the same in every stream."""
    pad = chr(97 + i % 26) * (40 + i * 7 % 64)
    return json.dumps({"seq": i, "key": f"k{i % 97}", "pad": pad}, separators=(",", ":")).encode()


def segments(stream: str) -> list[Path]:
    """Return the segment files of a stream, or of a torn case (`torn/<case>`), in order."""
    return sorted((DATA / stream).glob("*.segment"))


def chunks_in(segment: Path) -> bytes:
    """Return the chunks of a segment, back to back: everything after its head."""
    raw = segment.read_bytes()
    assert raw.startswith(SEGMENT_HEAD)
    return raw[len(SEGMENT_HEAD) :]


def index_of(segment: Path) -> list[tuple[int, int, int, int, int]]:
    """Return the index that osiris wrote beside a segment: offset, timestamp, epoch, position, type."""
    raw = segment.with_suffix(".index").read_bytes()
    assert raw.startswith(INDEX_HEAD)
    return list(INDEX_RECORD.iter_unpack(raw[len(INDEX_HEAD) :]))


def chunks(stream: str) -> list[bytes]:
    """Return every stored chunk of an intact stream, cut at the positions in osiris' own indexes."""
    found = []
    for segment in segments(stream):
        raw = segment.read_bytes()
        starts = [position for _, _, _, position, _ in index_of(segment)]
        found += [raw[start:stop] for start, stop in zip(starts, [*starts[1:], len(raw)], strict=True)]
    return found


def filter_values_of(chunk_number: int) -> list[bytes | None]:
    """Return the filter values of the 250 messages of a chunk of `filtered`, from the manifest's note."""
    value = b"g%d" % (chunk_number % 8)
    if chunk_number % 7 == 6:
        return [None] * 250
    return [None if chunk_number % 5 == 4 and i % 2 else value for i in range(250)]
