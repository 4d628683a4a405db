"""Crashes and failing disks: what is acknowledged stays, and what failed is gone.

`Life` is a life of a log with every kind of call. It ends at each call of the disk in turn: the process is
killed in the middle of it, or the power is cut there. Then the log is opened again, or that is also cut off.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN, few, keeping
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_contract import NOW_MS, epochs_of, records_of
from log_disks import CHANGES, CountingDisk, FailingDisk, Killed, KilledDisk, PowerDisk, failing_at

from offload.ground.errors import Corrupt, Misuse, NoSpace, OffloadError
from offload.local.recovery import recover
from offload.log import appended
from offload.log.folder_log import Durability, FolderLog


class Life:
    """What callers of a log know of it."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        """All records that were appended, in the order of their offsets; those of a call under way too."""
        self.acknowledged = 0
        self.sealed: set[int] = set()
        self.first_offset = self.deleting = 0
        self.note: bytes | None = None
        self.new_note: bytes | None = None

    async def append(self, log: FolderLog, *sizes: int) -> None:
        # The same offsets may have had other records that failed: these must differ from them.
        new = [b"%d." % random.getrandbits(32) + bytes(size) for size in sizes]
        self.records = self.records[: log.next_offset] + new
        assert await log.append(new, timestamp_ms=NOW_MS) == len(self.records) - len(new)
        self.acknowledged = len(self.records)

    async def roll(self, log: FolderLog) -> None:
        if sealed := await log.roll(now_ms=NOW_MS):
            self.sealed.add(sealed.ledger_id)

    async def delete(self, log: FolderLog) -> None:
        oldest = log.ledgers[0]
        self.deleting = oldest.next_offset
        self.sealed.discard(oldest.ledger_id)
        await log.delete(oldest.ledger_id)
        self.first_offset = self.deleting

    async def save(self, log: FolderLog, note: bytes) -> None:
        self.new_note = note
        await log.save_note("cursors", note)
        self.note = note

    async def live(self, log: FolderLog) -> None:
        """Live the whole life."""
        await self.append(log, 0)
        await self.append(log, 10, 500, 500, 10)
        await self.save(log, b"first")
        await self.roll(log)
        await self.append(log, 10)
        await self.roll(log)
        await self.append(log, 300, 300, 300)
        await self.delete(log)
        await self.save(log, b"second")
        await self.append(log, 1)

    async def check(self, log: FolderLog) -> None:
        """Assert that a log has what was acknowledged, and nothing that was not appended."""
        assert log.first_offset in (self.first_offset, self.deleting)
        assert self.acknowledged <= log.next_offset <= len(self.records)
        assert await records_of(log) == self.records[log.first_offset : log.committed_offset]
        assert self.sealed <= {ledger.ledger_id for ledger in log.ledgers if ledger.is_sealed}
        assert await log.load_note("cursors") in (self.note, self.new_note)

    async def check_and_go_on(self, folder: Path) -> None:
        """Open a log, assert that it has what it must have, and that it takes appends."""
        async with await FolderLog.open(folder) as log:
            await self.check(log)
            await self.append(log, 5)
            await self.check(log)
        assert recover(folder, stream="x").damage is None


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks in one append."""
    monkeypatch.setattr(appended, "CHUNK_SIZE_BYTES", 600)


async def lived(folder: Path, disk: CountingDisk, **options: Any) -> Life:
    """Return a life that ended when the disk did."""
    life = Life()
    try:
        log = await FolderLog.open(folder, disk=disk, **options)
        try:
            await life.live(log)
        finally:
            await log.aclose()
    except Killed:
        pass
    except OffloadError as error:
        # The disk died in a sync of the background, and the next call has its error.
        if not isinstance(error.__cause__, OffloadError) or not isinstance(error.__cause__.__cause__, Killed):
            raise
    return life


def calls_of(scenario: Callable[[Path, CountingDisk], Any], folder: Path) -> int:
    disk = CountingDisk()
    asyncio.run(scenario(folder, disk))
    return len(disk.calls)


LIFE = range(70)
"""More calls of the disk than a life has. `test_a_life_ends_within_the_tested_moments` holds it to that."""


