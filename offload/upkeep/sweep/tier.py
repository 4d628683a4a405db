"""Sweeping a tier: delete objects that no commit can ever name, once no reader can still be reading them.

Steps 1 to 4 run for each page of a stream's listing. Step 5 runs once, after the last page
(docs/commit-protocol.md, step 8):

    1. list     the page. An object that appears later is not touched
    2. load     the newest root, and confirm after reading it that it still is the newest
    3. judge    an object is condemned if that root does not name it, not even through groups, and it is
                    a fragment    whose attempt does not run
                    a group       made for a root version that is decided: at most the newest
                    a root        below the newest, except the last `ROOTS_KEPT`
                    a key object  of a life that has ended, without a master key of its own
                    an index      that no lookup uses (`index.rules`). It has no grace: it is due at once
    4. prove    roots are lost if a group or an index of the page, a key object of another life, or a fragment
                that was condemned for the whole grace, was made on a root above the newest; or if such a
                fragment is from another life of the stream, and not from an earlier one. A fragment that the
                root names and that is gone counts too. In each of these cases the sweep stops and deletes
                nothing of the stream
    5. delete   every object that was condemned for the whole grace; write a note of the others

A verdict of step 3 stays true for ever: an attempt that does not run never runs again, a decided version is
never committed again, version numbers never fall, and only a rebuild, which runs beside no sweep, brings back
a life that ended. So a sweep may stall anywhere, may be killed, and may run beside other sweeps and writers.
The grace protects readers only: a reader may hold a root that still names the object.

    stopped             left behind                        cured by
    before 5            nothing new                        -
    between deletes     some of the condemned objects      the next sweep, which judges them again
    before the note     no record of what was seen         the next sweep: the grace begins again
    a put lands late    an object that is condemned        the next sweep: sweeps must recur

Invariants:

- Nothing is deleted that the newest root names at that moment or later. The newest root, a tombstone, an
  anchor and an unrecognised object are never deleted.
- If the stream is being rebuilt, or a part of the tree cannot be read, nothing of the page is condemned: a
  failure to read is never taken for absence.
- If roots are lost, or a listing breaks off, nothing of the stream is deleted, whichever page shows it.
- Memory is bounded by one page, the groups of `GroupCache`, and 50 bytes for each condemned object.

Rejected: "not named and old enough"; reading the root before the listing; a grace counted from the age of the
object (counterexamples in docs/commit-protocol.md); removing a prefix; deleting what a trim just dropped.
"""

from __future__ import annotations

from typing import Final

from offload.commit.groups import GroupCache
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Denied
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.sweep.notes import InMemory, InTier, SweepNotes
from offload.upkeep.sweep.page import ROOTS_KEPT
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.run import OnCondemned, OnProgress, TierSweep

__all__ = ["Sweeper", "sweep"]


GRACE_SECONDS: Final = 3600.0
"""The default time for readers of older roots. A reader that is slower continues on the newest root."""

UPLOADS_SECONDS: Final = 7 * 86_400.0
"""The age at which an unfinished upload is aborted. Its attempt does not run: the delay is for people."""

PAGE_KEYS_MAX: Final = 20_000
"""Objects on one page. Each page costs one load of the newest root, so a larger page means fewer requests."""


def no_listener(_: object) -> None:
    """Ignore the report."""


class Sweeper:
    """A sweeper that sweeps one tier again and again, for a process that lives longer than the grace.

    It remembers condemned objects in memory, by its own monotonic clock, and writes nothing to the tier. It
    deletes an object at the first `sweep` that is at least one grace after the sweep that first saw it. A new
    `Sweeper` remembers nothing: every grace begins again.
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
        # A group never changes, so one that an earlier sweep read serves all later ones.
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
        """Sweep all streams, or one with its parts.

        Differs from the function `sweep` only in where the notes are kept.
        """
        run = TierSweep(
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
    """Sweep a tier once, or one stream of it with its parts, for a program that ends before the grace does.

    The run writes a note of the condemned objects into the tier. It deletes the objects that an earlier run
    noted at least `grace_seconds` ago and that are still condemned. With a grace of 0 it deletes at once: the
    caller asserts that nobody reads. It aborts unfinished uploads older than `uploads_seconds`, if the store
    can list them. The newest `roots_kept` roots stay for people to look at; a deleted stream keeps its
    tombstone. `progress` is called after every page and every delete, `tell` for each condemned object.

    Raises `NotOffloaded` if the place is no tier or has no such stream, `Misuse` for an offloader that keeps
    no objects, and `Denied` if the store's listings may be late: an older root would condemn what a newer one
    names. Errors of one stream are in the report; `StoreDenied` also ends the sweep.
    """
    env, store = env or Env(), await _store_of(tier)
    run = TierSweep(
        store=store,
        env=env,
        notes=InTier(store, env, grace_seconds),
        # All pages of the run share the groups, so no page reads a group again that is still cached.
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
    """Return the store with the tier's own names, wherever its anchor places the objects."""
    objects = ObjectStoreOffloader(tier) if isinstance(tier, ObjectStore) else native(tier, to="sweep")
    # The tier is opened first: its anchor decides in which store the objects are.
    await objects.open()
    # A late listing would show root 5 after root 6 was committed. An object that only root 6 names would
    # look condemned, and no later check would notice.
    if not objects.store.capabilities.strong_listing:
        raise Denied(
            f"{tier.url} cannot be swept: its listings may miss the newest root, so the sweep could delete "
            "objects that are in use"
        )
    return objects.store
