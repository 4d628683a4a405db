"""A span as a request's header, and whether what came back is that span and nothing else.

Invariant: what `exactly` returns is the span, clipped at the object's end. A server that ignores the
header answers with the whole object, which is cut here; one that answers another range is not believed.
"""

from __future__ import annotations

import re
from typing import Final

from offload.contracts.store import Span, Suffix
from offload.errors import TryAgain
from offload.store.spans import clip

__all__ = ["asked_for", "exactly", "range_of"]


WHOLE, PART = 200, 206
_ANSWERED: Final = re.compile(r"bytes (\d+)-(\d+|-1)/(\d+|\*)")
"""MinIO calls the end of an empty object `0--1/0`."""


def range_of(span: Span | Suffix | None) -> str | None:
    """A span as the header has it. One of length zero asks for a byte: the object must be there."""
    match asked_for(span):
        case Span(start, length):
            return f"bytes={start}-{start + length - 1}"
        case Suffix(length):
            return f"bytes=-{length}"
        case _:
            return None


def asked_for(span: Span | Suffix | None) -> Span | Suffix | None:
    """The span that a request is made for: never an empty one, which no header can express.

    Raises `Misuse` for a negative one, before anything is asked.
    """
    clip(span, 0)
    match span:
        case Span(start, 0):
            return Span(start, 1)
        case Suffix(0):
            return Suffix(1)
        case _:
            return span


def exactly(
    span: Span | Suffix | None, data: bytes, *, status: int, content_range: str | None, where: str
) -> bytes:
    """What of `data`, a reply's body, is `span`. Raises `TryAgain` where the reply is about another one."""
    if span is None:
        return data
    if status == WHOLE:
        start, end = clip(span, len(data))
        return data[start:end]
    found = _ANSWERED.fullmatch(content_range or "")
    if found is None:
        raise TryAgain(f"{where}: a part was asked for, and the reply does not say which it is")
    start, end = int(found[1]), int(found[2]) + 1
    if found[3] == "*":
        fits = isinstance(span, Span) and start == span.start and end - start <= max(span.length, 1)
    else:
        fits = (start, end) == clip(asked_for(span), int(found[3]))
    if not fits or len(data) != end - start:
        raise TryAgain(f"{where}: asked for {range_of(span)} and got {len(data)} bytes of {content_range}")
    return data if span.length else b""
