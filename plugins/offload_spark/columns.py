"""The columns of the data source, and what of a stream must be fetched for them.

Invariant: the schema that Spark was promised is the schema of every batch, down to the order of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from offload.contracts.decoder import Decoder
from offload.errors import Misuse
from offload.plugins import Plugins
from offload_spark.options import ReadOptions

PLAIN: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "ledger": LongType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
}
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
OF_TABLE: Final = frozenset({"stream", "ledger", "offset", "timestamp"})
"""What an index knows: for these no chunk is fetched."""


def schema_of(options: ReadOptions, plugins: Plugins) -> StructType:
    """What the options ask for: the plain columns, and those of the decoder. Raises `Misuse`."""
    known = all_columns(options, plugins)
    names = options.columns or [*known]
    if not {*names} <= {*known} or len({*names}) < len(names):
        raise Misuse(f"the option columns names each of {', '.join(known)} once at most, not {list(names)}")
    return StructType([StructField(name, known[name]) for name in names])


def all_columns(options: ReadOptions, plugins: Plugins) -> dict[str, DataType]:
    """Every column that these options could give, with its type."""
    found = dict(PLAIN)
    if options.include_headers:
        if not options.decode:
            raise Misuse("headers stand within records: includeHeaders needs decode, as decode=amqp")
        found["headers"] = HEADERS
    if options.decode:
        found["body"] = BinaryType()
        decoder = decoder_named(options.decode, plugins)
        found |= dict.fromkeys(decoder.decode([b""])[0].sections, StringType())
    return found


@dataclass(frozen=True)
class Columns:
    """The columns of one read, in their order."""

    arrow: pa.Schema

    @classmethod
    def of(cls, schema: StructType, options: ReadOptions, plugins: Plugins) -> Columns:
        """For the schema that Spark hands over: ours, or one that the user gave. Raises `Misuse`."""
        known = all_columns(options, plugins)
        for field in schema.fields:
            if field.name not in known:
                raise Misuse(f"there is no column {field.name!r}; there are {', '.join(known)}")
            wanted, found = known[field.name].simpleString(), field.dataType.simpleString()
            if wanted != found:
                raise Misuse(f"column {field.name!r} is {wanted}, not {found}")
        return cls(to_arrow_schema(schema, timezone="UTC"))

    @property
    def names(self) -> Sequence[str]:
        """In their order."""
        names: list[str] = self.arrow.names
        return names

    @property
    def needs_chunks(self) -> bool:
        """Whether an index alone does not do."""
        return not OF_TABLE.issuperset(self.names)


def decoder_named(name: str, plugins: Plugins) -> Decoder:
    """The decoder of this name. Raises `Misuse` where there is none."""
    decoder: Decoder = plugins.by_name("decoder", name).load()()
    return decoder
