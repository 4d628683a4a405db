"""The names that people know streams by.

A stream on a tier has the name of its folder in the broker. RabbitMQ makes that name of the virtual host, the
queue and the time of creation, for example `__orders_1795918496456860468`: every character but letters,
digits, `-`, `_` and `=` becomes `_`. The default virtual host `/` is a `_` itself. So the queue is found in
the name of the folder if its virtual host is the default one. Otherwise nobody knows where the virtual host
ends, and the own name is both: `sales_orders` for the queue `orders` of the virtual host `sales`.

Own names are for people: they are shown, and taken as arguments. The tier, and whatever refers to its
objects, has the names of the folders.

Invariants: a name that no broker gives a folder is its own name. A stream is never shown by a name that
another stream of the same list has too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Final

__all__ = ["labels_of", "matches_glob", "may_match_glob", "named_so", "own_name", "with_own_names"]


DEFAULT_HOST: Final = "__"
"""How the name of a folder begins if its virtual host is `/`."""

_FOLDER: Final = re.compile(r"(?P<rest>[\w\-=]+)_(?P<number>\d{19})(?P<part>-part-[1-9]\d{0,8})?", re.ASCII)
"""The name of a broker's folder, and of a later part of such a stream. The number is the time of creation, in
nanoseconds since 1970."""

_REPLACED: Final = re.compile(r"[^A-Za-z0-9_\-=]")
_REPLACED_IN_GLOBS: Final = re.compile(r"[^A-Za-z0-9_\-=*?\[\]!]")
_NAMED: Final = re.compile(r"(?<=stream ')[\w\-=]+(?=')", re.ASCII)
"""The name of a stream in the text of an error."""


def own_name(stream: str) -> str:
    """Return the queue's own name, with the number of the part if it is a later one."""
    if (found := _FOLDER.fullmatch(stream)) is None:
        return stream
    rest = found["rest"]
    return (rest.removeprefix(DEFAULT_HOST) or rest) + (found["part"] or "")


def labels_of(streams: Iterable[str]) -> dict[str, str]:
    """Return the name by which each of these streams is shown: its own, if no other stream is called so."""
    names = list(dict.fromkeys(streams))
    owned = Counter(map(own_name, names)) + Counter(name for name in names if own_name(name) != name)
    return {name: own_name(name) if owned[own_name(name)] == 1 else name for name in names}


def named_so(streams: Iterable[str], name: str) -> list[str]:
    """Return the streams that a person may mean: the one of that name, or those whose own name it is."""
    names = list(dict.fromkeys(streams))
    if name in names:
        return [name]
    return [each for each in names if own_name(each) in (name, _REPLACED.sub("_", name))]


def matches_glob(stream: str, glob: str) -> bool:
    """Return whether a glob matches the name of the folder, or the queue's own name."""
    own = own_name(stream)
    return any(
        (
            fnmatchcase(stream, glob),
            fnmatchcase(own, glob),
            fnmatchcase(own, _REPLACED_IN_GLOBS.sub("_", glob)),
        )
    )


def may_match_glob(stream: str, glob: str) -> bool:
    """Return whether a glob would match the queue's name, if a part of the own name is the virtual host."""
    if own_name(stream) == stream or stream.startswith(DEFAULT_HOST):
        return False
    words = own_name(stream).split("_")
    ends = accumulate(reversed(words[1:]), lambda behind, word: f"{word}_{behind}")
    return any(fnmatchcase(end, _REPLACED_IN_GLOBS.sub("_", glob)) for end in ends)


def with_own_names(text: str, labels: dict[str, str] | None = None) -> str:
    """Return a text of an error with the own names of its streams, or as `labels` has them."""

    def shown(found: re.Match[str]) -> str:
        return own_name(found[0]) if labels is None else labels.get(found[0], found[0])

    return _NAMED.sub(shown, text)
