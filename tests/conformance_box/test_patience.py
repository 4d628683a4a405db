"""The wrappers that repeat calls hide no method of a backend: a default in its place would hide its bugs."""

from __future__ import annotations

import pytest
from offload_conformance import patience

from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore, Upload
from offload.store.wrap import StoreDecorator, UploadDecorator


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
