"""Which client moves the immutable objects: obstore where it is there and can do what the options ask."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final, Literal

from offload.errors import Misuse

Client = Literal["auto", "fsspec", "obstore"]
OLDEST: Final = (0, 12)
"""The first release that takes a timeout for reading."""


def takes_obstore(client: Client, why_not: str | None, *, backend: str) -> bool:
    """Whether obstore is used. Raises `Misuse` where it is asked for by name and cannot be."""
    if client == "fsspec":
        return False
    why_not = _why_not_there() or why_not
    if why_not is not None and client == "obstore":
        raise Misuse(f"{backend}: client=obstore cannot be: {why_not}")
    return why_not is None


def _why_not_there() -> str | None:
    remedy = 'pip install --upgrade "ledger-offload[fast]"'
    try:
        found = version("obstore") if find_spec("obstore") else None
    except PackageNotFoundError:
        found = None
    if found is None:
        return f"obstore is not installed: {remedy}"
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        return f"obstore {found} is too old: {remedy}"
    return None
