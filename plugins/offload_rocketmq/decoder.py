"""The `rocketmq` decoder: records of RocketMQ's commit log, with their bodies opened.

The value is the body. Sections are `message`, the fields of the record; `keys`, the client's message id
(`UNIQ_KEY`) and each word of `KEYS`; `tags`; and `properties`. A record of another format stays raw, and its
section `message` has an `error` alone. A body that cannot be opened stays as it is stored, and `message` has
an `error` beside the fields.

Records are parsed by columns. Properties are parsed only if a column of them is asked for.

Invariant: no size that a body states is trusted. One call opens `OPENED_SIZE_BYTES_MAX` at most.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import lz4.frame
import numpy as np
import zstandard

from offload.contracts.decoder import Decoded, Decoder
from offload.model.record_columns import ByteColumn, HeaderColumn, Integers, RecordBytes
from offload_rocketmq.record import (
    COMPRESSION_SHIFT,
    MAGICS,
    RecordColumns,
    SysFlag,
    host_text,
    parse_properties,
    property_crc_agrees,
)

__all__ = ["RocketmqDecoder"]

BODY_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The most that one body may yield. Brokers take messages of 4 MiB by default."""

OPENED_SIZE_BYTES_MAX: Final = 256 * 2**20
"""The most that the compressed bodies of one call may yield. The bodies behind it stay as they are stored."""

COMPRESSIONS: Final = {0: "ZLIB", 1: "LZ4", 2: "ZSTD", 3: "ZLIB"}
"""The compressions of bodies by bits 8 to 10 of `sys_flag`. Old clients leave them 0."""

_ZSTD_PIECE_SIZE_BYTES: Final = 1024
TRANSACTIONS: Final = {
    SysFlag.PREPARED: "prepared",
    SysFlag.COMMITTED: "committed",
    SysFlag.ROLLED_BACK: "rolled back",
}
SHARDING_KEY: Final = "__SHARDINGKEY"
"""The property by which a client chose the queue."""