def test_a_life_ends_within_the_tested_moments(tmp_path: Path) -> None:
    disk = CountingDisk()
    life = asyncio.run(lived(tmp_path / "log", disk))

    assert len(LIFE) - 20 <= len(disk.calls) <= len(LIFE)
    assert set(disk.calls) == set(CHANGES) - {"cut"}  # nothing failed
    assert (life.first_offset, life.acknowledged, life.note) == (5, 10, b"second")


@few("durabilities, each with each part of a torn write; make test has each durability with one part", 5)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("part", [0, 0.5, 0.97, 1])
def test_a_log_killed_at_any_call_keeps_what_it_acknowledged(
    tmp_path: Path, part: float, durability: Durability
) -> None:
    async def scenario() -> None:
        for left in LIFE:
            folder = tmp_path / str(left)
            life = await lived(folder, KilledDisk(left, part=part), durability=durability)
            shutil.copytree(folder, folder.with_suffix(".copy"))  # the lock stays behind
            if durability is Durability.ALWAYS:
                await lacks_what_was_acknowledged(folder, life)
            await life.check_and_go_on(folder.with_suffix(".copy"))

    asyncio.run(scenario())


async def lacks_what_was_acknowledged(folder: Path, life: Life) -> None:
    """Assert that a log without the index record of its last acknowledged chunk is not opened."""
    damaged = shutil.copytree(folder, folder.with_suffix(".damaged"))
    newest = max(damaged.glob("*.segment"), default=None)
    found = recover(damaged, stream="x").newest if newest else None
    # An empty pair behind it seals a ledger, and proves its end by itself.
    if found is None or found.pair.segment != newest or found.last.next_offset != life.acknowledged:
        return
    os.truncate(found.pair.index, 8 + 29 * (len(found.rows) - 1))
    with pytest.raises(Corrupt):
        await FolderLog.open(damaged)


@pytest.mark.parametrize("left", keeping(set(LIFE[::6]), LIFE, "some moments are kept"))
def test_a_repair_killed_at_any_call_is_repaired_by_the_next(tmp_path: Path, left: int) -> None:
    async def scenario() -> None:
        life = await lived(tmp_path / "log", KilledDisk(left))
        for repair_left in range(12):
            folder = tmp_path / str(repair_left)
            shutil.copytree(tmp_path / "log", folder)
            with suppress(Killed):
                await (await FolderLog.open(folder, disk=KilledDisk(repair_left))).aclose()
            again = shutil.copytree(folder, folder.with_suffix(".copy"))
            known = Life()
            known.__dict__.update(life.__dict__)
            await known.check_and_go_on(again)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", keeping({0, 1}, range(30), "two seeds are kept"))
def test_a_power_cut_at_any_call_takes_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        for left in LIFE:
            folder, draw = tmp_path / str(left), random.Random(seed * 1000 + left)
            disk = PowerDisk(folder, left, part=draw.random())
            life = await lived(folder, disk)
            disk.after_power_cut(folder.with_suffix(".cut"), draw)
            await life.check_and_go_on(folder.with_suffix(".cut"))

    asyncio.run(scenario())


class TakesOne(random.Random):
    """A power cut that takes one page of those that were not synced, and no name."""

    def __init__(self, page: int) -> None:
        super().__init__()
        self.left = page

    def choice(self, seq: Any) -> Any:
        return seq[-1]

    def random(self) -> float:
        self.left -= 1
        return 0.0 if self.left == -1 else 1.0


def test_a_power_cut_in_a_batch_of_several_chunks_leaves_no_hole(tmp_path: Path) -> None:
    """The index records and the last chunk may be durable, and a page of the first chunk may be lost."""

    async def scenario() -> None:
        for calls in range(5):
            disk, life = PowerDisk(tmp_path / str(calls), part=1.0), Life()
            log = await FolderLog.open(disk.folder, disk=disk)
            await life.append(log, 0)
            disk.left = calls
            with suppress(Killed, OffloadError):
                await life.append(log, 10, 500, 500, 10)
            for page in range(sum(len(file.changes) for file in disk.now.values())):
                cut = tmp_path / f"{calls}-{page}"
                disk.after_power_cut(cut, TakesOne(page))
                async with await FolderLog.open(cut) as again:
                    await life.check(again)
            disk.left = float("inf")
            await log.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.OS])
