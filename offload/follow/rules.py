"""The rules of a follower, and the status that it reports. `follow.follower` follows them.

Invariant: rules that contradict each other do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from offload.ground.errors import Misuse, OffloadError

__all__ = ["FollowRules", "FollowState", "FollowStatus", "Verb", "Wait"]


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
    """An error waits for a person, or a person has paused it."""


class Wait(StrEnum):
    """What the records that are in the source and not committed wait for."""

    NOTHING = "nothing"
    """There are none, or nobody has looked yet."""
    MORE = "more"
    """More records, for a larger fragment. They are copied before `max_lag_seconds` are over."""
    BROKER = "broker"
    """The broker's word that a majority has them, or the end of `hold_back_seconds`."""
    TURN = "turn"
    """The copies of other streams of this process."""
    COPY = "copy"
    """The copy that is under way."""
    LEADER = "leader"
    """The process that leads, or the end of the time after which this one takes over."""
    RETRY = "retry"
    """The next try: an error, such as that of a store that does not answer, ended the last one."""
    PERSON = "person"
    """Somebody who mends the error that paused the stream."""
    RESUME = "resume"
    """Somebody who resumes the stream, which a person has paused."""


class Verb(StrEnum):
    """What a person can tell a process about a stream."""

    RETRY = "retry"
    """Try it now."""
    COPY = "copy"
    """Copy what the source has now, and do not wait for more."""
    PAUSE = "pause"
    """Give up the lead, and copy nothing until it is resumed."""
    RESUME = "resume"
    """Go on after `pause`."""


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
    lag_seconds: float | None
    """The age of the oldest of these records, by the source's own timestamps. 0 if there is none.

    A process that stands by knows the age at its last look at the tier. None if source or tier were not seen.
    """
    alarm_seconds: float
    waited_seconds: float = 0.0
    """How long this process has seen the oldest of these records wait. 0 if there is none."""
    waits: Wait = Wait.NOTHING
    """What these records wait for."""
    waits_since_ms: int = 0
    """When they began to, in milliseconds since 1970."""
    part: int = 1
    """The part of the stream that is followed. The offsets that are committed are of this part."""
    gaps: int | None = None
    """The number of gaps before what is followed (`offload.model.gaps`). None if it is not known yet."""
    lost_records: int | None = None
    """The number of records in them that are lost for certain. None if it is not known yet."""

    @property
    def is_behind(self) -> bool:
        """True if the source has ended before the tier for longer than the alarm: it was cut, or it lags."""
        source, tier = self.source_next_offset, self.committed_offset
        return (
            source is not None
            and tier is not None
            and source < tier
            and self.waited_seconds > self.alarm_seconds
        )

    @property
    def is_stopped(self) -> bool:
        """True if an error has paused the stream, and no person."""
        return self.state is FollowState.PAUSED and self.waits is not Wait.RESUME

    @property
    def is_late(self) -> bool:
        """True if the lag is beyond the alarm, whoever leads the stream.

        If the lag is not known, it is at least as long as this process has seen records wait.
        """
        lag_seconds = self.waited_seconds if self.lag_seconds is None else self.lag_seconds
        return lag_seconds > self.alarm_seconds
