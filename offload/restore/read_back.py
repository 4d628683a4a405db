"""Comparing a restored stream with its archive, message by message, and the map from old to new offsets.

Both streams are read once, side by side. Each run of messages whose offsets keep one distance is a row of the
map: `old` and `new` begin it, and `count` is its length. Messages are compared as bytes.

The offsets that consumers stored are replayed from the archive's tracking records. A consumer stores the
offset of the last message that it processed. Its new value is the offset of the last restored message up to
there. Over a gap, that is the last message before the gap. Behind another history it is not known which
message of the part before an offset means: then there is none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.target import MessageTarget, TargetMessages
from offload.formats.chunk import ChunkHeader
from offload.formats.tracking import ConsumerOffset, blocks_of
from offload.ground.errors import Diverged
from offload.model.chunk_table import ChunkType
from offload.model.position import PartOffset
from offload.read.batches import Window
from offload.read.reader import Messages
from offload.read.salvage import Archive

NONE: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetRun:
    """Messages with the archived offsets from `old` on. In the target they have those from `new` on."""

    old: int
    new: int
    count: int
    part: int = 1
    """The part of the stream whose offsets begin at `old`."""


@dataclass(slots=True)
class OffsetMap:
    """The map from old offsets to new ones, at 28 bytes for each run."""

    _olds: array[int] = field(default_factory=lambda: array("Q"))
    _news: array[int] = field(default_factory=lambda: array("Q"))
    _counts: array[int] = field(default_factory=lambda: array("Q"))
    _parts: array[int] = field(default_factory=lambda: array("I"))
    consumers: dict[bytes, PartOffset] = field(default_factory=dict)
    """The last offset that each consumer stored in the archived stream, by the consumer's name."""

    breaks: Collection[int] = ()
    """The parts whose offsets do not continue those of the part before."""

    def add(self, run: OffsetRun) -> None:
        """Add a run behind those before, or make the last one longer."""
        if self._olds:
            count, part = self._counts[-1], self._parts[-1]
            if (self._olds[-1] + count, self._news[-1] + count, part) == (run.old, run.new, run.part):
                self._counts[-1] += run.count
                return
        self._olds.append(run.old)
        self._news.append(run.new)
        self._counts.append(run.count)
        self._parts.append(run.part)

    def runs(self) -> Iterator[OffsetRun]:
        """Yield the runs in order."""
        for old, new, count, part in zip(self._olds, self._news, self._counts, self._parts, strict=True):
            yield OffsetRun(old, new, count, part)

    def new_of(self, old: int, part: int = 1) -> int | None:
        """Return the new offset of the last restored message at `old` of this part or before.

        None if there is none, or if it is not known which one it is.
        """
        for number in range(part, 0, -1):
            begin, end = bisect_left(self._parts, number), bisect_right(self._parts, number)
            row = bisect_right(self._olds, old, begin, end) - 1
            if row >= begin:
                return self._news[row] + min(old - self._olds[row], self._counts[row] - 1)
            if number in self.breaks:
                break
        return None


