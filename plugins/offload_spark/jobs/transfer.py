"""The transfer from an origin to a stream of a tier: Spark's tasks upload, and one commit appends all.

Back-fill and copy share it. The steps are those of `offload.upkeep.copy.transfer`, which says what a killed
run leaves. Every executor must be able to reach the origin.

Invariant: no record passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from offload.model.attempt import Leftover, Receipt
from offload.opening.blocking import Blocking
from offload.upkeep.copy.transfer import AnnouncedRange, Origin, Transfer
from offload_spark.jobs.transfer_tasks import Ends, Sized, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

TASKS_PER_SLOT: Final = 4
"""The tasks of a wave for each of Spark's slots: enough that no slot waits long for the slowest task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """The progress of a stream in this run."""

    stream: str
    taken_over: int
    """The number of complete fragments of an earlier run."""

    pieces: int = 0
    """The number of pieces to upload; 0 until it is known."""

    pieces_done: int = 0
    bytes: int = 0
    """The chunk bytes that were uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTransfer:
    """The transfer of one stream, with its uploads spread over tasks."""

    spark: SparkSession
    tier: Blocking
    origin: Origin
    ends: Ends
    progress: Callable[[TransferProgress], None] = lambda progress: None

    def run(self) -> tuple[Transfer | None, list[Receipt]]:
        """Copy the data of the origin to the tier. Return the transfer, and this run's uploads.

        Returns no transfer if there is nothing to copy and the stream was not begun. Raises `Conflict` if
        another writer appended first, `Diverged` if the two histories differ, and the error of a task,
        wrapped by Spark. In these cases nothing is committed.
        """
        tier = self.tier
        transfer = tier.run(Transfer.begin(tier.offloader, self.origin))
        if transfer is None:
            return None, []
        try:
            transfer.take_over(self._checked(transfer))
            uploaded = self._uploaded(tier.run(transfer.announce()), transfer)
        finally:
            tier.run(transfer.aclose())
        tier.run(transfer.append(uploaded))
        return transfer, uploaded

    def _checked(self, transfer: Transfer) -> list[Leftover]:
        """Return the uploads of an earlier run that are sound, and equal to the origin's data."""
        found: list[Leftover] = []
        for some in self._in_waves(self.tier.run(transfer.left()), self.ends.check):
            found += some
            self.progress(TransferProgress(stream=self.origin.stream, taken_over=len(found)))
        return found

    def _uploaded(self, ranges: Sequence[AnnouncedRange], transfer: Transfer) -> list[Receipt]:
        taken_over = sum(len(receipt.entries) for receipt in transfer.taken_over)
        progress = TransferProgress(stream=self.origin.stream, taken_over=taken_over)
        found: list[Receipt] = []
        size = 0
        for some in self._in_waves(ranges, self.ends.upload):
            found += some
            size += sum(entry.data_size_bytes for receipt in some for entry in receipt.entries)
            self.progress(replace(progress, pieces=len(ranges), pieces_done=len(found), bytes=size))
        return found

    def _in_waves(
        self, items: Sequence[Sized], work: Callable[[Sequence[Sized]], list[R]]
    ) -> Iterator[list[R]]:
        """Yield the results of `work` on the items, wave by wave, so that progress can be reported."""
        context = self.spark.sparkContext
        slots: int = context.defaultParallelism
        tasks: Iterator[list[Sized]] = tasks_of(items, slots)
        while wave := [*islice(tasks, slots * TASKS_PER_SLOT)]:
            done = context.parallelize(wave, len(wave)).map(work).collect()
            yield [one for task in done for one in task]
