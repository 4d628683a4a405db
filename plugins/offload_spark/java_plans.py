"""Plans for the Java reader, as text. Its tasks read files and buckets without Python (`jvm`).

The data source of this module plans as `source` does, in the same process beside the driver. So streams,
offsets, filters, keys and manifests are understood in one place. A partition is a JSON text here. The first
one tells the version, and why the Python source must read instead, if it must.

Tasks have no credentials of a bucket. The plan has a signed read of each fragment instead (`SignsReads`),
which is a secret: no other part of a plan is, and nothing shows it.

A plan has the format that the decoder of the read declares for Java (`DecoderType.java`). Java alone knows
which formats it has and which columns a query uses (`OffloadTable`).

Invariant: a plan names only what the Java reader reads completely: fragments that are not encrypted, in a
folder of this machine's file system or in a bucket whose store signs reads, and numbers below 2^63.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from offload.contracts.catalogue import Catalogue
from offload.contracts.opening import RequestLimits
from offload.contracts.plugin import DecoderType
from offload.contracts.signing import SignedReads
from offload.formats.keys import StreamKeys
from offload.ground.errors import Misuse
from offload.model.entry import Entry, entries_of_rows
from offload.native.offloader import ObjectStoreOffloader
from offload.opening.blocking import Blocking
from offload.opening.plugins import Plugins
from offload.read.tables import count_messages
from offload.store.signing import signed_reads
from offload_spark.bounds import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, ScanBounds
from offload_spark.columns import Columns
from offload_spark.options import ReadOptions
from offload_spark.planning import PlannedPart, chosen, plan
from offload_spark.source import OffloadDataSource, PrunedReader

__all__ = ["JavaPlanSource"]


PLAN_VERSION: Final = 4
"""The version of the plans. A jar refuses any other: `PythonPlans.VERSION`. Raise both with each change."""

TAIL_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest tail that a Java task holds. An index of the most chunks that are possible has 21 MiB."""

LONG_MAX: Final = 2**63 - 1
COUNT: Final = "count"


