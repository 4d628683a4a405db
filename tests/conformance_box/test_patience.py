"""The wrappers that repeat calls hide no method of a backend: a default in its place would hide its bugs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from offload_conformance import patience

from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore, Upload
from offload.ground.errors import TryAgain
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator, UploadDecorator
from offload.write.writer import StreamWriter


@pytest.mark.parametrize(
    ("wrapper", "contract"),
    [
        (patience.PatientOffloader, LedgerOffloader),
        (patience._PatientView, StreamView),
        (patience._PatientHandle, ReadHandle),
        (patience.PatientStore, ObjectStore),
        (patience._PatientUpload, Upload),
    ],
)
def test_a_wrapper_passes_on_every_method_of_its_contract(wrapper: type, contract: type) -> None:
    of_contract = {name for base in contract.__mro__[:-1] for name in vars(base) if not name.startswith("_")}
    wrappers = (patience.RetryingStore, StoreDecorator, UploadDecorator)
    own = {name for base in (wrapper, *wrappers) if issubclass(wrapper, base) for name in vars(base)}

    assert of_contract - own == set()


class _RefusesWhatItDid(ObjectStoreOffloader):
    """Commits, and raises `TryAgain` after the second commit."""

    commits = 0

    async def commit_manifest(self, *args: Any, **options: Any) -> Manifest:
        done = await super().commit_manifest(*args, **options)
        self.commits += 1
        if self.commits == 2:
            raise TryAgain("the replica lags")
        return done


def test_a_commit_that_was_refused_and_is_there_is_a_breach() -> None:
    """A wrapper that only repeated the call would hide it: the repeat returns the newest manifest."""

    async def scenario() -> None:
        offloader = patience.PatientOffloader(_RefusesWhatItDid(MemoryStore()), lambda: None)
        writer = await StreamWriter.claim(offloader, "orders")

        with pytest.raises(AssertionError, match="expected that `TryAgain` commits nothing"):
            await writer.prepare([0])

    asyncio.run(scenario())
