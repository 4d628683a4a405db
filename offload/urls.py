"""URLs of tiers and sources: `scheme://place`, or a plain path, which is a folder.

Schemes are matched without case. A word and a colon without two slashes is refused rather than taken for the
name of a folder: it is a URL with a slash too few far more often. `./word:x` names such a folder.
"""

from __future__ import annotations

import re
from typing import Final

from offload.errors import Misuse

__all__ = ["FILE_SCHEME", "scheme_of"]


FILE_SCHEME: Final = "file"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_WINDOWS: Final = re.compile(r"[A-Za-z]:([/\\]|$)|\\\\")


def scheme_of(url: str) -> str | None:
    """Return the scheme of a URL in lower case, or None for a plain path.

    Raises `Misuse` for a path of Windows, and for a word and a colon without two slashes.
    """
    if _WINDOWS.match(url):
        raise Misuse(f"{url!r} is a path of Windows: this program runs on POSIX systems alone")
    match = _SCHEME.match(url)
    if match is None:
        return None
    word, slashes = match.groups()
    if not slashes:
        raise Misuse(
            f"{_without_login(url)!r} is not a URL: use {word.lower()}:// and two slashes, as in "
            f"{word.lower()}://{_without_login(url[match.end() :]).lstrip('/')}; "
            f"a folder of that name is ./{word}:…"
        )
    return str(word.lower())


def with_lower_scheme(url: str) -> str:
    """Return `url` with its scheme in lower case. Raises `Misuse` as `scheme_of` does."""
    scheme = scheme_of(url)
    return url if scheme is None else scheme + url[len(scheme) :]


def _without_login(url: str) -> str:
    """A mistyped URL may hold a password, and errors are shown and logged."""
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before + after
