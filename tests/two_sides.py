"""A broker's disk in memory that behaves like files, a tier beside it, and a reader of both with a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from kit.world import STREAM, TierWorld

from offload import (
    MemoryHandle,
    ObjectStoreOffloader,
    ReadPriority,
    Retention,
    Snapshot,
    Source,
    SourceStream,
    TieredReader,
    build_chunk,
    sync,
    trim,
)
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.store import Buffer
from offload.formats.chunk import ChunkHeader
from offload.formats.entries import messages
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import Corrupt, NotOffloaded, OffloadError, TryAgain
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import PartOffset
from offload.read.batches import Messages, messages_in
from offload.read.watch import StreamWatch
from offload.two_sides.choice import ReadSide
from offload.upkeep.compact.stream import compact

HOLD_BACK: Final = 1.0


@dataclass
class Segment:
    """One file of the disk. A handle that opened it reads it after its deletion, as a process does."""

    chunks: list[bytes] = field(default_factory=list)
    is_deleted: bool = False


class SegmentHandle(MemoryHandle):
    """A segment as a snapshot found it. Its bytes are those of the file now."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        super().__init__(segment.chunks, where=f"segment {id(segment) % 1000}")
        self._disk, self._segment, self._is_open = disk, segment, False

    async def table(self) -> ChunkTable:
        """Return the table, unless the file was deleted."""
        if self._segment.is_deleted and not self._is_open:
            raise TryAgain("the broker removed it meanwhile")
        return await super().table()

    async def read(self, rows: ChunkTable) -> Buffer:
        """Open the file, and read it."""
        at, act = self._disk.before_read
        if act is not None and int(rows["offset"][0]) == at:
            self._disk.before_read = at, None
            await act()
        if not self._is_open:
            if self._segment.is_deleted:
                raise TryAgain("the broker removed it meanwhile")
            self._is_open = True
            self._disk.files_open += 1
        start = int(rows["position"][0])
        data = bytearray(b"".join(self._segment.chunks)[start : start + int(rows["size_bytes"].sum())])
        for row in rows:
            if int(row["offset"]) in self._disk.damaged:
                if self._disk.refuses_damage:
                    raise Corrupt("record", self.where, expected="a sound one", found="another")
                end = int(row["position"]) - start + int(row["size_bytes"])
                if end <= len(data):
                    data[end - 1] ^= 1
        return bytes(data)

    async def aclose(self) -> None:
        """Close the file."""
        if self._is_open:
            self._is_open = False
            self._disk.files_open -= 1


