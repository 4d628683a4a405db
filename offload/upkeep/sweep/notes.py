"""Since when an object was seen condemned: in the memory of a process, or in sightings on the tier.

Notes serve readers, never safety: whoever deletes has judged anew by then. So a wall clock that jumps, or two
hosts whose clocks differ, cost a slow reader at worst; a sighting from the future is void. So is one that a
rebuild came after, because a rebuild may name again what was condemned; its root numbers tell
(docs/commit-protocol.md, step 9).

Invariants: no object is taken to be seen earlier than it was; at most `SIGHTINGS_MAX` sightings of a stream
stand, but for those that several sweeps wrote at once; each names what no other did when it was written.
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
from offload.env import Env
from offload.errors import Corrupt, NotFound, UnsupportedFormat
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
from offload.store.checked import checked

SIGHTINGS_MAX: Final = 16
REBUILD_JUMP: Final = JUMP // 2
"""Root numbers so far apart have a rebuild between them: no stream commits so often."""

Times = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True, eq=False)
class SeenCondemned:
    """The objects of one stream that were seen condemned, and when first: seconds by the notes' clock."""

    rows: SightingRows = field(default_factory=lambda: NO_ROWS)
    times: Times = field(default_factory=lambda: np.empty(0))
    version: int = 0
    sightings: list[Listed] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    """Sightings at least a grace old: once all of the stream was gone through they are not needed."""
    void: list[str] = field(default_factory=list)
    newest: float | None = None
    """When the newest sighting that stands was written."""

    @classmethod
    def of(cls, runs: Sequence[tuple[SightingRows, Times]], *, version: int = 0) -> SeenCondemned:
        """Runs of rows as one, sorted; of a row that stands in several, the earliest time."""
        rows = joined_rows([rows for rows, _ in runs])
        times = np.concatenate([np.empty(0), *(times for _, times in runs)])
        order = np.argsort(times, kind="stable")
        _, first = np.unique(as_bytes(rows)[order], return_index=True)
        chosen = order[first]
        return cls(rows=rows[chosen], times=times[chosen], version=version)

    def since(self, rows: SightingRows) -> Times:
        """When each of `rows` was seen first; NaN where it was not."""
        names, known = as_bytes(rows), as_bytes(self.rows)
        at = np.searchsorted(known, names)
        since = np.full(len(rows), np.nan)
        inside = np.flatnonzero(at < len(known))
        same = inside[known[at[inside]] == names[inside]]
        since[same] = self.times[at[same]]
        return since


class SweepNotes(ABC):
    """Where a sweep keeps what it saw."""

    @abstractmethod
    def now(self) -> float:
        """Seconds by the clock of these notes."""

    @abstractmethod
    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """What was seen of the stream, whose newest root is `version`. Says into `tell` what was wrong."""

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
        """Keep what waits now, NaN where it was not seen before.

        `sound` says that all of the stream was gone through: what was seen and is not in `rows` is gone.
        """


@dataclass(slots=True)
class InMemory(SweepNotes):
    """For a process that lives longer than the grace: by its own monotonic clock. 41 bytes an object."""

    env: Env
    _streams: dict[str, SeenCondemned] = field(default_factory=dict)

    def now(self) -> float:
        """See `SweepNotes.now`."""
        return self.env.monotonic()

    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """See `SweepNotes.recall`."""
        seen = self._streams.get(keys.stream)
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
        if not sound:
            runs.append((seen.rows, seen.times))
        self._streams[keys.stream] = SeenCondemned.of(runs, version=version)


@dataclass(slots=True)
class InTier(SweepNotes):
    """For a command, which ends before the grace does: in sightings, by the wall clock.

    With a grace of zero nothing waits: nothing is written, and what stands is removed.
    """

    store: ObjectStore
    env: Env
    grace_seconds: float

    def now(self) -> float:
        """See `SweepNotes.now`."""
        return self.env.now_ms() / 1000

    async def recall(self, keys: StreamKeys, *, version: int, tell: list[str]) -> SeenCondemned:
        """See `SweepNotes.recall`. Reads the oldest sightings, `SIGHTINGS_MAX` of them at most."""
        listed = [row async for row in self.store.list(keys.sightings) if keys.parse_sighting(row.key)]
        now, found = self.now(), SeenCondemned(version=version, sightings=listed)
        runs = []
        for row in listed[:SIGHTINGS_MAX]:
            try:
                sighting = await self._read(keys, row)
            except NotFound:
                continue  # another sweep was done with it
            except (Corrupt, UnsupportedFormat) as exc:
                tell.append(f"a sighting is left out of account: {exc}")
                found.void.append(row.key)
                continue
            time = sighting.time_ms / 1000
            if time > now + self.grace_seconds or version - sighting.version >= REBUILD_JUMP:
                tell.append(f"{row.key} is void: it is from the future, or the stream was rebuilt since")
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
        """See `SweepNotes.remember`. Writes one sighting, of what none names yet, or none.

        None where the newest is younger than a sixteenth of the grace, so that however often a sweep runs,
        few sightings stand; what is new then waits that much longer.
        """
        fresh = rows[np.isnan(since)][:ROWS_MAX]
        now = self.now()
        standing = len(seen.sightings) - len(seen.void) - (len(seen.served) if sound else 0)
        due = seen.newest is None or now - seen.newest >= self.grace_seconds / SIGHTINGS_MAX
        if len(fresh) and due and standing < SIGHTINGS_MAX:
            time_ms = max(self.env.now_ms(), 0)
            fresh = fresh[np.argsort(as_bytes(fresh), kind="stable")]
            uid = self.env.uuid()
            note = Sighting(stream=keys.stream, uid=uid, time_ms=time_ms, version=version, rows=fresh)
            await self.store.put(keys.sighting(time_ms, uid), Body.of(note.encode()))
        gone = [*seen.void, *(seen.served if sound else [])]
        if gone:
            await self.store.delete(gone)

    async def _read(self, keys: StreamKeys, listed: Listed) -> Sighting:
        if listed.size_bytes > SIZE_BYTES_MAX:
            limit = f"at most {SIZE_BYTES_MAX}"
            raise Corrupt("sighting size", listed.key, expected=limit, found=listed.size_bytes)
        decode = partial(Sighting.decode, stream=keys.stream, where=listed.key)
        sighting = await checked(self.store, listed.key, decode)
        expected = keys.parse_sighting(listed.key)
        if expected != (sighting.time_ms, sighting.uid):
            raise Corrupt("sighting name", listed.key, expected=expected, found=sighting.time_ms)
        return sighting


def joined_rows(runs: Sequence[SightingRows]) -> SightingRows:
    """Runs of rows as one. Not `np.concatenate`: it would turn big-endian records into native ones."""
    return np.frombuffer(b"".join(run.tobytes() for run in runs), SIGHTING_ROW.dtype)
