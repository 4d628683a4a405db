"""What one tier has committed, onto another, uploaded by Spark's tasks; one commit for each stream.

The steps, and what a kill leaves, stand in `offload.upkeep.copy.transfer` and `offload.upkeep.copy.tier`. A
task is given what it reads: a part of a ledger, and a manifest that names the fragments of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offload.blocking import Blocking
from offload.contracts.offloader import LedgerOffloader
from offload.errors import NotOffloaded, OffloadError, StoreDenied
from offload.opening import open_tier
from offload.upkeep.copy.runs import RUN_SIZE_BYTES
from offload.upkeep.copy.tier import Committed, Copied, run_of
from offload.upkeep.copy.tier import give_up as give_up_copy
from offload.upkeep.copy.transfer import Fetch, Reach
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.jobs.transfer import SparkTransfer, TransferProgress
from offload_spark.jobs.transfer_tasks import Ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    streams: Sequence[str] = (),
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read_back: bool = False,
    piece_size_bytes: int = RUN_SIZE_BYTES,
    progress: Callable[[TransferProgress], None] = lambda progress: None,
    done: Callable[[Copied], None] = lambda copied: None,
) -> list[Copied]:
    """Bring what the tier `source` has committed onto the tier `target`: all streams, or those named.

    Of each stream, what was committed when its turn came. The target's stream is begun where the source's
    begins now, or continued, if both tell the same history. With `read_back`, tasks read what they uploaded
    once more, whole, before it is named. `progress` is told after each wave of tasks, `done` after each
    stream.

    What stops one stream is reported, and the next one goes on: `Diverged` where the histories differ, also
    where the source is trimmed beyond the target's end; `Conflict` where another appended to the target
    first: run again; an `OffloadError` with the words of what a task raised, such as damage in the source.
    After `StoreDenied` no other stream is tried: each would fail in the same way.
    Raises `NotOffloaded` where the source is no tier, or lacks a stream that is named. Needs a session that
    is no Connect session.
    """
    found = []
    reach = TierReach(url=source, options=dict(source_options or {}))
    ends = Ends(reach=reach, url=target, options=dict(target_options or {}), read_back=read_back)
    with Blocking(target, storage_options=ends.options) as tier, _beside(tier, reach) as opened:
        for stream in [*dict.fromkeys(streams)] or tier.run(opened.streams()):
            try:
                manifest = tier.run(opened.load_manifest(stream))
            except NotOffloaded as gone:
                if streams:
                    raise
                found.append(Copied(stream=stream, note=str(gone)))
            else:
                origin = Committed(
                    offloader=opened, manifest=manifest, source=reach, part_size_bytes=piece_size_bytes
                )
                transfer = SparkTransfer(spark=spark, tier=tier, origin=origin, ends=ends, progress=progress)
                found.append(_copied(transfer, origin))
            done(found[-1])
            if isinstance(found[-1].error, StoreDenied):  # as every other stream would be
                break
    return found


def _copied(transfer: SparkTransfer, origin: Committed) -> Copied:
    done = Copied(stream=origin.stream)
    try:
        with plain_errors():
            ran, uploaded = transfer.run()
            if ran is None:
                return replace(done, note="nothing is committed")
            done = done.after(ran, uploaded)
            if uploaded or ran.taken_over:
                transfer.tier.run(origin.check_end_of(transfer.tier.offloader))
    except OffloadError as exc:
        return replace(done, error=exc)
    return done


def give_up(
    source: str,
    target: str,
    stream: str,
    *,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> None:
    """Give up what a run of `copy` left that did not end: the target's sweep takes it. Repeatable."""
    reach, options = TierReach(url=source, options=dict(source_options or {})), dict(target_options or {})
    with Blocking(target, storage_options=options) as tier, _beside(tier, reach) as opened:
        tier.run(give_up_copy(opened, tier.offloader, stream))


@contextmanager
def _beside(tier: Blocking, reach: TierReach) -> Iterator[LedgerOffloader]:
    """Another tier, opened in the session of this one."""

    async def opened() -> LedgerOffloader:
        return tier.session.tier(reach.url, storage_options=reach.options)

    offloader = tier.run(opened())
    try:
        yield offloader
    finally:
        tier.run(offloader.aclose())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReach(Reach):
    """A tier, by URL and options. What is read there, each part says itself."""

    url: str
    options: Mapping[str, Any]

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """See `Reach.opened`."""
        async with open_tier(self.url, storage_options=self.options) as offloader:
            yield partial(run_of, offloader)
