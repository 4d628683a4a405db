"""Tests of recovery: a torn stream is read as osiris would recover it, and no file is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from osiris_data import DATA, INDEX_HEAD, MANIFEST, SEGMENT_HEAD, TORN
from osiris_writer import simple_chunks, write_stream

from offload.ground.errors import Corrupt, OffloadError, TryAgain, UnsupportedFormat
from offload.local import recovery
from offload.local.recovery import Recovered, recover

KEPT_BY_OSIRIS = {case: MANIFEST["torn"]["cases"][case]["after_osiris_recovery"] for case in TORN}


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


def pair(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the segment and the index at position `number` in the order of offsets."""
    segment = sorted(folder.glob("*.segment"))[number]
    return segment, segment.with_suffix(".index")


def cut(file: Path, size_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:size_bytes])


def three_pairs(folder: Path) -> Path:
    """Write the offsets [0, 12), [12, 24) and [24, 30), three to a chunk."""
    write_stream(folder, simple_chunks(10), segment_chunks=4)
    return folder


@pytest.mark.parametrize("case", TORN)
def test_the_stream_ends_where_osiris_ends_it(case: str) -> None:
    kept = KEPT_BY_OSIRIS[case]

    recovered = recover(DATA / "torn" / case, stream=case)

    assert recovered.damage is None
    assert recovered.newest is not None
    last = recovered.newest.last
    assert recovered.next_offset == kept["next_offset"]
    assert {
        "epoch": last.epoch,
        "chunk_id": last.offset,
        "timestamp": last.timestamp_ms,
    } == kept["last_chunk"]
    assert recovered.epoch == last.epoch


@pytest.mark.parametrize("case", TORN)
def test_the_stream_has_the_pairs_that_osiris_kept(case: str) -> None:
    files = MANIFEST["torn"]["cases"][case]["files_after_osiris_recovery"]
    expected = [int(file["file"][:20]) for file in files if file["file"].endswith(".segment")]

    recovered = recover(DATA / "torn" / case, stream=case)

    assert recovered.newest is not None
    found = [sealed.pair.offset for sealed in recovered.sealed] + [recovered.newest.pair.offset]
    assert found == expected
    assert recovered.first_offset == expected[0]


@pytest.mark.parametrize("case", TORN)
def test_the_segment_ends_at_the_byte_where_osiris_cut_it(case: str) -> None:
    files = MANIFEST["torn"]["cases"][case]["files_after_osiris_recovery"]

    newest = recover(DATA / "torn" / case, stream=case).newest

    assert newest is not None
    assert int(newest.rows["position"][-1]) + newest.last.size_bytes == files[-1]["bytes"]


