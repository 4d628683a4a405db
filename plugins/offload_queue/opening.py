"""Opening a store: what the log says about queues, messages and acknowledgements.

    index of each ledger     messages of each queue, controls
    newest state             queues, runs on the tier, the tag below which nothing local counts
    controls behind it       declarations, deletions, acknowledgements on the tier
    all acknowledgements     of messages in the log: they may be older than the state

A log whose last record is a clean state was closed. Otherwise all messages count as delivered before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from offload.contracts.log import LedgerLog
from offload.ground.env import Env
from offload.ground.errors import Corrupt
from offload.log.disk import Disk
from offload.log.folder_log import FolderLog
from offload_queue.counts import ReferenceCounts
from offload_queue.ledger_index import LedgerIndex, load_index, read_index
from offload_queue.log_records import (
    Acks,
    Control,
    MessageTags,
    PackedOffsets,
    QueueDeclared,
    QueueDeleted,
    StoreState,
    decode_control,
    unpacked,
)
from offload_queue.message_store import MessageStore, OnFull
from offload_queue.offset_set import OffsetSet
from offload_queue.positions import QueuePositions, QueueRun
from offload_queue.stored_queue import StoredQueue

__all__ = ["LOG_SIZE_BYTES_MAX", "open_store"]

LOG_SIZE_BYTES_MAX: Final = 2**30
LEDGERS_OF_LOG: Final = 16
"""A full log has so many ledgers: what is freed at once is a sixteenth of it."""
ROLL_SIZE_BYTES: Final = 2**30
"""The log never rolls by itself: the store does, and indexes what is sealed."""
LOG_FOLDER: Final = "log"
INDEX_FOLDER: Final = "index"


@dataclass(slots=True)
class _Found:
    """The content of a log."""

    state: StoreState | None
    later: list[Control]
    """The controls behind the state."""
    acks: dict[int, list[MessageTags]]
    """The acknowledged messages of the log, by queue."""
    is_clean: bool


async def open_store(
    folder: Path,
    *,
    log_size_bytes_max: int = LOG_SIZE_BYTES_MAX,
    on_full: OnFull = "block",
    begin: Callable[[], Awaitable[StoreState | None]] | None = None,
    env: Env | None = None,
    disk: Disk | None = None,
) -> MessageStore:
    """Open the store of a folder, or create it, by default with the state of a new instance.

    `begin` returns the state with which a new store begins. It is called only if the log has no record: after
    a crash before its state is in the log, it is called again.

    Raises `Conflict` if a process has it open, and `Corrupt` for damage that no crash explains.
    """
    env = env or Env()
    log = await FolderLog.open(
        folder / LOG_FOLDER, name=folder.name, roll_size_bytes=ROLL_SIZE_BYTES, env=env, disk=disk
    )
    try:
        index_folder = folder / INDEX_FOLDER
        await asyncio.to_thread(index_folder.mkdir, exist_ok=True)
        indexes = await _indexes(log, index_folder)
        found = _content(indexes, log)
        instance = await begin() if begin is not None and not indexes else None
        if instance is not None:
            await log.begin(instance.moved)
        state = found.state or instance or StoreState(env.uuid().hex, 0, 1, True, [], [])
        queues, next_queue = _queues(state, found, log, indexes)
        store = MessageStore(
            log,
            index_folder,
            state=StoreState(state.instance, state.moved, next_queue, False, [], state.batches),
            queues=queues,
            counts=_counts(log, indexes, queues),
            log_size_bytes_max=log_size_bytes_max,
            roll_size_bytes=max(log_size_bytes_max // LEDGERS_OF_LOG, 1),
            on_full=on_full,
            env=env,
        )
    except BaseException:
        await log.aclose()
        raise
    try:
        # From here on, the instance is known, ledgers that a crash left may go, and a log that was closed is
        # not so any more: a process that ends now may have delivered messages.
        await store.checkpoint()
    except BaseException:
        await store.aclose()
        raise
    return store


async def _indexes(log: LedgerLog, folder: Path) -> list[LedgerIndex]:
    indexes = []
    for ledger in log.ledgers:
        if not ledger.records:
            continue
        index = None
        if ledger.is_sealed:
            index = await asyncio.to_thread(load_index, folder, ledger.first_offset, ledger.next_offset)
        if index is None:
            async with await log.open_ledger(ledger.ledger_id) as handle:
                index = await read_index(handle)
        indexes.append(index)
    return indexes


def _content(indexes: list[LedgerIndex], log: LedgerLog) -> _Found:
    found = _Found(None, [], {}, is_clean=not indexes)
    for index in indexes:
        for offset, record in index.controls:
            control = decode_control(record, where=log.where, offset=offset)
            if isinstance(control, StoreState):
                found.state, found.later = control, []
                found.is_clean = control.is_clean and offset == log.next_offset - 1
                continue
            found.later.append(control)
            if isinstance(control, Acks):
                for acks in control.queues:
                    if not acks.on_tier:
                        found.acks.setdefault(acks.queue, []).append(acks.offsets.unpack())
    return found


def _queues(
    state: StoreState, found: _Found, log: LedgerLog, indexes: list[LedgerIndex]
) -> tuple[dict[int, StoredQueue], int]:
    """Return the queues with their messages, and the number of the next one."""
    runs = {each.queue: [QueueRun.of(run) for run in each.runs] for each in state.queues}
    queues = {
        each.queue: StoredQueue(
            each.queue, each.name, QueuePositions(runs=runs[each.queue], given=each.given)
        )
        for each in state.queues
    }
    next_queue = state.next_queue
    for control in found.later:
        if isinstance(control, QueueDeclared):
            queues[control.queue] = StoredQueue(control.queue, control.name, QueuePositions())
            next_queue = max(next_queue, control.queue + 1)
        elif isinstance(control, QueueDeleted):
            queues.pop(control.queue, None)
        elif isinstance(control, Acks):
            for acks in control.queues:
                if acks.on_tier and acks.queue in queues:
                    queues[acks.queue].places.ack_offsets(acks.offsets.unpack())
    packed: dict[int, list[PackedOffsets]] = {}
    for index in indexes:
        for number, each in index.queues:
            if number in queues:
                packed.setdefault(number, []).append(each)
    for number, parts in packed.items():
        near = unpacked(parts)
        if len(near) > 1 and (near[1:] <= near[:-1]).any():
            raise Corrupt("messages of a queue", log.where, expected="ascending offsets", found=number)
        queues[number].places.near = OffsetSet(near[np.searchsorted(near, state.moved) :])
        if number in found.acks:
            queues[number].places.near.remove(np.unique(np.concatenate(found.acks[number])))
    if not found.is_clean:
        for queue in queues.values():
            queue.places.given = log.next_offset
    return queues, next_queue


def _counts(log: LedgerLog, indexes: list[LedgerIndex], queues: dict[int, StoredQueue]) -> ReferenceCounts:
    counts = ReferenceCounts(log.first_offset, room=log.next_offset - log.first_offset)
    for index in indexes:
        counts.append(0, np.frombuffer(index.sizes, "<u4"))
    for queue in queues.values():
        counts.refer(queue.places.near.values)
    return counts
