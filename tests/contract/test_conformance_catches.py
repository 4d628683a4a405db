"""Tests of the conformance classes: each clause has a test, and each test catches a violation of it.

The broken backends are in `store_bugs`, `offloader_bugs` and `protocol_bugs`. Each runs the one method that
is named after its clause, and must fail it. Sound backends pass in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
import re
import runpy
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import hypothesis.core
import pytest
from campaign import few, keeping
from contract.all_offloader_bugs import ALL_OFFLOADER_BUGS
from contract.all_store_bugs import ALL_STORE_BUGS
from contract.bugs import Bug
from contract.protocol_bugs import PROTOCOL_BUGS
from hypothesis import Phase, settings
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from offload_conformance.draws import by_seed_alone
from offload_conformance.ledgers import clock_goes_back, simple
from offload_conformance.offloader.edges import TWINS
from offload_conformance.protocol.world import Worlds
from offload_conformance.store import model
from offload_posix import PosixStore

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import Committer, LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import OffloadError
from offload.model.compression import Compression
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.memory import MemoryStore
from offload.write.writer import StreamWriter

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _the_same_examples() -> Iterator[None]:
    """Make Hypothesis draw the same values in every run, so that a bug found once is found again."""
    settings.register_profile("the same", settings.get_profile("any machine"), derandomize=True)
    settings.load_profile("the same")
    yield
    settings.load_profile("any machine")


class OffloaderSuite(OffloaderConformance):
    many_streams = 10 * len(TWINS)  # so that no draw leaves a pair of names out
    codings = ("lz4", "zstd")

    def __init__(self, make: Callable[..., LedgerOffloader]) -> None:
        self.make, self.objects = make, dict[str, bytes]()

    def open_offloader(self) -> LedgerOffloader:
        return self.make(MemoryStore(objects=self.objects))

    def open_coded(self, coding: str) -> LedgerOffloader:
        options = TierOptions(compression=Compression.parse(coding))
        return self.make(MemoryStore(objects=self.objects), options=options)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class StoreSuite(StoreConformance):
    model_examples = 60  # the drawn values are the same in every run, until the machine is changed

    def __init__(self, make: Callable[..., ObjectStore]) -> None:
        self.make, self.objects = make, dict[str, bytes]()
        self.capabilities = getattr(make, "declared", None)

    def open_store(self) -> ObjectStore:
        return self.make(objects=self.objects)

    def open_unreachable(self) -> ObjectStore | None:
        return self.make.unreachable() if hasattr(self.make, "unreachable") else None  # type: ignore[no-any-return]

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class ProtocolSuite(ProtocolConformance):
    """The protocol suite over a broken store, or with a broken tier over a sound one."""

    def __init__(self, make: Any) -> None:
        self.make, self.objects = make, dict[str, bytes]()

    def open_store(self) -> ObjectStore:
        is_store = isinstance(self.make, type) and issubclass(self.make, ObjectStore)
        return self.make(objects=self.objects) if is_store else MemoryStore(objects=self.objects)

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        if isinstance(self.make, type) and issubclass(self.make, LedgerOffloader):
            return self.make(store, env=env, options=options)  # type: ignore[no-any-return, call-arg]
        return super().open_tier(store, env=env, options=options)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class FolderSuite(StoreConformance):
    """The suite of a store in a folder. Other processes open it too, so it is given by its class's name."""

    def __init__(self, make: Any, folder: Path) -> None:
        self.home, self.made_by = make.__module__, make.__qualname__
        self.folder = folder / str(uuid4())

    def open_store(self) -> ObjectStore:
        store: ObjectStore = getattr(import_module(self.home), self.made_by)(root=self.folder)
        return store

    def keys_in_store(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


Suite = OffloaderSuite | StoreSuite | FolderSuite | ProtocolSuite

BETWEEN_PROCESSES = "test_create_is_atomic_between_processes"


def store_suite(make: Any, clause: str, folder: Path) -> Callable[[], Suite]:
    """Return the suite for a store: in a folder, if other processes must open it."""
    if clause == BETWEEN_PROCESSES:
        return lambda: FolderSuite(make, folder)
    return lambda: StoreSuite(make)


def parameters_of(method: Any) -> Iterator[dict[str, Any]]:
    """Yield each set of arguments with which pytest would call a parametrized test."""
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        found: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            found |= zip(names, [value] if isinstance(mark.args[0], str) else value, strict=True)
        yield found


def check(suite: Suite, clause: str, arguments: dict[str, Any]) -> None:
    """Call one test as pytest would, with its fixtures, but with only two of the samples."""
    method = getattr(suite, clause)
    wanted = inspect.signature(method).parameters
    with asyncio.Runner() as runner:
        fixtures: dict[str, Callable[[], Any]] = {"run": lambda: runner.run}
        if isinstance(suite, OffloaderSuite):
            offloader = suite.open_offloader()
            fixtures |= {
                "opened": lambda: suite.open_offloader,
                "offloader": lambda: offloader,
                "other": suite.open_offloader,
                "writer": lambda: runner.run(StreamWriter.claim(offloader, "orders")),
                "sample": arguments.pop("sample", simple),
            }
        elif isinstance(suite, ProtocolSuite):
            fixtures |= {
                "new_world": lambda: Worlds(suite.open_store, suite.open_tier),
                "opened": lambda: suite.open_offloader,
            }
        else:
            fixtures |= {"store": suite.open_store, "other": suite.open_store}
            fixtures["open_client"] = lambda: suite.open_store
            fixtures |= {"findings": dict, "note": lambda: lambda words: None}
        method(**{name: make() for name, make in fixtures.items() if name in wanted}, **arguments)


def verdict(suite: Callable[[], Suite], clause: str) -> BaseException | None:
    """Return the error of one test, with the first arguments with which it fails; None if it passes."""
    method = getattr(suite(), clause)
    samples = [simple, clock_goes_back] if "sample" in inspect.signature(method).parameters else [None]
    try:
        for arguments, sample in itertools.product(parameters_of(method), samples):
            check(suite(), clause, arguments | ({"sample": sample} if sample else {}))
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - a breach may show in any way
        return failure
    return None


def clauses_of(contract: type) -> list[str]:
    """Return the names of the tests that a contract's docstring promises."""
    promised = re.findall(r"\*\*([A-Z][a-z ]+)\.\*\*", contract.__doc__ or "")
    return [f"test_{clause.lower().replace(' ', '_')}" for clause in promised]


def clauses_in(suite: type) -> list[str]:
    return [name for name in dir(suite) if name.startswith("test_")]


@pytest.mark.parametrize(
    ("contract", "suite"),
    [
        (LedgerOffloader, OffloaderConformance),
        (Committer, OffloaderConformance),
        (ReadHandle, OffloaderConformance),
        (ObjectStore, StoreConformance),
    ],
)
def test_every_clause_has_a_test_of_its_name(contract: type, suite: type) -> None:
    clauses = clauses_of(contract)

    assert len(clauses) >= 2
    assert [clause for clause in clauses if not hasattr(suite, clause)] == []


@pytest.mark.parametrize(
    ("suite", "bugs"),
    [
        (OffloaderConformance, ALL_OFFLOADER_BUGS),
        (StoreConformance, ALL_STORE_BUGS),
        (ProtocolConformance, PROTOCOL_BUGS),
    ],
)
def test_every_test_is_failed_by_a_bug(suite: type, bugs: list[Bug]) -> None:
    assert set(clauses_in(suite)) == {bug.clause for bug in bugs}


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a clause draw the same values in every run, as in the black box."""
    # The calls that fail are not shown, so Hypothesis need not look for fewer calls that fail too.
    monkeypatch.setattr(model, "Phase", SimpleNamespace(generate=Phase.generate, shrink=Phase.generate))
    monkeypatch.setattr(hypothesis.core, "global_force_seed", 0)
    random.seed(0)
    with by_seed_alone():
        yield


ALL_BUGS = ALL_STORE_BUGS + ALL_OFFLOADER_BUGS + PROTOCOL_BUGS

FIRST_BUGS = [
    bug
    for bugs in (ALL_STORE_BUGS, ALL_OFFLOADER_BUGS, PROTOCOL_BUGS)
    for bug in {bug.clause: bug for bug in reversed(bugs)}.values()
]
"""The first bug of each clause."""


def suite_of(bug: Bug, folder: Path) -> Callable[[], Suite]:
    """Return the suite of this bug's layer for the bug."""
    if bug in ALL_STORE_BUGS:
        return store_suite(bug.make, bug.clause, folder)
    return lambda: (ProtocolSuite if bug in PROTOCOL_BUGS else OffloaderSuite)(bug.make)


@pytest.mark.parametrize(
    "bug",
    keeping(FIRST_BUGS, ALL_BUGS, "planted bugs; make test has one of each clause", id_=lambda bug: bug.name),
)
def test_a_bug_is_caught_by_its_clause(bug: Bug, tmp_path: Path) -> None:
    """The clause fails because of the violation, and not because the broken backend is a faulty program."""
    suite = suite_of(bug, tmp_path)

    failure = verdict(suite, bug.clause)

    assert failure is not None
    assert isinstance(failure, BREACHES), repr(failure)


BREACHES = (AssertionError, pytest.fail.Exception, OffloadError, RuntimeError, OSError, MemoryError)


@few("sound stores, clause by clause, where bugs are caught; the suites of tests/store have all", 12)
@pytest.mark.parametrize("clause", clauses_in(StoreConformance))
def test_a_sound_store_is_not_caught(clause: str, tmp_path: Path) -> None:
    sound = PosixStore if clause == BETWEEN_PROCESSES else MemoryStore
    assert verdict(store_suite(sound, clause, tmp_path), clause) is None


@few("sound offloaders, clause by clause, where bugs are caught; the suite in memory has all", 12)
@pytest.mark.parametrize("clause", clauses_in(OffloaderConformance))
def test_a_sound_offloader_is_not_caught(clause: str) -> None:
    assert verdict(lambda: OffloaderSuite(ObjectStoreOffloader), clause) is None


@few("sound tiers, clause by clause, where bugs are caught; test_own_protocol has all", 4)
@pytest.mark.parametrize("clause", clauses_in(ProtocolConformance))
def test_a_sound_store_of_a_tier_is_not_caught(clause: str) -> None:
    assert verdict(lambda: ProtocolSuite(MemoryStore), clause) is None


def test_the_page_of_bugs_agrees_with_the_code() -> None:
    made = runpy.run_path(str(DOCS / "make_conformance_bugs.py"))["page"]()

    found = (DOCS / "conformance-bugs.md").read_text(encoding="utf-8")
    assert found == made, "run: python docs/make_conformance_bugs.py"
