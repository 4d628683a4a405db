"""The base of every family of offloader clauses: the place, its clients, and small steps.

Invariant: the clauses use only the contract of the offloader under test. They know nothing of objects, keys
or files, so a database can pass them as well as a bucket.
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
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.ledgers import MemoryLedger
from offload_conformance.opened import OpenedOffloaders


class OffloaderClauses(OpenedOffloaders):
    """The layer `contract`: the promises of every offloader, wherever it keeps its bytes."""

    layer = "contract"

    async def replace(self, offloader: LedgerOffloader, key: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the bytes of a key in `keys_in_store`, as decay or a careless person would.

        The author of an offloader without an object store overrides this.
        """
        store = getattr(offloader, "store", None)
        if not isinstance(store, ObjectStore):
            pytest.skip("the suite does not know how this offloader keeps its bytes: override `replace`")
        await store.put(key, Body.of(change(bytes(await store.get(key)))))


async def stored(writer: StreamWriter, ledger: ReadHandle, attempt: Attempt) -> Receipt:
    """Offload a ledger without committing it."""
    return await writer.offloader.offload(ledger, attempt, manifest=writer.manifest, extra_metadata={})


async def committed(writer: StreamWriter, ledger: ReadHandle) -> Attempt:
    """Prepare, offload and commit one ledger."""
    [attempt] = await writer.prepare([ledger.ledger_id])
    await writer.append([await stored(writer, ledger, attempt)])
    return attempt


def append_of(writer: StreamWriter, receipt: Receipt) -> Append:
    """Return the change with which `writer` would commit this one receipt."""
    return Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))


def trim_of(writer: StreamWriter, receipt: Receipt) -> Trim:
    """Return the change that drops the fragments of this receipt, which is the first of its stream."""
    return trim_to(writer.manifest, receipt.entries)


def trim_to(manifest: Manifest, dropped: Sequence[Entry], *, ledgers: int = 1) -> Trim:
    """Return the change that drops these first fragments of a manifest, and with them so many ledgers."""
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
    """Delete the writer's stream, as anyone may. Return the change that did it."""
    change = Delete(incarnation=writer.manifest.incarnation)
    stream, base = writer.manifest.stream, writer.manifest
    await writer.offloader.commit_manifest(stream, change, base=base, committer=uuid4())
    return change


async def copied(offloader: LedgerOffloader, old: Sequence[Entry], ledger: MemoryLedger) -> Attempt:
    """Replace these fragments, which hold this ledger, by a copy."""
    job = await Job.begin(offloader, "orders", uid=uuid4())
    manifest, [attempt] = await job.prepare_copies([old])
    receipt = await offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})
    await job.replace(old, [receipt])
    return attempt


async def chunks_of(
    offloader: LedgerOffloader, attempt: Attempt, *, only: range | None = None
) -> list[bytes]:
    """Read every chunk of an attempt."""
    return await chunks_in(await offloader.read_offloaded(attempt, only=only))


async def chunks_in(opened: ReadHandle) -> list[bytes]:
    """Read every chunk of a handle, one by one, and close it."""
    async with opened as handle:
        table = await handle.table()
        return [bytes(await handle.read(table[row : row + 1])) for row in range(len(table))]


async def named(offloader: LedgerOffloader, manifest: Manifest) -> list[Entry]:
    """Return every fragment that a manifest names, in order."""
    found: list[Entry] = []
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            found += entries_of_rows(run)
    return found


def span(entry: Entry | None) -> tuple[int, int] | None:
    """Return the offsets that an entry holds."""
    return None if entry is None else (entry.first_offset, entry.next_offset)


async def left_by_a_crash(offloader: LedgerOffloader, stream: str) -> list[bytes]:
    """Take the stream as the next writer would, and return the chunks that it then holds."""
    successor = await StreamWriter.claim(offloader, stream)
    chunks: list[bytes] = []
    for entry in await named(
        offloader, successor.manifest
    ):  # by fragments and not by attempts, because fragments of two attempts may alternate
        attempt = Attempt(stream=stream, ledger_id=entry.ledger_id, uid=entry.attempt)
        chunks += await chunks_of(offloader, attempt, only=range(entry.first_offset, entry.next_offset))
    return chunks
