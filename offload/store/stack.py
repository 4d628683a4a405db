"""The decorators that stand before every store, in one order.

```text
caller -> RetryingStore -> LimitedStore -> LoggedStore -> the backend's store, or a session's lease of it
```

A retry takes its turn among the others (so it stands before the limits), and the log shows each request that
is sent (so it stands behind both).
"""

from __future__ import annotations

from collections.abc import Callable

from offload.contracts.events import Event
from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.store.limit import LimitedStore, RequestTurns
from offload.store.logged import logged
from offload.store.retry import RetryingStore, RetryPolicy

__all__ = ["stacked_store"]


def stacked_store(
    store: ObjectStore,
    env: Env,
    limits: RequestLimits | None = None,
    policy: RetryPolicy | None = None,
    *,
    emit: Callable[[Event], None] = lambda event: None,
    turns: RequestTurns | None = None,
) -> ObjectStore:
    """A store with a log, deadlines, bounds on what is asked of it, and patience, in this order.

    Its patience is its own: the two stores of a tier wait each for itself. `emit` hears of the waiting.
    Stores with the same `turns` are bounded together.
    """
    limits = limits or RequestLimits()
    return RetryingStore(
        LimitedStore(logged(store, env.monotonic), limits, clock=env.monotonic, sleep=env.sleep, turns=turns),
        policy=policy or RetryPolicy(patience_seconds=limits.patience_seconds),
        clock=env.monotonic,
        sleep=env.sleep,
        random=env.random,
        emit=emit,
    )
