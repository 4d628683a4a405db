"""Tests of a broker's folder as a source: its streams, and reading them while the broker continues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from offload_rabbitmq import RabbitmqSource, open_url, sample_path
from osiris_data import DATA, chunks
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.contracts.source import Snapshot
from offload.contracts.store import Buffer
from offload.formats.chunk import check_chunks
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Corrupt, Denied, Misuse, NotOffloaded, TryAgain
from offload.local import sealed as sealed_module
from offload.store.buffers import POOLED_SIZE_BYTES_MIN


def source_of(path: Path) -> RabbitmqSource:
    return open_url(f"rabbitmq://{path}")


def names_in(path: Path) -> tuple[list[str], list[str]]:
    """Return the streams at a path, and the notes about it."""
    source = source_of(path)
    streams = asyncio.run(source.streams())
    return [stream.name for stream in streams], list(source.notes)


def with_snapshot(folder: Path, use: Callable[[Snapshot], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        (stream,) = await source_of(folder).streams()
        async with await stream.snapshot() as snapshot:
            return await use(snapshot)

    return asyncio.run(run())


async def range_of(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.first_offset, snapshot.next_offset


def test_a_folder_of_streams_gives_them_in_order_of_names() -> None:
    names, notes = names_in(DATA)

    assert names == ["batches", "filtered", "tiny"]
    assert notes == [f"skipped: {DATA / 'torn'} holds no segments"]


def test_a_streams_own_folder_is_a_source_of_that_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA / "tiny")

    assert names_in(DATA / "tiny") == (["tiny"], [])
    assert names_in(Path(".")) == (["tiny"], [])


def test_the_path_is_used_literally(tmp_path: Path) -> None:
    folder = tmp_path / "100%41?x#y z"
    write_stream(folder / "orders", simple_chunks(1))

    assert names_in(folder) == (["orders"], [])
    assert source_of(folder).url == f"rabbitmq://{folder}"


def test_a_linked_folder_is_a_stream_named_after_the_link(tmp_path: Path) -> None:
    write_stream(tmp_path / "elsewhere" / "data", simple_chunks(1))
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "orders").symlink_to(tmp_path / "elsewhere" / "data")

    assert names_in(tmp_path / "streams") == (["orders"], [])


@pytest.mark.parametrize(
    ("folder", "asked"),
    [
        ("__copy_1795475052298705714", "__copy_1795475052298705714"),
        ("data_2", "__orders_1795475023045925838"),
    ],
)
def test_a_broker_is_asked_about_the_folder_behind_a_link_if_it_made_that(
    tmp_path: Path, folder: str, asked: str
) -> None:
    """A link with the archive's name leads to a restored stream, or the broker's own link to another disk."""
    write_stream(tmp_path / "elsewhere" / folder, simple_chunks(1))
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "__orders_1795475023045925838").symlink_to(tmp_path / "elsewhere" / folder)

    (stream,) = asyncio.run(source_of(tmp_path / "streams").streams())

    assert (stream.name, stream.broker_name) == ("__orders_1795475023045925838", asked)


def test_plain_files_and_dead_links_are_ignored(tmp_path: Path) -> None:
    write_stream(tmp_path / "orders", simple_chunks(1))
    (tmp_path / "README").write_text("hello")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")

    assert names_in(tmp_path) == (["orders"], [])


def test_a_name_that_is_not_utf_8_is_skipped_with_a_note(tmp_path: Path) -> None:
    write_stream(tmp_path / "orders", simple_chunks(1))
    os.rename(tmp_path / "orders", os.fsencode(tmp_path) + b"/b\xff")
    write_stream(tmp_path / "orders", simple_chunks(1))

    names, notes = names_in(tmp_path)

    assert names == ["orders"]
    assert notes == [f"skipped: the name of {tmp_path}/b\\xff is not UTF-8"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("hello"), "is not a folder"),
        (lambda path: path.mkdir(), "holds no stream"),
        (lambda path: (path / "sub").mkdir(parents=True), "holds no stream"),
    ],
)
def test_a_place_without_streams_is_reported_in_one_line(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    place = tmp_path / "place"
    make(place)

    with pytest.raises(NotOffloaded) as caught:
        asyncio.run(source_of(place).streams())

    assert str(caught.value) == f"rabbitmq://{place} {why}"


@pytest.mark.parametrize("url", ["rabbitmq://", "rabbitmq:/data", "/data", "s3://bucket", "rabbitmq://a\0b"])
def test_another_url_is_misuse(url: str) -> None:
    with pytest.raises(Misuse):
        open_url(url)


def test_a_folder_that_may_not_be_listed_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything, so the refusal is simulated."""

    def refuse(path: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(Denied, match="Permission denied"):
        asyncio.run(source_of(tmp_path).streams())


def test_an_unknown_stream_is_not_offloaded() -> None:
    with pytest.raises(NotOffloaded, match="no stream 'unknown'"):
        asyncio.run(source_of(DATA).stream("unknown"))


def test_the_sample_is_a_source() -> None:
    assert names_in(sample_path()) == (["tiny"], [])


@pytest.mark.parametrize("stream", ["tiny", "batches", "filtered"])
def test_ledgers_hold_every_chunk_as_it_was_written(stream: str) -> None:
    async def read_all(snapshot: Snapshot) -> list[bytes]:
        found = []
        for ledger in snapshot.ledgers:
            table = await ledger.table()
            assert (ledger.first_offset, ledger.ledger_id) == (table["offset"][0], table["offset"][0])
            for start in range(0, len(table), 7):
                rows = table[start : start + 7]
                window = await ledger.read(rows)
                check_chunks(window, rows, window_position=int(rows["position"][0]), where=ledger.where)
                found.append(window)
        return found

    assert b"".join(with_snapshot(DATA / stream, read_all)) == b"".join(chunks(stream))


def test_ledgers_touch_and_cover_the_snapshot() -> None:
    async def ranges(snapshot: Snapshot) -> list[tuple[int, int]]:
        assert await range_of(snapshot) == (0, 20000)
        assert snapshot.epoch == 4
        return [(ledger.first_offset, ledger.next_offset) for ledger in snapshot.ledgers]

    assert with_snapshot(DATA / "filtered", ranges) == [
        (0, 6250),
        (6250, 12500),
        (12500, 18750),
        (18750, 20000),
    ]


def test_a_snapshot_does_not_change_with_the_broker(tmp_path: Path) -> None:
    first, second = list(simple_chunks(2)), list(simple_chunks(3, first_offset=6))
    write_stream(tmp_path, first)

    async def append_meanwhile(snapshot: Snapshot) -> bytes:
        append_chunks(tmp_path, second)
        (ledger,) = snapshot.ledgers
        assert await range_of(snapshot) == (0, 6)
        return await ledger.read(await ledger.table())

    assert with_snapshot(tmp_path, append_meanwhile) == b"".join(first)
    assert with_snapshot(tmp_path, range_of) == (0, 15)


@pytest.mark.parametrize("whole_size_bytes", [0, 10, 60, 100])
def test_a_chunk_in_the_middle_of_its_write_is_not_in_the_snapshot(
    tmp_path: Path, whole_size_bytes: int
) -> None:
    write_stream(tmp_path, simple_chunks(2))
    (chunk,) = simple_chunks(1, first_offset=6)
    with (tmp_path / f"{0:020}.segment").open("ab") as segment:
        segment.write(chunk[:whole_size_bytes])

    assert with_snapshot(tmp_path, range_of) == (0, 6)


def test_a_segment_that_retention_removed_may_be_tried_again(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(4), segment_chunks=2)

    async def read_too_late(snapshot: Snapshot) -> None:
        ledger = snapshot.ledgers[0]
        table = await ledger.table()
        (tmp_path / f"{0:020}.segment").unlink()
        await ledger.read(table)

    with pytest.raises(TryAgain, match="the broker removed it meanwhile"):
        with_snapshot(tmp_path, read_too_late)


def test_an_open_segment_outlives_retention(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(4), segment_chunks=2)

    async def read_again(snapshot: Snapshot) -> bytes:
        ledger = snapshot.ledgers[0]
        table = await ledger.table()
        await ledger.read(table[:1])
        (tmp_path / f"{0:020}.segment").unlink()
        return await ledger.read(table)

    assert with_snapshot(tmp_path, read_again) == b"".join(simple_chunks(2))


def test_a_deleted_stream_may_be_tried_again(tmp_path: Path) -> None:
    write_stream(tmp_path / "orders", simple_chunks(1))

    async def look_too_late() -> None:
        (stream,) = await source_of(tmp_path).streams()
        for file in (tmp_path / "orders").iterdir():
            file.unlink()
        await stream.snapshot()

    with pytest.raises(TryAgain, match="no longer holds a stream"):
        asyncio.run(look_too_late())


def large_chunks(count: int) -> list[bytes]:
    """Return chunks that are read into memory of the source's pool, one by one."""
    bodies = ([bytes([number]) * POOLED_SIZE_BYTES_MIN] for number in range(count))
    return [build_chunk(body, offset=at, timestamp_ms=at, epoch=1) for at, body in enumerate(bodies)]


SIZES = pytest.mark.parametrize("made", [simple_chunks, large_chunks], ids=["small", "large"])


@SIZES
def test_a_read_returns_the_remaining_bytes_of_a_shortened_segment(
    tmp_path: Path, made: Callable[[int], Iterable[bytes]]
) -> None:
    raw = b"".join(made(2))
    write_stream(tmp_path, made(4), segment_chunks=2)

    async def read_cut(snapshot: Snapshot) -> Buffer:
        ledger = snapshot.ledgers[0]
        table = await ledger.table()
        os.truncate(tmp_path / f"{0:020}.segment", len(raw))
        return await ledger.read(table)

    assert with_snapshot(tmp_path, read_cut) == raw[:-8], "the file begins with a header of 8 bytes"


@SIZES
def test_a_window_is_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[int], Iterable[bytes]]
) -> None:
    write_stream(tmp_path, made(9))
    reads: list[int] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: reads.append(args[2]) or call(*args)

    async def read_counted(snapshot: Snapshot) -> None:
        (ledger,) = snapshot.ledgers
        table = await ledger.table()
        for name in ("pread", "preadv"):
            monkeypatch.setattr(os, name, counted(getattr(os, name)))
        window = await ledger.read(table[2:5])
        assert reads == [int(table["position"][2])]
        assert window == b"".join([*made(9)][2:5])

    with_snapshot(tmp_path, read_counted)


