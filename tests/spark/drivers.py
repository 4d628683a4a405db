"""Drivers that die, in this process or in one of their own.

In this process, a death is an exception that no clean-up survives: after it, the driver commits nothing. That
costs no further JVM. The other drivers are ended by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from offload import Manifest
from offload.commit.log import RootLog
from offload.write.job import Job

SECONDS_MAX: Final = 300
"""How long a driver may take. It is generous: the machine may be busy."""

CHEAP_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that lives for some seconds: the costly compiler and parallel collectors never pay off."""


class Killed(BaseException):
    """The death of a driver in this process."""


class Death:
    """The death of one driver. Once it has struck, the driver commits nothing."""

    def __init__(self) -> None:
        self.has_struck = False

    def strike(self, *_: object) -> None:
        """Die here."""
        self.has_struck = True
        raise Killed

    def at(self, real: Callable[..., Coroutine[Any, Any, Any]], when: str, *, call: int = 1) -> Any:
        """Return a method in place of `real` that dies `before` or `after` its n-th call."""
        calls = 0

        async def dying(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if (calls, when) == (call, "before"):
                self.strike()
            done = await real(*arguments, **keywords)
            if calls == call:
                self.strike()
            return done

        return dying


@contextmanager
def dying(when: str, method: str = "append", *, call: int = 1) -> Iterator[Death]:
    """Kill the driver that runs within, in this process: `before` or `after` a call of a method of `Job`.

    At any other `when` the driver dies as soon as something calls `Death.strike`.
    """
    death, commit = Death(), RootLog.commit

    async def commit_if_alive(self: RootLog, *arguments: Any, **keywords: Any) -> Manifest:
        if death.has_struck:
            raise Killed
        return await commit(self, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RootLog, "commit", commit_if_alive)
        if when in ("before", "after"):
            patched.setattr(Job, method, death.at(getattr(Job, method), when, call=call))
        with pytest.raises(Killed):
            yield death


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a driver with a JVM of its own, in a process group of its own."""
    given = {"PYTHONPATH": os.pathsep.join(sys.path), "SPARK_SUBMIT_OPTS": CHEAP_JVM}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, **given}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> int:
    """Kill the driver and all that it started. Return how the driver ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def run(script: str, *arguments: object) -> int:
    """Run a driver until it ends, by itself or because it kills itself. Return how it ended."""
    process = start(script, *arguments)
    try:
        return process.wait(SECONDS_MAX)
    finally:
        end(process)
