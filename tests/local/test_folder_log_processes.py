"""Several processes and one log: the lock, a forked child, and kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaign import few
from log_contract import NOW_MS, records_of

from offload.ground.errors import Conflict, Misuse
from offload.log import lock as log_lock
from offload.log.folder_log import Durability, FolderLog

LINES_MIN = 6

HOLDER = """
import asyncio, sys
from offload.log.folder_log import FolderLog

async def main():
    async with await FolderLog.open(sys.argv[1]):
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

APPENDER = """
import asyncio, sys
from offload.log.folder_log import Durability, FolderLog

async def caller(log, number):
    for count in range(10**9):
        offset = await log.append([b"%d/%d" % (number, count), bytes(number)], timestamp_ms=1)
        sys.stdout.write(f"{offset} {number}/{count}\\n")
        sys.stdout.flush()

async def main():
    log = await FolderLog.open(sys.argv[1], durability=Durability(sys.argv[2]), roll_chunks=50)
    await asyncio.gather(*(caller(log, number) for number in range(5)))

asyncio.run(main())
"""


def test_a_killed_process_frees_the_log(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"

    with pytest.raises(Conflict, match=f"process {holder.pid} has the log"):
        asyncio.run(opened(tmp_path))
    holder.kill()
    holder.wait()
    holder.stdout.close()

    asyncio.run(opened(tmp_path))


async def opened(folder: Path) -> list[bytes]:
    async with await FolderLog.open(folder) as log:
        return await records_of(log)


@few("kills of a process that appends; make test has two of six", 5)
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_a_process_killed_while_it_appends_loses_nothing_that_it_acknowledged(
    tmp_path: Path, durability: Durability, seconds: float
) -> None:
    """Three times in a row on one log."""
    expected: dict[int, bytes] = {}
    for _ in range(3):
        output = tmp_path / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", APPENDER, tmp_path / "log", durability], stdout=file
            )
            while output.read_bytes().count(b"\n") < LINES_MIN:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
        for line in output.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                offset, body = line.split()
                expected[int(offset)] = body.encode()

        found = asyncio.run(opened(tmp_path / "log"))

        assert {offset: found[offset] for offset in expected} == expected


def test_a_forked_child_does_not_write_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await FolderLog.open(tmp_path)
        await log.append([b"a"], timestamp_ms=NOW_MS)
        reading, writing = os.pipe()
        waiting, done = os.pipe()
        child = os.fork()
        if not child:
            answer = b"wrote"
            try:
                try:
                    log.append([b"b"], timestamp_ms=NOW_MS).send(None)
                except Misuse as exc:
                    answer = str(exc).encode()
                os.write(writing, answer)
                os.read(waiting, 1)
            finally:
                os._exit(0)
        try:
            assert b"opened by the parent of this process" in os.read(reading, 1000)
            await log.append([b"c"], timestamp_ms=NOW_MS)
            await log.aclose()
            # The child still runs.
            async with await FolderLog.open(tmp_path) as again:
                assert await records_of(again) == [b"a", b"c"]
        finally:
            os.write(done, b"x")
            os.waitpid(child, 0)  # noqa: ASYNC222
            for descriptor in (reading, writing, waiting, done):
                os.close(descriptor)

    asyncio.run(scenario())


def test_a_lock_file_that_was_deleted_before_it_was_locked_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder destroyed the log while another process waited with the old file open."""
    really, paths = log_lock._lock, []

    def destroyed(descriptor: int, path: Path) -> None:
        if not paths:
            path.unlink()
        paths.append(path)
        really(descriptor, path)

    monkeypatch.setattr(log_lock, "_lock", destroyed)

    async def scenario() -> None:
        async with await FolderLog.open(tmp_path):
            with pytest.raises(Conflict):
                await FolderLog.open(tmp_path)

    asyncio.run(scenario())
    assert len(paths) == 3
