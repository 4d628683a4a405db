"""Finding out whether a store keeps what a commit rests on: above all, that create refuses what exists.

Some servers that speak S3's protocol answer 200 to a conditional put and overwrite. On such a store
two writers would both believe that they had committed. So where the backend cannot know, an object
is created twice under a name of its own, and the second must lose.
"""

from __future__ import annotations

from offload.env import Env
from offload.errors import AlreadyExists, Denied
from offload.store.port import ObjectStore

FIRST, SECOND = b"ledger-offload probe 1\n", b"ledger-offload probe 2\n"


async def make_sure_of_create(store: ObjectStore, env: Env) -> None:
    """Return where create-if-absent holds. Raises `Denied`, with what to do, where it does not.

    Costs four small requests where `capabilities.create_is_probed`, else none. Leaves nothing behind
    unless it is interrupted: then an object `tier.probe.<uuid>`, which nothing reads.
    """
    capabilities = store.capabilities
    if not capabilities.strong_listing:
        raise Denied(
            f"{store.url} cannot hold a tier: its listings may miss what was just written, and commits are "
            "decided by listing; use a store whose listings are strong"
        )
    if capabilities.atomic_create and not capabilities.create_is_probed:
        return
    if not capabilities.atomic_create or not await _second_create_loses(store, f"tier.probe.{env.uuid()}"):
        raise Denied(
            f"{store.url} cannot hold a tier: it overwrites what it was asked to create only if absent, "
            "so two writers could both commit; use a server that honours If-None-Match, or keep the roots "
            "elsewhere: `offload sync --commit-store URL`"
        )


async def _second_create_loses(store: ObjectStore, key: str) -> bool:
    try:
        await store.create(key, FIRST)
        try:
            await store.create(key, SECOND)
        except AlreadyExists:
            return await store.get(key) == FIRST
        return False
    finally:
        await store.delete([key])
