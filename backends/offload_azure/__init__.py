"""Azure Blob Storage as an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_azure.options import AzureOptions
    from offload_azure.store import AzureStore

__all__ = ["AzureOptions", "AzureStore"]

_HOMES = {
    "AzureOptions": "offload_azure.options",
    "AzureStore": "offload_azure.store",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
