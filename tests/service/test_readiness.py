"""The log says when the process stops being ready, that this lasts, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from kit.world import Clock

from offload.service.readiness import READY_REPEAT_SECONDS, ReadinessLog


@dataclass
class Said:
    """A health whose problems a test sets."""

    lines: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        return self.lines


def test_a_change_is_a_line_and_a_problem_that_lasts_is_one_every_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    clock, health = Clock(), Said()
    log = ReadinessLog(health=health, env=clock.env())  # type: ignore[arg-type]  # what it asks

    def after(seconds: float, *problems: str) -> list[str]:
        caplog.clear()
        clock.now += seconds
        health.lines = [*problems]
        log.look()
        return caplog.messages

    assert after(10) == []
    assert after(10, "the store is away", "a stream is late") == ["not ready: the store is away (and 1 more)"]
    assert after(READY_REPEAT_SECONDS - 1, "a stream is late") == []
    assert after(1, "a stream is late") == ["not ready: a stream is late"]
    assert after(10, "a stream is late") == []
    assert after(10) == ["ready again, after 620 s"]
    assert after(10) == []
    assert after(10, "a stream is late") == ["not ready: a stream is late"]