@dataclass(slots=True)
class Comparison:
    """A comparison of a target with the archived parts of a stream. `runs` does it."""

    archives: Sequence[Archive]
    target: MessageTarget
    is_followed: bool = False
    """If true, others may have published to the target behind the last message of the archive."""
    row: int = 0
    """The row of the archive that has the last message that was found in the target."""
    next_offset: int = NONE
    """The archived offset behind that message."""
    ends_before: int | None = None
    """The row of the archive that continues behind this target, whose messages were not restored to it."""
    last_header: bytes = b""
    """The header of the target's chunk that ends with the last message of the archive."""
    consumers: dict[bytes, PartOffset] = field(default_factory=dict)
    """The last offset that each consumer stored, as far as the archive was read."""

    _old: Messages | None = None
    _old_row: int = 0
    """The row of the archive that is read."""
    _is_within: bool = False
    """True if the target's chunk has messages before those that are compared next."""

    async def runs(self) -> AsyncGenerator[OffsetRun, None]:
        """Yield the runs of all messages of the target. Close it.

        Raises `Diverged` at the first message that is not the archive's next one.
        """
        self.row, self.next_offset, self._old, self._old_row = 0, self.archives[0].start, None, 0
        self.ends_before, self.last_header, self._is_within = None, b"", False
        self.consumers.clear()
        async with aclosing(self._archived()) as archived, aclosing(self.target.messages()) as found:
            async for new in found:
                at = 0
                while at < len(new.bodies):
                    self._is_within = at > 0
                    old = await self._next(archived)
                    # Behind the archive's last message, which must be the last one of its chunk.
                    if old is None and at == 0 and self.is_followed:
                        return
                    run = self._run(old, new, at)
                    yield run
                    at += run.count
                    self.row, self.next_offset = self._old_row, run.old + run.count
                self.last_header = new.header
            self._is_within = False
            self._old = await self._next(archived)

    async def map(self) -> OffsetMap:
        """Return the map. Raises `Diverged` unless the target has the messages of the archive.

        It has no others, except behind them if the target `is_followed`.
        """
        breaks = [each.reader.part for each in self.archives if not each.is_continued]
        found = OffsetMap(consumers=self.consumers, breaks=breaks)
        async with aclosing(self.runs()) as runs:
            async for run in runs:
                found.add(run)
        if self._old is not None:
            raise Diverged(
                f"{self.target.url} lacks the message of offset {self._old.offset} and those behind it"
            )
        return found

    async def _next(self, archived: AsyncGenerator[Messages, None]) -> Messages | None:
        """Return the messages of the archive that were not compared yet; None at its end."""
        while True:
            old = self._old if self._old is not None else await anext(archived, None)
            if old is None:
                return None
            skip = max(self.next_offset - old.offset, 0) if self.row == self._old_row else 0
            if skip < len(old.bodies):
                self._old = Messages(old.offset + skip, old.timestamp_ms, old.bodies[skip:], old.part)
                return self._old
            self._old = None

    async def _archived(self) -> AsyncGenerator[Messages, None]:
        """Yield the messages of all parts, up to the first one that continues behind this target."""
        for row, archive in enumerate(self.archives):
            if row and not self._is_within and self.last_header in archive.behind:
                if not self.is_followed:
                    raise Diverged(
                        f"{self.target.url} is the stream behind which this one continues as "
                        f"{archive.reader.manifest.stream!r}: to complete that restore, add --new-part; to "
                        "restore all parts, take a new stream; nothing was changed"
                    )
                self.ends_before = row
                return
            self._old_row = row
            async with aclosing(archive.messages(archive.start, self._note_consumers)) as batches:
                async for batch in batches:
                    yield batch

    def _run(self, old: Messages | None, new: TargetMessages, at: int) -> OffsetRun:
        if old is None:
            raise Diverged(
                f"{self.target.url} has a message at offset {new.offset + at} that the archive does not "
                "have: another publisher wrote to it, or an earlier restore had a higher --until; "
                "nothing was changed"
            )
        count = min(len(old.bodies), len(new.bodies) - at)
        if old.bodies[:count] != new.bodies[at : at + count]:
            same = next(k for k in range(count) if old.bodies[k] != new.bodies[at + k])
            raise Diverged(
                f"{self.target.url} has another message at offset {new.offset + at + same} than the archive "
                f"has at offset {old.offset + same}: another publisher wrote to it, or its retention deleted "
                "messages, or the earlier restore began at another --from; nothing was changed"
            )
        return OffsetRun(old.offset, new.offset + at, count, old.part)

    def _note_consumers(self, window: Window) -> None:
        rows, view = window.rows, memoryview(window.data)
        base = int(rows["position"][0])
        for kind, position, size in zip(
            *(rows[name].tolist() for name in ("type", "position", "size_bytes")), strict=True
        ):
            chunk = view[position - base : position - base + size]
            # A user chunk has tracking blocks only in its trailer, and most have none.
            if (
                kind == ChunkType.USER
                and not ChunkHeader.decode(chunk, where=window.where).trailer_size_bytes
            ):
                continue
            for block in blocks_of(bytes(chunk), where=window.where, position=position):
                if isinstance(block, ConsumerOffset):
                    part = self.archives[self._old_row].reader.part
                    self.consumers[block.name] = PartOffset(part, block.offset)
