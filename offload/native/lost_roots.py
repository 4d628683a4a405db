"""Streams that lost roots: the objects that prove the loss, and the checks that stop commits and deletes.

The protocol never deletes the newest root. A restore, a lagging replica, a lifecycle rule or a person may. An
older root then passes for the newest: the objects that the lost roots named look unused, and the sweep would
delete them.

    an object that exists                      proves that this root existed
    a fragment or a group, and no root         any (`RootLog.load_newest` looks for it)
    a fragment with `base_version` n           n: its writer knew it as accepted before it uploaded
    a group made for version n                 n - 1: groups are stored for an accepted base
    a key object with `base_version` n         n: no key is made before its life began

A key object proves nothing if there is no root at all: without a fragment, nothing can be rebuilt, and the
stream may begin again.

A group made for newest + 1 proves nothing: a writer that loses this number leaves one. Every fragment that a
lost root named, and that no remaining root names or runs, is proof itself: a lost root announced its attempt,
and nothing is uploaded before that root is accepted. The proof lasts until numbers have overtaken it.

Some streams were begun again from root 1, by a release that did not look for lost roots. They have fragments
of two incarnations. After a deletion, root numbers and epochs continue, so those of an old life are below all
of the present one. If they overlap, the stream was begun again. A rebuild has settled that for all fragments
before it: its fence is `JUMP` above them.

Invariant: the objects were listed before the newest root was loaded. So a writer or a job at work causes no
false alarm: the root that was loaded later is at least as new as the base on which it uploaded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from offload.commit.log import RootLog
from offload.commit.rebuild import JUMP
from offload.contracts.store import Listed, Span
from offload.formats.fragment_trailer import HEADER, TRAILER, FragmentTrailer, stream_digest
from offload.ground.errors import Absent, Corrupt, NotFound, RootsLost, TryAgain
from offload.ground.tasks import run_each
from offload.model.entry import EntryKind
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest, StreamState
from offload.native.fragment_check import load_trailer

Trailers = Sequence[tuple[str, FragmentTrailer]]
"""The trailers of fragments, each with its fragment's key."""

FRAGMENT_SIZE_BYTES_MIN: Final = HEADER.size_bytes + TRAILER.size_bytes


def loss_shown_by_group(log: RootLog, key: str, newest: Manifest) -> RootsLost | None:
    """Return the loss that the name of this group proves, if it proves one."""
    # Groups are stored before their root is created. So newest + 1 is the number of a commit that is under
    # way, or that another author won.
    group = log.keys.parse_group(key)
    if group is None or group[1] <= newest.version + 1:
        return None
    base = group[1] - 1
    return log.lost(base, found=newest.version, evidence=f"{key} was made on root {base}", where=key)


def loss_shown_by_base(log: RootLog, key: str, base_version: int, newest: Manifest) -> RootsLost | None:
    """Return the loss that this fragment's `base_version` proves, if it proves one."""
    if base_version <= newest.version:
        return None
    evidence = f"{key} was uploaded on root {base_version}"
    return log.lost(base_version, found=newest.version, evidence=evidence, where=key)


async def newest_base(log: RootLog, fragments: Iterable[Listed], *, at_once: int) -> tuple[int, str]:
    """Return the highest `base_version` of these fragments with the fragment's key, or 0 if there is none.

    Makes the requests of `trailers_of`, and raises its errors.
    """
    return newest_base_in(await trailers_of(log, fragments, at_once=at_once))


def newest_base_in(trailers: Trailers) -> tuple[int, str]:
    """Return the highest `base_version` of these trailers, and its fragment's key."""
    return max(((trailer.base_version, key) for key, trailer in trailers), default=(0, ""))


async def trailers_of(log: RootLog, fragments: Iterable[Listed], *, at_once: int) -> Trailers:
    """Read the trailers of these fragments, by one request each.

    One that is gone, damaged, too small to be a fragment, or of another stream is left out: it proves
    nothing.
    """
    found = list[tuple[str, FragmentTrailer]]()

    # Errors of the store are raised: a trailer that could not be read may be the only proof of a loss.
    async def read(listed: Listed) -> None:
        with suppress(Corrupt, NotFound):
            trailer = await load_trailer(log.store, listed.key, size_bytes=listed.size_bytes)
            if trailer.stream_digest == stream_digest(log.stream):
                found.append((listed.key, trailer))

    fragments = [listed for listed in fragments if listed.size_bytes >= FRAGMENT_SIZE_BYTES_MIN]
    if fragments:
        await run_each(read, fragments, at_once=at_once)
    return found


