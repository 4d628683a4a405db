"""One class per backend: its author says how to open it, and pytest collects every layer of the contract.

Each layer is a test class of its own, because two layers may use one name for different claims. The class of
the author extends `StoreBackend` or `OffloaderBackend`, and gets one nested class for each layer. The nested
classes extend the author's class. So every layer has the author's methods and fixtures, and pytest finds all
layers.
"""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import pytest

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX, Capabilities
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.model.compression import Compression
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload_conformance.asynchronous import CLAUSE_SECONDS_MAX, Asynchronous
from offload_conformance.declared import Declared
from offload_conformance.offloader import OffloaderConformance
from offload_conformance.opened import KIB
from offload_conformance.patience import PatientOffloader, PatientStore
from offload_conformance.place import has_retries, tier_like
from offload_conformance.protocol import ProtocolConformance, WalkConformance
from offload_conformance.protocol.base import patient
from offload_conformance.store import StoreConformance


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the tests for a backend."""

    key_size_bytes_max: int = KEY_SIZE_BYTES_MAX
    """The longest key that the tests use. A store with a lower limit declares that in its `Capabilities`."""

    huge_chunk_size_bytes: int = 3 * KIB * KIB
    """The size of a huge chunk. Lower it for an offloader that cannot take so large a chunk."""

    tiny_chunks: int = 3000
    """The length of a stream of tiny chunks. Lower it for an offloader that is too slow for so many."""

    walk_examples: int = 10
    """The number of random walks of changes. More walks find more bugs and take longer."""

    walk_steps: int = 20
    """The largest number of changes and reads in a walk."""

    upload_size_bytes: int = 0
    """The size of the upload in many parts, up to 5 GiB. 0 means as small as the store's parts may be."""

    listing_keys: int = 0
    """The length of the longest listing. 0 means 10,050, or 1,100 if so many creates take long."""

    model_examples: int = 30
    """The number of random sequences of calls that are compared with a dictionary."""

    clause_seconds_max: float = CLAUSE_SECONDS_MAX
    """The deadline of each case of a clause, after which it fails. Raise it for a slow store."""


