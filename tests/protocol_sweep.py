"""A sweep for the tests of the protocol, by commit-protocol 2.8 and no shorter than that.

The sweep of the product comes with a later release; this one lets its counterexamples be replayed
today. Its phases are apart, so that a test stalls it between any two of them. It keeps no grace
period: grace serves readers, never safety.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from protocol_world import KEYS, Process

from offload.formats.manifest import Manifest


class Sweep:
    """One round of one process: list, then load the newest root, then delete what that condemned."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.listed: list[str] = []
        self.root: Manifest | None = None
        self.condemned: list[str] = []

    def phases(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """The phases, in the order that 2.8 gives."""
        return self.list_data, self.load_root, self.decide, self.delete

    async def run(self) -> None:
        """All phases."""
        for phase in self.phases():
            await phase()

    async def list_data(self) -> None:
        """What is there: nothing that appears later is touched in this round."""
        self.listed = [row.key async for row in self.process.store.list(KEYS.data)]

    async def load_root(self) -> None:
        """The newest root, confirmed."""
        self.root = await self.process.log.load_newest()

    async def decide(self) -> None:
        """What no commit can ever name. Asks nobody, so it does not stall."""
        if self.root is None:
            return  # never created, or its roots are lost: then nobody may sweep
        for key in self.listed:
            parsed = KEYS.parse_fragment(key)
            if parsed is not None and self.condemns(self.root, key, *parsed):
                self.condemned.append(key)

    def condemns(self, root: Manifest, key: str, first_offset: int, attempt: UUID) -> bool:
        """Not named, and of no running attempt. A tombstone names nothing."""
        return not self.names(root, first_offset, attempt) and not root.runs(attempt)

    def names(self, root: Manifest, first_offset: int, attempt: UUID) -> bool:
        """Whether the root names this fragment."""
        return any(
            entry["first_offset"] == first_offset and bytes(entry["attempt"]) == attempt.bytes
            for entry in root.entries
        )

    async def delete(self) -> None:
        """Delete it, and every root below the newest; zombies go the same way."""
        if self.condemned:
            await self.process.store.delete(self.condemned)
        if self.root is not None:
            roots = [row.key async for row in self.process.store.list(KEYS.roots)]
            older = [key for key in roots if self.goes(key, self.root.version)]
            if older:
                await self.process.store.delete(older)

    def goes(self, key: str, newest: int) -> bool:
        """Whether a root goes, where `newest` was the newest."""
        version = KEYS.parse_root(key)
        return version is not None and version < newest
