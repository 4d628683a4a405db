"""Restoring the files of a stopped broker: the same bytes, all or nothing, and a sync continues."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from campaign import keeping
from command_line import Ran, calls_of, contents, finish, offload, read, start_dying_below, sync
from osiris_data import DATA, INDEX_HEAD, SEGMENT_HEAD
from osiris_data import chunks as chunks_of
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.tracking import ConsumerOffset, encode_blocks
from offload.ground.errors import TryAgain
from offload.model.chunk_table import ChunkType

SEGMENTS = {"tiny": 500_000_000, "batches": 500_000_000, "filtered": 700_000}
"""Streams of a real broker, and the segment size by which their files are cut."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a stream that was declared just now: a pair of files with headers alone."""
    path = tmp_path / "mnesia" / "rabbit@host" / "stream" / "copy"
    path.mkdir(parents=True)
    (path / f"{0:020}.segment").write_bytes(SEGMENT_HEAD)
    (path / f"{0:020}.index").write_bytes(INDEX_HEAD)
    return path


def restore(tier: Path, stream: str, folder: Path, *options: object) -> Ran:
    return offload("restore", tier, stream, "--files", folder, *options)


def restored(tier: Path, stream: str, folder: Path, *options: object) -> Ran:
    ran = restore(tier, stream, folder, *options)
    assert ran.code == 0, ran.stderr
    return ran


def linked(folder: Path, name: str) -> Path:
    """Return a source in which this folder is the stream `name`: a stream is named after a link to it."""
    links = folder.parents[2] / "links"
    links.mkdir()
    (links / name).symlink_to(folder)
    return links


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("stream", SEGMENTS)
def test_restored_files_are_byte_for_byte_those_of_the_broker(
    tmp_path: Path, folder: Path, stream: str
) -> None:
    tier = tmp_path / "tier"
    sync(DATA / stream, tier)

    restored(tier, stream, folder, "--target-option", f"segment-size-bytes={SEGMENTS[stream]}")

    assert files(folder) == files(DATA / stream)


def test_a_sync_continues_the_archive_from_restored_files(tmp_path: Path, folder: Path) -> None:
    tier, old = tmp_path / "tier", tmp_path / "old"
    chunks = list(simple_chunks(20))
    write_stream(old, chunks[:12])
    sync(old, tier)
    restored(tier, "old", folder)
    append_chunks(folder, chunks[12:])

    ran = sync(linked(folder, "old"), tier)

    assert ran.objects[0]["next_offset"] == 60
    assert len(read(tier, "old").lines) == 60


@pytest.mark.parametrize("tracked", ["in a chunk", "in a trailer", ""])
def test_a_segment_is_cut_only_where_no_tracking_state_is_lost(
    tmp_path: Path, folder: Path, tracked: str
) -> None:
    """osiris reads what consumers stored from the newest segment alone."""
    tier, old = tmp_path / "tier", tmp_path / "old"
    stored = [ConsumerOffset(name=b"app", offset=1)]
    chunks = [*simple_chunks(3, records=1)]
    if tracked == "in a trailer":
        trailer = encode_blocks(stored, chunk_type=ChunkType.USER)
        chunks.append(build_chunk([b"x"], offset=3, timestamp_ms=1, epoch=1, trailer=trailer))
    elif tracked:
        kind = ChunkType.TRACKING_DELTA
        chunks.append(build_tracking_chunk(stored, chunk_type=kind, offset=3, timestamp_ms=1, epoch=1))
    chunks += [build_chunk([b"x"], offset=len(chunks) + k, timestamp_ms=2, epoch=1) for k in range(3)]
    write_stream(old, chunks)
    sync(old, tier)

    restored(tier, "old", folder, "--target-option", "segment-size-bytes=1")

    starts = [int(path.stem) for path in sorted(folder.glob("*.segment"))]
    assert starts == ([0, 1, 2, 3] if tracked else [0, 1, 2, 3, 4, 5])


CALLS = range(1, 67)


