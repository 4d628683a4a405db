"""Reading a part of an archived stream, over damage if the caller allows it, and reporting each hole.

A damaged chunk is left out whole: the index of its fragment says where it ends. If the fragment's index is
damaged, or the object is gone, the whole fragment is left out. If the manifest itself is damaged, nothing can
be left out, and the error is raised.

Invariant: every offset of the stream is either yielded or in `skipped`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Corrupt, NotOffloaded
from offload.model.chunk_table import row_holding
from offload.model.position import OFFSET_MAX
from offload.read.batches import Window
from offload.read.reader import Messages, StreamReader, messages_of

T = TypeVar("T")

Cut = Callable[[Window], Iterator[tuple[T, int]]]
"""Cuts a window into items, each with the first offset after it."""


Note = Callable[[Window], None]


def ignored(window: Window) -> None:
    """Do nothing with a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedOffsets:
    """Offsets that were left out of a restore, and the reason."""

    first_offset: int
    next_offset: int
    reason: str


@dataclass(slots=True, kw_only=True)
class Archive:
    """A part of an archived stream, and what is done about damage in it."""

    catalogue: Catalogue
    reader: StreamReader
    skip_damage: bool = False
    number: int = 1
    """The number of the part in its stream."""

    start: int = 0
    """The offset at which a restore begins."""

    until: int = OFFSET_MAX
    """The first offset that is not read."""

    behind: Collection[bytes] = ()
    """The headers of restored chunks behind which an earlier part continued (`copy.after_restore`)."""

    is_continued: bool = False
    """True if the offsets are those of the source of the part before, from its end on or behind a gap."""

    skipped: list[SkippedOffsets] = field(default_factory=list)
    """The holes that the last reading met, in order."""

    @property
    def end(self) -> int:
        """The first offset behind the last one that is read."""
        return max(self.start, min(self.until, self.reader.manifest.next_offset))

    async def sound(self, offset: int, cut: Cut[T]) -> AsyncGenerator[T, None]:
        """Yield the items of all windows from the chunk that holds `offset` to the end. Close it.

        Without `skip_damage` raises `Corrupt` at the first damaged chunk, after all items before it, and
        `NotOffloaded` if a part of the stream was trimmed before it was read.
        """
        self.skipped.clear()
        at = offset
        while True:
            try:
                async with aclosing(self.reader.windows(at, until=self.until)) as windows:
                    async for window in windows:
                        self._note_hole(at, int(window.rows["offset"][0]))
                        for item, following in cut(window):
                            yield item
                            at = following
                        at = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
                return
            except Corrupt as damage:
                if not self.skip_damage:
                    raise
                behind = await self._behind(at, damage)
                self._skip(at, behind, str(damage))
                at = behind

    async def messages(self, offset: int, note: Note = ignored) -> AsyncGenerator[Messages, None]:
        """Yield the messages from `offset` up to `until`, chunk by chunk. Close it.

        `note` is called with each window before its messages. Raises as `sound` does.
        """

        def cut(window: Window) -> Iterator[tuple[Messages, int]]:
            note(window)
            for batch in messages_of(window):
                yield batch, batch.offset + len(batch.bodies)

        async with aclosing(self.sound(offset, cut)) as batches:
            async for batch in batches:
                skip = max(offset - batch.offset, 0)
                bodies = batch.bodies[skip : self.until - batch.offset]  # it begins before `until`
                if bodies:
                    yield Messages(batch.offset + skip, batch.timestamp_ms, bodies, self.reader.part)

    async def _behind(self, at: int, damage: Corrupt) -> int:
        """Return the end of the chunk that holds `at`, or that of its fragment if no index says it."""
        view = self.catalogue.view_of(self.reader.manifest)
        entry = await view.find(at)
        if entry is None:
            raise damage
        try:
            async with await view.open(entry) as handle:
                table = await handle.table()
        except Corrupt:
            return entry.next_offset
        row = row_holding(table, at)
        return int(table["offset"][row]) + int(table["records"][row])

    def _note_hole(self, at: int, begins: int) -> None:
        # The first window may begin before `at`, with the chunk that holds it.
        if begins <= at:
            return
        reason = "trimmed while the stream was read"
        if not self.skip_damage:
            name = self.reader.manifest.stream
            raise NotOffloaded(f"stream {name!r}: offsets [{at}, {begins}) were {reason}")
        self._skip(at, begins, reason)

    def _skip(self, first_offset: int, next_offset: int, reason: str) -> None:
        last = self.skipped[-1] if self.skipped else None
        if last is not None and last.next_offset == first_offset:
            first_offset, reason = last.first_offset, last.reason
            self.skipped.pop()
        self.skipped.append(SkippedOffsets(first_offset=first_offset, next_offset=next_offset, reason=reason))
