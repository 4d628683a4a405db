"""Tests of `FolderLog` on a sound disk: the contract, opening, chunks, rolls, policies, idle logs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_contract import NOW_MS, LogContract, epochs_of, records_in, records_of
from log_disks import FailingDisk, failing_at
from osiris_data import DATA, MANIFEST, TORN, index_of
from osiris_writer import simple_chunks, write_stream

from offload.contracts.log import LedgerLog
from offload.formats.chunk import ChunkHeader
from offload.formats.entries import messages
from offload.ground.env import Env
from offload.ground.errors import Conflict, Corrupt, Fenced, Misuse, OffloadError, TryAgain
from offload.local.pair import Pair
from offload.local.recovery import recover
from offload.log import appended, folder_log
from offload.log.appended import AppendCall, NewChunk
from offload.log.disk import Disk
from offload.log.folder_log import Durability, FolderLog
from offload.log.lock import LOCK_NAME
from offload.log.open_pair import OpenPair, PairEnd, create_pair


class TestFolderLogContract(LogContract):
    async def open(self, folder: Path) -> LedgerLog:
        return await FolderLog.open(folder)


class TestFolderLogOfTheKernelContract(LogContract):
    """OS commits what is written."""

    async def open(self, folder: Path) -> LedgerLog:
        return await FolderLog.open(folder, durability=Durability.OS)


def with_log(folder: Path, scenario: Callable[[FolderLog], Awaitable[Any]], **options: Any) -> Any:
    async def opened() -> Any:
        async with await FolderLog.open(folder, **options) as log:
            return await scenario(log)

    return asyncio.run(opened())


def reads(folder: Path, **options: Any) -> list[bytes]:
    found: list[bytes] = with_log(folder, records_of, **options)
    return found


async def two_ledgers(log: FolderLog) -> None:
    await log.append([b"a", b"b"], timestamp_ms=NOW_MS)
    await log.roll(now_ms=NOW_MS + 5)
    await log.append([b"c"], timestamp_ms=NOW_MS)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK_NAME}


# Opening


def test_a_log_that_is_opened_again_has_the_same_ledgers(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> list[object]:
        return list(log.ledgers)

    with_log(tmp_path, two_ledgers)
    first = with_log(tmp_path, scenario)

    assert [(each.first_offset, each.next_offset, each.closed_ms) for each in first] == [
        (0, 2, NOW_MS + 5),
        (2, 3, None),
    ]
    assert with_log(tmp_path, scenario) == first
    assert reads(tmp_path) == [b"a", b"b", b"c"]


def test_a_sealed_ledger_stays_sealed_if_the_log_is_opened_again_with_an_empty_one(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        await log.roll(now_ms=NOW_MS)

    async def again(log: FolderLog) -> None:
        assert [ledger.is_sealed for ledger in log.ledgers] == [True, False]
        assert await log.append([b"b"], timestamp_ms=NOW_MS) == 1

    with_log(tmp_path, scenario)
    with_log(tmp_path, again)

    assert reads(tmp_path) == [b"a", b"b"]


def test_files_are_those_of_osiris_and_only_they_are_read_as_a_stream(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await two_ledgers(log)
        await log.save_note("cursors", b"x")

    with_log(tmp_path, scenario)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"{offset:020}.{kind}" for offset in (0, 2) for kind in ("index", "segment")),
        "note.cursors",
        "writer.lock",
    ]
    recovered = recover(tmp_path, stream="x")
    assert (recovered.first_offset, recovered.next_offset, recovered.damage) == (0, 3, None)


def test_the_epoch_rises_with_each_opening_and_is_in_new_chunks(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(2))  # epoch 1

    async def append(log: FolderLog) -> int:
        await log.append([b"x"], timestamp_ms=2 * NOW_MS)
        return log.epoch

    assert [with_log(tmp_path, append) for _ in range(2)] == [2, 3]
    assert with_log(tmp_path, append, epoch=9) == 9
    assert with_log(tmp_path, epochs_of) == [1, 1, 2, 3, 9]


def test_an_epoch_that_a_broker_chose_is_not_raised_by_others(tmp_path: Path) -> None:
    """The broker's election decides, and the tier fences a leader of the past."""

    async def begin(log: FolderLog) -> int:
        await log.begin(500, epoch=12)
        return log.epoch

    assert with_log(tmp_path / "chosen", begin, epoch=9) == 9
    assert with_log(tmp_path / "counted", begin) == 12
    assert with_log(tmp_path / "counted", epoch_of) == 13