class RocketmqDecoder(Decoder):
    """A decoder of RocketMQ's records."""

    has_timestamps: ClassVar[bool] = True

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the opened bodies."""
        return _Parsed(RecordBytes.of(records)).bodies

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return bodies and sections as `Decoder.decode` says."""
        parsed = _Parsed(RecordBytes.of(records))
        columns = [parsed.section(name) for name in SECTIONS]
        return [
            Decoded(body, dict(zip(SECTIONS, row, strict=True)))
            for body, *row in zip(parsed.bodies, *columns, strict=True)
        ]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the key by which the client chose the queue, if it says one."""
        return _Parsed(RecordBytes.of(records)).sharding_keys

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the properties: those of the application, and those of the client and the broker."""
        return _Parsed(RecordBytes.of(records)).headers

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the time at which the broker stored each record."""
        columns = RecordColumns.of(records)
        return np.where(columns.is_sound & (columns.store_ms >= 0), columns.store_ms, -1)

    def columns(self, records: RecordBytes, names: Sequence[str]) -> Mapping[str, ByteColumn | HeaderColumn]:
        """Return columns as `Decoder.columns` says. Each record is parsed once, and only for these names."""
        parsed, found = _Parsed(records), dict[str, ByteColumn | HeaderColumn]()
        for name in names:
            if name == "body":
                found[name] = ByteColumn.of(parsed.bodies)
            elif name == "key":
                found[name] = ByteColumn.of(parsed.sharding_keys)
            elif name == "headers":
                found[name] = HeaderColumn.of(parsed.headers)
            elif name in SECTIONS:
                found[name] = ByteColumn.of([_json(each) for each in parsed.section(name)])
        others = [name for name in names if name not in found]
        return {**found, **super().columns(records, others)} if others else found


class _Parsed:
    """Records, parsed as far as they are asked for."""

    def __init__(self, records: RecordBytes) -> None:
        self.columns = RecordColumns.of(records)
        self.sound: list[bool] = self.columns.is_sound.tolist()
        self.errors = dict[int, str]()
        """Why the body of a record was not opened, by the number of the record."""

    @cached_property
    def bodies(self) -> list[bytes]:
        """The bodies, opened; the whole record if it is not sound."""
        columns, room = self.columns, OPENED_SIZE_BYTES_MAX
        raw = RecordBytes(
            columns.records.data,
            np.where(columns.is_sound, columns.body.starts, columns.records.starts),
            np.where(columns.is_sound, columns.body.sizes, columns.records.sizes),
        ).to_list()
        packed = columns.is_sound & ((columns.heads["sys_flag"] & SysFlag.COMPRESSED) != 0)
        for row in np.flatnonzero(packed).tolist():
            name = COMPRESSIONS.get(int(columns.heads["sys_flag"][row]) >> COMPRESSION_SHIFT & 7)
            opened = None if name is None else _opened(raw[row], name, min(room, BODY_SIZE_BYTES_MAX))
            if opened is None:
                self.errors[row] = f"the body is no {name} of at most {min(room, BODY_SIZE_BYTES_MAX)} bytes"
                continue
            raw[row], room = opened, room - len(opened)
        return raw

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        """The properties by name."""
        columns = self.columns
        slices = RecordBytes(columns.records.data, columns.properties.starts, columns.properties.sizes)
        return [parse_properties(raw) for raw in slices.to_list()]

    @cached_property
    def sharding_keys(self) -> list[bytes | None]:
        """The key by which a client chose the queue."""
        found = [each.get(SHARDING_KEY) for each in self.properties]
        return [None if each is None else each.encode() for each in found]

    @cached_property
    def headers(self) -> list[list[tuple[str, bytes]]]:
        """The properties, in order."""
        return [[(name, value.encode()) for name, value in each.items()] for each in self.properties]

    def section(self, name: str) -> list[Any]:
        """Return the section of this name of each record."""
        return list(SECTIONS[name](self))

    def keys(self) -> Iterator[list[str]]:
        """Yield the message id of the client, and each word of `KEYS`, none twice."""
        for each in self.properties:
            words = [each.get("UNIQ_KEY", ""), *each.get("KEYS", "").split(" ")]
            yield [word for word in dict.fromkeys(words) if word]

    def tags(self) -> Iterator[str | None]:
        """Yield the tag of each record."""
        return (each.get("TAGS") for each in self.properties)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of each record, and an error if it is not sound, or its body was not opened."""
        columns, data, _ = self.columns, self.columns.records.data, self.bodies
        heads, names = columns.heads, columns.heads.dtype.names or ()
        listed = [dict(zip(names, row, strict=True)) for row in heads.tolist()]
        for row, (head, is_sound) in enumerate(zip(listed, self.sound, strict=True)):
            if not is_sound:
                yield {"error": "no record of RocketMQ"}
                continue
            flags = head["sys_flag"]
            born_host, store_host = (host_text(host.of(data, row)) for host in columns.hosts)
            found = {
                "topic": columns.topic.of(data, row).decode(errors="replace"),
                "queue": head["queue_id"],
                "queue_offset": head["queue_offset"],
                "physical_offset": head["physical_offset"],
                "version": 1 + (head["magic"] == MAGICS[1]),
                "flag": head["flag"],
                "sys_flag": flags,
                "born_time": head["born_ms"],
                "store_time": int(columns.store_ms[row]),
                "born_host": born_host,
                "store_host": store_host,
                "reconsume_times": int(columns.reconsume_times[row]),
                "prepared_offset": int(columns.prepared_offset[row]),
            }
            if flags & SysFlag.COMPRESSED:
                number = flags >> COMPRESSION_SHIFT & 7
                found["compression"] = COMPRESSIONS.get(number, number)
            if flags & SysFlag.ROLLED_BACK:
                found["transaction"] = TRANSACTIONS[SysFlag(flags & SysFlag.ROLLED_BACK)]
            if (agrees := property_crc_agrees(columns.records.at(row))) is not None:
                found["property_crc_agrees"] = agrees
            if row in self.errors:
                found["error"] = self.errors[row]
            yield found


SECTIONS: Final[Mapping[str, Callable[[_Parsed], Iterator[Any]]]] = {
    "message": _Parsed.messages,
    "keys": _Parsed.keys,
    "tags": _Parsed.tags,
    "properties": lambda parsed: iter(parsed.properties),
}


def _opened(stored: bytes, name: str, size_bytes_max: int) -> bytes | None:
    """Return the opened body. None if it is damaged, cut, or larger than the limit."""
    try:
        opened, is_whole = _OPENERS[name](stored, size_bytes_max + 1)
    except (RuntimeError, zlib.error, zstandard.ZstdError):  # the first is that of lz4
        return None
    return opened if is_whole and len(opened) <= size_bytes_max else None


def _lz4(stored: bytes, most: int) -> tuple[bytes, bool]:
    opener = lz4.frame.LZ4FrameDecompressor()
    return opener.decompress(stored, max_length=most), opener.eof


def _zlib(stored: bytes, most: int) -> tuple[bytes, bool]:
    opener = zlib.decompressobj()
    return opener.decompress(stored, most), opener.eof


def _zstd(stored: bytes, most: int) -> tuple[bytes, bool]:
    opener = zstandard.ZstdDecompressor(max_window_size=BODY_SIZE_BYTES_MAX).decompressobj()
    parts, size = list[bytes](), 0
    # It has no limit. A piece yields 32 MiB at most: a block of 4 bytes stands for 128 KiB.
    for at in range(0, len(stored), _ZSTD_PIECE_SIZE_BYTES):
        parts.append(opener.decompress(stored[at : at + _ZSTD_PIECE_SIZE_BYTES]))
        size += len(parts[-1])
        if opener.eof or size >= most:
            break
    return b"".join(parts), opener.eof


_OPENERS: Final = {"LZ4": _lz4, "ZLIB": _zlib, "ZSTD": _zstd}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
