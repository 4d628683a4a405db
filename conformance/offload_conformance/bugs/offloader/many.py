"""Bugs that show with many fragments and many leftovers."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from offload.model.attempt import Leftover
from offload.model.entry import Entries
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


@bug("contract/leftovers_may_be_many")
class LeftoversByThePage(ObjectStoreOffloader):
    """Offers at most 25 leftovers.

    `LIMIT` in the query, as in the list on a screen.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return (await super().leftovers(manifest))[:25]


@bug("contract/streams_may_have_many_fragments")
class WalksOnePage(ObjectStoreOffloader):
    """Walks only the first 30 fragments of a stream.

    The query returns a page, and nobody asks for the next one.
    """

    def tree(self, manifest: Manifest) -> Any:
        tree = super().tree(manifest)

        async def walk(offset: int = 0) -> Any:
            left = 30
            async for run in type(tree).walk(tree, offset):
                shown: Entries = run[:left]
                left -= len(shown)
                if len(shown):
                    yield shown

        paged = MagicMock(wraps=tree)
        paged.walk = walk
        return paged
