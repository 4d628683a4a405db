"""A sweep for the tests of the protocol, exactly as commit-protocol 2.8 defines it.

It deletes as much as the rules allow, and more than the product's. It keeps no grace period, which serves
readers and not safety, and no old roots. Of a partly trimmed group it keeps only the live objects. Its phases
are separate, so that a test can stall it between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from protocol_world import KEYS, Process

from offload.commit.groups import entry_key
from offload.model.entry import Entries
from offload.model.manifest import Manifest


class Sweep:
    """One round of one process: list, then load the newest root, then delete the condemned objects."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.listed: list[str] = []
        self.root: Manifest | None = None
        self.named: set[str] = set()
        self.condemned: list[str] = []

    def phases(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the phases, in the order of 2.8."""
        return self.list_objects, self.load_root, self.decide, self.delete

    async def run(self) -> None:
        """Run all phases."""
        for phase in self.phases():
            await phase()

    async def list_objects(self) -> None:
        """List the existing fragments and groups. This round does not touch any later object."""
        for prefix in (KEYS.data, KEYS.groups):
            self.listed += [row.key async for row in self.process.store.list(prefix)]

    async def load_root(self) -> None:
        """Load the newest root, and confirm it."""
        self.root = await self.process.log.load_newest()

    async def decide(self) -> None:
        """Find the objects that no commit can ever name. It loads groups, so it may stall too."""
        if self.root is None:
            return  # the stream was never created, or its roots are lost; then nobody may sweep
        await self._follow(self.root, self.root.entries)
        self.condemned = [key for key in self.listed if self._goes(self.root, key)]

    def _goes(self, root: Manifest, key: str) -> bool:
        if fragment := KEYS.parse_fragment(key):
            return self.condemns(root, key, fragment[1])
        group = KEYS.parse_group(key)
        return group is not None and self.condemns_group(root, key, group[1])

    def condemns(self, root: Manifest, key: str, attempt: UUID) -> bool:
        """Return True if the object is not named and not of a running attempt. A tombstone names nothing."""
        return key not in self.named and not root.runs(attempt)

    def condemns_group(self, root: Manifest, key: str, version: int) -> bool:
        """Return True if the group is not named, and was made for a root whose number is decided."""
        return key not in self.named and version <= root.version

    async def delete(self) -> None:
        """Delete the condemned objects and every root below the newest, zombies included."""
        if self.condemned:
            await self.process.store.delete(self.condemned)
        if self.root is not None:
            roots = [row.key async for row in self.process.store.list(KEYS.roots)]
            older = [key for key in roots if self.goes(key, self.root.version)]
            if older:
                await self.process.store.delete(older)

    def goes(self, key: str, newest: int) -> bool:
        """Return True if a root is deleted when `newest` is the newest."""
        version = KEYS.parse_root(key)
        return version is not None and version < newest

    async def _follow(self, root: Manifest, entries: Entries) -> None:
        """Record every object below these entries that is at least partly live."""
        for number, row in enumerate(entries):
            if int(row["first_offset"]) + int(row["records"]) > root.first_offset:
                one = entries[number : number + 1]
                self.named.add(entry_key(root.stream, one))
                if row["kind"]:
                    await self._follow(root, await self.process.offloader.load_group(root, one))
