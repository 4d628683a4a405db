"""A sealed ledger in the order of its topics' keys (decision 46): each message as a `topic_record`.

    1. read      all messages, into one buffer, and their topics, as codes of a dictionary
    2. order     the different topics (`topic_order`), and the offsets by the rank of their topic: stable,
                 so that equal keys stay in the order of arrival
    3. gather    a run of entries: heads, topics and bodies, in one copy

There is an entry for each offset of the ledger. Offsets that have no message, such as tracking records,
become records without topic and body, and come first.

Invariants: the same ledger gives the same bytes in every process; no step is taken for each message in
Python. Memory: the messages, 50 bytes for each, and the different topics (`topic_order`). It is freed by
`aclose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offload.contracts.decoder import Decoder
from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes
from offload.entries.chunks import Cuts
from offload.formats.range_object import LedgerRanges
from offload.formats.records import RecordRun
from offload.formats.rows import ValuePool, column_of
from offload.index.terms import Spec
from offload.model.record_columns import ByteColumn, Integers, RecordBytes
from offload_mqtt.topic_order import TopicOrder, are_topic_names
from offload_mqtt.topic_record import HEAD, RecordKind, columns_of

__all__ = ["CHUNK_SIZE_BYTES", "DEFAULT_BY", "SortedLedger", "TopicSource"]

CHUNK_SIZE_BYTES: Final = 2**16
ROUTING_KEY: Final = "annotations.x-routing-key"
"""RabbitMQ's routing key of a message for an exchange, as a PATH of a SPEC."""
DEFAULT_BY: Final = f"amqp:{ROUTING_KEY}"

ENCODED_ROWS: Final = 2**18
"""Topics are kept as text until there are so many."""

Runs = Callable[[], AsyncGenerator[RecordRun, None]]


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Where the topics of messages are."""

    by: Spec
    decoder: Decoder

    @property
    def are_routing_keys(self) -> bool:
        """True if topics have `.` in the place of `/`, as RabbitMQ writes them for AMQP."""
        return self.by.paths == (ROUTING_KEY,)

    def terms(self, records: RecordBytes) -> tuple[Integers, ByteColumn]:
        """Return rows of records in order, and the topic of each. Other records have none."""
        if not self.are_routing_keys:
            found = self.by.terms(self.decoder, records)
            # A record with several terms has the first of them as its topic.
            having, at = np.unique(found.rows, return_index=True)
            return having.astype(np.int64), column_of([ValuePool.of(found.values).of_rows(at)], len(at))
        # The key of a record is its routing key, or something else if it has none. This needs no step for
        # each record, and a document for each does.
        columns = self.decoder.columns(records, ["key", "annotations"])
        keys, annotations = columns["key"], columns["annotations"]
        assert isinstance(keys, ByteColumn)
        assert isinstance(annotations, ByteColumn)
        has = pc.match_substring(_arrow(annotations), b'"x-routing-key":').to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(has & (np.diff(keys.offsets) > 0))
        if len(rows) == len(keys):
            return rows, keys
        return rows, column_of([ValuePool.of(keys).of_rows(rows)], len(rows))

    @property
    def are_in_records(self) -> bool:
        """True if messages are topic records already, as an archive of MQTT writes them."""
        return self.by.decoder == "mqtt"


class SortedLedger(EntryLedger):
    """The messages with the offsets [first_offset, next_offset) in the order of topics.

    `runs` returns them in the order of arrival, and raises what `EntryLedger.entries` may raise. `on_sorted`
    is called with the ranges of the ledger each time it was sorted.
    """

    __slots__ = ("_first", "_loaded", "_lock", "_next", "_on_sorted", "_runs", "_topics")

    def __init__(
        self,
        runs: Runs,
        topics: TopicSource,
        *,
        first_offset: int,
        next_offset: int,
        on_sorted: Callable[[LedgerRanges], None] = lambda ranges: None,
    ) -> None:
        self._runs, self._topics, self._on_sorted = runs, topics, on_sorted
        self._first, self._next = first_offset, next_offset
        self._loaded: _Sorted | None = None
        self._lock = asyncio.Lock()

    @property
    def ledger_id(self) -> int:
        """The first offset."""
        return self._first

    @property
    def last_entry(self) -> int:
        """There is an entry for each offset."""
        return self._next - self._first - 1

    @property
    def length(self) -> None:
        """It is not known before the ledger is read."""
        return

    @property
    def is_sealed(self) -> bool:
        """Always."""
        return True

    @property
    def first_offset(self) -> int:
        """The same as in the origin."""
        return self._first

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return entries in the order of topics. The first call reads and sorts the whole ledger."""
        return await asyncio.to_thread((await self._sorted()).entries, first, last, size_bytes)

    async def sizes(self, first: int, last: int) -> EntrySizes:
        """Return the sizes of entries. The first call reads and sorts the whole ledger."""
        found = await self._sorted()
        return EntrySizes(
            first=first, sizes=np.diff(found.ends[first : last + 2]), timestamps_ms=found.newest_ms
        )

    async def aclose(self) -> None:
        """Free the messages."""
        self._loaded = None

    async def _sorted(self) -> _Sorted:
        async with self._lock:
            if self._loaded is None:
                loading = _Loading(self._topics, self._first, self._next)
                async with aclosing(self._runs()) as runs:
                    async for run in runs:
                        await asyncio.to_thread(loading.add, run)
                self._loaded = await asyncio.to_thread(loading.sorted)
                self._on_sorted(await asyncio.to_thread(self._loaded.ranges))
            return self._loaded


