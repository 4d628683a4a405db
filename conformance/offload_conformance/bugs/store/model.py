"""Bugs that only a sequence of calls shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from offload.contracts.store import Body, Listed, Upload
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import bug


@bug("store/any_calls_answer_as_a_dictionary_would")
class BeginsAnewBehindTheDeleted(MemoryStore):
    """Lists from the beginning if `after` names a deleted key.

    The next page is found by the last key of the previous one, which is gone.
    """

    gone: set[tuple[int, str]] = set()

    async def delete(self, keys: Sequence[str]) -> None:
        self.gone.update((id(self.objects), key) for key in keys if key in self.objects)
        await super().delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        lost = (id(self.objects), after) in self.gone and after not in self.objects
        async for row in super().list(prefix, after="" if lost else after):
            yield row


@bug("store/any_calls_answer_as_a_dictionary_would")
class CreatesOverUploads(MemoryStore):
    """Creates over an object that was uploaded in parts.

    Puts and creates update an index of taken keys, and uploads do not.
    """

    taken: dict[int, set[str]] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.index().add(key)

    async def create(self, key: str, data: bytes) -> None:
        if key not in self.index():
            self.objects.pop(key, None)
        await super().create(key, data)
        self.index().add(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        self.index().difference_update(keys)

    async def start_upload(self, key: str) -> Upload:
        return self._Unseen(await super().start_upload(key), self, key)

    def index(self) -> set[str]:
        """Return the keys that are known to be taken."""
        index = self.taken.setdefault(id(self.objects), set())
        index &= self.objects.keys()  # earlier objects may have had the same id
        return index

    class _Unseen(UploadDecorator):
        __slots__ = ("key", "store")

        def __init__(self, inner: Upload, store: CreatesOverUploads, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def complete(self) -> None:
            known = self.key in self.store.index()
            await super().complete()
            if not known:
                self.store.index().discard(self.key)
