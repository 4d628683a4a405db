"""A tier in one SQLite file. The store is imported when it is first used: finding plugins stays cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload_sqlite.store import SqliteStore

__all__ = ["SqliteStore"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offload_sqlite import store

    return getattr(store, name)
