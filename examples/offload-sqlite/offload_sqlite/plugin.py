"""The plugin: it declares the backend, and imports no database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.plugin import Backend, hookimpl

PUT_SIZE_BYTES_MAX: Final = 1_000_000_000
"""The size of the largest row, by the default of SQLite."""

CAPABILITIES: Final = Capabilities(
    atomic_create=True, strong_listing=True, multipart=True, put_size_bytes_max=PUT_SIZE_BYTES_MAX
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