@pytest.mark.parametrize("number", keeping({24, 40, 57, 62}, CALLS, "some moments of a kill are kept"))
def test_a_killed_restore_shows_the_broker_nothing_or_is_completed_by_the_next(
    tmp_path: Path, folder: Path, number: int
) -> None:
    tier, old = tmp_path / "tier", tmp_path / "old"
    write_stream(old, simple_chunks(9), segment_size_bytes=200)
    sync(old, tier)
    options = ("--target-option", "segment-size-bytes=200", "--new-part")
    words = ("restore", tier, "old", "--files", folder, *options)

    died = finish(start_dying_below(folder, number, *words))
    if died.code == 0:
        assert calls_of(died) < number
        return
    partly = files(folder)
    again = offload(*words)

    # A kill at the very end leaves a complete restore, and a folder that holds chunks.
    assert again.code == 0 or "holds chunks already" in again.stderr, again.stderr
    assert files(folder) == files(old)
    assert not (folder / ".offload-restore").exists()
    # Files become visible in order, and only when all of them were written.
    assert all(partly[name] == files(old).get(name) for name in partly if len(partly[name]) > 8)
    # The archive goes on in the part that was recorded before the files became visible.
    append_chunks(folder, simple_chunks(1, first_offset=27))
    [report] = sync(linked(folder, "old"), tier).objects
    assert (report["stream"], report["messages"]) == ("old-part-2", 3)


UNFIT = {
    "chunks": "holds chunks already",
    "another restore": "unfinished restore of stream 'other'",
    "no plan": "is no file of a restore",
    "streams": "which is no file of a stream",
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path: Path, folder: Path, what: str) -> None:
    tier = tmp_path / "tier"
    sync(DATA / "tiny", tier)
    if what == "chunks":
        append_chunks(folder, simple_chunks(1))
    elif what == "streams":
        (folder / "__other_1").mkdir()
    else:
        (folder / ".offload-restore").mkdir()
        plan = {"stream": "other", "incarnation": "", "first_offset": 0}
        plan |= {"epoch_max": None, "segment_size_bytes": 1}
        text = json.dumps([] if what == "no plan" else plan)
        (folder / ".offload-restore" / "plan.json").write_text(text)
    before = contents(folder)

    ran = restore(tier, "tiny", folder)

    assert (ran.code, contents(folder)) == (1, before)
    assert UNFIT[what] in ran.stderr


def test_a_folder_whose_files_a_process_has_open_stays_as_it_is(tmp_path: Path, folder: Path) -> None:
    tier = tmp_path / "tier"
    sync(DATA / "tiny", tier)
    before = contents(folder)

    with next(folder.glob("*.segment")).open("rb"):
        ran = restore(tier, "tiny", folder)

    assert (ran.code, contents(folder)) == (1, before)
    assert f"process {os.getpid()} has a file in" in ran.stderr


def test_a_folder_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    sync(DATA / "tiny", tmp_path / "tier")

    ran = restore(tmp_path / "tier", "tiny", tmp_path / "none")

    assert (ran.code, (tmp_path / "none").exists()) == (1, False)
    assert "declare the stream" in ran.stderr


def test_epochs_are_lowered_on_request_and_nothing_else_changes(tmp_path: Path, folder: Path) -> None:
    tier = tmp_path / "tier"
    sync(DATA / "filtered", tier)  # its epochs are 3 and 4

    ran = restored(
        tier,
        "filtered",
        folder,
        *("--target-option", "epoch-max=2", "--target-option", "segment-size-bytes=700000"),
    )

    assert "the bytes differ from the archive's" in ran.stderr
    differing = set()
    for name, raw in files(DATA / "filtered").items():
        found = (folder / name).read_bytes()
        assert len(found) == len(raw)
        differing |= {(a, b) for a, b in zip(raw, found, strict=True) if a != b}
    assert differing == {(3, 2), (4, 2)}
    assert read_source(folder, tmp_path) == read(tier, "filtered").stdout


def test_a_sync_goes_on_in_a_new_part_behind_files_with_lower_epochs(tmp_path: Path, folder: Path) -> None:
    tier, options = tmp_path / "tier", ("--target-option", "epoch-max=2", "--new-part")
    sync(DATA / "filtered", tier)

    ran = restored(tier, "filtered", folder, *options)
    new = build_chunk([b"new"], offset=20_000, timestamp_ms=1_800_000_000_000, epoch=2)
    append_chunks(folder, [new])
    [report] = sync(linked(folder, "filtered"), tier).objects

    assert ran.lines[-1] == "filtered: continues in part 2, which begins at offset 20000 of the target"
    assert (report["stream"], report["messages"]) == ("filtered-part-2", 1)
    assert [line["offset"] for line in read(tier, "filtered").objects] == [*range(20_001)]


