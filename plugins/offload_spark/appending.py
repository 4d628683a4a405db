"""Appending rows without offsets to a stream: they are numbered first, in their present order.

A row's offset is known when all rows before it are counted. So the frame is computed and kept, the rows of
each of its partitions are counted, and then it is written as any other. Invariant: Spark may lose the kept
frame and compute it again with other rows; the checks of offsets refuse those, and they are never committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import NotOffloaded
from offload.model.tokens import token_for
from offload_spark.options import WriteOptions
from offload_spark.writing import find_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = "_place"
WITHIN_BITS: Final = 33
"""The low bits of a `monotonically_increasing_id`: a row's number within its partition."""


def append(
    frame: DataFrame,
    url: str,
    stream: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    write_id: str = "",
    first_offset: int = 0,
    compression: str = "",
    keys: str = "",
    encrypt: str = "",
) -> range:
    """Append the rows, `value` and perhaps `timestamp`, partition after partition. Return their offsets.

    A stream that the tier does not have begins at `first_offset`, unless there are no rows. With a
    `write_id`, a second call only returns the offsets of the first one, as long as its rows are among the
    newest 1,024 fragments and not trimmed. So a batch of `foreachBatch` is appended once. `compression`, such
    as `zstd:3`, `keys` and `encrypt` are the options of a write. Raises `Conflict` if another writer appended
    meanwhile; then none of the rows are in, and the call can be repeated. Raises `Misuse` for columns that a
    stream does not have.
    """
    given = {"path": url, "stream": stream, "storageOptions": json.dumps(dict(storage_options or {}))}
    given |= {"firstOffset": str(first_offset), "writeId": write_id, "compression": compression}
    given |= {"keys": keys, "encrypt": encrypt}
    options = WriteOptions.of(given)
    with options.tier.opened() as tier:
        found = tier.run(_place_of(tier.offloader, options))
    # Nothing is computed again: the rows of this write are in.
    if found:
        return found
    begins = found.start
    # Kept, so that counting and writing see the same rows in the same partitions.
    placed = _placed(frame)
    try:
        numbered, count = _numbered(placed, begins)
        # A write begins the stream if there is none, so without rows nothing is written. If another writer
        # appended since the count, the write raises `Conflict`: these offsets are taken.
        if count:
            numbered.write.format("offload").mode("append").options(**given).save()
    finally:
        placed.unpersist()
    return range(begins, begins + count)


async def _place_of(offloader: LedgerOffloader, options: WriteOptions) -> range:
    """Return the offsets of this write if it is in; else an empty range at the offset of its first row."""
    await offloader.open(create=True)
    try:
        manifest = await offloader.load_manifest(options.stream)
    except NotOffloaded:  # the write begins the stream, if it has rows
        return range(options.first_offset, options.first_offset)
    token = token_for(options.write_id)
    end = range(manifest.next_offset, manifest.next_offset)
    return await find_write(offloader, manifest, token) or end


def _placed(frame: DataFrame) -> DataFrame:
    """Return the rows with their numbers, computed once."""
    from pyspark.sql.functions import monotonically_increasing_id

    return frame.withColumn(PLACE, monotonically_increasing_id()).persist()


def _numbered(placed: DataFrame, first_offset: int) -> tuple[DataFrame, int]:
    """Return the rows with their offsets, and the number of rows."""
    import numpy as np
    from pyspark.sql.functions import col, element_at, lit, shiftright

    partition = shiftright(PLACE, WITHIN_BITS).cast("int")
    counted = placed.groupBy(partition.alias("partition")).count().collect()
    counts = {row["partition"]: row["count"] for row in counted}
    # A partition without rows has no row in the counts, and still takes a place in the array below.
    sizes = [counts.get(number, 0) for number in range(max(counts, default=-1) + 1)]
    begins = accumulate(sizes, initial=first_offset)
    # One literal for all partitions: with a literal of each, the plan would grow with them, and Spark walks
    # it again and again. `element_at` counts from 1.
    first = element_at(lit(np.fromiter(begins, np.int64)), partition + 1)
    within = col(PLACE).bitwiseAND(2**WITHIN_BITS - 1)
    return placed.withColumn("offset", first + within).drop(PLACE), sum(sizes)
