"""The metadata of an object: a few names with values, beside its bytes.

The rules are those that S3, GCS and Azure have in common, so that every store which keeps metadata takes the
same. `check_metadata` checks them before anything is sent. Objects of other programs keep fewer rules, so
`read_metadata` takes whatever a reply has, within a bound.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.ground.errors import Corrupt, Misuse

__all__ = [
    "METADATA_PAIRS_MAX",
    "METADATA_PAIR_SIZE_BYTES",
    "NO_METADATA",
    "check_metadata",
    "metadata_size",
    "read_metadata",
]

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
"""The metadata of most objects."""

METADATA_PAIRS_MAX: Final = 32
"""The most pairs of one object. HTTP libraries take replies of about 100 headers, with all others."""

METADATA_PAIR_SIZE_BYTES: Final = 16
"""The bytes that a pair counts besides its name and value: a header needs a prefix such as `x-amz-meta-`."""

METADATA_READ_SIZE_BYTES_MAX: Final = 64 * 2**10
"""The most that is read. No store that we know keeps more than 8 KiB."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_VALUE: Final = re.compile(r"[!-~]+(?: [!-~]+)*")
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Only ASCII: `str.lower` makes a `k` of the Kelvin sign too, which would hide a foreign name behind ours."""


def check_metadata(metadata: Mapping[str, str], capabilities: Capabilities) -> dict[str, str]:
    """Return `metadata` with names in lower case. Raises `Misuse` if the store cannot keep it as it is.

    - A name has ASCII letters and digits, and begins with a letter. Azure refuses `-`, and Ceph's gateway
      turns `_` into `-`.
    - Names that differ in case alone are one name, and may not be given twice.
    - A value has printable ASCII characters, with single spaces between them. Signatures of requests differ
      in what they do with other spaces, and a header without a value may be dropped on the way.
    - There are at most `METADATA_PAIRS_MAX` pairs.
    - All pairs together have at most `capabilities.metadata_size_bytes_max`, as `metadata_size` counts.
    """
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise Misuse(
                f"{name[:40]!r} is not a name of metadata: it needs ASCII letters and digits, a letter first"
            )
        if not _VALUE.fullmatch(value):
            raise Misuse(
                f"the metadata {name[:40]!r} has a value that stores cannot keep: it needs printable ASCII, "
                "with single spaces between"
            )
    named = {_lower(name): value for name, value in metadata.items()}
    if len(named) < len(metadata):
        raise Misuse("two names of the metadata differ in case alone, and are one name")
    if len(named) > METADATA_PAIRS_MAX:
        raise Misuse(
            f"an object has at most {METADATA_PAIRS_MAX} pairs of metadata, and this has {len(named)}"
        )
    size_bytes, most = metadata_size(named), capabilities.metadata_size_bytes_max
    if size_bytes > most:
        limit = f"at most {most} bytes of metadata" if most else "no metadata"
        raise Misuse(f"the store keeps {limit}, and an object has {size_bytes}")
    return named


def metadata_size(metadata: Mapping[str, str]) -> int:
    """Return the size in bytes: names, values, and `METADATA_PAIR_SIZE_BYTES` for each pair."""
    return sum(
        len(name.encode()) + len(value.encode()) + METADATA_PAIR_SIZE_BYTES
        for name, value in metadata.items()
    )


def read_metadata(found: Iterable[tuple[str, str]], *, where: str) -> dict[str, str]:
    """Return the metadata of a reply, with ASCII letters of names in lower case.

    If names differ in case alone, their values are joined by commas, in the order of the reply, as HTTP does
    with repeated headers. Bytes that are no Unicode are replaced by U+FFFD. Raises `Corrupt`, with `where`,
    if there is more than any store keeps.
    """
    read: dict[str, str] = {}
    size_bytes = 0
    for name, value in found:
        # Counted before anything is kept, and in characters: a reply may hold what cannot be encoded.
        size_bytes += len(name) + len(value) + METADATA_PAIR_SIZE_BYTES
        if size_bytes > METADATA_READ_SIZE_BYTES_MAX:
            limit = f"at most {METADATA_READ_SIZE_BYTES_MAX}"
            raise Corrupt("size of the metadata", where, expected=limit, found=size_bytes)
        known = _lower(_LONE_SURROGATE.sub("\ufffd", name))
        text = _LONE_SURROGATE.sub("\ufffd", value)
        read[known] = f"{read[known]},{text}" if known in read else text
    return read


def _lower(name: str) -> str:
    return name.translate(_LOWER)
