"""The parts of a URL that both services share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from offload import Misuse


class Place(NamedTuple):
    """`SCHEME://HOSTS/PATH/NAME`. Several hosts are separated by commas."""

    scheme: str
    hosts: str
    path: str
    name: str


def place_of(url: str, form: str) -> Place:
    """Return the parts of `url`. `form` is its correct form. Raises `Misuse` for another one."""
    match = re.fullmatch(r"(\w+)://([^/@?#]+)(?:/([^/?#]+))?/([A-Za-z0-9_.-]+)", url)
    # The URL is stored in the anchor of a tier, so it must not have credentials.
    if match is None or (match[3] is None) is ("DATABASE" in form):
        raise Misuse(f"a place of records is {form}, without user and password: {url.rpartition('@')[2]!r}")
    return Place(match[1], match[2], match[3] or "", match[4])


def timeout_of(options: Mapping[str, str]) -> float:
    """Return the option `timeout`: how long one request may take, in seconds. Default: 10."""
    try:
        seconds = float(options.get("timeout", "10"))
    except ValueError as exc:
        raise Misuse(f"option timeout is a number of seconds, not {options['timeout']!r}") from exc
    if not 0 < seconds <= 600:
        raise Misuse(f"option timeout is above 0 and at most 600 seconds, not {seconds}")
    return seconds