@pytest.mark.parametrize("case", TORN)
def test_the_files_of_the_broker_do_not_change(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    shutil.copytree(DATA / "torn" / case, folder)
    before = state_of(folder)

    recover(folder, stream=case)

    assert state_of(folder) == before


def test_a_stream_without_chunks_is_empty_and_not_damaged(tmp_path: Path) -> None:
    (tmp_path / f"{100:020}.index").write_bytes(INDEX_HEAD)
    (tmp_path / f"{100:020}.segment").write_bytes(SEGMENT_HEAD)

    recovered = recover(tmp_path, stream="new")

    assert recovered == Recovered(sealed=(), newest=None, first_offset=100, next_offset=100, epoch=0)


def test_a_newest_pair_whose_chunks_are_all_torn_leaves_the_one_before_it_newest(tmp_path: Path) -> None:
    folder = three_pairs(tmp_path)
    segment, _ = pair(folder, 2)
    segment.write_bytes(bytes(segment.stat().st_size))

    recovered = recover(folder, stream="torn")

    assert recovered.damage is None
    assert recovered.newest is not None
    assert (recovered.newest.pair.offset, recovered.next_offset) == (12, 24)


def test_a_last_chunk_without_its_trailer_is_dropped(tmp_path: Path) -> None:
    """This is stricter than osiris, which accepts a chunk as soon as its data is complete."""
    folder = tmp_path / "tiny"
    shutil.copytree(DATA / "tiny", folder)
    segment, _ = pair(folder, 0)
    cut(segment, segment.stat().st_size - 1)

    assert recover(folder, stream="tiny").next_offset == 9


def test_a_last_record_that_describes_another_chunk_is_dropped(tmp_path: Path) -> None:
    """This is stricter than osiris, which trusts the chunk."""
    folder = three_pairs(tmp_path)
    _, index = pair(folder, 2)
    raw = bytearray(index.read_bytes())
    raw[-29 + 7] += 1  # the last record's offset
    index.write_bytes(raw)

    recovered = recover(folder, stream="odd")

    assert recovered.damage is None
    assert recovered.next_offset == 27


@pytest.mark.parametrize("suffix", [".index", ".segment"])
def test_a_file_missing_in_the_middle_ends_the_stream_before_it(tmp_path: Path, suffix: str) -> None:
    folder = three_pairs(tmp_path)
    gone = folder / f"{12:020}{suffix}"
    gone.unlink()

    recovered = recover(folder, stream="holed")

    assert [(sealed.pair.offset, sealed.next_offset) for sealed in recovered.sealed] == [(0, 12)]
    assert (recovered.first_offset, recovered.next_offset, recovered.epoch) == (0, 12, 1)
    assert recovered.damage is not None
    assert (recovered.damage.where, recovered.damage.stream) == (str(gone), "holed")


def test_a_newest_segment_without_an_index_is_damage_since_the_broker_would_not_show_it(
    tmp_path: Path,
) -> None:
    folder = three_pairs(tmp_path)
    pair(folder, 2)[1].unlink()

    recovered = recover(folder, stream="holed")

    assert recovered.next_offset == 24
    assert recovered.damage is not None


def test_segments_without_any_index_are_an_empty_stream_with_damage(tmp_path: Path) -> None:
    folder = three_pairs(tmp_path)
    for index in folder.glob("*.index"):
        index.unlink()

    recovered = recover(folder, stream="bare")

    assert (recovered.sealed, recovered.first_offset, recovered.next_offset) == ([], 0, 0)
    assert recovered.damage is not None


def test_a_newest_chunk_that_claims_4_gib_is_dropped(tmp_path: Path) -> None:
    folder = three_pairs(tmp_path)
    segment, index = pair(folder, 2)
    raw = bytearray(segment.read_bytes())
    position = int.from_bytes(index.read_bytes()[-5:-1], "big")
    raw[position + 36 : position + 40] = b"\xff\xff\xf0\x00"
    segment.write_bytes(raw)

    assert recover(folder, stream="odd").next_offset == 27


def test_a_newest_pair_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = three_pairs(tmp_path)
    _, index = pair(folder, 2)
    index.write_bytes(b"OSII\0\0\0\2" + index.read_bytes()[8:])

    with pytest.raises(UnsupportedFormat):
        recover(folder, stream="newer")


def test_disorder_in_the_newest_index_ends_the_stream_before_that_pair(tmp_path: Path) -> None:
    folder = three_pairs(tmp_path)
    _, index = pair(folder, 2)
    raw = bytearray(index.read_bytes())
    raw[8 + 7] ^= 0x20  # the first record's offset: 24 becomes 56
    index.write_bytes(raw)

    recovered = recover(folder, stream="odd")

    assert (recovered.next_offset, recovered.epoch, recovered.newest) == (24, 1, None)
    assert recovered.damage is not None
    assert (recovered.damage.where, recovered.damage.position) == (str(index), 8)
    assert "offset 24" in str(recovered.damage.expected)
    assert "offset 56" in str(recovered.damage.found)


def test_a_damaged_only_pair_is_an_empty_stream_with_damage(tmp_path: Path) -> None:
    write_stream(tmp_path, simple_chunks(4, first_offset=30))
    segment, _ = pair(tmp_path, 0)
    segment.write_bytes(b"NONE" + segment.read_bytes()[4:])

    recovered = recover(tmp_path, stream="odd")

    assert (recovered.first_offset, recovered.next_offset, recovered.epoch) == (30, 30, 0)
    assert recovered.damage is not None
    assert recovered.damage.found == b"NONE"


def test_files_that_keep_changing_end_in_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = three_pairs(tmp_path)
    tries = []

    def vanish(pair: object) -> None:
        tries.append(pair)
        raise TryAgain("gone")

    monkeypatch.setattr(recovery, "recover_newest", vanish)

    with pytest.raises(TryAgain):
        recover(folder, stream="busy")

    assert len(tries) == recovery.TRIES_MAX


def test_the_search_is_repeated_if_retention_removes_the_newest_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the opening, the broker deletes the stream's head and writes a new tail."""
    folder = three_pairs(tmp_path / "stream")
    really = recovery.recover_newest

    def overtaken(newest: recovery.Pair) -> recovery.Newest | None:
        if newest.offset == 24:
            shutil.rmtree(folder)
            write_stream(folder, simple_chunks(5, first_offset=30), segment_chunks=4)
        return really(newest)

    monkeypatch.setattr(recovery, "recover_newest", overtaken)

    recovered = recover(folder, stream="busy")

    assert (recovered.first_offset, recovered.next_offset) == (30, 45)


@settings(max_examples=60 if CAMPAIGN else 8, deadline=None)
@given(data=st.data())
def test_any_truncation_of_the_newest_pair_leaves_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = three_pairs(tmp_path_factory.mktemp("torn"))
    whole = recover(folder, stream="whole")
    segment, index = pair(folder, 2)
    cut(segment, data.draw(st.integers(0, segment.stat().st_size), label="segment"))
    cut(index, data.draw(st.integers(0, index.stat().st_size), label="index"))

    recovered = recover(folder, stream="torn")

    assert recovered.damage is None
    assert recovered.first_offset == whole.first_offset
    assert recovered.next_offset in range(24, whole.next_offset + 1, 3)
    if recovered.next_offset > 24:
        assert recovered.newest is not None
        assert whole.newest is not None
        assert (whole.newest.rows[: len(recovered.newest.rows)] == recovered.newest.rows).all()


@settings(max_examples=150 if CAMPAIGN else 15, deadline=None)
@given(data=st.data())
def test_any_bytes_in_the_newest_pair_end_in_a_stream_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = three_pairs(tmp_path_factory.mktemp("odd"))
    for file in pair(folder, 2):
        raw = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(raw)

    try:
        recovered = recover(folder, stream="odd")
    except OffloadError:
        return

    assert recovered.damage is None or isinstance(recovered.damage, Corrupt)
    assert recovered.next_offset >= 24
