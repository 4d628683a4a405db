"""A source whose broker is asked which data is committed, and which replica leads.

A follower copies only data that the broker vouches for. Without a broker to ask, it copies data that has been
in the source for `hold_back_seconds`. Here the broker is asked for one chunk: the last one with messages in
the snapshot. If the broker delivers it to a consumer, then it is committed, and so is everything before it.

Invariants:

- An answer counts only if it describes the very chunk that the source has: offset, records, leader epoch and
  CRC. So a broker of another cluster, or one that lies about an offset, vouches for nothing.
- A failure, or a second contradiction in a row, gives None. Then `hold_back_seconds` applies, as without a
  broker.
- Nothing beyond the snapshot is ever vouched for, and what was vouched for stays so.
- A look at the source waits at most `WAIT_SECONDS` for the broker. The question continues in a task of its
  own, and its answer counts at a later look.

A broker that answers, but has not committed the chunk, vouches only for what it vouched for before. That is
the difference to a broker that is down. A stream then waits, and its lag shows it.

If a broker lied about the very chunk that the source has, an uncommitted tail would be copied, as with a
`hold_back_seconds` that is too short. Should a new leader replace that tail, the next copy finds another
leader epoch or CRC, and raises `Diverged`. Committed data is never lost by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from offload.contracts.broker import BrokerView, CommittedChunk
from offload.contracts.catalogue import Catalogue
from offload.contracts.source import SharedLog, Snapshot, Source, SourceStream
from offload.formats.chunk import ChunkHeader
from offload.ground.env import Env
from offload.ground.errors import Diverged, OffloadError, TryAgain
from offload.ground.pause import Pause
from offload.model.chunk_table import ChunkType
from offload.model.manifest import Manifest

__all__ = ["VouchedSource"]


WAIT_SECONDS: Final = 0.5
"""The time for which a look waits for an answer. A broker on the same machine takes some milliseconds."""

ASK_SECONDS: Final = 30.0
"""The time after which a question without an answer is asked again, about the newest chunk."""

RETRY_SECONDS: Final = 10.0
"""The time after a failure in which a stream's broker is not asked."""

_log: Final = logging.getLogger(__name__)


class VouchedSource(Source):
    """A source and its broker. The broker is asked only about streams that are copied."""

    __slots__ = ("_broker", "_env", "_source", "_streams")

    def __init__(self, source: Source, broker: BrokerView, *, env: Env | None = None) -> None:
        self._source, self._broker, self._env = source, broker, env or Env()
        self._streams: dict[str, _VouchedStream] = {}

    @property
    def url(self) -> str:
        """The URL of the source."""
        return self._source.url

    @property
    def folder(self) -> Path | None:
        """The folder of the source."""
        return self._source.folder

    @property
    def notes(self) -> Sequence[str]:
        """The notes of the source."""
        return self._source.notes

    @property
    def broker(self) -> BrokerView:
        """The broker that is asked."""
        return self._broker

    @property
    def held_back(self) -> list[str]:
        """The streams that the broker did not vouch for when it was asked last, in order of names."""
        return sorted(name for name, stream in self._streams.items() if stream.is_held_back)

    async def streams(self) -> Sequence[SourceStream]:
        """Return the streams of the source. A stream that stays keeps what is known of it."""
        found = {stream.name: stream for stream in await self._source.streams()}
        for name in self._streams.keys() - found.keys():
            self._streams.pop(name).forget()
        for name, stream in found.items():
            if name not in self._streams:
                self._streams[name] = _VouchedStream(stream, self._broker, self._env)
        return [self._streams[name] for name in found]

    async def aclose(self) -> None:
        """End all questions. The source and the broker are closed by the session that opened them."""
        for stream in self._streams.values():
            stream.forget()


