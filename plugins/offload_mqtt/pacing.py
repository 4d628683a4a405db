"""The order and the pace in which messages came: what a replay by topic has to restore for `--speed`.

A sorted ledger is read topic by topic. So the selected messages of a ledger are gathered and sorted by their
origin, before the first of them goes on. Ledgers follow each other as they were written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec.structs import replace as moved

from offload.formats.records import RecordRun
from offload.formats.rows import ValuePool, column_of
from offload.ground.env import Env
from offload_mqtt.reading import NO_RECORDS, ReplayRun

__all__ = ["by_arrival", "paced"]

PAUSE_SECONDS_MAX: Final = 60.0
"""No pause is longer: a clock may have been years off."""


async def by_arrival(runs: AsyncGenerator[ReplayRun, None]) -> AsyncGenerator[ReplayRun, None]:
    """Yield the same messages, those of each ledger in the order of their origin.

    The place of a run is behind its ledger, and that of a part of it is before, so an interrupted replay
    repeats what it had of a ledger.
    """
    held = list[ReplayRun]()
    async with aclosing(runs):
        async for each in runs:
            if held and each.ledger != held[-1].ledger:
                yield _sorted(held)
                held = []
            if each.is_live:
                yield each
            elif len(each):
                held.append(replace(each, run=_gathered(each.run, np.arange(len(each)))))
            elif not held:
                yield each
    if held:
        yield _sorted(held)


async def paced(
    runs: AsyncGenerator[ReplayRun, None], speed: float, env: Env
) -> AsyncGenerator[ReplayRun, None]:
    """Yield the same messages, each when it is due: `speed` times as fast as they came."""
    due, before_us = env.monotonic(), None
    async with aclosing(runs):
        async for each in runs:
            times_us = each.columns.times_us if len(each) else np.zeros(0, np.int64)
            cuts = [0, *(np.flatnonzero(np.diff(times_us)) + 1).tolist(), len(each)]
            for first, stop in pairwise(cuts):
                if stop > first:
                    time_us = int(times_us[first])
                    pause = 0.0 if before_us is None else (time_us - before_us) / 1e6 / speed
                    before_us, due = time_us, due + min(max(pause, 0.0), PAUSE_SECONDS_MAX)
                    await env.sleep(max(due - env.monotonic(), 0.0))
                yield each.rows(first, stop)


def _sorted(held: list[ReplayRun]) -> ReplayRun:
    origins = np.concatenate([each.columns.origins for each in held])
    joined = RecordRun.joined([each.run for each in held])
    before = moved(held[0].at, offset=int(held[0].run.offsets[0]))
    return replace(held[-1], run=_gathered(joined, np.argsort(origins, kind="stable")), before=before)


def _gathered(run: RecordRun, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RecordRun:
    """Return a copy of these records, back to back in this order."""
    if not len(rows):
        return NO_RECORDS
    pool = ValuePool(np.frombuffer(run.data, np.uint8), run.starts[rows], run.sizes[rows])
    bodies = column_of([pool], len(rows))
    starts = bodies.offsets[:-1].astype(np.int64)
    return RecordRun(run.offsets[rows], run.timestamps_ms[rows], starts, run.sizes[rows], bodies.data.data)