def test_a_power_cut_takes_no_sealed_ledger_and_no_epoch(tmp_path: Path, durability: Durability) -> None:
    async def scenario() -> None:
        for seed in range(20):
            folder, draw = tmp_path / str(seed), random.Random(seed)
            disk = PowerDisk(folder)
            log = await FolderLog.open(folder, disk=disk, durability=durability)
            life = Life()
            await life.append(log, 10)
            await life.append(log, 10)
            await life.roll(log)
            sealed = log.committed_offset
            await life.append(log, 10)
            assert log.committed_offset == sealed + (durability is Durability.OS)
            disk.after_power_cut(folder.with_suffix(".cut"), draw)
            async with await FolderLog.open(folder.with_suffix(".cut")) as again:
                life.acknowledged = sealed
                await life.check(again)
                # The lost chunk had epoch 1.
                assert again.epoch == 2
            await log.aclose()

    asyncio.run(scenario())


def test_a_log_that_is_opened_makes_durable_what_it_shows(tmp_path: Path) -> None:
    """A process under OS was killed. The next one commits what it finds, and then the power is cut."""

    async def scenario() -> None:
        for seed in range(5):
            folder = tmp_path / str(seed)
            disk = PowerDisk(folder)
            async with await FolderLog.open(folder, disk=disk, durability=Durability.OS) as log:
                await log.append([b"a"], timestamp_ms=NOW_MS)
            async with await FolderLog.open(folder, disk=disk) as log:
                assert log.committed_offset == 1
                disk.after_power_cut(folder.with_suffix(".cut"), random.Random(seed))
            async with await FolderLog.open(folder.with_suffix(".cut")) as log:
                assert await records_of(log) == [b"a"]

    asyncio.run(scenario())


def test_a_power_cut_that_takes_all_chunks_of_a_writer_does_not_take_its_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "log"
        async with await FolderLog.open(folder) as log:
            await log.append([b"a"], timestamp_ms=NOW_MS)
        disk = PowerDisk(folder)
        async with await FolderLog.open(folder, disk=disk, durability=Durability.OS) as log:
            assert log.epoch == 2
            await log.append([b"lost"], timestamp_ms=NOW_MS)
        for seed in range(5):
            cut = tmp_path / str(seed)
            disk.after_power_cut(cut, random.Random(seed))
            async with await FolderLog.open(cut) as log:
                assert log.epoch == 3

    asyncio.run(scenario())


# Disks that fail


