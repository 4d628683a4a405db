"""Labels of master keys. A label comes from the bucket, so it is never a path, a URL or an address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from offload.ground.errors import Misuse

__all__ = ["MasterKey"]

_OWN: Final = "own:"
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_OWN_SIZE_MAX: Final = 64 - len(f"-{UUID(int=0)}")
_LIKE_A_KEY: Final = re.compile(r"[A-Za-z0-9+/_-]{43,}={0,2}\s*")


def shown(text: str) -> str:
    """Return `text` for an error about it. A text like a master key is not repeated: errors are logged."""
    return (
        f"a text of {len(text)} characters, which may be a key,"
        if _LIKE_A_KEY.fullmatch(text)
        else repr(text)
    )


def check_label(label: str) -> str:
    """Return `label`. Raises `Misuse` if no master key can have it, such as a path or a URL."""
    if not _LABEL.fullmatch(label):
        raise Misuse(f"{shown(label)} is no label of a key: 1 to 64 of a-z, 0-9 and '-', e.g. tier-2026")
    return label


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The master key for a stream that has no key yet."""

    label: str
    is_own: bool = False
    """If true, each stream gets a master key of its own, and `label` is the beginning of that key's label."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the master key of `LABEL`, or of `own:LABEL`. Raises `Misuse` if no label is like that."""
        label, is_own = text.removeprefix(_OWN), text.startswith(_OWN)
        check_label(label)
        if is_own and len(label) > _OWN_SIZE_MAX:  # it is complete only with the uid of a key
            raise Misuse(
                f"{label!r} is no label of a key after own: it has more than {_OWN_SIZE_MAX} characters"
            )
        return cls(label, is_own)

    def label_for(self, uid: UUID) -> str:
        """Return the label of the master key that wraps this key of a stream."""
        return f"{self.label}-{uid}" if self.is_own else self.label