def test_a_high_epoch_is_announced(tmp_path: Path, folder: Path) -> None:
    sync(DATA / "filtered", tmp_path / "tier")

    ran = restored(tmp_path / "tier", "filtered", folder)

    assert "the archive's last epoch is 4, and a stream that was just declared has 2" in ran.stderr


@pytest.mark.parametrize(("flags", "code"), [(b"[stream_queue].", 1), (b"[stream_filtering].", 0), (None, 0)])
def test_filters_are_refused_for_a_broker_that_does_not_know_them(
    tmp_path: Path, folder: Path, flags: bytes | None, code: int
) -> None:
    sync(DATA / "filtered", tmp_path / "tier")
    if flags is not None:
        (folder.parents[2] / "rabbit@host-feature_flags").write_bytes(flags)

    ran = restore(tmp_path / "tier", "filtered", folder)

    assert ran.code == code
    assert ("does not know the bloom filters" in ran.stderr) == bool(code)
    assert (max(map(len, files(folder).values())) == len(SEGMENT_HEAD)) == bool(code)


def test_filters_stay_refused_when_the_restore_is_repeated(tmp_path: Path, folder: Path) -> None:
    """The first run must not leave a segment with filters that the second one only moves."""
    filtered = chunks_of("filtered")[0]
    following = ChunkHeader.decode(filtered, where="test").next_offset
    plain = build_chunk([b"x" * 2**20], offset=following, timestamp_ms=1, epoch=4)
    write_stream(tmp_path / "old", [filtered, plain])
    sync(tmp_path / "old", tmp_path / "tier")
    (folder.parents[2] / "rabbit@host-feature_flags").write_bytes(b"[stream_queue].")
    words = (tmp_path / "tier", "old", folder, "--target-option", "segment-size-bytes=1")

    codes = [restore(*words).code, restore(*words).code]

    assert codes == [1, 1]


