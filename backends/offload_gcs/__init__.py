"""Google Cloud Storage, and servers that speak its JSON API, as an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_gcs.options import GcsOptions
    from offload_gcs.store import GcsStore

__all__ = ["GcsOptions", "GcsStore"]

_HOMES = {
    "GcsOptions": "offload_gcs.options",
    "GcsStore": "offload_gcs.store",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