@pytest.mark.parametrize("sizes", [(10,), (500, 500)], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("number", [0, 1], ids=["segment", "index"])
def test_a_full_disk_refuses_an_append_and_the_log_goes_on(
    tmp_path: Path, number: int, sizes: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        life = Life()
        async with await FolderLog.open(tmp_path, disk=disk) as log:
            await life.append(log, 5)
            before = files(tmp_path)
            disk.fails = failing_at(number, error=errno.ENOSPC, name="write")
            with pytest.raises(NoSpace):
                await life.append(log, *sizes)
            assert (log.next_offset, files(tmp_path)) == (1, before)
            await life.append(log, 7, 7)
            await life.check(log)
        await life.check_and_go_on(tmp_path)

    asyncio.run(scenario())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("sizes", [(10,), (500, 500)], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_failed_sync_breaks_the_log_until_it_is_opened_again(
    tmp_path: Path, number: int, sizes: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        life = Life()
        log = await FolderLog.open(tmp_path, disk=disk)
        await life.append(log, 5)
        disk.fails = failing_at(number, name="sync")
        with pytest.raises(OffloadError, match="Input/output error"):
            await life.append(log, *sizes)
        texts = set()
        for _ in range(2):
            with pytest.raises(OffloadError) as caught:
                await log.append([b"x"], timestamp_ms=NOW_MS)
            texts.add(str(caught.value))
        with pytest.raises(OffloadError):
            await log.roll(now_ms=NOW_MS)
        assert "takes no appends until it is opened again" in texts.pop()
        assert not texts
        assert (log.next_offset, await records_of(log)) == (1, life.records[:1])
        await log.aclose()
        del life.records[1:]  # the failed append was cut off
        await life.check_and_go_on(tmp_path)

    asyncio.run(scenario())


class RefusingPowerDisk(PowerDisk):
    """Refuses to write more than one record to an index, while it is told to."""

    refuses = False

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        if self.refuses and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".index"):
            super().write(descriptor, position, [b"".join(parts)[:29]])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, position, parts)


def test_a_failed_append_does_not_come_back_after_a_power_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        for seed in range(10):
            folder = tmp_path / str(seed)
            disk = RefusingPowerDisk(folder)
            log = await FolderLog.open(folder, disk=disk)
            await log.append([b"kept"], timestamp_ms=NOW_MS)
            disk.refuses = True
            with pytest.raises(NoSpace):
                await log.append([bytes(500), bytes(500)], timestamp_ms=NOW_MS)
            disk.after_power_cut(folder.with_suffix(".cut"), random.Random(seed))
            async with await FolderLog.open(folder.with_suffix(".cut")) as again:
                assert await records_of(again) == [b"kept"]
            await log.aclose()

    asyncio.run(scenario())


def test_a_write_that_cannot_be_cut_off_breaks_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        life = Life()
        log = await FolderLog.open(tmp_path, disk=disk)
        await life.append(log, 5)
        disk.fails = lambda name: errno.ENOSPC if name in {"write", "cut"} else 0
        with pytest.raises(NoSpace):
            await life.append(log, 5)
        disk.fails = lambda name: 0
        with pytest.raises(NoSpace, match="until it is opened again"):
            await life.append(log, 5)
        await log.aclose()
        await life.check_and_go_on(tmp_path)

    asyncio.run(scenario())


def test_a_failed_sync_in_the_background_breaks_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        log = await FolderLog.open(
            tmp_path, disk=disk, durability=Durability.INTERVAL, interval_seconds=0.001
        )
        disk.fails = failing_at(0, name="sync")
        assert await log.append([b"x"], timestamp_ms=NOW_MS) == 0
        async with asyncio.timeout(60):
            while disk.calls[-1] != "sync":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(OffloadError, match="until it is opened again"):
            await log.append([b"x"], timestamp_ms=NOW_MS)
        assert log.committed_offset == 0
        await log.aclose()

    asyncio.run(scenario())


def test_a_ledger_whose_end_cannot_be_synced_breaks_the_log(tmp_path: Path) -> None:
    """To seal it once more would not show what the kernel has dropped."""

    async def scenario() -> None:
        disk = FailingDisk()
        log = await FolderLog.open(tmp_path, disk=disk)
        await log.append([b"a"], timestamp_ms=NOW_MS)
        disk.fails = failing_at(0, name="set_time")
        with pytest.raises(OffloadError, match="Input/output error"):
            await log.roll(now_ms=NOW_MS)
        for call in (lambda: log.append([b"b"], timestamp_ms=NOW_MS), lambda: log.roll(now_ms=NOW_MS)):
            with pytest.raises(OffloadError, match="until it is opened again"):
                await call()
        await log.aclose()
        async with await FolderLog.open(tmp_path) as again:
            assert await records_of(again) == [b"a"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "number"), [("create", 1), ("write", 1), ("sync", 2), ("sync_folder", 0)])
def test_a_roll_that_failed_is_undone_and_the_log_goes_on(tmp_path: Path, name: str, number: int) -> None:
    """The disk is full in the middle of the new pair. Nothing is left of it."""

    async def scenario() -> None:
        disk = FailingDisk()
        async with await FolderLog.open(tmp_path, disk=disk, durability=Durability.OS) as log:
            await log.append([b"a"], timestamp_ms=NOW_MS)
            before = set(files(tmp_path))
            disk.fails = failing_at(number, error=errno.ENOSPC, name=name)
            with pytest.raises(NoSpace):
                await log.roll(now_ms=NOW_MS)
            assert set(files(tmp_path)) == before
            assert await log.append([b"b"], timestamp_ms=NOW_MS) == 1
            assert await log.roll(now_ms=NOW_MS) is not None
            assert await log.append([b"c"], timestamp_ms=NOW_MS) == 2
        async with await FolderLog.open(tmp_path) as again:
            assert await records_of(again) == [b"a", b"b", b"c"]

    asyncio.run(scenario())


def test_a_roll_that_can_neither_be_done_nor_undone_breaks_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        log = await FolderLog.open(tmp_path, disk=disk)
        await log.append([b"a"], timestamp_ms=NOW_MS)
        disk.fails = lambda name: errno.ENOSPC if name in {"sync_folder", "remove"} else 0
        with pytest.raises(NoSpace):
            await log.roll(now_ms=NOW_MS)
        disk.fails = lambda name: 0
        with pytest.raises(NoSpace, match="until it is opened again"):
            await log.append([b"b"], timestamp_ms=NOW_MS)
        await log.aclose()
        async with await FolderLog.open(tmp_path) as again:
            assert await records_of(again) == [b"a"]

    asyncio.run(scenario())


@few("errors of a disk at any call; make test has them with one durability", 3)
@pytest.mark.parametrize("durability", list(Durability))
def test_an_error_at_any_call_takes_nothing_that_was_acknowledged(
    tmp_path: Path, durability: Durability
) -> None:
    """Each step of a life is tried again once after its error, as a manager of the log would."""

    async def scenario() -> None:
        for number in LIFE:
            folder, disk, life = tmp_path / str(number), FailingDisk(), Life()
            log = await FolderLog.open(folder, disk=disk, durability=durability)
            disk.fails = failing_at(number, error=errno.ENOSPC)
            steps: list[Callable[[], Any]] = [
                lambda life=life, log=log: life.append(log, 10, 500, 500),
                lambda life=life, log=log: life.roll(log),
                lambda life=life, log=log: life.append(log, 10),
                lambda life=life, log=log: life.save(log, b"x"),
                lambda life=life, log=log: life.roll(log),
                lambda life=life, log=log: life.append(log, 10),
                lambda life=life, log=log: life.delete(log),
                lambda life=life, log=log: life.append(log, 10),
            ]
            for step in steps:
                for _ in range(2):
                    try:
                        await step()
                        break
                    except (NoSpace, Misuse):  # nothing to delete, because nothing was sealed
                        assert log.next_offset >= life.acknowledged
            await life.check(log)
            with suppress(NoSpace):  # the last sync
                await log.aclose()
            await life.check_and_go_on(folder)

    asyncio.run(scenario())


def test_a_file_that_may_not_grow_refuses_an_append_and_the_log_goes_on(tmp_path: Path) -> None:
    """The kernel writes a part of the bytes first."""

    async def scenario() -> None:
        life = Life()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        async with await FolderLog.open(tmp_path) as log:
            await life.append(log, 5)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
            try:
                with pytest.raises(OffloadError, match="File too large"):
                    await life.append(log, 300_000)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert (tmp_path / f"{0:020}.segment").stat().st_size < 200
            await life.append(log, 300_000)
            await life.check(log)
        await life.check_and_go_on(tmp_path)

    asyncio.run(scenario())


def test_a_deletion_killed_at_any_call_leaves_a_segment_without_an_index(tmp_path: Path) -> None:
    """Osiris removes such a segment. It does not expect an index without its segment before other pairs."""

    async def scenario() -> None:
        partly = []
        for left in range(5):
            folder = tmp_path / str(left)
            opening = len((await lived_once(folder)).calls)
            with suppress(Killed):
                log = await FolderLog.open(folder, disk=KilledDisk(opening + left))
                try:
                    await log.delete(0)
                finally:
                    await log.aclose()
            partly.append(sorted(path.suffix for path in folder.glob(f"{0:020}.*")))
        # First the lock notes, durably, that the ledger is no longer needed.
        assert partly == [*[[".index", ".segment"]] * 3, [".segment"], []]

    asyncio.run(scenario())


async def lived_once(folder: Path) -> CountingDisk:
    """Make a log with two ledgers, and return a disk that counted one opening of it."""
    async with await FolderLog.open(folder) as log:
        await log.append([b"a"], timestamp_ms=NOW_MS)
        await log.roll(now_ms=NOW_MS)
    counted = CountingDisk()
    await (await FolderLog.open(folder, disk=counted)).aclose()
    return counted


def test_a_begin_killed_at_any_call_leaves_an_empty_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        for left in range(20):
            folder = tmp_path / str(left)
            await (await FolderLog.open(folder)).aclose()
            with suppress(Killed):
                log = await FolderLog.open(folder, disk=KilledDisk(left))
                try:
                    await log.begin(700)
                finally:
                    await log.aclose()
            again = shutil.copytree(folder, folder.with_suffix(".copy"))
            async with await FolderLog.open(again) as found:
                assert found.first_offset == found.next_offset
                assert found.next_offset in (0, 700)
                await found.begin(700)
                assert await found.append([b"x"], timestamp_ms=NOW_MS) == 700

    asyncio.run(scenario())


# A walk


class Walk(RuleBasedStateMachine):
    """Calls in any order, and crashes at any call of the disk, against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.scratch = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.life = Life()
        self.epochs: list[int] = []
        self.count = 0
        self.log: FolderLog | None = None

    @initialize(offset=st.sampled_from([0, 0, 4000]))
    def begin(self, offset: int) -> None:
        self.open()
        if offset:
            self.life.records = [b""] * offset
            self.life.acknowledged = self.life.first_offset = self.life.deleting = offset
            self.runner.run(self.log.begin(offset))

    def open(self) -> None:
        self.disk = PowerDisk(self.folder)
        self.log = self.runner.run(
            FolderLog.open(self.folder, disk=self.disk, roll_chunks=6, roll_size_bytes=3000)
        )

    @property
    def folder(self) -> Path:
        return Path(self.scratch.name) / str(self.count)

    @rule(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=6))
    def append(self, sizes: list[int]) -> None:
        self.runner.run(self.life.append(self.log, *sizes))

    @rule(calls=st.lists(st.integers(1, 5), min_size=2, max_size=10))
    def append_together(self, calls: list[int]) -> None:
        bodies = [
            [b"%d/%d" % (number, record) for record in range(count)] for number, count in enumerate(calls)
        ]

        async def together() -> None:
            await asyncio.gather(*(self.log.append(each, timestamp_ms=NOW_MS) for each in bodies))

        self.life.records += [body for call in bodies for body in call]
        self.runner.run(together())
        self.life.acknowledged = len(self.life.records)

    @rule()
    def roll(self) -> None:
        self.runner.run(self.life.roll(self.log))

    @precondition(lambda self: self.log is not None and len(self.log.ledgers) > 1)
    @rule()
    def delete(self) -> None:
        self.runner.run(self.life.delete(self.log))

    @rule(note=st.binary(max_size=50))
    def save(self, note: bytes) -> None:
        self.runner.run(self.life.save(self.log, note))

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.log.aclose())
        self.open()

    @rule(
        left=st.integers(0, 12),
        part=st.floats(0, 1),
        seed=st.none() | st.integers(0, 2**32),
        sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4),
        last=st.sampled_from(["append", "roll", "delete", "save"]),
    )
    def crash(self, left: int, part: float, seed: int | None, sizes: list[int], last: str) -> None:
        """Kill the process, or cut the power if there is a seed, in or after one more call."""
        self.disk.left, self.disk.part = left, part
        with suppress(Killed, Misuse):
            if last == "append":
                self.append(sizes)
            elif last == "roll":
                self.roll()
            elif last == "save":
                self.save(b"%d" % left)
            elif len(self.log.ledgers) > 1:
                self.delete()
        self.disk.left = -1
        old = self.folder
        with suppress(Killed):
            self.runner.run(self.log.aclose())
        self.count += 1
        if seed is None:
            shutil.copytree(old, self.folder)
        else:
            self.disk.after_power_cut(self.folder, random.Random(seed))
        self.open()
        self.runner.run(self.life.check(self.log))
        self.life.acknowledged = self.log.next_offset
        del self.life.records[self.log.next_offset :]
        self.life.first_offset = self.life.deleting = self.log.first_offset
        self.life.note = self.life.new_note = self.runner.run(self.log.load_note("cursors"))

    @invariant()
    def the_log_has_what_was_acknowledged(self) -> None:
        if self.log is not None:
            self.runner.run(self.life.check(self.log))
            epochs = self.runner.run(epochs_of(self.log))
            assert epochs == sorted(epochs)
            assert not epochs or epochs[-1] <= self.log.epoch

    def teardown(self) -> None:
        if self.log is not None:
            self.runner.run(self.log.aclose())
        self.runner.close()
        self.scratch.cleanup()


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=40 if CAMPAIGN else 6, stateful_step_count=30)
