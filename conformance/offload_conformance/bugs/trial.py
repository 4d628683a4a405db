"""The runner of planted bugs: a clause and a proof, each on the bug and on its sound class.

A clause is called as pytest would call it, with its fixtures, but with two of the samples only. Calls of
Hypothesis are drawn from seed 0 and are not shrunk, so a bug that is found once is found again.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import hypothesis.core
import pytest
from hypothesis import Phase, settings

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import OffloadError
from offload.model.compression import Compression
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.memory import MemoryStore
from offload.write.writer import StreamWriter
from offload_conformance.bugs.registry import Bug, Proof, sound_of
from offload_conformance.draws import by_seed_alone
from offload_conformance.ledgers import clock_goes_back, simple
from offload_conformance.offloader import OffloaderConformance
from offload_conformance.offloader.edges import TWINS
from offload_conformance.protocol import ProtocolConformance
from offload_conformance.protocol.world import Worlds
from offload_conformance.store import StoreConformance, model

BREACHES: Final = (AssertionError, pytest.fail.Exception, OffloadError, RuntimeError, OSError, MemoryError)
"""How a clause may fail on a bug without a proof. Another error may be that of a faulty program."""

CLAUSE_SECONDS_MAX: Final = 40
PROOF_SECONDS_MAX: Final = 60


@dataclass(slots=True)
class TrialPlace:
    """A new and empty place for the clients of one class."""

    folder: Path
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Return the URL of the place. Classes that keep files keep them in its folder."""
        return f"bug://{self.folder / 'place'}"

    def open(self, backend: Any) -> Any:
        """Open a client of a class, as its sound class is opened."""
        sound = sound_of(backend)
        if sound is MemoryStore:
            return backend(objects=self.objects)
        if sound is ObjectStoreOffloader:
            return backend(MemoryStore(objects=self.objects))
        return backend(self.url)

    def keys(self, backend: Any) -> set[str]:
        """Return the keys of all objects here, by other means than a client. Skip a clause if nobody can."""
        if not hasattr(backend, "keys_at"):
            return {*self.objects}
        found = backend.keys_at(self.url)
        if found is None:
            pytest.skip("only the backend sees what it keeps")
        return {*found}


class _Stores(StoreConformance):
    model_examples = 60  # the drawn values are the same in every run, until the machine is changed

    def __init__(self, backend: Any, place: TrialPlace) -> None:
        self.backend, self.place = backend, place
        # A process that races opens the place with these alone (`offload_conformance.contender`).
        self.home, self.made_by, self.folder = backend.__module__, backend.__qualname__, place.folder
        self.capabilities = getattr(backend, "declared", None)  # type: ignore[misc]  # one class has many bugs

    def open_store(self) -> ObjectStore:
        if "place" not in vars(self):
            self.backend = getattr(import_module(self.home), self.made_by)
            self.place = TrialPlace(self.folder)
        return self.place.open(self.backend)  # type: ignore[no-any-return]

    def open_unreachable(self) -> ObjectStore | None:
        opened = getattr(self.backend, "unreachable", lambda: None)
        return opened()

    def keys_in_store(self) -> set[str]:
        return self.place.keys(self.backend)


class _Offloaders(OffloaderConformance):
    many_streams = 10 * len(TWINS)  # so that no draw leaves a pair of names out

    def __init__(self, backend: Any, place: TrialPlace) -> None:
        self.backend, self.place = backend, place
        is_our_tier = sound_of(backend) is ObjectStoreOffloader or issubclass(backend, ObjectStore)
        self.codings = ("lz4", "zstd") if is_our_tier else ()
        if not is_our_tier:
            self.many_fragments = 1030  # as `OffloaderBackend` has it

    def open_offloader(self) -> LedgerOffloader:
        opened = self.place.open(self.backend)
        return ObjectStoreOffloader(opened) if isinstance(opened, ObjectStore) else opened

    def open_coded(self, coding: str) -> LedgerOffloader:
        options = TierOptions(compression=Compression.parse(coding))
        return self.backend(MemoryStore(objects=self.place.objects), options=options)  # type: ignore[no-any-return]

    def keys_in_store(self) -> set[str]:
        return self.place.keys(self.backend)

    def files_in_place(self) -> Sequence[Path] | None:
        if getattr(self.backend, "keys_at", lambda url: "")(self.place.url) is not None:
            return None
        return [path for path in self.place.folder.rglob("*") if path.is_file()] or None


class _Tiers(ProtocolConformance):
    """The protocol's layer over a store, or with a tier over a sound store."""

    def __init__(self, backend: Any, place: TrialPlace) -> None:
        self.backend, self.place = backend, place

    def open_store(self) -> ObjectStore:
        is_store = issubclass(self.backend, ObjectStore)
        return self.place.open(self.backend if is_store else MemoryStore)  # type: ignore[no-any-return]

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        if issubclass(self.backend, LedgerOffloader):
            return self.backend(store, env=env, options=options)  # type: ignore[no-any-return]
        return super().open_tier(store, env=env, options=options)

    def keys_in_store(self) -> set[str]:
        return {*self.place.objects}


SUITES: Final[dict[str, Any]] = {"store": _Stores, "contract": _Offloaders, "protocol": _Tiers}


