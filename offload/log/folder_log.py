"""A log in a folder, in the file format of osiris: RabbitMQ reads it as a stream.

    00000000000000000000.segment, .index    a sealed ledger; its id is its first offset
    00000000000000006250.segment, .index    the open ledger, perhaps empty
    writer.lock                             one writer (`log_lock`)
    note.cursors                            notes (`notes`)

Nothing is kept twice: the size of a sealed ledger is that of its segment, and the time when it was sealed is
the segment's time of change.

**Group commit.** Callers put their records into a queue. One task takes all that waits, up to
`BATCH_SIZE_BYTES`, and a thread writes it as few chunks. While it is being synced, the next batch gathers.
The queue has references to records of callers that wait, so its memory is theirs, and their number bounds it.

**Durability** is what `append` waits for:

    policy      append returns when the records are     committed_offset is
    ALWAYS      synced                                  the end
    INTERVAL    written; synced every so often          the end of what was synced
    OS          written; never synced by appends        the end

Under every policy, a ledger is synced when it is sealed, and the newest when the log is opened. Under OS, a
power cut may take acknowledged records, and the copy on a tier may then have what the log has not. The epoch
rises with each opening, so the two can be told apart. See `open_pair` for the order of writes and syncs, and
`repair` for what happens at opening.

An open log has one descriptor, that of its lock. Its files and its table are open from the first append until
nothing was appended for `IDLE_SECONDS`. A reader then gets the table from the index. A log at rest has no
task and no thread.

Disk work is done in threads of the event loop, one call at a time for each log. It is never interrupted: a
cancelled caller leaves at the end of the call that runs.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LedgerLog, LocalLedger
from offload.formats.chunk import CHUNK_HEADER
from offload.formats.segment import SEGMENT_HEADER
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Fenced, Misuse, NotOffloaded, OffloadError
from offload.local.files import explained, shown_path
from offload.local.pair import Pair
from offload.local.sealed import SealedPair, sealed_table
from offload.local.segment_ledger import SegmentLedger
from offload.local.segment_writer import SEGMENT_SIZE_BYTES_MAX
from offload.log.appended import AppendCall, chunks_of
from offload.log.disk import Disk
from offload.log.lock import LOCK_NAME, LogLock, Present
from offload.log.memory_log import check_begin, check_deletion
from offload.log.notes import load_note, note_files, save_note
from offload.log.open_pair import TIME_MS_MIN, OpenPair, PairEnd, create_pair, remove_pair
from offload.log.repair import repair
from offload.store.buffers import BufferPool

__all__ = ["Durability", "FolderLog"]

T = TypeVar("T")

BATCH_SIZE_BYTES: Final = 16 * 2**20
"""A batch ends with the call that brings it to this."""

IDLE_SECONDS: Final = 5.0
ROLL_SIZE_BYTES: Final = 500_000_000
ROLL_SIZE_BYTES_MAX: Final = 2**30
ROLL_CHUNKS: Final = 256_000
"""The size and the number of chunks at which osiris begins a new segment."""

_POOL_SIZE_BYTES: Final = 32 * 2**20
_OFFSET_MAX: Final = 2**64 - 2
EPOCH_MAX: Final = 2**63
"""Epochs are below this. A larger one is damage: no checksum covers the epoch of a chunk."""


class Durability(StrEnum):
    """The events for which an append waits: a write, or a sync."""

    ALWAYS = "always"
    """The records are synced: a power cut does not take them."""
    INTERVAL = "interval"
    """The records are written, and synced in the background: a power cut takes the newest ones."""
    OS = "os"
    """The records are written: a power cut takes what the kernel has not written to the disk."""


class FolderLog(LedgerLog):
    """A `LedgerLog` in a folder. Open it with `open`."""

    __slots__ = (
        "_calls",
        "_disk",
        "_durability",
        "_env",
        "_epoch",
        "_folder",
        "_interval_seconds",
        "_is_closed",
        "_is_closing",
        "_is_destroyed",
        "_is_destroying",
        "_ledgers",
        "_lock",
        "_name",
        "_process",
        "_raises_epoch",
        "_roll_chunks",
        "_roll_size_bytes",
        "_tending",
        "_turn",
        "_writer",
    )

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        lock: LogLock,
        sealed: tuple[LocalLedger, ...],
        pair: OpenPair,
        raises_epoch: bool,
        durability: Durability,
        interval_seconds: float,
        roll_size_bytes: int,
        roll_chunks: int,
        env: Env,
        disk: Disk,
    ) -> None:
        self._folder, self._name, self._lock = folder, name, lock
        # One attribute, because a thread replaces both at once, and the event loop reads them.
        self._ledgers = sealed, pair
        self._epoch, self._raises_epoch = pair.epoch, raises_epoch
        self._durability, self._interval_seconds = durability, interval_seconds
        self._roll_size_bytes, self._roll_chunks = roll_size_bytes, roll_chunks
        self._env, self._disk, self._process = env, disk, os.getpid()
        self._calls: deque[AppendCall] = deque()
        self._turn = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._tending: asyncio.Task[None] | None = None
        self._is_closing = self._is_closed = False
        self._is_destroying = self._is_destroyed = False

    @classmethod
    async def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str = "",
        durability: Durability = Durability.ALWAYS,
        interval_seconds: float = 0.1,
        roll_size_bytes: int = ROLL_SIZE_BYTES,
        roll_chunks: int = ROLL_CHUNKS,
        epoch: int | None = None,
        env: Env | None = None,
        disk: Disk | None = None,
    ) -> Self:
        """Open the log in a folder, or create it. `name` is that of the stream, by default the folder's.

        New chunks get `epoch`; by default it is one above all that a writer of this log has had. The log
        begins a new ledger before an append if the open one has `roll_size_bytes` or `roll_chunks`.

        A torn tail, as a crash leaves it, is repaired. Raises `Conflict` if a process has the log open,
        `Fenced` if a writer had a newer epoch than the given one, and `Corrupt` for damage that no crash
        explains; then no file of the log was changed.
        """
        if durability not in list(Durability):
            has = ", ".join(repr(each.value) for each in Durability)
            raise Misuse(f"durability is one of {has}, not {durability!r}")
        durability = Durability(durability)
        if not 0 < roll_size_bytes <= ROLL_SIZE_BYTES_MAX or not 0 < roll_chunks <= ROLL_CHUNKS:
            raise Misuse(
                f"roll at 1 to {ROLL_SIZE_BYTES_MAX} bytes and at 1 to {ROLL_CHUNKS} chunks, "
                f"not at {roll_size_bytes} bytes and {roll_chunks} chunks"
            )
        if interval_seconds <= 0:
            raise Misuse(f"sync at an interval of more than 0 seconds, not {interval_seconds}")
        if epoch is not None and not 0 <= epoch < EPOCH_MAX:
            raise Misuse(f"{epoch} is no leader epoch")
        # Absolute, because the process may change its folder later.
        path = Path(os.path.abspath(folder))  # noqa: ASYNC240
        name, real = name or path.name, disk or Disk()
        opening = partial(_opened, path, name, epoch, real)
        lock, sealed, pair = await _to_the_end(opening, undo=lambda found: found[0].release())
        return cls(
            path,
            name=name,
            lock=lock,
            sealed=sealed,
            pair=pair,
            raises_epoch=epoch is None,
            durability=durability,
            interval_seconds=interval_seconds,
            roll_size_bytes=roll_size_bytes,
            roll_chunks=roll_chunks,
            env=env or Env(),
            disk=real,
        )

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    @property
    def where(self) -> str:
        """The folder."""
        return shown_path(self._folder)

    @property
    def epoch(self) -> int:
        """The leader epoch that new chunks get."""
        return self._epoch

    @property
    def ledgers(self) -> Sequence[LocalLedger]:
        """The ledgers, in order. The last one is open."""
        sealed, pair = self._ledgers
        return [*sealed, _facts(pair.pair, pair.end)]

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._ledgers[1].end.next_offset

    @property
    def committed_offset(self) -> int:
        """The end of what is synced, or under `OS` of what is written."""
        return self._committed(self._ledgers[1]).next_offset

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """Append records. Return the offset of the first one when they last as the policy says."""
        self._check()
        self._ledgers[1].check()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._calls.append(AppendCall.of(records, timestamp_ms=timestamp_ms, done=done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_calls())
        return await done

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """Seal the open ledger. Its time is kept as the segment's time of change."""
        if not 0 <= now_ms < 2**53:
            raise Misuse(f"{now_ms} is no time in milliseconds since 1970")
        async with self._turn:
            self._check()
            return await _to_the_end(partial(self._roll, now_ms))

    async def open_ledger(self, ledger_id: int) -> ReadHandle:
        """Return a snapshot of one ledger. It opens its file at the first read."""
        self._check()
        sealed, pair = self._ledgers
        ledger = partial(SegmentLedger, pool=BufferPool(_POOL_SIZE_BYTES))
        if ledger_id == pair.pair.offset:
            end = self._committed(pair)
            if not end.chunks:
                raise NotOffloaded(f"{self.where}: ledger {ledger_id} has no records")
            if (rows := pair.kept_rows(end.chunks)) is not None:
                return ledger(pair.pair, next_offset=end.next_offset, load=lambda: rows)
            return ledger(pair.pair, next_offset=end.next_offset, load=partial(pair.read_rows, end.chunks))
        found = next((each for each in sealed if each.ledger_id == ledger_id), None)
        if found is None:
            raise NotOffloaded(f"{self.where} has no ledger {ledger_id}")
        files = SealedPair(Pair(self._folder, found.first_offset), found.next_offset)
        load = partial(sealed_table, files, stream=self._name)
        return ledger(files.pair, next_offset=files.next_offset, load=load)

    async def delete(self, ledger_id: int) -> None:
        """Delete the oldest ledger: its index, then its segment, as osiris does."""
        async with self._turn:
            self._check()
            check_deletion(self.ledgers, ledger_id, where=self.where)
            if ledger_id == self.ledgers[0].ledger_id:
                await _to_the_end(self._delete_oldest)

    async def begin(self, offset: int, *, epoch: int = 0) -> None:
        """Let a log without records begin at this offset, which is not before its end.

        New chunks get at least this leader epoch, unless `open` was called with one.
        """
        if not 0 <= offset <= _OFFSET_MAX:
            raise Misuse(f"{offset} is no offset")
        async with self._turn:
            self._check()
            await _to_the_end(partial(self._begin, offset, epoch))

    async def load_note(self, name: str) -> bytes | None:
        """Return a note; None if there is none."""
        async with self._turn:
            self._check()
            return await _to_the_end(partial(load_note, self._folder, name))

    async def save_note(self, name: str, data: bytes) -> None:
        """Keep a note, in place of the one before."""
        async with self._turn:
            self._check()
            await _to_the_end(partial(save_note, self._folder, name, data, disk=self._disk))

    async def destroy(self) -> None:
        """Delete the files of the log, the oldest first, and the folder if it is empty then.

        After an error, the log is closed and keeps its lock: repeat the call, or release it by `aclose`.
        """
        if self._is_destroyed:
            return
        if not self._is_destroying or self._is_closed:
            self._check()
        self._is_destroying = True
        await self._finish(self._destroy, is_final=lambda: self._is_destroyed)

    async def aclose(self) -> None:
        """Write what waits, and release files and the lock."""
        await self._finish(self._close)

    # The event loop's part.

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise Misuse(f"{self.where} was opened by the parent of this process: open it here")
        if self._is_closing:
            raise Misuse(f"{self.where} is closed")

    def _committed(self, pair: OpenPair) -> PairEnd:
        return pair.end if self._durability is Durability.OS else pair.synced

    async def _write_calls(self) -> None:
        """Write batches until nothing waits."""
        try:
            while self._calls:
                async with self._turn:
                    # Taken when the turn begins: more may have come while another call had it.
                    batch = self._take()
                    if batch:
                        await self._write_batch(batch)
                        if self._tending is None:
                            self._tending = asyncio.create_task(self._tend())
        finally:
            self._writer = None
            # Only if this task was cancelled: the event loop is being stopped.
            for call in self._calls:
                call.done.cancel()
            self._calls.clear()

    def _take(self) -> list[AppendCall]:
        batch: list[AppendCall] = []
        size_bytes = 0
        while self._calls and size_bytes < BATCH_SIZE_BYTES:
            call = self._calls[0]
            # A second huge call would not fit the segment's positions beside the first one.
            if batch and size_bytes + call.size_bytes > 2 * BATCH_SIZE_BYTES:
                break
            self._calls.popleft()
            if not call.done.done():  # cancelled
                batch.append(call)
                size_bytes += call.size_bytes
        return batch

    async def _write_batch(self, batch: list[AppendCall]) -> None:
        try:
            first = await _to_the_end(partial(self._write, batch))
        except asyncio.CancelledError:
            # It was written, or it failed. The callers are being cancelled as well.
            for call in batch:
                call.done.cancel()
            raise
        except Exception as exc:  # noqa: BLE001 (every append of the batch raises it)
            for call in batch:
                if not call.done.done():
                    call.done.set_exception(_own(exc))
        else:
            for call in batch:
                if not call.done.done():
                    call.done.set_result(first)
                first += len(call.records)

    async def _tend(self) -> None:
        """Sync from time to time if the policy says so, and close the files when they are idle."""
        syncs = self._durability is Durability.INTERVAL
        pause = min(self._interval_seconds, IDLE_SECONDS) if syncs else IDLE_SECONDS
        seen, quiet_seconds = None, 0.0
        try:
            while True:
                await self._env.sleep(pause)
                async with self._turn:
                    pair = self._ledgers[1]
                    quiet_seconds = quiet_seconds + pause if pair.end is seen else 0.0
                    seen = pair.end
                    if syncs and pair.synced != pair.end and pair.broken is None:
                        # An error breaks the log, and is raised by every later append.
                        with suppress(OffloadError):
                            await _to_the_end(self._sync)
                    if quiet_seconds >= IDLE_SECONDS:
                        pair.close()
                        return
        finally:
            self._tending = None

    async def _finish(self, work: Callable[[], None], *, is_final: Callable[[], bool] = lambda: True) -> None:
        if os.getpid() != self._process:
            return
        self._is_closing = True
        while self._writer is not None:
            await asyncio.wait([self._writer])
        if (tending := self._tending) is not None:
            tending.cancel()
            await asyncio.wait([tending])
        async with self._turn:
            if not self._is_closed:
                try:
                    await _to_the_end(work)
                finally:
                    self._ledgers[1].close()
                    if is_final():
                        self._is_closed = True
                        self._lock.release()

    # The part of the thread. Only the holder of the turn may call these methods.

    def _write(self, batch: list[AppendCall]) -> int:
        """Write a batch, and return the offset of its first record."""
        pair = self._ledgers[1]
        chunks = chunks_of(batch)
        size_bytes = sum(chunk.size_bytes + CHUNK_HEADER.size_bytes for chunk in chunks)
        end = pair.end
        if end.next_offset + sum(chunk.records for chunk in chunks) > _OFFSET_MAX:
            raise Misuse(f"{self.where}: the offsets of a log end at {_OFFSET_MAX}")
        if end.chunks and (
            end.position >= self._roll_size_bytes
            or end.chunks >= self._roll_chunks
            or end.position + size_bytes > SEGMENT_SIZE_BYTES_MAX
        ):
            self._roll(self._env.now_ms())
            pair = self._ledgers[1]
        first = pair.end.next_offset
        pair.write(chunks, sync=self._durability is Durability.ALWAYS)
        self._note()
        return first

    def _sync(self) -> None:
        self._ledgers[1].sync()
        self._note()

    def _present(self, *, first: int = 0) -> Present:
        """Return what must be there at the next opening, which needs nothing below `first`."""
        # A deletion that failed keeps its ledger, perhaps without a file: what was noted never falls.
        noted = self._lock.present.first if self._lock.present else 0
        return Present(first=max(first, noted, self.first_offset), synced=self._ledgers[1].synced.next_offset)

    def _note(self) -> None:
        """Note what is synced. An older note is right too, so a failure is none of the append's."""
        with suppress(OffloadError):
            self._lock.note(self._present())

    def _roll(self, now_ms: int) -> LocalLedger | None:
        sealed, pair = self._ledgers
        pair.check()
        if not pair.end.chunks:
            return None
        closed_ms = pair.seal(now_ms)
        following = PairEnd(pair.end.next_offset)
        new = Pair(self._folder, following.next_offset)
        self._create(new, pair)
        ledger = _facts(pair.pair, pair.end, closed_ms=closed_ms)
        self._ledgers = (
            (*sealed, ledger),
            OpenPair(new, following, epoch=self._epoch, timestamp_ms=pair.timestamp_ms, disk=self._disk),
        )
        pair.close()
        self._note()
        return ledger

    def _delete_oldest(self) -> None:
        sealed, pair = self._ledgers
        # Before the first file goes: later, a file alone is damage.
        self._lock.settle(self._present(first=sealed[0].next_offset))
        remove_pair(Pair(self._folder, sealed[0].first_offset), disk=self._disk)
        self._ledgers = sealed[1:], pair

    def _begin(self, offset: int, epoch: int) -> None:
        old = self._ledgers[1]
        old.check()
        check_begin(self.ledgers, offset, where=self.where)
        if epoch > self._epoch and self._raises_epoch:
            self._lock.save(epoch=epoch, present=self._present())  # before any chunk has it
            self._epoch = old.epoch = epoch
        if offset == old.pair.offset:
            return
        # The new pair first: a crash leaves two empty pairs, and `repair` removes the older one.
        pair = OpenPair(
            Pair(self._folder, offset),
            PairEnd(offset),
            epoch=self._epoch,
            timestamp_ms=old.timestamp_ms,
            disk=self._disk,
        )
        self._create(pair.pair, old)
        self._ledgers = (), pair
        old.close()
        remove_pair(old.pair, disk=self._disk, is_empty=True)
        self._note()

    def _create(self, new: Pair, old: OpenPair) -> None:
        """Create a pair behind another one, or leave none. If neither works, the log is broken."""
        try:
            create_pair(new, disk=self._disk)
        except OffloadError as exc:
            if new.segment.exists() or new.index.exists():
                # Appends to the pair before it would make it look like damage.
                old.break_off(exc)
            raise

    def _close(self) -> None:
        """Sync under every policy: damage of a log that was closed is told at its next opening."""
        pair = self._ledgers[1]
        if pair.broken is None and not self._is_destroying:
            pair.sync()
            self._lock.settle(self._present())

    def _destroy(self) -> None:
        sealed, pair = self._ledgers
        pair.close()
        # From here on nothing must be there.
        self._lock.save(epoch=self._epoch, present=None)
        for ledger in sealed:
            remove_pair(Pair(self._folder, ledger.first_offset), disk=self._disk)
        remove_pair(pair.pair, disk=self._disk)
        for path in (*note_files(self._folder), self._folder / LOCK_NAME):
            with explained("delete", path):
                self._disk.remove(path)
        with explained("sync", self._folder):
            self._disk.sync_folder(self._folder)
        self._is_destroyed = True
        with suppress(OSError):  # other files are in it
            self._folder.rmdir()


