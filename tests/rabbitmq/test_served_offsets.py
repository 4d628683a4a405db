"""Tests of the offsets that consumers store with the server: in memory at once, and in a file soon after."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from command_line import SEED, offload
from offload_rabbitmq.server import offsets
from offload_rabbitmq.server.offsets import OffsetsInFile
from stream_client import QUERY, STORE, RawClient, text
from stream_server import served

from offload import MemoryHandle, Misuse, StreamWriter, build_chunk, open_tier
from offload.ground.env import Env

STREAM = text("orders")


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    async def make() -> None:
        async with open_tier(str(tmp_path / "tier")) as opened:
            writer = await StreamWriter.claim(opened, "orders")
            await writer.offload([MemoryHandle([build_chunk([b"x"], offset=0, timestamp_ms=1, epoch=1)])])

    asyncio.run(make())
    return tmp_path / "tier"


def store(client: RawClient, name: str, offset: int) -> None:
    client.send(STORE, text(name) + STREAM + struct.pack(">Q", offset))


def query(client: RawClient, name: str) -> int | None:
    answer = client.ask(QUERY, text(name) + STREAM)
    return int.from_bytes(answer[2:], "big") if answer[:2] == b"\0\1" else None


def in_file(path: Path) -> list[tuple[str, str, str]]:
    """Return what another process finds in a copy of the file, as a kill would leave it."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as file:
        return file.execute("SELECT stream, reference, offset FROM offsets ORDER BY rowid").fetchall()


def opened(path: Path) -> OffsetsInFile:
    return OffsetsInFile(str(path), Env(), {})


def kept(path: Path, *stores: tuple[str, str, int]) -> None:
    """Store offsets, and end."""

    async def main() -> None:
        found = opened(path)
        for each in stores:
            found.store(*each)
        await found.aclose()

    asyncio.run(main())


def test_a_restart_forgets_no_offset(tier: Path, tmp_path: Path) -> None:
    options = f"?offsets={tmp_path}/file"
    with served(tier, options) as running, RawClient.opened(running.port) as client:
        for name, offset in (("a", 1), ("b", 2**64 - 1), ("a", 7), ("ü" * 100, 3)):
            store(client, name, offset)
            assert query(client, name) == offset

    with served(tier, options) as running, RawClient.opened(running.port) as client:
        assert [query(client, name) for name in ("a", "b", "ü" * 100, "c")] == [7, 2**64 - 1, 3, None]
        store(client, "a", 6)
        assert query(client, "a") == 6


