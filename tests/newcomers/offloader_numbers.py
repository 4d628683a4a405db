"""Mistakes with large numbers."""

from __future__ import annotations

from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table
from offload.model.attempt import Leftover
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter


async def _numbers(open_: Open, *firsts: int, ledger_id: int = 5) -> None:
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


@bug(lambda open_: _numbers(open_, 2**63 - 2, 2**63 + 5, 2**64 - 20))
class OffsetsHaveASign(Table):
    """The column of offsets is signed: an offset of 2^63 or more raises `OverflowError`.

    Breaks "Copy every chunk of `handle`": offsets have 64 bits without a sign.
    """

    async def insert(self, stream: str, row: Row) -> None:
        row.entry.next_offset.to_bytes(8, "big", signed=True)
        await super().insert(stream, row)


async def _leftovers_beyond(open_: Open, first: int = 9_999_999_998) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s", first_offset=first)
    one = await uploaded(tier, writer, ledger(first))
    two = await uploaded(tier, writer, ledger(first + 3))
    next_ = await StreamWriter.claim(open_(), "s")
    assert next_.manifest.next_offset == first + 6, (one, two)


@bug(_leftovers_beyond)
class OffsetsAreTextOfTenDigits(Table):
    """Offsets are keys of ten digits, so that longer ones are sorted before shorter ones.

    Breaks "One chain from `next_offset` on", once offsets pass 10^10: leftovers of a crash are not found.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        rows = self.db.uploaded(manifest.stream, manifest.next_offset)
        running, found, next_offset = self.left(manifest), list[Leftover](), manifest.next_offset
        for row in sorted(rows, key=lambda row: f"{row.entry.first_offset:010}"):
            fits = row.entry.first_offset == next_offset and row.incarnation == manifest.incarnation
            if fits and running.get(row.entry.attempt) == row.entry.ledger_id:
                found.append(self.leftover(row))
                next_offset = row.entry.next_offset
        return found
