"""What every family of an offloader's clauses stands on: the place, its clients, and small steps.

Invariant: nothing is asked of the offloader under test but its contract. The tests know of no objects,
keys or files, so a database passes them as a bucket does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from uuid import uuid4

import pytest

from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.commit.writer import Append
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Body, ObjectStore
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.streams.writer import StreamWriter
from offload_conformance.opened import OpenedOffloaders


class OffloaderClauses(OpenedOffloaders):
    """The layer of the contract: what any offloader promises, whatever it keeps its bytes in."""

    layer = "contract"

    async def replace(self, offloader: LedgerOffloader, key: str, change: Callable[[bytes], bytes]) -> None:
        """Put other bytes under a key of `keys_in_store`, as decay or a careless person would.

        An offloader that has no object store beneath it overrides this.
        """
        store = getattr(offloader, "store", None)
        if not isinstance(store, ObjectStore):
            pytest.skip("nothing is known of how this offloader keeps its bytes: override `replace`")
        await store.put(key, Body.of(change(await store.get(key))))


async def stored(writer: StreamWriter, ledger: ReadHandle, attempt: Attempt) -> Receipt:
    """Offload without committing."""
    return await writer.offloader.offload(ledger, attempt, manifest=writer.manifest, extra_metadata={})


async def committed(writer: StreamWriter, ledger: ReadHandle) -> Attempt:
    """Prepare, offload and commit one ledger."""
    [attempt] = await writer.prepare([ledger.ledger_id])
    await writer.append([await stored(writer, ledger, attempt)])
    return attempt


def append_of(writer: StreamWriter, receipt: Receipt) -> Append:
    """The change with which `writer` would commit this one receipt."""
    return Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))


def trim_of(writer: StreamWriter, receipt: Receipt) -> Trim:
    """The change that drops what this receipt, the first of its stream, made durable."""
    return trim_to(writer.manifest, receipt.entries)


def trim_to(manifest: Manifest, dropped: Sequence[Entry], *, ledgers: int = 1) -> Trim:
    """The change that drops the first fragments of a manifest. So many ledgers end with them."""
    until = dropped[-1].next_offset
    return Trim(
        incarnation=manifest.incarnation,
        since=dropped[0].first_offset,
        first_offset=until,
        dropped=TrimmedTotals(
            messages=sum(entry.messages for entry in dropped),
            data_size_bytes=sum(entry.data_size_bytes for entry in dropped),
            stored_size_bytes=sum(entry.stored_size_bytes for entry in dropped),
            fragments=len(dropped),
            ledgers=ledgers,
        ),
        counted=entries_before(manifest, until),
    )


async def deleted(writer: StreamWriter) -> Delete:
    """Delete the writer's stream, as anyone may; the change with which that was done."""
    change = Delete(incarnation=writer.manifest.incarnation)
    stream, base = writer.manifest.stream, writer.manifest
    await writer.offloader.commit_manifest(stream, change, base=base, committer=uuid4())
    return change


async def chunks_of(
    offloader: LedgerOffloader, attempt: Attempt, *, only: range | None = None
) -> list[bytes]:
    """Every chunk that is read back of an attempt."""
    async with await offloader.read_offloaded(attempt, only=only) as handle:
        table = await handle.table()
        return [await handle.read(table[row : row + 1]) for row in range(len(table))]


async def named(offloader: LedgerOffloader, manifest: Manifest) -> list[Entry]:
    """Every fragment that a manifest names, in order."""
    found: list[Entry] = []
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            found += entries_of_rows(run)
    return found


def span(entry: Entry | None) -> tuple[int, int] | None:
    """Which offsets an entry holds."""
    return None if entry is None else (entry.first_offset, entry.next_offset)


async def left_by_a_crash(offloader: LedgerOffloader, stream: str) -> list[bytes]:
    """Take the stream as the next writer would, and return the chunks that it then holds."""
    successor = await StreamWriter.claim(offloader, stream)
    chunks: list[bytes] = []
    for entry in await named(
        offloader, successor.manifest
    ):  # and not by attempts: fragments of two may alternate
        attempt = Attempt(stream=stream, ledger_id=entry.ledger_id, uid=entry.attempt)
        chunks += await chunks_of(offloader, attempt, only=range(entry.first_offset, entry.next_offset))
    return chunks
