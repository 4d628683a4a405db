"""Where the objects of a tier are: what its anchor says, and the store that this makes of a place.

Usually all are in one store under their own keys. The anchor may say otherwise, for good, when the
tier is made: `hashed_keys` spreads keys over folders (`store.hashed`), and `commit_store` names another
store for what commits rest on (`store.split`), because the first one cannot create only if absent.

Invariants: the anchor of a tier with a commit store stands on both, with the same bytes, and on the
commit store it was created only if absent; so a place that a stranger's anchor names is never
written to, and one commit store serves one tier. The anchor names no credentials.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from offload.contracts.store import Body, ObjectStore
from offload.env import Env
from offload.errors import (
    Denied,
    Misuse,
    NotFound,
    NotOffloaded,
    rebuild_command,
)
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, is_decisive, sides_of
from offload.store.hashed import HashedStore
from offload.store.probe import make_sure_of_create
from offload.store.split import SplitStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offload.contracts.store import Listed
from offload.native.anchors import create_anchor, read_tier_anchor

__all__ = ["TierPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """How a tier is to be made where there is none. One that is there must be like this."""

    commit_store: str = ""
    """The URL of another store for roots and anchors."""

    hashed_keys: bool = False
    """Spread keys over sixteen folders, against hot ranges of a bucket."""


def no_other_store(url: str) -> ObjectStore:
    """What opens commit stores where nothing else was given."""
    raise Misuse(f"the roots of this tier are at {url}, and no way to open that was given; use `open_tier`")


@dataclass(kw_only=True)
class TierPlace:
    """One place that is, or may become, a tier."""

    data: ObjectStore
    env: Env
    plan: TierPlan
    open_store: Callable[[str], ObjectStore] = no_other_store
    is_probed: bool = False
    """Whether making the tier has found out that create-if-absent holds where commits go."""

    async def find(self) -> tuple[TierAnchor, ObjectStore]:
        """The anchor and the store. Raises `NotFound` without an anchor, `Misuse` if it is not as planned."""
        anchor = await read_tier_anchor(self.data)
        await self._check_plan(anchor)
        return anchor, await self._arranged(anchor)

    async def make(self) -> tuple[TierAnchor, ObjectStore]:
        """Make an empty place a tier. Of several that do so at once all succeed, with one anchor.

        Raises `Denied`, before anything is written, where commits could not be safe here.
        """
        stranger = await self._stranger()
        if stranger is None:
            await (self._make_split() if self.plan.commit_store else self._make_whole())
        try:
            return await self.find()
        except NotFound as exc:
            message = (
                f"{self.data.url} is no tier and not empty: it holds {stranger!r}; name an empty place. "
                f"If it is a tier that lost its {TIER_ANCHOR}, `{rebuild_command(self.data.url)}` restores it"
            )
            raise NotOffloaded(message) from exc

    async def _stranger(self) -> str | None:
        """Some key that says that this place is used for something else. A rival's probe does not."""
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.data.list(""))) as listing:
            async for row in listing:
                if not row.key.startswith(TIER_PREFIX):
                    return row.key
        return None

    async def _make_whole(self) -> None:
        await make_sure_of_create(self.data, self.env)
        self.is_probed = True
        anchor = TierAnchor(hashed_keys=self.plan.hashed_keys)
        await create_anchor(self.data, TIER_ANCHOR, anchor.encode(), self.env)  # `find` reads which it is

    async def _make_split(self) -> None:
        if not self.data.capabilities.strong_listing:
            raise Denied(f"{self.data.url} cannot hold a tier: its listings may miss what was just written")
        commits = self.open_store(self.plan.commit_store)
        async with aclosing(commits):
            await make_sure_of_create(commits, self.env)
            self.is_probed = True
            anchor = TierAnchor(
                hashed_keys=self.plan.hashed_keys,
                commit_store=commits.url,
                data_store=self.data.url,
                uid=str(self.env.uuid()),
            )
            if not await create_anchor(commits, TIER_ANCHOR, anchor.encode(), self.env):
                anchor = await read_tier_anchor(commits)
                if anchor.data_store != self.data.url:
                    theirs = anchor.data_store or "itself"
                    message = f"{commits.url} belongs to another tier, that of {theirs}; name an empty place"
                    raise Misuse(message)
        await self.data.put(TIER_ANCHOR, Body.of(anchor.encode()))  # always the same bytes, so any order does

    async def _check_plan(self, anchor: TierAnchor) -> None:
        if self.plan.hashed_keys and not anchor.hashed_keys:
            raise Misuse(f"the tier at {self.data.url} was made without hashed keys, and stays so")
        wanted = self.plan.commit_store
        if not wanted:
            return
        async with aclosing(self.open_store(wanted)) as named:
            is_the_same = named.url == anchor.commit_store
        if not is_the_same:
            where = f"are at {anchor.commit_store}" if anchor.commit_store else "are beside its data"
            raise Misuse(f"the roots of the tier at {self.data.url} {where}, not at {wanted}")

    async def _arranged(self, anchor: TierAnchor) -> ObjectStore:
        store: ObjectStore = self.data
        if anchor.hashed_keys:
            store = HashedStore(store, lone=TIER_PREFIX)
        if not anchor.commit_store:
            return store
        commits = self.open_store(anchor.commit_store)
        try:
            await self._check_commits(commits, anchor)
        except BaseException:
            await commits.aclose()
            raise
        return SplitStore(store, commits, decisive=is_decisive, sides_of=sides_of)

    async def _check_commits(self, commits: ObjectStore, anchor: TierAnchor) -> None:
        said = f"the roots of the tier at {self.data.url} are at {anchor.commit_store}"
        try:
            theirs = await read_tier_anchor(commits)
        except NotFound as exc:
            raise Misuse(f"{said}, and there is no {TIER_ANCHOR} there") from exc
        if theirs != anchor:
            raise Misuse(f"{said}, but what is there belongs to another tier")
