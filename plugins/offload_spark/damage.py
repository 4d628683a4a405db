"""Damaged records in a task of Spark: it fails with their offsets, or leaves them out and reports them.

A damaged chunk is left out whole: the index of its fragment says where it ends. If the index is damaged, or
the object is gone, the rest of the fragment is left out. If the manifest itself is damaged, nothing can be
left out.

Invariant: every wanted record is either read or in a `DamagedRange`. A range may have offsets of records that
were not wanted, or that are no messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offload.contracts.catalogue import StreamView
from offload.ground.errors import AnchorLost, Corrupt, OffloadError, RootsLost
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, entries_of_rows

WantedRows: TypeAlias = Callable[[ChunkTable], npt.NDArray[np.bool_]]
"""True for each row of a table that is wanted."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """The offsets of damaged records, in [first_offset, next_offset), and the damage."""

    stream: str
    part: int
    first_offset: int
    next_offset: int
    damage: Corrupt

    def __str__(self) -> str:
        """Return the stream, its part if it has several, and the offsets."""
        part = f", part {self.part}" if self.part > 1 else ""
        return f"stream {self.stream!r}{part}: offsets [{self.first_offset}, {self.next_offset})"

    def error(self) -> Corrupt:
        """Return the damage as the error of a read that fails: with the offsets, and what to do."""
        text = f"{self} are damaged: {self.damage}; to read the other records, set onDamage=skip"
        self.damage.args = (text,)
        return self.damage

    def log(self) -> None:
        """Log a warning that the records were left out."""
        _log.warning("%s are damaged and left out: %s", self, self.damage)


TABLE: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("part", pa.int32()),
        ("first_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("object", pa.string()),
        ("problem", pa.string()),
    ]
)
"""The columns of the table of damaged ranges."""


def table_of(ranges: Iterable[DamagedRange]) -> pa.RecordBatch:
    """Return the ranges as rows of `TABLE`."""
    rows = [
        {
            "stream": each.stream,
            "part": each.part,
            "first_offset": each.first_offset,
            "next_offset": each.next_offset,
            "object": each.damage.where,
            "problem": str(each.damage),
        }
        for each in ranges
    ]
    return pa.RecordBatch.from_pylist(rows, schema=TABLE)


async def damaged_range(
    view: StreamView,
    damage: Corrupt,
    *,
    stream: str,
    part: int,
    at: int,
    until: int,
    keep: WantedRows | None,
) -> DamagedRange:
    """Return the first range in [at, until) that cannot be read, as `damage` says of it.

    All wanted chunks before it were read. `keep` says which chunks are wanted; None if only the indexes are
    read. Raises `damage` if it is of the manifest, and so of no range.
    """
    if isinstance(damage, RootsLost | AnchorLost):
        raise damage
    try:
        async with aclosing(view.walk(at)) as runs:
            async for run in runs:
                for entry in entries_of_rows(run):
                    if (found := await _damaged_in(view, entry, at=at, until=until, keep=keep)) is not None:
                        first, stop = found
                        return DamagedRange(
                            stream=stream, part=part, first_offset=first, next_offset=stop, damage=damage
                        )
    except OffloadError as error:
        raise damage from error
    raise damage


async def _damaged_in(
    view: StreamView, entry: Entry, *, at: int, until: int, keep: WantedRows | None
) -> tuple[int, int] | None:
    """Return the first range of a fragment in [at, until) that cannot be read, if there is one."""
    first, end = max(at, entry.first_offset), min(entry.next_offset, until)
    if first >= end:
        return None
    try:
        async with await view.open(entry) as handle:
            rows = await handle.table()
    except Corrupt:
        return first, end
    if keep is None:
        return None
    ends = rows["offset"] + rows["records"]
    wanted = rows[keep(rows) & (ends > np.uint64(first)) & (rows["offset"] < np.uint64(end))]
    if not len(wanted):
        return None
    return max(int(wanted["offset"][0]), at), int(wanted["offset"][0] + wanted["records"][0])
