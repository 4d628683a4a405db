"""A store that other programs may change, and this one must not: every request that changes it is refused.

Invariant: no request that could change the inner store reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, ObjectStore, Unfinished, Upload
from offload.ground.errors import OffloadError
from offload.store.wrap import StoreDecorator

__all__ = ["ReadOnlyStore"]


class ReadOnlyStore(StoreDecorator):
    """A store that can be read. Everything else raises the error that `refusal` returns."""

    __slots__ = ("_refusal",)

    def __init__(self, inner: ObjectStore, refusal: Callable[[], OffloadError]) -> None:
        super().__init__(inner)
        self._refusal = refusal

    async def put(self, key: str, body: Body) -> None:
        """Refuse."""
        raise self._refusal()

    async def create(self, key: str, data: bytes) -> None:
        """Refuse."""
        raise self._refusal()

    async def delete(self, keys: Sequence[str]) -> None:
        """Refuse, unless there is nothing to delete."""
        if keys:
            raise self._refusal()

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Refuse."""
        raise self._refusal()

    async def abort_upload(self, upload: Unfinished) -> None:
        """Refuse."""
        raise self._refusal()
