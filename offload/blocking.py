"""The blocking facade: a tier for scripts, notebooks and Spark workers, without an event loop of theirs.

Written once: it runs the asynchronous core on one thread of its own and waits. Its methods may be
called from several threads. Invariants: nothing runs after `close`; an instance does not survive a
fork (the thread would be missing), and says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

from offload.errors import Misuse
from offload.formats.manifest import Manifest
from offload.offloader import LedgerOffloader
from offload.plugins import Plugins
from offload.position import Place, Position
from offload.source import Source
from offload.tier.opening import open_source, open_tier
from offload.tier.reader import Messages, StreamReader
from offload.tier.sync import StreamReport, sync
from offload.tier.verify import VerifyReport, verify

T = TypeVar("T")


class Blocking:
    """A tier, opened by URL: `with Blocking("./tier") as tier: ...`.

    Every method raises what the asynchronous one beneath it raises.
    """

    def __init__(self, url: str, *, plugins: Plugins | None = None) -> None:
        self._plugins = plugins or Plugins.find()
        self._open(lambda: open_tier(url, plugins=self._plugins))

    @classmethod
    def around(cls, make: Callable[[], LedgerOffloader], *, plugins: Plugins | None = None) -> Self:
        """A facade around an offloader of one's own, which `make` makes on the facade's event loop."""
        facade = cls.__new__(cls)
        facade._plugins = plugins or Plugins()
        facade._open(make)
        return facade

    @property
    def offloader(self) -> LedgerOffloader:
        """The offloader beneath. Its coroutines belong to `run`."""
        return self._offloader

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the facade's event loop and wait for it.

        Ctrl-C cancels it, and comes through when it has ended, its cleaning up included.
        """
        if os.getpid() != self._pid or self._loop.is_closed():
            coroutine.close()
            reason = "was closed" if os.getpid() == self._pid else "does not survive a fork"
            raise Misuse(f"a blocking tier {reason}; open a new one")
        tasks: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def begin() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda task: ended.set())

        self._loop.call_soon_threadsafe(begin)
        try:
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            ended.wait()
            if not tasks[0].cancelled():
                tasks[0].exception()  # looked at, so that nobody logs it: the interrupt is what counts
            raise
        return tasks[0].result()

    def streams(self) -> list[str]:
        """See `LedgerOffloader.streams`."""
        return self.run(self._offloader.streams())

    def load_manifest(self, stream: str) -> Manifest:
        """See `LedgerOffloader.load_manifest`."""
        return self.run(self._offloader.load_manifest(stream))

    def read(self, stream: str, start: Position = Place.FIRST) -> Iterator[Messages]:
        """The messages of a stream from a position on, chunk by chunk."""
        reader = self.run(StreamReader.open(self._offloader, stream))
        batches = reader.messages(self.run(reader.offset_of(start)))
        try:
            while (batch := self.run(_next(batches))) is not None:
                yield batch
        finally:
            if not self._loop.is_closed():  # else the tier was closed before its reader
                self.run(batches.aclose())

    def sync(self, source: str | Source) -> list[StreamReport]:
        """Sync every stream of a source, given itself or by URL. Errors stand in the reports."""
        opened = open_source(source, plugins=self._plugins) if isinstance(source, str) else source

        async def all_reports() -> list[StreamReport]:
            return [report async for report in sync(opened, self._offloader)]

        return self.run(all_reports())

    def verify(self, stream: str | None = None) -> VerifyReport:
        """Hold every object of the tier, or of one stream, against checksums and manifest."""
        return self.run(verify(self._offloader, stream=stream))

    def close(self) -> None:
        """Close the tier and end the thread. Idempotent."""
        if self._thread.is_alive() and os.getpid() == self._pid:
            try:
                self.run(self._offloader.aclose())
            finally:
                self._end()

    def __enter__(self) -> Self:
        """Close on the way out."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self, make: Callable[[], LedgerOffloader]) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="offload", daemon=True)
        self._thread.start()

        async def made() -> LedgerOffloader:
            return make()

        try:
            self._offloader = self.run(made())
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(batches: Any) -> Messages | None:
    return await anext(batches, None)
