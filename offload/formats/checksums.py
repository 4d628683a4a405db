"""The two checksums of the format, through the fastest well-kept libraries we found.

CRC-32 (IEEE 802.3, as in zlib) is what osiris keeps over a chunk's data, and what our index keeps
over each whole stored chunk. CRC-32C (Castagnoli, RFC 3720) is what object stores keep over an
object, and what we keep over every other part of ours. Both release the GIL on long input.

Roots, groups, sightings and trailers end with the CRC-32C of everything before it. Every later version of
them keeps its magic, the place of its version, and this ending. So a program can tell damage from a newer
version, even if it knows nothing else of that version.
"""

from __future__ import annotations

import google_crc32c
from isal import isal_zlib

from offload.errors import Corrupt, UnsupportedFormat

__all__ = ["crc32", "crc32c"]


def crc32(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """CRC-32 of `data`, continuing from the checksum of what came before it."""
    return isal_zlib.crc32(data, before)


def crc32c(data: bytes, before: int = 0) -> int:
    """CRC-32C of `data`, continuing from the checksum of what came before it.

    Only `bytes`: the library takes no buffer that might change under it.
    """
    return int(google_crc32c.extend(before, data))


def check_sealed(what: str, raw: bytes, *, version: int, known: int, where: str, position: int = 0) -> None:
    """Check that `raw` ends with its own CRC-32C, and then that its `version` is the `known` one.

    The checksum comes first: a flipped bit of the version is damage, and an upgrade would not help.
    `position` is where in the object `raw` begins. Raises `Corrupt` with this position if the checksum does
    not match, for the damage may be anywhere in `raw`; and `UnsupportedFormat` for a sound object of another
    version.
    """
    checksum, stored = crc32c(bytes(raw[:-4])), int.from_bytes(raw[-4:], "big")
    if checksum != stored:
        raise Corrupt(f"{what} checksum", where, expected=stored, found=checksum, position=position)
    check_version(what, version, known, where)


def check_version(what: str, found: int, known: int, where: str) -> None:
    """Refuse the version of a sound object that this program does not know. Raises `UnsupportedFormat`."""
    if found != known:
        raise UnsupportedFormat(
            f"{where}: {what} format version {found}; this program reads {known}: upgrade it"
        )