def test_a_restore_whose_new_part_cannot_begin_shows_the_broker_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the files would be there without the part, and the restore could not be repeated."""
    write_stream(tmp_path / "old", simple_chunks(3))
    sync(tmp_path / "old", tmp_path / "tier")
    words, before = (tmp_path / "tier", "old", folder, "--new-part"), files(folder)

    async def down(*arguments: object, **options: object) -> None:
        raise TryAgain("the store does not answer")

    with monkeypatch.context() as store:
        store.setattr("offload.cli.restore.begin_behind", down)
        stopped = restore(*words)
    left = files(folder)
    again = restored(*words)

    assert (stopped.code, left) == (1, before)
    assert again.lines[-1] == "old: continues in part 2, which begins at offset 9 of the target"


@pytest.fixture
def stop_moving(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[object]]:
    """Return a function: within its block, the disk is full when a restore has moved so many files."""

    @contextmanager
    def full_after(moved: int) -> Iterator[None]:
        chmod, calls = Path.chmod, iter(range(99))

        def full(path: Path, mode: int) -> None:
            if next(calls) == moved:
                raise OSError(errno.ENOSPC, "No space left on device")
            chmod(path, mode)

        with monkeypatch.context() as disk:
            disk.setattr(Path, "chmod", full)
            yield

    return full_after


@pytest.mark.parametrize("moved", [0, 3, 5])
def test_a_restore_that_stopped_while_it_moved_files_is_completed_by_the_next(
    tmp_path: Path, folder: Path, stop_moving: Callable[[int], AbstractContextManager[object]], moved: int
) -> None:
    tier, old = tmp_path / "tier", tmp_path / "old"
    write_stream(old, simple_chunks(3), segment_size_bytes=1)
    sync(old, tier)
    words = (tier, "old", folder, "--target-option", "segment-size-bytes=1", "--new-part")
    with stop_moving(moved):
        stopped = restore(*words)

    again = restored(*words)

    assert (stopped.code, files(folder)) == (1, files(old))
    assert not (folder / ".offload-restore").exists()
    assert "continues in part 2, which begins at offset 9 of the target" in again.lines[-1]


@pytest.mark.parametrize("text", ["[]", '{"next_offset": 1, "sizes": {}, "last_header": "no"}'])
def test_a_damaged_note_of_what_was_restored_is_reported(tmp_path: Path, folder: Path, text: str) -> None:
    sync(DATA / "tiny", tmp_path / "tier")
    (folder / ".offload-restore").mkdir()
    (folder / ".offload-restore" / "done.json").write_text(text)

    ran = restore(tmp_path / "tier", "tiny", folder)

    assert ran.code == 1
    assert "done.json is no file of a restore" in ran.stderr


@pytest.mark.parametrize(
    ("moved", "chunks", "appends"),
    [
        (0, simple_chunks(1), False),
        (2, simple_chunks(1, first_offset=3), True),
        (2, simple_chunks(1, first_offset=3), False),
    ],
)
def test_a_broker_that_wrote_to_half_a_restore_is_not_overwritten(
    tmp_path: Path,
    folder: Path,
    stop_moving: Callable[[int], AbstractContextManager[object]],
    moved: int,
    chunks: Iterator[bytes],
    appends: bool,
) -> None:
    """It wrote in place of a file that was not moved yet, behind a moved one, or into a new one."""
    write_stream(tmp_path / "old", simple_chunks(3), segment_size_bytes=1)
    sync(tmp_path / "old", tmp_path / "tier")
    words = (tmp_path / "tier", "old", folder, "--target-option", "segment-size-bytes=1")
    with stop_moving(moved):
        stopped = restore(*words)
    (append_chunks if appends else write_stream)(folder, chunks)
    before = contents(folder)

    ran = restore(*words)

    assert (stopped.code, ran.code, contents(folder)) == (1, 1, before)
    assert "free space there, and run the same command again" in stopped.stderr
    assert "holds chunks that this restore did not write" in ran.stderr


def test_a_restore_of_no_chunk_is_refused(tmp_path: Path, folder: Path) -> None:
    write_stream(tmp_path / "old", simple_chunks(3))
    sync(tmp_path / "old", tmp_path / "tier")
    before = contents(folder)

    ran = restore(tmp_path / "tier", "old", folder, "--from", 4, "--until", 3)

    assert (ran.code, contents(folder)) == (1, before)
    assert "nothing to restore" in ran.error


def test_damage_ends_a_restore_of_files_and_until_restores_what_is_before(
    tmp_path: Path, folder: Path
) -> None:
    tier = tmp_path / "tier"
    write_stream(tmp_path / "old", simple_chunks(9))
    sync(tmp_path / "old", tier)
    (fragment,) = tier.rglob("*.fragment")
    raw = bytearray(fragment.read_bytes())
    raw[raw.index(b"message 13")] ^= 1
    fragment.write_bytes(raw)
    before = files(folder)

    refused = restore(tier, "old", folder, "--skip-damage")
    stopped = restore(tier, "old", folder)
    assert (refused.code, stopped.code) == (1, 1)
    assert "--until" in refused.stderr
    assert files(folder) == before

    shutil.rmtree(folder / ".offload-restore")
    restored(tier, "old", folder, "--until", 12)
    assert [line["offset"] for line in messages_of(folder, tmp_path)] == [*range(12)]


def test_a_trimmed_archive_is_restored_under_its_own_offsets(tmp_path: Path, folder: Path) -> None:
    tier = tmp_path / "tier"
    sync(DATA / "batches", tier)
    assert offload("trim", tier, "batches", "--before", 7000).code == 0

    restored(tier, "batches", folder)

    newer = {name: raw for name, raw in files(DATA / "batches").items() if int(name[:20]) >= 6937}
    assert files(folder) == newer


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--files", "x", "--rate", 5), "--rate and --map are for messages"),
        (("rabbitmq://x", "--map", "y"), "--rate and --map are for messages"),
        (("--files", "x", "rabbitmq-stream://host/s"), "name one target"),
        ((), "name one target"),
        (("--files", "x", "--target-option", "epoch-max=0"), "epoch-max is a number from 1"),
        (("--files", "x", "--target-option", "nope=0"), "has no option 'nope'"),
        (("--files", "x", "--target-option", "nope"), "--target-option takes NAME=VALUE"),
        (("s3://bucket",), "no plugin knows the target 's3'"),
        (("folder",), "is not the URL of a target"),
    ],
)
def test_wrong_arguments_are_reported_before_anything_is_opened(words: tuple[object, ...], text: str) -> None:
    ran = offload("restore", "no-tier", "stream", *words)

    assert ran.code == 2
    assert text in ran.error


def read_source(folder: Path, scratch: Path) -> bytes:
    """Return what a reader gets of a stream's files."""
    tier = scratch / "read-back"
    sync(folder, tier)
    return read(tier, folder.name).stdout


def messages_of(folder: Path, scratch: Path) -> list[dict[str, object]]:
    tier = scratch / "read-back"
    sync(folder, tier)
    return read(tier, folder.name).objects
