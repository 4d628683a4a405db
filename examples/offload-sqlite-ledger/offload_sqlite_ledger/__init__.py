"""A tier whose chunks are rows of SQLite tables. The offloader is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload_sqlite_ledger.offloader import SqliteLedgers

__all__ = ["SqliteLedgers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offload_sqlite_ledger import offloader

    return getattr(offloader, name)
