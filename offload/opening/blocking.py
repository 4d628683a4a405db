"""The blocking facade: a tier for scripts, notebooks and Spark workers, which have no event loop.

It runs the asynchronous core on a thread of its own and waits for it. Its methods may be called from several
threads.

Invariants:

- Nothing runs after `close`. Calls that are under way in other threads then end with `Misuse`.
- No call waits for ever. An instance raises `Misuse` instead of hanging in a forked process, which lacks the
  thread, and on its own thread, on which event listeners run.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Generic, Self, TypeVar

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoded, Decoder
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source
from offload.copy.sync import StreamReport, sync
from offload.formats.chunk_writer import build_chunk, checked_records
from offload.ground.errors import Misuse
from offload.log.memory_handle import MemoryHandle
from offload.model.manifest import Manifest
from offload.model.position import AtEdge, AtOffset, PartOffset, Position, check_start
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.opening.backends import as_offloader
from offload.opening.plugins import Plugins
from offload.opening.session import Session
from offload.read.reader import Messages, StreamReader
from offload.upkeep.retention import Retention, TrimReport, delete_stream, trim
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.tier import GRACE_SECONDS, sweep
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify
from offload.write.writer import StreamWriter

__all__ = ["Blocking"]


T = TypeVar("T")

_LOOK_SECONDS = 0.2
"""How often a waiting thread looks for Ctrl-C."""

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
        url: str | os.PathLike[str],
        *,
        plugins: Plugins | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: TierOptions | None = None,
        plan: TierPlan | None = None,
        keys: str | None = None,
    ) -> None:
        """The arguments are those of `Session` and of `Session.catalogue`. `url` may also be a `Path`."""
        session = Session(plugins=plugins, keys=keys)
        place = os.fspath(url) if isinstance(url, os.PathLike) else url
        self._open(
            session,
            lambda: session.catalogue(place, storage_options=storage_options, options=options, plan=plan),
        )

    @classmethod
    def around(cls, make: Callable[[], Catalogue], *, plugins: Plugins | None = None) -> Self:
        """Return a facade around a catalogue or an offloader. `make` is called on the facade's event loop."""
        facade = cls.__new__(cls)
        facade._open(Session(plugins=plugins or Plugins()), make)
        return facade

    @property
    def session(self) -> Session:
        """The session of the tier, to open other tiers beside it on the facade's event loop (`run`)."""
        return self._session

    @property
    def catalogue(self) -> Catalogue:
        """The tier's catalogue. Pass its coroutines to `run`."""
        return self._catalogue

    @property
    def offloader(self) -> LedgerOffloader:
        """The tier as an offloader.

        Pass its coroutines to `run`. Raises `Misuse` if the tier is read-only.
        """
        return as_offloader(self._catalogue)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the facade's event loop and wait for it.

        Ctrl-C cancels the coroutine. `KeyboardInterrupt` is raised when the coroutine has ended, including
        its cleanup. Raises `Misuse` for anything but a coroutine, and if the facade is closed before or while
        the coroutine runs.
        """
        # Checked here: on the loop, no task could be made of it, and the caller would wait for ever.
        if not asyncio.iscoroutine(coroutine):
            raise Misuse(f"run takes a coroutine, such as `run(f())`, not {coroutine!r}")
        try:
            call = self._begin(coroutine)
        except Misuse:
            coroutine.close()  # it never ran, and Python would warn that nobody awaited it
            raise
        try:
            return call.wait()
        except asyncio.CancelledError as exc:
            if self._closed:  # `close` cancelled it in another thread; else it cancelled itself
                raise Misuse(_CLOSED) from exc
            raise

    def streams(self) -> list[str]:
        """See `Catalogue.streams`."""
        return self.run(self._catalogue.streams())

    def load_manifest(self, stream: str) -> Manifest:
        """See `Committer.load_manifest`."""
        return self.run(self.offloader.load_manifest(stream))

    def append(self, stream: str, records: Sequence[bytes], *, timestamp_ms: int | None = None) -> int:
        """Append records as one ledger of one chunk, and return the first one's offset when it is committed.

        The first call for a stream claims it, and begins it if the tier does not have it. `timestamp_ms`
        defaults to the time of this machine. Raises as `StreamWriter.offload`, and `Misuse` for records that
        do not fit a chunk.
        """
        kept = checked_records(records)

        async def appended(writer: StreamWriter) -> int:
            offset = writer.manifest.next_offset
            now_ms = writer.env.now_ms() if timestamp_ms is None else timestamp_ms
            epoch = writer.manifest.source_epoch
            chunk = build_chunk(kept, offset=offset, timestamp_ms=now_ms, epoch=epoch)
            await writer.offload([MemoryHandle([chunk])])
            return offset

        return self.run(self._write(stream, appended))

    def offload(self, stream: str, ledgers: Sequence[ReadHandle]) -> int:
        """Copy ledgers that continue the stream, and return its end when they are committed.

        Otherwise as `append`. The caller closes the handles, on this facade's event loop (`run`).
        """

        async def offloaded(writer: StreamWriter) -> int:
            await writer.offload(ledgers)
            return writer.manifest.next_offset

        return self.run(self._write(stream, offloaded))

    async def _write(self, stream: str, work: Callable[[StreamWriter], Coroutine[Any, Any, T]]) -> T:
        """Do one piece of work as the writer of a stream. Threads that write take turns."""
        async with self._writing:
            writer = self._writers.pop(stream, None) or await StreamWriter.claim(self.offloader, stream)
            result = await work(writer)
            self._writers[stream] = writer  # after an error, the next call claims the stream anew
            return result

    def trim(self, stream: str, retention: Retention, *, dry_run: bool = False) -> TrimReport:
        """Delete the oldest fragments of a stream. The arguments are those of the asynchronous `trim`.

        A `Retention.before_offset` at or beyond the end deletes all data: see with `dry_run` what goes.
        """
        return self.run(trim(self.offloader, stream, retention, dry_run=dry_run))

    def delete(self, stream: str) -> Manifest | None:
        """Delete a stream for good. Further parts of it stay. See the asynchronous `delete_stream`."""
        self._writers.pop(stream, None)
        return self.run(delete_stream(self.offloader, stream))

    def sweep(
        self, stream: str | None = None, *, grace_seconds: float = GRACE_SECONDS, dry_run: bool = False
    ) -> SweepReport:
        """Delete objects that no manifest references. The arguments are those of the asynchronous `sweep`."""
        return self.run(sweep(self.offloader, stream=stream, grace_seconds=grace_seconds, dry_run=dry_run))

    def decode(
        self, stream: str, decoder: str, start: Position = AtEdge.FIRST
    ) -> Iterator[tuple[int, Decoded]]:
        """Yield each message of a stream with its offset, decoded by a plugin's decoder.

        Raises `Misuse` if no plugin declares a decoder of this name.
        """
        decoding: Decoder = self._session.plugins.by_name("decoder", decoder).load()()
        with closing(self.read(stream, start)) as batches:
            for batch in batches:
                yield from enumerate(decoding.decode(batch.bodies), batch.offset)

    def read(
        self, stream: str, start: Position | int | PartOffset = AtEdge.FIRST
    ) -> Generator[Messages, None, None]:
        """Yield the messages of a stream and its parts from a position or an offset on, chunk by chunk.

        Raises `Misuse` for what is neither.
        """
        start = AtOffset(start) if isinstance(start, int) else start
        check_start(start)
        reader = self.run(StreamReader.open(self._catalogue, stream))
        place = start if isinstance(start, PartOffset) else self.run(reader.place_of(start))
        batches = reader.messages(place)
        try:
            while (batch := self.run(_next(batches))) is not None:
                yield batch
        finally:
            if not self._closed:  # `close` ends the readers of its tier itself, and then `run` would raise
                self.run(batches.aclose())

    def sync(
        self,
        source: str | Source,
        *,
        only: Sequence[str] = (),
        new_part: bool = False,
    ) -> list[StreamReport]:
        """Sync every stream of a source, which is given by URL or as an object. Errors are in the reports.

        The arguments are those of the asynchronous `sync`.
        """
        opened = self._session.source(source) if isinstance(source, str) else source

        async def all_reports() -> list[StreamReport]:
            return [report async for report in sync(opened, self.offloader, only=only, new_part=new_part)]

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
        """Verify the objects of the tier, or of one stream, against their checksums and the manifest.

        The arguments are those of the asynchronous `verify`.
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
        """Cancel the running calls, close the tier and end the thread. Idempotent.

        Any thread but the facade's own may call it. Does nothing in a forked process.
        """
        if os.getpid() != self._pid:
            return
        self._refuse_own_thread()
        # The lock makes the mark and the queueing one step. So a call of `_begin` is queued on the loop
        # before the shutdown, which then cancels it, or it sees the mark and raises `Misuse`.
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

    def __repr__(self) -> str:
        """Return the URL of the tier, which has no credentials."""
        url = self._catalogue.url if hasattr(self, "_catalogue") else "nothing"
        return f"<Blocking of {url}{', closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        """Return the facade. The exit closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self, session: Session, make: Callable[[], Catalogue]) -> None:
        self._session = session
        self._pid = os.getpid()
        self._writers: dict[str, StreamWriter] = {}
        self._writing = asyncio.Lock()
        self._lock = threading.Lock()  # held from the check of `_closed` until the call is queued on the loop
        self._closed = False
        self._calls: set[_Call[Any]] = set()  # calls of `run`; those that ended are removed at the next call
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="offload", daemon=True)
        self._thread.start()

        async def made() -> Catalogue:  # a coroutine, so that `make` runs on the loop, as `around` promises
            return make()

        try:
            self._catalogue = self.run(made())
        except BaseException:
            self._end()
            raise

    def _serve(self) -> None:
        # The exit of the runner cancels remaining tasks, ends generators and the executor, closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop):
            self._loop.run_forever()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> _Call[T]:
        # Before the lock: another thread may have held it at the fork, and then nobody releases it here.
        if os.getpid() != self._pid:
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
            raise Misuse("a blocking tier cannot wait on its own thread, on which event listeners run")

    async def _shut_down(self) -> None:
        """End the calls, then close the tier that they use and everything else that was opened."""
        # Every call has its task by now: its start was queued on the loop before this coroutine was.
        for call in self._calls:
            call.task.cancel()
        # The calls end first, because their cleanup may still use the tier.
        await asyncio.gather(*(call.task for call in self._calls), return_exceptions=True)
        async with self._session:  # closes everything that was opened beside the tier, even if this fails
            await self._catalogue.aclose()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Call(Generic[T]):
    """A coroutine that runs on the loop for a waiting thread.

    Calls start in the order in which they are made.
    """

    task: asyncio.Task[T]

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self.ended = threading.Event()
        loop.call_soon_threadsafe(self._start, coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.task = self._loop.create_task(coroutine)
        self.task.add_done_callback(lambda task: self.ended.set())

    def wait(self) -> T:
        """Return the coroutine's result, or raise its error.

        An interrupt cancels it and waits for its end.
        """
        try:
            # In short waits. Some libraries, such as Polars, install a handler of SIGINT after which the
            # system resumes a wait without a timeout, and Python would not see Ctrl-C before the end.
            while not self.ended.wait(_LOOK_SECONDS):
                pass
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed, so the coroutine has ended
                # A lambda, because `task` may not exist yet: it is read on the loop, after `_start`.
                self._loop.call_soon_threadsafe(lambda: self.task.cancel())
            self.ended.wait()
            if not self.task.cancelled():
                self.task.exception()  # marks it as retrieved, so that asyncio does not log it
            raise
        return self.task.result()


async def _next(batches: Any) -> Messages | None:
    return await anext(batches, None)
