"""A preview of `offload run`: the rules, the lag and the growth of each stream.

Nothing is copied and nothing is claimed. For each stream, the newest manifest is loaded, the last chunk is
compared with the source, and the source's chunk tables are read.

Invariant: what could not be read is not known. No number stands for it, and `unknown_because` has the reason.

The growth is that of the last hour, by the timestamps of chunks; of less, if the source has less.
`service.costs` computes from it what a month costs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from offload.contracts.source import Snapshot, SourceStream
from offload.copy.next_part import FINAL, PartOnTier
from offload.formats.sealing import KEY_SIZE_BYTES
from offload.ground.errors import Diverged, NotOffloaded, OffloadError, StreamDeleted, TryAgain
from offload.model.gaps import StreamGap, lost_records
from offload.model.labels import MasterKey
from offload.model.manifest import Manifest
from offload.native.key_objects import try_master_key
from offload.opening.session import Session
from offload.parts.whole_stream import WholeStream
from offload.read.snapshots import oldest_ms
from offload.service.assembly import OpenedService
from offload.service.config import RunConfig

__all__ = ["Growth", "StreamPreview", "preview_stream", "try_keys"]


GROWTH_SECONDS: Final = 3600

PREVIEW_PATIENCE_SECONDS: Final = 30.0
"""How long a preview waits for a tier, if the option `patience_seconds` does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How fast a stream of the source grows."""

    bytes_per_second: float = 0.0
    chunks_per_second: float = 0.0
    ledgers_per_second: float = 0.0
    """How often a ledger begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPreview:
    """A stream of the source, and the tier's copy of it."""

    stream: str
    glob: str
    error: OffloadError | None = None
    """Why the stream would not be copied now."""

    source_next_offset: int | None = None
    """The end of the source. None if source and tier could not be compared: then no number below is known."""

    committed_offset: int | None = None
    """The end of the stream on the tier. None if it is not there yet, or not known."""

    part: int = 1
    """The newest part of the stream on the tier. `committed_offset` is its end."""

    begins_part: bool = False
    """Whether the stream would continue in a new part."""

    lag_records: int = 0
    """The records of the source that the tier lacks."""

    lag_size_bytes: int = 0
    lag_seconds: float = 0.0
    """The age of the oldest record that the tier lacks, as `read.snapshots` finds it."""

    gaps: tuple[StreamGap, ...] = ()
    """The gaps between the parts of the stream on the tier."""

    stored_size_bytes: int = 0
    """The data that the tier stores of the stream, in all of its parts."""

    data_size_bytes: int = 0
    growth: Growth = Growth()
    not_asked: str = ""
    """Why nobody has looked at this stream. Empty if somebody has."""

    is_unanswered: bool = False
    """Whether the tier did not answer. It would not answer for another stream either."""

    @property
    def is_known(self) -> bool:
        """Whether source and tier could be read, so that the numbers say something."""
        return self.source_next_offset is not None

    @property
    def unknown_because(self) -> str:
        """Why it is not known how far the tier is behind. Empty if it is known."""
        if self.error is not None:
            return self.problem
        if self.not_asked:
            return f"stream {self.stream!r}: {self.not_asked}"
        # The lag was compared with a part that does not fit.
        return f"stream {self.stream!r}: the source does not continue it" if self.begins_part else ""

    @property
    def problem(self) -> str:
        """The error in one line that names the stream once."""
        text, head = str(self.error), f"stream {self.stream!r}: "
        return text if text.startswith(head) else f"{head}{text}"


async def preview_stream(opened: OpenedService, stream: SourceStream) -> StreamPreview:
    """Return what is known of a stream that is followed. Raises nothing of the framework."""
    seen = StreamPreview(stream=stream.name, glob=opened.config.glob_of(stream.name))
    try:
        parts = await _asked(opened, stream.name)
    except OffloadError as error:
        return replace(seen, error=error, is_unanswered=isinstance(error, TryAgain))
    try:
        part, manifest = parts[-1]
        stored = [each for _, each in parts if each is not None]
        seen = replace(
            seen,
            part=part.number,
            committed_offset=None if manifest is None else manifest.next_offset,
            stored_size_bytes=sum(each.stored_size_bytes for each in stored),
            data_size_bytes=sum(each.data_size_bytes for each in stored),
        )
        if parts[1:]:
            seen = replace(seen, gaps=tuple(await WholeStream(opened.tier, stream.name).gaps()))
        stream = stream.for_tier(opened.tier_for(stream.name))
        async with await stream.snapshot(manifest) as snapshot:
            seen = await _measured(seen, snapshot, manifest, opened.session.env.now_ms())
            if manifest is not None:
                await part.check(manifest, snapshot)
            return replace(seen, error=snapshot.damage)
    except Diverged as error:
        if error.kind in FINAL and opened.config.of(stream.name).rules.new_part:
            return replace(seen, begins_part=True)
        return replace(seen, error=error)
    except OffloadError as error:
        return replace(seen, error=error)


