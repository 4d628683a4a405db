"""The test class that the black box makes for a URL, bound to the current place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.backend import Limits, OffloaderBackend, StoreBackend
from offload_conformance.contender import ContenderTask
from offload_conformance.current import CURRENT
from offload_conformance.place import UNSEEN, OffloaderPlace, StorePlace
from offload_conformance.recording import FolderAccount


def backend_class() -> type:
    """Return the test class for the current place."""
    place = CURRENT.get()
    if isinstance(place, StorePlace):
        return _store(place)
    assert isinstance(place, OffloaderPlace)
    return _offloader(place)


def _store(place: StorePlace) -> type:
    class TestBackend(StoreBackend):
        capabilities = place.meant
        limits = Limits(
            upload_size_bytes=place.upload_size_bytes,
            listing_keys=place.listing_keys,
            clause_seconds_max=place.clause_seconds_max,
        )

        @pytest.fixture(autouse=True)
        def _account(self, request: pytest.FixtureRequest) -> Iterator[None]:
            self.account = place.begin(request.node.nodeid)
            failed = request.session.testsfailed
            yield
            place.lending.end(passed=request.session.testsfailed == failed)
            place.clean(self.account)

        @pytest.fixture
        def run(self) -> Iterator[Run]:
            with place.lending.loop(place.clause_seconds_max) as run:
                yield run

        def note_retry(self) -> None:
            self.account.note_retry()

        def open_backend(self) -> ObjectStore:
            return place.open(self.account)

        def borrow_backend(self, *, is_kept: bool = True) -> ObjectStore:
            return place.borrow(self.account, is_kept=is_kept)

        async def give_back(self, client: ObjectStore) -> None:
            """Do nothing: all clients of a test are taken back at its end."""

        def open_unreachable(self) -> ObjectStore | None:
            return place.open_unreachable()

        def keys_in_store(self) -> set[str]:
            return place.keys(self.account)

        def keys_beside(self) -> set[str]:
            return place.top()

        def elsewhere(self, keys: Sequence[str]) -> ContenderTask:
            return place.job(self.account, keys)

    return TestBackend


def _offloader(place: OffloaderPlace) -> type:
    class TestBackend(OffloaderBackend):
        on_a_store = place.makes_tiers_of_stores()
        limits = Limits(clause_seconds_max=place.clause_seconds_max)
        account: FolderAccount

        @pytest.fixture(autouse=True)
        def _account(self, request: pytest.FixtureRequest) -> Iterator[None]:
            self.account = place.begin(request.node.nodeid)
            yield
            place.clean(self.account)

        def note_retry(self) -> None:
            self.account.note_retry()

        def open_backend(self) -> LedgerOffloader:
            return place.open(self.account)

        def keys_in_store(self) -> set[str]:
            found = place.keys(self.account)
            if found is None:
                pytest.skip(UNSEEN)
            return found

        def files_in_place(self) -> Sequence[Path] | None:
            return place.files(self.account) if place.keys(self.account) is None else None

    return TestBackend