@dataclass(slots=True, eq=False)
class _VouchedStream(SourceStream):
    source: SourceStream
    broker: BrokerView
    env: Env
    is_held_back: bool = False
    """True if the broker said nothing that counts, and `hold_back_seconds` applies."""

    _vouched_offset: int = 0
    _question: asyncio.Task[CommittedChunk | OffloadError] | None = None
    _asked_seconds: float = 0.0
    _error: OffloadError | None = None
    """The reason why the last question got no answer that counts."""

    _pause: Pause = field(init=False)
    _is_doubted: bool = False
    """True if the last answer was about another chunk than the source had when it was asked."""

    def __post_init__(self) -> None:
        self._pause = Pause(env=self.env, seconds=RETRY_SECONDS)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def broker_name(self) -> str:
        return self.source.broker_name

    @property
    def needs_since(self) -> bool:
        return self.source.needs_since

    def for_tier(self, tier: Catalogue) -> Self:
        self.source = self.source.for_tier(tier)
        return self

    @property
    def shared_log(self) -> SharedLog | None:
        return self.source.shared_log

    async def log_position(self, offset: int) -> int:
        return await self.source.log_position(offset)

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        return await self.source.snapshot(since)

    async def mark(self) -> Hashable | None:
        return await self.source.mark()

    async def leads(self) -> bool | None:
        try:
            return (await self.broker.leader(self.source.broker_name)).is_asked
        except OffloadError:
            return None  # who leads decides about cost only, and `vouched` reports the error

    async def vouched(self, snapshot: Snapshot) -> int | None:
        """Return the offset up to which the broker vouches for the snapshot, or None if it does not say."""
        now = self.env.monotonic()
        if self._question is not None and now - self._asked_seconds >= ASK_SECONDS:
            self.forget()
        if self._question is None and self._pause.left_seconds <= 0:
            chunk = await _last_with_messages(snapshot, self._vouched_offset)
            if chunk is None:
                # No consumer ever sees a tracking chunk, so the broker cannot vouch for one at the end.
                self.is_held_back = False
                return snapshot.next_offset if snapshot.next_offset <= self._vouched_offset else None
            self._asked_seconds, self._error = now, None
            self._question = asyncio.create_task(self._answer(chunk))
        if self._question is not None:
            await self._wait(self._question)
            self._settle()
        self.is_held_back = self._error is not None or self.broker.error is not None
        return None if self.is_held_back else min(self._vouched_offset, snapshot.next_offset)

    def forget(self) -> None:
        """Give up the question. Idempotent."""
        if self._question is not None:
            self._question.cancel()
            self._question = None

    async def _answer(self, expected: CommittedChunk) -> CommittedChunk | OffloadError:
        try:
            found = await self.broker.committed(self.source.broker_name, expected.first_offset)
        except OffloadError as error:
            return error
        if found == expected:
            return found
        return Diverged(f"it has committed {_shown(found)}, but the source has {_shown(expected)}")

    async def _wait(self, question: asyncio.Task[CommittedChunk | OffloadError]) -> None:
        patience = asyncio.ensure_future(self.env.sleep(WAIT_SECONDS))
        try:
            await asyncio.wait([question, patience], return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()

    def _settle(self) -> None:
        if self._question is None or not self._question.done():
            return
        answer, self._question = self._question.result(), None
        was_doubted, self._is_doubted = self._is_doubted, isinstance(answer, Diverged)
        if self._is_doubted and not was_doubted:
            # A new leader may have replaced the chunk meanwhile. The next look asks about what is there now.
            return
        if isinstance(answer, OffloadError):
            # A broker that does not answer says so itself, once for all streams.
            if self._pause.wait(answer) and not isinstance(answer, TryAgain):
                _log.warning("stream %r: the broker does not vouch for it: %s", self.name, answer)
            self._error = answer
            return
        self._pause.clear()
        self._vouched_offset = max(self._vouched_offset, answer.next_offset)


async def _last_with_messages(snapshot: Snapshot, after: int) -> CommittedChunk | None:
    """Return the last chunk with messages that ends beyond `after`, or None if there is none."""
    for ledger in reversed(snapshot.ledgers):
        if ledger.next_offset <= after:
            break
        table = await ledger.table()
        users = table[table["type"] == ChunkType.USER]
        if len(users):
            row = users[-1:]
            if int(row["offset"][0]) + int(row["records"][0]) <= after:
                break
            header = ChunkHeader.decode(await ledger.read(row), where=ledger.where)
            return CommittedChunk(
                first_offset=header.offset,
                next_offset=header.next_offset,
                epoch=header.epoch,
                crc=header.crc,
            )
    return None


def _shown(chunk: CommittedChunk) -> str:
    offsets = f"offsets [{chunk.first_offset}, {chunk.next_offset})"
    return f"a chunk of {offsets}, leader epoch {chunk.epoch}, CRC {chunk.crc:08x}"
