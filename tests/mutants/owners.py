"""Mutants of managed ledgers, which histories of two owners find.

A local copy is guarded more than once. If one guard is enough, a mutant takes out all that would hide it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from mutants.mutant import Mutant, set_to
from offload.contracts.source import Snapshot
from offload.managed import work
from offload.managed.ledger import ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.managed.rules import Situation
from offload.managed.tier_copy import LedgerOnTier, _Compared
from offload.managed.work import LedgerWork
from offload.model.manifest import Manifest

_OFFLOAD, _SITUATION, _REMOVABLE = LedgerOnTier.offload, LedgerWork.situation, work.removable_offset
_TRIM_TARGET, _AGREE = LedgerOnTier.trim_target, LedgerOnTier._agree


async def _nothing(*args: Any, **options: Any) -> None:
    pass


def _ignore(*args: Any, **options: Any) -> None:
    pass


async def _known_is_agreed(self: LedgerOnTier) -> bool:
    return True


async def _ends_are_enough(self: LedgerOnTier) -> bool:
    return await self.look() is not None


async def _unchecked(self: LedgerOnTier, manifest: Manifest, snapshot: Snapshot) -> Manifest:
    return manifest


async def _believe_before_the_commit(self: LedgerOnTier, until: int) -> None:
    self.committed_ms = [*self.committed_ms, (until, 0)]
    await _OFFLOAD(self, until)


def _by_what_was_believed(self: LedgerWork) -> Situation:
    now = _SITUATION(self)
    end = max((end for end, _ in now.committed_ms), default=0)
    return replace(now, tier_first=now.tier_first or 0, tier_next=max(now.tier_next or 0, end))


def _lag_is_ignored(now: Situation, policy: LedgerPolicy) -> tuple[int, str]:
    lag = None if policy.deletion_lag_seconds is None else 0.0
    earlier = [(end, 0) for end, _ in now.committed_ms]
    return _REMOVABLE(replace(now, committed_ms=earlier), replace(policy, deletion_lag_seconds=lag))


async def _cursors_are_passed(
    self: LedgerOnTier, retention: Any, *, slowest_offset: int | None
) -> int | None:
    return await _TRIM_TARGET(self, retention, slowest_offset=None)


async def _epochs_begin_again(self: LedgerOnTier) -> None:
    manifest = await self.look(may_lead=True)
    if manifest is not None and manifest.next_offset > self.log.next_offset:
        await self.log.begin(manifest.next_offset)


async def _the_fence_is_a_proof(self: LedgerOnTier, manifest: Manifest | None) -> bool:
    if manifest is None or self._copier.writer is None:
        return await _AGREE(self, manifest)
    self._compared = _Compared((manifest.incarnation, manifest.next_offset), is_copy=True)
    await self._note_had(manifest, manifest.next_offset)
    return True


OWNERS: Final[dict[str, Mutant]] = {
    "owner: copies go by a root that was not accepted": Mutant(
        "-",
        "a local copy goes by an accepted root only",
        set_to(
            (LedgerOnTier, "offload", _believe_before_the_commit),
            (LedgerWork, "situation", _by_what_was_believed),
            (LedgerOnTier, "agree", _known_is_agreed),
            (LedgerOnTier, "confirm", _nothing),
        ),
        seed=0,
    ),
    "owner: copies go by a rival's end": Mutant(
        "-",
        "a local copy goes only if the log has the tier's history",
        set_to((LedgerOnTier, "agree", _ends_are_enough), (LedgerOnTier, "confirm", _nothing)),
        seed=27,
    ),
    "owner: fenced is ignored": Mutant(
        "-", "a fenced owner takes no append", set_to((ManagedLedger, "_fence", _ignore)), seed=5
    ),
    "owner: the deletion lag is ignored": Mutant(
        "-",
        "a local copy stays for the deletion lag",
        set_to((work, "removable_offset", _lag_is_ignored)),
        seed=0,
    ),
    "owner: retention passes cursors": Mutant(
        "-",
        "retention deletes nothing that a cursor has not passed",
        set_to((LedgerOnTier, "trim_target", _cursors_are_passed)),
        seed=39,
    ),
    "owner: a fork is offloaded": Mutant(
        "-",
        "a log is compared with the tier before it is offloaded",
        set_to((LedgerOnTier, "_check", _unchecked)),
        seed=0,
    ),
    "owner: the tier is not asked": Mutant(
        "-",
        "the first append asks where the tier ends",
        set_to((ManagedLedger, "_meet_tier", _nothing)),
        seed=10,
    ),
    "owner: a new disk begins at 0": Mutant(
        "-",
        "a log without records begins where the tier ends",
        set_to((LedgerOnTier, "begin", _nothing)),
        seed=0,
    ),
    "owner: epochs begin again": Mutant(
        "-",
        "a new disk has an epoch above the tier's",
        set_to((LedgerOnTier, "begin", _epochs_begin_again)),
        seed=0,
    ),
    "owner: what was trimmed needs no proof": Mutant(
        "-",
        "a copy of what was trimmed goes only if the tier is known to have had it",
        set_to((LedgerOnTier, "_check_had", _ignore)),
        seed=27,
    ),
    "owner: the fence is a proof": Mutant(
        "-",
        "what a job appended beside an owner is compared before it is believed",
        set_to((LedgerOnTier, "_agree", _the_fence_is_a_proof)),
        seed=336,
    ),
}
