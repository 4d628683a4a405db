"""A process that follows a folder: python sidecar.py SOURCE TIER. Prints the epoch of each of its claims."""

from __future__ import annotations

import asyncio
import sys

from offload import Dispatcher, FollowRules, Session
from offload.contracts.events import Event, TookOver
from offload.service.process import serve
from offload.session import as_offloader

# On a busy machine a leader may not run for seconds. Nobody may take over from it for that.
RULES = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.1, takeover_seconds=10.0)


def tell(event: Event) -> None:
    """Print the epoch of a claim."""
    if isinstance(event, TookOver):
        print(event.epoch, flush=True)


async def main() -> None:
    """Follow until a signal."""
    async with Session() as session:
        source, tier = session.source(f"rabbitmq://{sys.argv[1]}"), as_offloader(session.tier(sys.argv[2]))
        plan = tier, RULES
        await serve(Dispatcher(source=source, plan_of=lambda stream: plan, env=session.env, emit=tell))


if __name__ == "__main__":
    asyncio.run(main())
