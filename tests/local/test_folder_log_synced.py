"""What a log noted as synced must be there at its next opening. What lies behind that may be torn.

Each test closes a log, or copies its folder while it is open, as a kill leaves it. Then files lose a part.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from log_contract import NOW_MS, records_of
from log_disks import CountingDisk, FailingDisk, Killed, KilledDisk, failing_at

from offload.ground.errors import Corrupt, OffloadError
from offload.log.folder_log import Durability, FolderLog
from offload.log.lock import LOCK_NAME

BODIES = [b"acknowledged %d" % number for number in range(6)]


async def appended(folder: Path, bodies: list[bytes] = BODIES, **options: Any) -> None:
    """Append the records, one chunk for each, and close the log."""
    async with await FolderLog.open(folder, **options) as log:
        for body in bodies:
            await log.append([body], timestamp_ms=NOW_MS)


async def opens(folder: Path) -> list[bytes]:
    async with await FolderLog.open(folder) as log:
        return await records_of(log)


def run(work: Awaitable[Any]) -> Any:
    async def done() -> Any:
        return await work

    return asyncio.run(done())


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def cut(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SEGMENT, INDEX = f"{0:020}.segment", f"{0:020}.index"

LOSSES: dict[str, Callable[[Path], object]] = {
    "a bit of the last chunk": lambda folder: flip(folder / SEGMENT, -3),
    "a bit of the last header": lambda folder: flip(folder / SEGMENT, -(4 + len(BODIES[-1])) - 20),
    "a bit of the last index record": lambda folder: flip(folder / INDEX, -10),
    "the end of the segment": lambda folder: cut(folder / SEGMENT, -1),
    "the last index record": lambda folder: cut(folder / INDEX, -29),
    "three index records": lambda folder: cut(folder / INDEX, -29 * 3),
    "every record": lambda folder: (cut(folder / INDEX, 8), cut(folder / SEGMENT, 8)),
    "both files": lambda folder: [(folder / name).unlink() for name in (SEGMENT, INDEX)],
}


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_a_closed_log_is_corrupt_and_no_file_is_changed(
    tmp_path: Path, loss: str, durability: Durability
) -> None:
    run(appended(tmp_path, durability=durability))
    LOSSES[loss](tmp_path)
    before = content(tmp_path)

    with pytest.raises(Corrupt, match="offset 6, which were synced") as caught:
        run(opens(tmp_path))

    assert content(tmp_path) == before
    # The command in the error accepts the loss, and nothing else does.
    subprocess.run(str(caught.value).rpartition("accept the loss: ")[2], shell=True, check=True)
    left = run(opens(tmp_path))
    assert left == BODIES[: len(left)] != BODIES
    run(appended(tmp_path, [b"another"]))
    assert run(opens(tmp_path)) == [*left, b"another"]


@pytest.mark.parametrize(
    ("durability", "written", "synced"),
    [(Durability.ALWAYS, 4, 4), (Durability.INTERVAL, 3, 3), (Durability.OS, 4, 2)],
)
def test_a_killed_log_must_have_what_was_synced_and_no_more(
    tmp_path: Path, durability: Durability, written: int, synced: int
) -> None:
    """The note of an earlier close holds for the records below it, and for none of those behind it."""
    log_folder, killed, lossy = (tmp_path / name for name in ("log", "killed", "lossy"))

    async def scenario() -> None:
        await appended(log_folder, BODIES[:2])
        async with await FolderLog.open(log_folder, durability=durability, interval_seconds=0.001) as log:
            for body in BODIES[2:written]:
                await log.append([body], timestamp_ms=NOW_MS)
            while log.committed_offset < written:
                await log.load_note("x")  # takes turns with the sync in the background
            await log.load_note("x")
            shutil.copytree(log_folder, killed)

    asyncio.run(scenario())
    for kept in range(1, written):
        shutil.rmtree(lossy, ignore_errors=True)
        shutil.copytree(killed, lossy)
        cut(lossy / INDEX, 8 + 29 * kept)
        if kept < synced:
            with pytest.raises(Corrupt, match=f"offset {synced}, which were synced"):
                run(opens(lossy))
        else:
            assert run(opens(lossy)) == BODIES[:kept]
    assert run(opens(killed)) == BODIES[:written]


def test_what_was_never_acknowledged_is_still_removed(tmp_path: Path) -> None:
    run(appended(tmp_path))
    whole = content(tmp_path)
    for name in (SEGMENT, INDEX):
        (tmp_path / name).write_bytes(whole[name] + b"torn")

    assert run(opens(tmp_path)) == BODIES
    assert (tmp_path / SEGMENT).read_bytes() == whole[SEGMENT]


def test_a_log_of_an_older_version_is_repaired_as_before(tmp_path: Path) -> None:
    run(appended(tmp_path))
    cut(tmp_path / LOCK_NAME, 128)
    flip(tmp_path / SEGMENT, -3)

    assert run(opens(tmp_path)) == BODIES[:-1]
    # From now on it knows.
    flip(tmp_path / SEGMENT, -3)
    with pytest.raises(Corrupt, match="offset 5, which were synced"):
        run(opens(tmp_path))


def test_older_files_below_a_newer_lock_are_corrupt(tmp_path: Path) -> None:
    run(appended(tmp_path, BODIES[:3]))
    older = content(tmp_path)
    run(appended(tmp_path, BODIES[3:]))
    for name in (SEGMENT, INDEX):
        (tmp_path / name).write_bytes(older[name])

    with pytest.raises(Corrupt, match="offset 6, which were synced"):
        run(opens(tmp_path))
    # The whole older folder is an older log, and sound.
    (tmp_path / LOCK_NAME).write_bytes(older[LOCK_NAME])
    assert run(opens(tmp_path)) == BODIES[:3]


@pytest.mark.parametrize("lost", [".index", ".segment"])
def test_the_oldest_ledger_without_one_of_its_files_is_corrupt_unless_it_was_deleted(
    tmp_path: Path, lost: str
) -> None:
    async def ledgers(log: FolderLog) -> None:
        for body in BODIES:
            await log.append([body], timestamp_ms=NOW_MS)
            await log.roll(now_ms=NOW_MS)

    async def scenario() -> None:
        async with await FolderLog.open(tmp_path) as log:
            await ledgers(log)
            await log.delete(0)
        saved = (tmp_path / f"{1:020}{lost}").read_bytes()
        (tmp_path / f"{1:020}{lost}").unlink()
        before = content(tmp_path)
        with pytest.raises(Corrupt, match="no such file"):
            await FolderLog.open(tmp_path)
        assert content(tmp_path) == before
        (tmp_path / f"{1:020}{lost}").write_bytes(saved)
        # A deletion that is killed behind its first file.
        with suppress(Killed):
            async with await FolderLog.open(tmp_path, disk=(disk := KilledDisk())) as log:
                disk.left = 3
                await log.delete(1)
        assert not (tmp_path / f"{1:020}.index").exists()
        assert await opens(shutil.copytree(tmp_path, tmp_path / "copy")) == BODIES[2:]

    asyncio.run(scenario())


def test_a_deletion_that_fails_is_no_damage_after_later_appends(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        async with await FolderLog.open(tmp_path, disk=disk) as log:
            await log.append([BODIES[0]], timestamp_ms=NOW_MS)
            await log.roll(now_ms=NOW_MS)
            disk.fails = failing_at(1, name="remove")
            with pytest.raises(OffloadError):
                await log.delete(0)
            await log.append([BODIES[1]], timestamp_ms=NOW_MS)
        assert await opens(tmp_path) == BODIES[1:2]

    asyncio.run(scenario())


def test_a_destruction_killed_at_any_call_lacks_nothing_that_was_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = set()
        for left in range(40):
            folder, copy = tmp_path / str(left), tmp_path / f"{left}.copy"
            await appended(folder)
            with suppress(Killed):
                log = await FolderLog.open(folder, disk=(disk := KilledDisk()))
                try:
                    disk.left = left
                    await log.destroy()
                finally:
                    await log.aclose()
            if not folder.exists():
                break
            shutil.copytree(folder, copy)
            if (copy / SEGMENT).exists() == (copy / INDEX).exists():
                ends.add(len(await opens(copy)))
            else:  # half of the only pair: whether that is a deletion or damage cannot be seen
                with pytest.raises(Corrupt, match="a segment and its index"):
                    await opens(copy)
        assert ends == {0, 6}
        assert not folder.exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("durability", list(Durability))
def test_an_append_makes_no_sync_more_than_its_files_need(tmp_path: Path, durability: Durability) -> None:
    async def scenario() -> list[str]:
        disk = CountingDisk()
        async with await FolderLog.open(
            tmp_path, disk=disk, durability=durability, interval_seconds=60
        ) as log:
            for body in BODIES:
                del disk.calls[:]
                await log.append([body], timestamp_ms=NOW_MS)
            calls = list(disk.calls)
        async with await FolderLog.open(tmp_path, disk=disk):
            del disk.calls[:]
        return [*calls, "close", *disk.calls]

    always = durability is Durability.ALWAYS
    assert asyncio.run(scenario()) == ["write", "write", *["sync", "sync", "write"] * always, "close"]


def test_every_damaged_bit_of_the_note_is_corrupt(tmp_path: Path) -> None:
    run(appended(tmp_path))
    lock = tmp_path / LOCK_NAME
    sound = lock.read_bytes()

    for position in range(128, 256):
        lock.write_bytes(sound)
        flip(lock, position)
        with pytest.raises(Corrupt, match="range of the log"):
            run(opens(tmp_path))


def test_a_note_that_cannot_be_written_fails_no_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        async with await FolderLog.open(tmp_path, disk=disk) as log:
            disk.fails = failing_at(2, name="write")
            assert await log.append([BODIES[0]], timestamp_ms=NOW_MS) == 0
            assert await log.append([BODIES[1]], timestamp_ms=NOW_MS) == 1
        assert await opens(tmp_path) == BODIES[:2]

    asyncio.run(scenario())
