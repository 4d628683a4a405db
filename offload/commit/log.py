"""Committing: how version n+1 of a stream's manifest comes to be, and how one knows that it did.

The root is a sequence of numbered objects that are never changed. Committing version n+1 *is*
creating `root.<n+1>.manifest` if absent. Three ideas carry the protocol:

1. The newest root *by listing* is the truth. It is never deleted, so numbers never start again.
2. A number below the newest may be created again by a sleeper, once the sweep has taken the old
   one: a zombie. No decision rests on one, and so a create that succeeded is not yet a commit.
3. A create that found the name taken is not yet a loss: the reply to our own may have been lost.

A commit is one loop of two steps. The first step judges a manifest by its content:

    the manifest shows                      then
    the author is fenced, or a tombstone    stop: Fenced, StreamDeleted
    the change is in                        done, if this manifest is the newest
    nothing, after a trim or a copy         OutcomeUnknown
    it is not in, and does not fit          Conflict, if this manifest is the newest
    it is not in, and fits                  step 2, on top of this manifest

The second step creates root n+1. Whatever came of the create, a listing follows, and the listing decides:

    highest is          and                         then
    n+1                 it is ours                  accepted
    n                   -                           not landed yet: the same bytes are sent again
    nothing, or < n     -                           roots were lost: stop, create nothing
    anything else       -                           load the newest, and judge it: step 1

The manifest that a caller hands in may be old, and an earlier call may have sent the change. So an old
manifest decides only where to try first. `TryAgain`, `Conflict` and `Misuse` promise that the change is not
in, and never will be, so they are raised only if the newest manifest shows that. If the store cannot be
asked, or refuses a group, the outcome is unknown: a create of the earlier call may still be on its way.

    stopped             left behind                 cured by
    before the create   perhaps groups of n+1       the sweep, as soon as n+1 is decided
    during the create   a root, or none             the next claim: it goes on from whatever is newest
    after the create    a committed root            nothing to cure

Where a commit makes runs of entries too long, they move into groups (`commit.grouping`); where it replaces
fragments in a group, the groups down to them are made anew. Groups are stored before the create, under names
that carry the number n+1: a writer that loses it stores them anew.

Invariant: of two commits on one parent, one succeeds, and the loser knows before it acts on it.
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
from offload.env import Env
from offload.errors import (
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
from offload.formats.anchor import BRANCHING_FACTOR_MAX
from offload.formats.group import Group
from offload.formats.keys import StreamKeys, is_of_a_stream
from offload.formats.root import decode_root, encode_root
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
    """The witness of real life: sees nothing."""


class _Reply(Enum):
    CREATED = auto()
    EXISTS = auto()
    UNKNOWN = auto()


class _NotLanded(Enum):
    NOT_LANDED = auto()


_NOT_LANDED: Final = _NotLanded.NOT_LANDED

REQUESTS_MAX: Final = 8
"""How often a root is sent, or a load begun again, before the outcome is called unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLog:
    """The root sequence of one stream: loading its newest member, and adding the next."""

    store: ObjectStore
    stream: str
    env: Env
    witness: Callable[[Step], None] = no_witness
    groups: GroupCache = field(default_factory=GroupCache)
    factor: int = FACTOR

    def __post_init__(self) -> None:
        if not 2 <= self.factor <= BRANCHING_FACTOR_MAX:
            raise Misuse(f"a branching factor of {self.factor}: it is from 2 to {BRANCHING_FACTOR_MAX}")

    @property
    def keys(self) -> StreamKeys:
        """The keys of the stream."""
        return StreamKeys(self.stream)

    async def load_newest(self, *, known: int = 0) -> Manifest | None:
        """The truth: the newest root by listing, or None where none is listed.

        `known` is a version that the caller has seen; the listing begins there. What was read is
        confirmed to be still the newest by a second listing, so no zombie is ever believed.
        Raises `TryAgain` where roots move on faster than they can be read, and `RootsLost` if no root exists
        though one did: the caller knows one, or fragments or groups exist.
        """
        for attempt in range(REQUESTS_MAX):
            highest = await self._highest(after=max(known - 1, 0))
            if highest is None:
                if known:
                    raise self.lost(known, found=await self._highest(after=0))
                data = await first_object(self.store, self.keys.data, self.keys.groups)
                if data is None:
                    return None
                # Roots come before data, so a stream that was born after the listing shows its root now.
                if await self._highest(after=0) is None:
                    raise self.lost(1, found=None, evidence=f"{data} exists", where=data)
                continue
            try:
                manifest = await self._read(highest)
            except NotFound:  # swept between listing and reading: a newer one stands
                continue
            if await self._highest(after=highest - 1) == highest:
                return manifest
            await self.env.sleep(self.env.backoff_seconds(attempt))
        raise TryAgain(f"stream {self.stream!r}: its manifest changes faster than it can be read; run again")

    async def commit(self, change: Change, *, base: Manifest | None, committer: UUID) -> Manifest:
        """Apply `change` on `base`, or on what turned out to be newer, and return the accepted manifest.

        Raises as `LedgerOffloader.commit_manifest` promises.
        """
        manifest, is_newest = base, False
        for attempt in count():
            # 1. Judge. Only a proposal may rest on an old manifest: the listing after its create finds out.
            proposal, refusal = await self._judge(change, manifest, committer)
            if proposal is None:
                newest = manifest
                if not is_newest or isinstance(refusal, Absent):  # a group may be swept while it is read
                    newest = await self._newest_in_doubt(manifest)
                if _version(newest) == _version(manifest):
                    if refusal is not None:
                        raise refusal
                    assert manifest is not None, "a change is refused where there is no stream"
                    return manifest
            # 2. Create, and look what came of it.
            elif attempt < REQUESTS_MAX:
                newest = await self._settle(proposal)
                if newest is None:
                    self.witness(Step.ACCEPTED)
                    return proposal
                self.witness(Step.IN_DOUBT)
                await self.env.sleep(self.env.backoff_seconds(attempt))
            else:
                raise TryAgain(
                    f"stream {self.stream!r}: other writers commit faster than this one; run again"
                )
            manifest, is_newest = newest, True
        raise AssertionError("unreachable")

    def tree(self, manifest: Manifest) -> Tree:
        """The fragments of one manifest of this stream."""
        return Tree(manifest, partial(self.groups.load, self.store))

    async def _judge(
        self, change: Change, manifest: Manifest | None, committer: UUID
    ) -> tuple[Manifest | None, OffloadError | None]:
        """What this manifest decides: the root to create next, or a refusal, or neither if the change is in.

        Raises what holds whether or not the manifest is the newest.
        """
        try:
            if manifest is not None:
                with self._in_doubt(manifest.version):
                    verdict = await change.verdict(self.tree(manifest))
                if verdict is CommitVerdict.IN:
                    return None, None
                if verdict is CommitVerdict.UNKNOWN:
                    raise OutcomeUnknown(
                        f"{self.keys.root(manifest.version)}: nothing shows whether the change was in, since "
                        "its offsets have been trimmed or compacted; look at what is there now"
                    )
            return await self._propose(change, manifest, committer), None
        except (Absent, Conflict, Misuse) as refusal:
            return None, refusal
        except TryAgain as exc:  # a create that an earlier call sent may still land, so this denies nothing
            raise OutcomeUnknown(f"{exc}; if this change was sent before, it may still be committed") from exc

    @contextmanager
    def _in_doubt(self, version: int) -> Iterator[None]:
        """The change may be in: an error of the store leaves the outcome unknown."""
        try:
            yield
        except (Corrupt, Fenced, UnsupportedFormat, OutcomeUnknown):
            raise
        except OffloadError as exc:
            where = self.keys.root(version)
            raise OutcomeUnknown(f"{where}: it could not be asked whether the change is in: {exc}") from exc

    async def _newest_in_doubt(self, manifest: Manifest | None) -> Manifest | None:
        known = _version(manifest)
        with self._in_doubt(known):
            return await self.load_newest(known=known)

    async def _propose(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        """The root that would follow, after the groups that it names were stored."""
        changed = change.apply(base)
        version = changed.version + 1
        replace(changed, version=version).check_numbers(self.keys.root(version))  # groups carry them too
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
        for group, raw in (*path, *groups):
            await self.store.put(group.key, Body.of(raw))
        return proposal

    async def _edited(
        self, change: Change, base: Manifest | None, changed: Manifest
    ) -> tuple[Manifest, list[tuple[Group, bytes]]]:
        """`changed` with the fragments edited that the change edits, and the groups made anew for that."""
        if base is None or change.edit is None:
            return changed, []
        entries, groups = await edited(
            self.tree(base), change.edit, version=base.version + 1, uuid=self.env.uuid
        )
        return replace(changed, entries=entries), groups

    async def _settle(self, proposal: Manifest) -> Manifest | None:
        """Create the proposal and find out what came of it: None is accepted, else the newest root."""
        key, raw = self.keys.root(proposal.version), encode_root(proposal)
        is_open = False  # whether an earlier create may land yet
        for attempt in range(REQUESTS_MAX):
            # 1. One create, always of the same bytes: whichever of them lands, it is the same root.
            self.witness(Step.BEFORE_CREATE)
            reply, refusal = await self._create(key, raw)
            self.witness(Step.AFTER_CREATE)

            # 2. The listing decides, whatever the reply was.
            with self._in_doubt(proposal.version):
                found = await self._look(proposal, reply)
            self.witness(Step.AFTER_LISTING)
            if found is not _NOT_LANDED:
                return found

            # 3. Not landed, perhaps not yet.
            if refusal is not None and is_open:
                raise OutcomeUnknown(f"{key}: it may have been committed before this: {refusal}") from refusal
            if refusal is not None:
                raise refusal
            is_open = True
            await self.env.sleep(self.env.backoff_seconds(attempt))
        raise OutcomeUnknown(f"{key}: the store did not say in time whether it was committed; run again")

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
        """What a listing says of a proposal that was sent: None is accepted, a manifest is doubt."""
        version = proposal.version
        if reply is _Reply.CREATED:
            # Only what lies beyond our own matters: anything there makes a zombie of it.
            highest = await self._highest(after=version) or version
        else:
            highest = await self._highest(after=max(version - 2, 0)) or 0
        if (
            highest < version - 1 and proposal.state is not StreamState.REBUILDING
        ):  # a rebuild leaves out numbers
            raise self.lost(version - 1, found=await self._highest(after=0))
        if highest < version:
            return _NOT_LANDED
        if highest == version and (reply is _Reply.CREATED or await self._is_ours(proposal)):
            return None
        return await self._newest_after_doubt(version)

    async def _is_ours(self, proposal: Manifest) -> bool:
        try:
            found = await self._read(proposal.version)
        except NotFound:  # superseded and swept meanwhile
            return False
        # What was read is what was listed only while nothing newer stands: a create of ours that was
        # under way may have landed as a zombie in between.
        return found.commit_id == proposal.commit_id and await self._highest(after=proposal.version) is None

    async def _newest_after_doubt(self, version: int) -> Manifest:
        newest = await self.load_newest(known=version)
        if newest is None:
            raise OutcomeUnknown(f"stream {self.stream!r}: root {version} was listed and is gone")
        return newest

    async def _highest(self, *, after: int) -> int | None:
        """The highest version beyond `after` that a listing shows, or None."""
        highest = None
        async for listed in self.store.list(self.keys.roots, after=self.keys.root(after)):
            version = self.keys.parse_root(listed.key)
            highest = highest if version is None else version
        return highest

    async def _read(self, version: int) -> Manifest:
        """The root of this version, checked to be what its name says."""
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
        """The error that says: root `version` existed, and the newest one is `found`."""
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
    """The key of a root, fragment or group that begins with one of these; None if there is none."""
    for prefix in prefixes:
        async with aclosing(cast("AsyncGenerator[Listed, None]", store.list(prefix))) as listing:
            async for listed in listing:
                if is_of_a_stream(listed.key):
                    return listed.key
    return None


def _version(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.version


def decode_named_root(raw: bytes, stream: str, version: int, *, where: str) -> Manifest:
    """A root, checked to be the one that its key names. Raises `Corrupt` otherwise."""
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