def _opened(
    folder: Path, name: str, epoch: int | None, disk: Disk
) -> tuple[LogLock, tuple[LocalLedger, ...], OpenPair]:
    """Lock and repair a folder. Blocks."""
    if not folder.is_dir():
        with explained("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
        with explained("sync", folder.parent):
            disk.sync_folder(folder.parent)
    lock = LogLock.take(folder, disk=disk)
    try:
        for path in note_files(folder, unfinished=True):
            with explained("delete", path):
                disk.remove(path)
        found = repair(folder, stream=name, disk=disk, present=lock.present)
        newest = max(found.epoch, lock.state.epoch)
        if epoch is not None and epoch < newest:
            raise Fenced(
                f"{shown_path(folder)} has had a writer of epoch {newest}, above {epoch}", epoch=newest
            )
        if newest >= EPOCH_MAX:
            raise Corrupt("leader epoch", shown_path(folder), expected=f"below {EPOCH_MAX}", found=newest)
        first = found.sealed[0].pair.offset if found.sealed else found.pair.offset
        present = Present(first=first, synced=found.end.next_offset)
        lock.save(epoch=newest + 1 if epoch is None else epoch, present=present)
        sealed = tuple(_sealed_facts(each) for each in found.sealed)
    except BaseException:
        lock.release()
        raise
    timestamp_ms = TIME_MS_MIN if found.timestamp_ms is None else found.timestamp_ms
    pair = OpenPair(found.pair, found.end, epoch=lock.state.epoch, timestamp_ms=timestamp_ms, disk=disk)
    return lock, sealed, pair


def _facts(pair: Pair, end: PairEnd, *, closed_ms: int | None = None) -> LocalLedger:
    return LocalLedger(
        ledger_id=pair.offset,
        first_offset=pair.offset,
        next_offset=end.next_offset,
        size_bytes=end.position - SEGMENT_HEADER.size_bytes,
        closed_ms=closed_ms,
    )


def _sealed_facts(sealed: SealedPair) -> LocalLedger:
    with explained("look at", sealed.pair.segment):
        found = sealed.pair.segment.stat()
    closed_ms = max(found.st_mtime_ns // 1_000_000, 0)
    return _facts(sealed.pair, PairEnd(sealed.next_offset, found.st_size), closed_ms=closed_ms)


def _own(error: Exception) -> Exception:
    """Return an error for one caller of several: each adds its traceback."""
    if not isinstance(error, OffloadError):
        return error
    kind, arguments, state = error.__reduce__()[:3]
    found: OffloadError = kind(*arguments)
    found.__dict__.update(state)
    found.__cause__ = error.__cause__
    return found


async def _to_the_end(work: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
    """Run `work` in a thread. A cancellation waits until it has ended, and gives its result to `undo`."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if running.exception() is None and undo is not None:
            undo(running.result())
        raise asyncio.CancelledError
    return running.result()
