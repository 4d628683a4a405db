"""Tests of uploads of a crashed writer or copy in an encrypted stream.

A fragment whose key is missing, or whose key service is down, cannot be judged. It is never taken for one
that is not whole, because its attempt would be dropped, and a sweep would delete it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from key_world import LABEL, Service, World, append, is_encrypted, read, run
from offload_conformance.ledgers import ledger_of

from offload import StreamWriter
from offload.ground.errors import Conflict, Denied, NoSuchKey, OffloadError, TryAgain
from offload.native.key_ring import KeyRing
from offload.upkeep.copy.tier import Copied, copy
from offload.write.job import Job

Trouble = Callable[[World], KeyRing | None]
"""Makes some trouble, and returns the ring of the next process."""


def down(world: World) -> KeyRing:
    world.service.is_down = True
    return world.ring()


def another_master_key(world: World) -> KeyRing:
    world.service = Service()
    return world.ring()


def no_master_key(world: World) -> KeyRing:
    world.service = Service("other")
    return world.ring()


def no_key_objects(world: World) -> KeyRing:
    world.lose()
    return world.ring(None)


def no_service(world: World) -> None:
    return None


TROUBLES = [
    (down, TryAgain),
    (another_master_key, Denied),
    (no_master_key, NoSuchKey),
    (no_key_objects, Denied),
    (no_service, Denied),
]


@pytest.mark.parametrize(("trouble", "error"), TROUBLES)
def test_a_claim_without_the_key_ends_and_the_next_one_with_it_adopts(
    trouble: Trouble, error: type[OffloadError]
) -> None:
    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        writer = await StreamWriter.claim(tier, "orders")
        [attempt] = await writer.prepare([0])
        await tier.offload(ledger_of(10), attempt, manifest=writer.manifest, extra_metadata={})
        service, objects = world.service, dict(world.objects)

        with pytest.raises(error) as caught:
            await StreamWriter.claim(world.tier(trouble(world)), "orders")
        assert type(caught.value) is error
        service.is_down, world.service = False, service
        world.objects.update({key: raw for key, raw in objects.items() if key not in world.objects})
        adopted = (await StreamWriter.claim(world.tier(world.ring()), "orders")).manifest

        assert (adopted.next_offset, adopted.running, len(world.data)) == (10, (), 1)
        assert await read(world.tier(world.ring())) == 10

    run(scenario)


@pytest.mark.parametrize("encrypts", [True, False])
def test_a_plain_upload_is_adopted_unless_the_stream_is_encrypted_now(encrypts: bool) -> None:
    async def scenario(world: World) -> None:
        writer = await StreamWriter.claim(world.tier(), "orders")
        [attempt] = await writer.prepare([0])
        await writer.offloader.offload(ledger_of(10), attempt, manifest=writer.manifest, extra_metadata={})

        def ring() -> KeyRing | None:
            return world.ring() if encrypts else None

        claimed = (await StreamWriter.claim(world.tier(ring()), "orders")).manifest
        assert claimed.next_offset == (0 if encrypts else 10)
        await append(world.tier(ring()))

        assert set(await is_encrypted(world)) == {encrypts}
        assert await read(world.tier(ring())) == (10 if encrypts else 20)

    run(scenario)


async def copied(source: World, target: World, ring: KeyRing | None) -> Copied:
    [done] = [one async for one in copy(source.tier(), target.tier(ring))]
    return done


@pytest.mark.parametrize(("trouble", "error"), TROUBLES[:3])
def test_a_copy_without_the_key_ends_and_the_next_one_with_it_takes_over(
    trouble: Trouble, error: type[OffloadError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(self: object, receipts: object) -> None:
        raise Conflict("killed")

    async def scenario(world: World) -> None:
        source = World()
        await append(source.tier())
        with monkeypatch.context() as patched:
            patched.setattr(Job, "append", killed)
            assert isinstance((await copied(source, world, world.ring(LABEL))).error, Conflict)
        service = world.service

        ended = await copied(source, world, trouble(world))
        assert type(ended.error) is error
        service.is_down, world.service = False, service
        done = await copied(source, world, world.ring())

        assert (done.error, done.taken_over, done.fragments, done.next_offset) == (None, 1, 0, 10)
        assert await is_encrypted(world) == [True]

    run(scenario)
