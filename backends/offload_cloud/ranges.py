"""A span as a request's header, and the check that the reply is that span.

Invariant: `exactly` returns the span, clipped at the object's end, or raises. A server that ignores the
header answers with the whole object, from which the span is cut here. A reply about another range raises
`TryAgain`.
"""

from __future__ import annotations

import re
from typing import Final

from offload.contracts.store import Span, Suffix
from offload.ground.errors import TryAgain
from offload.store.spans import clip

__all__ = ["PART", "WHOLE", "answered", "asked_for", "exactly", "range_of", "size_asked_for"]


WHOLE, PART = 200, 206
FAR: Final = 2**62
_ASKED: Final = re.compile(r"bytes=([0-9]{0,20})-([0-9]{1,20})")
_ANSWERED: Final = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20}|-1)/([0-9]{1,20}|\*)")
"""The header `Content-Range` of a reply. MinIO writes `0--1/0` for the end of an empty object."""


def range_of(span: Span | Suffix | None) -> str | None:
    """Return a span as the header has it. An empty span asks for one byte: the object must exist."""
    match asked_for(span):
        case Span(start, length):
            return f"bytes={start}-{start + length - 1}"
        case Suffix(length):
            return f"bytes=-{length}"
        case _:
            return None


def size_asked_for(header: str) -> int | None:
    """Return the most bytes that a header of `range_of` asks for; None if there is no header."""
    found = _ASKED.fullmatch(header)
    if found is None:
        return None
    first, last = found.groups()
    return int(last) - int(first) + 1 if first else int(last)


def asked_for(span: Span | Suffix | None) -> Span | Suffix | None:
    """Return the span to request.

    It is never empty, because no header can express an empty range. Its numbers have 63 bits, because servers
    refuse larger ones in different ways. No object is as long as `FAR`, so the bytes are the same.

    Raises `Misuse` for a negative span, before anything is sent.
    """
    clip(span, 0)
    match span:
        case Span(start, length, follows):
            return Span(min(start, FAR), max(1, min(length, FAR)), follows)
        case Suffix(length):
            return Suffix(max(1, min(length, FAR)))
        case _:
            return span


def exactly(
    span: Span | Suffix | None, data: bytes, *, status: int, content_range: str | None, where: str
) -> bytes:
    """Return the bytes of `span` from `data`, a reply's body. Raises `TryAgain` for another span's reply."""
    if span is None:
        if status != WHOLE:
            raise TryAgain(f"{where}: asked for the whole object, and the reply is HTTP {status}")
        return data
    if status == WHOLE:  # a server may ignore ranges, and then sends the whole object
        start, end = clip(span, len(data))
        return data[start:end]
    answered(span, status=status, content_range=content_range, size_bytes=len(data), where=where)
    return data if span.length else b""


def answered(
    span: Span | Suffix, *, status: int, content_range: str | None, size_bytes: int | None, where: str
) -> tuple[int, int]:
    """Return where the bytes of a partial reply begin and end. Raises `TryAgain` unless they are `span`.

    `size_bytes` is the size of the body, None if the reply does not state it. The reply may end before the
    span, because the object does.
    """
    found = _ANSWERED.fullmatch(content_range or "")
    if found is None or status != PART:
        raise TryAgain(f"{where}: asked for a part, and the reply does not say which part it is")
    start, end = int(found[1]), int(found[2]) + 1
    if found[3] == "*":  # the object's size is unknown, so its end cannot be compared
        fits = isinstance(span, Span) and start == span.start and end - start <= max(span.length, 1)
    else:
        fits = (start, end) == clip(asked_for(span), int(found[3]))
    if not fits or size_bytes not in {None, end - start}:
        raise TryAgain(f"{where}: asked for {range_of(span)} and got {size_bytes} bytes of {content_range}")
    return start, end
