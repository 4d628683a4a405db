"""A unit of a consume queue: where one message of the queue lies in the commit log.

Queue offset `q` is at byte `20 * q` of the queue. The queue is cut into files of one size, named by the
position of their first byte in 20 digits. Units that are not written yet are zeros. A queue that begins
within a file has blank units before its first one: `size_bytes` is 2^31 - 1, and nothing else counts.

The source is RocketMQ 5.3.3: `ConsumeQueue`, `MessageExtBrokerInner.tagsString2tagsCode`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.layout import layout

__all__ = ["BLANK_UNIT_SIZE_BYTES", "UNIT", "Units", "tag_code", "units_of", "written"]

UNIT: Final = layout(
    "Consume queue unit",
    ("position", "q", "where the record begins in the commit log"),
    ("size_bytes", "i", "the size of the record"),
    ("tag_code", "q", "`tag_code` of its tag; of a delayed message, the time of its delivery"),
)
assert UNIT.size_bytes == 20

BLANK_UNIT_SIZE_BYTES: Final = 2**31 - 1
"""The size in a unit that fills a file before the first one of its queue."""

Units: TypeAlias = npt.NDArray[np.void]
"""Units with the fields of `UNIT`."""


def units_of(raw: bytes | memoryview) -> Units:
    """Return the whole units in these bytes, without a copy."""
    return np.frombuffer(raw, UNIT.dtype, len(raw) // UNIT.size_bytes)


def written(units: Units) -> int:
    """Return how many units were written: those before the first whose size is not above 0.

    The same count as RocketMQ takes when it starts. A negative position ends the queue, too.
    """
    ends = (units["size_bytes"] <= 0) | (units["position"] < 0)
    return int(ends.argmax()) if ends.any() else len(units)


def tag_code(tag: str) -> int:
    """Return the code of a tag: `String.hashCode` of Java, 0 for an empty tag.

    Tags with one code are told apart by their text. If `enableConsumeQueueExt` is set, a unit may have a
    negative place in another file instead.
    """
    code = 0
    encoded = tag.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
