"""The writers that Spark calls: `df.write.format("offload")` and `writeStream`. `writing` does the work.

Spark makes a writer beside the driver and pickles it for the tasks. For each batch of a streaming query it
makes two more: one to write and one to commit. Invariant: so a writer holds plain values, and the messages of
the tasks bring what a commit must know.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import Misuse
from offload_spark.options import WriteOptions
from offload_spark.writing import Ticket, WrittenTask, begin, commit, give_up, withdraw, write_part

T = TypeVar("T")

TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "offset": (LongType, IntegerType),
    "value": (BinaryType, StringType),
    "timestamp": (TimestampType,),
    "key": (BinaryType, StringType),
    "stream": (StringType,),
    "ledger": (LongType,),
    "part": (IntegerType,),
}
"""The columns of a write. The last three are ignored: a frame that was read has them."""

REQUIRED = ("offset", "value")


@dataclass
class Message(WriterCommitMessage):
    """A task's message to the driver."""

    part: WrittenTask


class _Writes:
    """The common base of both writers."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, env: Env = REAL_ENV
    ) -> None:
        if overwrite:
            raise Misuse('a stream can only be appended to: use mode("append") or outputMode("append")')
        check_columns(schema)
        # Drawn before Spark pickles the writer, so all tries of its tasks have the same time and the same
        # run. The environment itself is not kept: it cannot be pickled.
        self._options, self._now_ms, self._run_id = options, env.now_ms(), env.uuid()

    def _written(self, ticket: Ticket, batches: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        if context is None:
            raise Misuse("rows can only be written in a task of Spark's")
        # Unique within the application, even if a task or a whole stage is repeated. So no two tries share
        # an attempt.
        number = context.taskAttemptId()
        return Message(write_part(self._options, ticket, batches, number=number, timestamp_ms=self._now_ms))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        self._run(lambda offloader: commit(offloader, self._options.stream, parts))

    def _drop(self, ticket: Ticket) -> None:
        """Drop the attempts of a failed write, and the stream if the write began it and nobody uses it."""
        name, job = self._options.stream, ticket.job
        self._run(lambda offloader: give_up(offloader, name, job))
        self._run(lambda offloader: withdraw(offloader, name, ticket.begun, job=job))

    def _run(self, ask: Callable[[LedgerOffloader], Coroutine[Any, Any, T]]) -> T:
        with self._options.tier.opened() as tier:
            return tier.run(ask(tier.offloader))


class Writer(_Writes, DataSourceArrowWriter):
    """A write of all rows of a frame, or of none."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, env: Env = REAL_ENV
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite, env=env)
        self._begun = self._run(lambda offloader: begin(offloader, options, env=env))
        name = options.write_id
        self._ticket = Ticket.of(self._begun, run=self._run_id, job=name, write=name, env=env)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write a task's rows."""
        return self._written(self._ticket, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the write after all tasks succeeded."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the write after a task or the commit failed. Deletes a stream that this write began."""
        # The attempts go in any case. The stream goes only if this write began it and nobody else uses it.
        self._drop(self._ticket)


class StreamingWriter(_Writes, DataSourceStreamArrowWriter):
    """A write of a streaming query's batches. The name of each is the query's id and the batch's number."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, env: Env = REAL_ENV
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite, env=env)
        if options.write_id:
            # With one name for all batches, the second would look like a repetition of the first.
            raise Misuse("the batches of a query have names of their own: remove writeId")
        self._begun = self._run(lambda offloader: begin(offloader, options, env=env))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write a task's rows of one batch."""
        return self._written(self._ticket(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit a batch after all its tasks succeeded."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Drop a batch after a task or the commit failed. Deletes a stream that this batch began.

        If no task succeeded, an empty stream may be left.
        """
        # This writer did not send the tasks, so only their messages name the job. Without any message the
        # attempts stay until the next batch of the query, which has the same job, drops them.
        for ticket in {part.ticket for part in _parts(messages)}:
            self._drop(ticket)

    def _ticket(self) -> Ticket:
        """Return the ticket of the batch. Only a task can know the query and the batch, from its context."""
        context = TaskContext.get()
        if context is None:
            raise Misuse("a batch of a query can only be written in a task of Spark's")
        query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        # All batches of a query are one job, so each commit drops what a killed driver left of earlier ones.
        # The write's name has the batch, so a batch that Spark repeats is recognized.
        return Ticket.of(
            self._begun,
            run=self._run_id,
            job=f"query {query}",
            write=f"query {query} batch {batch}",
        )


def check_columns(schema: StructType) -> None:
    """Raise `Misuse` that names the first column that cannot be written, or that is missing."""
    for field in schema.fields:
        kinds = TAKEN.get(field.name)
        if kinds is None:
            raise Misuse(f"a stream has no column {field.name!r}; its columns are {', '.join(TAKEN)}")
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds)
            raise Misuse(f"column {field.name!r} must be {wanted}, not {field.dataType.simpleString()}")
    for name in REQUIRED:
        if name not in schema.names:
            hint = "; offload_spark.append numbers the rows" if name == "offset" else ""
            raise Misuse(f"a write needs a column {name!r}{hint}")


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenTask]:
    """Return the parts of the tasks that sent one."""
    # Spark passes None for a task that failed.
    return [message.part for message in messages if isinstance(message, Message)]