@dataclass(slots=True)
class _Loading:
    """The messages of a ledger that is being read, in the order of arrival."""

    topics: TopicSource
    first_offset: int
    next_offset: int
    sizes: npt.NDArray[np.int32] = field(init=False)
    """The size of each message, or 0. They lie in `data` back to back."""
    codes: npt.NDArray[np.int32] = field(init=False)
    """The number of each topic among `values`, counted from 1 on. 0 for none."""
    kinds: npt.NDArray[np.uint8] = field(init=False)
    flags: npt.NDArray[np.uint8] = field(init=False)
    times: list[tuple[npt.NDArray[np.uint32], Integers]] = field(default_factory=list)
    """Times in microseconds, and the rows from which on messages have them."""
    values: Any = field(default_factory=lambda: pa.array([], pa.large_binary()))
    waiting: list[tuple[Integers, ByteColumn]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    newest_ms: int = 0

    def __post_init__(self) -> None:
        count = self.next_offset - self.first_offset
        self.sizes, self.codes = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.kinds, self.flags = np.zeros(count, np.uint8), np.zeros(count, np.uint8)

    def add(self, run: RecordRun) -> None:
        """Add messages, which follow."""
        if not len(run):
            return
        rows = (run.offsets - np.uint64(self.first_offset)).astype(np.int64)
        records = RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes)
        found, terms = self.topics.terms(records)
        self.waiting.append((rows[found], terms))
        if sum(len(each) for each, _ in self.waiting) >= ENCODED_ROWS:
            self._encode()
        times_us, self.kinds[rows] = run.timestamps_ms * 1000, RecordKind.AMQP
        if self.topics.are_in_records:
            parts = columns_of(records)
            records, times_us = parts.rests, parts.times_us
            self.kinds[rows], self.flags[rows] = parts.kinds, parts.flags
        is_new = np.append(True, times_us[1:] != times_us[:-1])
        self.times.append((rows[is_new].astype(np.uint32), times_us[is_new]))
        self.sizes[rows] = records.sizes
        begin, end = int(records.starts[0]), int(records.starts[-1] + records.sizes[-1])
        if end - begin > int(records.sizes.sum()):
            self.data += column_of(
                [ValuePool(records.data, records.starts, records.sizes)], len(rows)
            ).data.data
        else:
            self.data += records.data[begin:end].data
        self.newest_ms = max(self.newest_ms, int(run.timestamps_ms.max()))

    def _encode(self) -> None:
        """Give each waiting topic its number."""
        rows = np.concatenate([np.zeros(0, np.int64), *(each for each, _ in self.waiting)])
        found = _arrow(ByteColumn.joined([ByteColumn.of([]), *(terms for _, terms in self.waiting)]))
        self.waiting, found = [], found.dictionary_encode()
        known = pc.index_in(found.dictionary, value_set=self.values)
        is_new, numbers = pc.is_null(known), pc.fill_null(known, 0).to_numpy().astype(np.int32)
        fresh = found.dictionary.filter(is_new)
        numbers[is_new.to_numpy(zero_copy_only=False)] = len(self.values) + np.arange(len(fresh))
        self.values = pa.concat_arrays([self.values, fresh])
        self.codes[rows] = numbers[found.indices.to_numpy()] + 1
        pa.default_memory_pool().release_unused()  # it would keep the text of all topics

    def sorted(self) -> _Sorted:
        """Return the messages in the order of topics."""
        self._encode()
        codes = np.arange(len(self.values))
        if self.topics.are_routing_keys:
            found = pc.replace_substring(self.values, b".", b"/").dictionary_encode()
            codes, self.values = found.indices.to_numpy(), found.dictionary
        # The topic of what is no topic name is empty. An MQTT topic never is.
        names = are_topic_names(self.values)
        order = TopicOrder.of(self.values.filter(pa.array(names)))
        numbers = np.append(0, np.where(names, np.cumsum(names), 0)[codes]).astype(np.int32)
        self.values = None
        np.take(numbers, self.codes, out=self.codes, mode="clip")
        ranks = np.append(0, order.ranks).astype(np.int32)
        places = np.argsort(ranks[self.codes], kind="stable").astype(np.uint32)
        lengths = np.append(0, pc.binary_length(order.topics).to_numpy(zero_copy_only=False)).astype(np.int32)
        lengths += HEAD.itemsize
        ends = np.zeros(len(places) + 1, np.uint64)
        np.cumsum((lengths[self.codes] + self.sizes)[places], out=ends[1:], dtype=np.uint64)
        starts = np.cumsum(self.sizes, dtype=np.int64)
        starts -= self.sizes
        return _Sorted(
            self, order, starts.astype(np.uint32 if len(self.data) < 2**32 else np.int64), places, ends
        )


