"""The places of a queue's messages, without their bodies.

    tag         low                                                          high
                front             runs                     near
    ready       tags, loaded      positions, not loaded    tags
    kept        on the tier       on the tier              in the log or in memory

    In RabbitMQ's words: alpha is a tag of `front` or `near` with its body in memory, beta one without, gamma
    is beta in a ledger with an index file, and delta is the part of the runs that is not loaded.

`unacked` has the tags of both sides that consumers hold. Everything is an array, or one object for each run.

Invariants, checked by `check`: tags of `front` are below all that is not loaded, and these below all of
`near`; a message is in one place only; `deep` is the number of ready positions that are not loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Corrupt
from offload_queue.log_records import MessageTags, RunState
from offload_queue.offset_set import OffsetSet

__all__ = ["QueuePositions", "QueueRun"]

READY: Final = 0
OUT: Final = 1
"""A consumer holds it, although the run is not loaded up to there."""
ACKED: Final = 2

RUN_COUNT_MAX: Final = 2**31


class QueueRun:
    """Messages of one queue that lie behind each other on the tier, in the order of their tags."""

    __slots__ = ("acked", "count", "first", "last", "loaded", "marks", "offset", "size_bytes", "tags")

    def __init__(self, offset: int, count: int, first: int, last: int, size_bytes: int) -> None:
        self.offset, self.count, self.first, self.last = offset, count, first, last
        self.size_bytes = size_bytes
        self.marks: npt.NDArray[np.uint8] = np.zeros(count, np.uint8)
        self.acked = self.loaded = 0
        self.tags: MessageTags | None = None
        """The tags of positions below `loaded`, or all of them. None: not known."""

    @classmethod
    def of(cls, state: RunState) -> QueueRun:
        """Return the run of a state. Raises `Corrupt` if its numbers do not fit each other."""
        size = (state.count + 7) // 8
        if not 0 < state.count < RUN_COUNT_MAX or len(state.acked) not in (0, size) or state.offset < 0:
            raise Corrupt("run of a queue", "state", expected=f"{size} bytes", found=len(state.acked))
        run = cls(state.offset, state.count, state.first, state.last, state.size_bytes)
        if state.acked:
            bits = np.unpackbits(np.frombuffer(state.acked, np.uint8), count=state.count)
            run.mark(np.flatnonzero(bits), ACKED)
        return run

    def state(self) -> RunState:
        """Return what is kept of the run."""
        acked = np.packbits(self.marks == ACKED).tobytes() if self.acked else b""
        return RunState(self.offset, self.count, self.first, self.last, self.size_bytes, acked)

    @property
    def live_size_bytes(self) -> int:
        """The share of the size that belongs to messages that nobody has acknowledged."""
        return self.size_bytes * (self.count - self.acked) // self.count

    def ready_behind(self) -> int:
        """Return the number of ready positions that are not loaded."""
        return int(np.count_nonzero(self.marks[self.loaded :] == READY))

    def mark(self, positions: npt.NDArray[np.integer], mark: int) -> None:
        """Mark positions. Acknowledged ones stay so."""
        if mark == ACKED:
            self.acked += int(np.count_nonzero(self.marks[positions] != ACKED))
            self.marks[positions] = ACKED
        else:
            self.marks[positions[self.marks[positions] != ACKED]] = mark

    def note_tags(self, tags: MessageTags) -> None:
        """Note the tags of the positions behind `loaded`."""
        if self.tags is None:
            self.tags = np.full(self.count, np.iinfo(np.int64).max)
        self.tags[self.loaded : self.loaded + len(tags)] = tags


class QueuePositions:
    """The messages of one queue, as tags and runs."""

    __slots__ = ("deep", "front", "given", "near", "runs", "unacked")

    def __init__(
        self, *, near: MessageTags | None = None, runs: Iterable[QueueRun] = (), given: int = 0
    ) -> None:
        self.front, self.near, self.unacked = OffsetSet(), OffsetSet(near), OffsetSet()
        self.runs = list(runs)
        self.deep = sum(run.ready_behind() for run in self.runs)
        self.given = given
        """Ready messages below this tag may have been delivered before."""

    @property
    def ready(self) -> int:
        """The number of ready messages."""
        return len(self.front) + self.deep + len(self.near)

    @property
    def head(self) -> OffsetSet | None:
        """The tags from which the next ready messages come. None if a run must be loaded first."""
        return self.front if len(self.front) else None if self.deep else self.near

    def take(self, head: OffsetSet, tags: MessageTags) -> None:
        """Take the first tags of the head as unacknowledged ones."""
        head.drop_first(len(tags))
        self.given = max(self.given, int(tags[-1]) + 1)
        self.unacked.add(tags)

    def requeue(self, tags: MessageTags, moved: int) -> None:
        """Put tags that were unacknowledged back in their places."""
        on_tier = tags[tags < moved]
        self.near.add(tags[len(on_tier) :])
        kept = np.ones(len(on_tier), bool)
        for run, rows, positions in self._located(on_tier):
            behind = positions >= run.loaded
            run.mark(positions[behind], READY)
            self.deep += int(np.count_nonzero(behind))
            kept[rows[behind]] = False
        self.front.add(on_tier[kept])

    def acked_on_tier(self, tags: MessageTags) -> MessageTags:
        """Mark tags of the tier as acknowledged, and return their tier offsets, ascending."""
        found = []
        for run, _, positions in self._located(tags):
            run.mark(positions, ACKED)
            found.append(run.offset + positions)
        self._forget_runs()
        return np.asarray(np.sort(np.concatenate([np.empty(0, np.int64), *found])), np.int64)

    def ack_offsets(self, offsets: MessageTags) -> None:
        """Mark the messages at these tier offsets, when a log is read. Unknown ones are skipped."""
        for run in self.runs:
            low, high = np.searchsorted(offsets, [run.offset, run.offset + run.count])
            run.mark(offsets[low:high] - run.offset, ACKED)
        self._forget_runs()
        self.deep = sum(run.ready_behind() for run in self.runs)

    def drop_deep(self) -> list[MessageTags]:
        """Acknowledge all ready positions that are not loaded, and return their tier offsets, by run."""
        found = []
        for run in self.runs:
            positions = run.loaded + np.flatnonzero(run.marks[run.loaded :] == READY)
            if len(positions):
                run.mark(positions, ACKED)
                found.append(run.offset + positions)
        self.deep = 0
        self._forget_runs()
        return found

    def next_run(self) -> QueueRun | None:
        """Return the run that has the next ready message that is not loaded."""
        return next((run for run in self.runs if run.ready_behind()), None) if self.deep else None

    def loaded(self, run: QueueRun, tags: MessageTags) -> MessageTags:
        """Take the next positions of a run as loaded. Return the tags of the ready ones."""
        run.note_tags(tags)
        ready: MessageTags = tags[run.marks[run.loaded : run.loaded + len(tags)] == READY]
        marks = run.marks[run.loaded : run.loaded + len(tags)]
        marks[marks == OUT] = READY  # `unacked` has them; below `loaded`, a mark says only what is gone
        run.loaded += len(tags)
        self.deep -= len(ready)
        self.front.add(ready)
        return ready

    def moved(self, run: QueueRun, tags: MessageTags, in_memory: Callable[[int], bool]) -> MessageTags:
        """Take tags of `near` and `unacked` as a run of the tier. Return the ready ones that are not loaded.

        If nothing deep is before them, the first tags whose bodies are `in_memory` are loaded at once.
        """
        run.tags = tags
        ready, out = self.near.contains(tags), self.unacked.contains(tags)
        run.mark(np.flatnonzero(~(ready | out)), ACKED)
        self.near.remove(tags[ready])
        if not self.deep:
            wanted = tags[ready].tolist()
            stays = next((row for row, tag in enumerate(wanted) if not in_memory(tag)), len(wanted))
            run.loaded = run.count if stays == len(wanted) else int(np.searchsorted(tags, wanted[stays]))
            self.front.add(tags[: run.loaded][ready[: run.loaded]])
        behind = slice(run.loaded, None)
        run.mark(run.loaded + np.flatnonzero(out[behind]), OUT)
        if run.acked < run.count:
            self.runs.append(run)
        left = tags[behind][ready[behind]]
        self.deep += len(left)
        return left

    def replaced(
        self, old: QueueRun, new: QueueRun, kept: npt.NDArray[np.integer], tags: MessageTags
    ) -> None:
        """Take a copy of a run in its place. `kept` are the positions that it has, and `tags` theirs."""
        at = self.runs.index(old)
        new.tags = tags
        new.loaded = int(np.searchsorted(kept, old.loaded))
        new.mark(np.flatnonzero(old.marks[kept] == ACKED), ACKED)
        new.mark(np.flatnonzero(old.marks[kept] == OUT), OUT)
        self.runs[at] = new
        self._forget_runs()

    def check(self, moved: int) -> None:
        """Raise `AssertionError` if an invariant does not hold. For tests; costs the length of the queue."""
        front, near, unacked = self.front.values, self.near.values, self.unacked.values
        for values in (front, near, unacked):
            assert (np.diff(values) > 0).all()
        assert not len(np.intersect1d(front, unacked))
        assert not len(np.intersect1d(near, unacked))
        assert not len(near) or near[0] >= moved
        assert not len(front) or front[-1] < moved
        assert self.deep == sum(run.ready_behind() for run in self.runs)
        assert all(run.acked == np.count_nonzero(run.marks == ACKED) < run.count for run in self.runs)
        assert all(one.last < other.first for one, other in zip(self.runs, self.runs[1:], strict=False))
        if len(front) and (run := self.next_run()) is not None:
            assert front[-1] <= run.last
        on_tier = len(front) + self.deep + int(np.searchsorted(unacked, moved))
        assert on_tier == sum(run.count - run.acked for run in self.runs)

    def _located(self, tags: MessageTags) -> list[tuple[QueueRun, MessageTags, MessageTags]]:
        """Return the runs of tags that were loaded: each with the rows of its tags and their positions."""
        if not len(tags):
            return []
        firsts, row = [run.first for run in self.runs], 0
        found: list[tuple[QueueRun, MessageTags, MessageTags]] = []
        while row < len(tags):
            run = self.runs[bisect_right(firsts, int(tags[row])) - 1]
            end = int(np.searchsorted(tags, run.last + 1))
            assert run.tags is not None
            assert end > row
            at = np.searchsorted(run.tags, tags[row:end]).astype(np.int64)
            found.append((run, np.arange(row, end, dtype=np.int64), at))
            row = end
        return found

    def _forget_runs(self) -> None:
        if any(run.acked == run.count for run in self.runs):
            self.runs = [run for run in self.runs if run.acked < run.count]
