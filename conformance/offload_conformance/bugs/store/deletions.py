"""Bugs of deletions: keys that stay, and keys that go with others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Span, Suffix, check_key
from offload.ground.errors import Misuse, NotFound
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import fill, names
from offload_conformance.bugs.sound.service import ServiceStore
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


async def _absent_ones_do_not_matter(open_: OpenClient) -> None:
    store = open_()
    await fill(store, ["a", "b", "c"])
    await store.delete(["a", "absent", "b", "c"])
    assert await names(store) == []


@bug("store/deletion_takes_any_number_of_keys", _absent_ones_do_not_matter)
class BatchEndsAtTheFirstAbsent(SharedMemory):
    """The server works through a batch until a key is absent. The client ignores that answer, as of one key.

    Breaks "Deleting an absent object succeeds" and "Delete these objects". Costs the keys behind the absent
    one: they stay, and the call succeeds.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        present = [key for key in keys if key in self.objects]
        ends = next((at for at, key in enumerate(keys) if key not in self.objects), len(keys))
        await super().delete([key for key in keys[:ends] if key in present])


@bug(
    "store/deletion_is_idempotent",
    proofs.answers(AssertionError, lambda store: _expect_nothing(store.delete([]))),
)
class DeletingNothingIsMalformed(ServiceStore):
    """An empty batch is sent, and the service calls it malformed.

    Breaks "Remove these objects, any number of them": a sweep with nothing to do fails.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            raise Misuse("MalformedXML: the request names no object")
        await super().delete(keys)


async def _expect_nothing(call: Any) -> None:
    try:
        await call
    except Exception:  # the bug  # noqa: BLE001 - any error is the mistake
        return
    raise AssertionError


async def _same_key_twice(open_: OpenClient) -> None:
    store = open_()
    await proofs.fill(store, ["a", "b"])
    await store.delete(["a", "a", "b", "b"])
    assert await proofs.names(store) == []


@bug("store/deletion_is_idempotent", _same_key_twice)
class KeyTwiceInABatchIsRefused(ServiceStore):
    """The service refuses a batch that names a key twice, and the client passes the error on.

    Breaks "Remove these objects, any number of them" and "Deleting what is absent succeeds".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        if len({*keys}) < len(keys):
            raise Misuse("the batch names a key twice")
        await super().delete(keys)


async def shows_last_of_many_stays(open_: OpenClient) -> None:
    store, keys = open_(), [f"k{number:03}" for number in range(201)]
    await proofs.fill(store, keys)
    await store.delete(keys)
    assert await names(store) == []


@bug("store/deletion_takes_any_number_of_keys", shows_last_of_many_stays)
class LastOfManyStays(SharedMemory):
    """Keys are deleted in batches of 100, and `range(0, len(keys) - 1, 100)` leaves out a batch of one key.

    Breaks "Remove these objects, any number of them."
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, delete_batch_max=100)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        if len(keys) == 1:
            await super().delete(keys)
        for at in range(0, len(keys) - 1, 100):
            await super().delete(keys[at : at + 100])