def test_an_offset_is_in_the_file_a_second_later(tier: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with served(tier, f"?offsets={path}") as running, RawClient.opened(running.port) as client:
        for offset in (1, 2):
            began = time.monotonic()
            store(client, "a", offset)
            while in_file(path) != [("orders", "a", str(offset))]:
                assert time.monotonic() < began + 10
                time.sleep(0.05)


def test_a_second_server_is_refused_until_the_first_ends(tier: Path, tmp_path: Path) -> None:
    url = f"rabbitmq-stream://127.0.0.1:0?offsets={tmp_path}/file"
    with served(tier, f"?offsets={tmp_path}/file"):
        ran = offload("serve", tier, "--listen", url)
        assert (ran.code, ran.error) == (
            1,
            f"offload: the file of offsets '{tmp_path}/file' cannot be used: another process has it",
        )

    kept(tmp_path / "file")


def changed(sql: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(sql)

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"x" * 9000), "file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:6000]), "malformed"),
        (lambda path: path.write_bytes(path.read_bytes()[:4096] + bytes(8192)), "it is damaged"),
        (lambda path: path.rename(path.with_name("other")) and path.mkdir(), "unable to open database file"),
        (changed("PRAGMA application_id = 0"), "a database of another program"),
        (changed("ALTER TABLE offsets RENAME COLUMN offset TO other"), "no such column: offset"),
        (changed("UPDATE offsets SET offset = '-1'"), "a row of it has no offset"),
    ],
)
def test_a_damaged_file_is_one_clear_line(
    tier: Path, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "file"
    kept(path, ("orders", "a", 1))
    damage(path)

    ran = offload("serve", tier, "--listen", f"rabbitmq-stream://127.0.0.1:0?offsets={path}")

    assert ran.code == 1
    assert re.search(f"the file of offsets '{path}' cannot be used: .*{said}", ran.error)


def test_bytes_that_change_anywhere_are_refused_or_harmless(tmp_path: Path) -> None:
    path, random = tmp_path / "file", Random(SEED)
    print(f"OFFLOAD_SEED={SEED}")
    kept(path, *(("orders", f"consumer-{n}", n) for n in range(200)))
    whole, refused = path.read_bytes(), 0
    for _ in range(100):
        raw = bytearray(whole)
        for _ in range(8):
            raw[random.randrange(len(raw))] = random.randrange(256)
        path.write_bytes(raw)
        try:
            kept(path, ("orders", "new", 1))
        except Misuse:
            refused += 1
    assert refused


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    """SQLite would write on to a file that has no name, and a restart would find nothing."""
    path = tmp_path / "file"
    kept(path, ("orders", "a", 1), ("orders", "b", 2))
    if is_replaced:
        kept(tmp_path / "other", ("orders", "c", 3), ("orders", "a", 9))

    async def main() -> None:
        found = opened(path)
        path.unlink()
        if is_replaced:
            (tmp_path / "other").rename(path)
        found.store("orders", "b", 7)
        await found.aclose()

    asyncio.run(main())

    others = [("orders", "c", "3")] if is_replaced else []
    assert in_file(path) == [*others, ("orders", "a", "1"), ("orders", "b", "7")]
    assert "was removed or replaced: all offsets were written to it again" in caplog.text


def test_a_file_that_another_process_has_made_anew_is_a_problem_and_not_shared(tmp_path: Path) -> None:
    path, problems = tmp_path / "file", dict[str, str]()

    async def main() -> None:
        found = OffsetsInFile(str(path), Env(), problems)
        path.unlink()
        second = opened(path)
        found.store("orders", "a", 1)
        await found.aclose()
        assert "database is locked" in problems[str(path)]
        second.store("orders", "a", 2)
        await second.aclose()

    asyncio.run(main())

    assert in_file(path) == [("orders", "a", "2")]


def test_offsets_stay_in_memory_while_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, problems = tmp_path / "file", dict[str, str]()
    monkeypatch.setattr(offsets, "COMMIT_SECONDS", 0.01)
    monkeypatch.setattr(offsets, "RETRY_SECONDS", 0.01)

    async def until(*, has_problem: bool) -> None:
        async with asyncio.timeout(10):
            while bool(problems) != has_problem:  # noqa: ASYNC110 - the problems are a plain dictionary
                await asyncio.sleep(0.01)

    async def main() -> None:
        found = OffsetsInFile(str(path), Env(), problems)
        keeping = asyncio.create_task(found.keep())
        found._file.execute("PRAGMA max_page_count = 1").fetchall()  # as if the disk were full
        for number in range(500):
            found.store("orders", f"{number:0200}", number)
        await until(has_problem=True)
        found.store("orders", "later", 1)
        await asyncio.sleep(0.1)  # tries again and again
        assert found.query("orders", "later") == 1
        assert found.query("orders", f"{7:0200}") == 7
        assert len(in_file(path)) == 0
        found._file.execute("PRAGMA max_page_count = 100000").fetchall()
        await until(has_problem=False)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await found.aclose()

    asyncio.run(main())

    assert len(in_file(path)) == 501
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert (
        line == f"offsets stay in memory, because {str(path)!r} cannot be written: database or disk is full"
    )


def test_the_pairs_that_were_stored_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 3)
    path = tmp_path / "file"
    kept(path, ("s", "a", 1), ("s", "b", 2), ("s", "c", 3), ("s", "b", 6))
    kept(path, ("s", "a", 4), ("t", "d", 5))

    assert in_file(path) == [("s", "b", "6"), ("s", "a", "4"), ("t", "d", "5")]
