"""The choice of the client for immutable objects: obstore, if it is installed and can do what options ask."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from offload.errors import Misuse
from offload.extras import install_command, missing_text

__all__ = ["TRUSTS_MORE", "ObstoreChoice", "is_the_systems", "takes_obstore"]


ObstoreChoice = Literal["auto", "fsspec", "obstore"]

EXTRA: Final = "ledger-offload[fast]"
OLDEST: Final = (0, 12)
"""The first release with a timeout for reading."""

TRUSTS_MORE: Final = ", and obstore would trust those of the system as well"
SYSTEMS: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The files in which Linux distributions keep the certificate authorities of the system."""


def takes_obstore(client: ObstoreChoice, why_not: str | None, *, backend: str) -> bool:
    """Return True if obstore should be used. Raises `Misuse` if `client` demands it and it cannot be used."""
    if client == "fsspec":
        return False
    why_not = _why_not_there() or why_not
    if why_not is not None and client == "obstore":
        raise Misuse(f"{backend}: client=obstore is not available: {why_not}")
    return why_not is None


def is_the_systems(path: str) -> bool:
    """Return True if a file of certificate authorities is the system's own."""
    here = Path(path).resolve()
    return any(here == Path(known).resolve() for known in SYSTEMS if Path(known).exists())


def _why_not_there() -> str | None:
    try:
        found = version("obstore") if find_spec("obstore") else None
    except PackageNotFoundError:
        found = None
    if found is None:
        return missing_text("it", "obstore", EXTRA)
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        return f"obstore {found} is too old: {install_command(EXTRA)}"
    return None
