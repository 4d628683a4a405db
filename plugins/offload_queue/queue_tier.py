"""A store's side on the tier: survivors of the log move there, dead data is collected, and one owner writes.

    meet      read the newest state, refuse that of another instance, claim the stream
    move      upload survivors of the oldest ledgers, what lives in the oldest tier ledger, and the state
    commit    one commit of the stream's writer: from here on, another machine would find it
    apply     places change, at once
    note      the same state goes to the log; then the store deletes the ledgers
    trim      the oldest tier ledgers that no run needs

Invariants: what a durable state names is on the tier; local ledgers go only behind a durable checkpoint, and
that only behind an accepted commit. A tier that is away stops nothing but the moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from offload.cache.block_cache import BlockCache
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk
from offload.formats.entries import messages
from offload.ground.env import Env
from offload.ground.errors import (
    Conflict,
    Corrupt,
    Fenced,
    NotOffloaded,
    OffloadError,
    TryAgain,
)
from offload.log.memory_handle import MemoryHandle
from offload.model.manifest import Manifest
from offload.upkeep.retention import Retention, trim
from offload.write.writer import StreamWriter
from offload_queue.log_records import (
    CONTROL,
    REFERENCE,
    TAGGED,
    TIER_MESSAGE,
    TIER_REFERENCE,
    BatchState,
    MessageTags,
    StoreState,
    decode_control,
    encode_control,
    head_of,
    without_queues,
)
from offload_queue.message_store import MessageStore
from offload_queue.positions import ACKED, QueuePositions, QueueRun
from offload_queue.stored_queue import StoredQueue
from offload_queue.tier_reading import TierReading, reference_of

__all__ = ["QueueTier", "last_state", "take_over"]

MOVE_SIZE_BYTES: Final = 8 * 2**20
"""A move ends with the message that brings it to this. They are in memory while they move."""
SHARED_SIZE_BYTES: Final = 4096
"""A record of this size that several queues have goes to the tier once."""
CHUNK_SIZE_BYTES: Final = 2**20
CHUNK_RECORDS: Final = 2**16 - 1
TRIM_SHARE: Final = 4
"""The tier is trimmed if what goes is this share of what lives."""
CONFIRM_INTERVAL_SECONDS: Final = 0.05
READ_COUNT: Final = 512

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Upload:
    """Records of the next tier ledger, and what becomes of the places when it is committed."""

    first: int
    end: int = field(init=False)
    records: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    moved: list[tuple[StoredQueue, QueueRun, MessageTags]] = field(default_factory=list)
    copied: list[tuple[StoredQueue, QueueRun, QueueRun, MessageTags, MessageTags]] = field(
        default_factory=list
    )
    """Queue, old run, new run, the positions of the old that are in the new, their tags."""

    def __post_init__(self) -> None:
        self.end = self.first

    def add(self, record: bytes) -> int:
        """Add a record and return its tier offset."""
        self.records.append(record)
        self.size_bytes += len(record)
        self.end += 1
        return self.end - 1


class QueueTier:
    """The tier of one store. `start` lets it work."""

    def __init__(
        self,
        store: MessageStore,
        tier: LedgerOffloader,
        stream: str,
        *,
        confirms: bool = False,
        cache: BlockCache | None = None,
        move_size_bytes: int = MOVE_SIZE_BYTES,
    ) -> None:
        self._store, self._tier, self.stream, self.confirms = store, tier, stream, confirms
        self._move_size_bytes = move_size_bytes
        self._reading = TierReading(tier, cache)
        self._writer: StreamWriter | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timestamp_ms = 0
        self.error: OffloadError | None = None
        """The reason why the last move failed. None if it succeeded."""

    # For queues.

    async def records(self, run: QueueRun, at: int) -> tuple[MessageTags, list[bytes]]:
        """Return tags and messages of a run from a position on, at least one."""
        await self._know()
        tags, raw = await self._reading.run(run.offset + at, run.count - at)
        return tags, await self._reading.messages(raw)

    async def find(self, places: QueuePositions, tags: MessageTags) -> list[bytes | None]:
        """Return messages by tags that a run knows; None for one that is gone."""
        await self._know()
        found: list[bytes | None] = []
        for tag in tags.tolist():
            run = next((each for each in places.runs if each.first <= tag <= each.last), None)
            at = -1 if run is None or run.tags is None else int(np.searchsorted(run.tags, tag))
            if run is None or run.tags is None or at >= run.count or run.tags[at] != tag:
                found.append(None)
                continue
            _, raw = await self._reading.run(run.offset + at, 1)
            found += await self._reading.messages(raw)
        return found

    def confirmed(self, end: int, local: asyncio.Future[None]) -> asyncio.Future[None]:
        """Return a future that is done when the tier has all below this tag, or it failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def written(local: asyncio.Future[None]) -> None:
            if (error := local.exception()) is not None:
                done.set_exception(error)
                done.exception()
            else:
                self._waiters.append((end, done))
                self._wanted.set()

        local.add_done_callback(written)
        return done

    # The work.

    def start(self) -> None:
        """Begin to move and to collect when it is due."""
        self._store.on_change = self._wanted.set
        self._wanted.set()
        self._task = asyncio.create_task(self._tend())

    async def aclose(self) -> None:
        """Stop, and close what is open. The store goes on without moves."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(TryAgain(f"the tier of {self.stream!r} was closed before this was confirmed"))
        await self._reading.aclose()

    async def _tend(self) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._waiters:
                await self._store.env.sleep(CONFIRM_INTERVAL_SECONDS)  # several publishers share a commit
            try:
                while await self.work():
                    failures, self.error = 0, None
            except (Fenced, Corrupt, NotOffloaded) as error:
                self.error = error
                self._store.fail(error)
                self._fail(error)
                return
            except OffloadError as error:
                self.error = error
                if not failures:
                    _log.warning("vhost %r stays on its disk for now: %s", self.stream, error)
                await self._store.env.sleep(self._store.env.backoff_seconds(failures))
                failures += 1
                self._wanted.set()
            except Exception as error:
                self._store.fail(error)
                self._fail(TryAgain(str(error)))
                raise

    async def work(self) -> bool:
        """Do one move, collection or trim that is due. Return False if none was."""
        if self._store.failed is not None:
            return False
        self._resolve()
        end, collected = await self._due()
        if end == self._store.moved and collected is None:
            return await self._trim()
        await self.meet()
        await self._move(end, collected)
        await self._trim()
        return True

    async def meet(self) -> None:
        """Claim the stream, unless that was done. Raises `Fenced` if another instance has it."""
        if self._writer is not None:
            return
        state, manifest = await last_state(self._tier, self.stream)
        ours = self._store.instance
        if state is not None and state.instance != ours:
            count = self._store.counts.live_count()
            raise Fenced(
                f"vhost {self.stream!r} was taken by instance {state.instance}: {ours} stops here; {count} "
                f"messages that were confirmed on its disk stay in {self._store.log.where}",
                epoch=None if manifest is None else manifest.epoch,
            )
        if state is None and self._store.batches:
            raise NotOffloaded(f"the tier does not have the queues of vhost {self.stream!r} any more")
        self._writer = await _claimed(self._tier, self.stream, manifest, self._store.env)
        self._reading.manifest = self._writer.manifest

    async def _know(self) -> None:
        if self._reading.manifest is None:
            self._reading.manifest = await self._tier.load_manifest(self.stream)

    async def _due(self) -> tuple[int, BatchState | None]:
        """Return the tag up to which messages should move, and the tier ledger that should be collected."""
        store = self._store
        bound = store.log_size_bytes_max
        if self._waiters:
            await store.log.roll(now_ms=store.env.now_ms())
        elif store.log_size_bytes <= bound * 3 // 4:
            return store.moved, self._garbage()
        ledgers = [each for each in store.log.ledgers if each.next_offset > store.moved]
        if len(ledgers) == 1 and ledgers[0].records:
            await store.log.roll(now_ms=store.env.now_ms())
            ledgers = [each for each in store.log.ledgers if each.next_offset > store.moved]
        left, end = store.log_size_bytes, store.moved
        for ledger in ledgers[:-1]:
            if left <= bound // 2 and not self._waiters:
                break
            left -= ledger.size_bytes
            end = ledger.next_offset
        if end > store.moved:
            end = store.counts.end_of_size(store.moved, end, self._move_size_bytes)
        return end, self._garbage()

    def _garbage(self) -> BatchState | None:
        """Return the oldest ledger with a run if more than half of the tier is dead."""
        total, live = self._sizes()
        needed = min((run.offset for run in self._runs()), default=2**63)
        oldest = next((each for each in self._store.batches[:-1] if each.end > needed), None)
        return oldest if total > 2 * live else None

    def _sizes(self) -> tuple[int, int]:
        """Return the size of all ledgers of the tier, and that of what lives."""
        total = sum(each.size_bytes for each in self._store.batches)
        return total, sum(run.live_size_bytes for run in self._runs())

    def _runs(self) -> Iterable[QueueRun]:
        return (run for queue in self._store.queues.values() for run in queue.places.runs)

    async def _move(self, end: int, collected: BatchState | None) -> None:
        writer, store = self._writer, self._store
        assert writer is not None
        upload = _Upload(writer.manifest.next_offset)
        await self._add_survivors(upload, end)
        if collected is not None:
            await self._add_living(upload, collected)
        if upload.end > upload.first:
            state = self._state_after(upload, end)
            await self._commit(writer, upload, encode_control(state))
        self._apply(upload, end)
        self._resolve()
        if upload.end > upload.first:
            await store.checkpoint()

    async def _add_survivors(self, upload: _Upload, end: int) -> None:
        store = self._store
        wanted = [(queue, queue.local_below(end, store.moved)) for queue in store.queues.values()]
        wanted = [(queue, tags) for queue, tags in wanted if len(tags)]
        if not wanted:
            return
        every, times = np.unique(np.concatenate([tags for _, tags in wanted]), return_counts=True)
        is_shared = (times > 1) & (store.counts.sizes(every) >= SHARED_SIZE_BYTES)
        sharers = dict(zip(every[times > 1].tolist(), times[times > 1].tolist(), strict=True))
        records: dict[int, bytes] = {}
        for begin in range(0, len(every), READ_COUNT):
            part = every[begin : begin + READ_COUNT]
            try:
                records.update(zip(part.tolist(), await store.read(part), strict=True))
            except NotOffloaded as gone:  # acknowledged since, and deleted
                raise TryAgain(str(gone)) from gone
        shared = {tag: upload.add(without_queues(records[tag])) for tag in every[is_shared].tolist()}
        for queue, tags in wanted:
            run, before = QueueRun(upload.end, len(tags), int(tags[0]), int(tags[-1]), 0), upload.size_bytes
            head = head_of([queue.number])
            for tag in tags.tolist():
                if tag in shared:
                    upload.add(REFERENCE.pack(TIER_REFERENCE, tag, shared[tag]))
                    run.size_bytes += len(records[tag]) // sharers[tag]
                    continue
                record = records[tag] if tag in sharers else records.pop(tag)
                upload.add(
                    TAGGED.pack(TIER_MESSAGE, tag)
                    + (record if record.startswith(head) else without_queues(record))
                )
            run.size_bytes += upload.size_bytes - before
            upload.moved.append((queue, run, tags))

    async def _add_living(self, upload: _Upload, collected: BatchState) -> None:
        """Add what lives in a ledger of the tier."""
        found: list[tuple[StoredQueue, QueueRun, MessageTags, MessageTags, list[bytes]]] = []
        raw: list[bytes]
        # A list: queues are declared and deleted while this reads.
        queues = [(queue, run) for queue in self._store.queues.values() for run in queue.places.runs]
        for queue, run in queues:
            kept = np.flatnonzero(run.marks != ACKED)
            if collected.first <= run.offset < collected.end and len(kept):
                tags, raw = np.empty(0, np.int64), []
                while len(raw) < run.count:
                    part, more = await self._reading.run(run.offset + len(raw), run.count - len(raw))
                    tags, raw = np.concatenate([tags, part]), raw + more
                found.append((queue, run, kept, tags[kept], [raw[row] for row in kept.tolist()]))
        bodies = Counter(reference_of(record) for *_, raw in found for record in raw)
        places: dict[int, int] = {}
        shares: dict[int, int] = {}
        for target in sorted(each for each in bodies if each is not None):
            (body,) = await self._reading.read(target, 1)
            places[target], shares[target] = upload.add(body), len(body) // bodies[target]
        for queue, run, kept, tags, raw in found:
            new = QueueRun(upload.end, len(kept), int(tags[0]), int(tags[-1]), 0)
            before = upload.size_bytes
            for tag, record in zip(tags.tolist(), raw, strict=True):
                at = reference_of(record)
                upload.add(record if at is None else REFERENCE.pack(TIER_REFERENCE, tag, places[at]))
                new.size_bytes += 0 if at is None else shares[at]
            new.size_bytes += upload.size_bytes - before
            upload.copied.append((queue, run, new, kept, tags))

    def _state_after(self, upload: _Upload, end: int) -> StoreState:
        """Return the state as it is when the upload is committed."""
        state = self._store.state()
        copies = {id(old): new.state() for _, old, new, _, _ in upload.copied}
        queues = []
        for each in state.queues:
            queue = self._store.queues[each.queue]
            runs = [copies.get(id(run)) or run.state() for run in queue.places.runs]
            runs += [run.state() for owner, run, _ in upload.moved if owner is queue]
            queues.append(msgspec.structs.replace(each, runs=runs))
        return msgspec.structs.replace(state, moved=end, queues=queues, batches=self._batches_after(upload))

    def _batches_after(self, upload: _Upload) -> list[BatchState]:
        return [*self._store.batches, BatchState(upload.first, upload.end + 1, upload.size_bytes)]

    def _apply(self, upload: _Upload, end: int) -> None:
        store = self._store
        if upload.end > upload.first:
            store.batches = self._batches_after(upload)
        store.moved = end
        for queue, run, tags in upload.moved:
            if not queue.is_deleted:
                left = self._moved(queue, run, tags)
                queue.let_go(left)
        for queue, old, new, kept, tags in upload.copied:
            if not queue.is_deleted and old in queue.places.runs:
                queue.places.replaced(old, new, kept, tags)

    def _moved(self, queue: StoredQueue, run: QueueRun, tags: MessageTags) -> MessageTags:
        places = queue.places
        there = tags[places.near.contains(tags) | places.unacked.contains(tags)]
        left = places.moved(run, tags, queue.records.__contains__)
        self._store.counts.release(there)
        return left

    async def _commit(self, writer: StreamWriter, upload: _Upload, state: bytes) -> None:
        self._timestamp_ms = max(self._timestamp_ms, self._store.env.now_ms())
        await _offload(writer, upload.records, state, timestamp_ms=self._timestamp_ms)
        if writer.manifest.next_offset != upload.end + 1:
            raise Fenced(f"vhost {self.stream!r}: another writer appended to its stream")
        self._reading.manifest = writer.manifest

    def _resolve(self) -> None:
        ready = [done for end, done in self._waiters if end <= self._store.moved]
        self._waiters = [each for each in self._waiters if each[0] > self._store.moved]
        for done in ready:
            if not done.done():
                done.set_result(None)

    def _fail(self, error: OffloadError) -> None:
        for _, done in self._waiters:
            if not done.done():
                done.set_exception(error)
                done.exception()
        self._waiters = []

    async def _trim(self) -> bool:
        """Delete the oldest ledgers of the tier that no run needs. The newest stays: it has the state."""
        store = self._store
        needed = min((run.offset for run in self._runs()), default=2**63)
        kept = [each for each in store.batches if each.end > needed] or store.batches[-1:]
        dead = sum(each.size_bytes for each in store.batches[: -len(kept)])
        total, live = self._sizes()
        # One commit for several of them, unless they are what makes the tier too large.
        if len(kept) >= len(store.batches) or (dead < live // TRIM_SHARE and total <= 2 * live):
            return False
        await self.meet()
        assert self._writer is not None
        await store.checkpoint()  # no durable state may need what goes
        first = kept[0].first
        store.batches = [each for each in store.batches if each.first >= first]
        await trim(
            self._tier,
            self.stream,
            Retention(before_offset=first),
            writer=self._writer.writer,  # another machine may need what was acknowledged here
            env=store.env,
            now_ms=store.env.now_ms(),
        )
        return True


async def last_state(tier: LedgerOffloader, stream: str) -> tuple[StoreState | None, Manifest | None]:
    """Return the newest state on the tier, and the manifest; None if there is none."""
    try:
        manifest = await tier.load_manifest(stream)
    except NotOffloaded:  # also if it was deleted
        return None, None
    view = tier.view_of(manifest)
    offset = manifest.next_offset
    while offset > manifest.first_offset and (entry := await view.find(offset - 1)) is not None:
        async with await view.open(entry) as handle:
            table = await handle.table()
            for row in range(len(table) - 1, -1, -1):
                raw = await handle.read(table[row : row + 1])
                records = messages(bytes(raw), where=handle.where)
                at = int(table["offset"][row]) + len(records) - 1
                if records and records[-1][:1] == bytes([CONTROL]):
                    control = decode_control(records[-1], where=handle.where, offset=at)
                    if isinstance(control, StoreState):
                        return control, manifest
        offset = entry.first_offset
    return None, manifest


async def take_over(tier: LedgerOffloader, stream: str, env: Env) -> StoreState | None:
    """Take a vhost of another instance: claim its stream, and commit its state as that of a new instance.

    Returns that state, with which a store of an empty folder begins. None if the tier has no such vhost.
    """
    state, manifest = await last_state(tier, stream)
    if state is None or manifest is None:
        return None
    queues = [
        msgspec.structs.replace(
            each,
            given=state.moved,  # nobody knows what the old owner delivered
            runs=[run for run in each.runs if run.offset >= manifest.first_offset],  # the others were trimmed
        )
        for each in state.queues
    ]
    writer = await _claimed(tier, stream, manifest, env)
    end = writer.manifest.next_offset
    batches = [each for each in state.batches if each.end > manifest.first_offset]
    new = msgspec.structs.replace(
        state,
        instance=env.uuid().hex,
        is_clean=False,
        queues=queues,
        batches=[*batches, BatchState(end, end + 1, 0)],
    )
    await _offload(writer, [], encode_control(new), timestamp_ms=env.now_ms())
    return new


async def _claimed(tier: LedgerOffloader, stream: str, manifest: Manifest | None, env: Env) -> StreamWriter:
    """Claim the stream if it is still as it was seen."""
    try:
        return await StreamWriter.claim(
            tier,
            stream,
            base=manifest,
            is_new=manifest is None,
            expected_version=None if manifest is None else manifest.version,
            env=env,
        )
    except Conflict as moved:
        raise TryAgain(f"stream {stream!r} changed while it was claimed") from moved


async def _offload(writer: StreamWriter, records: list[bytes], state: bytes, *, timestamp_ms: int) -> None:
    """Append one ledger: records, and the state in a chunk of its own."""
    first = offset = writer.manifest.next_offset
    chunks = []
    for part in _pieces(records):
        chunks.append(build_chunk(part, offset=offset, timestamp_ms=timestamp_ms, epoch=0))
        offset += len(part)
    chunks.append(build_chunk([state], offset=offset, timestamp_ms=timestamp_ms, epoch=0))
    handle = MemoryHandle(chunks, ledger_id=first)
    records.clear()  # the handle has a copy, and the memory of a move is bounded
    del chunks
    await writer.offload([handle])


def _pieces(records: list[bytes]) -> Iterable[list[bytes]]:
    begin = size_bytes = 0
    for row, record in enumerate(records):
        if row > begin and (size_bytes + len(record) > CHUNK_SIZE_BYTES or row - begin == CHUNK_RECORDS):
            yield records[begin:row]
            begin, size_bytes = row, 0
        size_bytes += len(record) + 4
    if records:
        yield records[begin:]
