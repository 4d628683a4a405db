"""A write in parallel: each task uploads its rows as a guest of the stream, and the driver makes one commit.

    stopped                  left behind                     cured by
    before the commit        running attempts of the job,    the same write again, at its end; or `give_up`
                             and a stream that it began      and `withdraw`
    a task that is repeated  the attempt of the first try    the commit, or the abort, of this write
    after the commit         nothing, or such attempts       the same write again: it is found, not repeated

A write with a name is recognized by it: a token is made of the name, and the UUIDs of its attempts begin with
the token, and so do its entries in the manifest. Invariants: rows have offsets, so nothing is appended twice
or in another order; one commit names only uploads of one run of the write; the tasks of a run find it by its
job. (docs/commit-protocol.md, step "guests")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa

from offload.commit.guest import Delete
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import Conflict, Misuse, NotOffloaded, OutcomeUnknown, StreamDeleted
from offload.model.attempt import Receipt
from offload.model.entry import Entry, EntryKind, entries_of_rows
from offload.model.manifest import Manifest
from offload.model.tokens import token_for, token_of
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_spark.framing import Framer
from offload_spark.options import WriteOptions
from offload_spark.spare_attempts import Spares, own_attempt
from offload_spark.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The stream of a write. It is small, because every task gets it."""

    incarnation: UUID
    writer: UUID | None = None
    """The writer that claimed the stream, if this write began it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The identity of a write, for its tasks, its driver, and a repetition of the write."""

    incarnation: UUID
    """The incarnation of the stream. A stream that was deleted and begun again is another stream."""

    job: UUID
    token: bytes
    """The token of the write's name; empty if it has none."""

    run: UUID
    """The id of this run of the write. Every try of its tasks has it; another run has another id."""

    begun_by: UUID | None = None
    """The writer that began the stream for this write; None if the stream existed."""

    @classmethod
    def of(
        cls,
        begun: Begun,
        *,
        run: UUID,
        job: str = "",
        write: str = "",
        env: Env = REAL_ENV,
    ) -> Ticket:
        """Return the ticket of the write named `write` in the job named `job`. An empty name is unique."""
        uid = uuid5(NAMESPACE_URL, f"write#{begun.incarnation}#{job}") if job else env.uuid()
        token = token_for(write)
        return cls(incarnation=begun.incarnation, job=uid, token=token, run=run, begun_by=begun.writer)

    @property
    def begun(self) -> Begun:
        """The stream of the write, as `begin` returned it."""
        return Begun(incarnation=self.incarnation, writer=self.begun_by)

    @property
    def spares(self) -> Spares:
        """The attempts that are announced for the tries of its tasks."""
        return Spares(job=self.job, token=self.token, run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTask:
    """A task's report to the driver."""

    ticket: Ticket
    receipt: Receipt | None = None
    """The receipt of the upload; None if there were no rows, or if the stream has them already."""


async def begin(offloader: LedgerOffloader, options: WriteOptions, *, env: Env = REAL_ENV) -> Begun:
    """Load the stream of a write. Begin it if the tier does not have it."""
    await offloader.open(create=True)
    try:
        # An existing stream is not claimed, because that would fence its writer.
        manifest = await offloader.load_manifest(options.stream)
    except NotOffloaded:
        # Only a writer can begin a stream. The tasks write to it as guests.
        writer = await StreamWriter.claim(
            offloader, options.stream, first_offset=options.first_offset, env=env
        )
        return Begun(incarnation=writer.manifest.incarnation, writer=writer.manifest.writer)
    return Begun(incarnation=manifest.incarnation, writer=None)


async def withdraw(
    offloader: LedgerOffloader,
    stream: str,
    begun: Begun,
    *,
    job: UUID,
    env: Env = REAL_ENV,
) -> None:
    """Delete the stream that a failed write began, unless another writer or job uses it by now.

    Attempts of the write's own job do not count as use: a task that Spark has not ended yet may announce some
    up to the last moment.
    """
    if begun.writer is None:
        return
    # The condition is part of the change, and so checked again on the manifest that the commit replaces.
    change = Delete(incarnation=begun.incarnation, unused_by=frozenset([begun.writer, job]))
    with suppress(Conflict, StreamDeleted):
        base = await offloader.load_manifest(stream)
        await offloader.commit_manifest(stream, change, base=base, committer=env.uuid())


def write_part(
    options: WriteOptions,
    ticket: Ticket,
    batches: Iterable[pa.RecordBatch],
    *,
    number: int,
    timestamp_ms: int,
) -> WrittenTask:
    """Store a task's rows. Raises `Misuse` for rows that cannot be in a stream, and as `upload` does."""
    spool, framer = Spool(), Framer(stream=options.stream, timestamp_ms=timestamp_ms)
    try:
        for batch in batches:
            check_keys(batch)
            spool.add(framer.chunks(batch))
        if spool.is_empty:
            return WrittenTask(ticket=ticket)
        # Opened when all rows are spooled: a wrong row fails before an attempt is announced for it.
        with options.tier.opened() as tier:
            return tier.run(upload(tier.offloader, options.stream, ticket, spool, number=number))
    finally:
        spool.close()


def check_keys(batch: pa.RecordBatch) -> None:
    """Raise `Misuse` if a row has a key: a plain record has no key, so it would be lost."""
    if "key" in batch.schema.names and batch.column("key").null_count < batch.num_rows:
        raise Misuse(
            "column 'key': a stored record has no key of its own; drop the column, or put it in value"
        )


async def upload(
    offloader: LedgerOffloader, stream: str, ticket: Ticket, spool: Spool, *, number: int
) -> WrittenTask:
    """Upload under an attempt of this try's own, unless the stream has the rows of this write already.

    `number` is Spark's number of the try, which is unique. Raises `Conflict` if the stream has other rows at
    these offsets, and `StreamDeleted`.
    """
    job = await _job(offloader, stream, ticket)
    if spool.first_offset < job.manifest.next_offset:
        _check_begin(job.manifest, ticket, spool.first_offset)
    # Spark repeats a write whose commit it did not hear of. The rows are in then, and must not be uploaded.
    if spool.first_offset < job.manifest.next_offset:
        await _check_is_in(offloader, job.manifest, ticket, spool)
        return WrittenTask(ticket=ticket)
    # Announced before the upload: the objects of an attempt that no root announces could be swept.
    manifest, attempt = await own_attempt(job, ticket.spares, number)
    spool.ledger_id = attempt.ledger_id
    receipt = await offloader.offload(spool, attempt, manifest=manifest, extra_metadata={})
    return WrittenTask(ticket=ticket, receipt=receipt)


async def commit(offloader: LedgerOffloader, stream: str, parts: Sequence[WrittenTask]) -> None:
    """Append the uploads of the tasks, and drop spares and the attempts of failed tries, all in one commit.

    Raises as `Job.append` does, above all `Conflict` if another writer appended first, and `Misuse` if the
    write began the stream at another offset than that of its first row. Then nothing is in.
    """
    if not parts:
        return
    job = await _job(offloader, stream, parts[0].ticket)
    receipts = [part.receipt for part in parts if part.receipt is not None]
    if receipts:
        first = min(receipt.entries[0].first_offset for receipt in receipts)
        _check_begin(job.manifest, parts[0].ticket, first)
        # `ends` drops the job's other attempts in the same commit: no crash leaves them between two commits.
        await job.append(receipts, ends=True)
    await job.abort()  # attempts that a late try announced after that; no commit if there are none


async def give_up(offloader: LedgerOffloader, stream: str, job: UUID) -> None:
    """Drop the running attempts of this job. Repeatable; committed data stays."""
    await (await Job.begin(offloader, stream, uid=job)).abort()


async def find_write(offloader: LedgerOffloader, manifest: Manifest, token: bytes) -> range | None:
    """Return the offsets of a write by its token; None if it is not in the last group or behind it."""
    if not token:
        return None
    # Older groups are not searched: each would be one more request.
    groups = manifest.entries[manifest.entries["kind"] > EntryKind.FRAGMENT]
    since = int(groups["first_offset"][-1]) if len(groups) else 0
    found: list[Entry] = []
    async with aclosing(offloader.tree(manifest).walk(since)) as runs:
        async for run in runs:
            found += [entry for entry in entries_of_rows(run) if token_of(entry.attempt) == token]
    return range(found[0].first_offset, found[-1].next_offset) if found else None


async def _job(offloader: LedgerOffloader, stream: str, ticket: Ticket) -> Job:
    return await Job.begin(offloader, stream, uid=ticket.job, incarnation=ticket.incarnation)


def _check_begin(manifest: Manifest, ticket: Ticket, first_offset: int) -> None:
    """Raise `Misuse` if the write began the stream, and its first row is not at the stream's begin."""
    is_own = ticket.begun_by is not None and manifest.writer == ticket.begun_by
    if is_own and manifest.first_offset == manifest.next_offset != first_offset:
        begin = manifest.next_offset
        raise Misuse(
            f"stream {manifest.stream!r} is new and begins at offset {begin}, but its first row "
            f'has offset {first_offset}: write with option("firstOffset", {first_offset})'
        )


async def _check_is_in(offloader: LedgerOffloader, manifest: Manifest, ticket: Ticket, spool: Spool) -> None:
    """Raise `Conflict` unless an earlier run of this write appended these rows."""
    where = f"stream {manifest.stream!r}: offsets {spool.first_offset} to {spool.next_offset}"
    if ticket.token and spool.first_offset < manifest.first_offset:
        raise OutcomeUnknown(f"{where} were trimmed in part; it is unknown if this write appended them")
    tree = offloader.tree(manifest)
    # The two ends are enough: a write is one commit, so everything between two of its rows is its own.
    for offset in (spool.first_offset, spool.next_offset - 1):
        found = await tree.find(offset)
        if found is None or not ticket.token or token_of(found.attempt) != ticket.token:
            raise Conflict(f"{where} do not continue it: it ends at {manifest.next_offset}")
