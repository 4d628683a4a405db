"""The bytes of a span in an object of known size: clipped at the object's end, never padded."""

from __future__ import annotations

from offload.contracts.store import Span, Suffix
from offload.ground.errors import Misuse

__all__ = ["clip"]


def clip(span: Span | Suffix | None, size_bytes: int) -> tuple[int, int]:
    """Return the start and the end of `span` in an object of `size_bytes`. Both are within the object.

    Raises `Misuse` for a negative start or length, which stores would interpret differently.
    """
    match span:
        case None:
            return 0, size_bytes
        case Span(start, length) if start >= 0 and length >= 0:
            start = min(start, size_bytes)
            return start, min(start + length, size_bytes)
        case Suffix(length) if length >= 0:
            return max(0, size_bytes - length), size_bytes
    raise Misuse(f"{span} is not a part of an object: start and length must be 0 or more")
