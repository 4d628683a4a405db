"""Mistakes in deletes: batches, prefixes, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.ground.errors import Misuse


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
