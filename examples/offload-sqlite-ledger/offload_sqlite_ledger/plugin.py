"""The plugin: it declares the backend, and imports no database."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Backend, hookimpl


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare SQLite files, by `sqlite-ledger://path/to/file.db`."""
    return [
        Backend(
            name="sqlite-ledger",
            target="offload_sqlite_ledger.offloader:open_url",
            schemes=("sqlite-ledger",),
            kind="offloader",
            takes=("emit", "fragment_size_bytes", "uploads_max"),  # one thread, so one upload at a time
        )
    ]
