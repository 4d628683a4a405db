"""Errors as documents for programs that are asked over HTTP (RFC 9457, "problem details").

    {"type": "/problems/corrupt", "title": ..., "status": 502, "detail": ..., "stream": ..., "object": ...}

Invariant: a `type` is never renamed. It says what the caller does next, as the class does in Python. A class
without a row has that of its nearest base class, so an error of a third party has a document, too.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from offload.ground.errors import (
    Absent,
    AlreadyExists,
    AlreadyRunning,
    AnchorLost,
    BeingRebuilt,
    Conflict,
    Corrupt,
    Denied,
    Diverged,
    Fenced,
    Misuse,
    NoSpace,
    NoSuchKey,
    NotFound,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    RootsLost,
    StoreDenied,
    StreamDeleted,
    Throttled,
    TryAgain,
    UnsupportedFormat,
)

__all__ = ["PROBLEMS", "ProblemType", "problem_of", "retry_seconds"]

_PROBLEM_TYPES: Final = "/problems/"
"""The path of all types."""

_RETRY_SECONDS: Final = 5
_RETRY_SECONDS_MAX: Final = 3600
"""The pauses that a refused caller is asked for: if the store asks for none, and at most."""


class ProblemType(NamedTuple):
    """What an error is on the wire."""

    status: int
    name: str
    """The last segment of the `type`."""
    title: str
    """What the caller does next."""

    @property
    def path(self) -> str:
        """The `type` of a document."""
        return _PROBLEM_TYPES + self.name


PROBLEMS: Final[dict[type[OffloadError], ProblemType]] = {
    OffloadError: ProblemType(502, "error", "The request failed: read the detail"),
    TryAgain: ProblemType(503, "try-again", "Nothing was changed: the same request may succeed"),
    AlreadyRunning: ProblemType(409, "already-running", "The same work runs already: wait for it"),
    Throttled: ProblemType(503, "throttled", "The store wants fewer requests: wait"),
    Conflict: ProblemType(409, "conflict", "Another writer was first: load the stream and decide again"),
    Fenced: ProblemType(409, "fenced", "Another writer holds the stream: stop"),
    StreamDeleted: ProblemType(410, "stream-deleted", "The stream was deleted: stop"),
    OutcomeUnknown: ProblemType(504, "outcome-unknown", "It may have happened: look before you repeat it"),
    NotOffloaded: ProblemType(404, "not-offloaded", "There is no such tier, stream or ledger"),
    BeingRebuilt: ProblemType(503, "being-rebuilt", "The stream is being rebuilt: wait"),
    NotFound: ProblemType(404, "not-found", "The store has no such object"),
    AlreadyExists: ProblemType(409, "already-exists", "The object exists, perhaps from this request"),
    Diverged: ProblemType(409, "diverged", "Source and tier differ: a person must decide"),
    Denied: ProblemType(403, "denied", "A person must grant a permission"),
    NoSuchKey: ProblemType(403, "no-such-key", "The key service has no such master key"),
    StoreDenied: ProblemType(502, "store-denied", "The store refuses every request of the service"),
    NoSpace: ProblemType(507, "no-space", "A person must make room"),
    Misuse: ProblemType(400, "misuse", "The request itself is wrong"),
    UnsupportedFormat: ProblemType(501, "unsupported-format", "A newer version wrote this: upgrade"),
    Corrupt: ProblemType(502, "corrupt", "Stored bytes violate their format"),
    Absent: ProblemType(502, "absent", "An object that is named is gone"),
    AnchorLost: ProblemType(502, "anchor-lost", "An anchor is lost: rebuild it"),
    RootsLost: ProblemType(502, "roots-lost", "Roots are lost: rebuild the manifest"),
}


def problem_type(error: OffloadError) -> ProblemType:
    """Return the row of the nearest class of an error."""
    return next(PROBLEMS[each] for each in type(error).__mro__ if each in PROBLEMS)


def problem_of(error: OffloadError) -> dict[str, Any]:
    """Return the document of an error, with the fields that locate it."""
    found = problem_type(error)
    document = {"type": found.path, "title": found.title, "status": found.status, "detail": str(error)}
    if isinstance(error, Corrupt):
        document |= {"object": error.where, "position": error.position}
        document |= {} if error.stream is None else {"stream": error.stream}
    if isinstance(error, Diverged) and error.kind is not None:
        document["kind"] = error.kind.value
    return document


def retry_seconds(error: OffloadError) -> int | None:
    """Return the pause before the same request may succeed, for `Retry-After`; None if it never will."""
    if problem_type(error).status != 503:
        return None
    pause = error.pause_seconds if isinstance(error, Throttled) else None
    return _RETRY_SECONDS if pause is None or not pause > 0 else math.ceil(min(pause, _RETRY_SECONDS_MAX))
