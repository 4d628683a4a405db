"""A stream of MQTT messages, its source, and its sorted copy on a tier in memory: what replays are tested on.

The log is the truth: message `i` of it has offset `i` of the origin. A ledger is sealed, then sorted onto the
tier, and then the source may delete it, as a broker does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from kit.world import STREAM, TierWorld
from offload_mqtt.origin import OriginTrimmed, ReplayOrigin
from offload_mqtt.reading import ReplayMessage
from offload_mqtt.replay import Replay
from offload_mqtt.selector import RANGES
from offload_mqtt.structure import Structure, encode_key, encode_structures
from offload_mqtt.topic_record import encode_record
from offload_mqtt.topics import TopicFilter, match

from offload import MemoryHandle, StreamWriter, TierOptions, build_chunk
from offload.formats.range_object import LedgerRanges
from offload.formats.records import RecordRun
from offload.ground.env import Env
from offload.index.ranges import store_ranges
from offload.index.terms import Spec
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

EPOCH_US = 1_700_000_000_000_000


def time_us(origin: int) -> int:
    """Return the time of a message: two of each millisecond."""
    return EPOCH_US + origin * 500


@dataclass
class ReplayWorld(TierWorld):
    """A log of topics, and how far it is sealed, sorted, and deleted at its source."""

    log: list[str] = field(default_factory=list)
    """The topic of each message. An empty one is an offset without a message."""
    cuts: list[int] = field(default_factory=lambda: [0])
    """The first offset of each ledger. The last of them is open."""
    source_first: int = 0
    sorted_end: int = 0
    chunk_records: int = 4
    ranges: list[LedgerRanges] = field(default_factory=list)
    """Those of the sorted ledgers that are not indexed yet."""
    gone: set[int] = field(default_factory=set)
    """The messages that were deleted at the source before they were sorted, or were trimmed."""

    def options(self) -> TierOptions:
        """Make fragments of about two chunks."""
        return TierOptions(fragment_size_bytes=400)

    def append(self, *topics: str) -> None:
        """Publish messages."""
        self.log += topics

    def seal(self) -> None:
        """Begin another ledger, if this one is not empty."""
        if self.cuts[-1] < len(self.log):
            self.cuts.append(len(self.log))

    def record(self, origin: int) -> bytes:
        """Return the record of a message."""
        topic = self.log[origin].encode()
        return encode_record(
            2 if topic else 0, 0, origin, time_us(origin), topic, b"%d" % origin if topic else b""
        )

    async def sort(self, *, chunks_max: int = 1000) -> bool:
        """Copy the next sealed ledger to the tier, in the order of topics. Return False if there is none.

        With `chunks_max`, only the beginning of it, as a copy that is killed may leave it.
        """
        bounds = next((each for each in pairwise(self.cuts) if each[0] >= self.sorted_end), None)
        if bounds is None or bounds[0] < self.source_first:
            return False
        tier = self.others()
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, STREAM)
        about = structures_of(self.log[slice(*bounds)])
        keys = {topic: key_of(topic, about) for topic in {*self.log[slice(*bounds)]}}
        order = sorted(range(*bounds), key=lambda origin: keys[self.log[origin]])
        chunks = [
            build_chunk(
                [self.record(origin) for origin in order[at : at + self.chunk_records]],
                offset=bounds[0] + at,
                timestamp_ms=max(map(time_us, range(*bounds))) // 1000,
                epoch=bounds[0],
            )
            for at in range(0, len(order), self.chunk_records)
        ]
        done = (writer.manifest.next_offset - bounds[0]) // self.chunk_records
        here = chunks[max(done, 0) :][:chunks_max]
        await writer.offload([MemoryHandle(here, ledger_id=bounds[0])])
        if len(chunks) > max(done, 0) + chunks_max:
            return False
        firsts = [*order[:: self.chunk_records], order[-1]]
        self.ranges.append(
            LedgerRanges(
                *bounds,
                encode_structures(about),
                np.arange(bounds[0], bounds[1], self.chunk_records, dtype=np.uint64),
                [keys[self.log[origin]] for origin in firsts],
            )
        )
        self.sorted_end = bounds[1]
        return True

    async def index(self) -> None:
        """Index what is sorted, and was not indexed before."""
        tier, found = self.others(), self.ranges
        await tier.open()
        for each in found:
            await store_ranges(
                tier.store, await tier.load_manifest(STREAM), Spec.parse(RANGES), [each], env=Env()
            )
        self.ranges = []

    def lose_indexes(self) -> None:
        """Delete all index objects."""
        for key in [key for key in self.objects if "/index/" in key]:
            del self.objects[key]

    def delete_ledger(self, *, only_sorted: bool = True) -> None:
        """Delete the oldest sealed ledger at the source."""
        following = next((cut for cut in self.cuts if cut > self.source_first), None)
        if following is not None and (following <= self.sorted_end or not only_sorted):
            self.gone |= {*range(max(self.source_first, self.sorted_end), following)}
            self.source_first = following

    async def trim(self, before: int) -> None:
        """Trim the sorted stream by whole fragments, and sweep them."""
        kept = {origin_in(body) for _, body in await self.records()}
        await trim(self.others(), STREAM, Retention(before_offset=before))
        await sweep(self.store.inner, grace_seconds=0, env=self.env())
        self.gone |= kept - {origin_in(body) for _, body in await self.records()}

    def wanted(self, filters: Iterable[str]) -> list[int]:
        """Return the origins of all messages that the filters match, by a loop over the log."""
        parsed = [TopicFilter.parse(each) for each in filters]
        return [
            at
            for at, topic in enumerate(self.log)
            if topic and any(match(topic.encode(), each) for each in parsed)
        ]

    def replay(self, *, joined: bool = True) -> Replay:
        """Return a replay, as a new process makes one."""
        return Replay(
            self.tier(), STREAM, origin=LogOrigin(self) if joined else None, emit=self.events.append
        )


def structures_of(topics: Iterable[str]) -> list[Structure]:
    """Return one structure for each number of levels, with no literal level, and the last level first."""
    sizes = sorted({topic.count("/") + 1 for topic in topics if topic})
    return [Structure((), ()), *(Structure((b"+",) * size, tuple(reversed(range(size)))) for size in sizes)]


def key_of(topic: str, structures: Sequence[Structure]) -> bytes:
    """Return the key of a topic. An offset without a message has the least one."""
    levels = topic.encode().split(b"/")
    if not topic:
        return encode_key((0,))
    number = next(at for at, each in enumerate(structures) if len(each.levels) == len(levels))
    return encode_key(
        (number, *(structures[number].value(level, levels) for level in structures[number].order))
    )


def origin_in(record: bytes) -> int:
    """Return the origin of a record."""
    return int.from_bytes(record[4:12], "big")


async def all_of(replay: Replay, iterator: str, most: int = 1000) -> tuple[list[ReplayMessage], str]:
    """Return the messages to the newest, and the iterator behind them."""
    found = list[ReplayMessage]()
    while True:
        answer = await replay.next(iterator, most)
        iterator = answer.iterator
        if not answer.messages:
            await replay.aclose()
            return found, iterator
        found += answer.messages


@dataclass
class LogOrigin(ReplayOrigin):
    """The source of a world. What is deleted while it is read ends the reading."""

    world: ReplayWorld

    async def next_offset(self) -> int:
        """Return the length of the log."""
        return len(self.world.log)

    async def runs(self, offset: int) -> AsyncGenerator[RecordRun, None]:
        """Yield three messages at a time."""
        world = self.world
        while offset < len(world.log):
            if offset < world.source_first:
                raise OriginTrimmed(world.source_first)
            stop = min(offset + 3, len(world.log))
            here = [origin for origin in range(offset, stop) if world.log[origin]]
            if here:
                yield run_of(here, [world.record(origin) for origin in here])
            offset = stop

    async def begins_ledger(self, offset: int) -> bool:
        """Ask the cuts of the log."""
        return offset in self.world.cuts or offset < self.world.source_first

    async def wait(self) -> None:
        """Return at once."""


def run_of(offsets: Sequence[int], records: Sequence[bytes]) -> RecordRun:
    """Return records as a run."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    times = np.array([time_us(offset) // 1000 for offset in offsets])
    return RecordRun(np.array(offsets, np.uint64), times, np.cumsum(sizes) - sizes, sizes, b"".join(records))
