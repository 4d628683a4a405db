"""The place of a tier: reading and making its anchor, and arranging its stores as the anchor says.

Usually all objects are in one store under their own keys. The anchor may say otherwise. This is decided when
the tier is made, and never changes: `hashed_keys` spreads keys over folders (`store.hashed`); `commit_store`
names another store for roots and anchors (`store.split`), if the first store cannot create only if absent;
`compression` is the default of writers.

Invariants: the anchor of a tier with a commit store is on both stores, with the same bytes, and on the commit
store it was created only if absent. So nothing is written to a place that only a stranger's anchor names, and
one commit store serves one tier. Data at another URL than the anchor's is a copy, from which nothing is
committed. The anchor names no credentials.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from offload.contracts.store import Body, ObjectStore
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, is_decisive, shows_a_tier, sides_of
from offload.ground.env import Env
from offload.ground.errors import (
    AnchorLost,
    Corrupt,
    Denied,
    Misuse,
    NotFound,
    NotOffloaded,
    rebuild_command,
)
from offload.model.compression import BlockCodec, Compression, check_compression
from offload.store.hashed import HashedStore
from offload.store.probe import make_sure_of_create
from offload.store.read_only import ReadOnlyStore
from offload.store.split import SplitStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offload.contracts.store import Listed
from offload.native.anchors import create_anchor, read_tier_anchor

__all__ = ["TierPlan"]


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """The layout of a tier that is going to be made.

    An existing tier must have the same commit store and hashed keys already. It keeps its own compression.
    """

    commit_store: str = ""
    """The URL of another store for roots and anchors."""

    hashed_keys: bool = False
    """Whether keys are spread over sixteen folders, against hot ranges of a bucket."""

    compression: Compression | None = None
    """The compression of new fragments, unless a writer names another one (`TierOptions.compression`)."""

    def __post_init__(self) -> None:
        check_compression(self.compression)

    @property
    def compression_text(self) -> str:
        """The compression as an anchor spells it: empty if there is none."""
        by = self.compression
        return "" if by is None or by.codec is BlockCodec.NONE else str(by)


def no_other_store(url: str) -> ObjectStore:
    """The default for `open_store`: it refuses to open a commit store."""
    raise Misuse(f"the roots of this tier are at {url}, which was not opened with it: use `open_tier`")


@dataclass(kw_only=True)
class TierPlace:
    """A place that is, or may become, a tier."""

    data: ObjectStore
    env: Env
    plan: TierPlan
    open_store: Callable[[str], ObjectStore] = no_other_store
    is_probed: bool = False
    """Whether the store of commits is known to keep create-if-absent, because the tier was made here."""

    async def find(self) -> tuple[TierAnchor, ObjectStore]:
        """Return the anchor and the arranged store.

        Raises `NotFound` if there is no anchor, `Misuse` if the tier is not as planned.
        """
        try:
            anchor = await read_tier_anchor(self.data)
        except Corrupt as damage:
            raise AnchorLost(TIER_ANCHOR, tier=self.data.url, damage=damage) from damage
        await self._check_plan(anchor)
        return anchor, await self._arranged(anchor)

    async def make(self) -> tuple[TierAnchor, ObjectStore]:
        """Make an empty place a tier. If several do so at once, all succeed, with one anchor.

        Raises `Denied`, before anything is written, if commits would not be safe here.
        """
        # Objects here may be a rival's, who has made the tier and begun to fill it since we looked for an
        # anchor. So `find` looks again, and only a missing anchor makes them a stranger's.
        stranger = await self._stranger()
        if stranger is None:
            await (self._make_split() if self.plan.commit_store else self._make_whole())
            # A file system that is not mounted, or a URL with a mistake, looks like an empty place.
            _log.info("%s was empty: it is a new tier now", self.data.url)
        try:
            return await self.find()
        except NotFound as exc:
            if stranger is not None and shows_a_tier(stranger):
                raise AnchorLost(TIER_ANCHOR, tier=self.data.url) from exc
            message = (
                f"{self.data.url} is no tier and not empty: it holds {stranger!r}; name an empty place. "
                f"If it is a tier that lost its {TIER_ANCHOR}, `{rebuild_command(self.data.url)}` restores it"
            )
            raise NotOffloaded(message) from exc

    async def check_absence(self) -> None:
        """Raise `AnchorLost` if there are objects of a tier here, and no anchor. Changes nothing."""
        # The listing comes first: objects of a tier that is made meanwhile appear after its anchor.
        stranger = await self._stranger()
        if stranger is not None and shows_a_tier(stranger):
            try:
                await self.find()
            except NotFound as exc:
                raise AnchorLost(TIER_ANCHOR, tier=self.data.url) from exc

    async def _stranger(self) -> str | None:
        """Return a key of something other than a tier, or None. A rival's probe or anchor does not count."""
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.data.list(""))) as listing:
            async for row in listing:
                if not row.key.startswith(TIER_PREFIX):
                    return row.key
        return None

    async def _make_whole(self) -> None:
        await make_sure_of_create(self.data, self.env)
        self.is_probed = True
        anchor = TierAnchor(hashed_keys=self.plan.hashed_keys, compression=self.plan.compression_text)
        # A rival's anchor may have come first, perhaps with another plan. `find` reads what is there.
        await create_anchor(self.data, TIER_ANCHOR, anchor.encode(), self.env)

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
                compression=self.plan.compression_text,
            )
            # The commit store decides first, because only it can create if absent. Its anchor names the data
            # store. If it was there already, a rival made this tier, or we did before a crash: its `uid`
            # then counts, and not ours.
            if not await create_anchor(commits, TIER_ANCHOR, anchor.encode(), self.env):
                anchor = await read_tier_anchor(commits)
                if anchor.data_store != self.data.url:
                    theirs = anchor.data_store or "itself"
                    message = f"{commits.url} belongs to another tier, that of {theirs}; name an empty place"
                    raise Misuse(message)
        # The data store may overwrite, so this is a plain put. All who make the tier put the same bytes.
        await self.data.put(TIER_ANCHOR, Body.of(anchor.encode()))

    async def _check_plan(self, anchor: TierAnchor) -> None:
        if self.plan.hashed_keys and not anchor.hashed_keys:
            raise Misuse(
                f"the tier at {self.data.url} was made without hashed keys, and this cannot be changed"
            )
        wanted = self.plan.commit_store
        if not wanted:
            return
        # The store is opened for its URL in the form that the anchor has: options and secrets left out.
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
        # Nobody owns the commit store before it is part of the arranged store. An error or a cancellation
        # must close it here.
        commits = self.open_store(anchor.commit_store)
        try:
            await self._check_commits(commits, anchor)
        except BaseException:
            await commits.aclose()
            raise
        if self.data.url != anchor.data_store:
            commits = ReadOnlyStore(commits, partial(_copied, self.data.url, anchor))
        return SplitStore(store, commits, decisive=is_decisive, sides_of=sides_of)

    async def _check_commits(self, commits: ObjectStore, anchor: TierAnchor) -> None:
        # Whoever can write the data store can forge an anchor that names somebody else's commit store. The
        # anchor there must be the same one, or roots would be written to a place that is not this tier's.
        said = f"the roots of the tier at {self.data.url} are at {anchor.commit_store}"
        try:
            theirs = await read_tier_anchor(commits)
        except NotFound as exc:
            raise Misuse(f"{said}, and there is no {TIER_ANCHOR} there") from exc
        except Corrupt as damage:
            where = f"{anchor.commit_store}/{TIER_ANCHOR}"
            raise AnchorLost(where, tier=self.data.url, damage=damage) from damage
        if theirs != anchor:
            raise Misuse(f"{said}, but what is there belongs to another tier")


def _copied(url: str, anchor: TierAnchor) -> Misuse:
    """Return the refusal of a commit to a copy of a tier's data.

    Both places would commit to the same roots, and each would lack the fragments of the other.
    """
    return Misuse(
        f"{url} can only be read: its anchor says that the data of this tier is at {anchor.data_store}, "
        f"and a commit from here would name objects that are not there. Use {anchor.data_store}, or make "
        f"a tier of its own: offload copy {shlex.quote(url)} NEW_TIER --commit-store NEW_URL"
    )
