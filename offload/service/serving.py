"""The process of `offload serve`: listeners serve the streams of a tier until a signal stops the process.

Invariants: all readers share the cache and the watches of the session, so that many consumers of a stream
cost the requests of one; a listener that fails ends the process, and is never missing in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.listener import Listener, ServedStream
from offload.contracts.source import Source, SourceStream
from offload.ground.errors import Misuse, NotOffloaded, OffloadError, StreamDeleted
from offload.native.layout_check import native_or_none
from offload.opening.session import Session
from offload.read.reader import StreamReader
from offload.service.address import address_from, address_of
from offload.service.observability import listener_of
from offload.service.process import SideTask, beside, signals
from offload.two_sides.tiered import TieredReader

__all__ = ["ServedTier", "metrics_beside", "serve_listeners"]

STALENESS_SECONDS: Final = 1.0
"""The age of the views with which a reader may begin. A thousand consumers that connect at once look once."""

SAID_MAX: Final = 1000

_log: Final = logging.getLogger(__name__)


class ServedTier:
    """The streams of a tier, and of a source beside it, as listeners open them."""

    def __init__(
        self,
        session: Session,
        catalogue: Catalogue,
        source: Source | None = None,
        *,
        hold_back_seconds: float = 0.0,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        self._session, self._catalogue, self._source = session, catalogue, source
        self._hold_back_seconds, self._emit = hold_back_seconds, emit or session.emit
        self._said: set[str] = set()
        """The lines of the log that were written."""

    async def names(self) -> list[str]:
        """See `ServedStreams.names`. A damaged folder hides its own stream, and no other."""
        found, errors = await self._on_tier()
        for error in errors:
            self._say(f"a stream is not served: {error}")
        return sorted({*found, *await self._in_source()})

    async def _on_tier(self) -> tuple[list[str], Sequence[OffloadError]]:
        if (objects := native_or_none(self._catalogue)) is not None:
            return await objects.find_streams()
        return await self._catalogue.streams(), []

    async def open(self, stream: str) -> ServedStream:
        """See `ServedStreams.open`.

        Consumers keep offsets without parts. So if a part repeats offsets, the reader has only the parts
        before it. That part is read by its own name.
        """
        beside = (await self._in_source()).get(stream)
        try:
            reader = await self._session.reader(
                self._catalogue, stream, max_staleness_seconds=STALENESS_SECONDS, emit=self._emit
            )
        except StreamDeleted:
            raise
        except NotOffloaded:
            if beside is None:
                raise
        else:
            ascending = _ascending(reader.parts)
            for each in reader.parts[len(ascending) :][:1]:
                at = each.manifest.first_offset
                self._say(
                    f"stream {stream!r} ends before part {each.part}, which begins at offset {at} again: "
                    "read it by its own name"
                )
            if beside is None or len(ascending) < len(reader.parts):
                reader.parts = ascending
                return reader
        return await TieredReader.open(
            beside,
            self._catalogue,
            stream=stream,
            hold_back_seconds=self._hold_back_seconds,
            cache=self._session.cache,
            watch=self._session.watch(self._catalogue),
            env=self._session.env,
            emit=self._emit,
        )

    def _say(self, text: str) -> None:
        """Write a line of the log once. Of texts that always differ, some are forgotten."""
        if text not in self._said:
            if len(self._said) >= SAID_MAX:
                self._said.clear()
            self._said.add(text)
            _log.warning("%s", text)

    async def _in_source(self) -> dict[str, SourceStream]:
        if self._source is None:
            return {}
        try:
            return {each.name: each for each in await self._source.streams()}
        except NotOffloaded:  # its folder is empty, or gone for now
            return {}


def _ascending(parts: Sequence[StreamReader]) -> Sequence[StreamReader]:
    """Return the parts before the first one that repeats offsets."""
    reached = 0
    for number, part in enumerate(parts):
        if part.manifest.first_offset < reached:
            return parts[:number]
        reached = part.manifest.next_offset
    return parts


async def serve_listeners(
    listeners: Sequence[Listener], served: ServedTier, *side_tasks: SideTask, stop_seconds: float
) -> None:
    """Serve until a signal, and end all connections within `stop_seconds`. The ports are taken already.

    Raises the error of a listener that fails.
    """
    stopping = asyncio.Event()
    with signals(stopping):
        others = [asyncio.create_task(beside(each(stopping))) for each in side_tasks]
        serving = [asyncio.create_task(each.serve(served, stopping)) for each in listeners]
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([*serving, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            _, late = await asyncio.wait(serving, timeout=stop_seconds)
            if late:
                _log.warning("connections did not end within %g s, and are closed", stop_seconds)
        finally:
            for each in [*serving, *others, stopped]:
                each.cancel()
            ended = await asyncio.gather(*serving, *others, stopped, return_exceptions=True)
            for listener in listeners:
                await listener.aclose()
    for result in ended[: len(serving)]:
        if isinstance(result, Exception):
            raise result


def metrics_beside(address: str | None, listeners: Sequence[Listener], session: Session) -> list[SideTask]:
    """Take the port of the routes, if there is to be one. Return what answers on it.

    Raises `Misuse` as `listener_of` does.
    """
    try:
        port = None if address is None else listener_of(address_from(address), option="--metrics")
    except Misuse as error:
        raise Misuse(f"--metrics: {error}") from error
    if port is None:
        return []
    from offload.service.http import routes, serve_http
    from offload.service.serve_metrics import ServeHealth, ServeMetrics

    application = routes(ServeHealth(listeners), ServeMetrics(listeners, session.metrics).text)

    async def answer(stopping: asyncio.Event) -> None:
        _log.info("answering on %s", address_of(port))
        await serve_http(application, port)

    return [answer]
