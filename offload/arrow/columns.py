"""The columns of a stream in Arrow.

Invariant: the schema depends on the names of the columns and on the decoder alone, never on the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa

from offload.arrow.batches import HEADERS
from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse

__all__ = ["OF_TABLE", "arrow_schema"]


OF_TABLE: Final = frozenset({"stream", "ledger", "offset", "timestamp", "part"})
"""The columns that an index has. For them no chunk is fetched."""

_OF_RECORD: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "value": pa.binary(),
    "part": pa.int32(),
    "stream": pa.string(),
}
_ON_REQUEST: Final = frozenset({"stream", "key", "headers"})
"""The columns that are there only if they are asked for."""


def arrow_schema(names: Iterable[str] | None, decoder: Decoder | None) -> pa.Schema:
    """Return the schema of these columns, in their order.

    Without names: offset and timestamp, the value or what the decoder makes of it, and the part. Raises
    `Misuse` for a name that is unknown or occurs twice.
    """
    known = _columns(decoder)
    if names is None:
        replaced = _ON_REQUEST if decoder is None else _ON_REQUEST | {"value"}
        names = [name for name in known if name not in replaced]
    # A text is a sequence of its letters.
    named: list[Any] = [*names] if isinstance(names, Iterable) and not isinstance(names, str) else [None]
    if not all(isinstance(name, str) for name in named):
        raise Misuse(f'columns is a list of names, such as columns=["offset", "value"], not {names!r}')
    for name in named:
        if name not in known:
            raise Misuse(f"there is no column {name!r}{_nearest(name, known, decoder)}")
    if not named or len({*named}) < len(named):
        raise Misuse(f"columns takes one name or more, and each of them once, not {named}")
    return pa.schema([(name, known[name]) for name in named])


def _columns(decoder: Decoder | None) -> dict[str, pa.DataType]:
    if decoder is None:
        return dict(_OF_RECORD)
    of_record = dict(_OF_RECORD)
    part, stream = of_record.pop("part"), of_record.pop("stream")
    sections = dict.fromkeys(decoder.decode([b""])[0].sections, pa.string())
    behind = {"part": part, "stream": stream, "key": pa.binary(), "headers": HEADERS}
    return of_record | {"body": pa.binary()} | sections | behind


def _nearest(name: str, known: dict[str, pa.DataType], decoder: Decoder | None) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    needs = " Other columns need a decoder, such as amqp." if decoder is None else ""
    return f"{hint or '.'} The columns are {', '.join(known)}.{needs}"
