"""A write in parallel: each task uploads its rows as a guest of the stream, the driver makes one commit.

    stopped                  left behind                    cured by
    before the commit        attempts of the job that run,  the same write again, in the end; or `give_up`
                             and a stream that it began     and `withdraw`
    a task that is repeated  the attempt of the first try   the commit, or the abort, of this write
    after the commit         nothing, or such attempts      the same write again: it is found, not repeated

A write that has a name is recognized by it: the attempts' UUIDs begin with a token that is made of the name,
and so does each entry. Invariants: rows have offsets, so nothing is ever appended twice or in another order;
what is named is what one run of the write uploaded; the tasks of a run know it by its job.
(docs/commit-protocol.md, step "guests")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import pyarrow as pa

from offload.blocking import Blocking
from offload.commit.guest import Delete
from offload.contracts.offloader import LedgerOffloader
from offload.errors import Conflict, Misuse, NotOffloaded, OutcomeUnknown, StreamDeleted
from offload.model.attempt import Receipt
from offload.model.entry import Entry, EntryKind, entries_of_rows
from offload.model.manifest import Manifest
from offload.model.tokens import token_for, token_of
from offload.streams.job import Job
from offload.streams.writer import StreamWriter
from offload_spark.framing import Framer
from offload_spark.options import WriteOptions
from offload_spark.spares import Spares, own_attempt
from offload_spark.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """By what the tasks and the driver know a write, and recognize it when it comes again."""

    incarnation: UUID
    """Of the stream that is written to. One that was begun again since is another stream."""

    job: UUID
    token: bytes
    """Empty where the write has no name."""

    run: UUID
    """Of this run of the write. Every try of its tasks has it, and no other run."""

    @classmethod
    def of(cls, incarnation: UUID, *, run: UUID, job: str = "", write: str = "") -> Ticket:
        """For a write of this name, as a job of that one; where a name is empty, it is like no other."""
        uid = uuid5(NAMESPACE_URL, f"write#{incarnation}#{job}") if job else uuid4()
        return cls(incarnation=incarnation, job=uid, token=token_for(write), run=run)

    @property
    def spares(self) -> Spares:
        """Where the tries of its tasks find their attempts."""
        return Spares(job=self.job, token=self.token, run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """What a task tells the driver."""

    ticket: Ticket
    receipt: Receipt | None = None
    """None where there were no rows, or where they are in the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The stream that a write goes to. Goes to every task, so it is small."""

    incarnation: UUID
    writer: UUID | None
    """Who claimed the stream, if this write began it."""


async def begin(offloader: LedgerOffloader, options: WriteOptions) -> Begun:
    """Load the stream that is written to. One that the tier does not have is begun."""
    await offloader.open(create=True)
    try:
        manifest = await offloader.load_manifest(options.stream)
    except NotOffloaded:
        writer = await StreamWriter.claim(offloader, options.stream, first_offset=options.first_offset)
        return Begun(incarnation=writer.manifest.incarnation, writer=writer.manifest.writer)
    return Begun(incarnation=manifest.incarnation, writer=None)


async def withdraw(offloader: LedgerOffloader, stream: str, begun: Begun, *, job: UUID) -> None:
    """Delete the stream that a failed write began, unless somebody else than its own job uses it by now.

    A task that Spark has not ended yet may announce attempts of the job up to the last moment.
    """
    if begun.writer is None:
        return
    change = Delete(incarnation=begun.incarnation, unused_by=frozenset([begun.writer, job]))
    with suppress(Conflict, StreamDeleted):
        base = await offloader.load_manifest(stream)
        await offloader.commit_manifest(stream, change, base=base, committer=uuid4())


def write_part(
    options: WriteOptions,
    ticket: Ticket,
    batches: Iterable[pa.RecordBatch],
    *,
    number: int,
    timestamp_ms: int,
) -> WrittenPart:
    """What a task does with its rows. Raises `Misuse` for rows that make no stream, and as `upload`."""
    spool, framer = Spool(), Framer(stream=options.stream, timestamp_ms=timestamp_ms)
    try:
        for batch in batches:
            check_keys(batch)
            spool.add(framer.chunks(batch))
        if spool.is_empty:
            return WrittenPart(ticket=ticket)
        with Blocking(options.url, storage_options=dict(options.storage_options)) as tier:
            return tier.run(upload(tier.offloader, options.stream, ticket, spool, number=number))
    finally:
        spool.close()


def check_keys(batch: pa.RecordBatch) -> None:
    """A plain record has no key to keep; one that would be lost is refused."""
    if "key" in batch.schema.names and batch.column("key").null_count < batch.num_rows:
        raise Misuse(
            "column 'key': a stored record has no key of its own; drop the column, or put it in value"
        )


async def upload(
    offloader: LedgerOffloader, stream: str, ticket: Ticket, spool: Spool, *, number: int
) -> WrittenPart:
    """Upload under an attempt of this try's own, unless this write is in the stream by now.

    `number` is Spark's of the try, which no other one has. Raises `Conflict` where other rows stand at these
    offsets, and `StreamDeleted`.
    """
    job = await _job(offloader, stream, ticket)
    if spool.first_offset < job.manifest.next_offset:
        await _check_is_in(offloader, job.manifest, ticket, spool)
        return WrittenPart(ticket=ticket)
    manifest, attempt = await own_attempt(job, ticket.spares, number)
    spool.ledger_id = attempt.ledger_id
    receipt = await offloader.offload(spool, attempt, manifest=manifest, extra_metadata={})
    return WrittenPart(ticket=ticket, receipt=receipt)


async def commit(offloader: LedgerOffloader, stream: str, parts: Sequence[WrittenPart]) -> None:
    """Name what the tasks uploaded, and give up spares and what tries that failed left, all in one commit.

    Raises as `Job.append` does, above all `Conflict` where another appended first: nothing is named then.
    """
    if not parts:
        return
    job = await _job(offloader, stream, parts[0].ticket)
    receipts = [part.receipt for part in parts if part.receipt is not None]
    if receipts:
        await job.append(receipts, ends=True)
    await job.abort()  # what a late try announced meanwhile


async def give_up(offloader: LedgerOffloader, stream: str, job: UUID) -> None:
    """Drop what runs as this job's. Repeatable; what was committed stays."""
    await (await Job.begin(offloader, stream, uid=job)).abort()


