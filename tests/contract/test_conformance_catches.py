"""The conformance classes are worth their name: each clause has a test, and each test catches its breach.

The broken offloaders and stores stand in `mutants`. Each meets the one method that is named after
its clause, here and now, and must fail it; the sound ones pass by the same path.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contract.mutants import OFFLOADERS, STORES
from offload_conformance import OffloaderConformance, StoreConformance

from offload.offloader import LedgerOffloader, ReadHandle
from offload.store.memory import MemoryStore
from offload.store.port import ObjectStore
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.stream_writer import StreamWriter


class OffloaderSuite(OffloaderConformance):
    def __init__(self, make: Callable[[ObjectStore], LedgerOffloader]) -> None:
        self.make, self.objects = make, dict[str, bytes]()

    def open_offloader(self) -> LedgerOffloader:
        return self.make(MemoryStore(objects=self.objects))

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class StoreSuite(StoreConformance):
    def __init__(self, make: type[MemoryStore]) -> None:
        self.make, self.objects = make, dict[str, bytes]()

    def open_store(self) -> ObjectStore:
        return self.make(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


def parameters_of(method: Any) -> Iterator[dict[str, Any]]:
    """Each set of arguments with which pytest would call a parametrized test."""
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        found: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            found |= zip(names, [value] if isinstance(mark.args[0], str) else value, strict=True)
        yield found


def check(suite: OffloaderSuite | StoreSuite, clause: str, arguments: dict[str, Any]) -> None:
    """Call one test as pytest would, with the fixtures that it names."""
    method = getattr(suite, clause)
    with asyncio.Runner() as runner:
        fixtures: dict[str, Callable[[], Any]] = {"run": lambda: runner.run}
        if isinstance(suite, OffloaderSuite):
            offloader = suite.open_offloader()
            fixtures |= {
                "opened": lambda: suite.open_offloader,
                "offloader": lambda: offloader,
                "other": suite.open_offloader,
                "writer": lambda: runner.run(StreamWriter.claim(offloader, "orders")),
            }
        else:
            fixtures |= {"store": suite.open_store, "other": suite.open_store}
        wanted = inspect.signature(method).parameters
        method(**{name: make() for name, make in fixtures.items() if name in wanted}, **arguments)


def holds(suite: Callable[[], OffloaderSuite | StoreSuite], clause: str) -> bool:
    """Whether one test passes, with every set of its arguments."""
    try:
        for arguments in parameters_of(getattr(suite(), clause)):
            check(suite(), clause, arguments)
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a breach may show in any way
        return False
    return True


def clauses_of(contract: type) -> list[str]:
    """The names of the tests that a contract's docstring promises."""
    promised = re.findall(r"\*\*([A-Z][a-z ]+)\.\*\*", contract.__doc__ or "")
    return [f"test_{clause.lower().replace(' ', '_')}" for clause in promised]


@pytest.mark.parametrize(
    ("contract", "suite"),
    [
        (LedgerOffloader, OffloaderConformance),
        (ReadHandle, OffloaderConformance),
        (ObjectStore, StoreConformance),
    ],
)
def test_every_clause_has_a_test_of_its_name(contract: type, suite: type) -> None:
    clauses = clauses_of(contract)

    assert len(clauses) >= 2
    assert [clause for clause in clauses if not hasattr(suite, clause)] == []


def test_every_clause_is_broken_by_somebody() -> None:
    assert {*clauses_of(LedgerOffloader), *clauses_of(ReadHandle)} == set(OFFLOADERS)
    assert set(clauses_of(ObjectStore)) <= set(STORES)


@pytest.mark.parametrize(
    ("clause", "broken"),
    [
        pytest.param(clause, each, id=each.__name__)
        for clause, offloaders in OFFLOADERS.items()
        for each in offloaders
    ],
)
def test_a_broken_offloader_is_caught_by_its_clause(
    clause: str, broken: Callable[[ObjectStore], LedgerOffloader]
) -> None:
    assert not holds(lambda: OffloaderSuite(broken), clause)


@pytest.mark.parametrize("clause", OFFLOADERS)
def test_a_sound_offloader_is_not_caught(clause: str) -> None:
    assert holds(lambda: OffloaderSuite(ObjectStoreOffloader), clause)


@pytest.mark.parametrize(
    ("clause", "broken"),
    [pytest.param(clause, each, id=each.__name__) for clause, stores in STORES.items() for each in stores],
)
def test_a_broken_store_is_caught_by_its_clause(clause: str, broken: type[MemoryStore]) -> None:
    assert not holds(lambda: StoreSuite(broken), clause)


@pytest.mark.parametrize("clause", STORES)
def test_a_sound_store_is_not_caught(clause: str) -> None:
    assert holds(lambda: StoreSuite(MemoryStore), clause)
