"""A folder of a POSIX file system as an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_posix.store import PosixStore

__all__ = ["PosixStore"]

_HOMES = {
    "PosixStore": "offload_posix.store",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
