"""A record of a rescued queue: 24 bytes on its place in the queue, then the stored term, untouched.

`LAYOUT` is the format. Integers are big-endian, there is no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from offload_rabbitmq.queues.store_files import REDELIVERED, QueueRows

LAYOUT: Final = (  # name, NumPy type, meaning: the order is the byte order
    ("magic", "S2", "b'CQ'"),
    ("version", "u1", "1; a reader takes any other for bytes of another format"),
    ("level", "u1", "the priority at which the message lay, 0 in a queue without priorities"),
    ("flags", "u1", "bit 0: the broker would deliver it as redelivered; the others are zero"),
    ("reserved", "S3", "zero"),
    ("sequence", ">u8", "the number of the message in its queue, or in its level of it"),
    ("expiry_us", ">u8", "the time at which it expires, in microseconds since 1970; 0: never"),
)
HEAD: Final = np.dtype([(name, kind) for name, kind, _ in LAYOUT])
assert HEAD.itemsize == 24

_START: Final = b"CQ\x01"


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """The fields of a record."""

    level: int
    is_redelivered: bool
    sequence: int
    expiry_us: int
    term: bytes


def encode_records(rows: QueueRows, terms: Sequence[bytes]) -> list[bytes]:
    """Return the records of these messages."""
    heads = np.zeros(len(rows), HEAD)
    heads["magic"], heads["version"] = b"CQ", 1
    for name in ("level", "flags", "sequence", "expiry_us"):
        heads[name] = rows[name]
    raw, size = heads.tobytes(), HEAD.itemsize
    return [raw[row * size : (row + 1) * size] + term for row, term in enumerate(terms)]


def decode_record(raw: bytes) -> QueueRecord | None:
    """Return the fields of a record; None if it is none."""
    if raw[:3] != _START or len(raw) < HEAD.itemsize:
        return None
    sequence, expiry_us = int.from_bytes(raw[8:16], "big"), int.from_bytes(raw[16:24], "big")
    return QueueRecord(raw[3], bool(raw[4] & REDELIVERED), sequence, expiry_us, raw[HEAD.itemsize :])
