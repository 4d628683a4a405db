"""Values that a session hands to what it opens: limits, metrics, and the context of a backend's own opening.

A backend of kind `store` needs none of them: the session puts limits, retries and counters before its store.
One of kind `offloader` or `catalogue` opens a tier by itself, and may take an `OpeningContext`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from offload.contracts.events import Event
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.errors import Misuse

__all__ = ["OpeningContext", "RequestLimits", "StoreMetrics"]


@dataclass(slots=True, kw_only=True)
class StoreMetrics:
    """Running totals. Plain numbers: read them at any time, subtract two readings for an interval."""

    requests: Counter[str] = field(default_factory=Counter)
    """Requests by operation: put, create, get, list, delete, start_upload, put_part, complete, abort."""

    bytes_put: int = 0
    """Every byte handed to the store, by put, create or part."""

    bytes_got: int = 0
    """Every byte that `get` returned."""

    replies_mended: int = 0
    """Damaged replies to `get` for sound objects: a second reply held (`store.checked`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one client may ask of a store. `None` is no bound."""

    up_requests_max: int = 32
    """Requests that change the store, in flight at once; while it throttles, fewer."""

    down_requests_max: int = 32
    """Requests that read it, in flight at once; while it throttles, fewer."""

    up_requests_per_second_max: float | None = None
    down_requests_per_second_max: float | None = None
    """A listing counts as one, whatever its pages."""

    up_bytes_per_second_max: float | None = None
    down_bytes_per_second_max: float | None = None
    """On average: one object goes as fast as it can, and the next one waits the longer."""

    deadline_seconds: float | None = 600.0
    """Of one attempt. A `put` is one whatever its size: choose it for the largest object."""

    patience_seconds: float = 120.0
    """How long failing requests are repeated, from the first failure after the store's last answer.

    Not a limit of `LimitedStore`: whoever puts `RetryingStore` before it passes it on.
    """

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From options by the names above, as text or as numbers. Raises `Misuse` unless above zero."""
        return cls().with_options(options)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """These limits, but for those that `options` names. Raises as `of` does."""
        numbers: dict[str, Any] = {name: _number(name, value) for name, value in options.items()}
        return replace(self, **numbers)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all limits."""
        return tuple(field.name for field in fields(cls))


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = int(value) if name.endswith("requests_max") else float(value)
    except (TypeError, ValueError) as exc:
        raise Misuse(f"option {name!r} takes a number, not {value!r}") from exc
    if not number > 0 or not math.isfinite(number):
        raise Misuse(f"option {name!r} takes a number above zero, not {value!r}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningContext:
    """What the caller wants of a tier that a backend opens by itself, and what its session offers.

    The backend names in `Backend.takes` what it honours. The rest are defaults, because the session refuses
    what a caller asks for beyond that.
    """

    env: Env
    """The clock, sleep and randomness to use."""

    emit: Callable[[Event], None]
    """Tell events here. It returns at once and raises nothing that matters."""

    metrics: StoreMetrics
    """Count requests and bytes here, as they are sent."""

    limits: RequestLimits
    """Bounds of what is asked of the place. A store from `open_store` keeps them already."""

    fragment_size_bytes: int | None
    """A fragment ends behind the chunk that brings it to this many chunk bytes. None: the backend chooses."""

    uploads_max: int | None
    """How many fragments may be on their way at once. None: the backend chooses."""

    open_store: Callable[[str, Mapping[str, Any]], ObjectStore]
    """Open the store behind a URL, with options of its backend, as the session opens its own.

    It has retries, limits, a log and metrics, and shares the client of that place. The session closes it if
    the backend does not.
    """