@dataclass(slots=True)
class _Sorted:
    """The messages of a ledger in order: entry `k` is that of offset `first_offset + places[k]`."""

    found: _Loading
    order: TopicOrder
    starts: npt.NDArray[Any]
    """Where each message begins."""
    places: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.uint64]
    """The sum of the sizes of the entries before each, and of all."""
    times: tuple[npt.NDArray[np.uint32], Integers] = field(init=False)
    """As in `_Loading`, joined."""

    def __post_init__(self) -> None:
        nothing = np.zeros(1, np.uint32), np.zeros(1, np.int64)
        rows, times_us = zip(nothing, *self.found.times, strict=True)
        self.times, self.found.times = (np.concatenate(rows), np.concatenate(times_us)), []

    @property
    def newest_ms(self) -> int:
        """The time of the newest message."""
        return self.found.newest_ms

    def entries(self, first: int, last: int, size_bytes: int) -> EntryRun:
        """Return entries up to `last`, or up to the one that brings them to `size_bytes`."""
        enough = np.searchsorted(self.ends[first + 1 : last + 2], self.ends[first] + np.uint64(size_bytes))
        stop = min(first + int(enough), last) + 1
        places, found = self.places[first:stop].astype(np.int64), self.found
        numbers, all_topics = found.codes[places], _pool(self.order.topics)
        topics = ValuePool(
            all_topics.data, np.append(0, all_topics.starts)[numbers], np.append(0, all_topics.sizes)[numbers]
        )
        heads = np.zeros(len(places), HEAD)
        heads["kind"], heads["flags"] = found.kinds[places], found.flags[places]
        heads["topic_size"], heads["time_us"] = topics.sizes, self._times(places)
        heads["origin"] = found.first_offset + places
        bodies = ValuePool(
            np.frombuffer(found.data or b" ", np.uint8),
            self.starts[places].astype(np.int64),
            found.sizes[places].astype(np.int64),
        )
        size = HEAD.itemsize
        pieces = [
            ValuePool(heads.view(np.uint8), np.arange(len(places)) * size, np.full(len(places), size)),
            topics,
            bodies,
        ]
        data = column_of(pieces, len(places)).data
        ends = self.ends[first + 1 : stop + 1] - self.ends[first]
        return EntryRun.packed(data.data, ends, first=first, timestamps_ms=self.newest_ms)

    def _times(self, places: Integers) -> Integers:
        """Return the time of each of these messages, and 0 of what is none."""
        rows, times_us = self.times
        at = np.searchsorted(rows, places, side="right") - 1
        return np.where(self.found.kinds[places] > 0, times_us[np.maximum(at, 0)], 0)

    def ranges(self) -> LedgerRanges:
        """Return the first key of each chunk, as `EntryLedgerStream` cuts them."""
        cuts = Cuts(0, CHUNK_SIZE_BYTES)
        for first in range(0, len(self.places), ENCODED_ROWS):  # in pieces, which take little memory
            cuts.add(np.diff(self.ends[first : first + ENCODED_ROWS + 1]), self.newest_ms)
        offsets = cuts.table(self.found.first_offset)["offset"].astype(np.uint64)
        firsts = np.append(offsets - np.uint64(self.found.first_offset), len(self.places) - 1).astype(
            np.int64
        )
        numbers = self.found.codes[self.places[firsts]].tolist()
        keys = [self.order.key(number - 1) if number else b"\0\0" for number in numbers]
        return LedgerRanges(self.found.first_offset, self.found.next_offset, self.order.about, offsets, keys)


def _arrow(column: ByteColumn) -> Any:
    """Return a column as an array of Arrow. Copies nothing."""
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), buffers)


def _pool(values: Any) -> ValuePool:
    """Return values of Arrow as a pool. Copies nothing."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return ValuePool(raw, edges[:-1], np.diff(edges))
