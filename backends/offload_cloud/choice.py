"""Which client moves the immutable objects: obstore where it is there and can do what the options ask."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from offload.errors import Misuse

Client = Literal["auto", "fsspec", "obstore"]


def takes_obstore(client: Client, why_not: str | None, *, backend: str) -> bool:
    """Whether obstore is used. Raises `Misuse` where it is asked for by name and cannot be."""
    if client == "fsspec":
        return False
    if find_spec("obstore") is None:
        why_not = 'obstore is not installed: pip install "ledger-offload[fast]"'
    if why_not is not None and client == "obstore":
        raise Misuse(f"{backend}: client=obstore cannot be: {why_not}")
    return why_not is None
