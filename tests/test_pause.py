"""Tests of pauses: when work that failed is tried again, and when a person is told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from offload.ground.env import Env
from offload.ground.errors import Conflict, Denied, NoSpace, OffloadError, OutcomeUnknown, TryAgain
from offload.ground.pause import PAUSE_SECONDS, RETRY_SECONDS_MAX, Pause


@dataclass
class Clock:
    """A clock that moves only if a test moves it."""

    now: float = 1000.0

    def pause(self) -> Pause:
        """Return a pause by this clock, whose waits are the longest possible."""
        return Pause(
            env=Env(monotonic=lambda: self.now, now_ms=lambda: int(1000 * self.now), random=lambda: 1.0)
        )


@pytest.mark.parametrize("error", [TryAgain("down"), OutcomeUnknown("lost"), Conflict("moved")])
def test_an_error_that_passes_is_told_to_nobody_and_tried_again_later_and_later(error: OffloadError) -> None:
    clock, waits = Clock(), list[float]()
    pause = clock.pause()

    for _ in range(8):
        assert pause.fail(error) is False
        waits.append(pause.left_seconds)
        clock.now += pause.left_seconds

    assert waits == [1, 2, 4, 8, 16, 32, RETRY_SECONDS_MAX, RETRY_SECONDS_MAX]
    assert (pause.error, pause.kind) == (error, "")


def test_work_that_waits_for_a_person_is_tried_again_slowly_and_told_once_for_each_class() -> None:
    clock = Clock()
    pause = clock.pause()
    errors = [Denied("offset 7"), Denied("offset 8"), NoSpace("full"), TryAgain("down"), NoSpace("full")]

    told = list[bool]()
    for error in errors:
        told.append(pause.fail(error))
        if not isinstance(error, TryAgain):
            assert pause.left_seconds == PAUSE_SECONDS
        clock.now += pause.left_seconds

    assert told == [True, False, True, False, False]


def test_an_error_that_passes_does_not_hide_the_one_that_waits_for_a_person() -> None:
    clock, denied = Clock(), Denied("no right to write")
    pause = clock.pause()
    pause.fail(denied)

    pause.fail(TryAgain("down"))

    assert (pause.error, pause.kind, pause.left_seconds) == (denied, "Denied", 1.0)


def test_a_pause_knows_since_when_the_tries_fail() -> None:
    clock = Clock()
    pause = clock.pause()
    pause.fail(TryAgain("down"))
    clock.now += 5

    pause.fail(Denied("no right to write"))

    assert pause.since_ms == 1_000_000


def test_a_success_ends_a_pause_and_the_next_error_is_a_new_one() -> None:
    clock = Clock()
    pause = clock.pause()
    for error in (TryAgain("down"), TryAgain("down"), Denied("no")):
        pause.fail(error)

    pause.clear()
    clock.now += 5

    assert (pause.error, pause.kind) == (None, "")
    assert pause.retry(TryAgain("down")) == 1.0
    assert pause.since_ms == 1_005_000
    assert pause.fail(Denied("no")) is True
