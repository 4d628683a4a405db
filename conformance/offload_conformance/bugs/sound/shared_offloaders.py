"""Helpers of several modules of planted bugs in offloaders that are tables."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from offload import delete_stream
from offload.contracts.catalogue import EntryView, StreamView
from offload.ground.errors import StreamDeleted
from offload.model.manifest import CommittedStream, Manifest
from offload_conformance.bugs.registry import OpenClient
from offload_conformance.bugs.sound.ledgers import copied, ledger, raises
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import opened


async def reborn(open_: OpenClient) -> tuple[Any, Any, Manifest]:
    """Return two clients, and the manifest of the life that both knew and that is over. The stream lives."""
    tier, other = await opened(open_), open_()
    await copied(tier, "s", ledger(0))
    old = await other.load_manifest("s")
    await delete_stream(tier, "s")
    await raises(StreamDeleted, other.load_manifest("s"))
    await copied(tier, "s", ledger(0, size=200))
    return tier, other, old


BASE: Final[ContextVar[Manifest | None]] = ContextVar("base", default=None)


class Viewed(Table):
    """A base class without a mistake, for tables with views of another class."""

    VIEW: type[EntryView]

    def view_of(self, committed: CommittedStream) -> StreamView:
        view = super().view_of(committed)
        changed: StreamView = type(self.VIEW.__name__, (self.VIEW, type(view)), {})(self, committed)
        return changed