def clauses_of(layer: str) -> list[str]:
    """Return the ids of all clauses of a layer."""
    return [
        f"{layer}/{name.removeprefix('test_')}" for name in dir(SUITES[layer]) if name.startswith("test_")
    ]


def tried(bug: Bug) -> str | None:
    """Return what is wrong with a bug, or None: its clause and its proof find it, and not its sound class."""
    if (failure := verdict(bug.sound, bug.clause)) is not None:
        return f"its sound class fails, by {failure!r}:"
    failure = verdict(bug.backend, bug.clause)
    if failure is None:
        return "missed:"
    if bug.proof is None and not isinstance(failure, BREACHES):
        return f"a faulty program, by {failure!r}:"
    return None if bug.proof is None else proved(bug, bug.proof)


def verdict(backend: Any, clause: str) -> BaseException | None:
    """Return the error of a clause, with the first arguments with which it fails; None if it passes."""
    layer, _, name = clause.partition("/")
    method = getattr(SUITES[layer], f"test_{name}")
    samples = [simple, clock_goes_back] if "sample" in inspect.signature(method).parameters else [None]
    try:
        for arguments, sample in itertools.product(_parameters_of(method), samples):
            with TemporaryDirectory() as folder, _same_draws():
                suite = SUITES[layer](backend, TrialPlace(Path(folder)))
                _call(suite, method.__name__, arguments | ({"sample": sample} if sample else {}))
    except pytest.skip.Exception:
        return None
    except (Exception, asyncio.CancelledError, pytest.fail.Exception) as failure:  # noqa: BLE001 - a breach may show in any way
        return failure
    return None


def proved(bug: Bug, proof: Proof) -> str | None:
    """Return what is wrong with a proof, or None: it passes on the sound class and fails on the bug."""
    with TemporaryDirectory() as folder:
        try:
            asyncio.run(_run(proof, bug.sound, TrialPlace(Path(folder))))
        except Exception as failure:  # noqa: BLE001 - a mistake may show in any way
            return f"its proof fails on the sound class, by {failure!r}:"
    with TemporaryDirectory() as folder:
        try:
            asyncio.run(_run(proof, bug.backend, TrialPlace(Path(folder))))
        except Exception as shown:  # noqa: BLE001 - as above
            is_stale = isinstance(shown, NameError) or (
                isinstance(shown, AttributeError) and shown.obj is not None
            )
            return f"it uses a name that is gone: {shown!r}:" if is_stale else None
    return "its proof passes on the bug:"


@contextmanager
def _same_draws() -> Iterator[None]:
    """Draw the same values in every run. Calls that fail are not shown, so fewer calls are not looked for."""
    before = settings.default
    settings.register_profile("planted bugs", before, derandomize=True, deadline=None)
    settings.load_profile("planted bugs")
    phases = SimpleNamespace(generate=Phase.generate, shrink=Phase.generate)
    try:
        with (
            patch.object(model, "Phase", phases),
            patch.object(hypothesis.core, "global_force_seed", 0),
            by_seed_alone(),
        ):
            random.seed(0)
            yield
    finally:
        settings.register_profile("before planted bugs", before)
        settings.load_profile("before planted bugs")


async def _run(proof: Proof, backend: Any, place: TrialPlace) -> None:
    """Run a proof within its time, and close every client that it opened."""
    opened: list[Any] = []

    def open_() -> Any:
        opened.append(place.open(backend))
        return opened[-1]

    try:
        async with asyncio.timeout(PROOF_SECONDS_MAX):
            await proof(open_)
    finally:
        for each in opened:
            with suppress(BaseException):  # the bug may be in `aclose` too
                async with asyncio.timeout(2):
                    await each.aclose()


def _parameters_of(method: Any) -> Iterator[dict[str, Any]]:
    """Yield each set of arguments with which pytest would call a parametrized test."""
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        found: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            found |= zip(names, [value] if isinstance(mark.args[0], str) else value, strict=True)
        yield found


def _call(suite: Any, name: str, arguments: dict[str, Any]) -> None:
    """Call one test as pytest would, with its fixtures."""
    method = getattr(suite, name)
    wanted = inspect.signature(method).parameters
    with asyncio.Runner() as runner:

        def run(call: Coroutine[Any, Any, Any]) -> Any:
            async def within_time() -> Any:
                async with asyncio.timeout(CLAUSE_SECONDS_MAX):
                    return await call

            return runner.run(within_time())

        fixtures: dict[str, Callable[[], Any]] = {"run": lambda: run}
        if isinstance(suite, _Offloaders):
            offloader = suite.open_offloader()
            fixtures |= {
                "opened": lambda: suite.open_offloader,
                "offloader": lambda: offloader,
                "other": suite.open_offloader,
                "writer": lambda: runner.run(StreamWriter.claim(offloader, "orders")),
                "sample": arguments.pop("sample", simple),
            }
        elif isinstance(suite, _Tiers):
            fixtures |= {
                "new_world": lambda: Worlds(suite.open_store, suite.open_tier),
                "opened": lambda: suite.open_offloader,
            }
        else:
            fixtures |= {"store": suite.open_store, "other": suite.open_store}
            fixtures["open_client"] = lambda: suite.open_store
            fixtures |= {"findings": dict, "note": lambda: lambda words: None}
        method(**{each: make() for each, make in fixtures.items() if each in wanted}, **arguments)
