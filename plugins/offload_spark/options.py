"""What the user of the data source said, as checked values. Knows no Spark.

Spark hands over text, under names that it has folded to lower case. Invariant: an option that is not known,
or whose value makes no sense, is an error that names it; none is passed over, since a misspelt bound would
read the wrong records and say nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from offload.errors import Misuse
from offload.urls import scheme_of

T = TypeVar("T")
N = TypeVar("N", int, None)

STORAGE: Final = "storage."
"""What the options of a backend begin with: `storage.endpoint_url`."""

MIB: Final = 1024 * 1024
EARLIEST: Final = -2
LATEST: Final = -1
"""As Kafka's source has them, within JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChoice:
    """Which streams of a tier: all, unless one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def of(self, streams: Sequence[str]) -> list[str]:
        """The chosen ones. A name that is given is taken as it is: whether it is there, its manifest says."""
        if self.pattern:
            return [stream for stream in streams if re.fullmatch(self.pattern, stream)]
        return [*(self.names or streams)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where reading begins or ends: a time, or an offset for each stream, or `EARLIEST` or `LATEST`."""

    timestamp_ms: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    otherwise: int = EARLIEST

    def offset(self, stream: str) -> int:
        """The offset that is said for a stream, if `timestamp_ms` is not."""
        return self.offsets.get(stream, self.otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a batch or streaming read. Their names and defaults are in docs/spark.md."""

    url: str
    storage_options: Mapping[str, Any]
    streams: StreamChoice
    start: Edge
    end: Edge
    min_partitions: int = 1
    partition_size_bytes: int = 64 * MIB
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    decode: str = ""
    include_headers: bool = False
    pushdown: bool = False
    batch_rows: int = 16_384
    batch_size_bytes: int = 8 * MIB
    trigger_rows_max: int | None = None
    trigger_size_bytes_max: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        """From what Spark hands over. Raises `Misuse` for what is unknown or makes no sense."""
        said = _Said(given)
        options = cls(
            url=absolute(said.text("path")),
            storage_options=said.storage(),
            streams=said.streams(),
            start=said.edge("starting", EARLIEST),
            end=said.edge("ending", LATEST),
            min_partitions=said.number("minpartitions", 1),
            partition_size_bytes=said.number("maxpartitionbytes", 64 * MIB),
            fail_on_data_loss=said.truth("failondataloss", True),
            columns=said.words("columns"),
            decode=said.text("decode"),
            include_headers=said.truth("includeheaders", False),
            pushdown=said.truth("pushdown", False),
            batch_rows=said.number("batchrows", 16_384),
            batch_size_bytes=said.number("batchbytes", 8 * MIB),
            trigger_rows_max=said.number("maxoffsetspertrigger", None),
            trigger_size_bytes_max=said.number("maxbytespertrigger", None),
        )
        said.check_all_known()
        if not options.url:
            raise Misuse(
                "the option path is missing: load(URL), or in SQL a temporary view with OPTIONS (path …); a "
                "table made with CREATE TABLE … USING offload hands no options over"
            )
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. Their names and defaults are in docs/spark.md."""

    url: str
    storage_options: Mapping[str, Any]
    stream: str
    first_offset: int = 0
    """Where the stream begins, if the write begins it."""
    write_id: str = ""
    """By what the write is recognized when it comes again. Empty: it is not."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WriteOptions:
        """From what Spark hands over. Raises `Misuse` for what is unknown, missing, or makes no sense."""
        said = _Said(given)
        said.text("checkpointlocation")  # Spark's own
        said.text("queryname")
        options = cls(
            url=absolute(said.text("path")),
            storage_options=said.storage(),
            stream=said.text("stream"),
            first_offset=said.number("firstoffset", 0, least=0),
            write_id=said.text("writeid"),
        )
        said.check_all_known()
        if not options.url:
            raise Misuse('the option path is missing: save(URL), or option("path", URL)')
        if not options.stream:
            raise Misuse('a write goes to one stream: option("stream", NAME)')
        return options


def absolute(url: str) -> str:
    """A folder by its whole path, since workers may run elsewhere. A URL stays as it is."""
    return os.path.abspath(url) if url and scheme_of(url) is None else url


class _Said:
    """The options, and which of them were asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known: set[str] = set()

    def text(self, name: str) -> str:
        self._known.add(name)
        return self._given.get(name, "")

    def number(self, name: str, default: N, *, least: int = 1) -> int | N:
        """A whole number, `least` or more."""
        return self._as(name, default, partial(_whole, least=least), f"a whole number from {least} on")

    def truth(self, name: str, default: bool) -> bool:
        return self._as(name, default, {"true": True, "false": False}.__getitem__, "true or false")

    def words(self, name: str) -> tuple[str, ...]:
        """Names with commas between them."""
        return tuple(word.strip() for word in self.text(name).split(",") if word.strip())

    def streams(self) -> StreamChoice:
        one, several, pattern = self.text("stream"), self.text("streams"), self.text("streampattern")
        if bool(one) + bool(several) + bool(pattern) > 1:
            raise Misuse("give only one of the options stream, streams and streamPattern")
        if several.startswith("["):
            return StreamChoice(names=tuple(self._as("streams", [], _names, 'a JSON list: ["a", "b"]')))
        self._as("streampattern", None, re.compile, "a regular expression")
        return StreamChoice(names=(one,) if one else self.words("streams"), pattern=pattern)

    def storage(self) -> dict[str, Any]:
        """The backend's: JSON in one option, which keeps the case of names, and single ones beside it."""
        nothing: dict[str, Any] = {}
        found = dict(self._as("storageoptions", nothing, _object, "a JSON object"))
        for name, value in self._given.items():
            if name.startswith(STORAGE):
                self._known.add(name)
                found[name.removeprefix(STORAGE)] = value
        return found

    def edge(self, side: str, otherwise: int) -> Edge:
        """`startingTimestamp` before `startingOffsets`, as in Kafka's source."""
        timestamp = self._as(f"{side}timestamp", None, int, "milliseconds since 1970")
        offsets = self.text(f"{side}offsets")
        if timestamp is not None:
            return Edge(timestamp_ms=timestamp)
        if offsets in ("", "earliest", "latest"):
            return Edge(otherwise={"earliest": EARLIEST, "latest": LATEST, "": otherwise}[offsets])
        what = 'earliest, latest, or JSON as {"stream": 23}, where -2 is earliest and -1 latest'
        return Edge(offsets=self._as(f"{side}offsets", {}, _offsets, what), otherwise=otherwise)

    def check_all_known(self) -> None:
        for name in self._given:
            if name not in self._known:
                raise Misuse(f"there is no option {name!r}; there are {', '.join(sorted(self._known))}")

    def _as(self, name: str, default: T, read: Callable[[str], T], wanted: str) -> T:
        text = self.text(name)
        if not text:
            return default
        try:
            return read(text)
        except (ValueError, KeyError, TypeError, re.error) as exc:
            raise Misuse(f"the option {name} takes {wanted}, not {text[:80]!r}") from exc


def _whole(text: str, *, least: int) -> int:
    number = int(text)
    if number < least:
        raise ValueError(text)
    return number


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(text)
    return found


def _names(text: str) -> list[str]:
    found = json.loads(text)
    if not all(isinstance(name, str) for name in found):
        raise TypeError(text)
    return [*found]


def _offsets(text: str) -> dict[str, int]:
    found = _object(text)
    for offset in found.values():
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(offset)
    return found