class _Backend(ABC):
    """The base of both kinds. Every test gets a fresh `folder` and `name` to use."""

    limits: ClassVar[Limits] = Limits()
    """Optional: limits of the tests."""

    folder: Path
    """A folder that does not exist yet, in a temporary folder of the test's own."""

    name: str
    """A unique name: for a bucket, a prefix, a table."""

    layers: ClassVar[tuple[type[Asynchronous], ...]] = ()

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """Return the keys that are really stored, found by other means than the backend."""

    def borrow_backend(self, *, is_kept: bool = True) -> Any:
        """Return a client that may have served other tests. The command overrides this.

        With `is_kept`, closing it changes nothing. By default, it is a fresh client.
        """
        return self.open_backend()

    async def give_back(self, client: Any) -> None:
        """End the use of a client of the layer `store`: by default, close it. The command overrides this."""
        await client.aclose()

    @abstractmethod
    def open_backend(self) -> Any:
        """Return a fresh client of the same place at every call. The place is empty when a test begins."""

    def note_retry(self) -> None:
        """Count a call that is repeated because the backend refused it for now.

        The command overrides this.
        """

    @pytest.fixture(autouse=True)
    def _fresh_place(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "place"
        self.name = f"conformance-{uuid4()}"

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Create the classes that pytest collects, unless this class is one of them."""
        super().__init_subclass__(**arguments)
        if not issubclass(cls, Asynchronous):
            for layer in cls.layers:
                made = _collected(cls, layer)
                setattr(cls, made.__name__, made)


class _AsStore(StoreConformance):
    open_backend: Any
    borrow_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        return PatientStore(self.open_backend(), self.note_retry)

    def borrow_store(self) -> ObjectStore:
        return PatientStore(self.borrow_backend(is_kept=False), self.note_retry)


class _AsTier(OffloaderConformance):
    borrow_backend: Any
    note_retry: Any
    every_case = False
    many_streams = 20
    many_fragments = 24

    codings = ("lz4", "zstd")

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(PatientStore(self.borrow_backend(), self.note_retry))

    def open_coded(self, coding: str) -> LedgerOffloader:
        store = PatientStore(self.borrow_backend(), self.note_retry)
        return ObjectStoreOffloader(store, options=TierOptions(compression=Compression.parse(coding)))


class _AsProtocol(ProtocolConformance):
    borrow_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        return PatientStore(self.borrow_backend(), self.note_retry)


class _AsOffloader(OffloaderConformance):
    open_backend: Any
    note_retry: Any
    many_streams = 1100
    """More streams than a page of any listing has. For stores, the layer `store` tests long listings."""

    many_fragments = 1030
    """More fragments than a page has rows, and than the entries of a manifest that has groups."""

    def open_offloader(self) -> LedgerOffloader:
        return PatientOffloader(self.open_backend(), self.note_retry)


class _AsWalked(WalkConformance):
    open_backend: Any
    note_retry: Any

    def open_offloader(self) -> LedgerOffloader:
        return PatientOffloader(self.open_backend(), self.note_retry)


class _AsTierUnderFaults(ProtocolConformance):
    """The whole protocol for an offloader on a store, with faults before that store."""

    open_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        """Return the store beneath the offloader."""
        return PatientStore(self.open_backend().data, self.note_retry)

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        """Return another offloader of the same class, with retries: its own, or else the suite's."""
        opened = self.open_backend()
        made = tier_like(opened, store, env=env, options=options)
        if has_retries(made.data, before=store):
            return made
        return tier_like(opened, patient(store, env), env=env, options=options)


_NAMES: Final = {
    _AsStore: "TestStore",
    _AsTier: "TestOffloader",
    _AsProtocol: "TestProtocol",
    _AsOffloader: "TestOffloader",
    _AsWalked: "TestProtocol",
    _AsTierUnderFaults: "TestProtocol",
}

SUITES: Final = (_AsStore, _AsTier, _AsProtocol)
"""Classes that contain every clause together."""


def _collected(author: type[_Backend], layer: type[Asynchronous]) -> type:
    """Return the class with one layer's tests on the author's place, without the author's own tests."""
    hidden = {name: None for name in dir(author) if name.lower().startswith("test")}
    names = {
        "__doc__": layer.__doc__,
        "__module__": author.__module__,
        "__qualname__": f"{author.__qualname__}.{_NAMES[layer]}",
        "key_size_bytes_max": author.limits.key_size_bytes_max,
        "huge_chunk_size_bytes": author.limits.huge_chunk_size_bytes,
        "tiny_chunks": author.limits.tiny_chunks,
        "walk_examples": author.limits.walk_examples,
        "walk_steps": author.limits.walk_steps,
        "upload_size_bytes": author.limits.upload_size_bytes,
        "listing_keys": author.limits.listing_keys,
        "model_examples": author.limits.model_examples,
        "clause_seconds_max": author.limits.clause_seconds_max,
    }
    return ABCMeta(_NAMES[layer], (author, layer), hidden | names)


class StoreBackend(_Backend):
    """The tests of an object store: as a store, as a tier, and as the base of the commit protocol."""

    layers = (_AsStore, _AsTier, _AsProtocol)

    capabilities: ClassVar[Capabilities | Declared | None] = None
    """Optional: the exact capabilities that the store must declare, or a state for each of them."""

    @abstractmethod
    def open_backend(self) -> ObjectStore:
        """Return a fresh client of the same place at every call. The place is empty when a test begins."""


class OffloaderBackend(_Backend):
    """The tests of an offloader of the author's own."""

    layers: ClassVar[tuple[type[Asynchronous], ...]] = (_AsOffloader, _AsWalked)

    on_a_store: ClassVar[bool] = False
    """Optional: True if `open_backend` returns an `ObjectStoreOffloader` whose class takes any store, and the
    options `env` and `options`. Then the whole protocol is tested, with faults before its store."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Choose the layers of the tests."""
        if cls.on_a_store and not issubclass(cls, Asynchronous):
            cls.layers = (_AsOffloader, _AsTierUnderFaults)
        super().__init_subclass__(**arguments)

    @abstractmethod
    def open_backend(self) -> LedgerOffloader:
        """Return a fresh offloader on the same place at every call. The place is empty when a test begins."""
