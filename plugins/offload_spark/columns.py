"""The columns of the data source, and the parts of a stream that must be fetched for them.

Invariant: every batch has exactly the schema that Spark was given, with the columns in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.opening.plugins import Plugins
from offload_spark.options import ReadOptions
from offload_spark.suggestions import nearest

PLAIN: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "ledger": LongType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "part": IntegerType(),
}
DAMAGE: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "part": IntegerType(),
    "first_offset": LongType(),
    "next_offset": LongType(),
    "object": StringType(),
    "problem": StringType(),
}
"""The columns of `damage.TABLE`."""

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def schema_of(options: ReadOptions, plugins: Plugins) -> StructType:
    """Return the schema that the options ask for. Raises `Misuse` for unknown or repeated columns."""
    known = all_columns(options, plugins)
    names = options.columns or [*known]
    for name in names:
        _check_known(name, known, options, plugins)
    if len({*names}) < len(names):
        raise Misuse(f"the option columns takes each column at most once, not {list(names)}")
    return StructType([StructField(name, known[name]) for name in names])


def all_columns(options: ReadOptions, plugins: Plugins) -> dict[str, DataType]:
    """Return every column that is possible with these options, with its type."""
    if options.is_of_damage:
        if options.decode:
            raise Misuse("table=damage has columns of its own: remove decode")
        return dict(DAMAGE)
    found = dict(PLAIN)
    if options.include_headers:
        if not options.decode:
            needs = f"includeHeaders needs decode ({_decoders(plugins)})"
            raise Misuse(f"headers are inside records: {needs}")
        found["headers"] = HEADERS
    if options.decode:
        found["body"] = BinaryType()
        decoder = decoder_named(options.decode, plugins)
        found |= dict.fromkeys(decoder.decode([b""])[0].sections, StringType())
    return found


def _check_known(name: str, known: Mapping[str, DataType], options: ReadOptions, plugins: Plugins) -> None:
    if name not in known:
        hint = nearest(name, known) or "."
        needs = "" if options.decode else f"; other columns need decode ({_decoders(plugins)})"
        raise Misuse(f"there is no column {name!r}{hint} The columns are {', '.join(known)}{needs}")


@dataclass(frozen=True)
class Columns:
    """The columns of one read, in their order."""

    arrow: pa.Schema

    @classmethod
    def of(cls, schema: StructType, options: ReadOptions, plugins: Plugins) -> Columns:
        """Return the columns of Spark's schema: ours, or one of the user. Raises `Misuse` if it is wrong."""
        known = all_columns(options, plugins)
        for field in schema.fields:
            _check_known(field.name, known, options, plugins)
            wanted, found = known[field.name].simpleString(), field.dataType.simpleString()
            if wanted != found:
                raise Misuse(f"column {field.name!r} is {wanted}, not {found}")
        return cls(to_arrow_schema(schema, timezone="UTC"))


def _decoders(plugins: Plugins) -> str:
    """Return the names of the decoders of this machine, for a message."""
    return " or ".join(each.declaration.name for each in plugins.of_kind("decoder")) or "none is installed"


def decoder_named(name: str, plugins: Plugins) -> Decoder:
    """Return the decoder of this name. Raises `Misuse` if there is none."""
    decoder: Decoder = plugins.by_name("decoder", name).load()()
    return decoder
