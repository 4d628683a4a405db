"""URLs of tiers and sources: `scheme://place`, or a plain path, which names a folder.

The case of a scheme does not matter. A word with a colon and without two slashes is refused, and so is a word
with two slashes and without a colon. Each is far more often a mistyped URL than the name of a folder. Write
`./word:x` for such a folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from offload.ground.errors import Misuse

__all__ = ["FILE_SCHEME", "folder_named", "names_secret", "refuse_login", "scheme_of"]


FILE_SCHEME: Final = "file"

SECRETS: Final = {"key", "secret", "token", "password", "string", "proxy"}
"""Words in the names of options whose values may be secret, and are not printed."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_NO_COLON: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)//(?=[^/])")
_LOGIN: Final = re.compile(r"(^[A-Za-z0-9+.-]*:|//)[^/]*@")
"""A login behind the scheme, or behind two slashes: `vault:https://user@host`."""

_PORT: Final = re.compile(r"[0-9]+(/|$)")

_OF_PATHS: Final = frozenset({"file", "rabbitmq", "rabbitmq-queues", "rocketmq"})
"""The schemes with a path behind two slashes. It is relative without a third one."""

_WINDOWS: Final = re.compile(r"[A-Za-z]:([/\\]|$)|\\\\")


def scheme_of(url: str) -> str | None:
    """Return the scheme of a URL in lower case, or None for a plain path.

    Raises `Misuse` for a Windows path, for a word followed by a colon without two slashes, and for a word
    followed by two slashes without a colon.
    """
    if not isinstance(url, str):
        raise Misuse(f"a tier or source is named by a URL or a path, not by a {type(url).__name__}")
    if _WINDOWS.match(url):
        raise Misuse(f"{url!r} is a Windows path: this program runs only on POSIX systems")
    if (mistyped := _NO_COLON.match(url)) is not None:
        word, rest = mistyped[1], _without_login(url[mistyped.end() :])
        raise Misuse(
            f"{_without_login(url)!r} is not a URL: the colon is missing in {word.lower()}://{rest}; "
            f"a folder of that name is ./{word}/{rest}"
        )
    match = _SCHEME.match(url)
    if match is None:
        return None
    word, slashes = match.groups()
    if not slashes:
        rest = _without_login(url[match.end() :])
        scheme, advice = word.lower(), "and two slashes"
        if scheme not in _OF_PATHS:
            rest = rest.lstrip("/")
        elif rest.startswith("/"):
            advice = "and the path, which makes three slashes"
        use = f"use {scheme}:// {advice}, as in {scheme}://{rest}"
        if _PORT.match(rest):
            use = f"use SCHEME://{word}:{rest}, with a scheme that `offload plugins` shows"
        raise Misuse(f"{_without_login(url)!r} is not a URL: {use}; a folder of that name is ./{word}:…")
    return str(word.lower())


def folder_named(url: str) -> Path | None:
    """Return the folder that `url` names, as written; None if it names no folder. Raises as `scheme_of`."""
    scheme = scheme_of(url)
    if scheme is None:
        return Path(url)
    return Path(unquote(url[len(f"{FILE_SCHEME}://") :])) if scheme == FILE_SCHEME else None


def with_lower_scheme(url: str) -> str:
    """Return `url` with its scheme in lower case. Raises `Misuse` in the same cases as `scheme_of`."""
    scheme = scheme_of(url)
    return url if scheme is None else scheme + url[len(scheme) :]


def refuse_login(url: str, *, of: str = "a key service", where: str = "by environment") -> None:
    """Raise `Misuse` if this URL of something has a user or a password: URLs are shown and logged."""
    if _LOGIN.search(url):
        raise Misuse(f"{_without_login(url)}: the URL of {of} has no login; give credentials {where}")


def names_secret(option: str) -> bool:
    """Return whether the value of an option of this name may be secret."""
    return not SECRETS.isdisjoint(option.rpartition(".")[2].split("_"))


def _without_login(url: str) -> str:
    """Return `url` without user and password: it is for an error, which may be shown and logged."""
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before + after
