"""Reading a queue as RocketMQ's store answers: by offset with tags, by time, and all queues by key.

    level          reads                                          as `ReadPriority`
    DISABLE        the broker's disk                              local-only
    NOT_IN_DISK    the disk, and the tier for what it has not     local-first
    FORCE          the tier                                       tier-only

RocketMQ's own tier compares hashes of tags, and misreads the store time if the born host is in IPv6. Here
tags are texts, and times are those in the records.

Invariants: the offsets of an answer follow each other, but for those that tags leave out; `next_offset` never
passes an offset that was not looked at; that there is no message is said only after the newest state of the
tier was asked. A broker that lost its newest messages gives their offsets again: of several parts that hold
an offset, the newest counts.

The source is RocketMQ 5.3.3: `MessageStoreFetcherImpl`, `GetMessageStatus`, `BoundaryType`, `FilterAPI`.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import partial
from itertools import repeat
from typing import Final, Literal, Self

import numpy as np

from offload import ReadPriority, TieredReader
from offload.cache.block_cache import BlockCache
from offload.contracts.catalogue import Catalogue
from offload.contracts.source import SourceStream
from offload.ground.errors import Corrupt, Misuse, NotOffloaded, StreamDeleted, TryAgain
from offload.ground.tasks import run_each
from offload.index.find import find
from offload.index.terms import Spec
from offload.model.part import part_name
from offload.model.position import OFFSET_MAX, AtEdge, AtOffset, AtTime, PartOffset, Position
from offload.model.record_columns import Integers, RecordBytes
from offload.parts.whole_stream import grouped
from offload.read.reader import Messages
from offload_rocketmq.decoder import RocketmqDecoder
from offload_rocketmq.record import RecordColumns, parse_properties

__all__ = ["PullAnswer", "PullStatus", "QueueMessage", "QueueReader", "ReadLevel"]

LOOKED_AT_MAX: Final = 4096
"""How many messages a pull looks at, as in RocketMQ's tier: tags may leave out all of them."""

KEYS: Final = Spec("rocketmq", ("keys",))
QUEUES_AT_ONCE: Final = 8
BEYOND_MS: Final = 60_000
"""A query reads on to a chunk that is so much later: a chunk spans a second, and clocks may go back."""


class ReadLevel(IntEnum):
    """From where a queue is read: `tieredStorageLevel` of RocketMQ, without NOT_IN_MEM."""

    DISABLE = 0
    NOT_IN_DISK = 1
    FORCE = 3


PRIORITIES: Final = {
    ReadLevel.DISABLE: ReadPriority.LOCAL_ONLY,
    ReadLevel.NOT_IN_DISK: ReadPriority.LOCAL_FIRST,
    ReadLevel.FORCE: ReadPriority.TIER_ONLY,
}


class PullStatus(StrEnum):
    """The result of a pull, by RocketMQ's names.

    | status | if | `next_offset` |
    |---|---|---|
    | FOUND | there are messages | behind the last one that was looked at |
    | NO_MATCHED_MESSAGE | those that were looked at have other tags | the same |
    | NO_MESSAGE_IN_QUEUE | the queue never had a message | as asked |
    | OFFSET_TOO_SMALL | no side has the offset any more | the next one that a side has |
    | OFFSET_OVERFLOW_ONE | the offset is the end of the queue | as asked |
    | OFFSET_OVERFLOW_BADLY | the offset is beyond the end | the end |
    | OFFSET_FOUND_NULL | the message cannot be read: `error` says why | as asked |
    | NO_MATCHED_LOGIC_QUEUE | the queue was deleted on the tier | as asked |
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message, as its record in the commit log: `RocketmqDecoder` and `RecordColumns` open it."""

    stream: str
    """The name of the stream. Behind a fork or a gap it is that of the part which has the message."""
    offset: int
    record: bytes


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """The answer to `get_message`."""

    status: PullStatus
    next_offset: int
    """The offset to ask for next."""
    messages: Sequence[QueueMessage] = ()
    error: TryAgain | Corrupt | NotOffloaded | None = None
    """Why the message cannot be read, or the queue is not there."""


