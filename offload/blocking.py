"""The blocking facade: a tier for scripts, notebooks and Spark workers, without an event loop of theirs.

Written once: it runs the asynchronous core on one thread of its own and waits. Its methods may be
called from several threads. Invariants: nothing runs after `close`, and nobody waits for ever: calls
under way in other threads end with `Misuse`. An instance does not survive a fork (the thread would be
missing) and cannot be waited for on its own thread, where event listeners run; it says so instead of
hanging.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from offload.contracts.catalogue import Catalogue
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source
from offload.errors import Misuse
from offload.model.manifest import Manifest
from offload.model.position import AtEdge, Position
from offload.plugins import Plugins
from offload.session import Session, as_offloader
from offload.streams.reader import Messages, StreamReader
from offload.streams.sync import StreamReport, sync
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify

__all__ = ["Blocking"]


T = TypeVar("T")

_CLOSED = "a blocking tier was closed; open a new one"


class Blocking:
    """A tier, opened by URL: `with Blocking("./tier") as tier: ...`.

    Every method raises what the asynchronous one beneath it raises.
    """

    _session: Session
    _catalogue: Catalogue
    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread
    _closed: bool

    def __init__(
        self,
        url: str,
        *,
        plugins: Plugins | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        session = Session(plugins=plugins)
        self._open(session, lambda: session.catalogue(url, storage_options=storage_options))

    @classmethod
    def around(cls, make: Callable[[], Catalogue], *, plugins: Plugins | None = None) -> Self:
        """A facade around a catalogue or an offloader, which `make` makes on the facade's event loop."""
        facade = cls.__new__(cls)
        facade._open(Session(plugins=plugins or Plugins()), make)
        return facade

    @property
    def session(self) -> Session:
        """The session of the tier, to open other tiers beside it on the facade's event loop (`run`)."""
        return self._session

    @property
    def catalogue(self) -> Catalogue:
        """What can be read of the tier. Its coroutines belong to `run`."""
        return self._catalogue

    @property
    def offloader(self) -> LedgerOffloader:
        """The tier as an offloader. Its coroutines belong to `run`. Raises `Misuse` if it is only read."""
        return as_offloader(self._catalogue)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the facade's event loop and wait for it.

        Ctrl-C cancels it, and comes through when it has ended, its cleaning up included. Raises `Misuse`
        where the facade is closed, also while the coroutine runs.
        """
        try:
            call = self._begin(coroutine)
        except Misuse:
            coroutine.close()
            raise
        try:
            return call.wait()
        except asyncio.CancelledError as exc:
            if self._closed:
                raise Misuse(_CLOSED) from exc
            raise

    def streams(self) -> list[str]:
        """See `Catalogue.streams`."""
        return self.run(self._catalogue.streams())

    def load_manifest(self, stream: str) -> Manifest:
        """See `Committer.load_manifest`."""
        return self.run(self.offloader.load_manifest(stream))

    def read(self, stream: str, start: Position = AtEdge.FIRST) -> Iterator[Messages]:
        """The messages of a stream from a position on, chunk by chunk."""
        reader = self.run(StreamReader.open(self._catalogue, stream))
        batches = reader.messages(self.run(reader.offset_of(start)))
        try:
            while (batch := self.run(_next(batches))) is not None:
                yield batch
        finally:
            if not self._closed:  # else closing the tier ended its readers too
                self.run(batches.aclose())

    def sync(
        self,
        source: str | Source,
        *,
        only: Sequence[str] = (),
        continue_as: Mapping[str, str] | None = None,
    ) -> list[StreamReport]:
        """Sync every stream of a source, given itself or by URL. Errors stand in the reports.

        As the asynchronous `sync`, whose arguments these are.
        """
        opened = self._session.source(source) if isinstance(source, str) else source

        async def all_reports() -> list[StreamReport]:
            return [
                report async for report in sync(opened, self.offloader, only=only, continue_as=continue_as)
            ]

        return self.run(all_reports())

    def verify(
        self,
        stream: str | None = None,
        *,
        level: VerifyLevel = VerifyLevel.BYTES,
        after: str = "",
        bytes_per_second_max: float | None = None,
        report: VerifyReport | None = None,
    ) -> VerifyReport:
        """Hold the objects of the tier, or of one stream, against checksums and manifest.

        As the asynchronous `verify`, whose arguments these are.
        """
        return self.run(
            verify(
                self._catalogue,
                stream=stream,
                level=level,
                after=after,
                bytes_per_second_max=bytes_per_second_max,
                report=report,
            )
        )

    def close(self) -> None:
        """Close the tier and end the thread, cancelling what runs. Idempotent, from any other thread."""
        if os.getpid() != self._pid:
            return
        self._refuse_own_thread()
        with self._lock:
            first, self._closed = not self._closed, True
            call = _Call(self._loop, self._shut_down()) if first else None
        if call is None:
            self._thread.join()
            return
        try:
            call.wait()
        finally:
            self._end()

    def __enter__(self) -> Self:
        """Close on the way out."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self, session: Session, make: Callable[[], Catalogue]) -> None:
        self._session = session
        self._pid = os.getpid()
        self._lock = threading.Lock()  # held from the look at `_closed` until what follows from it is begun
        self._closed = False
        self._calls: set[_Call[Any]] = set()  # of `run`; of no concern to `close` once they ended
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="offload", daemon=True)
        self._thread.start()

        async def made() -> Catalogue:
            return make()

        try:
            self._catalogue = self.run(made())
        except BaseException:
            self._end()
            raise

    def _serve(self) -> None:
        # Leaving the runner cancels what is left, ends generators and the executor, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop):
            self._loop.run_forever()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> _Call[T]:
        if os.getpid() != self._pid:  # before the lock, which another thread may have held at the fork
            raise Misuse("a blocking tier does not survive a fork; open a new one")
        self._refuse_own_thread()
        with self._lock:
            if self._closed:
                raise Misuse(_CLOSED)
            self._calls = {call for call in self._calls if not call.ended.is_set()}
            call = _Call(self._loop, coroutine)
            self._calls.add(call)
        return call

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise Misuse("a blocking tier cannot wait on its own thread, where listeners are told of events")

    async def _shut_down(self) -> None:
        """End the calls, then the tier that they use and whatever else was opened."""
        for call in self._calls:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self._calls), return_exceptions=True)
        async with self._session:  # closes whatever else was opened beside the tier
            await self._catalogue.aclose()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Call(Generic[T]):
    """A coroutine on its way through the loop, begun in the order in which calls are made."""

    task: asyncio.Task[T]

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self.ended = threading.Event()
        loop.call_soon_threadsafe(self._start, coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.task = self._loop.create_task(coroutine)
        self.task.add_done_callback(lambda task: self.ended.set())

    def wait(self) -> T:
        """What the coroutine returns or raises. Whatever interrupts the waiting cancels it first."""
        try:
            self.ended.wait()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(lambda: self.task.cancel())
            self.ended.wait()
            if not self.task.cancelled():
                self.task.exception()  # looked at, so that nobody logs it: the interrupt is what counts
            raise
        return self.task.result()


async def _next(batches: Any) -> Messages | None:
    return await anext(batches, None)
