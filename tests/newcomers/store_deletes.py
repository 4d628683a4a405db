"""Mistakes in deletes: batches, prefixes, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import check_key
from offload.ground.errors import Misuse


@bug(proofs.lists(proofs.THOUSANDS, gone=proofs.THOUSANDS[:1001]))
class OnlyWholeBatchesAreDeleted(ServiceStore):
    """`range(len(keys) // 1000)` leaves out the last, partial batch of more than a thousand keys.

    Breaks "Remove these objects, any number of them": a sweep reports what it did not delete.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        names = [check_key(key) for key in keys]
        for number in range(max(len(names) // 1000, 1)):
            await self.ask(self.service.delete, names[number * 1000 : number * 1000 + 1000])


@bug(proofs.answers(AssertionError, lambda store: _expect_nothing(store.delete([]))))
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


@bug(proofs.lists(["a/1", "a/10", "a/1/2", "a/2"], gone=["a/1"]))
class DeletesWhatBeginsSo(ServiceStore):
    """Delete removes by prefix, as a command line tool does with a folder.

    Breaks "Remove these objects": `a/10` goes with `a/1`.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        found = [name for name in self.service.objects if name.startswith(tuple(keys))] if keys else []
        await super().delete(found)


async def _same_key_twice(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, ["a", "b"])
    await store.delete(["a", "a", "b", "b"])
    assert await proofs.names(store) == []


@bug(_same_key_twice)
class KeyTwiceInABatchIsRefused(ServiceStore):
    """The service refuses a batch that names a key twice, and the client passes the error on.

    Breaks "Remove these objects, any number of them" and "Deleting what is absent succeeds".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        if len({*keys}) < len(keys):
            raise Misuse("the batch names a key twice")
        await super().delete(keys)
