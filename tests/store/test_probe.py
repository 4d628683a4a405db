"""The probe of create-if-absent: it trusts no store's claim, and no lost reply changes its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST, Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Denied, OffloadError, OutcomeUnknown, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.store.probe import make_sure_of_create
from offload.store.wrap import StoreDecorator


class Unsure(StoreDecorator):
    """A store whose creates must be probed."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, create_is_probed=True)


class Overwrites(Unsure):
    """A server that does not know the precondition."""

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.put(key, Body.of(data))


class Resends(StoreDecorator):
    """A client library that sends a create again if it gets no answer."""

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self.inner.create(key, data)
        except OutcomeUnknown:
            await self.inner.create(key, data)


def _probe(store: ObjectStore) -> None:
    async def no_time(seconds: float) -> None:
        await asyncio.sleep(0)

    asyncio.run(make_sure_of_create(store, Env(sleep=no_time)))


def _faulty(store: ObjectStore, rules: Sequence[Rule]) -> FaultyStore:
    return FaultyStore(store, rules=rules)


class Declares(StoreDecorator):
    """A store that declares the size of its largest create, and lacks nothing else."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(MemoryStore())
        self.size_bytes = size_bytes

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, create_size_bytes_max=self.size_bytes)


def test_a_store_whose_creates_are_too_small_for_a_root_is_refused() -> None:
    with pytest.raises(Denied, match="one create takes 1048575 bytes, and a full root is larger"):
        _probe(Declares(CREATE_SIZE_BYTES_LEAST - 1))
    _probe(Declares(CREATE_SIZE_BYTES_LEAST))


def test_the_probe_refuses_only_a_store_that_overwrites() -> None:
    with pytest.raises(Denied, match="overwrites"):
        _probe(Overwrites(MemoryStore()))

    _probe(Unsure(MemoryStore()))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.DELAY])
def test_one_failed_create_changes_nothing(fault: Fault, nth: int) -> None:
    _probe(_faulty(Unsure(MemoryStore()), [Rule(fault, "create", nth=nth)]))

    with pytest.raises(Denied):
        _probe(_faulty(Overwrites(MemoryStore()), [Rule(fault, "create", nth=nth)]))


@pytest.mark.parametrize("nth", [1, 3])
def test_a_client_that_meets_its_own_create_passes_the_probe(nth: int) -> None:
    objects: dict[str, bytes] = {}

    _probe(
        Resends(_faulty(Unsure(MemoryStore(objects=objects)), [Rule(Fault.LOSE_REPLY, "create", nth=nth)]))
    )

    assert not objects


def test_the_probe_fails_for_a_store_that_never_answers() -> None:
    with pytest.raises(OutcomeUnknown):
        _probe(_faulty(Unsure(MemoryStore()), [Rule(Fault.LOSE_REPLY, "create")]))


@pytest.mark.parametrize("resends", [False, True])
def test_no_fault_makes_the_verdict_wrong(resends: bool) -> None:
    chances = {Fault.FAIL_BEFORE: 0.2, Fault.LOSE_REPLY: 0.2, Fault.DELAY: 0.2}

    for seed, (honest, wrong) in product(range(50), ((True, Denied), (False, None))):
        inner = (Unsure if honest else Overwrites)(MemoryStore())
        store: ObjectStore = FaultyStore(inner, chances=chances, random=Random(seed))
        said: type[OffloadError] | None = None
        try:
            _probe(Resends(store) if resends else store)
        except (Denied, TryAgain, OutcomeUnknown) as error:
            said = type(error)
        assert said is not wrong, f"seed {seed}"


def test_the_probe_removes_its_object_after_a_lost_reply() -> None:
    objects: dict[str, bytes] = {}

    _probe(_faulty(Unsure(MemoryStore(objects=objects)), [Rule(Fault.LOSE_REPLY, "create", nth=2)]))

    assert not objects
