"""Sweeping a tier: what no commit can ever name is deleted, once no reader can still be at it.

For each page of a stream's listing, and then for what all pages found (docs/commit-protocol.md, step 8):

    1. list     what is there: nothing that appears later is touched
    2. load     the newest root, confirmed to be the newest after it was read
    3. judge    condemned is what that root does not name, groups followed, and
                    a fragment    whose attempt does not run
                    a group       made for a root version that is decided: at most the newest
                    a root        below the newest, the last `ROOTS_KEPT` excepted
    4. prove    of what was seen condemned for the whole grace: no fragment of it, and no group of the page,
                was made on a root above the newest, or in another life that is no earlier one. Else roots
                are lost: stop, delete nothing. Nor where a fragment that the root names is not there
    5. delete   all of it, once every page was judged; note the rest

A verdict of 3 stays true for ever: an attempt that does not run never runs again, a decided version is
never committed again, numbers never fall. So a sweep may stall anywhere, be killed, run beside others and
beside writers. The grace is for readers alone: one may hold a root that still names the object.

    stopped             left behind                        cured by
    before 5            nothing new                        -
    between deletes     some of what goes                  the next sweep, which judges anew
    before the note     what was seen, forgotten           the next sweep: the grace begins again
    a put lands late    an object that is condemned        the next sweep: sweeps must recur

Invariants: nothing is deleted that the newest root names at that moment or later; nor the newest root, a
tombstone included, nor an anchor, nor what is not recognised. Where the stream is being rebuilt, or a part of
the tree cannot be read, nothing of the page is condemned: a failure to read is never taken for absence. Where
roots are lost, or a listing breaks off, nothing of the stream is deleted, on whichever page that is found.
Memory is bounded by a page, the groups of `GroupCache`, and 50 bytes for each object that waits or goes.

Rejected: "not named and old enough", the root read before the listing, a grace counted from the age of the
object (counterexamples in docs/commit-protocol.md); removing a prefix; deleting what a trim just dropped.
"""

from __future__ import annotations

from typing import Final

from offload.commit.groups import GroupCache
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.errors import Denied
from offload.native.offloader import ObjectStoreOffloader
from offload.native.own import native
from offload.upkeep.sweep.notes import InMemory, InTier, SweepNotes
from offload.upkeep.sweep.page import ROOTS_KEPT
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.run import OnCondemned, OnProgress, SweepRun

__all__ = ["Sweeper", "sweep"]


GRACE_SECONDS: Final = 3600.0
"""Twice as long as a reader goes on with a root that it loaded (docs/commit-protocol.md, step 8)."""

UPLOADS_SECONDS: Final = 7 * 86_400.0
"""How old an unfinished upload must be to be aborted. Its attempt does not run, so this is for people."""

PAGE_KEYS_MAX: Final = 20_000


def no_listener(_: object) -> None:
    """Hears nothing."""


class Sweeper:
    """Sweeps one tier again and again, for a process that lives longer than the grace.

    What it saw it keeps in memory, by its own monotonic clock, so it writes nothing to the tier. It deletes
    at the first `sweep` that is a grace or more later. One that was made anew begins anew.
    """

    def __init__(
        self,
        tier: LedgerOffloader | ObjectStore,
        *,
        grace_seconds: float = GRACE_SECONDS,
        env: Env | None = None,
        uploads_seconds: float = UPLOADS_SECONDS,
        page_keys_max: int = PAGE_KEYS_MAX,
        roots_kept: int = ROOTS_KEPT,
    ) -> None:
        self._env = env or Env()
        self._tier = tier
        self._grace_seconds = grace_seconds
        self._page_keys_max = page_keys_max
        self._roots_kept = roots_kept
        self._uploads_seconds = uploads_seconds
        self._groups = GroupCache()
        self._notes: SweepNotes = InMemory(self._env)

    async def sweep(
        self,
        stream: str | None = None,
        *,
        dry_run: bool = False,
        progress: OnProgress = no_listener,
        tell: OnCondemned = no_listener,
    ) -> SweepReport:
        """Sweep all streams, or one. As the function `sweep`, but for where it keeps what it saw."""
        run = SweepRun(
            store=await _store_of(self._tier),
            env=self._env,
            notes=self._notes,
            groups=self._groups,
            page_keys_max=self._page_keys_max,
            roots_kept=self._roots_kept,
            uploads_seconds=self._uploads_seconds,
            report=SweepReport(grace_seconds=self._grace_seconds, dry_run=dry_run),
            progress=progress,
            tell=tell,
        )
        await run.run(stream)
        return run.report


async def sweep(
    tier: LedgerOffloader | ObjectStore,
    *,
    stream: str | None = None,
    grace_seconds: float = GRACE_SECONDS,
    dry_run: bool = False,
    uploads_seconds: float = UPLOADS_SECONDS,
    env: Env | None = None,
    page_keys_max: int = PAGE_KEYS_MAX,
    roots_kept: int = ROOTS_KEPT,
    progress: OnProgress = no_listener,
    tell: OnCondemned = no_listener,
) -> SweepReport:
    """Sweep a tier once, or one stream of it, for a program that ends before the grace does.

    What it saw it notes in the tier, and what an earlier run saw at least `grace_seconds` ago it deletes,
    where it is condemned still. With a grace of 0 it deletes at once: the caller asserts that nobody reads.
    Unfinished uploads older than `uploads_seconds` are aborted, where the store can list them.
    Of the roots, the newest `roots_kept` stay for people to look at; of a deleted stream, its tombstone.
    `progress` is told after every page and every delete; `tell` of each condemned object.

    Raises `NotOffloaded` where the place is no tier or has no such stream, `Misuse` for an offloader that
    keeps no objects, `Denied` where the store's listings may be late: an older root condemns what a newer one
    names. What goes wrong in a stream is in the report; `StoreDenied` also ends the sweep.
    """
    env, store = env or Env(), await _store_of(tier)
    run = SweepRun(
        store=store,
        env=env,
        notes=InTier(store, env, grace_seconds),
        groups=GroupCache(),
        page_keys_max=page_keys_max,
        roots_kept=roots_kept,
        uploads_seconds=uploads_seconds,
        report=SweepReport(grace_seconds=grace_seconds, dry_run=dry_run),
        progress=progress,
        tell=tell,
    )
    await run.run(stream)
    return run.report


async def _store_of(tier: LedgerOffloader | ObjectStore) -> ObjectStore:
    """The store with the tier's own names, whatever its anchor says about where objects are."""
    objects = ObjectStoreOffloader(tier) if isinstance(tier, ObjectStore) else native(tier, to="sweep")
    await objects.open()
    if not objects.store.capabilities.strong_listing:
        raise Denied(
            f"{tier.url} cannot be swept: its listings may miss the newest root, and what that names would go"
        )
    return objects.store
