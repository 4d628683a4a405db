"""Notes of a sweep: since when each object is condemned, in memory or as sightings on the tier.

Notes protect readers only. Before a sweep deletes an object, it judges the object again. So a wall clock that
jumps, or two hosts whose clocks differ, can at worst cost a slow reader its data. A sighting from the future
is void. A sighting from before a rebuild is void too, because a rebuild may name condemned objects
again; the jump in root numbers shows it (docs/commit-protocol.md, step 9).

Invariants: no object is taken to be seen earlier than it was. A stream has at most `SIGHTINGS_MAX` sightings,
apart from those that several sweeps wrote at the same time. Each sighting names only objects that no other
sighting named when it was written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.commit.rebuild import JUMP
from offload.contracts.store import Body, Listed, ObjectStore
from offload.formats.keys import StreamKeys
from offload.formats.sighting import (
    NO_ROWS,
    ROWS_MAX,
    SIGHTING_ROW,
    SIZE_BYTES_MAX,
    Sighting,
    SightingRows,
    as_bytes,
)
from offload.ground.env import Env
from offload.ground.errors import Corrupt, NotFound, UnsupportedFormat
from offload.store.checked import checked

SIGHTINGS_MAX: Final = 16
"""Sightings of one stream. Each is one more object to read at the start of every sweep."""

REBUILD_JUMP: Final = JUMP // 2
"""The distance of two root numbers that proves a rebuild between them: no stream commits so often."""

Times = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True, eq=False)
class SeenCondemned:
    """The condemned objects of one stream, each with the time when it was first seen condemned.

    Times are seconds by the clock of the notes.
    """

    rows: SightingRows = field(default_factory=lambda: NO_ROWS)
    times: Times = field(default_factory=lambda: np.empty(0))
    version: int = 0
    sightings: list[Listed] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    """Sightings at least one grace old. A sweep that goes through the whole stream makes them superfluous."""
    void: list[str] = field(default_factory=list)
    """Sightings that count for nothing: damaged, from the future, or from before a rebuild."""
    newest: float | None = None
    """When the newest valid sighting was written."""

    @classmethod
    def of(cls, runs: Sequence[tuple[SightingRows, Times]], *, version: int = 0) -> SeenCondemned:
        """Merge runs of rows into one sorted run. A row that several runs hold keeps its earliest time."""
        rows = joined_rows([rows for rows, _ in runs])
        times = np.concatenate([np.empty(0), *(times for _, times in runs)])
        # Sorted by time first: `unique` returns the first occurrence, which is then the earliest.
        order = np.argsort(times, kind="stable")
        _, first = np.unique(as_bytes(rows)[order], return_index=True)
        chosen = order[first]
        return cls(rows=rows[chosen], times=times[chosen], version=version)

    def since(self, rows: SightingRows) -> Times:
        """Return when each of `rows` was first seen; NaN for a row that was not seen before."""
        names, known = as_bytes(rows), as_bytes(self.rows)
        at = np.searchsorted(known, names)
        since = np.full(len(rows), np.nan)
        inside = np.flatnonzero(at < len(known))
        same = inside[known[at[inside]] == names[inside]]
        since[same] = self.times[at[same]]
        return since


class SweepNotes(ABC):
    """The memory of a sweep, from one run to the next."""

    @abstractmethod
    def now(self) -> float:
        """Return the time in seconds, by the clock of these notes."""

    @abstractmethod
    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """Return what earlier sweeps noted of the stream, whose newest root is `version`.

        Appends a sentence to `tell` for each note that is ignored.
        """

    @abstractmethod
    async def remember(
        self,
        keys: StreamKeys,
        seen: SeenCondemned,
        rows: SightingRows,
        since: Times,
        *,
        version: int,
        sound: bool,
    ) -> None:
        """Keep the waiting objects `rows`, each with its time in `since`; NaN if it was not seen before.

        `sound` says that the run went through the whole stream. Then an object that was noted before and is
        not in `rows` is gone, or no longer condemned, and may be forgotten.
        """


@dataclass(slots=True)
class InMemory(SweepNotes):
    """Notes in memory, by the monotonic clock, for a process that outlives the grace. 41 bytes an object."""

    env: Env
    _streams: dict[str, SeenCondemned] = field(default_factory=dict)

    def now(self) -> float:
        """See `SweepNotes.now`."""
        return self.env.monotonic()

    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """See `SweepNotes.recall`."""
        seen = self._streams.get(keys.stream)
        # After a rebuild every grace begins again: a reader may have loaded a root that names the objects.
        if seen is None or version - seen.version >= REBUILD_JUMP:
            return SeenCondemned(version=version)
        return seen

    async def remember(
        self,
        keys: StreamKeys,
        seen: SeenCondemned,
        rows: SightingRows,
        since: Times,
        *,
        version: int,
        sound: bool,
    ) -> None:
        """See `SweepNotes.remember`."""
        runs = [(rows, np.where(np.isnan(since), self.now(), since))]
        if not sound:  # this run missed a part of the stream: what it did not meet may be waiting there
            runs.append((seen.rows, seen.times))
        self._streams[keys.stream] = SeenCondemned.of(runs, version=version)


@dataclass(slots=True)
class InTier(SweepNotes):
    """Notes as sightings on the tier, by the wall clock, for a command that ends before the grace does.

    With a grace of zero nothing waits: no sighting is written, and existing ones are removed.
    """

    store: ObjectStore
    env: Env
    grace_seconds: float

    def now(self) -> float:
        """See `SweepNotes.now`."""
        return self.env.now_ms() / 1000

    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """See `SweepNotes.recall`. Reads the oldest sightings, at most `SIGHTINGS_MAX` of them."""
        # Keys begin with the time, so the listing has the oldest first. They are the ones whose grace ends.
        listed = [row async for row in self.store.list(keys.sightings) if keys.parse_sighting(row.key)]
        now, found = self.now(), SeenCondemned(version=version, sightings=listed)
        runs = []
        for row in listed[:SIGHTINGS_MAX]:
            try:
                sighting = await self._read(keys, row)
            except NotFound:
                continue  # another sweep used and removed it
            except (Corrupt, UnsupportedFormat) as exc:  # losing a note costs one more grace, and no data
                tell.append(f"a sweep's note is ignored: {exc}")
                found.void.append(row.key)
                continue
            time = sighting.time_ms / 1000
            # A sighting from the near future was written by a clock that is fast: its objects wait for at
            # most one grace more. One from further ahead would keep its objects for as long as that clock
            # was fast, so it does not count.
            if time > now + self.grace_seconds or version - sighting.version >= REBUILD_JUMP:
                tell.append(f"{row.key} is ignored: it is from the future, or the stream was rebuilt since")
                found.void.append(row.key)
                continue
            if now - time >= self.grace_seconds:
                found.served.append(row.key)
            found.newest = time if found.newest is None else max(found.newest, time)
            runs.append((sighting.rows, np.full(len(sighting.rows), time)))
        known = SeenCondemned.of(runs)
        found.rows, found.times = known.rows, known.times
        return found

    async def remember(
        self,
        keys: StreamKeys,
        seen: SeenCondemned,
        rows: SightingRows,
        since: Times,
        *,
        version: int,
        sound: bool,
    ) -> None:
        """See `SweepNotes.remember`. Writes at most one sighting, of the objects that no sighting names yet.

        Writes none if the newest sighting is younger than a sixteenth of the grace. So few sightings exist
        however often a sweep runs. New objects then wait that much longer.
        """
        fresh = rows[np.isnan(since)][:ROWS_MAX]  # a later sweep notes the others, which then wait longer
        now = self.now()
        # If the run did not go through the whole stream, served sightings stay, because they may still name
        # objects that wait.
        standing = len(seen.sightings) - len(seen.void) - (len(seen.served) if sound else 0)
        due = seen.newest is None or now - seen.newest >= self.grace_seconds / SIGHTINGS_MAX
        if len(fresh) and due and standing < SIGHTINGS_MAX:
            time_ms = max(self.env.now_ms(), 0)  # the format has no time before 1970
            fresh = fresh[np.argsort(as_bytes(fresh), kind="stable")]
            uid = self.env.uuid()
            note = Sighting(stream=keys.stream, uid=uid, time_ms=time_ms, version=version, rows=fresh)
            # The put comes before the delete. If the run dies in between, one sighting too many is left, and
            # no object has to wait again.
            await self.store.put(keys.sighting(time_ms, uid), Body.of(note.encode()))
        # Void sightings go in any case. Served ones go only if no object that they name can still wait.
        gone = [*seen.void, *(seen.served if sound else [])]
        if gone:
            await self.store.delete(gone)

    async def _read(self, keys: StreamKeys, listed: Listed) -> Sighting:
        if listed.size_bytes > SIZE_BYTES_MAX:  # before it is fetched: any object may have such a name
            limit = f"at most {SIZE_BYTES_MAX}"
            raise Corrupt("sighting size", listed.key, expected=limit, found=listed.size_bytes)
        decode = partial(Sighting.decode, stream=keys.stream, where=listed.key)
        sighting = await checked(self.store, listed.key, decode)
        # `recall` reads the sightings with the oldest names first, so each name must have the time of its
        # content.
        expected = keys.parse_sighting(listed.key)
        if expected != (sighting.time_ms, sighting.uid):
            raise Corrupt("sighting name", listed.key, expected=expected, found=sighting.time_ms)
        return sighting


def joined_rows(runs: Sequence[SightingRows]) -> SightingRows:
    """Return runs of rows as one. `np.concatenate` would turn the big-endian records into native ones."""
    return np.frombuffer(b"".join(run.tobytes() for run in runs), SIGHTING_ROW.dtype)
