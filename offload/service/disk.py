"""The free space of the disk on which the broker writes its streams, and of that of a tier in a folder.

A broker that has no space left stops its publishers, and a full tier takes no copies: each is worth an alert.

Invariant: the file system is asked in a thread and not by a scrape, so that a disk which does not answer
delays neither the routes nor the followers.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from offload.ground.env import Env

__all__ = ["DiskWatch"]


LOOK_SECONDS: Final = 15.0


@dataclass(slots=True, kw_only=True)
class DiskWatch:
    """Measures the disk of a folder, again and again."""

    folder: Path
    of: Literal["source", "tier"] = "source"
    env: Env = field(default_factory=Env)
    free_size_bytes: int | None = None
    """The space that users other than root may still fill. None if the disk does not say."""

    size_bytes: int | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Measure until this is cancelled."""
        while True:
            await self.look()
            await self.env.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Measure once. Raises nothing: a folder that cannot be measured has no size."""
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self.folder)
        except OSError:
            self.free_size_bytes = self.size_bytes = None
        else:
            self.free_size_bytes, self.size_bytes = usage.free, usage.total
