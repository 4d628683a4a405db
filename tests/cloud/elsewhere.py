"""A store of a running server as another process opens it.

Each process of a race imports this module, and not the module of a test with pytest and all that it imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offload import ObjectStore, Plugins
from offload.opening.by_url import open_store


@dataclass
class Elsewhere:
    """What a process needs to open the store of a test."""

    url: str
    options: dict[str, Any]

    def open_store(self) -> ObjectStore:
        return open_store(self.url, plugins=Plugins.find(), storage_options=self.options)
