"""The seconds and the CPU seconds of a transfer alone, and the CPU seconds of the servers beside it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


class Stopwatch:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._seconds, self._cpu_seconds = time.perf_counter(), _cpu_seconds()

    def read(self) -> dict[str, float]:
        """Return both times."""
        return {
            "seconds": time.perf_counter() - self._seconds,
            "cpu_seconds": _cpu_seconds() - self._cpu_seconds,
        }


def running_children_cpu_seconds() -> float:
    """Return the user and system time of all processes that this one has started and that still run."""
    return sum(running_children().values())


def running_children() -> dict[int, float]:
    """Return the CPU seconds of each process that this one has started and that still runs, by its id."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # the name of a program may have blanks
        except OSError:
            continue  # it has ended
        if int(fields[1]) == os.getpid():
            ticks = int(fields[11]) + int(fields[12])
            found[int(stat.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def _cpu_seconds() -> float:
    """Return the user and system time of this process, its threads, and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
