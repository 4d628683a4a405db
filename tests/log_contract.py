"""The tests that every `LedgerLog` must pass. Derive a class named `Test...`, and define `open`.

Each method claims one clause of the contract in `offload/contracts/log.py`. `records_of` reads a log by its
ledgers, and checks every chunk.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LedgerLog
from offload.formats.chunk import CHUNK_HEADER
from offload.formats.chunk_check import check_source
from offload.formats.entries import messages
from offload.ground.errors import Misuse, NotOffloaded, TryAgain

T = TypeVar("T")
NOW_MS = 1_700_000_000_000


async def records_in(handle: ReadHandle) -> list[bytes]:
    """Return the records of a ledger, all checked: chunks, offsets, timestamps, epochs."""
    rows = await handle.table()
    raw = await handle.read(rows)
    check_source(raw, rows, where=handle.where)
    assert (int(rows["offset"][0]), handle.ledger_id) == (handle.first_offset, handle.first_offset)
    assert int(rows["offset"][-1]) + int(rows["records"][-1]) == handle.next_offset
    assert (rows["timestamp_ms"][1:] >= rows["timestamp_ms"][:-1]).all()
    starts = (rows["position"] - rows["position"][0]).tolist()
    sizes = rows["size_bytes"].tolist()
    found: list[bytes] = []
    for start, size in zip(starts, sizes, strict=True):
        found += messages(raw[start : start + size], where=handle.where)
    return found


async def records_of(log: LedgerLog) -> list[bytes]:
    """Return all committed records of a log, whose ledgers must follow each other."""
    found: list[bytes] = []
    ledgers = log.ledgers
    for ledger, following in zip(ledgers, [*ledgers[1:], None], strict=True):
        assert ledger.is_sealed == (following is not None)
        assert following is None or (ledger.records > 0 and ledger.next_offset == following.first_offset)
        with suppress(NotOffloaded):
            async with await log.open_ledger(ledger.ledger_id) as handle:
                found += await records_in(handle)
    assert len(found) == log.committed_offset - log.first_offset
    assert log.next_offset == ledgers[-1].next_offset
    return found


async def epochs_of(log: LedgerLog) -> list[int]:
    """Return the epoch of each chunk."""
    found: list[int] = []
    for ledger in log.ledgers:
        with suppress(NotOffloaded):
            async with await log.open_ledger(ledger.ledger_id) as handle:
                rows = await handle.table()
                raw = await handle.read(rows)
                at = (rows["position"] - rows["position"][0]).tolist()
                found += [CHUNK_HEADER.unpack(raw, start)["epoch"] for start in at]
    return found


class LogContract:
    """Derive a class from it, and define `open`."""

    @abstractmethod
    async def open(self, folder: Path) -> LedgerLog:
        """Return a new, empty log, which may keep its files in `folder`."""

    def run(self, folder: Path, scenario: Callable[[LedgerLog], Awaitable[T]]) -> T:
        """Run a scenario on a new log."""

        async def opened() -> T:
            async with await self.open(folder / "log") as log:
                return await scenario(log)

        return asyncio.run(opened())

    def test_a_new_log_is_one_open_ledger_without_records(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            (ledger,) = log.ledgers
            assert (ledger.first_offset, ledger.next_offset, ledger.size_bytes) == (0, 0, 0)
            assert not ledger.is_sealed
            assert (log.first_offset, log.next_offset, log.committed_offset) == (0, 0, 0)
            with pytest.raises(NotOffloaded):
                await log.open_ledger(ledger.ledger_id)

        self.run(tmp_path, scenario)

    def test_records_get_consecutive_offsets_and_are_read_back(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            first = await log.append([b"one", b"", b"three"], timestamp_ms=NOW_MS)
            second = await log.append([b""], timestamp_ms=NOW_MS)
            assert (first, second, log.next_offset, log.committed_offset) == (0, 3, 4, 4)
            assert await records_of(log) == [b"one", b"", b"three", b""]
            assert set(await epochs_of(log)) == {log.epoch}

        self.run(tmp_path, scenario)

    def test_calls_at_the_same_time_get_offsets_in_the_order_of_their_begin(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            calls = [[b"%d.%d" % (call, number) for number in range(call % 4 + 1)] for call in range(200)]
            offsets = await asyncio.gather(*(log.append(call, timestamp_ms=NOW_MS) for call in calls))
            expected = [sum(map(len, calls[:number])) for number in range(len(calls))]
            assert offsets == expected
            assert await records_of(log) == [record for call in calls for record in call]

        self.run(tmp_path, scenario)

    def test_an_append_of_nothing_is_misuse(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            with pytest.raises(Misuse):
                await log.append([], timestamp_ms=NOW_MS)

        self.run(tmp_path, scenario)

    def test_a_record_that_is_too_large_is_misuse_and_leaves_nothing_of_its_call(
        self, tmp_path: Path
    ) -> None:
        async def scenario(log: LedgerLog) -> None:
            large = bytes(2**31)  # zeros that nobody touches take no memory
            refused = log.append([b"small", large], timestamp_ms=NOW_MS)
            kept = log.append([b"kept"], timestamp_ms=NOW_MS)
            outcomes = await asyncio.gather(refused, kept, return_exceptions=True)
            assert [type(outcomes[0]), outcomes[1]] == [Misuse, 0]
            assert await records_of(log) == [b"kept"]

        self.run(tmp_path, scenario)

    def test_timestamps_of_chunks_never_go_back(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            for late_ms in (0, -5000, 10, -1):
                await log.append([b"x"], timestamp_ms=NOW_MS + late_ms)
            async with await log.open_ledger(0) as handle:
                assert (await handle.table())["timestamp_ms"].tolist() == [
                    *(NOW_MS, NOW_MS, NOW_MS + 10, NOW_MS + 10)
                ]

        self.run(tmp_path, scenario)

    def test_a_roll_seals_the_open_ledger_and_an_empty_one_is_not_sealed(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            assert await log.roll(now_ms=NOW_MS) is None
            await log.append([b"a", b"b"], timestamp_ms=NOW_MS)
            sealed = await log.roll(now_ms=NOW_MS + 7)
            assert sealed is not None
            assert (sealed.first_offset, sealed.next_offset, sealed.closed_ms) == (0, 2, NOW_MS + 7)
            assert await log.roll(now_ms=NOW_MS) is None
            assert await log.append([b"c"], timestamp_ms=NOW_MS) == 2
            assert log.ledgers[0] == sealed
            assert log.ledgers[1].ledger_id > sealed.ledger_id
            assert await records_of(log) == [b"a", b"b", b"c"]

        self.run(tmp_path, scenario)

    def test_a_ledger_has_the_size_of_its_chunks(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.append([b"a" * 100], timestamp_ms=NOW_MS)
            await log.append([b"b" * 50], timestamp_ms=NOW_MS)
            async with await log.open_ledger(0) as handle:
                size_bytes = int((await handle.table())["size_bytes"].sum())
            open_size = log.ledgers[0].size_bytes
            sealed = await log.roll(now_ms=NOW_MS)
            assert sealed is not None
            assert open_size == sealed.size_bytes == size_bytes

        self.run(tmp_path, scenario)

    def test_a_snapshot_does_not_move(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.append([b"a"], timestamp_ms=NOW_MS)
            async with await log.open_ledger(0) as handle:
                await log.append([b"b"], timestamp_ms=NOW_MS)
                assert await records_in(handle) == [b"a"]
                await log.roll(now_ms=NOW_MS)
                await log.append([b"c"], timestamp_ms=NOW_MS)
                assert await records_in(handle) == [b"a"]
                await log.delete(0)
                with suppress(TryAgain):
                    assert await records_in(handle) == [b"a"]

        self.run(tmp_path, scenario)

    def test_a_snapshot_of_a_sealed_ledger_that_is_deleted_before_it_is_read_may_be_tried_again(
        self, tmp_path: Path
    ) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.append([b"a"], timestamp_ms=NOW_MS)
            await log.roll(now_ms=NOW_MS)
            async with await log.open_ledger(0) as handle:
                await log.delete(0)
                with suppress(TryAgain):
                    assert await records_in(handle) == [b"a"]
            with pytest.raises(NotOffloaded):
                await log.open_ledger(0)

        self.run(tmp_path, scenario)

    def test_only_the_oldest_sealed_ledger_can_be_deleted(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            for body in (b"a", b"b", b"c"):
                await log.append([body], timestamp_ms=NOW_MS)
                await log.roll(now_ms=NOW_MS)
            first, second, third, last = (each.ledger_id for each in log.ledgers)
            for refused in (second, third, last):
                with pytest.raises(Misuse):
                    await log.delete(refused)
            await log.delete(first)
            await log.delete(first)
            assert (log.first_offset, await records_of(log)) == (1, [b"b", b"c"])
            await log.delete(second)
            await log.delete(third)
            with pytest.raises(Misuse):
                await log.delete(last)
            assert (log.first_offset, log.next_offset) == (3, 3)
            assert await log.append([b"d"], timestamp_ms=NOW_MS) == 3

        self.run(tmp_path, scenario)

    def test_only_a_log_without_records_can_begin_elsewhere_and_not_before_its_end(
        self, tmp_path: Path
    ) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.begin(500)
            assert (log.first_offset, log.next_offset, log.committed_offset) == (500, 500, 500)
            assert await log.append([b"a"], timestamp_ms=NOW_MS) == 500
            with pytest.raises(Misuse):
                await log.begin(600)
            await log.roll(now_ms=NOW_MS)
            await log.delete(log.ledgers[0].ledger_id)
            with pytest.raises(Misuse):
                await log.begin(500)
            await log.begin(501)
            await log.begin(600)
            assert (await log.append([b"b"], timestamp_ms=NOW_MS), await records_of(log)) == (600, [b"b"])

        self.run(tmp_path, scenario)

    @pytest.mark.parametrize("offset", [0, 500])
    def test_a_log_that_begins_behind_others_writes_above_their_epoch(
        self, tmp_path: Path, offset: int
    ) -> None:
        async def scenario(log: LedgerLog) -> None:
            before = log.epoch
            await log.begin(offset, epoch=before)
            assert log.epoch == before
            await log.begin(offset, epoch=before + 7)
            assert log.epoch == before + 7
            assert await log.append([b"a"], timestamp_ms=NOW_MS) == offset
            assert set(await epochs_of(log)) == {before + 7}

        self.run(tmp_path, scenario)

    @pytest.mark.parametrize("offset", [-1, 2**64])
    def test_a_log_begins_only_at_an_offset(self, tmp_path: Path, offset: int) -> None:
        async def scenario(log: LedgerLog) -> None:
            with pytest.raises(Misuse):
                await log.begin(offset)

        self.run(tmp_path, scenario)

    def test_notes_are_kept_by_name_and_replaced(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            assert await log.load_note("cursors") is None
            await log.save_note("cursors", b"one")
            await log.save_note("other-name", b"")
            await log.save_note("cursors", bytes(2**20))
            assert await log.load_note("cursors") == bytes(2**20)
            assert await log.load_note("other-name") == b""

        self.run(tmp_path, scenario)

    def test_a_wrong_name_and_a_large_note_are_misuse(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            for name in ("", "A", "../up", "a.b", "a\n"):
                with pytest.raises(Misuse):
                    await log.save_note(name, b"x")
                with pytest.raises(Misuse):
                    await log.load_note(name)
            with pytest.raises(Misuse):
                await log.save_note("cursors", bytes(2**20 + 1))
            assert await log.load_note("cursors") is None

        self.run(tmp_path, scenario)

    def test_a_cancelled_append_is_written_or_not_and_others_go_on(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            tasks = [
                asyncio.ensure_future(log.append([b"%d" % number], timestamp_ms=NOW_MS))
                for number in range(20)
            ]
            for moment, task in enumerate(tasks[::2]):
                if moment % 3 == 0:
                    await asyncio.sleep(0)
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            kept = {
                offset: b"%d" % number for number, offset in enumerate(outcomes) if isinstance(offset, int)
            }
            assert len(kept) >= 10
            found = await records_of(log)
            assert {offset: found[offset] for offset in kept} == kept
            assert found == sorted(found, key=int)
            assert await log.append([b"last"], timestamp_ms=NOW_MS) == len(found)

        self.run(tmp_path, scenario)

    def test_appends_that_wait_when_the_log_is_closed_are_written_or_misuse(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            tasks = [asyncio.ensure_future(log.append([b"x" * 1000], timestamp_ms=NOW_MS)) for _ in range(50)]
            await asyncio.sleep(0)
            await log.aclose()
            async with asyncio.timeout(60):
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            written = [each for each in outcomes if isinstance(each, int)]
            assert written == [*range(len(written))]
            assert all(isinstance(each, int | Misuse) for each in outcomes)

        self.run(tmp_path, scenario)

    def test_a_closed_log_refuses_everything_and_closes_again(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.append([b"x"], timestamp_ms=NOW_MS)
            await log.aclose()
            await log.aclose()
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: log.append([b"x"], timestamp_ms=NOW_MS),
                lambda: log.roll(now_ms=NOW_MS),
                lambda: log.open_ledger(0),
                lambda: log.delete(0),
                lambda: log.begin(1),
                lambda: log.load_note("a"),
                lambda: log.save_note("a", b""),
            ]
            for call in calls:
                with pytest.raises(Misuse):
                    await call()

        self.run(tmp_path, scenario)

    def test_a_destroyed_log_is_gone_and_a_new_one_begins_at_zero(self, tmp_path: Path) -> None:
        async def scenario(log: LedgerLog) -> None:
            await log.append([b"x"], timestamp_ms=NOW_MS)
            await log.roll(now_ms=NOW_MS)
            await log.append([b"y"], timestamp_ms=NOW_MS)
            await log.save_note("cursors", b"x")
            await log.destroy()
            await log.destroy()
            with pytest.raises(Misuse):
                await log.append([b"x"], timestamp_ms=NOW_MS)
            async with await self.open(tmp_path / "log") as new:
                assert (new.first_offset, new.next_offset) == (0, 0)
                assert await new.load_note("cursors") is None

        self.run(tmp_path, scenario)
