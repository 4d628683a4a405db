"""Comparing a restored stream with its archive, message by message, and the map from old to new offsets.

Both streams are read once, side by side. Each run of messages whose offsets keep one distance is a row of the
map: `old` and `new` begin it, and `count` is its length. Messages are compared as bytes.

The offsets that consumers stored are replayed from the archive's tracking records. A consumer stores the
offset of the last message that it processed. Its new value is the offset of the last restored message up to
there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.target import MessageTarget, TargetMessages
from offload.errors import Diverged
from offload.formats.chunk import ChunkHeader
from offload.formats.tracking import ConsumerOffset, blocks_of
from offload.model.chunk_table import ChunkType
from offload.streams.batches import Window
from offload.streams.reader import Messages
from offload.streams.salvage import Archive

NONE: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetRun:
    """Messages with the archived offsets from `old` on. In the target they have those from `new` on."""

    old: int
    new: int
    count: int


@dataclass(slots=True)
class OffsetMap:
    """The map from old offsets to new ones, at 24 bytes for each run."""

    _olds: array[int] = field(default_factory=lambda: array("Q"))
    _news: array[int] = field(default_factory=lambda: array("Q"))
    _counts: array[int] = field(default_factory=lambda: array("Q"))
    consumers: dict[bytes, int] = field(default_factory=dict)
    """The last offset that each consumer stored in the archived stream, by the consumer's name."""

    def add(self, run: OffsetRun) -> None:
        """Add a run behind those before, or make the last one longer."""
        if self._olds:
            count = self._counts[-1]
            if (self._olds[-1] + count, self._news[-1] + count) == (run.old, run.new):
                self._counts[-1] += run.count
                return
        self._olds.append(run.old)
        self._news.append(run.new)
        self._counts.append(run.count)

    def runs(self) -> Iterator[OffsetRun]:
        """Yield the runs in order."""
        for old, new, count in zip(self._olds, self._news, self._counts, strict=True):
            yield OffsetRun(old, new, count)

    def new_of(self, old: int) -> int | None:
        """Return the new offset of the last restored message at `old` or before; None if there is none."""
        row = bisect_right(self._olds, old) - 1
        return None if row < 0 else self._news[row] + min(old - self._olds[row], self._counts[row] - 1)


@dataclass(slots=True)
class Comparison:
    """A comparison of a target with an archive from `start` on. `runs` does it."""

    archive: Archive
    target: MessageTarget
    start: int
    is_followed: bool = False
    """If true, others may have published to the target behind the last message of the archive."""
    next_offset: int = NONE
    """The archived offset behind the last message that was found in the target."""
    last_header: bytes = b""
    """The header of the target's chunk that ends with the last message of the archive."""
    consumers: dict[bytes, int] = field(default_factory=dict)
    """The last offset that each consumer stored, as far as the archive was read."""

    _old: Messages | None = None

    async def runs(self) -> AsyncGenerator[OffsetRun, None]:
        """Yield the runs of all messages of the target. Close it.

        Raises `Diverged` at the first message that is not the archive's next one.
        """
        self.next_offset, self._old = self.start, None
        self.consumers.clear()
        async with (
            aclosing(self.archive.messages(self.start, self._note_consumers)) as archived,
            aclosing(self.target.messages()) as found,
        ):
            async for new in found:
                at = 0
                while at < len(new.bodies):
                    old = await self._next(archived)
                    # Behind the archive's last message, which must be the last one of its chunk.
                    if old is None and at == 0 and self.is_followed:
                        return
                    run = self._run(old, new, at)
                    yield run
                    at += run.count
                    self.next_offset = run.old + run.count
                self.last_header = new.header
            self._old = await self._next(archived)

    async def map(self) -> OffsetMap:
        """Return the map. Raises `Diverged` unless the target has the messages of the archive.

        It has no others, except behind them if the target `is_followed`.
        """
        found = OffsetMap(consumers=self.consumers)
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
            skip = max(self.next_offset - old.offset, 0)
            if skip < len(old.bodies):
                self._old = Messages(old.offset + skip, old.timestamp_ms, old.bodies[skip:])
                return self._old
            self._old = None

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
        return OffsetRun(old.offset, new.offset + at, count)

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
                    self.consumers[block.name] = block.offset