async def _asked(opened: OpenedService, stream: str) -> list[tuple[PartOnTier, Manifest | None]]:
    """Return the parts of a stream on the tier, in order, each with its newest manifest.

    The first one is there even if the tier lacks the stream. Raises `TryAgain` if the tier does not answer in
    time.
    """
    patience_seconds = float(opened.config.options.get("patience_seconds", PREVIEW_PATIENCE_SECONDS))
    try:
        async with asyncio.timeout(patience_seconds):
            return await _parts(PartOnTier.first(opened.tier_for(stream), stream))
    except TimeoutError as exc:
        raise TryAgain(f"{opened.tier.url} does not answer: waited for {patience_seconds:g} s") from exc


async def _parts(first: PartOnTier) -> list[tuple[PartOnTier, Manifest | None]]:
    found = [(first, await _newest(first))]
    if found[0][1] is not None:
        for part in await first.later():
            with suppress(StreamDeleted):  # a deleted part is over
                found.append((part, await _newest(part)))
    return found


async def _newest(part: PartOnTier) -> Manifest | None:
    try:
        return await part.offloader.load_manifest(part.name)
    except StreamDeleted as error:
        # A follower does not undo a deletion, so the stream would pause.
        raise StreamDeleted(f"{error}, and `offload run` does not", epoch=error.epoch) from error
    except NotOffloaded:
        return None


async def _measured(
    seen: StreamPreview, snapshot: Snapshot, manifest: Manifest | None, now_ms: int
) -> StreamPreview:
    """Return the preview with what the tier lacks, and the growth of the source."""
    start = snapshot.first_offset if manifest is None else manifest.next_offset
    lag_size_bytes = size_bytes = chunks = ledgers = 0
    first_ms, since_ms = now_ms, now_ms - 1000 * GROWTH_SECONDS
    written_ms = await oldest_ms(snapshot, start)
    for number, ledger in enumerate(snapshot.ledgers):
        table = await ledger.table()
        lacking = table[table["offset"] >= start]
        lag_size_bytes += int(lacking["size_bytes"].sum())
        recent = table[table["timestamp_ms"] >= since_ms]
        size_bytes, chunks = size_bytes + int(recent["size_bytes"].sum()), chunks + len(recent)
        # The first ledger is where a young source begins. It ends no fragment of a ledger before it.
        ledgers += number > 0 and len(recent) == len(table) > 0
        if number == 0 and len(table):
            first_ms = min(now_ms, int(table["timestamp_ms"][0]))
    # Of a source that is younger than the window, the growth is that of its life.
    seconds = min(GROWTH_SECONDS, max(1.0, (now_ms - first_ms) / 1000))
    return replace(
        seen,
        source_next_offset=snapshot.next_offset,
        lag_records=max(0, snapshot.next_offset - max(start, snapshot.first_offset)),
        lag_size_bytes=lag_size_bytes,
        lag_seconds=0.0 if written_ms is None else max(0.0, (now_ms - written_ms) / 1000),
        growth=Growth(
            bytes_per_second=size_bytes / seconds,
            chunks_per_second=chunks / seconds,
            ledgers_per_second=ledgers / seconds,
        ),
    )


async def try_keys(session: Session, config: RunConfig) -> list[str]:
    """Wrap and unwrap a key by each master key that the configuration names. Return what was tried.

    A master key of the form `own:LABEL` is made for each stream, so there is none to try. Raises as the key
    service does.
    """
    if config.keys is None:
        return []
    labels = {MasterKey.parse(each.encrypt) for each in config.streams.values() if each.encrypt}
    service, tried = session.key_service(config.keys), []
    for label in sorted(key.label for key in labels if not key.is_own):
        await try_master_key(service, label, session.env.secret(KEY_SIZE_BYTES))
        tried.append(label)
    return tried


def as_json(seen: StreamPreview) -> dict[str, Any]:
    """Return the document of a stream for programs. A number that is not known is None."""
    numbers = {
        "lag_records": seen.lag_records,
        "lag_bytes": seen.lag_size_bytes,
        "lag_seconds": round(seen.lag_seconds, 3),
        "stored_bytes": seen.stored_size_bytes,
        "growth_bytes_per_second": round(seen.growth.bytes_per_second, 3),
    }
    return {
        "stream": seen.stream,
        "glob": seen.glob,
        "part": seen.part,
        "begins_part": seen.begins_part,
        "gaps": len(seen.gaps) if seen.is_known else None,
        "lost_records": lost_records(seen.gaps) if seen.is_known else None,
        "source_next_offset": seen.source_next_offset,
        "committed_offset": seen.committed_offset,
        **(numbers if seen.is_known else dict.fromkeys(numbers)),
        "unknown": seen.unknown_because or None,
        "error": None if seen.error is None else str(seen.error),
    }
