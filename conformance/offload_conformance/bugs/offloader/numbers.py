"""Bugs of numbers: columns that are too narrow, signed, or floating-point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.write.writer import StreamWriter
from offload_conformance.bugs.offloader.shared import Altering, Around
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    trimmed,
    uploaded,
)
from offload_conformance.bugs.sound.table import FragmentRow, Table
from offload_conformance.bugs.sound.writers import Handle, chunks, writer


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


async def _only_reaches_below(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=at) for at in (0, 3, 6)))
    entries = await entries_of(tier, writer.manifest)
    manifest = await trimmed(tier, "s", 3)
    handle = await tier.read_offloaded(attempt_of("s", entries[1]), manifest=manifest, only=range(100))
    assert (handle.first_offset, handle.next_offset) == (3, 6)


@bug("contract/numbers_that_nothing_has_find_nothing", _only_reaches_below)
class OnlyBeginsInTheStream(Table):
    """The offsets that a caller wants are looked up from the first one on, and a trimmed one has no fragment.

    Breaks "`only` narrows the handle to the fragments that hold some of these offsets". Costs a reader that
    asks from an offset which was just trimmed: it is told that nothing is there.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        if only is not None and only.start < manifest.first_offset:
            return []
        return await super().entries_of(attempt, manifest, only)


async def _long_ledger_ids(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, ledger_id=2**53 + 1))
    assert receipt.entries[0].ledger_id == 2**53 + 1


@bug("contract/ledger_ids_are_exact", _long_ledger_ids)
class LedgerIdsAreDoubles(Table):
    """Ids of ledgers pass through JSON, whose numbers are doubles in the other program.

    Breaks "The id of the ledger". Costs a broker whose ids are hashes: its entries name ledgers that do not
    exist.
    """

    def row(self, *arguments: Any) -> FragmentRow:
        row = super().row(*arguments)
        rounded = min(int(float(row.entry.ledger_id)), 2**64 - 1)
        return replace(row, entry=replace(row.entry, ledger_id=rounded))


async def _numbers(open_: OpenClient, *firsts: int, ledger_id: int = 5) -> None:
    tier = open_()
    for first in firsts:
        stream = f"s{first}"
        await copied(
            tier, stream, ledger(first, ledger_id=ledger_id), ledger(first + 3, ledger_id=ledger_id + 1)
        )
        manifest = await open_().load_manifest(stream)
        assert (manifest.first_offset, manifest.next_offset) == (first, first + 6)
        for entry, at in zip(await entries_of(tier, manifest), (first, first + 3), strict=True):
            async with await tier.read_offloaded(attempt_of(stream, entry)) as handle:
                assert await all_of(handle) == b"".join(chunks_of(at))
                assert handle.ledger_id == entry.ledger_id == ledger_id + (at > first)


@bug("contract/numbers_are_exact", lambda open_: _numbers(open_, 2**63 - 2, 2**63 + 5, 2**64 - 20))
class OffsetsAreSigned(Table):
    """The column of offsets is signed: an offset of 2^63 or more raises `OverflowError`.

    Breaks "Copy every chunk of `handle`": offsets have 64 bits without a sign.
    """

    async def insert(self, stream: str, row: FragmentRow) -> None:
        row.entry.next_offset.to_bytes(8, "big", signed=True)
        await super().insert(stream, row)


async def shows_max_of_the_first(open_: OpenClient) -> None:
    first = 2**63 - 3
    w = await writer(open_(), first=first)
    attempt, raw = await w.prepare(), chunks(2, first)
    try:
        receipt = await w.tier.offload(Handle(raw), attempt, manifest=w.manifest, extra_metadata={})
    except Misuse:
        return
    await w.commit(w.append(receipt))
    assert await all_of(await w.tier.read_offloaded(attempt)) == raw


@bug("contract/numbers_are_exact", shows_max_of_the_first)
class MaxOfTheFirst(Table):
    """The database keeps offsets in 63 bits, and only the first offset of a ledger is checked.

    Breaks "a backend that keeps only 63 raises `Misuse` for a ledger that goes further": it is stored, and
    never read again.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if handle.first_offset >= 2**63:
            raise Misuse(f"{self.url} keeps offsets of 63 bits")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    def fetched(self, stream: str, entry: Entry) -> FragmentRow:
        entry.next_offset.to_bytes(8, "big", signed=True)
        return super().fetched(stream, entry)
