"""The root log of a stream: loading the newest root, and committing the next one.

The root is a sequence of numbered objects that never change. Committing version n+1 *is*
creating `root.<n+1>.manifest` if absent. The protocol rests on three ideas:

1. The newest root *by listing* is the truth. It is never deleted, so numbers never start again.
2. After a sweep has deleted an old root, a stalled process may create its number again: a zombie.
   No decision rests on a zombie, so a create that succeeded is not yet a commit.
3. A create that found the name taken is not yet a loss: the reply to our own create may have been lost.

A commit is one loop of two steps. The first step judges a manifest by its content:

    the manifest shows                             then
    the author is fenced, or a tombstone           stop: Fenced, StreamDeleted
    the change is in                               done, if this manifest is the newest
    neither in nor out, after a trim or a copy     OutcomeUnknown
    the change is not in, and does not fit         Conflict, if this manifest is the newest
    the change is not in, and fits                 step 2, on top of this manifest

The second step creates root n+1. After every create a listing decides, even if the reply was clear:

    highest is          and                         then
    n+1                 it is ours                  accepted
    n                   -                           not landed yet: send the same bytes again
    nothing, or < n     -                           roots were lost: stop, create nothing
    anything else       -                           load the newest, and judge it: step 1

The caller's manifest may be old, and an earlier call may have sent the change. So an old
manifest decides only where to try first. `TryAgain`, `Conflict` and `Misuse` promise that the change is not
in, and never will be, so they are raised only if the newest manifest shows that. If the store does not
answer, or refuses a group, the outcome is unknown: a create of the earlier call may still be on its way.

    stopped             left behind                 cured by
    before the create   perhaps groups of n+1       the sweep, as soon as n+1 is decided
    during the create   a root, or none             the next claim, which continues from the newest root
    after the create    a committed root            nothing to cure

If a commit makes runs of entries too long, they move into groups (`commit.grouping`). If it replaces
fragments in a group, new groups take the place of those on the path down to them. Groups are stored before
the create, under names that carry the number n+1. A writer that loses this number stores new ones.

Invariant: of two commits on one parent, one succeeds, and the loser knows that it lost before it acts.
Rejected: a pointer object; probing for n+1 with GET; trusting the reply of the create; numbers
remembered from before (docs/adr/0002-numbered-roots.md).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import count
from typing import Final, cast
from uuid import UUID

from offload.commit.grouping import FACTOR, collapse, edited
from offload.commit.groups import GroupCache
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.store import Body, Listed, ObjectStore
from offload.formats.anchor import BRANCHING_FACTOR_MAX
from offload.formats.group import Group
from offload.formats.keys import StreamKeys, is_of_a_stream
from offload.formats.root import decode_root, encode_root
from offload.ground.env import Env
from offload.ground.errors import (
    Absent,
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Fenced,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    RootsLost,
    TryAgain,
    UnsupportedFormat,
)
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import Tree
from offload.store.checked import checked

__all__ = ["decode_named_root"]


class Step(Enum):
    """The moments of a commit at which a test may stop the process."""

    BEFORE_CREATE = auto()
    AFTER_CREATE = auto()
    AFTER_LISTING = auto()
    IN_DOUBT = auto()
    ACCEPTED = auto()


def no_witness(step: Step) -> None:
    """The witness outside of tests. It does nothing."""


class _Reply(Enum):
    """The store's reply to a create. `UNKNOWN` covers errors, lost replies and refusals."""

    CREATED = auto()
    EXISTS = auto()
    UNKNOWN = auto()


class _NotLanded(Enum):
    """The type of one value: the create has not taken effect, and still may."""

    NOT_LANDED = auto()


_NOT_LANDED: Final = _NotLanded.NOT_LANDED

