"""The rules of a follower, and the status that it reports. `streams.follower` follows them.

Invariant: rules that contradict each other do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from offload.errors import Misuse, OffloadError

__all__ = ["FollowRules", "FollowState", "FollowStatus"]


LOOKS_PER_LAG: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRules:
    """When a follower copies what. Raises `Misuse` if the values contradict each other."""

    max_lag_seconds: float = 30.0
    """The time after which a record of the source is readable on the tier, if the store answers."""

    hold_back_seconds: float = 0.5
    """How long data has to be in the source before it is copied, if the broker vouches for nothing."""

    takeover_seconds: float = 60.0
    """How long nothing was committed before a process that stands by takes over. At least twice the lag."""

    alarm_lag_seconds: float | None = None
    """The lag at which a stream counts as late. None: three times `max_lag_seconds`."""

    fragment_size_bytes: int = 64 * 2**20

    new_part: bool = False
    """Go on in a new part after a gap or a fork. False: the stream pauses."""

    def __post_init__(self) -> None:
        if not self.max_lag_seconds >= 1.0:
            raise Misuse(f"max_lag is at least 1 s, not {self.max_lag_seconds:g} s")
        if not 0.0 <= self.hold_back_seconds <= self.max_lag_seconds / 2:
            raise Misuse(
                f"hold_back is at most half of max_lag ({self.max_lag_seconds:g} s), not "
                f"{self.hold_back_seconds:g} s"
            )

    @property
    def look_seconds(self) -> float:
        """The time between two looks at the source."""
        return self.max_lag_seconds / LOOKS_PER_LAG

    @property
    def alarm_seconds(self) -> float:
        """The lag at which a stream counts as late."""
        return 3 * self.max_lag_seconds if self.alarm_lag_seconds is None else self.alarm_lag_seconds

    @property
    def quiet_seconds(self) -> float:
        """The time without a commit after which another process takes over."""
        return max(self.takeover_seconds, 2 * self.max_lag_seconds)


class FollowState(StrEnum):
    """The state of a follower."""

    STANDBY = "standby"
    """Somebody else leads, or nobody yet."""
    LEADING = "leading"
    PAUSED = "paused"
    """An error waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowStatus:
    """The status of a stream, from the last look. No request was sent for it."""

    stream: str
    state: FollowState
    error: OffloadError | None
    """The error that paused the stream, or that the follower backs off from."""
    source_next_offset: int | None
    """The end of the source. None before the first look."""
    committed_offset: int | None
    """The end of what is committed, as far as known."""
    dispatched_offset: int | None
    """The end of what is committed or on its way to the store."""
    lag_records: int | None
    """The number of records that are in the source and not committed. None before the first look."""
    lag_seconds: float
    """The time for which the oldest of these records has been waiting. 0 if there is none.

    Records that are there at the first look have been waiting since then.
    """
    alarm_seconds: float
    part: int = 1
    """The part of the stream that is followed. The offsets that are committed are of this part."""

    @property
    def is_behind(self) -> bool:
        """True if the source has ended before the tier for longer than the alarm: it was cut, or it lags."""
        source, tier = self.source_next_offset, self.committed_offset
        return source is not None and tier is not None and source < tier and self._alarms

    @property
    def _alarms(self) -> bool:
        return self.lag_seconds > self.alarm_seconds

    @property
    def is_late(self) -> bool:
        """True if this process leads the stream, and its lag is beyond the alarm."""
        return self.state is FollowState.LEADING and self._alarms