async def loss_shown_by_old_life(log: RootLog, trailers: Trailers, newest: Manifest) -> RootsLost | None:
    """Return the loss that one of these fragments proves by its incarnation, if one does.

    `newest` neither names nor runs any of them. If one is of another incarnation, this costs one more
    request, for the trailer of the first fragment that `newest` names. Raises `Corrupt` if that is damaged or
    absent, and `TryAgain` if it was trimmed or replaced meanwhile.
    """
    # During a rebuild no life of the stream is the present one: the rebuild chooses between them.
    if newest.state is StreamState.REBUILDING or not any(
        _is_of_old_life(each, newest) for _, each in trailers
    ):
        return None
    # The unused fragments of the present life may all be young. The first named one is mostly the oldest that
    # is left, and it lowers the bound that an old life must stay below.
    found = old_life_in([*trailers, *await _first_trailer(log, newest)], newest)
    if found is None:
        return None
    key, old = found
    evidence = (
        f"{key} is of history {old.incarnation} and mentions root {old.base_version}, but the present "
        f"history, {newest.incarnation}, has data that is as old"
    )
    return log.lost(old.base_version, found=newest.version, evidence=evidence, where=key, begun_again=True)


def old_life_in(
    fragments: Iterable[tuple[str, FragmentTrailer | FoundFragment]], newest: Manifest
) -> tuple[str, FragmentTrailer | FoundFragment] | None:
    """Return a fragment of another incarnation that is as new as one of the present one, with its key."""
    # Sorted, so that the same fragments give the same error in any order of their replies.
    fragments = sorted(fragments, key=lambda each: each[0])
    own = [each for _, each in fragments if each.incarnation == newest.incarnation]
    version = min([newest.version, *(each.base_version for each in own)])
    epoch = min([newest.epoch, *(each.epoch for each in own)])
    for key, each in fragments:
        if _is_of_old_life(each, newest) and (each.base_version >= version or each.epoch >= epoch):
            return key, each
    return None


def _is_of_old_life(fragment: FragmentTrailer | FoundFragment, newest: Manifest) -> bool:
    """Return whether it is of another incarnation, and no rebuild since has settled what becomes of it."""
    return fragment.incarnation != newest.incarnation and newest.version - fragment.base_version < JUMP


async def _first_trailer(log: RootLog, newest: Manifest) -> Trailers:
    """Read the trailer of the first fragment that `newest` names, if it names any."""
    first = await log.tree(newest).find(newest.first_offset)
    if first is None:
        return []
    key = log.keys.fragment(first.first_offset, first.attempt)
    try:
        return [(key, await load_trailer(log.store, key, size_bytes=first.stored_size_bytes))]
    except NotFound:
        await refuse_if_absent(log, key)
        raise TryAgain(
            f"stream {log.stream!r}: its manifest changes faster than it can be read; run again"
        ) from None


async def refuse_if_absent(log: RootLog, key: str) -> None:
    """Raise `Absent` if this fragment is gone, although a root loaded now names it.

    Costs one small request. The newest root is loaded only if the fragment is gone.
    """
    # The root is loaded after the fragment was found to be gone. An older root may name it rightly: a trim or
    # a compaction, and a sweep, may have come between.
    try:
        await log.store.get(key, Span(0, HEADER.size_bytes))
    except NotFound:
        fragment, newest = log.keys.parse_fragment(key), await log.load_newest()
        if fragment is not None and newest is not None and await log.tree(newest).names(*fragment):
            raise Absent(key, log.stream, tier=log.store.url) from None


async def refuse_to_overtake(log: RootLog, base: Manifest) -> None:
    """Raise `RootsLost` if a fragment behind the end of `base` proves a root that is newer than the newest.

    A writer or a guest calls this before its first commit. It costs one listing, which is empty for a sound
    stream, and reads only the trailers of fragments that a crash left there.
    """
    # The check comes before the commit, because each commit takes a number and the proof is a number: a claim
    # alone overtakes a fragment that was uploaded on the root after it. Later commits need no check of their
    # own, since they follow on the first.
    if base.state is StreamState.REBUILDING:  # it takes no commit of a writer or a guest
        return
    version, key = await newest_base(log, [listed async for listed in _behind(log, base)], at_once=1)
    if version <= base.version:
        return
    # List, load, decide, in this order: a rival may have committed and uploaded after `base` was loaded, and
    # its root is loaded now. Only a root that is missing even so is lost.
    newest = await log.load_newest(known=base.version)
    if newest is not None and (loss := loss_shown_by_base(log, key, version, newest)) is not None:
        raise loss


async def _behind(log: RootLog, base: Manifest) -> AsyncGenerator[Listed, None]:
    """Yield the fragments from the end of `base` on, of attempts that it does not run.

    Fragments of attempts that run are left to the resolution, which adopts them: so the loss heals.
    """
    keys, last = log.keys, base.entries[-1:]
    after = keys.before_fragments_of(base.next_offset)
    if len(last) and last["kind"][0] == EntryKind.FRAGMENT:
        # Azure begins a listing in the middle without reading what is before only if `after` is the key of
        # an object. So the newest fragment is named, and not the offset behind it.
        after = keys.fragment(int(last["first_offset"][0]), UUID(bytes=bytes(last["attempt"][0])))
    async for listed in log.store.list(keys.data, after=after):
        fragment = keys.parse_fragment(listed.key)
        if fragment is not None and not base.runs(fragment[1]):
            yield listed
