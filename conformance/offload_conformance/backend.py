"""One class per backend: its author says how to open it, and every layer of the contract is collected.

Each layer is a class of tests of its own, because two layers may use one name for different claims. A
subclass of `StoreBackend` or `OffloaderBackend` is given these classes as its members, each of them also a
subclass of it: so what the author wrote, fixtures too, is at hand in every layer. Pytest finds them there.
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
from offload.env import Env
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
    """What a backend cannot be asked beyond."""

    key_size_bytes_max: int = KEY_SIZE_BYTES_MAX
    """Of the keys that are used. A store that takes no longer ones declares that in its `Capabilities`."""

    huge_chunk_size_bytes: int = 3 * KIB * KIB
    """Less for an offloader that cannot take so large a chunk."""

    tiny_chunks: int = 3000
    """Less for an offloader on which this takes too long."""

    walk_examples: int = 10
    """How many walks of changes are drawn; more find more, and take longer."""

    walk_steps: int = 20
    """How many changes and reads a walk has at most."""

    upload_size_bytes: int = 0
    """Of the upload in many parts: 5 GiB makes it as large as that; 0, as small as its parts may be."""

    listing_keys: int = 0
    """How many keys the longest listing has. 0: 10,050, or 1,100 if so many creates would take long."""

    model_examples: int = 30
    """How many sequences of calls are drawn and held against a dictionary."""

    clause_seconds_max: float = CLAUSE_SECONDS_MAX
    """The deadline of each case of a clause: one that is not through by then fails. More for a slow store."""


class _Backend(ABC):
    """What both kinds share. A fresh `folder` and `name` for every test are there to be used."""

    limits: ClassVar[Limits] = Limits()
    """Optional."""

    folder: Path
    """A folder that is not there yet, in a temporary one of the test's own."""

    name: str
    """A name that nothing else has: for a bucket, a prefix, a table."""

    layers: ClassVar[tuple[type[Asynchronous], ...]] = ()

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """What is really there, each object under its own name, found by other means than the backend."""

    def note_retry(self) -> None:
        """Hear that a call is repeated, because the backend refused it for now. The command counts these."""

    @pytest.fixture(autouse=True)
    def _fresh_place(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "place"
        self.name = f"conformance-{uuid4()}"

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Make the classes that pytest collects, unless this is one of them."""
        super().__init_subclass__(**arguments)
        if not issubclass(cls, Asynchronous):
            for layer in cls.layers:
                made = _collected(cls, layer)
                setattr(cls, made.__name__, made)


class _AsStore(StoreConformance):
    open_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        return PatientStore(self.open_backend(), self.note_retry)


class _AsTier(OffloaderConformance):
    open_backend: Any
    note_retry: Any

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(PatientStore(self.open_backend(), self.note_retry))


class _AsProtocol(ProtocolConformance):
    open_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        return PatientStore(self.open_backend(), self.note_retry)


class _AsOffloader(OffloaderConformance):
    open_backend: Any
    note_retry: Any
    many_streams = 1100
    """More than a page of any listing has. Of a store, its own layer asks for long listings."""

    def open_offloader(self) -> LedgerOffloader:
        return PatientOffloader(self.open_backend(), self.note_retry)


class _AsWalked(WalkConformance):
    open_backend: Any
    note_retry: Any

    def open_offloader(self) -> LedgerOffloader:
        return PatientOffloader(self.open_backend(), self.note_retry)


class _AsTierUnderFaults(ProtocolConformance):
    """For an offloader that is made of a store: the whole protocol, with faults before that store."""

    open_backend: Any
    note_retry: Any

    def open_store(self) -> ObjectStore:
        """Return what is beneath the offloader."""
        return PatientStore(self.open_backend().data, self.note_retry)

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        """Make one more of the offloader's class, with retries: its own, or else the suite's."""
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
"""Every clause is in one of them."""


def _collected(author: type[_Backend], layer: type[Asynchronous]) -> type:
    """One layer's tests, on the author's place. Nothing of the author's is collected here once more."""
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
    """An object store, held against the contract of the port, and as a tier against that of an offloader.

    As the store of a tier it is also asked for what the commit protocol rests on.
    """

    layers = (_AsStore, _AsTier, _AsProtocol)

    capabilities: ClassVar[Capabilities | Declared | None] = None
    """Optional: what the store must declare, exactly; or what is meant of each capability, in five states."""

    @abstractmethod
    def open_backend(self) -> ObjectStore:
        """A fresh client of the same place, at every call; the place is empty when a test begins."""


class OffloaderBackend(_Backend):
    """An offloader of the author's own, held against the offloader's contract."""

    layers: ClassVar[tuple[type[Asynchronous], ...]] = (_AsOffloader, _AsWalked)

    on_a_store: ClassVar[bool] = False
    """Optional: `open_backend` returns an `ObjectStoreOffloader` whose class takes any store, and the options
    `env` and `options`. It is then asked the whole protocol, with faults before its store."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Choose the layers."""
        if cls.on_a_store and not issubclass(cls, Asynchronous):
            cls.layers = (_AsOffloader, _AsTierUnderFaults)
        super().__init_subclass__(**arguments)

    @abstractmethod
    def open_backend(self) -> LedgerOffloader:
        """A fresh offloader on the same place, at every call; the place is empty when a test begins."""