REQUESTS_MAX: Final = 8
"""The limit of creates of one root, and of attempts to load the newest. After it the call gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLog:
    """The sequence of roots of one stream: loads the newest, and commits the next."""

    store: ObjectStore
    stream: str
    env: Env
    witness: Callable[[Step], None] = no_witness
    groups: GroupCache = field(default_factory=GroupCache)
    factor: int = FACTOR

    def __post_init__(self) -> None:
        if not 2 <= self.factor <= BRANCHING_FACTOR_MAX:
            raise Misuse(f"the branching factor is {self.factor}: give one from 2 to {BRANCHING_FACTOR_MAX}")

    @property
    def keys(self) -> StreamKeys:
        """The keys of the stream."""
        return StreamKeys(self.stream)

    async def load_newest(self, *, known: int = 0) -> Manifest | None:
        """Return the newest root by listing, or None if the stream was never begun.

        `known` is a version that the caller has seen; the listing begins there. A second listing confirms
        that the root that was read is still the newest, so no zombie is ever believed.
        Raises `TryAgain` if new roots come faster than they can be read, and `RootsLost` if no root exists
        though one did: the caller knows one, or fragments or groups exist.
        """
        for attempt in range(REQUESTS_MAX):
            # `known` itself must be listed too: it is the newest if nobody has committed since.
            highest = await self._highest(after=max(known - 1, 0))
            if highest is None:
                # No sweep deletes the newest root. If neither `known` nor a newer one exists, it was lost.
                if known:
                    raise self.lost(known, found=await self._highest(after=0))
                # An empty listing has two causes: the stream was never begun, or all roots were lost. Data
                # tells them apart. To begin such a stream at root 1 would let a sweep delete its data.
                data = await first_object(self.store, self.keys.data, self.keys.groups)
                if data is None:
                    return None
                # Data is stored after its root. A stream that was born after the first listing shows a root
                # now, so only a second empty listing proves the loss.
                if await self._highest(after=0) is None:
                    raise self.lost(1, found=None, evidence=f"{data} exists", where=data)
                continue
            try:
                manifest = await self._read(highest)
            except NotFound:  # a sweep deleted it after the listing, so a newer root exists
                continue
            # Between listing and read, the root may have been superseded and swept, and a stalled claimant
            # may have created its number again. Such a zombie lacks later commits: a sweep that believed it
            # would delete what they name. A second listing that still ends here rules it out.
            if await self._highest(after=highest - 1) == highest:
                return manifest
            await self.env.sleep(self.env.backoff_seconds(attempt))
        raise TryAgain(f"stream {self.stream!r}: its manifest changes faster than it can be read; run again")

    async def is_newest(self, version: int) -> bool:
        """Return True if this root, which the caller has loaded, is still the newest. One listing."""
        return await self._highest(after=version - 1) == version

    async def commit(self, change: Change, *, base: Manifest | None, committer: UUID) -> Manifest:
        """Apply `change` on `base`, or on a newer manifest, and return the accepted manifest.

        Raises as `LedgerOffloader.commit_manifest` promises.
        """
        manifest, is_newest = base, False
        for attempt in count():
            # 1. Judge. A proposal may rest on an old manifest, because the listing after its create finds
            # out. "Done" and "refused" may not: an earlier call may have committed the change since.
            proposal, refusal = await self._judge(change, manifest, committer)
            if proposal is None:
                newest = manifest
                # `Absent` even of the newest manifest may mean that it is no longer the newest: a compaction
                # may have replaced the group, and a sweep may have deleted it while it was being read.
                if not is_newest or isinstance(refusal, Absent):
                    newest = await self._newest_in_doubt(manifest)
                if _version(newest) == _version(manifest):
                    if refusal is not None:
                        raise refusal
                    assert manifest is not None, "a change is refused if there is no stream"
                    return manifest
            # 2. Create the proposal, and list to learn the outcome.
            elif attempt < REQUESTS_MAX:
                newest = await self._settle(proposal)
                if newest is None:
                    self.witness(Step.ACCEPTED)
                    return proposal
                self.witness(Step.IN_DOUBT)
                await self.env.sleep(self.env.backoff_seconds(attempt))
            else:
                # Others took the number of every proposal so far. An earlier create can then land only as a
                # zombie, so `TryAgain` may promise here that nothing was committed.
                raise TryAgain(
                    f"stream {self.stream!r}: other writers commit faster than this one; run again"
                )
            manifest, is_newest = newest, True
        raise AssertionError("unreachable")

    def tree(self, manifest: Manifest) -> Tree:
        """Return the tree of fragments of one manifest of this stream."""
        return Tree(manifest, partial(self.groups.load, self.store))

    async def _judge(
        self, change: Change, manifest: Manifest | None, committer: UUID
    ) -> tuple[Manifest | None, OffloadError | None]:
        """Return the root to create next, or a refusal, or neither if the change is in.

        Errors that hold even if the manifest is not the newest are raised.
        """
        try:
            if manifest is not None:
                # The verdict comes before `apply`: a change that is in no longer fits, so `apply` would
                # report a conflict of the change with itself after a lost reply.
                with self._in_doubt(manifest.version):
                    verdict = await change.verdict(self.tree(manifest))
                if verdict is CommitVerdict.IN:
                    return None, None
                if verdict is CommitVerdict.UNKNOWN:
                    # No newer manifest can show what this one no longer shows, so it need not be the newest.
                    raise OutcomeUnknown(
                        f"{self.keys.root(manifest.version)}: nothing shows whether the change was in, since "
                        "its offsets have been trimmed or compacted; look at what is there now"
                    )
            return await self._propose(change, manifest, committer), None
        except (Absent, Conflict, Misuse) as refusal:
            return None, refusal
        except TryAgain as exc:
            # The store refused a group. `TryAgain` would promise that the change is not in, but a create that
            # an earlier call sent may still land.
            raise OutcomeUnknown(f"{exc}; if this change was sent before, it may still be committed") from exc

    @contextmanager
    def _in_doubt(self, version: int) -> Iterator[None]:
        """Turn errors of the store into `OutcomeUnknown` while the change may be in."""
        try:
            yield
        # None of these says that the change is not in, so they are raised as they are.
        except (Corrupt, Fenced, UnsupportedFormat, OutcomeUnknown):
            raise
        except OffloadError as exc:
            where = self.keys.root(version)
            raise OutcomeUnknown(f"{where}: could not find out whether the change is in: {exc}") from exc

    async def _newest_in_doubt(self, manifest: Manifest | None) -> Manifest | None:
        known = _version(manifest)
        with self._in_doubt(known):
            return await self.load_newest(known=known)

    async def _propose(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        """Store the groups that the next root names, and return that root."""
        changed = change.apply(base)
        version = changed.version + 1
        # Groups carry the version too, so it is checked before the first of them is encoded.
        replace(changed, version=version).check_numbers(self.keys.root(version))
        # The edit comes first: it replaces the entries of `base`, and `collapse` groups the result.
        changed, path = await self._edited(change, base, changed)
        changed, groups = collapse(changed, factor=self.factor, version=version, uuid=self.env.uuid)
        proposal = replace(
            changed,
            version=version,
            committer=committer,
            commit_id=self.env.uuid(),
            parent_commit_id=changed.commit_id,
        )
        proposal.check(self.keys.root(proposal.version))
        # Groups are stored before the root that names them is created, so no root names a missing group. A
        # plain put is enough: each proposal makes fresh UUIDs, so these names belong to it alone. A sweep
        # leaves the groups alone until number n+1 is decided, because their names carry it.
        for group, raw in (*path, *groups):
            await self.store.put(group.key, Body.of(raw))
        return proposal

    async def _edited(
        self, change: Change, base: Manifest | None, changed: Manifest
    ) -> tuple[Manifest, list[tuple[Group, bytes]]]:
        """Return `changed` with the change's edit applied to its entries, and the new groups to store."""
        if base is None or change.edit is None:
            return changed, []
        entries, groups = await edited(
            self.tree(base), change.edit, version=base.version + 1, uuid=self.env.uuid
        )
        return replace(changed, entries=entries), groups

    async def _settle(self, proposal: Manifest) -> Manifest | None:
        """Create the proposal, and return None if it was accepted, else the newest root."""
        key, raw = self.keys.root(proposal.version), encode_root(proposal)
        is_open = False  # true once a create was sent that may still land
        for attempt in range(REQUESTS_MAX):
            # 1. Send the same bytes every time. Whichever create lands, it is the same root with the same
            # commit id, so sending it again after a lost reply is safe.
            self.witness(Step.BEFORE_CREATE)
            reply, refusal = await self._create(key, raw)
            self.witness(Step.AFTER_CREATE)

            # 2. The listing decides, not the reply. A success may be a zombie's, and "exists" may
            # be the answer to our own create, which a client library sent twice. If the listing itself
            # fails, the create may have landed: the outcome is unknown.
            with self._in_doubt(proposal.version):
                found = await self._look(proposal, reply)
            self.witness(Step.AFTER_LISTING)
            if found is not _NOT_LANDED:
                return found

            # 3. The create has not landed, and may land later. A refusal ends the commit. It is raised
            # unchanged only if no earlier create of this call may still land.
            if refusal is not None and is_open:
                raise OutcomeUnknown(f"{key}: it may have been committed before this: {refusal}") from refusal
            if refusal is not None:
                raise refusal
            is_open = True
            await self.env.sleep(self.env.backoff_seconds(attempt))
        raise OutcomeUnknown(f"{key}: the store did not answer in time whether it was committed; run again")

    async def _create(self, key: str, raw: bytes) -> tuple[_Reply, OffloadError | None]:
        try:
            await self.store.create(key, raw)
        except AlreadyExists:
            return _Reply.EXISTS, None
        except (Denied, NoSpace) as refusal:
            return _Reply.UNKNOWN, refusal
        except (TryAgain, OutcomeUnknown):
            return _Reply.UNKNOWN, None
        return _Reply.CREATED, None

    async def _look(self, proposal: Manifest, reply: _Reply) -> Manifest | _NotLanded | None:
        """List what became of a proposal that was sent.

        Return None if it was accepted, `_NOT_LANDED` if nothing shows it yet, and otherwise the newest
        manifest, which the change must be judged by again.
        """
        version = proposal.version
        if reply is _Reply.CREATED:
            # Our root exists. If a newer one exists as well, ours may be a zombie: the number was decided
            # long ago, and a sweep had deleted the root that won it.
            highest = await self._highest(after=version) or version
        else:
            # The listing begins with the base, n. If it shows n alone, our root has not landed. If it shows
            # nothing, n is gone, and only lost roots explain that.
            highest = await self._highest(after=max(version - 2, 0)) or 0
        # The fence of a rebuild skips numbers, so there need not be a root right below it.
        if highest < version - 1 and proposal.state is not StreamState.REBUILDING:
            raise self.lost(version - 1, found=await self._highest(after=0))
        if highest < version:
            return _NOT_LANDED
        if highest == version and (reply is _Reply.CREATED or await self._is_ours(proposal)):
            return None
        return await self._newest_after_doubt(version)

    async def _is_ours(self, proposal: Manifest) -> bool:
        """Return whether the root of this number is our proposal, and is still the newest."""
        try:
            found = await self._read(proposal.version)
        except NotFound:  # superseded and swept meanwhile
            return False
        # The object that was read may not be the one that was listed. A rival's root may have been
        # superseded and swept in between, and a create of ours that was under way may have landed as a
        # zombie. If nothing newer is listed after the read, neither has happened.
        return found.commit_id == proposal.commit_id and await self._highest(after=proposal.version) is None

    async def _newest_after_doubt(self, version: int) -> Manifest:
        newest = await self.load_newest(known=version)
        if newest is None:
            raise OutcomeUnknown(f"stream {self.stream!r}: root {version} was listed and is gone")
        return newest

    async def _highest(self, *, after: int) -> int | None:
        """Return the highest version beyond `after` that a listing shows, or None."""
        highest = None
        async for listed in self.store.list(self.keys.roots, after=self.keys.root(after)):
            version = self.keys.parse_root(listed.key)
            highest = highest if version is None else version
        return highest

    async def _read(self, version: int) -> Manifest:
        """Return the root of this version, checked to be what its name says."""
        key = self.keys.root(version)
        return await checked(
            self.store, key, partial(decode_named_root, stream=self.stream, version=version, where=key)
        )

    def lost(
        self,
        version: int,
        *,
        found: int | None,
        evidence: str = "",
        where: str = "",
        begun_again: bool = False,
    ) -> RootsLost:
        """Return the error that says: root `version` existed, and the newest one is `found`."""
        return RootsLost(
            evidence or f"root {version} was committed",
            where or self.keys.root(version),
            stream=self.stream,
            tier=self.store.url,
            expected=version,
            found=found,
            begun_again=begun_again,
        )


async def first_object(store: ObjectStore, *prefixes: str) -> str | None:
    """Return the key of a root, fragment or group under one of these prefixes, or None if there is none."""
    for prefix in prefixes:
        # `aclosing` ends the listing at the first key. There may be hundreds of thousands.
        async with aclosing(cast("AsyncGenerator[Listed, None]", store.list(prefix))) as listing:
            async for listed in listing:
                if is_of_a_stream(listed.key):
                    return listed.key
    return None


def _version(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.version


def decode_named_root(raw: bytes, stream: str, version: int, *, where: str) -> Manifest:
    """Decode a root, and check that it is the one that its key names. Raises `Corrupt` otherwise."""
    try:
        manifest = decode_root(raw, where=where)
    except Corrupt as exc:
        raise exc.within(where, stream=stream) from exc
    for what, expected, found in (
        ("stream", stream, manifest.stream),
        ("version", version, manifest.version),
    ):
        if expected != found:
            raise Corrupt(f"root {what}", where, stream=stream, expected=expected, found=found)
    return manifest
