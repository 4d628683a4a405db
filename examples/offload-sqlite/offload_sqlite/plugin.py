"""The plugin: it declares the backend, and imports no database."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.capabilities import Capabilities
from offload.contracts.plugin import Backend, hookimpl

CAPABILITIES = Capabilities(
    atomic_create=True, strong_listing=True, multipart=True, put_size_bytes_max=1_000_000_000
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare SQLite files, by `sqlite://path/to/file.db`."""
    return [
        Backend(
            name="sqlite",
            target="offload_sqlite.store:open_url",
            schemes=("sqlite",),
            capabilities=CAPABILITIES,
        )
    ]
