"""The two checksums of the format, by libraries that take any buffer and release the GIL.

osiris protects a chunk's data with CRC-32 (IEEE 802.3, as in zlib), and our index protects each whole stored
chunk with it. Object stores protect objects with CRC-32C (Castagnoli, RFC 3720), and we protect all other
parts of ours with it. docs/dependencies.md compares the libraries.

Roots, groups, sightings and trailers end with the CRC-32C of everything before it. Every later version of
them keeps the magic, the place of the version, and this ending. So a program can distinguish damage from a
newer version, even if it knows nothing else of that version.
"""

from __future__ import annotations

from fastcrc.crc32 import iscsi
from isal import isal_zlib

from offload.ground.errors import Corrupt, UnsupportedFormat

__all__ = ["crc32", "crc32c"]


def crc32(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the CRC-32 of `data`, continued from the checksum of the bytes before it."""
    return isal_zlib.crc32(data, before)


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from the checksum of the bytes before it."""
    return iscsi(data, before)


def check_sealed(what: str, raw: bytes, *, version: int, known: int, where: str, position: int = 0) -> None:
    """Check that `raw` ends with its own CRC-32C, and then that its `version` is the `known` one.

    The checksum comes first: a flipped bit of the version is damage, and an upgrade would not help.
    `position` is that of `raw` in the object. Raises `Corrupt` with this position if the checksum does
    not match, for the damage may be anywhere in `raw`; and `UnsupportedFormat` for a sound object of another
    version.
    """
    checksum, stored = crc32c(memoryview(raw)[:-4]), int.from_bytes(raw[-4:], "big")
    if checksum != stored:
        raise Corrupt(f"{what} checksum", where, expected=stored, found=checksum, position=position)
    check_version(what, version, known, where)


def check_version(what: str, found: int, known: int, where: str) -> None:
    """Raise `UnsupportedFormat` if this program does not know the version of a sound object."""
    if found != known:
        raise UnsupportedFormat(
            f"{where}: {what} has format version {found}, and this program reads {known}; upgrade the program"
        )
