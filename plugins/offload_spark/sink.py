"""What Spark calls to write: `df.write.format("offload")` and `writeStream`. The work is `writing`'s.

Spark makes a writer beside the driver, pickles it to the tasks, and for each batch of a stream makes it anew,
once to write and once to commit. Invariant: so it holds plain values, and what a commit must know comes with
the messages of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4

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

from offload.blocking import Blocking
from offload.contracts.offloader import LedgerOffloader
from offload.env import Env
from offload.errors import Misuse
from offload_spark.options import WriteOptions
from offload_spark.writing import Ticket, WrittenPart, begin, commit, give_up, withdraw, write_part

T = TypeVar("T")

TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "offset": (LongType, IntegerType),
    "value": (BinaryType, StringType),
    "timestamp": (TimestampType,),
    "key": (BinaryType, StringType),
    "stream": (StringType,),
    "ledger": (LongType,),
}
"""The columns of a write. The last two may come from a read: the option says which stream it is."""

REQUIRED = ("offset", "value")


@dataclass
class Message(WriterCommitMessage):
    """What a task tells the driver."""

    part: WrittenPart


class _Writes:
    """What both kinds of writer do."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Misuse('a stream is only appended to: mode("append"), or outputMode("append")')
        check_columns(schema)
        self._options, self._now_ms, self._run_id = options, Env().now_ms(), uuid4()

    def _written(self, ticket: Ticket, batches: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        if context is None:
            raise Misuse("rows are written by tasks of Spark's only")
        number = context.taskAttemptId()
        return Message(write_part(self._options, ticket, batches, number=number, timestamp_ms=self._now_ms))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        self._run(lambda offloader: commit(offloader, self._options.stream, parts))

    def _give_up(self, job: UUID) -> None:
        self._run(lambda offloader: give_up(offloader, self._options.stream, job))

    def _run(self, ask: Callable[[LedgerOffloader], Coroutine[Any, Any, T]]) -> T:
        with Blocking(self._options.url, storage_options=dict(self._options.storage_options)) as tier:
            return tier.run(ask(tier.offloader))


class Writer(_Writes, DataSourceArrowWriter):
    """One write: all of a frame's rows, or none."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._begun = self._run(lambda offloader: begin(offloader, options))
        name, incarnation = options.write_id, self._begun.incarnation
        self._ticket = Ticket.of(incarnation, run=self._run_id, job=name, write=name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """A task's rows."""
        return self._written(self._ticket, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks succeeded."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some did not, or the commit failed. A stream that this write began is deleted again."""
        self._give_up(self._ticket.job)
        self._run(
            lambda offloader: withdraw(offloader, self._options.stream, self._begun, job=self._ticket.job)
        )


class StreamingWriter(_Writes, DataSourceStreamArrowWriter):
    """The batches of a streaming query, each of which has a name: the query's and its own number."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        if options.write_id:
            raise Misuse("the batches of a query have names of their own: leave out writeId")
        self._incarnation = self._run(lambda offloader: begin(offloader, options)).incarnation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """A task's rows of one batch."""
        return self._written(self._ticket(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """All tasks of the batch succeeded."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Some did not, or the commit failed."""
        for job in {part.ticket.job for part in _parts(messages)}:
            self._give_up(job)

    def _ticket(self) -> Ticket:
        """Spark tells a task which query and batch it is of, and nobody else."""
        context = TaskContext.get()
        if context is None:
            raise Misuse("a batch of a query is written by tasks of Spark's only")
        query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        return Ticket.of(
            self._incarnation,
            run=self._run_id,
            job=f"query {query}",
            write=f"query {query} batch {batch}",
        )


def check_columns(schema: StructType) -> None:
    """That these columns can be written. Raises `Misuse` that names the first one that can not."""
    for field in schema.fields:
        kinds = TAKEN.get(field.name)
        if kinds is None:
            raise Misuse(f"column {field.name!r} has no place in a stream; there are {', '.join(TAKEN)}")
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds)
            raise Misuse(f"column {field.name!r} is {wanted}, not {field.dataType.simpleString()}")
    for name in REQUIRED:
        if name not in schema.names:
            hint = "; offload_spark.append numbers the rows" if name == "offset" else ""
            raise Misuse(f"a write needs a column {name!r}{hint}")


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenPart]:
    """Of the tasks that sent one."""
    return [message.part for message in messages if isinstance(message, Message)]
