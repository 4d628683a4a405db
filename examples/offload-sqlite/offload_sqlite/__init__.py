"""A tier in one SQLite file."""

from offload_sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
