"""The policies of a managed ledger: when ledgers end, when they go to the tier, and when copies are deleted.

Invariant: policies that contradict each other do not exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Final, TypeVar

from offload.ground.errors import Misuse
from offload.two_sides.choice import ReadPriority

__all__ = ["LedgerPolicy", "WhenFull"]

E = TypeVar("E", bound=StrEnum)


class WhenFull(StrEnum):
    """The choice of what an append does while the local log is larger than its bound."""

    BLOCK = "block"
    """It waits until local copies were deleted. Without a trigger, such as `offload_size_bytes`, that is only
    after the caller has called `offload_prefix`."""
    REJECT = "reject"
    """It raises `Throttled`, and nothing is written."""
    GROW = "grow"
    """It is written. An event reports that the bound is passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPolicy:
    """When a managed ledger does what. None means never, or no limit. Raises `Misuse` for impossible values.

    `ManagedLedgers` applies the policy. A single `ManagedLedger` applies it only in `step`. By itself it
    seals the open ledger at `roll_size_bytes`, and holds appends at `local_size_bytes_max`.

    Choices may be given as text, such as `when_full="reject"`. A broker that rolls at 64 MiB makes one full
    fragment of each ledger.
    """

    roll_size_bytes: int = 64 * 2**20
    """The open ledger is sealed when it has so many bytes."""
    roll_seconds: float | None = 4 * 3600.0
    """The open ledger is sealed when its first record is so old."""

    offload_size_bytes: int | None = 0
    """Sealed ledgers are offloaded, the oldest first, while those from the newest sealed one down to them
    have more bytes than this, offloaded ones included. 0: each ledger as soon as it is sealed."""
    offload_age_seconds: float | None = None
    """A sealed ledger is offloaded when it was sealed so long ago."""
    offload_interval_seconds: float | None = None
    """All sealed ledgers are offloaded when so much time has passed since the last offload."""

    deletion_lag_seconds: float | None = 4 * 3600.0
    """How long a local copy is kept after its ledger was committed to the tier."""

    retention_seconds: float | None = None
    """Records are deleted, on both sides, when they are so old, as far as cursors have passed them."""
    retention_size_bytes: int | None = None
    """The oldest records are deleted, on both sides, while all have more bytes than this, as far as cursors
    have passed them."""

    local_size_bytes_max: int | None = None
    """The bound of the local log. While it is passed, copies that are on the tier go without a lag."""
    when_full: WhenFull = WhenFull.BLOCK

    read_priority: ReadPriority = ReadPriority.LOCAL_FIRST

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            _check_number(name, getattr(self, name))
        if self.roll_size_bytes is None:
            raise Misuse("roll_size_bytes is a number of bytes, not None")
        # Text is equal to its choice, but `is` would take neither branch, so an append would wait for ever.
        object.__setattr__(self, "when_full", _chosen("when_full", WhenFull, self.when_full))
        object.__setattr__(self, "read_priority", _chosen("read_priority", ReadPriority, self.read_priority))
        if self.roll_size_bytes < 1:
            raise Misuse("roll_size_bytes is at least 1: a ledger has a record")
        for trigger, limit in (
            ("offload_age_seconds", "retention_seconds"),
            ("offload_interval_seconds", "retention_seconds"),
            ("offload_size_bytes", "retention_size_bytes"),
        ):
            waits, ends = getattr(self, trigger), getattr(self, limit)
            if waits is not None and ends is not None and waits > ends:
                raise Misuse(f"{trigger} ({waits}) is above {limit} ({ends}): nothing would reach the tier")
        bound = self.local_size_bytes_max
        if bound is not None and bound < 2 * self.roll_size_bytes:
            raise Misuse(
                f"local_size_bytes_max ({bound}) is at least twice roll_size_bytes ({self.roll_size_bytes}): "
                "only sealed ledgers can go"
            )

    @property
    def offloads(self) -> bool:
        """True if some trigger offloads ledgers without a call."""
        triggers = (self.offload_size_bytes, self.offload_age_seconds, self.offload_interval_seconds)
        return any(trigger is not None for trigger in triggers)

    @property
    def retains_for_ever(self) -> bool:
        """True if nothing is deleted on both sides."""
        return self.retention_seconds is None and self.retention_size_bytes is None


def _check_number(name: str, value: Any) -> None:
    """Raise `Misuse` unless this is None, or a number that counts what the field's name says."""
    is_size = name.endswith(("_bytes", "_bytes_max"))
    unit, kind = ("whole number of bytes", Integral) if is_size else ("number of seconds", Real)
    if value is None:
        return
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf:
        raise Misuse(f"{name} is a finite {unit} from 0 on, or None, not {value!r}")


def _chosen(name: str, choices: type[E], value: str) -> E:
    try:
        return choices(value)
    except ValueError:
        has = ", ".join(repr(each.value) for each in choices)
        raise Misuse(f"{name} is one of {has}, not {value!r}") from None


_NUMBERS: Final = (
    "roll_size_bytes",
    "roll_seconds",
    "offload_size_bytes",
    "offload_age_seconds",
    "offload_interval_seconds",
    "deletion_lag_seconds",
    "retention_seconds",
    "retention_size_bytes",
    "local_size_bytes_max",
)
