"""The decorators of every store, in a fixed order.

```text
caller -> RetryingStore -> LimitedStore -> LoggedStore -> the backend's store, or a session's lease of it
```

The retries come before the limits, so that a repeated request waits for its turn like any other. The log
comes after both, so that it shows each request that is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from offload.contracts.events import Event
from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
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
    emit: Callable[[Event], None] | None = None,
    turns: RequestTurns | None = None,
) -> ObjectStore:
    """Return `store` behind a log, limits and retries, in this order.

    Its patience is its own: each of the two stores of a tier waits by itself. `emit` gets events about
    waiting. Stores with the same `turns` are bounded together.
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
