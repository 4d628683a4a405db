"""Finding out whether a store keeps what a commit rests on: above all, that create refuses what exists.

Some servers that speak S3's protocol answer 200 to a conditional put and overwrite. On such a store
two writers would both believe that they had committed. So where the backend cannot know, an object
is created twice under a name of its own, and the second must lose.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import Final

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.errors import AlreadyExists, Corrupt, Denied, OutcomeUnknown, TryAgain
from offload.store.checked import checked

PROBE: Final = "tier.probe."
"""What the names of probes begin with."""

CHECK: Final = "tier.check."
"""What the names of `offload check` begin with."""

LEFT_BEHIND_MS: Final = 24 * 3600 * 1000
"""A trial takes minutes, so one that began so long ago was interrupted. Clocks differ by less."""

_TRIAL: Final = re.compile(rf"(?:{re.escape(PROBE)}|{re.escape(CHECK)})([0-9]{{20}})\.")

PROBE_TRIALS_MAX: Final = 4
FIRST, SECOND = b"ledger-offload probe 1\n", b"ledger-offload probe 2\n"


async def make_sure_of_create(store: ObjectStore, env: Env) -> None:
    """Return where create-if-absent holds. Raises `Denied`, with what to do, where it does not.

    Costs four small requests where `capabilities.create_is_probed`, else none. Leaves nothing behind
    unless it is interrupted: then an object that nothing reads, and that the sweep removes after a day.
    Raises `TryAgain` or `OutcomeUnknown` where the store does not answer in several trials.
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
            f"{store.url} cannot hold a tier: it overwrites what it was asked to create only if absent, "
            "so two writers could both commit; use a server that honours If-None-Match, or keep the roots "
            "elsewhere: `offload sync --commit-store URL`"
        )


def trial_name(prefix: str, env: Env) -> str:
    """A name for a trial that begins now: the time in milliseconds, and a UUID."""
    return f"{prefix}{max(env.now_ms(), 0):020d}.{env.uuid()}"


def is_left_behind(key: str, env: Env) -> bool:
    """Whether a trial left this object that was interrupted more than a day ago."""
    trial = _TRIAL.match(key)
    return trial is not None and env.now_ms() - int(trial[1]) > LEFT_BEHIND_MS


async def _second_create_loses(store: ObjectStore, env: Env) -> bool:
    """The verdict; a trial that was interrupted says nothing, and the next one is made under a new name."""
    for attempt in range(PROBE_TRIALS_MAX - 1):
        try:
            return await _try_once(store, trial_name(PROBE, env))
        except (TryAgain, OutcomeUnknown):
            await env.sleep(env.backoff_seconds(attempt))
    return await _try_once(store, trial_name(PROBE, env))


async def _try_once(store: ObjectStore, key: str) -> bool:
    try:
        with suppress(AlreadyExists):  # nobody else knows the name: our own, sent again by the client
            await store.create(key, FIRST)
        try:
            await store.create(key, SECOND)
        except AlreadyExists:
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
