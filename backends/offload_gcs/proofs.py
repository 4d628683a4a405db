"""The proof that a reply of success is that of GCS: what it must contain, for each request.

A login page, a captive portal or a gateway under maintenance may answer 200 to any request, with a page, with
nothing, or with JSON of its own. So success is read from something that the reply contains, never from an
absence.

    request                        the reply contains
    put, create, last chunk        the description of the object, with its key
    the description of an object   the same: each request asks for the name too
    a read                         a header `x-goog-*`, or the type of bytes (an emulator sends only that)
    objects.list                   `kind`: each request asks for it too
    the beginning of an upload     the URL of its session
    a chunk before the last        nothing; its status is 308, and `upload` compares how much arrived
    DELETE                         nothing; its status is 204 (`GcsStore._delete` says what counts instead)

`GcsStore.ask` takes a proof for each request. The service and two emulators send this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from offload_gcs.client import RESUME, GcsReply, is_bytes

__all__ = [
    "NO_CONTENT",
    "GcsProof",
    "begins",
    "describes",
    "is_any",
    "is_bytes",
    "is_page",
    "takes_a_chunk_of",
]

GcsProof: TypeAlias = Callable[[GcsReply], bool]
"""Returns True if a reply contains what the service's reply does."""

NO_CONTENT: Final = 204


def describes(key: str) -> GcsProof:
    """Prove the description of an object."""
    return lambda reply: reply.said.get("name") == key


def takes_a_chunk_of(key: str) -> GcsProof:
    """Prove a reply to a chunk: the upload takes the next chunk, or the object is there."""
    return lambda reply: reply.status == RESUME or describes(key)(reply)


def begins(reply: GcsReply) -> bool:
    """Prove a reply to the beginning of an upload."""
    return bool(reply.headers.get("location"))


def is_page(reply: GcsReply) -> bool:
    """Prove a page of objects.list."""
    return reply.said.get("kind") == "storage#objects"


def is_any(reply: GcsReply) -> bool:
    """Accept any reply: nothing follows from a success of this request."""
    return True
