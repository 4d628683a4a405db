"""A process that follows a folder: python sidecar.py SOURCE TIER [INSTANCE]. Prints the epoch of each claim.

With the file of an identity, INSTANCE, nobody takes over from it for an hour.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from offload import Dispatcher, FollowRules, Session
from offload.contracts.events import Event, TookOver
from offload.copy.instance import Instance
from offload.opening.backends import as_offloader
from offload.service.instance_file import held_instance
from offload.service.process import serve

# On a busy machine a leader may not run for seconds. Nobody may take over from it for that.
RULES = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.1, takeover_seconds=10.0)


def tell(event: Event) -> None:
    """Print the epoch of a claim."""
    if isinstance(event, TookOver):
        print(event.epoch, flush=True)


async def main() -> None:
    """Follow until a signal."""
    with ExitStack() as held:
        instance, rules = None, RULES
        for path in sys.argv[3:]:
            instance, rules = (
                held.enter_context(held_instance(Path(path))),
                replace(RULES, takeover_seconds=3600),
            )
        await follow(instance, rules)


async def follow(instance: Instance | None, rules: FollowRules) -> None:
    """Follow as this instance."""
    async with Session() as session:
        source, tier = session.source(f"rabbitmq://{sys.argv[1]}"), as_offloader(session.tier(sys.argv[2]))
        plan = tier, rules
        dispatcher = Dispatcher(
            source=source, plan_of=lambda stream: plan, env=session.env, emit=tell, instance=instance
        )
        await serve(dispatcher)


if __name__ == "__main__":
    asyncio.run(main())