async def find_write(offloader: LedgerOffloader, manifest: Manifest, token: bytes) -> range | None:
    """The offsets of a write, by its token, if it is among the newest fragments: last group, or later."""
    if not token:
        return None
    groups = manifest.entries[manifest.entries["kind"] > EntryKind.FRAGMENT]
    since = int(groups["first_offset"][-1]) if len(groups) else 0
    found: list[Entry] = []
    async with aclosing(offloader.tree(manifest).walk(since)) as runs:
        async for run in runs:
            found += [entry for entry in entries_of_rows(run) if token_of(entry.attempt) == token]
    return range(found[0].first_offset, found[-1].next_offset) if found else None


async def _job(offloader: LedgerOffloader, stream: str, ticket: Ticket) -> Job:
    return await Job.begin(offloader, stream, uid=ticket.job, incarnation=ticket.incarnation)


async def _check_is_in(offloader: LedgerOffloader, manifest: Manifest, ticket: Ticket, spool: Spool) -> None:
    """That these rows were named by an earlier run of this write."""
    where = f"stream {manifest.stream!r}: offsets {spool.first_offset} to {spool.next_offset}"
    if ticket.token and spool.first_offset < manifest.first_offset:
        raise OutcomeUnknown(f"{where} were trimmed in part; nothing tells whether this write put them there")
    tree = offloader.tree(manifest)
    for offset in (spool.first_offset, spool.next_offset - 1):
        found = await tree.find(offset)
        if found is None or not ticket.token or token_of(found.attempt) != ticket.token:
            raise Conflict(f"{where} do not continue it: it ends at {manifest.next_offset}")
