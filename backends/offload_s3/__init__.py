"""S3, and servers that speak its protocol, as an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_s3.options import S3Options
    from offload_s3.store import S3Store

__all__ = ["S3Options", "S3Store"]

_HOMES = {
    "S3Options": "offload_s3.options",
    "S3Store": "offload_s3.store",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
