"""Bases of several modules of planted bugs in offloaders."""

from __future__ import annotations

import re
from dataclasses import fields
from uuid import UUID

from offload.commit.writer import Claim
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Body, Span, Suffix
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.read.handles import CutHandle
from offload.store.wrap import StoreDecorator


class Around(CutHandle):
    """A handle without a mistake, in front of another."""

    @classmethod
    def around(cls, handle: ReadHandle) -> Around:
        return cls(handle, first_offset=handle.first_offset, next_offset=handle.next_offset)

    async def aclose(self) -> None:
        await self._whole.aclose()


class ByVerbs(ObjectStoreOffloader):
    """Reads streams by `tree` and `read_offloaded`, as an offloader without its own views."""

    view_of = LedgerOffloader.view_of  # type: ignore[assignment]  # the default of the contract, in place of its own


class CodedHandles(ObjectStoreOffloader):
    """Opens fragments by `handle`, which a bug overrides."""

    async def _open_entry(self, committed: CommittedStream, entry: Entry) -> ReadHandle:
        return self.handle(await super()._open_entry(committed, entry), entry)

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        raise NotImplementedError


class Deduplicating(StoreDecorator):
    """A store that keeps equal fragments once."""

    @staticmethod
    def shared(key: str) -> str:
        return re.sub(r"\.[0-9a-f-]{36}\.fragment", f".{UUID(int=0)}.fragment", key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.shared(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.shared(key), span)


class Altering(ObjectStoreOffloader):
    """Loads manifests that differ slightly from the committed ones."""

    def altered(self, manifest: Manifest) -> Manifest:
        raise NotImplementedError

    async def load_manifest(self, stream: str) -> Manifest:
        return self.altered(await super().load_manifest(stream))


class Reclaiming(ObjectStoreOffloader):
    """Commits changed claims."""

    kind: type[Claim]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Claim):
            change = self.kind(**{each.name: getattr(change, each.name) for each in fields(change)})
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def deleted_but(offloader: ObjectStoreOffloader, attempt: Attempt, manifest: Manifest) -> None:
    """Delete the fragments of every other attempt that lie behind the end of a stream."""
    keys = StreamKeys(attempt.stream)
    found = {row.key: keys.parse_fragment(row.key) async for row in offloader.data.list(keys.data)}
    await offloader.data.delete(
        [key for key, parsed in found.items() if parsed and parsed[0] >= manifest.next_offset]
    )
