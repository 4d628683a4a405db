"""The topics of a broker: below one data folder, each has a log and a managed ledger."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from broker.protocol import TOPIC
from offload import (
    Conflict,
    Durability,
    FolderLog,
    LedgerOffloader,
    ManagedLedger,
    ManagedLedgers,
    NoSpace,
    NotOffloaded,
    OffloadError,
)

__all__ = ["Topics"]

RETRY_SECONDS: Final = 10.0

_log: Final = logging.getLogger(__name__)


class Topics:
    """Opens topics when they are used for the first time. `ledgers` closes them."""

    def __init__(
        self,
        ledgers: ManagedLedgers,
        tier: LedgerOffloader,
        folder: Path,
        *,
        durability: Durability = Durability.ALWAYS,
        topics_max: int = 1000,
    ) -> None:
        self._ledgers, self._tier, self._folder = ledgers, tier, folder
        self._durability, self._topics_max = durability, topics_max
        self._opening: dict[str, asyncio.Lock] = {}
        """A lock for each known topic: two connections may use a topic for the first time at once."""
        self._opened: dict[str, ManagedLedger] = {}

    async def open_local(self) -> None:
        """Open the topics in the folder, so that the work on them resumes.

        Raises `Conflict` if another broker has the folder.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(path.name for path in self._folder.iterdir() if TOPIC.fullmatch(path.name)):
            try:
                await self.begin(name)
            except Conflict:
                raise
            except OffloadError as error:
                _log.warning("topic %s: %s; tried again when it is used", name, error)

    async def find_on_tier(self) -> None:
        """Open the topics that only the tier has, as after the loss of a disk.

        Asks again if the tier is down.
        """
        while True:
            try:
                for name in await self._tier.streams():
                    if TOPIC.fullmatch(name):
                        await self.begin(name)
                return
            except NotOffloaded:
                return  # a new tier
            except OffloadError as error:
                _log.warning("the topics of the tier are not known yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def begin(self, name: str) -> ManagedLedger:
        """Return the ledger of a topic, which is made if there is none."""
        if name not in self._opening and len(self._opening) >= self._topics_max:
            raise NoSpace(f"this broker has {self._topics_max} topics, and takes no more")
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._opened:
                log = await FolderLog.open(self._folder / name, name=name, durability=self._durability)
                self._opened[name] = await self._ledgers.open(log)
            return self._opened[name]

    async def get(self, name: str) -> ManagedLedger:
        """Return the ledger of a topic. Raises `NotOffloaded` if there is none."""
        if name not in self._opening:
            raise NotOffloaded(f"there is no topic {name!r}: publish a message to it")
        return await self.begin(name)

    def ends(self) -> list[tuple[str, int]]:
        """Return the topics, each with the offset of its next message."""
        return [(name, ledger.next_offset) for name, ledger in sorted(self._opened.items())]
