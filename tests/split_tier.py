"""A tier in memory whose data store overwrites on create, with a commit store that does not."""

from __future__ import annotations

from dataclasses import replace

from offload import ObjectStoreOffloader
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.ground.errors import Misuse
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore

ROOTS = "memory://roots"


class Overwriting(MemoryStore):
    """A store that overwrites on create and reports success. Its capabilities declare this."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


def split_tier(
    data: dict[str, bytes], roots: dict[str, bytes], *, plan: TierPlan | None = None
) -> ObjectStoreOffloader:
    """Return a tier on these objects that can open only `memory://roots` as a commit store."""

    def open_store(url: str) -> ObjectStore:
        if url != ROOTS:
            raise Misuse(f"no plugin knows the backend {url!r}")
        return MemoryStore(objects=roots, name="roots")

    return ObjectStoreOffloader(
        Overwriting(objects=data, name="data"),
        plan=plan or TierPlan(commit_store=ROOTS),
        open_store=open_store,
    )
