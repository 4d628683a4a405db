"""Values that a session passes to the tiers that it opens: limits, and the context of an opening.

A backend of kind `store` needs none of them: the session puts limits, retries and counters before its store.
A backend of kind `offloader` or `catalogue` opens tiers by itself, and may take an `OpeningContext`. So may a
source whose data is in an object store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from offload.contracts.events import Event
from offload.contracts.metrics import StoreMetrics
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Misuse

__all__ = ["OpeningContext", "RequestLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of one client's requests to a store. `None` means no limit."""

    up_requests_max: int = 32
    """Requests in flight that change the store. Fewer while the store throttles."""

    down_requests_max: int = 32
    """Requests in flight that read the store. Fewer while the store throttles."""

    up_requests_per_second_max: float | None = None
    down_requests_per_second_max: float | None = None
    """A listing counts as one request, however many pages it has."""

    up_bytes_per_second_max: float | None = None
    down_bytes_per_second_max: float | None = None
    """An average: one object is sent at full speed, and the next one waits longer."""

    deadline_seconds: float | None = 600.0
    """The time for one attempt of a request.

    A `put` of any size is one request: allow for the largest object.
    """

    patience_seconds: float = 120.0
    """The time for which failing requests are repeated, from the first failure after the store's last answer.

    `RetryingStore` uses it, and `LimitedStore` does not.
    """

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return limits from options with the names above, as text or numbers.

        Raises `Misuse` unless above 0.
        """
        return cls().with_options(options)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return these limits with those in `options` replaced. Raises as `of` does."""
        numbers: dict[str, Any] = {name: _number(name, value) for name, value in options.items()}
        return replace(self, **numbers)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all limits."""
        return tuple(each.name for each in fields(cls))


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = int(value) if name.endswith("requests_max") else float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise Misuse(f"option {name!r} takes a number, not {str(value)[:80]!r}") from exc
    if not number > 0 or not math.isfinite(number):
        raise Misuse(f"option {name!r} takes a number above zero, not {value!r}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningContext:
    """The caller's wishes for a tier or a source that a plugin opens, and the services of the session.

    A backend names in `Backend.takes` the parts that it honours. All other parts have default values,
    because the session refuses wishes that the backend does not honour. A source gets all services.
    """

    env: Env
    """The clock, sleep and randomness to use."""

    emit: Callable[[Event], None]
    """Send events here. It returns at once, and raises nothing that a backend must handle."""

    metrics: StoreMetrics
    """Count requests and bytes here, when they are sent."""

    limits: RequestLimits
    """The limits of requests to the place. A store from `open_store` keeps them already."""

    fragment_size_bytes: int | None
    """The size in chunk bytes at which a fragment ends, after a whole chunk. None: the backend chooses."""

    uploads_max: int | None
    """The number of fragments that may be uploaded at the same time. None: the backend chooses."""

    open_store: Callable[[str, Mapping[str, Any]], ObjectStore]
    """Open the store of a URL, with options of its backend, in the same way as the session does.

    The store has retries, limits, a log and metrics, and shares the client of that place. The session closes
    it if the plugin does not. Raises `Misuse` as `Session.store` does.
    """

    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The caller's options for the stores that the plugin opens, if it declares `opens_stores`.

    Pass them to `open_store`. They may be secret, so they are in no text.
    """
