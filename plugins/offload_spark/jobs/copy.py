"""The copy of one tier to another by Spark's tasks, with one commit for each stream.

`offload.upkeep.copy.transfer` and `offload.upkeep.copy.tier` have the steps, and say what a killed run
leaves. A task gets a range of a ledger, and a manifest that names the fragments of this range.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import NotOffloaded, OffloadError, StoreDenied
from offload.model.compression import Compression
from offload.model.part import part_like
from offload.opening.blocking import Blocking
from offload.opening.session import Session
from offload.parts.whole_stream import with_parts
from offload.upkeep.copy.runs import RUN_SIZE_BYTES
from offload.upkeep.copy.tier import Committed, Copied, refuse_itself, run_of
from offload.upkeep.copy.tier import give_up as give_up_copy
from offload.upkeep.copy.transfer import Fetch, Reach
from offload.upkeep.parts import link_copy
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.jobs.transfer import SparkTransfer, TransferProgress
from offload_spark.jobs.transfer_tasks import Ends
from offload_spark.opening import TierAddress

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
    compression: Compression | None = None,
    keys: str = "",
    source_keys: str = "",
    encrypt: str = "",
    decrypt: bool = False,
    piece_size_bytes: int = RUN_SIZE_BYTES,
    progress: Callable[[TransferProgress], None] = lambda progress: None,
    done: Callable[[Copied], None] = lambda copied: None,
) -> list[Copied]:
    """Copy the committed data of the tier `source` to the tier `target`: all streams, or the named ones.

    Each stream is copied as it is when its turn comes. The target's stream begins at the present beginning of
    the source's, or is continued if both have the same history. `compression` is that of the new fragments.
    None means the default of the target. `keys` and `encrypt` are those of a `TierAddress`, and `source_keys`
    is the source's key service, if it is another one. With `decrypt`, an encrypted stream may be stored in
    the clear. With `read_back`, tasks read their uploads back whole before the commit. Calls `progress` after
    each wave of tasks, and `done` after each stream.

    An error that stops one stream is in its `Copied`, and the next stream follows:

    - `Diverged`: the histories differ, or the source is trimmed beyond the target's end.
    - `Conflict`: another writer appended to the target first. Run it again.
    - `OffloadError`: the text of a task's error, such as damage in the source.
    - `StoreDenied`: no other stream is tried, because each would fail in the same way.

    Raises `NotOffloaded` if the source is no tier, or lacks a named stream, and `Misuse` if both tiers are
    the same. Needs a classic session, not a
    Connect session.
    """
    found = []
    reach = TierReach(
        tier=TierAddress(url=source, storage_options=dict(source_options or {}), keys=source_keys or keys)
    )
    address = TierAddress(
        url=target,
        storage_options=dict(target_options or {}),
        keys=keys,
        encrypt=encrypt,
        compression=compression,
    )
    ends = Ends(reach=reach, target=address, read_back=read_back)
    with address.opened() as tier, _beside(tier, reach.tier, keys=source_keys) as opened:
        same_options = reach.tier.storage_options == address.storage_options
        refuse_itself(opened, tier.offloader, same_options=same_options)
        origin_of = partial(Committed, source=reach, part_size_bytes=piece_size_bytes, decrypt=decrypt)
        transfer_of = partial(SparkTransfer, spark=spark, tier=tier, ends=ends, progress=progress)
        every = tier.run(with_parts(opened, streams)) or sorted(tier.run(opened.streams()), key=part_like)
        for stream in every:
            try:
                manifest = tier.run(opened.load_manifest(stream))
            except NotOffloaded as gone:
                if stream in streams:
                    raise
                found.append(Copied(stream=stream, note=str(gone)))
            else:
                origin = origin_of(offloader=opened, manifest=manifest)
                found.append(_copied(transfer_of(origin=origin), origin))
            done(found[-1])
            if isinstance(found[-1].error, StoreDenied):  # every other stream would fail in the same way
                break
    return found


def _copied(transfer: SparkTransfer, origin: Committed) -> Copied:
    done, target = Copied(stream=origin.stream), transfer.tier
    try:
        target.run(link_copy(origin.offloader, target.offloader, origin.stream))
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
    """Discard what an unfinished run of `copy` left. The target's sweep deletes its objects. Repeatable."""
    origin = TierAddress(url=source, storage_options=dict(source_options or {}))
    address = TierAddress(url=target, storage_options=dict(target_options or {}))
    with address.opened() as tier, _beside(tier, origin) as opened:
        tier.run(give_up_copy(opened, tier.offloader, stream))


@contextmanager
def _beside(tier: Blocking, other: TierAddress, *, keys: str = "") -> Iterator[LedgerOffloader]:
    """Yield another tier, opened in the session of this one. `keys` is its key service, if it is another."""

    async def opened() -> LedgerOffloader:
        return tier.session.tier(other.url, storage_options=other.storage_options, keys=keys or None)

    offloader = tier.run(opened())
    try:
        yield offloader
    finally:
        tier.run(offloader.aclose())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReach(Reach):
    """A tier, by its address. Each range names the data to read in it."""

    tier: TierAddress

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        """Open the tier in a task (`Reach.opened`)."""
        url, options = self.tier.url, self.tier.storage_options
        async with (
            Session(keys=self.tier.service) as session,
            session.tier(url, storage_options=options) as offloader,
        ):
            yield partial(run_of, offloader)
