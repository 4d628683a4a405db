"""Bringing a tier up to date with a source: new data is copied, everything else is left alone.

Invariants: a stream with nothing new is not touched, not even claimed; nothing is appended to a history that
the source does not continue; chunks before a damaged one are committed, and nothing behind it; one stream's
error does not stop the others, unless the store refuses every request.

A stream that the source does not continue stays as it is. The source may continue under another name, the
stream's next part (`continue_as`), which begins at the source's first offset. So the part holds everything
that the source still has, even if the old stream holds some of it too. To leave out what both hold would need
a comparison of every byte, and one wrong answer would lose data. Nothing on the tier records the link yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot, Source, SourceStream
from offload.env import Env
from offload.errors import AnchorLost, Corrupt, Diverged, Misuse, NotOffloaded, OffloadError, StoreDenied
from offload.formats.keys import escape
from offload.model.manifest import Manifest
from offload.model.totals import totals
from offload.streams.copier import StreamCopier
from offload.streams.history import PAGE, check_same_history, newest

__all__ = ["StreamReport", "sync"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The report of a sync on one stream: its outcome, and what is committed now."""

    stream: str
    """Its name on the tier."""

    source_stream: str
    """Its name in the source. It differs from `stream` if it was synced to its next part (`continue_as`)."""

    manifest: Manifest | None
    """The newest manifest, or None if nothing was committed."""

    uploaded_bytes: int
    """The size of the fragments that the sync uploaded completely, roots not included."""

    error: OffloadError | None = None
    continue_as: str | None = None
    """A name under which `sync` can continue (`continue_as`), if the source does not continue the stream."""

    def as_json(self) -> dict[str, object]:
        """Return one line of `offload sync --json`. All but `uploaded_bytes` describes the whole stream."""
        committed = totals(self.stream, self.manifest)
        failed = {} if self.error is None else {"error": str(self.error)}
        part = {} if self.continue_as is None else {"continue_as": self.continue_as}
        return {**committed, "uploaded_bytes": self.uploaded_bytes, **failed, **part}


async def sync(
    source: Source,
    offloader: LedgerOffloader,
    *,
    only: Sequence[str] = (),
    continue_as: Mapping[str, str] | None = None,
    extra_metadata: Mapping[str, str] | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] = lambda event: None,
) -> AsyncIterator[StreamReport]:
    """Sync every stream of `source`, or those named in `only`, and yield one report for each.

    A stream that fails is reported with its error, and the next stream follows. A stream that is named twice
    is synced once. Raises `NotOffloaded` if a named stream is not in the source, and any error of opening
    the tier. A report with `StoreDenied`, or with a lost anchor of the tier, is the last one: the other
    streams would fail in the same way.

    `continue_as` names the next part of streams that stopped with `Diverged`, such as `{"orders":
    "orders-part-2"}`. The source's stream is then synced to that part, which begins at the source's first
    offset. The stream under the old name stays as it is. Pass it to every later sync too. Raises
    `Misuse` if a part's name is invalid, or is that of a stream of the source. The report's error is `Misuse`
    if the part does not exist yet and the stream has not stopped, and `Diverged` if the part exists and the
    source does not continue it.
    """
    parts = dict(continue_as or {})
    streams = [await source.stream(name) for name in dict.fromkeys(only)] or await source.streams()
    # Every name is checked before the first stream is copied, so a mistyped one copies nothing.
    if parts:
        await _check_names(source, parts)
    is_tier = await _is_tier(offloader)
    for stream in streams:
        part = parts.get(stream.name)
        report = await sync_stream(
            stream,
            offloader,
            is_tier=is_tier,
            part=part,
            extra_metadata=extra_metadata or {},
            env=env or Env(),
            emit=emit,
        )
        yield report
        # The first stream that commits anything makes the place a tier.
        is_tier |= report.manifest is not None
        if isinstance(report.error, StoreDenied) or _is_of_the_tier(report.error):
            return


def _is_of_the_tier(error: OffloadError | None) -> bool:
    """Return whether the tier itself lost its anchor, and not one stream."""
    return isinstance(error, AnchorLost) and error.stream is None


