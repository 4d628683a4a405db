"""Random histories of readers that share a small cache, compared with a plain list of records.

The stream grows, is trimmed, compacted and damaged. Requests wait at a gate, and the readers' waits are
cancelled after any number of turns of the loop. Time passes only by a rule. Readers want all chunks, or those
of a choice, which answers early or late.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

from cache_world import (
    CHUNK_SIZE_BYTES,
    CHUNKS_PER_FRAGMENT,
    STEP_SIZE_BYTES,
    STREAM,
    CacheWorld,
    body_at,
    checked,
)
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from row_choices import Offsets

from offload import (
    Corrupt,
    Messages,
    ObjectStoreOffloader,
    Retention,
    StreamReader,
    TierOptions,
    TryAgain,
    build_chunk,
    trim,
)
from offload.cache.contents import Block, KeptState, KeptTail
from offload.cache.memory import AGE_SECONDS
from offload.commit.groups import entry_key
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import Event, Skipped
from offload.formats.keys import StreamKeys
from offload.read.batches import Window, messages_of
from offload.store.faults import Fault, Rule
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact

READERS_MAX = 4
CHOICES = st.builds(Offsets, st.sets(st.integers(0, 65)), hasty=st.booleans(), turns=st.integers(0, 3))
DAMAGED_BYTE = 300
"""The byte of a chunk that damage flips: in the body of its message."""


class Consumer:
    """A reader of the model: how far it has come, and the call that it waits for."""

    def __init__(self, choice: Offsets | None, by: str) -> None:
        self.choice, self.by, self.at = choice, by, 0
        self.events: list[Event] = []
        self.call: asyncio.Task[Any] | None = None
        self.is_excused = True
        """True if a spoiled reply may still reach it."""

    def open(self, reader: StreamReader, at: int) -> None:
        self.reader, self.at = reader, max(at, reader.manifest.first_offset)
        self.source: Any = getattr(reader, self.by)(self.at, rows_of=self.choice)

    def wanted_from(self, at: int, end: int) -> int:
        """Return the first wanted offset in [at, end), or `end`."""
        if self.choice is None:
            return at
        return min((each for each in self.choice.wanted if at <= each < end), default=end)

    async def begin_again(self) -> None:
        """Read on where it has come to, with the newest state."""
        await self.source.aclose()
        await self.reader.refresh()
        self.open(self.reader, self.at)

    def begin(self) -> None:
        if self.call is None:
            self.call = asyncio.ensure_future(anext(self.source, None))

    async def close(self) -> None:
        if self.call is not None:
            self.call.cancel()
            await asyncio.gather(self.call, return_exceptions=True)
        await self.source.aclose()


class SharedReads(RuleBasedStateMachine):
    """One stream, up to four readers of it, and everything that happens to them."""

    @initialize(steps=st.sampled_from([0.1, 1, 2, 3, 5, 9, 40]), fragments=st.integers(1, 4))
    def begin(self, steps: float, fragments: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.consumers: list[Consumer] = []
        self.held: list[Window] = []
        self.first = self.next = 0
        self.damaged: set[int] = set()
        self.ever_damaged: set[int] = set()
        self.run(self.build(int(steps * (STEP_SIZE_BYTES + 200)), fragments))

    async def build(self, size_bytes: int, fragments: int) -> None:
        self.world = CacheWorld(size_bytes=size_bytes)
        self.gate = asyncio.Semaphore(0)
        self.is_open = False

        async def before(operation: str, key: str) -> None:
            if operation == "get" and ".fragment" in key and not self.is_open:
                await self.gate.acquire()

        self.world.store.before = before
        await self.append_chunks(fragments * CHUNKS_PER_FRAGMENT)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    async def append_chunks(self, chunks: int) -> None:
        await self.world.append(chunks)
        self.next += chunks

    def consumer(self, which: int) -> Consumer:
        return self.consumers[which % len(self.consumers)]

    # What readers do.

    @precondition(lambda self: len(self.consumers) < READERS_MAX)
    @rule(
        at=st.integers(0, 99),
        by=st.sampled_from(["windows", "messages", "chunks"]),
        in_flight=st.integers(1, 4),
        choice=st.none() | CHOICES,
    )
    def open_reader(self, at: int, by: str, in_flight: int, choice: Offsets | None) -> None:
        one = Consumer(choice, by)
        one.is_excused = self.is_spoiling()
        reader = self.run(self.world.reader(in_flight=in_flight, emit=one.events.append))
        first = reader.manifest.first_offset
        one.open(reader, first + at % (reader.manifest.next_offset - first + 1))
        self.consumers.append(one)

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 9), turns=st.integers(0, 12), wanted=st.integers(0, 3))
    def ask(self, which: int, turns: int, wanted: int) -> None:
        """Begin to wait, answer some requests, and let so many turns pass."""
        self.run(self.turns(turns, wanted, asking=self.consumer(which)))

    @rule(turns=st.integers(1, 30), wanted=st.integers(0, 5))
    def go_on(self, turns: int, wanted: int) -> None:
        self.run(self.turns(turns, wanted))

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 9))
    def cancel_a_wait(self, which: int) -> None:
        one = self.consumer(which)
        if one.call is not None:
            one.call.cancel()
            self.run(self.turns(2, 0))

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 9), windows=st.integers(1, 8))
    def read(self, which: int, windows: int) -> None:
        """Read so many windows or messages, with every request answered."""
        one = self.consumer(which)
        self.is_open = True
        for _ in range(50):
            self.gate.release()
        for _ in range(windows):
            self.run(self.answered(one))
        self.is_open = False

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 9))
    def close_a_reader(self, which: int) -> None:
        one = self.consumer(which)
        self.consumers.remove(one)
        self.run(one.close())

    @precondition(lambda self: self.held)
    @rule()
    def let_windows_go(self) -> None:
        for window in self.held:
            self.check_window(window)
        self.held.clear()

    # What happens to the stream.

    @rule(chunks=st.integers(1, CHUNKS_PER_FRAGMENT))
    def append(self, chunks: int) -> None:
        if self.next < 60:
            self.run(self.append_chunks(chunks))

    @rule(before=st.integers(0, 99), is_swept=st.booleans())
    def trim(self, before: int, is_swept: bool) -> None:
        self.run(self.trim_and_sweep(self.first + before % (self.next - self.first + 1), is_swept))

    async def trim_and_sweep(self, before: int, is_swept: bool) -> None:
        await trim(self.world.others(), STREAM, Retention(before_offset=before))
        self.first = (await self.world.others().load_manifest(STREAM)).first_offset
        self.damaged -= set(range(self.first))
        if is_swept:
            await self.sweep()

    async def sweep(self) -> None:
        manifest = await self.world.others().load_manifest(STREAM)
        named = {entry_key(STREAM, manifest.entries[row : row + 1]) for row in range(len(manifest.entries))}
        for key in [*self.world.objects]:
            if StreamKeys(STREAM).parse_fragment(key) and key not in named:
                del self.world.objects[key]

    @precondition(lambda self: not self.damaged)
    @rule(is_swept=st.booleans())
    def compact(self, is_swept: bool) -> None:
        self.run(self.compact_and_sweep(is_swept))

    async def compact_and_sweep(self, is_swept: bool) -> None:
        size_bytes = 2 * CHUNKS_PER_FRAGMENT * CHUNK_SIZE_BYTES
        options = TierOptions(fragment_size_bytes=size_bytes)
        async with ObjectStoreOffloader(MemoryStore(objects=self.world.objects), options=options) as tier:
            async for report in compact(tier, streams=[STREAM], fragment_size_bytes=size_bytes):
                assert report.error is None
        if is_swept:
            await self.sweep()

    @precondition(lambda self: self.next > self.first)
    @rule(which=st.integers(0, 99))
    def damage_a_chunk(self, which: int) -> None:
        """Damage it in every object that has it, or mend it."""
        offset = self.first + which % (self.next - self.first)
        chunk = build_chunk([body_at(offset)], offset=offset, timestamp_ms=offset, epoch=1)
        broken = bytearray(chunk)
        broken[DAMAGED_BYTE] ^= 1
        old, new = (bytes(broken), chunk) if offset in self.damaged else (chunk, bytes(broken))
        for key, raw in self.world.objects.items():
            if StreamKeys(STREAM).parse_fragment(key):
                self.world.objects[key] = raw.replace(old, new)
        self.damaged ^= {offset}
        self.ever_damaged.add(offset)

    @rule(fault=st.sampled_from([Fault.FLIP, Fault.FAIL_BEFORE, Fault.CUT]), times=st.integers(1, 4))
    def spoil_replies(self, fault: Fault, times: int) -> None:
        self.world.store.rules[:] = [
            Rule(fault, "get", "*.fragment", nth=number + 1) for number in range(times)
        ]
        for one in self.consumers:
            one.is_excused = True

    def is_spoiling(self) -> bool:
        """Return True if a spoiled reply may still come."""
        left = any(rule.matched < (rule.nth or 0) for rule in self.world.store.rules)
        return left or bool(self.world.cache._fetches)

    @rule(count=st.integers(1, 3))
    def throttle(self, count: int) -> None:
        self.world.throttled += count

    @rule(seconds=st.sampled_from([0.1, 1, 5, AGE_SECONDS, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.world.pass_time(seconds))

    # What must hold.

    async def turns(self, turns: int, wanted: int, *, asking: Consumer | None = None) -> None:
        if asking is not None:
            asking.begin()
        for _ in range(wanted):
            self.gate.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        await self.collect()

    async def answered(self, one: Consumer) -> None:
        one.begin()
        await asyncio.wait([*filter(None, [one.call])])
        await self.collect()

    async def collect(self) -> None:
        """Compare what the calls that are over returned with the list."""
        for one in self.consumers:
            if one.call is None or not one.call.done():
                continue
            call, one.call = one.call, None
            for event in one.events:
                if isinstance(event, Skipped):
                    assert event.from_offset == one.at, "it reports exactly what it leaves out"
                    assert one.at < event.to_offset <= self.first
                    one.at = event.to_offset
            one.events.clear()
            if call.cancelled():
                # A generator ends if a wait for it is cancelled. Windows go on.
                if one.by != "windows":
                    await one.begin_again()
            elif (error := call.exception()) is not None:
                assert isinstance(error, Corrupt | TryAgain), error
                wanted = one.wanted_from(one.at, one.reader.manifest.next_offset)
                assert one.is_excused or (isinstance(error, Corrupt) and wanted in self.ever_damaged)
                await one.begin_again()
                one.is_excused = self.is_spoiling()
            elif (found := call.result()) is None:
                end = one.reader.manifest.next_offset
                assert one.wanted_from(one.at, end) >= end
                await one.begin_again()
            else:
                one.at = self.delivered(one, found)

    def delivered(self, one: Consumer, found: Window | Messages | StoredChunk) -> int:
        """Return the offset behind what a reader has got."""
        at = one.wanted_from(one.at, self.next)
        if isinstance(found, StoredChunk):
            assert bytes(found.raw) == build_chunk([body_at(at)], offset=at, timestamp_ms=at, epoch=1)
            return at + 1
        if isinstance(found, Messages):
            assert checked(found) == at
            return at + 1
        self.check_window(found)
        self.held.append(found)
        offsets = found.rows["offset"].tolist()
        assert offsets == [*range(at, at + len(offsets))]
        assert one.choice is None or one.choice.wanted.issuperset(offsets)
        return at + len(offsets)

    def check_window(self, window: Window) -> None:
        assert len(window.data) == window.rows["size_bytes"].sum()
        assert [checked(batch) for batch in messages_of(window)] == window.rows["offset"].tolist()

    @invariant()
    def what_is_kept_is_sound_and_within_the_bound(self) -> None:
        if not hasattr(self, "loop"):
            return
        cache, room = self.world.cache, self.world.cache._room
        ready, fetching = [*room._ready], [*cache._fetches]
        for kept in ready:
            assert kept.state is KeptState.READY
            if isinstance(kept, Block):
                assert kept.value is not None
                self.check_window(kept.value)
                assert kept.size_bytes == len(kept.value.data) + kept.value.rows.nbytes
                assert kept.fragment.block_of(kept.start) is kept
        assert room.ready_size_bytes == sum(kept.size_bytes for kept in ready)
        assert room.fetching_size_bytes == sum(kept.size_bytes for kept in fetching)
        ahead = [kept for kept in {*ready, *fetching} if kept.is_ahead]
        assert room.ahead_size_bytes == sum(kept.size_bytes for kept in ahead) <= cache.size_bytes // 2
        blocks = [kept.size_bytes for kept in {*ready, *fetching} if isinstance(kept, Block)]
        tails = [kept for kept in ready if isinstance(kept.value, KeptTail)]
        assert sum(blocks) <= max([cache.size_bytes, *blocks])
        assert room.size_bytes <= cache.size_bytes or len(blocks) <= 1 or tails
        for kept in {*ready, *fetching}:
            assert kept.pins >= 0
            assert kept.wanted >= 0
        assert all(kept.wanted or kept.is_gone for kept in fetching), "nobody wants it"
        if room._queue and not fetching:
            self.run(self.turns(2, 0))
            assert cache._fetches or not room._queue, "nobody admits the queue"

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for window in self.held:
            self.check_window(window)
        self.run(self.end())
        self.loop.close()

    async def end(self) -> None:
        """Close all readers. When time has passed, nothing may be kept and nothing may run."""
        self.is_open = True
        while self.consumers:
            await self.consumers.pop().close()
        assert all(kept.is_gone for kept in self.world.cache._fetches), "nobody wants it"
        for _ in range(3):
            await self.world.pass_time(AGE_SECONDS + 1)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert left == set()
        assert self.world.cache.counts.size_bytes == 0
        gc.collect()
        assert [*self.world.cache._streams._streams] == []


TestSharedReads = SharedReads.TestCase
TestSharedReads.settings = settings(
    max_examples=1_000 if CAMPAIGN else 4, stateful_step_count=60, deadline=None
)
