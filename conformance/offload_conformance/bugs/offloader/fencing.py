"""Bugs of claims: writers that should be fenced and are not."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from offload.commit.writer import Claim
from offload.contracts.change import Change, CommitVerdict
from offload.model.manifest import Manifest
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Reclaiming
from offload_conformance.bugs.registry import bug


@bug("contract/claims_fence")
class NeverFences(ObjectStoreOffloader):
    """Lets every writer write.

    It relies on a single leader, but a stalled one may still exist.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None and hasattr(change, "writer") and not isinstance(change, Claim):
            base = await self.load_manifest(stream)
            change = replace(change, writer=base.writer)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _SameEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        return changed if base is None else replace(changed, epoch=base.epoch)


@bug("contract/claims_fence")
class KeepsTheEpoch(Reclaiming):
    """Lets a claim keep the epoch of the previous claim.

    It uses the broker's epoch, which does not change if a process restarts on the same machine.
    """

    kind = _SameEpoch


class _AnyClaim(Claim):
    async def verdict(self, tree: Tree) -> CommitVerdict:
        return CommitVerdict.IN


@bug("contract/claims_fence_at_once")
class TakesAnyClaimForItsOwn(Reclaiming):
    """Treats a stream as its own because somebody claimed it.

    The lock exists, and nobody checks who holds it.
    """

    kind = _AnyClaim


class _AnyEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        return super().apply(None if base is None else replace(base, source_epoch=0))


@bug("contract/claims_fence_by_the_brokers_own_epoch")
class IgnoresTheBrokersEpoch(Reclaiming):
    """Lets a deposed leader claim.

    The last claim wins, and a leader that was cut off comes last.
    """

    kind = _AnyEpoch
