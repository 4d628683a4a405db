"""The options of the data source as checked values. Imports no Spark.

Spark hands over text, with names in lower case. Invariant: an unknown option, or one with a wrong value,
raises an error that names it. None is ignored: a misspelt bound would silently read the wrong records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from offload.ground.errors import Misuse
from offload.ground.outside import json_outside
from offload.ground.urls import scheme_of
from offload.index.terms import Spec
from offload.model.compression import Compression
from offload.read.chunk_filter import ChunkFilter
from offload_spark.opening import TierAddress
from offload_spark.suggestions import listed, nearest

T = TypeVar("T")
N = TypeVar("N", int, None)

STORAGE: Final = "storage."
"""The prefix of a backend's options: `storage.endpoint_url`."""

PATTERN_MAX: Final = 1000
"""The characters of `streamPattern`."""

MIB: Final = 1024 * 1024
EARLIEST: Final = -2
LATEST: Final = -1
"""The offsets for "earliest" and "latest" in JSON, as in Kafka's source."""


class OnDamage(StrEnum):
    """The choice of a read that comes to damaged records."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChoice:
    """The chosen streams of a tier: those named, those that match a pattern, or all."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def of(self, streams: Sequence[str]) -> list[str]:
        """Return the chosen streams. Given names are not looked up: loading a manifest finds missing ones."""
        if self.pattern:
            return [stream for stream in streams if re.fullmatch(self.pattern, stream)]
        return [*(self.names or streams)]

    def check_offsets(self, option: str, edge: Edge, streams: Sequence[str]) -> None:
        """Raise `Misuse` if the offsets of an option name another stream than `streams`, which are read."""
        for stream in edge.offsets:
            if stream not in streams:
                hint = nearest(stream, streams) or "."
                raise Misuse(
                    f"the option {option} names stream {stream!r}, which is not read{hint} "
                    f"The streams are {listed(streams)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The begin or the end of a read: a time, or an offset for each stream, or `EARLIEST` or `LATEST`."""

    timestamp_ms: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    otherwise: int = EARLIEST

    def offset(self, stream: str) -> int:
        """Return the offset for a stream. Only used without `timestamp_ms`."""
        return self.offsets.get(stream, self.otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a batch or streaming read. Their names and defaults are in docs/spark.md."""

    tier: TierAddress
    streams: StreamChoice
    start: Edge
    end: Edge
    min_partitions: int = 1
    partition_size_bytes: int = 64 * MIB
    fail_on_data_loss: bool = True
    on_damage: OnDamage = OnDamage.FAIL
    filter_values: tuple[str, ...] = ()
    """The values of `x-stream-filter-value` that chunks must match. Empty: all chunks are read."""
    match_unfiltered: bool = False
    by: Spec | None = None
    """Where the terms of records are. None: all records are read."""
    terms: tuple[bytes, ...] = ()
    """The terms of which a record must have one."""
    topics: tuple[str, ...] = ()
    """The topic filters of which one must match a record's topic. Empty: all records are read."""
    is_of_damage: bool = False
    """True for the table of damaged ranges, in the place of the records."""
    columns: tuple[str, ...] = ()
    decode: str = ""
    include_headers: bool = False
    pushdown: bool = False
    batch_rows: int = 16_384
    batch_size_bytes: int = 8 * MIB
    signed_seconds: int = 6 * 3600
    """How long the signed requests of a plan for the Java reader are valid."""
    trigger_rows_max: int | None = None
    trigger_size_bytes_max: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read the options that Spark hands over. Raises `Misuse` for unknown options and wrong values."""
        said = _Said(given)
        options = cls(
            tier=TierAddress(
                url=absolute(said.text("path")),
                storage_options=said.storage(),
                keys=said.text("keys"),
                encrypted_only=said.truth("encryptedonly", False),
            ),
            streams=said.streams(),
            start=said.edge("starting", EARLIEST),
            end=said.edge("ending", LATEST),
            min_partitions=said.number("minpartitions", 1),
            partition_size_bytes=said.number("maxpartitionbytes", 64 * MIB),
            fail_on_data_loss=said.truth("failondataloss", True),
            on_damage=said.choice("ondamage", OnDamage.FAIL, {each.value: each for each in OnDamage}),
            filter_values=said.one_or_several("filter"),
            by=said.by(),
            terms=said.terms(),
            topics=said.one_or_several("topic"),
            match_unfiltered=said.truth("matchunfiltered", False),
            is_of_damage=said.choice("table", False, {"records": False, "damage": True}),
            columns=said.words("columns"),
            decode=said.text("decode"),
            include_headers=said.truth("includeheaders", False),
            pushdown=said.truth("pushdown", False),
            batch_rows=said.number("batchrows", 16_384),
            batch_size_bytes=said.number("batchbytes", 8 * MIB),
            signed_seconds=said.number("signedseconds", 6 * 3600),
            trigger_rows_max=said.number("maxoffsetspertrigger", None),
            trigger_size_bytes_max=said.number("maxbytespertrigger", None),
        )
        said.check_all_known()
        if options.match_unfiltered and not options.filter_values:
            raise Misuse("the option matchUnfiltered needs filter: without it, all messages are read")
        if (options.by is None) != (not options.terms):
            raise Misuse("the options by and terms belong together: give both of them")
        if options.by is not None and (options.is_of_damage or options.filter_values):
            raise Misuse("a read with by and terms takes neither table=damage nor filter")
        if options.topics and (options.by is not None or options.is_of_damage or options.filter_values):
            raise Misuse("a read with topic takes neither by and terms, nor table=damage, nor filter")
        if options.topics and not options.decode:
            raise Misuse("the option topic needs decode with the name of a decoder that knows topics")
        if not options.tier.url:
            raise Misuse(
                "the option path is missing: use load(URL), or in SQL a view with OPTIONS (path …); "
                "a table made with CREATE TABLE … USING offload hands no options over"
            )
        return options

    @property
    def is_of_records(self) -> bool:
        """True if records or chunks are selected by what is in them."""
        return bool(self.filter_values or self.terms or self.topics)

    def chosen(self) -> ChunkFilter | None:
        """Return a new filter of chunks, if the read has one."""
        if not self.filter_values:
            return None
        return ChunkFilter(self.filter_values, match_unfiltered=self.match_unfiltered)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. Their names and defaults are in docs/spark.md."""

    tier: TierAddress
    stream: str
    first_offset: int = 0
    """The first offset of the stream, if the write begins it."""
    write_id: str = ""
    """The name by which a repetition of the write is recognized. Empty: it is not recognized."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read the options that Spark hands over. Raises `Misuse` for unknown, missing and wrong ones."""
        said = _Said(given)
        said.text("checkpointlocation")  # Spark's own
        said.text("queryname")
        options = cls(
            tier=TierAddress(
                url=absolute(said.text("path")),
                storage_options=said.storage(),
                keys=said.text("keys"),
                encrypt=said.text("encrypt"),
                compression=said.compression(),
            ),
            stream=said.text("stream"),
            first_offset=said.number("firstoffset", 0, least=0),
            write_id=said.text("writeid"),
        )
        said.check_all_known()
        if not options.tier.url:
            raise Misuse('the option path is missing: use save(URL), or option("path", URL)')
        if not options.stream:
            raise Misuse('the option stream is missing: use option("stream", NAME)')
        return options


def absolute(url: str) -> str:
    """Return the absolute path of a folder, because workers may run elsewhere. Return a URL as it is."""
    return os.path.abspath(url) if url and scheme_of(url) is None else url


class _Said:
    """The options, with a record of which of them were asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known: set[str] = set()

    def text(self, name: str) -> str:
        self._known.add(name)
        return self._given.get(name, "")

    def number(self, name: str, default: N, *, least: int = 1) -> int | N:
        """Return a whole number, `least` or more."""
        return self._as(name, default, partial(_whole, least=least), f"a whole number from {least} on")

    def truth(self, name: str, default: bool) -> bool:
        return self._as(name, default, {"true": True, "false": False}.__getitem__, "true or false")

    def choice(self, name: str, default: T, choices: Mapping[str, T]) -> T:
        """Return the value of one of several words."""
        return self._as(name, default, choices.__getitem__, " or ".join(choices))

    def words(self, name: str) -> tuple[str, ...]:
        """Return names that are separated by commas."""
        return tuple(word.strip() for word in self.text(name).split(",") if word.strip())

    def streams(self) -> StreamChoice:
        one, several, pattern = self.text("stream"), self.text("streams"), self.text("streampattern")
        if bool(one) + bool(several) + bool(pattern) > 1:
            raise Misuse("give only one of the options stream, streams and streamPattern")
        if several.startswith("["):
            return StreamChoice(names=tuple(self._as("streams", [], _names, 'a JSON list: ["a", "b"]')))
        self._as("streampattern", None, _pattern, f"a regular expression of at most {PATTERN_MAX} characters")
        return StreamChoice(names=(one,) if one else self.words("streams"), pattern=pattern)

    def one_or_several(self, name: str) -> tuple[str, ...]:
        """Return one value, or those of a JSON list: a value may have commas."""
        text = self.text(name)
        if not text.startswith("["):
            return (text,) if text else ()
        return tuple(self._as(name, [], _values, 'a value, or a JSON list: ["a", "b"]'))

    def by(self) -> Spec | None:
        return self._as("by", None, Spec.parse, "a SPEC, such as amqp:properties.message_id")

    def terms(self) -> tuple[bytes, ...]:
        found: list[str] = self._as("terms", [], _values, 'a JSON list of texts: ["m7", "m8"]')
        return tuple(term.encode() for term in found)

    def storage(self) -> dict[str, Any]:
        """Return the backend's options: a JSON object, which keeps the case of names, and single options."""
        nothing: dict[str, Any] = {}
        found = dict(self._as("storageoptions", nothing, _object, "a JSON object"))
        for name, value in self._given.items():
            if name.startswith(STORAGE):
                self._known.add(name)
                found[name.removeprefix(STORAGE)] = value
        return found

    def edge(self, side: str, otherwise: int) -> Edge:
        """Return an edge: `startingTimestamp` overrides `startingOffsets`, as in Kafka's source."""
        timestamp = self._as(f"{side}timestamp", None, int, "milliseconds since 1970")
        offsets = self.text(f"{side}offsets")
        if timestamp is not None:
            return Edge(timestamp_ms=timestamp)
        if offsets in ("", "earliest", "latest"):
            return Edge(otherwise={"earliest": EARLIEST, "latest": LATEST, "": otherwise}[offsets])
        what = 'earliest, latest, or JSON like {"stream": 23}, with -2 for earliest and -1 for latest'
        return Edge(offsets=self._as(f"{side}offsets", {}, _offsets, what), otherwise=otherwise)

    def compression(self) -> Compression | None:
        return self._as("compression", None, Compression.parse, "zstd, zstd:1 to zstd:19, lz4 or none")

    def check_all_known(self) -> None:
        for name in self._given:
            if name not in self._known:
                known = sorted(self._known)
                hint = nearest(name, known) or "."
                raise Misuse(f"there is no option {name!r}{hint} The options are {', '.join(known)}")

    def _as(self, name: str, default: T, read: Callable[[str], T], wanted: str) -> T:
        text = self.text(name)
        if not text:
            return default
        try:
            return read(text)
        except (ValueError, KeyError, TypeError, re.error) as exc:
            raise Misuse(f"the option {name} takes {wanted}, not {text[:80]!r}") from exc


def _pattern(text: str) -> re.Pattern[str]:
    # The time of the compiler grows with the square of some patterns.
    if len(text) > PATTERN_MAX:
        raise ValueError(f"it has {len(text)} characters")
    try:
        return re.compile(text)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def _whole(text: str, *, least: int) -> int:
    number = int(text)
    if number < least:
        raise ValueError(text)
    return number


def _object(text: str) -> dict[str, Any]:
    found = json_outside(text)
    if not isinstance(found, dict):
        raise TypeError(text)
    return found


def _names(text: str) -> list[str]:
    found = json_outside(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise TypeError(text)
    return [*found]


def _values(text: str) -> list[str]:
    found = _names(text)
    if not found or not all(found):
        raise ValueError(text)
    return found


def _offsets(text: str) -> dict[str, int]:
    found = _object(text)
    for offset in found.values():
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(offset)
    return found
