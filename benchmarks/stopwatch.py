"""The seconds and the CPU seconds of a transfer alone, without the start and the end of its process."""

from __future__ import annotations

import json
import resource
import time


class Stopwatch:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._seconds, self._cpu_seconds = time.perf_counter(), _cpu_seconds()

    def read(self) -> str:
        """Return both times, as the JSON that the benchmarks exchange."""
        return json.dumps([time.perf_counter() - self._seconds, _cpu_seconds() - self._cpu_seconds])


def _cpu_seconds() -> float:
    """Return the user and system time of this process, its threads, and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
