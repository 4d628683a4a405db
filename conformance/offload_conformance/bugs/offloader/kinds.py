"""Bugs of attempts of another kind than a writer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Corrupt, OffloadError, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.manifest import AttemptKind, Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


def kind_of(attempt: Attempt, manifest: Manifest) -> AttemptKind | None:
    """Return the kind of an attempt that runs."""
    return next((each.kind for each in manifest.running if each.attempt == attempt.uid), None)


@bug("contract/attempts_of_every_kind_are_checked")
class SkipsDamageInCopies(ObjectStoreOffloader):
    """Leaves damaged chunks out of a copy, without an error.

    They were checked when they were first stored, so nobody expects damage.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        copying = super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        try:
            return await copying
        except Corrupt:
            if kind_of(attempt, manifest) is AttemptKind.COPY:
                return Receipt(attempt=attempt, entries=[])
            raise


@bug("contract/attempts_of_every_kind_are_whole")
class CountsCopiesAsFresh(ObjectStoreOffloader):
    """Does not mark the fragments of a copy as copied.

    Copies go the way of fresh data, and nobody passes on what they are for.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        receipt = await super().offload(*args, **options)
        return replace(receipt, entries=[replace(entry, copied=0) for entry in receipt.entries])


@bug("contract/errors_of_the_source_keep_their_class")
class TakesErrorsForItsOwn(ObjectStoreOffloader):
    """Raises `TryAgain` for every error of the source.

    One `except` around the whole upload, for errors of the store.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        try:
            return await super().offload(*args, **options)
        except Corrupt:
            raise
        except (OffloadError, OSError) as error:
            raise TryAgain(str(error)) from error
