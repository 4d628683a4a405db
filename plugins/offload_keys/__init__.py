"""Key services: master keys in private files, in the environment, and in clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_keys.local import LocalKeys, open_environment, open_files

__all__ = ["LocalKeys", "open_environment", "open_files"]

_HOMES = {
    "LocalKeys": "offload_keys.local",
    "open_environment": "offload_keys.local",
    "open_files": "offload_keys.local",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
