"""Tests of the measure of stalls: a call that blocks the event loop is found, and a busy machine is not."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest
from offload_conformance import watch

ENOUGH_SECONDS = 0.02


async def blocking() -> None:
    time.sleep(2 * ENOUGH_SECONDS)  # noqa: ASYNC251 - what a blocking call does


async def working() -> None:
    until = time.process_time() + 2 * ENOUGH_SECONDS
    while time.process_time() < until:
        pass


def stall(call: object, monkeypatch: pytest.MonkeyPatch, *, is_preempted: bool) -> float:
    preempted = count()

    def spent() -> tuple[float, int]:
        return time.process_time(), next(preempted) if is_preempted else 0

    monkeypatch.setattr(watch, "_spent", spent)
    return asyncio.run(watch.longest_stall(call, enough_seconds=ENOUGH_SECONDS))  # type: ignore[arg-type]  # a call


def test_a_call_that_blocks_stalls_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stall(blocking, monkeypatch, is_preempted=False) >= ENOUGH_SECONDS


def test_a_call_that_works_on_the_loop_stalls_it_on_a_busy_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stall(working, monkeypatch, is_preempted=True) >= ENOUGH_SECONDS


def test_a_stall_in_which_the_system_took_the_processor_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stall(blocking, monkeypatch, is_preempted=True) == 0


def test_preemptions_of_this_process_are_counted() -> None:
    before = watch._spent()

    asyncio.run(working())

    after = watch._spent()
    assert after[0] - before[0] >= ENOUGH_SECONDS
    assert after[1] >= before[1]
