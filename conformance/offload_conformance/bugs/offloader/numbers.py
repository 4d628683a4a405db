"""Bugs of numbers: columns that are too narrow, signed, or floating-point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from offload.contracts.ledger import ReadHandle
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Altering, Around
from offload_conformance.bugs.registry import bug


@bug("contract/numbers_are_exact")
class KeepsDoubles(Altering):
    """Stores offsets as floating-point numbers.

    A document store has only doubles as numbers: beyond 2^53 every second integer is missing.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, next_offset=int(float(manifest.next_offset)))


@bug("contract/numbers_are_exact")
class NarrowsByDoubles(ObjectStoreOffloader):
    """Narrows a read by offsets that were converted to floating-point numbers.

    A JSON library decodes every number as a double.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(int(float(only.start)), int(float(only.stop)))
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("contract/numbers_are_exact")
class KeepsLedgersIn32Bits(Altering):
    """Stores the ids of ledgers in columns of 32 bits.

    `INTEGER` is that in most databases; RabbitMQ's first ledgers fit.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        running = tuple(replace(each, ledger_id=each.ledger_id % 2**32) for each in manifest.running)
        return replace(manifest, running=running, last_ledger_id=manifest.last_ledger_id % 2**32)


class _Short(Around):
    @property
    def ledger_id(self) -> int:
        return super().ledger_id % 2**31


@bug("contract/handles_tell_exact_numbers")
class TellsShortLedgers(ObjectStoreOffloader):
    """Reports only the last 31 bits of a ledger's id.

    A signed int, and a mask that keeps it positive.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Short.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/numbers_that_nothing_has_find_nothing")
class WrapsOffsets(ObjectStoreOffloader):
    """Takes the offsets of a read modulo 2^64.

    They pass through an unsigned integer of C on their way to an index.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        wrapped = None if only is None else range(only.start % 2**64, only.stop % 2**64)
        return await super().read_offloaded(attempt, manifest=manifest, only=wrapped)


@bug("contract/ledger_ids_are_exact")
class KeepsLedgersSigned(Altering):
    """Stores the id of the last ledger as a signed number of 64 bits.

    `BIGINT` is the largest integer of most databases.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, last_ledger_id=min(manifest.last_ledger_id, 2**63 - 1))
