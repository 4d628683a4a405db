"""Mistakes in what is declared, with event loops and with clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from newcomers import proofs
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore, ServiceUpload
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Unfinished, Upload, check_key
from offload.ground.errors import Misuse


async def _began_now(open_: Open) -> None:
    store = open_()
    await store.start_upload("u")
    [found] = await store.unfinished_uploads("u")
    assert abs(found.started_ms / 1000 - time.time()) < 3600


@bug(_began_now)
class UploadsBeginInSeconds(ServiceStore):
    """The start of an upload is reported in seconds.

    Breaks "Milliseconds since 1970": every upload is fifty years old, and is aborted under its writer.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        found = await super().unfinished_uploads(prefix)
        return [Unfinished(each.key, each.upload_id, each.started_ms // 1000) for each in found]


async def _in_another_loop(open_: Open) -> None:
    async def work() -> None:
        store = open_()
        await asyncio.gather(*(store.put(f"k{number}", Body.of(b"x")) for number in range(4)))

    await work()
    await asyncio.to_thread(asyncio.run, work())


@bug(_in_another_loop)
class LockOfTheFirstLoop(ServiceStore):
    """All clients of a process share one `asyncio.Lock`, which belongs to the loop on which a task first
    waits.

    Breaks "A store belongs to one event loop": a store on a second loop of the process raises `RuntimeError`.
    """

    lock: ClassVar = asyncio.Lock()

    async def put(self, key: str, body: Body) -> None:
        async with self.lock:
            await super().put(key, body)


async def _no_multipart(open_: Open) -> None:
    store = open_()
    if not store.capabilities.multipart:
        await proofs.raises(Misuse, store.start_upload("k"))


@bug(_no_multipart)
class NoMultipartIsNotImplemented(ServiceStore):
    """A store without multipart uploads raises `NotImplementedError`.

    Breaks "Raises `Misuse` where `capabilities.multipart` is absent".
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)

    async def start_upload(self, key: str) -> Upload:
        raise NotImplementedError


@bug(proofs.uploads([2**20, 2**20, 1]))
class SmallPartsAreRefusedUndeclared(ServiceStore):
    """Parts of less than 5 MiB are refused, and `part_size_bytes_min` says one byte.

    Breaks "The least size of a part, the last one excepted", which is declared.
    """

    async def start_upload(self, key: str) -> Upload:
        return _FiveMegabytes(self, check_key(key), await self.ask(self.service.begin, key))


class _FiveMegabytes(ServiceUpload):
    async def complete(self) -> None:
        if any(self.sizes[number] < 5 * 2**20 for number in sorted(self.sizes)[:-1]):
            raise Misuse("EntityTooSmall")
        await super().complete()


@bug(proofs.key_round("12:30:00/a"))
class ColonsAreRefusedUndeclared(ServiceStore):
    """A key with a colon is refused, and `keys_refused` is None.

    Breaks "A regular expression: a key in which it is found is `Misuse` here. None: all keys are taken".
    """

    async def put(self, key: str, body: Body) -> None:
        if ":" in check_key(key):
            raise Misuse(f"{key!r} has a colon")
        await super().put(key, body)


@bug(proofs.keeps(4 * 2**20 + 1))
class PutsOfFourMegabytesAtMostUndeclared(ServiceStore):
    """A message of more than 4 MiB is refused, as gRPC does, and `put_size_bytes_max` is None.

    Breaks "The largest object that a single `put` takes": a fragment of the usual size cannot be stored.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes > 4 * 2**20:
            raise Misuse("RESOURCE_EXHAUSTED: message larger than max")
        await super().put(key, body)


async def _create_a_root(open_: Open) -> None:
    store = open_()
    await store.create("k", data_of(200_000))
    assert await store.get("k") == data_of(200_000)


@bug(_create_a_root)
class CreatesOf64KiBAtMost(ServiceStore):
    """A create uses another table than a put, and its values have at most 64 KiB.

    Breaks "Store a small object if the key is absent": a full root (256 KiB) cannot be committed, years
    later.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > 65_536:
            raise Misuse("the value is too large")
        await super().create(key, data)


async def _loop_turns(open_: Open) -> None:
    store, turns = open_(), 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0.03)
    before = turns
    loop = asyncio.get_running_loop()
    began = loop.time()
    await store.put("k", Body.of(data_of(2**20)))
    assert loop.time() - began < 0.2 or turns > before + 3
    turning.cancel()


@bug(_loop_turns)
class LargePutsBlockTheLoop(ServiceStore):
    """A put of a mebibyte or more is compressed on the event loop, which takes a quarter of a second.

    Breaks "Never block it": meanwhile no other call, deadline or heartbeat of the process runs.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes >= 2**20:
            time.sleep(0.25)  # noqa: ASYNC251 - the mistake
        await super().put(key, body)