def test_an_epoch_below_that_of_an_earlier_writer_is_fenced(tmp_path: Path) -> None:
    """Also if no chunk has the epoch of that writer."""
    with_log(tmp_path, records_of, epoch=7)

    with pytest.raises(Fenced) as caught:
        with_log(tmp_path, records_of, epoch=6)

    assert caught.value.epoch == 7
    assert with_log(tmp_path, epoch_of, epoch=7) == 7


async def epoch_of(log: FolderLog) -> int:
    return log.epoch


def test_the_stream_is_named_after_the_folder_unless_a_name_is_given(tmp_path: Path) -> None:
    async def name(log: FolderLog) -> str:
        return log.name

    assert with_log(tmp_path / "orders", name) == "orders"
    assert with_log(tmp_path / "orders", name, name="other") == "other"


@pytest.mark.parametrize(
    "options",
    [
        {"roll_size_bytes": 0},
        {"roll_size_bytes": 2**31},
        {"roll_chunks": 0},
        {"interval_seconds": 0},
        {"epoch": -1},
    ],
)
def test_options_out_of_range_are_misuse(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        with_log(tmp_path, records_of, **options)


def test_a_second_opener_gets_the_process_of_the_first(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        with pytest.raises(Conflict, match=f"process {os.getpid()} has the log"):
            await FolderLog.open(tmp_path)

    with_log(tmp_path, scenario)
    with_log(tmp_path, scenario)


# Torn tails


@pytest.mark.parametrize("case", TORN)
def test_a_torn_log_is_repaired_as_osiris_repairs_it(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "log"
    shutil.copytree(DATA / "torn" / case, folder)
    kept = MANIFEST["torn"]["cases"][case]
    expected = {file["file"]: file["bytes"] for file in kept["files_after_osiris_recovery"]}
    if case == "new_segment_headers_only":
        # Osiris removes it, and writes to the sealed pair again.
        expected |= {f"{210:020}.{kind}": 8 for kind in ("index", "segment")}

    async def next_offset(log: FolderLog) -> int:
        return log.next_offset

    assert with_log(folder, next_offset) == kept["after_osiris_recovery"]["next_offset"]
    assert {name: len(raw) for name, raw in files(folder).items()} == expected
    assert all(
        (DATA / "torn" / case / name).read_bytes()[:size] == (folder / name).read_bytes()
        for name, size in expected.items()
    )


@pytest.mark.parametrize("case", TORN)
def test_a_torn_log_goes_on_behind_its_last_sound_chunk(tmp_path: Path, case: str) -> None:
    shutil.copytree(DATA / "torn" / case, tmp_path / "log")

    async def scenario(log: FolderLog) -> None:
        end = log.next_offset
        assert await log.append([b"new"], timestamp_ms=0) == end
        async with await log.open_ledger(log.ledgers[-1].ledger_id) as handle:
            rows = (await handle.table())[-1:]
            raw = await handle.read(rows)
            header = ChunkHeader.decode(raw, where="test")
            assert (messages(raw, where="test"), header.offset, header.epoch) == ([b"new"], end, 8)
            # Never below that of the chunk before it.
            assert header.timestamp_ms >= 1710000006000

    with_log(tmp_path / "log", scenario)
    recovered = recover(tmp_path / "log", stream="x")
    assert (recovered.damage, recovered.epoch) == (None, 8)


def test_damage_before_the_last_chunk_is_reported_when_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    shutil.copytree(DATA / "torn" / "crc_mismatch_middle_chunk", folder)

    with pytest.raises(Corrupt):
        reads(folder)


def test_a_header_that_lost_its_second_page_is_no_sound_chunk(tmp_path: Path) -> None:
    """Its sizes and its checksum are zeros, and the checksum of no data is zero too."""
    write_stream(tmp_path, simple_chunks(3))
    segment = tmp_path / f"{0:020}.segment"
    start = index_of(segment)[-1][3]
    raw = segment.read_bytes()
    segment.write_bytes(raw[: start + 32] + bytes(len(raw) - start - 32))

    assert recover(tmp_path, stream="x").next_offset == 6
    assert len(reads(tmp_path)) == 6


DAMAGE = {
    "a missing index in the middle": lambda folder: (folder / f"{2:020}.index").unlink(),
    "a missing segment in the middle": lambda folder: (folder / f"{2:020}.segment").unlink(),
    "a missing newest index": lambda folder: (folder / f"{3:020}.index").unlink(),
    "a missing newest segment": lambda folder: (folder / f"{3:020}.segment").unlink(),
    "no magic in the newest segment": lambda folder: put(folder / f"{3:020}.segment", 0, b"NONE"),
    "no magic in the newest index": lambda folder: put(folder / f"{3:020}.index", 0, b"NONE"),
    "garbage in the lock": lambda folder: (folder / LOCK_NAME).write_bytes(b"garbage"),
    "a list in the lock": lambda folder: (folder / LOCK_NAME).write_bytes(b"[1]"),
}


def put(path: Path, position: int, new: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(new)] = new
    path.write_bytes(raw)


async def three_ledgers(log: FolderLog) -> None:
    await two_ledgers(log)
    await log.roll(now_ms=NOW_MS)
    await log.append([b"d"], timestamp_ms=NOW_MS)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_that_no_crash_explains_is_corrupt_and_changes_no_file(tmp_path: Path, damage: str) -> None:
    with_log(tmp_path, three_ledgers)
    DAMAGE[damage](tmp_path)
    before = files(tmp_path)

    with pytest.raises(Corrupt):
        reads(tmp_path)

    assert files(tmp_path) == before


@pytest.mark.parametrize("kind", ["index", "segment"])
def test_a_sealed_pair_that_lost_its_end_is_corrupt_and_stays(tmp_path: Path, kind: str) -> None:
    """With an empty pair behind it, osiris would take it for a torn tail."""

    async def sealed_alone(log: FolderLog) -> None:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        await log.append([b"b"], timestamp_ms=NOW_MS)
        await log.roll(now_ms=NOW_MS)

    with_log(tmp_path, sealed_alone)
    path = tmp_path / f"{0:020}.{kind}"
    os.truncate(path, path.stat().st_size - 1)
    before = files(tmp_path)

    with pytest.raises(Corrupt):
        reads(tmp_path)

    assert files(tmp_path) == before


def test_damage_of_a_sealed_ledger_is_reported_by_that_ledger_alone(tmp_path: Path) -> None:
    with_log(tmp_path, three_ledgers)
    put(tmp_path / f"{0:020}.index", 8, bytes(8))
    put(tmp_path / f"{0:020}.index", 0, b"NONE")

    async def scenario(log: FolderLog) -> None:
        async with await log.open_ledger(0) as handle:
            with pytest.raises(Corrupt):
                await records_in(handle)
        async with await log.open_ledger(2) as handle:
            assert await records_in(handle) == [b"c"]

    with_log(tmp_path, scenario)


# Chunks


def test_calls_that_wait_together_share_chunks(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await asyncio.gather(*(log.append([b"x" * 100], timestamp_ms=NOW_MS + n) for n in range(1000)))
        async with await log.open_ledger(0) as handle:
            assert len(await handle.table()) == 1

    with_log(tmp_path, scenario)


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([60] * 6, [2, 2, 2]),  # a batch ends with the call that brings it to its size
        ([60, 190, 60, 60], [1, 1, 2]),  # and before one that would bring it to more than twice its size
        ([500, 500], [1, 1]),
        ([60, 140, 10], [2, 1]),
    ],
)
def test_a_batch_ends_at_its_size_and_a_huge_call_is_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], batches: list[int]
) -> None:
    monkeypatch.setattr(folder_log, "BATCH_SIZE_BYTES", 100)
    written: list[int] = []
    chunks_of = folder_log.chunks_of

    def count(batch: list[AppendCall]) -> list[NewChunk]:
        written.append(len(batch))
        return chunks_of(batch)

    monkeypatch.setattr(folder_log, "chunks_of", count)

    async def scenario(log: FolderLog) -> None:
        # A record takes 4 bytes more than its own.
        calls = [log.append([bytes(size - 4)], timestamp_ms=1) for size in sizes]
        assert await asyncio.gather(*calls) == list(range(len(sizes)))
        assert written == batches

    with_log(tmp_path, scenario)


