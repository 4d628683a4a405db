"""Streams that lost roots or their anchor: how their objects prove it, and who has to stop.

The protocol never deletes the newest root. A restore, a lagging replica, a lifecycle rule or a person may. An
older root then passes for the newest: what the lost ones named looks unused, and the sweep would delete it.

    an object that exists                      proves that this root existed
    a fragment or a group, and no root         any (`RootLog.load_newest` looks for it)
    a fragment with `base_version` n           n: its writer knew it as accepted before it uploaded
    a group made for version n                 n - 1: groups are stored for an accepted base

A group of newest + 1 is ordinary: the writer that lost this number leaves it. Every fragment that a lost
root named, and that no remaining root names or runs, is such proof itself: a lost root announced its attempt,
and nothing is uploaded before that root is accepted. The proof lasts until numbers have overtaken it.

A stream that was begun again from root 1, by a release that took lost roots for none, has fragments of two
incarnations. After a deletion root numbers and epochs go on, so those of an old life are below all of the
present one. Where they overlap, the stream was begun again. A rebuild has settled that for all fragments
before it: its fence is `JUMP` above them.

Invariant: the objects were listed before the newest root was loaded. So a writer or a job that is at work
gives no false alarm: whatever base it uploaded on, the root that was loaded later is at least as new.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from offload.commit.log import RootLog
from offload.commit.rebuild import JUMP
from offload.contracts.store import Listed, Span
from offload.errors import Absent, Corrupt, NotFound, RootsLost, TryAgain
from offload.formats.fragment import HEADER, TRAILER, FragmentTrailer, stream_digest
from offload.model.entry import EntryKind
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest, StreamState
from offload.native.fragment_check import load_trailer
from offload.tasks import run_each

Trailers = Sequence[tuple[str, FragmentTrailer]]
"""What fragments say of themselves, each with its key."""

FRAGMENT_SIZE_BYTES_MIN: Final = HEADER.size_bytes + TRAILER.size_bytes


def loss_shown_by_group(log: RootLog, key: str, newest: Manifest) -> RootsLost | None:
    """The loss that the name of this group proves, if it proves one."""
    group = log.keys.parse_group(key)
    if group is None or group[1] <= newest.version + 1:
        return None
    base = group[1] - 1
    return log.lost(base, found=newest.version, evidence=f"{key} was made on root {base}", where=key)


def loss_shown_by_base(log: RootLog, key: str, base_version: int, newest: Manifest) -> RootsLost | None:
    """The loss that this fragment's `base_version` proves, if it proves one."""
    if base_version <= newest.version:
        return None
    evidence = f"{key} was uploaded on root {base_version}"
    return log.lost(base_version, found=newest.version, evidence=evidence, where=key)


async def newest_base(log: RootLog, fragments: Iterable[Listed], *, at_once: int) -> tuple[int, str]:
    """The highest `base_version` of these fragments, and the key of the one that has it; 0 if none has one.

    Requests and exceptions as `trailers_of`.
    """
    return newest_base_in(await trailers_of(log, fragments, at_once=at_once))


def newest_base_in(trailers: Trailers) -> tuple[int, str]:
    """The highest `base_version` of these, and the key of the one that has it."""
    return max(((trailer.base_version, key) for key, trailer in trailers), default=(0, ""))


async def trailers_of(log: RootLog, fragments: Iterable[Listed], *, at_once: int) -> Trailers:
    """What these fragments say of themselves. One request for each.

    One that is gone, damaged, too small to be one, or of another stream says nothing.
    """
    found = list[tuple[str, FragmentTrailer]]()

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
    """The loss that one of these fragments, none of which `newest` names or runs, proves by its incarnation.

    If one is of another incarnation, one more request: the trailer of the first fragment that `newest` names.
    Raises `Corrupt` if that is damaged or absent, `TryAgain` if it was trimmed or replaced meanwhile.
    """
    if newest.state is StreamState.REBUILDING or not any(
        _is_of_old_life(each, newest) for _, each in trailers
    ):
        return None
    found = old_life_in([*trailers, *await _first_trailer(log, newest)], newest)
    if found is None:
        return None
    key, old = found
    evidence = (
        f"{key} is of incarnation {old.incarnation}, root {old.base_version} and epoch {old.epoch}, but the "
        f"present incarnation {newest.incarnation} has data that is as old"
    )
    return log.lost(old.base_version, found=newest.version, evidence=evidence, where=key, begun_again=True)


def old_life_in(
    fragments: Iterable[tuple[str, FragmentTrailer | FoundFragment]], newest: Manifest
) -> tuple[str, FragmentTrailer | FoundFragment] | None:
    """A fragment of another incarnation that is not older than all of the present one, with its key."""
    fragments = sorted(fragments, key=lambda each: each[0])
    own = [each for _, each in fragments if each.incarnation == newest.incarnation]
    version = min([newest.version, *(each.base_version for each in own)])
    epoch = min([newest.epoch, *(each.epoch for each in own)])
    for key, each in fragments:
        if _is_of_old_life(each, newest) and (each.base_version >= version or each.epoch >= epoch):
            return key, each
    return None


def _is_of_old_life(fragment: FragmentTrailer | FoundFragment, newest: Manifest) -> bool:
    """Whether it is of another incarnation, and no rebuild since has settled what becomes of that."""
    return fragment.incarnation != newest.incarnation and newest.version - fragment.base_version < JUMP


async def _first_trailer(log: RootLog, newest: Manifest) -> Trailers:
    """Of the first fragment that `newest` names, if it names any."""
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
    """Raise `Absent` if this fragment, which the newest root named, is gone, and a root loaded now names it.

    One small request. Only if the fragment is gone, the newest root is loaded.
    """
    try:
        await log.store.get(key, Span(0, HEADER.size_bytes))
    except NotFound:
        fragment, newest = log.keys.parse_fragment(key), await log.load_newest()
        if fragment is not None and newest is not None and await log.tree(newest).names(*fragment):
            raise Absent(key, log.stream, tier=log.store.url) from None


async def refuse_to_overtake(log: RootLog, base: Manifest) -> None:
    """Raise `RootsLost` if a fragment behind the end of `base` proves a root that is newer than the newest.

    Asked before a writer or a guest begins to commit: every commit takes one more number, and a few of them
    overtake the proof. One listing, which is empty for a sound stream. Only what a crash left there is read.
    """
    if base.state is StreamState.REBUILDING:  # it names nothing, and takes no commit
        return
    version, key = await newest_base(log, [listed async for listed in _behind(log, base)], at_once=1)
    if version <= base.version:
        return
    newest = await log.load_newest(known=base.version)  # a rival may have come between
    if newest is not None and (loss := loss_shown_by_base(log, key, version, newest)) is not None:
        raise loss


async def _behind(log: RootLog, base: Manifest) -> AsyncGenerator[Listed, None]:
    """The fragments from the end of `base` on, of attempts that it does not run."""
    keys, last = log.keys, base.entries[-1:]
    after = keys.before_fragments_of(base.next_offset)
    if len(last) and last["kind"][0] == EntryKind.FRAGMENT:
        # Azure begins a listing without reading what is before it only if the key is an object's.
        after = keys.fragment(int(last["first_offset"][0]), UUID(bytes=bytes(last["attempt"][0])))
    async for listed in log.store.list(keys.data, after=after):
        fragment = keys.parse_fragment(listed.key)
        if fragment is not None and not base.runs(fragment[1]):
            yield listed
