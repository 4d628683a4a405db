"""Which ledgers go where: pure functions of what the log has, what the tier has, the policy and the time.

    offset         trimmed      on both sides          local only         open
    tier           |------------[=====================>)
    log                  [======|======|======|======|======|======|--->
                         first_offset                   sealed      next_offset

Invariants:

- The open ledger goes nowhere.
- A tier has no hole, so ledgers are offloaded in order: whoever takes a ledger takes all before it.
- A local copy goes only if the tier has all of the ledger. Or, if the tier has nothing of the stream, if
  retention deletes the ledger.
- Nothing that a cursor has not passed is deleted on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offload.contracts.log import LocalLedger
from offload.ground.errors import Corrupt, Misuse
from offload.managed.policy import LedgerPolicy

__all__ = ["LedgerAction", "LedgerPlan", "PlannedLedger"]


class LedgerAction(StrEnum):
    """The action of a plan for a ledger of the log."""

    KEEP = "keep"
    OFFLOAD = "offload"
    DELETE_LOCAL = "delete-local"
    """The tier has it: its local copy goes."""
    DELETE = "delete"
    """Retention: both copies go."""


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """One ledger of the log, with what happens to it and why."""

    ledger: LocalLedger
    action: LedgerAction
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPlan:
    """The actions that a managed ledger would take now, of its own accord."""

    ledgers: Sequence[PlannedLedger]
    """The ledgers of the log, in order. The last one is open."""
    trim_before: int | None = None
    """Retention deletes the records below this offset on the tier. None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts at which the rules look."""

    ledgers: Sequence[LocalLedger]
    tier_first: int | None
    """The offsets that the tier has. None if it does not have the stream."""
    tier_next: int | None
    committed_ms: Sequence[tuple[int, int]] = ()
    """Ends of the tier, each with the time at which it was first seen, in order."""
    slowest_offset: int | None = None
    """The position of the slowest cursor. None if there is no cursor."""
    now_ms: int
    since_offload_seconds: float = 0.0
    """The time since the last offload of this process, or since it began."""
    committed_offset: int
    """The end of what the log acknowledges."""

    @property
    def settled(self) -> Sequence[LocalLedger]:
        """The sealed ledgers that the log acknowledges whole. No other may be offloaded."""
        return [ledger for ledger in self.sealed if ledger.next_offset <= self.committed_offset]

    @property
    def waiting(self) -> Sequence[LocalLedger]:
        """The settled ledgers that the tier lacks."""
        return [ledger for ledger in self.settled if ledger.next_offset > self.done]

    @property
    def sealed(self) -> Sequence[LocalLedger]:
        """The ledgers that are sealed."""
        return self.ledgers[:-1]

    @property
    def done(self) -> int:
        """The offset up to which everything is on the tier."""
        return self.ledgers[0].first_offset if self.tier_next is None else self.tier_next

    @property
    def size_bytes(self) -> int:
        """The bytes of the local log."""
        return sum(ledger.size_bytes for ledger in self.ledgers)


def check_ledgers(ledgers: Sequence[LocalLedger], *, where: str, stream: str) -> None:
    """Raise `Corrupt` unless these can be the ledgers of a log: a run without a hole, the last one open."""
    before = None
    for rank, ledger in enumerate(ledgers):
        name = f"{where}, ledger {ledger.ledger_id}"
        is_last = rank == len(ledgers) - 1
        wrong: tuple[str, object, object] | None = None
        if ledger.is_sealed == is_last:
            wrong = "state", "open" if is_last else "sealed", "the other"
        elif before is not None and ledger.first_offset != before.next_offset:
            wrong = "first offset", before.next_offset, ledger.first_offset
        elif before is not None and ledger.ledger_id <= before.ledger_id:
            wrong = "ledger id", f"above {before.ledger_id}", ledger.ledger_id
        elif ledger.records < 0 or (ledger.records == 0 and not is_last):
            wrong = "records", "1 or more", ledger.records
        elif ledger.size_bytes < 0 or (ledger.size_bytes == 0) != (ledger.records == 0):
            wrong = "size", f"that of {ledger.records} records", ledger.size_bytes
        if wrong is not None:
            what, expected, found = wrong
            raise Corrupt(f"{what} of a ledger", name, expected=expected, found=found, stream=stream)
        before = ledger
    if before is None:
        raise Corrupt("ledgers", where, expected="an open ledger", found="none", stream=stream)


def prefix_before(now: Situation, position: int) -> int:
    """Return the end of the ledgers that an offload up to `position` takes: the first offset of the next one.

    The ledger that holds the position stays, even if it is its last record. Raises `Misuse` for a position
    that the log does not have. The open ledger's first offset counts, although nothing may be there yet.
    """
    first, end, open_at = now.ledgers[0].first_offset, now.ledgers[-1].next_offset, now.ledgers[-1]
    is_next = position == open_at.first_offset and len(now.ledgers) > 1
    if not (first <= position < end or is_next):
        raise Misuse(f"offset {position} is no record of the log, which has [{first}, {end})")
    return max(ledger.first_offset for ledger in now.ledgers if ledger.first_offset <= position)


def due_offset(now: Situation, policy: LedgerPolicy) -> tuple[int, str]:
    """Return the offset up to which the triggers offload now, and why. It is `now.done` if none does."""
    behind = 0
    for ledger in reversed(now.settled):
        behind += ledger.size_bytes
        if ledger.next_offset <= now.done:
            continue
        if policy.offload_size_bytes is not None and behind > policy.offload_size_bytes:
            return ledger.next_offset, f"{behind} bytes are sealed, above {policy.offload_size_bytes}"
        assert ledger.closed_ms is not None, "it is sealed"
        age_seconds = (now.now_ms - ledger.closed_ms) / 1000
        if policy.offload_age_seconds is not None and age_seconds >= policy.offload_age_seconds:
            return ledger.next_offset, f"sealed {age_seconds:.0f} s ago"
        interval = policy.offload_interval_seconds
        if interval is not None and now.since_offload_seconds >= interval:
            return ledger.next_offset, f"the last offload was {now.since_offload_seconds:.0f} s ago"
    # A full disk hurries what would wait: what is on the tier can go.
    bound = policy.local_size_bytes_max
    if bound is not None and now.size_bytes > bound and policy.offloads and now.waiting:
        return now.waiting[-1].next_offset, f"the log has {now.size_bytes} bytes, above {bound}"
    return now.done, ""


def removable_offset(now: Situation, policy: LedgerPolicy) -> tuple[int, str]:
    """Return the offset below which local copies may go because the tier has them, and the reason."""
    kept_from, reason = now.ledgers[0].first_offset, ""
    if now.tier_next is None:
        return kept_from, reason
    size_bytes, bound = now.size_bytes, policy.local_size_bytes_max
    for ledger in now.sealed:
        if ledger.next_offset > now.tier_next:
            break
        seen_ms = next((ms for end, ms in now.committed_ms if end >= ledger.next_offset), None)
        lag = policy.deletion_lag_seconds
        if bound is not None and size_bytes > bound:
            reason = f"on the tier, and the log has {size_bytes} bytes, above {bound}"
        elif lag is not None and seen_ms is not None and now.now_ms - seen_ms > lag * 1000:
            reason = f"on the tier for {(now.now_ms - seen_ms) / 1000:.0f} s"
        else:
            break
        kept_from, size_bytes = ledger.next_offset, size_bytes - ledger.size_bytes
    return kept_from, reason


def expired_offset(now: Situation, policy: LedgerPolicy) -> tuple[int, str]:
    """Return the offset below which local copies go for good, because retention deletes them, and the reason.

    If the tier has the stream, retention trims the tier first, and the log follows it. Otherwise it deletes
    from the log alone, unless a trigger is going to offload the ledgers.
    """
    expired, reason = now.ledgers[0].first_offset, ""
    if now.tier_first is not None:
        for ledger in now.sealed:
            if ledger.next_offset <= now.tier_first:
                expired, reason = ledger.next_offset, "trimmed on the tier"
        return expired, reason
    if policy.offloads:
        return expired, reason
    limit = now.ledgers[-1].next_offset if now.slowest_offset is None else now.slowest_offset
    size_bytes = now.size_bytes
    for ledger in now.sealed:
        assert ledger.closed_ms is not None, "it is sealed"
        age_seconds = (now.now_ms - ledger.closed_ms) / 1000
        if ledger.next_offset > limit:
            break
        if policy.retention_seconds is not None and age_seconds > policy.retention_seconds:
            reason = f"sealed {age_seconds:.0f} s ago, above the retention"
        elif policy.retention_size_bytes is not None and size_bytes > policy.retention_size_bytes:
            reason = f"the log has {size_bytes} bytes, above the retention"
        else:
            break
        expired, size_bytes = ledger.next_offset, size_bytes - ledger.size_bytes
    return expired, reason


def plan_of(now: Situation, policy: LedgerPolicy) -> LedgerPlan:
    """Return what would be done now with each ledger of the log, and why."""
    due, why_due = due_offset(now, policy)
    removable, why_removable = removable_offset(now, policy)
    expired, why_expired = expired_offset(now, policy)
    rows = []
    for ledger in now.ledgers:
        action, reason = LedgerAction.KEEP, "open" if not ledger.is_sealed else "no rule takes it"
        if ledger.is_sealed and ledger.next_offset <= now.done and now.tier_next is not None:
            kept = "kept for the deletion lag" if policy.deletion_lag_seconds is not None else "kept for ever"
            reason = f"on the tier, {kept}"
        if ledger.is_sealed and ledger.next_offset <= expired:
            action, reason = LedgerAction.DELETE, why_expired
        elif ledger.is_sealed and ledger.next_offset <= removable:
            action, reason = LedgerAction.DELETE_LOCAL, why_removable
        elif ledger.is_sealed and now.done < ledger.next_offset <= due:
            action, reason = LedgerAction.OFFLOAD, why_due
        rows.append(PlannedLedger(ledger, action, reason))
    return LedgerPlan(ledgers=rows)