def test_a_chunk_has_the_newest_timestamp_of_its_calls(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await asyncio.gather(*(log.append([b"x"], timestamp_ms=ms) for ms in (5, 9, 7)))
        async with await log.open_ledger(0) as handle:
            assert (await handle.table())["timestamp_ms"].tolist() == [9]
        # And never an older one than the chunk before it, also if that is in another ledger.
        await log.roll(now_ms=NOW_MS)
        await log.append([b"x"], timestamp_ms=8)
        async with await log.open_ledger(3) as handle:
            assert (await handle.table())["timestamp_ms"].tolist() == [9]

    with_log(tmp_path, scenario)


def test_a_call_takes_chunks_of_65535_records_and_1_mib(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await log.append([b""] * 140_000, timestamp_ms=1)
        await log.append([bytes(400_000)] * 5, timestamp_ms=1)
        await log.append([bytes(3_000_000), b"a"], timestamp_ms=1)
        async with await log.open_ledger(0) as handle:
            rows = await handle.table()
        assert rows["records"].tolist() == [65_535, 65_535, 8_930, 2, 2, 1, 1, 1]
        assert len(await records_of(log)) == 140_007

    with_log(tmp_path, scenario)


@given(
    calls=st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=8), min_size=1, max_size=8),
    size=st.integers(8, 60),
    count=st.integers(1, 5),
)
def test_chunks_have_all_records_in_order_and_keep_their_bounds(
    calls: list[list[bytes]], size: int, count: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(appended, "CHUNK_SIZE_BYTES", size)
        patched.setattr(appended, "CHUNK_RECORDS_MAX", count)
        done: Any = None
        waiting = [appended.AppendCall.of(each, timestamp_ms=n, done=done) for n, each in enumerate(calls)]

        chunks = appended.chunks_of(waiting)

    encoded = b"".join(struct.pack(">I", len(body)) + body for call in calls for body in call)
    assert b"".join(part for chunk in chunks for part in chunk.parts) == encoded
    for chunk in chunks:
        assert chunk.size_bytes == sum(map(len, chunk.parts))
        assert 1 <= chunk.records <= count
        assert chunk.size_bytes <= size or chunk.records == 1


@pytest.mark.parametrize("records", [["text"], [bytearray(b"x")], [None]])
def test_records_that_are_no_bytes_are_misuse(tmp_path: Path, records: Any) -> None:
    async def scenario(log: FolderLog) -> None:
        with pytest.raises(Misuse):
            await log.append(records, timestamp_ms=1)
        with pytest.raises(Misuse):
            await log.append([b"x"], timestamp_ms=2**63)

    with_log(tmp_path, scenario)


def test_a_call_larger_than_a_segment_can_hold_is_misuse(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        part = bytes(2**29)  # untouched zeros
        with pytest.raises(Misuse, match="in one call"):
            await log.append([part] * 6, timestamp_ms=1)

    with_log(tmp_path, scenario)


def test_offsets_end_before_2_to_the_64(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await log.begin(2**64 - 4)
        await log.append([b"x", b"y"], timestamp_ms=1)
        with pytest.raises(Misuse, match="offsets of a log end"):
            await log.append([b"z"], timestamp_ms=1)
        assert await records_of(log) == [b"x", b"y"]

    with_log(tmp_path, scenario)
    assert reads(tmp_path) == [b"x", b"y"]


def test_a_cancelled_caller_may_change_its_list(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        records = [b"a", b"b"]
        call = asyncio.ensure_future(log.append(records, timestamp_ms=1))
        await asyncio.sleep(0)
        records.clear()
        assert (await call, await records_of(log)) == (0, [b"a", b"b"])

    with_log(tmp_path, scenario)


def test_a_call_that_was_cancelled_while_it_waited_is_not_written(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        first = asyncio.ensure_future(log.append([b"first"], timestamp_ms=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the writer has taken it
        waiting = asyncio.ensure_future(log.append([b"cancelled"], timestamp_ms=1))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await first, await log.append([b"last"], timestamp_ms=1)) == (0, 1)
        assert await records_of(log) == [b"first", b"last"]

    with_log(tmp_path, scenario)


# Rolls


@pytest.mark.parametrize("options", [{"roll_chunks": 3}, {"roll_size_bytes": 150}])
def test_a_full_ledger_is_sealed_before_the_next_append(tmp_path: Path, options: dict[str, int]) -> None:
    """A chunk of one byte has 53 bytes, so three of them are 159."""

    async def scenario(log: FolderLog) -> None:
        for number in range(7):
            await log.append([b"%d" % number], timestamp_ms=NOW_MS)
        assert [ledger.first_offset for ledger in log.ledgers] == [0, 3, 6]
        assert [ledger.closed_ms for ledger in log.ledgers] == [77, 77, None]

    with_log(tmp_path, scenario, env=Env(now_ms=lambda: 77), **options)
    assert reads(tmp_path) == [b"%d" % number for number in range(7)]


def test_a_ledger_is_sealed_before_a_position_would_exceed_its_32_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_log, "SEGMENT_SIZE_BYTES_MAX", 8 + 53 * 2)

    async def scenario(log: FolderLog) -> None:
        for _ in range(5):
            await log.append([b"x"], timestamp_ms=NOW_MS)
        assert [ledger.size_bytes for ledger in log.ledgers] == [106, 106, 53]

    with_log(tmp_path, scenario)


# Policies


class Clock:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self.sleeping: list[tuple[float, asyncio.Future[None]]] = []
        self.env = Env(sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleeping.append((seconds, future))
        await future

    async def tick(self) -> float:
        """End one sleep, and return when the next one has begun, or none does."""
        async with asyncio.timeout(60):
            while not self.sleeping:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        seconds, future = self.sleeping.pop()
        future.set_result(None)
        for _ in range(200):
            await asyncio.sleep(0.001)
            if self.sleeping:
                break
        return seconds


def test_an_interval_commits_what_it_has_synced(tmp_path: Path) -> None:
    clock = Clock()

    async def scenario(log: FolderLog) -> None:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        assert (log.next_offset, log.committed_offset) == (1, 0)
        assert await clock.tick() == 0.25
        assert log.committed_offset == 1
        await log.append([b"b"], timestamp_ms=NOW_MS)
        assert await records_of(log) == [b"a"]
        await log.roll(now_ms=NOW_MS)
        assert (log.committed_offset, await records_of(log)) == (2, [b"a", b"b"])

    options = {"durability": Durability.INTERVAL, "interval_seconds": 0.25, "env": clock.env}
    with_log(tmp_path, scenario, **options)


def test_a_log_at_rest_has_one_descriptor_and_no_task(tmp_path: Path) -> None:
    clock = Clock()

    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        log = await FolderLog.open(tmp_path, env=clock.env)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        await log.append([b"a"], timestamp_ms=NOW_MS)
        await log.append([b"b"], timestamp_ms=NOW_MS)
        assert len(os.listdir("/proc/self/fd")) == before + 3
        await clock.tick()
        await clock.tick()
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert len(asyncio.all_tasks()) == 1
        assert await records_of(log) == [b"a", b"b"]
        await log.append([b"c"], timestamp_ms=NOW_MS)
        assert await records_of(log) == [b"a", b"b", b"c"]
        await log.aclose()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


def test_a_pair_that_is_closed_forgets_its_table_and_reads_it_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 0)
    create_pair(pair, disk=Disk())
    opened = OpenPair(pair, PairEnd(0), epoch=1, timestamp_ms=0, disk=Disk())
    for _ in range(3):
        opened.write([appended.NewChunk([b"\0\0\0\0"], 1, 4, NOW_MS)], sync=True)
    before = opened.kept_rows(2)

    opened.close()

    assert opened.kept_rows(2) is None
    assert before is not None
    assert (opened.read_rows(2) == before).all()


def chunk() -> appended.NewChunk:
    return appended.NewChunk([b"\0\0\0\0"], 1, 4, NOW_MS)


def new_pair(folder: Path, disk: Disk) -> OpenPair:
    """Return an empty pair, whose changes go through this disk."""
    create_pair(Pair(folder, 0), disk=Disk())
    return OpenPair(Pair(folder, 0), PairEnd(0), epoch=1, timestamp_ms=0, disk=disk)


def test_the_segment_of_chunks_that_wait_is_synced_before_their_index(tmp_path: Path) -> None:
    """A record of a chunk that a power cut takes would be a hole before the chunks that it leaves."""
    synced = list[str]()

    class Watched(Disk):
        def sync(self, descriptor: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
            super().sync(descriptor)

    opened = new_pair(tmp_path, Watched())
    for _ in range(2):
        opened.write([chunk()], sync=False)

    opened.sync()
    opened.close()

    assert synced == [".segment", ".index"]


def test_a_write_that_anything_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    """Otherwise the next recovery takes what was never acknowledged."""

    class Interrupted(Disk):
        def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
            super().write(descriptor, position, parts)
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".index"):
                raise KeyboardInterrupt

    opened = new_pair(tmp_path, Interrupted())
    files = [opened.pair.segment, opened.pair.index]
    before = [path.read_bytes() for path in files]

    with pytest.raises(KeyboardInterrupt):
        opened.write([chunk()], sync=True)
    opened.close()

    assert [path.read_bytes() for path in files] == before
    assert opened.end == PairEnd(0)


def test_rows_that_readers_have_cannot_be_changed_and_later_rows_can_be_added(tmp_path: Path) -> None:
    opened = new_pair(tmp_path, Disk())
    opened.write([chunk()], sync=False)
    rows = opened.kept_rows(1)
    assert rows is not None

    with pytest.raises(ValueError, match="read-only"):
        rows["offset"][0] = 7
    opened.write([chunk()], sync=False)
    opened.close()

    assert rows["offset"].tolist() == [0]


def test_a_snapshot_outlives_the_rest_of_its_log(tmp_path: Path) -> None:
    clock = Clock()

    async def scenario(log: FolderLog) -> None:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        early = await log.open_ledger(0)
        await clock.tick()
        await clock.tick()
        late = await log.open_ledger(0)
        await log.append([b"b"], timestamp_ms=NOW_MS)
        await log.roll(now_ms=NOW_MS)
        assert [await records_in(each) for each in (early, late)] == [[b"a"], [b"a"]]
        await early.aclose()
        await late.aclose()

    with_log(tmp_path, scenario, env=clock.env)


def test_a_deleted_ledger_that_a_reader_has_open_is_read_to_its_end(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await two_ledgers(log)
        async with await log.open_ledger(0) as opened, await log.open_ledger(0) as not_opened:
            rows = await opened.table()
            await opened.read(rows[:1])
            await log.delete(0)
            assert messages(bytes(await opened.read(rows)), where="test") == [b"a", b"b"]
            with pytest.raises(TryAgain):
                await not_opened.table()

    with_log(tmp_path, scenario)


def test_a_cancelled_opening_frees_the_lock(tmp_path: Path) -> None:
    async def scenario() -> None:
        opening = asyncio.ensure_future(FolderLog.open(tmp_path))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await (await FolderLog.open(tmp_path)).aclose()

    asyncio.run(scenario())


def test_a_roll_whose_caller_is_cancelled_is_done_or_not(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        rolling = asyncio.ensure_future(log.roll(now_ms=NOW_MS))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rolling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling
        await log.append([b"b"], timestamp_ms=NOW_MS)
        assert await records_of(log) == [b"a", b"b"]

    with_log(tmp_path, scenario)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_destruction_that_failed_is_repeated_or_refused_and_never_taken_for_done(
    tmp_path: Path, is_closed: bool
) -> None:
    disk = FailingDisk()

    async def scenario() -> None:
        log = await FolderLog.open(tmp_path / "log", disk=disk)
        await two_ledgers(log)
        disk.fails = failing_at(1, name="remove")
        with pytest.raises(OffloadError):
            await log.destroy()
        assert list((tmp_path / "log").glob("*.segment"))
        if is_closed:
            await log.aclose()
            with pytest.raises(Misuse, match="closed"):
                await log.destroy()
            async with await FolderLog.open(tmp_path / "log") as again:
                await again.destroy()
        else:
            with pytest.raises(Conflict):
                await FolderLog.open(tmp_path / "log")
            await log.destroy()
            await log.destroy()
        assert not (tmp_path / "log").exists()

    asyncio.run(scenario())


def test_a_note_that_is_too_long_is_corrupt_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(log: FolderLog) -> None:
        with (tmp_path / "note.cursors").open("wb") as file:
            file.truncate(2**20 + 1)
        with pytest.raises(Corrupt, match="size of a note"):
            await log.load_note("cursors")

    with_log(tmp_path, scenario)


def test_an_epoch_that_no_writer_had_is_corrupt_and_is_not_kept(tmp_path: Path) -> None:
    with_log(tmp_path, two_ledgers)
    lock = tmp_path / LOCK_NAME
    damaged = json.dumps({"pid": 1, "epoch": 2**64 - 1}).encode().ljust(127) + b"\n"
    lock.write_bytes(damaged)

    with pytest.raises(Corrupt, match="leader epoch"):
        reads(tmp_path)

    assert lock.read_bytes() == damaged