class QueueReader:
    """A reader of one queue, on the disk of its broker and on a tier. It belongs to one event loop.

    Nothing is open between two calls. The rest of the last chunk that was read is kept in memory.
    """

    def __init__(self, reader: TieredReader) -> None:
        """Use `open`."""
        self._reader, self._rest = reader, Messages(-1, 0, [])

    @classmethod
    async def open(
        cls,
        source_stream: SourceStream,
        catalogue: Catalogue,
        *,
        level: ReadLevel = ReadLevel.NOT_IN_DISK,
        cache: BlockCache | None = None,
    ) -> Self:
        """Return a reader of this queue. `cache` is as for `StreamReader.open`.

        Raises `NotOffloaded` if the level is FORCE and the tier does not have the queue, and `StreamDeleted`
        if it was deleted there.
        """
        priority = PRIORITIES[level]
        return cls(await TieredReader.open(source_stream, catalogue, priority=priority, cache=cache))

    async def get_message(
        self, offset: int, *, count: int, size_bytes_max: int | None = None, tags: str = "*"
    ) -> PullAnswer:
        """Return the messages from an offset on: `count` at most, of at most so many bytes, but at least one.

        `tags` is `*` for all, or tags with `||` between them; blanks around them do not count. A call looks
        at 4,096 messages at most, and ends before a hole in the offsets. Raises `Misuse` for a count below 1
        and without a tag, and what reading raises. But `TryAgain` and `Corrupt` are in the answer.
        """
        _check(count)
        pull = _Pull(count, size_bytes_max, _tags_in(tags))
        try:
            answer = await self._answer(offset, pull)
            if pull.at == offset and await self._reader.refresh():
                answer = await self._answer(offset, pull)
        except StreamDeleted as error:
            return PullAnswer(PullStatus.NO_MATCHED_LOGIC_QUEUE, offset, error=error)
        except (TryAgain, Corrupt) as error:
            return PullAnswer(PullStatus.OFFSET_FOUND_NULL, offset, error=error)
        return answer

    async def offset_by_time(self, ms: int, boundary: Literal["lower", "upper"] = "lower") -> int:
        """Return the offset of the first message that was stored at this time, in milliseconds, or later.

        With `upper`, it is the last of the messages that follow it with exactly this time, if it has this
        time. If all messages are older, it is the end of the queue. Raises `Misuse` for another boundary, and
        what reading raises.
        """
        if boundary not in ("lower", "upper"):
            raise Misuse(f"{boundary!r} is no boundary: use 'lower' or 'upper'")
        await self._reader.refresh()
        found = -1
        async with aclosing(self._times(_at(ms))) as runs:
            async for offset, times in runs:
                if found < 0:
                    late = np.flatnonzero(times >= ms)
                    if not len(late):
                        continue
                    row = int(late[0])
                    found, offset, times = offset + row, offset + row, times[row:]
                    if boundary == "lower" or times[0] != ms:
                        return found
                others = np.flatnonzero(times != ms)
                equal = int(others[0]) if len(others) else len(times)
                found = offset + equal - 1 if equal else found
                if len(others):
                    return found
        return found if found >= 0 else await self._reader.offset_of(AtEdge.NEXT)

    async def earliest_time(self) -> int | None:
        """Return when the first message was stored, in milliseconds since 1970. None if there is none."""
        await self._reader.refresh()
        async with aclosing(self._times(AtEdge.FIRST)) as runs:
            async for _, times in runs:
                return int(times[0])
        return None

    @staticmethod
    async def query(
        catalogue: Catalogue, topic: str, key: str, begin: int, end: int, count: int
    ) -> list[QueueMessage]:
        """Return the newest `count` messages of a topic with a key, in order of store time.

        `key` is one word of `KEYS`, or the id that the client gave (`UNIQ_KEY`). `begin` and `end` are store
        times in milliseconds, and belong to the range. All queues on the tier are asked that are called
        `TOPIC/QUEUE` or `BROKER/TOPIC/QUEUE`. Raises `Misuse` for an empty key and for a count below 1, and
        what reading raises.
        """
        _check(count)
        found, decoder = list[tuple[int, str, int, bytes]](), RocketmqDecoder()

        ask_for = partial(find, catalogue, by=KEYS, decoder=decoder, start=_at(begin))

        async def ask(stream: str) -> None:
            async with aclosing(ask_for(stream, [key.encode()], until=_at(end + BEYOND_MS))) as runs:
                async for each in runs:
                    data, run = np.frombuffer(each.run.data, np.uint8), each.run
                    records = RecordBytes(data, run.starts, run.sizes)
                    times = RecordColumns.of(records).store_ms.tolist()
                    rows = zip(times, run.offsets.tolist(), records.to_list(), strict=True)
                    found.extend((ms, each.stream, *rest) for ms, *rest in rows if begin <= ms <= end)
                    found[:] = heapq.nlargest(count, found)

        names = [whole.name for whole in await grouped(catalogue) if _topic_of(whole.name) == topic]
        await run_each(ask, names, at_once=QUEUES_AT_ONCE)
        return [QueueMessage(stream, offset, body) for _, stream, offset, body in sorted(found)]

    async def _answer(self, offset: int, pull: _Pull) -> PullAnswer:
        """Return the answer by what is known of the tier now."""
        pull.at, behind = offset, None
        try:
            behind = await self._read(pull)
        except StreamDeleted:
            raise
        except NotOffloaded:  # the offset is beyond the end
            pass
        except (TryAgain, Corrupt):
            if pull.at == offset:
                raise
        if pull.at > offset:
            status = PullStatus.FOUND if pull.messages else PullStatus.NO_MATCHED_MESSAGE
            return PullAnswer(status, pull.at, pull.messages)
        end = await self._reader.offset_of(AtEdge.NEXT)
        if end == 0:
            return PullAnswer(PullStatus.NO_MESSAGE_IN_QUEUE, offset)
        if behind is not None and behind > offset:
            return PullAnswer(PullStatus.OFFSET_TOO_SMALL, behind)
        if offset > end:
            return PullAnswer(PullStatus.OFFSET_OVERFLOW_BADLY, end)
        # The end may be later by now. Another pull finds what came meanwhile.
        return PullAnswer(PullStatus.OFFSET_OVERFLOW_ONE, offset)

    async def _read(self, pull: _Pull) -> int | None:
        """Take messages. Return the offset behind a hole in which, or before which, the pull ended."""
        place = await self._place(max(pull.at, 0))
        if place.offset != pull.at:
            return place.offset
        async with aclosing(self._history(place)) as history:
            async for batch in history:
                if batch.offset != pull.at:
                    return batch.offset
                pull.take(part_name(self._reader.stream, batch.part), batch)
                self._rest = _behind(batch, pull.at)
                if pull.is_full:
                    break
        return None

    async def _place(self, offset: int) -> PartOffset:
        """Return the place of an offset, or of the next one that a side has."""
        parts, number = self._reader.parts, None
        for at, each in enumerate(parts):
            if each.manifest.first_offset <= offset:
                is_behind = at + 1 < len(parts) and offset >= each.manifest.next_offset
                number = parts[at + is_behind].part
        rest = self._rest
        if rest.offset <= offset <= _end_of(rest) and number in (None, rest.part):
            return PartOffset(rest.part, offset)
        return await self._reader.place_of(AtOffset(offset), part=number)

    async def _history(self, place: PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a place on, but none of a part that a later part has, too. Close it."""
        rest = self._rest
        if rest.part == place.part and rest.offset <= place.offset < _end_of(rest):
            yield _behind(rest, place.offset)
            place = PartOffset(rest.part, _end_of(rest))
        async with aclosing(self._reader.messages(place)) as batches:
            async for batch in batches:
                later = (each for each in self._reader.parts if each.part > batch.part)
                stop = min((each.manifest.first_offset for each in later), default=OFFSET_MAX)
                if batch.offset < stop:
                    yield replace(batch, bodies=batch.bodies[: stop - batch.offset])

    async def _times(self, position: Position) -> AsyncGenerator[tuple[int, Integers], None]:
        """Yield the store times from a position on, those of a chunk at once, with the first offset."""
        place = await self._reader.place_of(position)
        async with aclosing(self._history(place)) as history:
            async for batch in history:
                yield batch.offset, _columns(batch.bodies, self._reader.stream, batch.offset).store_ms


@dataclass(slots=True)
class _Pull:
    """What a pull wants, and what it has."""

    count: int
    size_bytes_max: int | None
    tags: frozenset[str] | None
    """None: messages of all tags, and those without."""

    at: int = 0
    """The offset of the next message to look at."""
    messages: list[QueueMessage] = field(default_factory=list)
    is_full: bool = False
    _looked_at: int = 0
    _size_bytes: int = 0

    def take(self, stream: str, batch: Messages) -> None:
        """Look at the messages of a batch that begins at `at`, until there are enough."""
        for body, is_wanted in zip(batch.bodies, self._are_wanted(batch, stream), strict=False):
            if is_wanted:
                self._size_bytes += len(body)
                limit = self.size_bytes_max
                if limit is not None and self._size_bytes > limit and self.messages:
                    self.is_full = True
                    return
                self.messages.append(QueueMessage(stream, self.at, body))
            self.at += 1
            self._looked_at += 1
            if len(self.messages) == self.count or self._looked_at == LOOKED_AT_MAX:
                self.is_full = True
                return

    def _are_wanted(self, batch: Messages, stream: str) -> Iterator[bool]:
        if self.tags is None:
            return repeat(True)
        columns = _columns(batch.bodies, stream, batch.offset)
        raw = (columns.properties.of(columns.records.data, row) for row in range(len(batch.bodies)))
        return (parse_properties(each).get("TAGS") in self.tags for each in raw)


def _columns(bodies: Sequence[bytes], stream: str, offset: int) -> RecordColumns:
    """Return the fields of these records. Raises `Corrupt` for one that is no record of RocketMQ."""
    columns = RecordColumns.of(RecordBytes.of(bodies))
    if not columns.is_sound.all():
        where = f"offset {offset + int(columns.is_sound.argmin())} of {stream!r}"
        raise Corrupt("record", where, expected="one of RocketMQ's commit log", found="another format")
    return columns


def _behind(batch: Messages, offset: int) -> Messages:
    return replace(batch, offset=offset, bodies=batch.bodies[offset - batch.offset :])


def _end_of(batch: Messages) -> int:
    return batch.offset + len(batch.bodies)


def _check(count: int) -> None:
    if count < 1:
        raise Misuse(f"{count} is no number of messages: use 1 or more")


def _at(ms: int) -> AtTime:
    """Return the position of a time. Any number is one: the times of chunks have 64 bits."""
    return AtTime(min(max(ms, -(2**63)), 2**63 - 1))


def _tags_in(text: str) -> frozenset[str] | None:
    """Return the tags that a consumer subscribes to; None for all. Raises `Misuse` if there is none."""
    if text in ("", "*"):
        return None
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    if not tags:
        raise Misuse(f"{text!r} names no tag: use '*', or tags with || between them")
    return tags


def _topic_of(stream: str) -> str | None:
    """Return the topic of a stream `TOPIC/QUEUE` or `BROKER/TOPIC/QUEUE`; None for another one."""
    names = stream.split("/")
    return names[-2] if len(names) in (2, 3) and names[-1].isdecimal() else None
