"""A tier in memory whose data store cannot create only if absent, beside a commit store that can."""

from __future__ import annotations

from dataclasses import replace

from offload import ObjectStoreOffloader
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.errors import Misuse
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore

ROOTS = "memory://roots"


class Overwriting(MemoryStore):
    """Says "done" to a create of what exists, and overwrites; whoever asks for its capabilities learns it."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


def split_tier(
    data: dict[str, bytes], roots: dict[str, bytes], *, plan: TierPlan | None = None
) -> ObjectStoreOffloader:
    """Opens `memory://roots` and nothing else as a commit store."""

    def open_store(url: str) -> ObjectStore:
        if url != ROOTS:
            raise Misuse(f"no plugin knows the backend {url!r}")
        return MemoryStore(objects=roots, name="roots")

    return ObjectStoreOffloader(
        Overwriting(objects=data, name="data"),
        plan=plan or TierPlan(commit_store=ROOTS),
        open_store=open_store,
    )