def test_windows_keep_their_bytes_while_others_are_read(tmp_path: Path) -> None:
    """Memory is used again, but not before the last view of it is gone."""
    wanted = large_chunks(6)
    write_stream(tmp_path, wanted)

    async def read_by_turns(snapshot: Snapshot) -> None:
        (ledger,) = snapshot.ledgers
        table = await ledger.table()
        held = {0: await ledger.read(table[:1])}
        for number in range(1, 6):
            held[number] = await ledger.read(table[number : number + 1])
            if number % 2:
                del held[number]
        assert held == {number: wanted[number] for number in held}
        assert all(memoryview(each).readonly for each in held.values())

    with_snapshot(tmp_path, read_by_turns)


def test_a_snapshot_reads_no_index_of_a_sealed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a look every few seconds costs the same for a stream of any length."""
    write_stream(tmp_path, simple_chunks(40), segment_chunks=2)
    read: list[int] = []
    read_index = sealed_module.read_index
    monkeypatch.setattr(
        sealed_module, "read_index", lambda pair: read.append(pair.offset) or read_index(pair)
    )

    async def look(snapshot: Snapshot) -> None:
        assert len(snapshot.ledgers) == 20
        assert read == []
        await snapshot.ledgers[3].table()
        await snapshot.ledgers[3].table()
        assert read == [18]

    with_snapshot(tmp_path, look)


def test_damage_of_a_sealed_segment_affects_only_its_own_ledger(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(6), segment_chunks=2)
    os.truncate(tmp_path / f"{6:020}.index", 8 + 29)

    async def look(snapshot: Snapshot) -> None:
        assert await range_of(snapshot) == (0, 18)
        assert snapshot.damage is None
        first, second, third = snapshot.ledgers
        assert len(await first.table()) == len(await third.table()) == 2
        with pytest.raises(Corrupt) as caught:
            await second.table()
        assert caught.value.stream == tmp_path.name

    with_snapshot(tmp_path, look)


def test_files_are_open_from_the_first_read_until_the_ledger_is_closed(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(6), segment_chunks=2)

    def open_files() -> int:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.readlink(link).startswith(str(tmp_path)) for link in links if os.path.lexists(link))

    async def count(snapshot: Snapshot) -> list[int]:
        counts = [open_files()]
        for ledger in snapshot.ledgers:
            await ledger.read(await ledger.table())
            counts.append(open_files())
        await snapshot.ledgers[0].aclose()
        await snapshot.ledgers[0].aclose()
        counts.append(open_files())
        await snapshot.ledgers[0].read(await snapshot.ledgers[0].table())
        return counts

    assert with_snapshot(tmp_path, count) == [0, 1, 2, 3, 2]
    assert open_files() == 0


def test_a_folder_that_may_not_be_listed_is_a_stream_that_raises_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were skipped, nobody would notice; if it were refused at once, it would stop all others."""
    write_stream(tmp_path / "open", simple_chunks(3))
    (tmp_path / "locked").mkdir()
    (tmp_path / "lost+found").mkdir()

    def refusing(listing: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listed(path: Any) -> Any:
            if Path(path).name in {"locked", "lost+found"}:
                raise PermissionError(13, "Permission denied", str(path))
            return listing(path)

        return listed

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    source = open_url(f"rabbitmq://{tmp_path}")
    streams = {stream.name: stream for stream in asyncio.run(source.streams())}

    assert set(streams) == {"open", "locked"}
    with pytest.raises(Denied):
        asyncio.run(streams["locked"].snapshot())
    assert any("lost+found" in note for note in source.notes)


def test_a_link_to_itself_is_not_a_folder(tmp_path: Path) -> None:
    write_stream(tmp_path / "stream", simple_chunks(3))
    (tmp_path / "loop").symlink_to("loop")

    assert names_in(tmp_path)[0] == ["stream"]
