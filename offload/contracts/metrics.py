"""Totals of the requests to stores: how many, how they ended, how long they took, and how many bytes moved.

`Session.metrics` is a `StoreMetrics`, always on. Read it at any time, on the event loop of the session:

    session.metrics.requests["get"]                    # 12
    session.metrics.times["get", "ok"].count           # 11
    session.metrics.times["get", "not_found"].seconds  # 0.004, the sum of all
    session.metrics.retries["get", "throttled"]        # 2

Invariant: the number of keys has a bound. Operations are those of the port, outcomes are
`REQUEST_OUTCOMES`, and no key has the name of a stream or an object.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from offload.ground import errors
from offload.ground.errors import OffloadError

__all__ = ["BUCKET_SECONDS", "REQUEST_OUTCOMES", "RequestTimes", "StoreMetrics", "outcome_of"]


OTHER: Final = "other"
"""The outcome of a request that failed with an error of another project."""

BUCKET_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""The upper ends of the buckets of `RequestTimes`: from a server nearby to a large put on a slow line."""


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OffloadError)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_outcomes: Final[dict[type[BaseException] | None, str]] = {
    None: "ok",
    asyncio.CancelledError: "cancelled",
    **{kind: _snake(kind.__name__) for kind in vars(errors).values() if _is_ours(kind)},
}
"""Outcomes by class. `outcome_of` adds other classes when it first meets them."""

REQUEST_OUTCOMES: Final = frozenset({*_outcomes.values(), OTHER})
"""All outcomes: "ok", "cancelled", "other", and the classes of `offload.ground.errors` in snake case."""


def outcome_of(kind: type[BaseException] | None) -> str:
    """Return the outcome of a request that raised `kind`, or of one that raised nothing (None).

    A class that a plugin derives from one of ours counts as ours, so that plugins add no outcomes.
    """
    if (known := _outcomes.get(kind)) is None:
        assert kind is not None
        of_bases = (_outcomes[each] for each in kind.__mro__ if each in _outcomes)
        known = _outcomes[kind] = next(of_bases, OTHER)
    return known


class RequestTimes:
    """A histogram of times in seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts: Final = [0] * (len(BUCKET_SECONDS) + 1)
        """The number of times by bucket. Bucket `i` ends with `BUCKET_SECONDS[i]`; the last has no end."""

        self.seconds = 0.0
        """The sum of all times."""

    def __repr__(self) -> str:
        return f"RequestTimes(count={self.count}, seconds={self.seconds:.6f})"

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        """Add a time."""
        self.counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True, kw_only=True)
class StoreMetrics:
    """Running totals of requests and bytes. They never decrease: subtract two readings for an interval.

    A request is one call of the port. A listing is one request, however many pages it has. A `get` that takes
    its bytes from the reply to an earlier one is a request too, and `reads_shared` counts it.
    """

    requests: Counter[str] = field(default_factory=Counter)
    """Requests that have begun, by operation: put, create, get, list, delete, start_upload, put_part,
    complete, abort, stored_crc32c, metadata_of, retained."""

    times: defaultdict[tuple[str, str], RequestTimes] = field(
        default_factory=lambda: defaultdict(RequestTimes)
    )
    """Requests that have ended, by operation and outcome, and the time that they took.

    A listing ends with its last row, and its time is that of waiting for rows.
    """

    first_bytes: RequestTimes = field(default_factory=RequestTimes)
    """The time from the beginning of a `get` to the head of its reply, if the backend reports it."""

    moved: Counter[str] = field(default_factory=Counter)
    """Bytes by operation, counted as they pass: a put that is sent twice counts twice.

    `get` receives. put, create and put_part send.
    """

    retries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that were repeated, by operation and by the outcome of the attempt before."""

    reads_shared: int = 0
    """The calls of `get` that sent nothing: their bytes came with the reply to an earlier `get`."""

    replies_mended: int = 0
    """The damaged replies to `get` for which a second reply was sound (`store.checked`)."""

    observe: Callable[[str, str, float], None] | None = None
    """Called when a request ends, with its operation, its outcome and the seconds it took."""

    @property
    def bytes_put(self) -> int:
        """The bytes sent to the store, by put, create or part."""
        return self.moved.total() - self.bytes_got

    @property
    def bytes_got(self) -> int:
        """The bytes that `get` returned."""
        return self.moved["get"]

    @property
    def throttled(self) -> int:
        """The requests that the store refused because there were too many."""
        return sum(times.count for (_, outcome), times in self.times.items() if outcome == "throttled")

    def ended(self, operation: str, outcome: str, seconds: float) -> None:
        """Count a request that has ended, and tell `observe`."""
        self.times[operation, outcome].add(seconds)
        if self.observe is not None:
            self.observe(operation, outcome, seconds)