async def _is_tier(offloader: LedgerOffloader) -> bool:
    """Return whether the place is a tier already. If not, the first stream makes it one."""
    try:
        await offloader.open()
    except NotOffloaded:
        return False
    return True


async def _check_names(source: Source, parts: Mapping[str, str]) -> None:
    known = {stream.name for stream in await source.streams()}
    for name, part in parts.items():
        escape(part)  # raises `Misuse` if it is not a valid name
        await source.stream(name)
        if part in known:
            raise Misuse(f"stream {name!r} cannot go on as {part!r}: the source has a stream of that name")
        if list(parts.values()).count(part) > 1:
            raise Misuse(f"two streams cannot go on as {part!r}")


async def sync_stream(
    stream: SourceStream,
    offloader: LedgerOffloader,
    *,
    is_tier: bool = True,
    part: str | None = None,
    extra_metadata: Mapping[str, str],
    env: Env,
    emit: Callable[[Event], None] = lambda event: None,
) -> StreamReport:
    """Sync one stream, under its own name or to its next `part`. Report errors of the framework.

    If `is_tier` is false, no manifest is loaded first, because the place was found to be no tier.
    """
    name = part or stream.name
    error, manifest, going_on = None, None, None
    copier = StreamCopier(stream=name, offloader=offloader, extra_metadata=extra_metadata, env=env, emit=emit)
    try:
        async with await stream.snapshot() as snapshot:
            try:
                if part is not None:
                    await check_part(offloader, stream.name, part, snapshot)
                await copier.compare(snapshot, known_to_be_new=not is_tier)
                await copier.copy(snapshot, snapshot.next_offset)
                manifest = copier.manifest
                # The source could not show its end. Everything before the damage is committed now.
                if snapshot.damage is not None:
                    raise snapshot.damage
            except Diverged:
                # The name is only a proposal. If it cannot be found, the divergence is still the error.
                with suppress(OffloadError):
                    going_on = await free_part(offloader, stream.name, snapshot)
                raise
    except OffloadError as exc:
        # The copy may have committed something before the error, so the report names the newest manifest. If
        # that cannot be loaded either, the first error is the one to report.
        error = exc
        with suppress(OffloadError):
            manifest = await newest(offloader, name)
    return StreamReport(
        stream=name,
        manifest=manifest,
        uploaded_bytes=copier.uploaded_size_bytes,
        error=error,
        continue_as=going_on,
        source_stream=stream.name,
    )


async def check_part(offloader: LedgerOffloader, stream: str, part: str, snapshot: Snapshot) -> None:
    """Raise unless the source may continue as `part`.

    It may if `part` exists already, or if `stream` cannot be continued. If `part` has data, the appending
    caller still compares it with the source (`check_same_history`).
    """
    begun = await newest(offloader, part)
    if begun is not None:
        # An empty part has no chunk to compare. If it does not end where the source begins, a copy would
        # leave out records, or fail.
        if not begun.fragments and begun.next_offset != snapshot.first_offset:
            raise Diverged(
                f"stream {part!r} holds nothing and goes on at offset {begun.next_offset}, "
                f"but the source begins at {snapshot.first_offset}: choose another name; {PAGE}"
            )
        return
    stopped = await newest(offloader, stream)
    if stopped is None:
        raise Misuse(f"the tier has no stream {stream!r} yet: sync it without a new name")
    # A mistaken `continue_as` would split a healthy stream in two. So the stream must really have stopped:
    # the source diverged from it, or its last chunk is damaged on the tier.
    try:
        await check_same_history(offloader, stopped, snapshot)
    except (Diverged, Corrupt):
        return
    raise Misuse(f"the source continues stream {stream!r}: sync it without a new name")


async def free_part(offloader: LedgerOffloader, stream: str, snapshot: Snapshot) -> str:
    """Return a name for a stream's next part: the first that the tier lacks, or that the source continues."""
    for number in count(2):
        part = f"{stream}-part-{number}"
        begun = await newest(offloader, part)
        if begun is None:
            break
        # After a second gap, the source does not continue the first part either, so the next number is
        # proposed. A part that the source continues is proposed again, so each run prints the same command.
        try:
            await check_part(offloader, stream, part, snapshot)
            await check_same_history(offloader, begun, snapshot)
        except Diverged:
            continue
        break
    return part
