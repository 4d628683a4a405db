"""Copies from tier to tier: the end of a copy is read back, and nothing of another history is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from uuid import UUID

import pytest

from offload import MemoryHandle, ObjectStoreOffloader, StreamReader, StreamWriter, build_chunk
from offload.ground.env import Env
from offload.ground.errors import Absent, Conflict, Corrupt
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.copy.tier import Copied, copy
from offload.write.job import Job


async def source(bodies: Sequence[bytes]) -> ObjectStoreOffloader:
    """Return a tier with a stream of these messages. Its life and its attempts are always the same."""
    numbers = count(1)
    env = Env(uuid=lambda: UUID(int=next(numbers)))
    tier = ObjectStoreOffloader(MemoryStore(), env=env)
    writer = await StreamWriter.claim(tier, "orders", env=env)
    await writer.offload([MemoryHandle([build_chunk(bodies, offset=0, timestamp_ms=1, epoch=1)])])
    return tier


async def copied(origin: ObjectStoreOffloader, target: FaultyStore) -> Copied:
    [done] = [each async for each in copy(origin, ObjectStoreOffloader(target))]
    return done


async def messages(store: FaultyStore) -> list[bytes]:
    reader = await StreamReader.open(ObjectStoreOffloader(store), "orders")
    return [bytes(body) async for batch in reader.messages(0) for body in batch.bodies]


def test_a_copy_reads_the_last_chunk_back_after_its_last_commit() -> None:
    """No later portion compares it. Here the store damages what it has stored."""

    async def main() -> None:
        inner = MemoryStore()

        async def damage(operation: str, key: str) -> None:
            for name in [name for name in inner.objects if "/data/" in name and "/root." in key]:
                inner.objects[name] = inner.objects[name][:60] + b"\xff" + inner.objects[name][61:]

        done = await copied(await source([b"one", b"two"]), FaultyStore(inner, after=damage))

        assert isinstance(done.error, Corrupt)
        assert done.next_offset == 2, "it was committed"

    asyncio.run(main())


def test_a_verified_copy_names_no_upload_that_the_store_has_lost() -> None:
    """A rival commits meanwhile, so the newest manifest does not show whether the upload was trimmed."""

    async def main() -> None:
        inner, rivals = MemoryStore(), list[StreamWriter]()

        async def lose(operation: str, key: str) -> None:
            if key.endswith(".fragment"):
                inner.objects.pop(key, None)

        async def claim(operation: str, key: str) -> None:
            if operation == "get" and key.endswith(".fragment") and not rivals:
                rivals.append(await StreamWriter.claim(ObjectStoreOffloader(inner), "orders"))

        target = ObjectStoreOffloader(FaultyStore(inner, before=claim, after=lose))
        [done] = [each async for each in copy(await source([b"one"]), target, verify=True)]

        assert (type(done.error), len(rivals)) == (Absent, 1)
        assert (await target.load_manifest("orders")).next_offset == 0

    asyncio.run(main())


def test_a_copy_takes_over_no_upload_of_another_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source was replaced since a copy was killed. The upload is sound, and fits the offsets."""

    async def killed(self: object, receipts: object) -> None:
        raise Conflict("killed")

    async def main() -> None:
        target = FaultyStore(MemoryStore())
        with monkeypatch.context() as patched:
            patched.setattr(Job, "append", killed)
            assert isinstance((await copied(await source([b"old"]), target)).error, Conflict)

        done = await copied(await source([b"new"]), target)

        assert (done.error, done.taken_over, done.fragments) == (None, 0, 1)
        assert await messages(target) == [b"new"]
        # The attempt of the killed run has ended. Otherwise no sweep would free its space.
        assert (await ObjectStoreOffloader(target).load_manifest("orders")).running == ()

    asyncio.run(main())
