"""A test of a store before a tier is made on it: above all, that a create refuses an existing key.

Some servers that speak S3's protocol answer 200 to a conditional put and overwrite the object. On such a
store two writers would both believe that they had committed. So if the backend cannot know what its server
does, an object is created twice under a fresh name, and the second create must fail.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import Final

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Corrupt, Denied, OutcomeUnknown, TryAgain
from offload.store.checked import checked

PROBE: Final = "tier.probe."
"""The prefix of the names of probes."""

CHECK: Final = "tier.check."
"""The prefix of the names that `offload check` uses."""

LEFT_BEHIND_MS: Final = 24 * 3600 * 1000
"""In milliseconds. A trial takes minutes, so an older one was interrupted. Clocks differ by less."""

_TRIAL: Final = re.compile(rf"(?:{re.escape(PROBE)}|{re.escape(CHECK)})([0-9]{{20}})\.")

PROBE_TRIALS_MAX: Final = 4
FIRST, SECOND = b"ledger-offload probe 1\n", b"ledger-offload probe 2\n"


async def make_sure_of_create(store: ObjectStore, env: Env) -> None:
    """Raise `Denied` if the store cannot hold a tier, above all if its create overwrites existing objects.

    The error says what to do. Costs four small requests if `capabilities.create_is_probed`, else none. If it
    is interrupted, it leaves an object behind that nothing reads and that the sweep removes after a day;
    otherwise it leaves nothing. Raises `TryAgain` or `OutcomeUnknown` if the store does not answer in several
    trials.
    """
    capabilities = store.capabilities
    if not capabilities.strong_listing:
        raise Denied(
            f"{store.url} cannot hold a tier: its listings may miss what was just written, and commits are "
            "decided by listing; use a store whose listings are strong"
        )
    most = capabilities.create_size_bytes_max
    if most is not None and most < CREATE_SIZE_BYTES_LEAST:
        raise Denied(
            f"{store.url} cannot hold a tier: one create takes {most} bytes, and a full root is larger; "
            f"use a store that creates {CREATE_SIZE_BYTES_LEAST} bytes at once, or keep the roots elsewhere: "
            "`offload sync --commit-store URL`"
        )
    if capabilities.atomic_create and not capabilities.create_is_probed:
        return
    if not capabilities.atomic_create or not await _second_create_loses(store, env):
        raise Denied(
            f"{store.url} cannot hold a tier: its create overwrites existing objects, "
            "so two writers could both commit; use a server that honours If-None-Match, or keep the roots "
            "elsewhere: `offload sync --commit-store URL`"
        )


def trial_name(prefix: str, env: Env) -> str:
    """Return a name for a trial that begins now: `prefix`, the time in milliseconds, and a UUID."""
    return f"{prefix}{max(env.now_ms(), 0):020d}.{env.uuid()}"


def is_left_behind(key: str, env: Env) -> bool:
    """Return True if the object is of a trial that began more than a day ago, and so was interrupted."""
    trial = _TRIAL.match(key)
    return trial is not None and env.now_ms() - int(trial[1]) > LEFT_BEHIND_MS


async def _second_create_loses(store: ObjectStore, env: Env) -> bool:
    """Return the verdict of the first trial that ends. A trial that fails half-way proves nothing."""
    # Each trial has a new name: under the old one, a late create of the failed trial could decide the next.
    for attempt in range(PROBE_TRIALS_MAX - 1):
        try:
            return await _try_once(store, trial_name(PROBE, env))
        except (TryAgain, OutcomeUnknown):
            await env.sleep(env.backoff_seconds(attempt))
    return await _try_once(store, trial_name(PROBE, env))


async def _try_once(store: ObjectStore, key: str) -> bool:
    try:
        # Nobody else knows the name. If it exists, the client library sent our own create twice.
        with suppress(AlreadyExists):
            await store.create(key, FIRST)
        try:
            await store.create(key, SECOND)
        except AlreadyExists:
            # The answer alone is not enough: the store may have overwritten the object and then answered so,
            # or the client may have sent the second create twice and have met it.
            await checked(store, key, partial(_make_sure_it_is_first, key=key))
            return True
        return False
    except Corrupt:
        return False
    finally:
        await store.delete([key])


def _make_sure_it_is_first(raw: bytes, *, key: str) -> None:
    if raw != FIRST:
        raise Corrupt("probe", key, expected=FIRST, found=raw)
