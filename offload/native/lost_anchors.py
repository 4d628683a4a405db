"""Restoring anchors that are lost or damaged: a stream's, which holds its name, and a tier's.

No commit depends on an anchor, but every command needs the tier's: without it, a tier looks like any other
folder. A stream's anchor holds only the stream's name, so it can be made again, with the same bytes. Only the
operator knows if the stream was a part of another one.
A tier's anchor says more:

    field                     source for the restored anchor
    hashed_keys               the keys of the objects
    branching_factor          the default; every release makes tiers with it, and any factor can be read
    commit_store, data_store  the anchor on the other store; only the operator knows which store that is
    uid                       the anchor on the other store; if both are lost, a new UUID serves as well
    compression               the anchor on the other store, or the operator; otherwise none

The objects do not show the default compression: each fragment may have one of its own. A wrong default costs
space or time, and no data, so it is not asked for.

Invariant: nothing is restored on a guess. If roots are neither beside the data nor in a store that the
operator names, no anchor says where they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, cast

from offload.contracts.store import Body, Listed, ObjectStore
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, StreamKeys, is_decisive, is_of_a_stream
from offload.ground.env import Env
from offload.ground.errors import AnchorLost, Corrupt, Misuse, NotFound, NotOffloaded
from offload.model.part import part_like
from offload.native.anchors import create_anchor, read_tier_anchor
from offload.native.place import TierPlace
from offload.native.stream_names import read_stream_anchor
from offload.store.hashed import folder_of

NO_COMMIT_STORE: Final = "none"
"""The value that an operator gives instead of a URL if roots are, or were, beside the data."""


async def lost_stream_anchor(
    store: ObjectStore, stream: str, *, is_part: bool | None = None
) -> StreamAnchor | None:
    """Return the anchor to restore for a stream. None if it has a sound one.

    `is_part` says if the stream is a part of another one. Raises `Misuse` if that must be said, and was not;
    `Corrupt` if the anchor is sound and names another stream; `UnsupportedFormat` if a newer version of this
    program wrote it. Then it is left as it is.
    """
    keys = StreamKeys(stream)
    with suppress(NotFound, AnchorLost):
        await read_stream_anchor(store, keys)
        return None
    part = part_like(stream)
    # No object but the anchor says that a stream is a part. Without the link, readers of the first part would
    # end before it, and not know it. With a wrong one, they would read a stream of somebody else.
    if is_part is None and part.number > 1 and await _is_there(store, part.first):
        raise Misuse(
            f"the anchor of {stream!r} is lost, and only it said if this is part {part.number} of stream "
            f"{part.first!r}, which is there: add --part, or --no-part if it is a stream of its own"
        )
    if is_part and part.number == 1:
        raise Misuse(f"{stream!r} is not the name of a part, such as {part.following.name!r}")
    return StreamAnchor.of(part) if is_part else StreamAnchor(stream=stream)


async def _is_there(store: ObjectStore, stream: str) -> bool:
    """Return whether a stream has an anchor, sound or not."""
    try:
        await read_stream_anchor(store, StreamKeys(stream))
    except NotFound:
        return False
    except Corrupt:
        return True
    return True


async def restore_stream_anchor(store: ObjectStore, anchor: StreamAnchor, *, env: Env) -> None:
    """Store an anchor in the place of one that is lost or damaged."""
    key, raw = StreamKeys(anchor.stream).anchor, anchor.encode()
    # A put, if a create finds the damaged object. A rival that restores the anchor at the same time writes
    # the same bytes, unless another operator said otherwise of the part.
    if not await create_anchor(store, key, raw, env):
        await store.put(key, Body.of(raw))


async def restore_tier_anchor(place: TierPlace, *, dry_run: bool = False) -> TierAnchor | None:
    """Restore a tier's anchor, on its commit store too, and return it. Return None if nothing is lost.

    The place's plan names the store that holds the roots, or `NO_COMMIT_STORE`. Without a plan, the data must
    show where the roots are. The plan's compression becomes the default again, unless the anchor on the other
    store is left and says which it is. Raises

    - `Misuse` if it does not, or if the named store belongs to another tier or holds something else;
    - `NotOffloaded` if the place holds no objects of a tier;
    - `UnsupportedFormat` if a newer version of this program wrote an anchor.
    """
    stores = _Stores(place.data, place.env, dry_run)
    wanted, compression = place.plan.commit_store, place.plan.compression_text
    if wanted in ("", NO_COMMIT_STORE):
        return await _restore_beside_data(
            stores, commits_are_lost=wanted == NO_COMMIT_STORE, compression=compression
        )
    async with aclosing(place.open_store(wanted)) as commits:
        return await _restore_on_both(stores, commits, compression)


@dataclass(frozen=True, slots=True)
class _Stores:
    """The data store of a tier, and the reading and writing of anchors on it and on its commit store."""

    data: ObjectStore
    env: Env
    dry_run: bool

    async def anchor_on(self, store: ObjectStore) -> TierAnchor | None:
        """Return the anchor on one side, or None if it is lost or damaged."""
        try:
            return await read_tier_anchor(store)
        except (NotFound, Corrupt):
            return None

    async def put(self, store: ObjectStore, anchor: TierAnchor) -> None:
        """Put an anchor if it is absent, or in the place of a damaged one."""
        if self.dry_run:
            return
        # An object that the create finds is the damaged anchor, or our own after a lost reply. In both cases
        # the put leaves the right bytes.
        if not await create_anchor(store, TIER_ANCHOR, anchor.encode(), self.env):
            await store.put(TIER_ANCHOR, Body.of(anchor.encode()))


async def _restore_beside_data(
    stores: _Stores, *, commits_are_lost: bool, compression: str
) -> TierAnchor | None:
    anchor = await stores.anchor_on(stores.data)
    if anchor is not None and anchor.commit_store:
        raise Misuse(
            f"the anchor of {stores.data.url} says that its roots are at {anchor.commit_store}. "
            f"To restore the anchor there, add: --commit-store {anchor.commit_store}"
        )
    if anchor is not None:
        return None
    # Without any root or anchor beside the data, the roots may be on a commit store. Under an anchor that
    # denies it, every stream would seem to have lost all of its roots.
    layout = await _layout_of(stores.data)
    if not layout.has_decisive and not commits_are_lost:
        raise Misuse(
            f"{stores.data.url} holds data of a tier, but no root and no anchor. If they are on another "
            "store, add --commit-store URL. If they were here and are lost, "
            f"add --commit-store {NO_COMMIT_STORE}"
        )
    anchor = TierAnchor(hashed_keys=layout.is_hashed, compression=compression)
    await stores.put(stores.data, anchor)
    return anchor


async def _restore_on_both(stores: _Stores, commits: ObjectStore, compression: str) -> TierAnchor | None:
    ours, theirs = await stores.anchor_on(stores.data), await stores.anchor_on(commits)
    known = theirs or ours
    # An anchor that is left must name both stores. Otherwise the operator named the wrong one, and a restored
    # anchor would join two tiers.
    for anchor in (ours, theirs):
        if anchor is not None and (anchor.data_store, anchor.commit_store) != (stores.data.url, commits.url):
            raise Misuse(
                f"{commits.url} is not the commit store of {stores.data.url}: an anchor names another store"
            )
    if ours is not None and ours == theirs:
        return None
    # Both name the same URLs and differ in `uid`: one of the stores was emptied and made a tier again.
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
            compression=compression,
        )
    # The commit store comes first, as when a tier is made. If this is killed in between, the next run finds
    # the `uid` there, and restores the same anchor on the data store.
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
    """The layout of a tier, as the keys of its objects show it."""

    is_hashed: bool
    has_decisive: bool
    """Whether a root or an anchor is beside the data."""


async def _layout_of(data: ObjectStore) -> _Layout:
    """Read keys until one is a root's or an anchor's. Raises `NotOffloaded` if none is of a tier."""
    is_hashed = None
    async with aclosing(cast("AsyncGenerator[Listed, None]", data.list(""))) as rows:
        async for row in rows:
            # A hashed key has its folder as a first part, such as `7/`. The folder must be the one that the
            # hash gives: a copy of a tier inside a folder of strangers may look alike.
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
