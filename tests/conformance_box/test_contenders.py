"""Contenders in threads: a failure of one ends all of them at once, and its error is raised."""

from __future__ import annotations

import threading
import time
from threading import Barrier, BrokenBarrierError

import pytest
from offload_conformance.contenders import contend_in_threads


def test_contenders_start_together_as_often_as_they_wait() -> None:
    there: list[tuple[int, int]] = []

    async def contend(contender: int, start: Barrier) -> None:
        for turn in range(3):
            start.wait()
            there.append((turn, contender))
            start.wait()

    contend_in_threads(4, contend, seconds_max=60)

    assert [turn for turn, _ in there] == [0] * 4 + [1] * 4 + [2] * 4


def test_the_error_of_one_contender_releases_the_others_and_is_raised() -> None:
    """Otherwise the others would wait for a minute."""
    broken: list[int] = []

    async def contend(contender: int, start: Barrier) -> None:
        if contender == 2:
            raise ZeroDivisionError("its own")
        try:
            start.wait()
        except BrokenBarrierError:
            broken.append(contender)
            raise

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="its own"):
        contend_in_threads(4, contend, seconds_max=60)

    assert time.monotonic() - began < 60
    assert sorted(broken) == [0, 1, 3]


def test_every_thread_has_ended_at_the_end() -> None:
    before = set(threading.enumerate())

    async def contend(contender: int, start: Barrier) -> None:
        if contender:
            raise ZeroDivisionError
        start.wait()

    with pytest.raises(ZeroDivisionError):
        contend_in_threads(2, contend, seconds_max=60)

    assert set(threading.enumerate()) == before


def test_no_contender_waits_for_ever_for_one_that_ended_early() -> None:
    async def contend(contender: int, start: Barrier) -> None:
        if contender:
            start.wait()

    with pytest.raises(BrokenBarrierError):
        contend_in_threads(2, contend, seconds_max=1.0)