@dataclass
class Disk(SourceStream):
    """A stream on a broker's disk. `recuts` makes it a source that cuts its chunks anew for each snapshot."""

    name: str = STREAM  # type: ignore[misc]  # a field instead of a property
    recuts: bool = False
    bodies: list[bytes] = field(default_factory=list)
    """Every record that was ever written and not cut, deleted ones too."""
    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    former: list[list[bytes]] = field(default_factory=list)
    """The records before each cut."""
    first_offset: int = 0
    epoch: int = 1
    damaged: set[int] = field(default_factory=set)
    """The offsets of chunks whose bytes are wrong."""
    refuses_damage: bool = False
    """True for a source that checks its records, and refuses all chunks of a read because of one."""
    before_read: tuple[int, Callable[[], Awaitable[None]] | None] = (0, None)
    """An offset, and what happens before the next read that begins there."""
    committed_offset: int | None = None
    """The end of what the broker vouches for."""
    is_gone: bool = False
    files_open: int = 0
    snapshots: int = 0

    @property
    def next_offset(self) -> int:
        """The end of the stream."""
        return len(self.bodies)

    def append(self, records: int) -> None:
        """Append a chunk."""
        bodies = [b"%d in %d" % (self.next_offset + k, self.epoch) for k in range(records)]
        self.segments[-1].chunks.append(self._chunk(self.next_offset, bodies))
        self.bodies += bodies

    def roll(self) -> None:
        """Begin a new segment."""
        if self.segments[-1].chunks:
            self.segments.append(Segment())

    def retain(self) -> None:
        """Delete the oldest segment, as retention does."""
        if len(self.segments) > 1 and self.segments[1].chunks:
            oldest = self.segments.pop(0)
            oldest.is_deleted = True
            self.first_offset = ChunkHeader.decode(self.segments[0].chunks[0], where="").offset

    def cut(self, keep: int) -> bool:
        """Cut the log, as a new leader does, down to a chunk that ends at `keep` or behind it."""
        if not self.segments[-1].chunks and len(self.segments) > 1:
            self.segments.pop()
        chunks = self.segments[-1].chunks
        was_cut = False
        while len(chunks) > 1 or (chunks and len(self.segments) > 1):
            header = ChunkHeader.decode(chunks[-1], where="")
            if header.offset < keep:
                break
            if not was_cut:
                self.former.append([*self.bodies])
            chunks.pop()
            del self.bodies[header.offset :]
            was_cut = True
        self.epoch += was_cut
        return was_cut

    async def mark(self) -> Hashable:
        """Return what a look at the files shows."""
        if self.is_gone:
            raise TryAgain("the folder is gone")
        return self.first_offset, self.next_offset, self.epoch

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the files as they are now."""
        if self.is_gone:
            raise TryAgain("the folder is gone")
        self.snapshots += 1
        segments = [segment for segment in self.segments if segment.chunks]
        if self.recuts and segments:
            segments = [Segment(self._cut_anew(0 if since is None else since.next_offset))]
        return Snapshot(
            ledgers=[SegmentHandle(self, segment) for segment in segments],
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            epoch=self.epoch,
            committed_offset=self.committed_offset,
            holds=self._holds if self.recuts else None,
        )

    def _cut_anew(self, border: int) -> list[bytes]:
        chunks, at = list[bytes](), self.first_offset
        while at < self.next_offset:
            end = min(at + 1 + (at * 7 + self.snapshots * 3) % 5, self.next_offset)
            if at < border < end:
                end = border
            chunks.append(self._chunk(at, self.bodies[at:end]))
            at = end
        return chunks

    async def _holds(self, chunk: bytes) -> str | None:
        begin = ChunkHeader.decode(chunk, where="").offset
        bodies = messages(chunk, where="")
        if begin < self.first_offset:
            bodies, begin = bodies[self.first_offset - begin :], self.first_offset
        return None if self.bodies[begin : begin + len(bodies)] == bodies else "other records"

    def _chunk(self, offset: int, bodies: list[bytes]) -> bytes:
        return build_chunk(bodies, offset=offset, timestamp_ms=self.epoch, epoch=self.epoch)


@dataclass
class OneStream(Source):
    """A source of one stream."""

    disk: Disk
    url = "memory://disk"  # type: ignore[assignment]
    notes = ()  # type: ignore[assignment]

    async def streams(self) -> Sequence[SourceStream]:
        """Return it."""
        return [self.disk]


@dataclass
class World(TierWorld):
    """A disk beside the tier, and a reader of both that is judged. Time passes only when the world turns."""

    priority: ReadPriority = ReadPriority.LOCAL_FIRST
    by_chunks: bool = False
    """True if the reader yields stored chunks, of which the world takes the messages from its place on."""
    disk: Disk = field(default_factory=Disk)
    delivered: list[tuple[int, bytes]] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)
    damage: list[Corrupt] = field(default_factory=list)
    place: int = 0
    error: OffloadError | None = None
    """The error that ended the reading."""
    has_ended: bool = False

    reader: TieredReader | None = None
    part: int = 1
    """The part of the last batch."""
    _batches: AsyncGenerator[Messages, None] | None = None
    _waiting: asyncio.Task[Messages] | None = None
    _turn: asyncio.Event = field(default_factory=asyncio.Event)
    _asleep: int = 0
    """How many sleeps of the reader have not ended."""
    _new_skips: list[tuple[int, int]] = field(default_factory=list)
    _last: tuple[int, list[bytes]] | None = None

    def __post_init__(self) -> None:
        self.kept = ObjectStoreOffloader(self.store, env=self.clock.env())

    def env(self) -> Env:
        """The environment of the reader. A sleep ends when the world turns."""
        clock = self.clock

        async def sleep(seconds: float) -> None:
            end, counts = clock.now + seconds, not self._is_beside()
            self._asleep += counts
            try:
                while clock.now < end:
                    await self._turn.wait()
                    await asyncio.sleep(0)
            finally:
                self._asleep -= counts

        return Env(monotonic=lambda: clock.now, sleep=sleep, random=lambda: 0.5)

    def _is_beside(self) -> bool:
        """Return whether the task that runs looks at the tier, beside a reader that may be busy."""
        task = asyncio.current_task()
        name = "" if task is None else getattr(task.get_coro(), "__name__", "")
        return name in ("_tier_news", "_look") and ReadSide.LOCAL in self.priority.sides

    async def copy(self, disk: Disk | None = None) -> OffloadError | None:
        """Bring the tier up to date with the disk, or with another one. Return the error of the copy."""
        [report] = [each async for each in sync(OneStream(disk or self.disk), self.others())]
        return report.error

    async def committed(self) -> CommittedStream | None:
        """Return what is on the tier now."""
        try:
            return await self.others().load_manifest(STREAM)
        except NotOffloaded:
            return None

    async def trim(self, before: int) -> None:
        """Trim the tier, and sweep without any grace."""
        if await self.committed() is None:
            return
        others = self.others()
        await trim(others, STREAM, Retention(before_offset=before))
        await self._sweep(others)

    async def compact(self) -> None:
        """Merge all fragments of the tier, and sweep without any grace."""
        if await self.committed() is None:
            return
        others = self.others()
        async for _ in compact(others, fragment_size_bytes=1 << 20):
            pass
        await self._sweep(others)

    async def _sweep(self, others: ObjectStoreOffloader) -> None:
        view = await others.view(STREAM)
        rows = view.committed.entries
        named = {view.name_of(rows[row : row + 1]) for row in range(len(rows))}
        for key in [*self.objects]:
            if StreamKeys(STREAM).parse_fragment(key) and key not in named:
                del self.objects[key]

    async def open(self, *, follow: bool = True) -> None:
        """Begin to read at the place that was reached."""
        self.reader = await TieredReader.open(
            self.disk,
            self.kept,
            priority=self.priority,
            hold_back_seconds=HOLD_BACK,
            in_flight=1,
            env=self.env(),
            emit=self._tell,
        )
        self._last = None
        if follow:
            watch = StreamWatch(self.kept, env=self.env())
            start = PartOffset(1, self.place)
            if self.by_chunks:
                self._batches = self._decoded(self.reader.follow_chunks(start, watch=watch))
            else:
                self._batches = self.reader.follow(start, watch=watch)
        elif self.by_chunks:
            self._batches = self._decoded(self.reader.chunks(PartOffset(1, self.place)))
        else:
            self._batches = self.reader.messages(PartOffset(1, self.place))

    async def _decoded(self, source: AsyncGenerator[StoredChunk, None]) -> AsyncGenerator[Messages, None]:
        async with aclosing(source) as chunks:
            async for chunk in chunks:
                assert chunk.next_offset > self.place, "all of the chunk was delivered before"
                batch = messages_in(chunk)
                assert batch is not None
                skip = max(self.place - batch.offset, 0)
                yield Messages(batch.offset + skip, batch.timestamp_ms, batch.bodies[skip:], batch.part)

    async def turn(self, seconds: float) -> None:
        """Let time pass for everybody who sleeps."""
        self.clock.now += seconds
        self._turn.set()
        await asyncio.sleep(0)
        self._turn.clear()

    async def read(self, batches: int, *, turns: int = 40) -> bool:
        """Read so many batches, or fewer if no more come. Return True if all came."""
        assert self._batches is not None
        for _ in range(batches):
            if self.error is not None or self.has_ended:
                return False
            if self._waiting is None:
                self._waiting = asyncio.ensure_future(anext(self._batches))
            for _ in range(turns):
                if await self._settled(self._waiting):
                    break
                await self.turn(0.3)
            if not self._waiting.done():
                return False
            waiting, self._waiting = self._waiting, None
            try:
                await self._judge(waiting.result())
            except StopAsyncIteration:
                self.has_ended = True
            except OffloadError as error:
                self.error = error
        return True

    async def _settled(self, task: asyncio.Task[Messages]) -> bool:
        """Wait until the task is done, or sleeps."""
        for _ in range(3000):
            if task.done():
                return True
            if self._asleep:
                break
            await asyncio.sleep(0.00005)
        return task.done()

    async def close(self) -> None:
        """Close the reader in the middle of whatever it does."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
            self._waiting = None
        if self._batches is not None:
            await self._batches.aclose()
            self._batches = None
        assert self.disk.files_open == 0, "a file was left open"
        for _ in range(5):  # a look of the watch that was cancelled ends
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    async def _judge(self, batch: Messages) -> None:
        """Assert that a batch continues what was read, in the history that is true now."""
        begin, end = batch.offset, batch.offset + len(batch.bodies)
        assert begin == self.place, f"expected offset {self.place}, got {begin}"
        committed = await self.committed()
        await self._judge_skips(committed)
        last = self._last if await self._is_comparable(committed) else None
        assert any(
            log[begin:end] == batch.bodies
            and (last is None or log[last[0] : last[0] + len(last[1])] == last[1])
            for log in (*self.disk.former, self.disk.bodies)
        ), f"{batch.bodies} does not continue {last}"
        self.place, self._last, self.part = end, (begin, batch.bodies), batch.part
        self.delivered += zip(range(begin, end), batch.bodies, strict=True)

    async def _judge_skips(self, committed: CommittedStream | None) -> None:
        """Assert that no side that is read has what was left out."""
        is_fork = False
        if committed is not None and ReadSide.TIER in self.priority.sides:
            begin, end = max(committed.first_offset, self.disk.first_offset), self.disk.next_offset
            end = min(end, committed.next_offset)
            is_fork = begin < end and await self.on_tier(end - 1, end) != self.disk.bodies[end - 1 : end]
        for begin, end in self._new_skips:
            if ReadSide.LOCAL in self.priority.sides and not is_fork:
                assert self.disk.first_offset >= end, f"the disk has [{begin}, {end})"
            if ReadSide.TIER in self.priority.sides and committed is not None:
                is_away = committed.first_offset >= end or committed.next_offset <= begin
                assert is_away, f"the tier has some of [{begin}, {end})"
        self._new_skips.clear()

    async def _is_comparable(self, committed: CommittedStream | None) -> bool:
        """Return whether a side that is read still reaches back to the last batch."""
        if self._last is None:
            return False
        begin, end = self._last[0], self._last[0] + len(self._last[1])
        sides = self.priority.sides
        is_on_tier = (
            committed is not None and committed.first_offset <= begin and end <= committed.next_offset
        )
        is_on_disk = self.disk.first_offset <= begin
        if self.disk.first_offset >= end and (committed is None or committed.next_offset <= end):
            return False  # a source that begins where the tier ends shows nothing, also to a sync
        return (is_on_tier and ReadSide.TIER in sides) or (is_on_disk and ReadSide.LOCAL in sides)

    async def on_tier(self, begin: int, end: int) -> list[bytes]:
        """Return the records that the tier has, read by nothing that is under test."""
        others = self.others()
        view, found = await others.view(STREAM), list[bytes]()
        at = max(begin, view.committed.first_offset)
        while at < end and (entry := await view.find(at)) is not None:
            async with await view.open(entry) as handle:
                for row in await handle.table():
                    offset, count = int(row["offset"]), int(row["records"])
                    if offset < end and offset + count > at:
                        rows = (await handle.table())[(await handle.table())["offset"] == row["offset"]]
                        bodies = messages(bytes(await handle.read(rows)), where="")
                        found += bodies[max(at - offset, 0) : end - offset]
            at = entry.next_offset
        return found

    def _tell(self, event: Event) -> None:
        if isinstance(event, Skipped):
            assert event.from_offset == self.place, f"{event} at offset {self.place}"
            self.skipped.append((event.from_offset, event.to_offset))
            self._new_skips.append(self.skipped[-1])
            self.place = event.to_offset
        elif isinstance(event, DamageFound):
            self.damage.append(event.damage)
