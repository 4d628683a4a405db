"""Bugs of deletions: keys that stay, and keys that go with others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from offload.contracts.store import Span, Suffix
from offload.ground.errors import NotFound
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import bug
from offload_conformance.bugs.store.shared import PAGE_KEYS


@bug("store/deletion_is_idempotent")
class MissesTheDeleted(MemoryStore):
    """Reports that there was nothing to delete.

    `os.remove` and GCS raise for an absent object; S3 does not.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.objects:
                raise NotFound(key)
        await super().delete(keys)


@bug("store/deletion_is_idempotent")
class DeletesTheFolder(MemoryStore):
    """Deletes everything below a key as well.

    `fs.rm(key, recursive=True)`, or a delete by prefix.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(
            [each for each in self.objects for key in keys if f"{each}/".startswith(f"{key}/")]
        )


@bug("store/deletion_takes_any_number_of_keys")
class DeletesOneBatch(MemoryStore):
    """Deletes only as many keys as fit into one request.

    S3's `DeleteObjects` takes 1,000 keys, Azure's batch 256.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys[:PAGE_KEYS])


@bug("store/deletion_is_done_when_it_returns")
class SwallowsDeleteErrors(MemoryStore):
    """Ignores the errors of a batch deletion.

    `DeleteObjects` answers 200 and lists `Errors` in the body; characters that break its XML are one reason.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([key for key in keys if not set(key) & set("&<>")])


@bug("store/deletion_is_idempotent")
class KeepsEqualBytesOnce(MemoryStore):
    """Deletes the bytes of an object although another object has the same ones.

    Equal bytes are stored once, under their hash, and nobody counts who refers to them.
    """

    lost: dict[int, set[bytes]] = defaultdict(set)

    async def delete(self, keys: Sequence[str]) -> None:
        lost = {self.objects[key] for key in keys if key in self.objects}
        await super().delete(keys)
        self.lost[id(self.objects)] |= lost

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if self.objects.get(key) in self.lost[id(self.objects)]:
            raise NotFound(key, store=self.url)
        return await super().get(key, span)
