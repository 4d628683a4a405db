"""The check of a source's chunks before any of them is stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import check_chunks
from offload.ground.errors import Corrupt
from offload.model.chunk_table import ChunkTable

__all__ = ["check_source"]


def check_source(raw: bytes | memoryview, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
    """Check chunks that a source returned, and return the CRC-32 of each whole stored chunk.

    Raises `Corrupt` at the first chunk whose bytes are missing, or whose header or CRC is wrong.
    """
    start, size = int(rows["position"][0]), int(rows["size_bytes"].sum())
    if len(raw) < size:
        # Bytes are missing at the end, as in a file that was cut. The whole chunks before them are checked
        # first, because damage among them must be reported before the missing bytes.
        whole = int(
            np.searchsorted(rows["position"] + rows["size_bytes"], np.uint64(start + len(raw)), side="right")
        )
        if whole:
            check_chunks(
                raw[: int(rows["size_bytes"][:whole].sum())], rows[:whole], window_position=start, where=where
            )
        missing = rows[whole]
        found = start + len(raw) - int(missing["position"])
        position, expected = int(missing["position"]), int(missing["size_bytes"])
        raise Corrupt("chunk size", where, position=position, expected=expected, found=found)
    return check_chunks(raw, rows, window_position=start, where=where)
