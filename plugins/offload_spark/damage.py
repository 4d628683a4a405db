"""What a task does about damaged records: it fails with their offsets, or leaves them out and reports them.

A damaged chunk is left out whole: the index of its fragment says where it ends. If the index is damaged, or
the object is gone, the rest of the fragment is left out. If the manifest itself is damaged, nothing can be
left out.

Invariant: every wanted record is either read or in a `DamagedRange`. A range may have offsets of records that
were not wanted, or that are no messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from offload.contracts.catalogue import StreamView
from offload.errors import AnchorLost, Corrupt, OffloadError, RootsLost
from offload.model.part import StreamPart
from offload.streams.windows import EntriesAhead, Keep

_log: Final = logging.getLogger(__name__)


class OnDamage(StrEnum):
    """What a read does about damaged records."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """The offsets of damaged records, in [first_offset, next_offset), and the damage."""

    of: StreamPart
    first_offset: int
    next_offset: int
    damage: Corrupt

    def __str__(self) -> str:
        """Return the stream, its part if it has several, and the offsets."""
        part = f", part {self.of.number}" if self.of.number > 1 else ""
        return f"stream {self.of.first!r}{part}: offsets [{self.first_offset}, {self.next_offset})"

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
            "stream": each.of.first,
            "part": each.of.number,
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
    of: StreamPart,
    damage: Corrupt,
    *,
    at: int,
    until: int,
    keep: Keep | None,
) -> DamagedRange:
    """Return the first range in [at, until) that cannot be read, as `damage` says of it.

    All wanted chunks before it were read. `keep` says which chunks are wanted; None if only the indexes are
    read. Raises `damage` if it is of the manifest, and so of no range.
    """
    if isinstance(damage, RootsLost | AnchorLost):
        raise damage
    entries = EntriesAhead(view, at, until)
    try:
        while (entry := await entries.next()) is not None:
            first = max(at, entry.first_offset)
            end = min(entry.next_offset, until)
            try:
                async with await view.open(entry) as handle:
                    rows = await handle.table()
            except Corrupt:
                return DamagedRange(of=of, first_offset=first, next_offset=end, damage=damage)
            if keep is None:
                continue
            ends = rows["offset"] + rows["records"]
            wanted = rows[keep(rows) & (ends > np.uint64(first)) & (rows["offset"] < np.uint64(until))]
            if len(wanted):
                begin, stop = int(wanted["offset"][0]), int(wanted["offset"][0] + wanted["records"][0])
                return DamagedRange(of=of, first_offset=max(begin, at), next_offset=stop, damage=damage)
    except OffloadError as error:
        raise damage from error
    finally:
        await entries.aclose()
    raise damage
