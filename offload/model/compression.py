"""The compression of fragments: a codec and its level, as `zstd:3` names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from offload.ground.errors import Misuse

__all__ = ["BlockCodec", "Compression"]


class BlockCodec(IntEnum):
    """The codec of a block, a section or a fragment. The numbers are those of the format."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


_LEVELS: Final = {BlockCodec.NONE: range(1), BlockCodec.ZSTD: range(1, 20), BlockCodec.LZ4: range(1)}
"""The levels of each codec. `ZSTD` ends before the levels that need far more memory to decompress."""

_FORM: Final = re.compile(r"(none|zstd|lz4)(?::([0-9]{1,2}))?")
ZSTD_LEVEL: Final = 1
"""The level of `zstd` alone. Level 3 stored no less of broker messages (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec and its level. Raises `Misuse` for a level that the codec does not have."""

    codec: BlockCodec = BlockCodec.NONE
    level: int = 0

    def __post_init__(self) -> None:
        levels = _LEVELS[self.codec]
        if self.level not in levels:
            name = self.codec.name.lower()
            if len(levels) == 1:
                raise Misuse(f"{name} has no levels: use {name} alone, without :{self.level}")
            raise Misuse(f"{name} has the levels {levels.start} to {levels.stop - 1}, not {self.level}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the compression that a text like `zstd`, `zstd:9`, `lz4` or `none` names.

        Raises `Misuse` for any other text.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise Misuse(f"{text!r} is no compression: use none, lz4, zstd or zstd:1 to zstd:19")
        codec = BlockCodec[match[1].upper()]
        default = ZSTD_LEVEL if codec is BlockCodec.ZSTD else 0
        return cls(codec, default if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        """Return the text that `parse` understands."""
        name = self.codec.name.lower()
        return f"{name}:{self.level}" if self.codec is BlockCodec.ZSTD else name


def check_compression(given: object) -> None:
    """Raise `Misuse` unless it is a `Compression` or None. A text would fail much later, in an upload."""
    if given is not None and not isinstance(given, Compression):
        raise Misuse(f"a compression is given as Compression.parse({given!r}), not as {given!r}")
