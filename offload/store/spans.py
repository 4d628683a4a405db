"""What a span means once the size of the object is known: clipped at its end, never padded."""

from __future__ import annotations

from offload.contracts.store import Span, Suffix
from offload.errors import Misuse

__all__ = ["clip"]


def clip(span: Span | Suffix | None, size_bytes: int) -> tuple[int, int]:
    """Return where `span` begins and ends in an object of `size_bytes`; both within the object.

    Raises `Misuse` for a negative start or length, which no store could read alike.
    """
    match span:
        case None:
            return 0, size_bytes
        case Span(start, length) if start >= 0 and length >= 0:
            start = min(start, size_bytes)
            return start, min(start + length, size_bytes)
        case Suffix(length) if length >= 0:
            return max(0, size_bytes - length), size_bytes
    raise Misuse(f"{span} is no part of an object: start and length count from zero")
