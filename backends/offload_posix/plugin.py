"""The declarations of the POSIX backend. Imports nothing of the store itself."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.capabilities import Capabilities
from offload.contracts.plugin import Backend, hookimpl


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare folders as tiers, by `file://` URLs and plain paths."""
    capabilities = Capabilities(atomic_create=True, strong_listing=True, multipart=True, unsized_put=True)
    return [
        Backend(
            name="posix", target="offload_posix.url:open_url", schemes=("file",), capabilities=capabilities
        )
    ]
