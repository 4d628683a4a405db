"""Rows without offsets at the end of a stream: they are numbered first, in the order that they have.

Where a row will stand is known when all rows before it are counted; so the frame is computed and kept, the
rows of each of its partitions are counted, and then it is written like any other. Invariant: a frame that is
computed anew in between, and differently, is refused by the checks of offsets, and never named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from offload.blocking import Blocking
from offload.contracts.offloader import LedgerOffloader
from offload.errors import NotOffloaded
from offload.model.tokens import token_for
from offload_spark.options import WriteOptions
from offload_spark.writing import find_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = "_place"
WITHIN_BITS: Final = 33
"""Of a number that `monotonically_increasing_id` gives: a row's place within its partition."""


def append(
    frame: DataFrame,
    url: str,
    stream: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    write_id: str = "",
    first_offset: int = 0,
) -> range:
    """Append the rows, `value` and perhaps `timestamp`, partition after partition; return their offsets.

    A stream that the tier does not have is begun at `first_offset`, unless there are no rows. With a
    `write_id`, a second call does nothing but return the same, for as long as what the first one wrote is
    among the newest 1,024 fragments and not trimmed: so a batch of `foreachBatch` is appended once. Raises
    `Conflict` where another appended meanwhile, and nothing of it is in then: call again. `Misuse` for
    columns that have no place in a stream.
    """
    given = {"path": url, "stream": stream, "storageOptions": json.dumps(dict(storage_options or {}))}
    given |= {"firstOffset": str(first_offset), "writeId": write_id}
    options = WriteOptions.of(given)
    with Blocking(options.url, storage_options=dict(options.storage_options)) as tier:
        found = tier.run(_place_of(tier.offloader, options))
    if found:
        return found
    begins = found.start
    placed = _placed(frame)
    try:
        numbered, count = _numbered(placed, begins)
        if count:
            numbered.write.format("offload").mode("append").options(**given).save()
    finally:
        placed.unpersist()
    return range(begins, begins + count)


async def _place_of(offloader: LedgerOffloader, options: WriteOptions) -> range:
    """The offsets of this very write if it is in; else an empty range, where its rows go."""
    await offloader.open(create=True)
    try:
        manifest = await offloader.load_manifest(options.stream)
    except NotOffloaded:  # the write begins the stream, if it has rows
        return range(options.first_offset, options.first_offset)
    token = token_for(options.write_id)
    end = range(manifest.next_offset, manifest.next_offset)
    return await find_write(offloader, manifest, token) or end


def _placed(frame: DataFrame) -> DataFrame:
    """The rows with their places, computed once."""
    from pyspark.sql.functions import monotonically_increasing_id

    return frame.withColumn(PLACE, monotonically_increasing_id()).persist()


def _numbered(placed: DataFrame, first_offset: int) -> tuple[DataFrame, int]:
    """The rows with their offsets, and how many they are."""
    from pyspark.sql.functions import array, col, element_at, lit, shiftright

    partition = shiftright(PLACE, WITHIN_BITS).cast("int")
    counted = placed.groupBy(partition.alias("partition")).count().collect()
    counts = {row["partition"]: row["count"] for row in counted}
    sizes = [counts.get(number, 0) for number in range(max(counts, default=-1) + 1)]
    begins = accumulate(sizes, initial=first_offset)
    first = element_at(array(*(lit(each).cast("bigint") for each in begins)), partition + 1)
    within = col(PLACE).bitwiseAND(2**WITHIN_BITS - 1)
    return placed.withColumn("offset", first + within).drop(PLACE), sum(sizes)
