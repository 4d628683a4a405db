"""Tests that errors can cross processes, because Spark workers and pools pickle them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from offload.ground import errors
from offload.ground.errors import (
    AlreadyExists,
    AnchorLost,
    Corrupt,
    Diverged,
    Divergence,
    Fenced,
    NotFound,
    OffloadError,
    RootsLost,
    StreamDeleted,
)

WITH_ATTRIBUTES = (
    Fenced("epoch 4 is behind", epoch=5),
    StreamDeleted("orders is gone", epoch=6),
    NotFound("streams/orders/root", store="file:///srv/tier"),
    AlreadyExists("streams/orders/root"),
    Corrupt("magic", "a.fragment", expected=b"OFTR", found=b"\0", position=7, stream="orders"),
    AnchorLost("orders/stream.anchor", tier="file:///srv/tier", stream="orders"),
    RootsLost("a exists", "a", stream="orders", tier="file:///srv/tier", expected=1, found=None),
    Diverged("stream 'orders': there is a gap", kind=Divergence.GAP),
)


def classes(above: type[OffloadError] = OffloadError) -> Iterator[type[OffloadError]]:
    yield above
    for kind in above.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from classes(kind)


def examples() -> list[OffloadError]:
    """Return one error of every class."""
    made = {type(error): error for error in WITH_ATTRIBUTES}
    return [made.get(kind) or kind("a text", 2) for kind in classes()]


@pytest.mark.parametrize("error", examples(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(error: OffloadError, protocol: int) -> None:
    error.add_note("said on the way")

    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again) == vars(error)
