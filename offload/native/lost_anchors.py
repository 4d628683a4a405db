"""Restoring anchors that are lost or damaged: a stream's, which holds its name, and a tier's.

An anchor decides nothing that commits rest on, but every command wants it: without one nobody can tell a tier
from a folder of strangers. A stream's anchor holds only its name, so it can always be made again, with the
same bytes. A tier's anchor says more:

    field                     where it is found again
    hashed_keys               in the keys of the objects
    branching_factor          nowhere; every release makes tiers with the same one, and any one can be read
    commit_store, data_store  in the anchor on the other store; which store that is, only the operator knows
    uid                       in the anchor on the other store; if both are lost, a new one serves as well

Invariant: nothing is restored on a guess. Roots that are neither beside the data nor in a store that the
operator names are not said to be anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from offload.contracts.store import Body, Listed, ObjectStore
from offload.env import Env
from offload.errors import Corrupt, Misuse, NotFound, NotOffloaded
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, StreamKeys, is_decisive, is_of_a_stream
from offload.native.anchors import create_anchor, read_anchor, read_tier_anchor
from offload.native.place import TierPlace
from offload.store.hashed import folder_of

NO_COMMIT_STORE: Final = "none"
"""What an operator says instead of a URL: roots are, or were, beside the data."""


async def restore_stream_anchor(store: ObjectStore, stream: str, *, env: Env, dry_run: bool = False) -> bool:
    """Make sure that the stream has its anchor. Return whether it was lost or damaged.

    Raises `Corrupt` if the anchor is sound and names another stream, `UnsupportedFormat` if a newer
    version of this program wrote it: then it is left as it is.
    """
    key, raw = StreamKeys(stream).anchor, StreamAnchor(stream=stream).encode()
    try:
        found = await read_anchor(store, key, partial(StreamAnchor.decode, where=key))
    except NotFound:
        if not dry_run:
            await create_anchor(store, key, raw, env)
        return True
    except Corrupt:
        if not dry_run:
            await store.put(key, Body.of(raw))
        return True
    if found.stream != stream:
        raise Corrupt("anchor", key, stream=stream, expected=stream, found=found.stream)
    return False


async def restore_tier_anchor(place: TierPlace, *, dry_run: bool = False) -> TierAnchor | None:
    """Restore a tier's anchor, on its commit store too, and return it. None if nothing is lost.

    The place's plan says which store holds the roots, or `NO_COMMIT_STORE`. It is needed if the data alone
    cannot tell. Raises `Misuse` then, or if the store that is named belongs to another tier or holds
    something else; `NotOffloaded` if the place holds no objects of a tier; `UnsupportedFormat` if a newer
    version of this program wrote an anchor.
    """
    stores = _Stores(place.data, place.env, dry_run)
    wanted = place.plan.commit_store
    if wanted in ("", NO_COMMIT_STORE):
        return await _restore_beside_data(stores, commits_are_lost=wanted == NO_COMMIT_STORE)
    async with aclosing(place.open_store(wanted)) as commits:
        return await _restore_on_both(stores, commits)


@dataclass(frozen=True, slots=True)
class _Stores:
    """The data store, and how anchors are put."""

    data: ObjectStore
    env: Env
    dry_run: bool

    async def anchor_on(self, store: ObjectStore) -> TierAnchor | None:
        """The anchor on one side; None if it is lost or damaged."""
        try:
            return await read_tier_anchor(store)
        except (NotFound, Corrupt):
            return None

    async def put(self, store: ObjectStore, anchor: TierAnchor) -> None:
        """Put an anchor if it is absent, or in the place of a damaged one."""
        if self.dry_run:
            return
        if not await create_anchor(store, TIER_ANCHOR, anchor.encode(), self.env):
            await store.put(TIER_ANCHOR, Body.of(anchor.encode()))


async def _restore_beside_data(stores: _Stores, *, commits_are_lost: bool) -> TierAnchor | None:
    anchor = await stores.anchor_on(stores.data)
    if anchor is not None and anchor.commit_store:
        raise Misuse(
            f"the roots of {stores.data.url} are at {anchor.commit_store}, its anchor says. "
            f"To restore the anchor there: --commit-store {anchor.commit_store}"
        )
    if anchor is not None:
        return None
    layout = await _layout_of(stores.data)
    if not layout.has_decisive and not commits_are_lost:
        raise Misuse(
            f"{stores.data.url} holds data of a tier, and no root and no anchor. If they are on another "
            "store, name it with --commit-store URL. If they were here and are lost, "
            f"say --commit-store {NO_COMMIT_STORE}"
        )
    anchor = TierAnchor(hashed_keys=layout.is_hashed)
    await stores.put(stores.data, anchor)
    return anchor


async def _restore_on_both(stores: _Stores, commits: ObjectStore) -> TierAnchor | None:
    ours, theirs = await stores.anchor_on(stores.data), await stores.anchor_on(commits)
    known = theirs or ours
    for anchor in (ours, theirs):
        if anchor is not None and (anchor.data_store, anchor.commit_store) != (stores.data.url, commits.url):
            raise Misuse(
                f"{commits.url} is not the commit store of {stores.data.url}: an anchor says otherwise"
            )
    if ours is not None and ours == theirs:
        return None
    if ours is not None and theirs is not None:
        raise Misuse(f"{commits.url} belongs to another tier of the same name: the anchors differ")
    if theirs is None:
        await _check_holds_only_commits(commits)
    if known is None:
        known = TierAnchor(
            hashed_keys=(await _layout_of(stores.data)).is_hashed,
            commit_store=commits.url,
            data_store=stores.data.url,
            uid=str(stores.env.uuid()),
        )
    for store, anchor in ((commits, theirs), (stores.data, ours)):
        if anchor is None:
            await stores.put(store, known)
    return known


async def _check_holds_only_commits(commits: ObjectStore) -> None:
    async with aclosing(cast("AsyncGenerator[Listed, None]", commits.list(""))) as rows:
        async for row in rows:
            if not is_decisive(row.key):
                raise Misuse(f"{commits.url} is no commit store: it holds {row.key!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What the keys of a tier's objects say of the tier."""

    is_hashed: bool
    has_decisive: bool


async def _layout_of(data: ObjectStore) -> _Layout:
    """Look at keys until one is a root's or an anchor's. Raises `NotOffloaded` if none is of a tier."""
    is_hashed = None
    async with aclosing(cast("AsyncGenerator[Listed, None]", data.list(""))) as rows:
        async for row in rows:
            below = row.key[2:]
            placed = row.key[1:2] == "/" and folder_of(below.partition("/")[0]) == row.key[0]
            for key, hashed in ((row.key, False), (below, True)):
                if not _is_of_a_tier(key) or (hashed and not placed):
                    continue
                is_hashed = hashed
                if is_decisive(key):
                    return _Layout(is_hashed=hashed, has_decisive=True)
    if is_hashed is None:
        raise NotOffloaded(f"{data.url} holds no objects of a tier; there is nothing to restore")
    return _Layout(is_hashed=is_hashed, has_decisive=False)


def _is_of_a_tier(key: str) -> bool:
    part, _, rest = key.partition("/")
    return is_of_a_stream(key) or (rest == "stream.anchor" and not part.startswith(TIER_PREFIX))