class JavaPlanSource(OffloadDataSource):
    """The source of plans. Its option `javaplan` is `parts`, or `count` for the number of records alone.

    Its option `javalimit` is how many rows are needed. The plan may leave out partitions behind these.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name by which the jar asks for it."""
        return "offload_java_plan"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader whose partitions are texts."""
        options = self._options()
        columns = Columns.of(schema, options, Plugins.find())
        wanted, limit = self.options.get("javaplan", "parts"), int(self.options.get("javalimit", LONG_MAX))
        return JavaPlanReader(options, columns, wanted=wanted, limit=limit)

    def _options(self) -> ReadOptions:
        return ReadOptions.of(
            {
                name: text
                for name, text in self.options.items()
                if name.lower() not in ("javaplan", "javalimit")
            }
        )


class JavaPlanReader(PrunedReader):
    """A reader that plans, and never reads."""

    version = PLAN_VERSION

    def __init__(self, options: ReadOptions, columns: Columns, *, wanted: str, limit: int = LONG_MAX) -> None:
        super().__init__(options, columns)
        self._wanted, self._limit = wanted, limit

    def partitions(self) -> list[InputPartition]:
        """Return the head of the plan, and the partitions of the read (`planning.plan`)."""
        decoder = decoder_of(self._options.decode, Plugins.find())
        head: dict[str, Any] = {
            "version": self.version,
            "release": metadata.version("ledger-offload"),
            "decoder": decoder,
        }
        texts = list[str]()
        with self._open() as tier:
            if self._wanted == COUNT and (left := _left_to_python(self._options)):
                raise Misuse(
                    f"the Java reader of this session is older, and cannot count with the option {left}"
                )
            if self._wanted == COUNT:
                head[COUNT] = tier.run(count_all(tier.catalogue, self._options))
            elif reason := reason_of_place(tier, self._options):
                head["reason"] = reason
            else:
                whole = tier.run(plan(tier.catalogue, self._options, self._bounds))
                planned = with_rows(whole, self._limit)
                head["reason"] = reason_of_parts(planned)
                if not head["reason"]:
                    seconds = self._options.signed_seconds
                    texts = tier.run(texts_of(tier.catalogue, planned, seconds=seconds, decoder=decoder))
        return [InputPartition(text) for text in (json.dumps(head), *texts)]


def decoder_of(name: str, plugins: Plugins) -> str:
    """Return the format for the plan; "other" if the decoder declares none, and "" without a decoder."""
    if not name:
        return ""
    declared = plugins.by_name("decoder", name)
    assert isinstance(declared, DecoderType)
    return declared.java or "other"


async def count_all(catalogue: Catalogue, options: ReadOptions) -> int:
    """Return the number of records of a read without filters. Fetches at most two indexes of each part."""
    counted = 0
    for stream in await chosen(catalogue, options, ScanBounds()):
        start, end = await stream.bounds(options)
        for reader in stream.readers:
            first, until = stream.begin_in(reader, start), stream.begin_in(reader, end)
            counted += await count_messages(catalogue, reader, first, until=until)
    return counted


def reason_of_place(tier: Blocking, options: ReadOptions) -> str:
    """Return why the Java reader cannot read this tier; an empty text if it can."""
    catalogue = tier.catalogue
    if not isinstance(catalogue, ObjectStoreOffloader):
        return f"{catalogue.url} is no tier of ledger-offload"
    if options.tier.encrypted_only:
        return "the option encryptedOnly is true"
    if left := _left_to_python(options):
        return f"the option {left} is given"
    tier.run(catalogue.open())
    if catalogue.url.startswith("file://"):
        return "" if catalogue.store is catalogue.data else "the tier has hashed keys or a commit store"
    try:
        tier.run(signed_reads(catalogue.store, [], seconds=options.signed_seconds))
    except Misuse as exc:
        return str(exc)
    return ""


def _left_to_python(options: ReadOptions) -> str:
    """Return the name of an option that leaves out records, as Java cannot; empty if there is none."""
    named = {"filter": options.filter_values, "by": options.terms, "topic": options.topics}
    return next((name for name, given in named.items() if given), "")


def with_rows(planned: Sequence[Sequence[PlannedPart]], limit: int) -> Sequence[Sequence[PlannedPart]]:
    """Return the first partitions that have `limit` rows together, or all if they have fewer."""
    if limit == LONG_MAX:
        return planned
    found = 0
    for number, parts in enumerate(planned, start=1):
        found += sum(map(certain_rows, parts))
        if found >= limit:
            return planned[:number]
    return planned


def certain_rows(part: PlannedPart) -> int:
    """Return by how many rows, at least, a part and those before it have more than those before it.

    A chunk belongs to the part in which it begins, so a part alone may have fewer rows than offsets. Only an
    index says where tracking records are, so all of a fragment are counted as if they were in the part.
    """
    bounds = part.bounds
    if not part.committed.counts_messages:
        return 0
    if (bounds.first_timestamp_ms, bounds.last_timestamp_ms) != (TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX):
        return 0
    first, until = max(part.first, bounds.first_offset), min(part.until, bounds.next_offset)
    found = 0
    for entry in entries_of_rows(part.committed.entries):
        offsets = min(until, entry.next_offset) - max(first, entry.first_offset)
        found += max(offsets - (entry.records - entry.messages), 0)
    return found


def reason_of_parts(planned: Sequence[Sequence[PlannedPart]]) -> str:
    """Return why the Java reader cannot read these parts; an empty text if it can."""
    for part in (part for parts in planned for part in parts):
        entries, name = part.committed.entries, part.committed.stream
        if entries["encrypted"].any():
            return f"stream {name!r} has encrypted fragments"
        if (
            int(entries["tail_size_bytes"].max()) > TAIL_SIZE_BYTES_MAX
            or not entries["tail_size_bytes"].all()
        ):
            return f"stream {name!r} has a fragment without an index, or with one that is too large"
        if max(_greatest(entries), part.until) > LONG_MAX:
            return f"stream {name!r} has a number that does not fit a column"
    return ""


def _greatest(entries: Any) -> int:
    names = ("records", "data_size_bytes", "stored_size_bytes", "ledger_id")
    ends = entries["first_offset"] + entries["records"]
    return max(int(ends.max()), *(int(entries[name].max()) for name in names))


async def texts_of(
    catalogue: Catalogue, planned: Sequence[Sequence[PlannedPart]], *, seconds: int, decoder: str
) -> list[str]:
    """Return the partitions of a plan as texts. Raises as `signed_reads` does if the tier is in a bucket."""
    assert isinstance(catalogue, ObjectStoreOffloader), "`reason_of_place` has looked"
    parts = [part for partition in planned for part in partition]
    keys = [key for part in parts for key in _keys(part)]
    if catalogue.url.startswith("file://"):
        root = unquote(catalogue.url.removeprefix("file://"))
        places, signed = [f"{root}/{key}" for key in keys], None
    else:
        reads = await signed_reads(catalogue.store, keys, seconds=seconds)
        places, signed = [*reads.urls], _signed(reads)
    following, same = iter(places), {"signed": signed, "decoder": decoder}
    return [
        json.dumps({"parts": [_part(part, following) | same for part in partition]}) for partition in planned
    ]


def _signed(reads: SignedReads) -> Mapping[str, int]:
    return {
        "seconds": reads.seconds,
        "until_ms": reads.expires_ms,
        "stall_ms": int(reads.stall_seconds * 1000),
        "patience_ms": int(RequestLimits().patience_seconds * 1000),
    }


def _keys(part: PlannedPart) -> list[str]:
    keys = StreamKeys(part.committed.stream)
    return [
        keys.fragment(entry.first_offset, entry.attempt) for entry in entries_of_rows(part.committed.entries)
    ]


def _part(part: PlannedPart, places: Iterator[str]) -> dict[str, Any]:
    """Return a part for JSON. Takes the places of its fragments from `places`."""
    committed, bounds = part.committed, part.bounds
    return {
        "name": part.stream,
        "number": part.part,
        "stream": committed.stream,
        "incarnation": committed.incarnation.hex,
        "first": part.first,
        "until": part.until,
        "low_offset": bounds.first_offset,
        "high_offset": min(bounds.next_offset, LONG_MAX),
        "first_timestamp_ms": bounds.first_timestamp_ms,
        "last_timestamp_ms": bounds.last_timestamp_ms,
        "fragments": [
            _fragment(entry, key, next(places))
            for entry, key in zip(entries_of_rows(committed.entries), _keys(part), strict=True)
        ],
    }


def _fragment(entry: Entry, key: str, place: str) -> Mapping[str, Any]:
    return {
        "place": place,
        "key": key,
        "attempt": entry.attempt.hex,
        "first_offset": entry.first_offset,
        "records": entry.records,
        "messages": entry.messages,
        "first_timestamp_ms": entry.first_timestamp_ms,
        "last_timestamp_ms": entry.last_timestamp_ms,
        "data_size_bytes": entry.data_size_bytes,
        "stored_size_bytes": entry.stored_size_bytes,
        "tail_size_bytes": entry.tail_size_bytes,
        "ledger_id": entry.ledger_id,
        "copied": entry.copied,
        "codec": entry.codec,
    }
