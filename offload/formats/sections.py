"""Named sections of a fragment: the parts behind its chunks, and the directory that says where they are.

A reader knows some names and ignores the others, so that a later program can add an index of its own. The
sections that every reader needs are in the tail, which one request fetches. Others may lie before it.

Invariants: sections are back to back, in the order of the directory, from the end of the chunks to the
directory; each has a checksum of its stored bytes; a name occurs once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from offload.formats.block_codecs import compressor, decompressed
from offload.formats.checksums import crc32c
from offload.formats.layout import layout
from offload.formats.sealing import DataKey, SealedKind, SealedRange
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec, Compression

SECTION: Final = layout(
    "Fragment directory record, one per section, in order",
    ("name", "16s", "lower-case letters, digits and `-`, then zero bytes"),
    ("version", "H", "version of the section's own format"),
    ("codec", "B", "compression of the section, as in the trailer"),
    ("encrypted", "B", "1: encrypted with the fragment's data key"),
    ("position", "Q", "byte position within this object"),
    ("size_bytes", "Q", "stored length"),
    ("plain_size_bytes", "Q", "length before compression and encryption"),
    ("checksum", "I", "CRC-32C of the stored bytes"),
)

_NAME: Final = re.compile(rb"([a-z0-9-]{1,16})\0*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One row of a directory. Fields as in `SECTION`."""

    name: str
    version: int
    codec: int
    encrypted: int
    position: int
    size_bytes: int
    plain_size_bytes: int
    checksum: int
    number: int
    """Its place in the directory, from 0 on."""

    @property
    def stop(self) -> int:
        """The position behind the section."""
        return self.position + self.size_bytes


def encode_sections(
    parts: Mapping[str, bytes],
    *,
    position: int,
    compression: Compression,
    key: DataKey | None = None,
    sealed: Collection[str] = (),
    verbatim: Collection[str] = (),
) -> list[tuple[bytes, bytes]]:
    """Return sections of version 1 that begin at `position`, each with its row of the directory.

    Each is compressed if it becomes smaller, unless it is named in `verbatim`. With a `key`, those named in
    `sealed` are encrypted.
    """
    compress, found = compressor(compression), []
    for number, (name, plain) in enumerate(parts.items()):
        small = plain if name in verbatim else compress(plain)
        body, codec = (small, compression.codec) if len(small) < len(plain) else (plain, BlockCodec.NONE)
        encrypted = int(key is not None and name in sealed)
        if key is not None and encrypted:
            body = key.seal(body, _part(number, len(plain), codec))
        row = SECTION.pack(
            name=name.encode(),
            version=1,
            codec=codec,
            encrypted=encrypted,
            position=position,
            size_bytes=len(body),
            plain_size_bytes=len(plain),
            checksum=crc32c(body),
        )
        found.append((body, row))
        position += len(body)
    return found


def decode_directory(raw: bytes, *, where: str, position: int) -> dict[str, Section]:
    """Return the sections by name, in order. `position` is that of the directory in the object.

    Raises `Corrupt` if a name is malformed or occurs twice, or if the sections are not back to back up to the
    directory.
    """
    found: dict[str, Section] = {}
    rows = [SECTION.unpack(raw, at) for at in range(0, len(raw), SECTION.size_bytes)]
    for fields in rows:
        match = _NAME.fullmatch(fields["name"])
        name = match[1].decode() if match else ""
        if not name or name in found:
            raise Corrupt(
                "section name", where, expected="a new name", found=fields["name"], position=position
            )
        found[name] = Section(**fields | {"name": name}, number=len(found))
    sections = [*found.values()]
    begins = [*(section.position for section in sections), position]
    for section, end in zip(sections, begins[1:], strict=True):
        if section.stop != end:
            what = f"end of section {section.name!r}"
            raise Corrupt(what, where, expected=end, found=section.stop, position=position)
    return found


def section_of(
    raw: bytes,
    section: Section,
    *,
    origin: int,
    plain_size_bytes_max: int,
    key: DataKey | None = None,
    where: str,
) -> bytes:
    """Return the plain bytes of a section. `raw` is a part of the object, from byte `origin` on.

    Raises `Corrupt` if it lies outside `raw`, if its checksum is wrong, if it claims more than
    `plain_size_bytes_max`, or if it does not decompress to the size that it claims. Raises
    `UnsupportedFormat` for another version, and if it is encrypted and `key` is None: this program encrypts
    no section that it reads without a key.
    """
    what, at = f"section {section.name!r}", section.position
    if at < origin or section.stop > origin + len(raw):
        raise Corrupt(f"place of {what}", where, expected=f"from {origin}", found=at, position=at)
    if section.plain_size_bytes > plain_size_bytes_max:
        limit = f"<= {plain_size_bytes_max}"
        raise Corrupt(f"size of {what}", where, expected=limit, found=section.plain_size_bytes, position=at)
    body = raw[at - origin : section.stop - origin]
    if crc32c(body) != section.checksum:
        raise Corrupt(
            f"checksum of {what}", where, expected=section.checksum, found=crc32c(body), position=at
        )
    if section.version != 1 or section.encrypted > (key is not None):
        text = f"version {section.version}, encryption {section.encrypted}"
        raise UnsupportedFormat(f"{where}: {what} has {text}; upgrade the program")
    if key is not None and section.encrypted:
        part = _part(section.number, section.plain_size_bytes, section.codec)
        body = key.open(body, part, where=where, position=at)
    return decompressed(body, section.codec, size_bytes=section.plain_size_bytes, where=where, position=at)


def _part(number: int, plain_size_bytes: int, codec: int) -> SealedRange:
    return SealedRange(kind=SealedKind.SECTION, number=number, plain_size_bytes=plain_size_bytes, codec=codec)
