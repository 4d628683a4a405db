"""From an origin onto a stream of a tier: Spark's tasks upload, one commit names all. What such jobs share.

The steps are those of `offload.upkeep.copy.transfer`, which says what a kill leaves. The tasks reach the
origin by what they are given, which every executor must be able to.

Invariant: no record passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from offload.blocking import Blocking
from offload.model.attempt import Leftover, Receipt
from offload.upkeep.copy.transfer import AnnouncedPart, Origin, Transfer
from offload_spark.jobs.transfer_tasks import Ends, Sized, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

TASKS_PER_SLOT: Final = 4
"""How many tasks a wave has for each of Spark's slots: enough that none waits for the slowest for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """How far a stream has come in this run."""

    stream: str
    taken_over: int
    """Fragments of an earlier run that were found complete."""

    pieces: int = 0
    """How many there are to upload; 0 until that is known."""

    pieces_done: int = 0
    bytes: int = 0
    """Chunk bytes that were uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTransfer:
    """One stream's, its uploads spread over tasks."""

    spark: SparkSession
    tier: Blocking
    origin: Origin
    ends: Ends
    progress: Callable[[TransferProgress], None] = lambda progress: None

    def run(self) -> tuple[Transfer | None, list[Receipt]]:
        """Bring what the origin has onto the tier. Return the transfer, and what this run uploaded.

        No transfer is returned where the stream was not begun, since there is nothing for it. Raises
        `Conflict` where another appended first, `Diverged` where the two tell different histories, and what a
        task raises, wrapped by Spark: nothing is named then.
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
        """Of what an earlier run left, what holds and is what the origin has."""
        found: list[Leftover] = []
        for some in self._in_waves(self.tier.run(transfer.left()), self.ends.check):
            found += some
            self.progress(TransferProgress(stream=self.origin.stream, taken_over=len(found)))
        return found

    def _uploaded(self, parts: Sequence[AnnouncedPart], transfer: Transfer) -> list[Receipt]:
        taken_over = sum(len(receipt.entries) for receipt in transfer.taken_over)
        progress = TransferProgress(stream=self.origin.stream, taken_over=taken_over)
        found: list[Receipt] = []
        size = 0
        for some in self._in_waves(parts, self.ends.upload):
            found += some
            size += sum(entry.data_size_bytes for receipt in some for entry in receipt.entries)
            self.progress(replace(progress, pieces=len(parts), pieces_done=len(found), bytes=size))
        return found

    def _in_waves(
        self, items: Sequence[Sized], work: Callable[[Sequence[Sized]], list[R]]
    ) -> Iterator[list[R]]:
        """By tasks, so many at a time that it can be seen how far it came."""
        context = self.spark.sparkContext
        slots: int = context.defaultParallelism
        tasks: Iterator[list[Sized]] = tasks_of(items, slots)
        while wave := [*islice(tasks, slots * TASKS_PER_SLOT)]:
            done = context.parallelize(wave, len(wave)).map(work).collect()
            yield [one for task in done for one in task]
