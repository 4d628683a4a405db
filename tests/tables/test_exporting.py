"""An export has each row once, wherever its runs stop, and refuses what does not belong to its folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from command_line import offload
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import ledger_of, ledgers
from tables.tier_in_memory import Row, World, rows_of, world

from offload import Blocking, PartOffset, StreamPart
from offload import open as open_tables
from offload.ground.errors import Misuse, NotOffloaded
from offload.opening import exporting
from offload.opening.exporting import ExportFormat, export_stream
from offload.upkeep.retention import Retention, delete_stream, trim


@pytest.fixture
def made() -> Iterator[World]:
    with world() as made:
        yield made


def exported(folder: Path) -> list[Row]:
    """Return the rows of all files, in order of their names."""
    found = []
    for path in sorted(folder.glob("[0-9]*-*.*")):
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
        first, until = (int(number) for number in path.stem.split("-")[1:])
        rows = rows_of(table)
        assert all(first <= offset < until for _, offset, _, _ in rows)
        found += rows
    return found


class Stopped(BaseException):
    """The end of a process at some moment."""


@settings(max_examples=15)
@given(st.sampled_from(ExportFormat), st.integers(1, 2000), st.lists(st.integers(0, 5), max_size=6))
def test_a_stopped_export_continues_and_has_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, form: ExportFormat, size_bytes: int, stops: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("exported")
    (folder / f"_1-{0:020}-{7:020}.parquet.unfinished").write_bytes(b"of a run with another file size")
    with world() as made:
        made.write("orders", ledgers.with_tracking().ledgers(4))
        made.begin_part(2, [ledger_of(3, first_offset=200), ledger_of(3, first_offset=203)])
        stream = made.tables["orders"]
        for stop in stops:
            with pytest.MonkeyPatch.context() as patch, suppress(Stopped):
                patch.setattr(Path, "rename", stopping(Path.rename, after=stop))
                export_stream(stream, folder, format=form, file_size_bytes=size_bytes)

        export_stream(stream, folder, format=form, file_size_bytes=size_bytes)

        assert exported(folder) == made.expected()
        assert [path.name for path in folder.glob("*.unfinished")] == []


def stopping(rename: object, *, after: int) -> object:
    calls = iter(range(after))

    def stopped(path: Path, target: Path) -> None:
        if next(calls, None) is None:
            raise Stopped
        rename(path, target)  # type: ignore[operator]

    return stopped


def test_a_later_run_adds_what_is_new_and_a_last_file_is_enough(made: World, tmp_path: Path) -> None:
    made.blocking.append("orders", [b"one"])
    made.blocking.append("orders", [b"two"])
    first = export_stream(made.tables["orders"], tmp_path, file_size_bytes=1)
    (tmp_path / f"1-{0:020}-{1:020}.parquet").unlink()
    made.blocking.append("orders", [b"three"])

    later = export_stream(made.tables["orders"], tmp_path)
    idle = export_stream(made.tables["orders"], tmp_path)

    assert (first.rows, first.files, later.rows, later.files, idle.files) == (2, 2, 1, 1, 0)
    assert idle.place == PartOffset(1, 3)
    assert [value for *_, value in exported(tmp_path)] == [b"two", b"three"]


def test_a_range_and_columns_are_exported(made: World, tmp_path: Path) -> None:
    made.write("orders", [ledger_of(30)])

    done = export_stream(made.tables["orders"], tmp_path, start=5, end=8, columns=iter(["offset"]))

    assert done.place == PartOffset(1, 8)
    assert duckdb.sql(f"select * from '{tmp_path}/*.parquet'").fetchall() == [(5,), (6,), (7,)]


def test_row_groups_are_filled_from_small_batches(made: World, tmp_path: Path) -> None:
    made.write("orders", ledgers.sub_batches().ledgers(1))
    export_stream(made.tables["orders"], tmp_path)

    [path] = tmp_path.glob("*.parquet")

    assert pq.ParquetFile(path).metadata.num_row_groups == 1


def test_another_stream_format_or_column_is_refused(made: World, tmp_path: Path) -> None:
    made.write("orders", [ledger_of(3)])
    made.write("returns", [ledger_of(3)])
    orders = made.tables["orders"]
    export_stream(orders, tmp_path)
    before = sorted(tmp_path.iterdir())

    with pytest.raises(Misuse, match="with stream 'orders', not 'returns': take another folder"):
        export_stream(made.tables["returns"], tmp_path)
    with pytest.raises(Misuse, match="with format 'parquet', not 'arrow'"):
        export_stream(orders, tmp_path, format=ExportFormat.ARROW)
    with pytest.raises(Misuse, match="with columns"):
        export_stream(orders, tmp_path, columns=["offset"])
    with pytest.raises(Misuse, match="no column 'ofset'"):
        export_stream(orders, tmp_path, columns=["ofset"])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"stream": "orders"}', "\udcff"], ids=repr)
def test_a_file_of_another_program_is_no_record_of_an_export(made: World, tmp_path: Path, text: str) -> None:
    made.write("orders", [ledger_of(3)])
    (tmp_path / exporting.SETTINGS_NAME).write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(Misuse, match=r"export\.json is no record of an export.*: take another folder"):
        export_stream(made.tables["orders"], tmp_path)


def test_a_stream_that_was_begun_again_is_refused(made: World, tmp_path: Path) -> None:
    made.blocking.append("orders", [b"one"])
    export_stream(made.tables["orders"], tmp_path)
    made.blocking.delete("orders")
    made.blocking.append("orders", [b"other", b"two"])

    with pytest.raises(Misuse, match="was deleted and begun again"):
        export_stream(made.tables["orders"], tmp_path)


def test_a_part_that_was_begun_again_is_refused_although_a_run_met_none_of_its_lives(
    made: World, tmp_path: Path
) -> None:
    made.write("orders", [ledger_of(3)])
    made.begin_part(2, [ledger_of(3, first_offset=200)])
    export_stream(made.tables["orders"], tmp_path)
    made.blocking.run(delete_stream(made.blocking.offloader, "orders"))
    made.begin_part(3, [ledger_of(3, first_offset=300)])
    export_stream(made.tables["orders"], tmp_path)
    made.write("orders", [ledger_of(3)])

    with pytest.raises(Misuse, match="was deleted and begun again"):
        export_stream(made.tables["orders"], tmp_path)


def test_an_export_ends_with_the_highest_part_and_not_with_the_last_name(made: World, tmp_path: Path) -> None:
    made.write("orders", [ledger_of(3)])
    for number in range(2, 11):
        made.begin_part(number, [ledger_of(3, first_offset=100 * number)])
    export_stream(made.tables["orders"], tmp_path)

    again = export_stream(made.tables["orders"], tmp_path)

    assert (again.rows, again.place) == (0, PartOffset(10, 1003))


def test_a_program_that_reads_a_whole_folder_reads_the_rows_alone(made: World, tmp_path: Path) -> None:
    """Also while a run is under way, or was killed."""
    made.write("orders", [ledger_of(3), ledger_of(3, first_offset=3)])
    folder = tmp_path / "orders"
    with pytest.MonkeyPatch.context() as patch, suppress(Stopped):
        patch.setattr(Path, "rename", stopping(Path.rename, after=2))
        export_stream(made.tables["orders"], folder, file_size_bytes=1)

    assert [path.name for path in folder.glob("*.unfinished")] != []
    assert pq.read_table(folder)["offset"].to_pylist() == [0, 1, 2]


def test_a_refused_run_binds_no_later_one(made: World, tmp_path: Path) -> None:
    made.write("orders", [ledger_of(3)])
    orders = made.tables["orders"]

    with pytest.raises(NotOffloaded, match="9 is beyond"):
        export_stream(orders, tmp_path, start=9)
    assert export_stream(orders, tmp_path, start="next").files == 0

    assert export_stream(orders, tmp_path, format=ExportFormat.ARROW, columns=["offset"]).rows == 3
    with pytest.raises(Misuse, match="with format 'arrow', not 'parquet'"):
        export_stream(orders, tmp_path, columns=["offset"])


def test_files_without_a_record_are_refused(made: World, tmp_path: Path) -> None:
    """Nothing says whether they have the same columns."""
    made.write("orders", [ledger_of(3)])
    export_stream(made.tables["orders"], tmp_path)
    (tmp_path / exporting.SETTINGS_NAME).unlink()

    with pytest.raises(Misuse, match=r"has files, but no _export\.json"):
        export_stream(made.tables["orders"], tmp_path)


def test_rows_that_were_trimmed_before_the_next_run_are_reported(made: World, tmp_path: Path) -> None:
    for value in (b"one", b"two", b"three"):
        made.blocking.append("orders", [value])
    export_stream(made.tables["orders"], tmp_path, end=1)
    made.blocking.run(trim(made.blocking.offloader, "orders", Retention(before_offset=1)))
    export_stream(made.tables["orders"], tmp_path, end=1)
    made.blocking.run(trim(made.blocking.offloader, "orders", Retention(before_offset=2)))

    with pytest.raises(NotOffloaded, match=r"\[1, 2\) were trimmed before they were exported"):
        export_stream(made.tables["orders"], tmp_path)
    assert [value for *_, value in exported(tmp_path)] == [b"one"]


def test_rows_of_a_part_that_was_trimmed_whole_before_the_next_run_are_reported(
    made: World, tmp_path: Path
) -> None:
    made.blocking.append("orders", [b"one", b"two"])
    export_stream(made.tables["orders"], tmp_path, end=1)
    made.begin_part(2, [ledger_of(1, first_offset=5)])
    made.blocking.run(trim(made.blocking.offloader, "orders", Retention(before_offset=2)))

    with pytest.raises(NotOffloaded, match=r"\[1, 2\) were trimmed before they were exported"):
        export_stream(made.tables["orders"], tmp_path)


def test_offsets_between_parts_are_holes_of_the_run_that_passes_them(made: World, tmp_path: Path) -> None:
    """A trim of the beginning of a part looks the same as a gap, so the run goes on, and says so."""
    made.blocking.append("orders", [b"one", b"two"])
    export_stream(made.tables["orders"], tmp_path)
    made.begin_part(2, [ledger_of(1, first_offset=5)])

    assert export_stream(made.tables["orders"], tmp_path).holes == ((2, 5),)
    assert export_stream(made.tables["orders"], tmp_path).holes == ()
    assert [offset for _, offset, *_ in exported(tmp_path)] == [0, 1, 5]


def test_an_export_goes_on_behind_the_last_file_of_a_forked_part(made: World, tmp_path: Path) -> None:
    """The part has lower offsets than the one before it."""
    made.blocking.append("orders", [b"one", b"two", b"three"])
    made.begin_part(2, [ledger_of(1)])
    export_stream(made.tables["orders"], tmp_path)
    made.write(StreamPart("orders", 2).name, [ledger_of(1, first_offset=1)])

    later = export_stream(made.tables["orders"], tmp_path)

    assert (later.rows, later.place) == (1, PartOffset(2, 2))
    assert exported(tmp_path) == made.expected()


@pytest.mark.parametrize("below", [".", "orders", "orders/data", "new/folder", "link"])
def test_a_folder_of_the_tier_is_refused(tmp_path: Path, below: str) -> None:
    tier = tmp_path / "100%25 tier"
    with Blocking(str(tier)) as blocking:
        blocking.append("orders", [b"one"])
    (tmp_path / "link").symlink_to(tier / "orders")
    folder = tmp_path / "link" / "data" if below == "link" else tier / below
    before = sorted(tier.rglob("*"))

    with open_tables(str(tier)) as tables, pytest.raises(Misuse, match="lies within the tier"):
        export_stream(tables["orders"], folder)
    assert sorted(tier.rglob("*")) == before


def test_a_file_is_durable_before_it_has_its_name_and_then_the_name_is(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure must not leave a name without the rows: the next run continues behind it."""
    calls: list[tuple[str, object]] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("sync", "the folder" if path == tmp_path else (path.name, path.stat().st_size)))

    def renamed(path: Path, target: Path) -> Path:
        size_bytes = path.stat().st_size
        calls.append(("rename", (path.name, size_bytes)))
        return rename(path, target)

    made.blocking.append("orders", [b"one", b"two"])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    export_stream(made.tables["orders"], tmp_path, file_size_bytes=1)

    assert len(calls) == 3 * len(list(tmp_path.iterdir())) >= 6
    for written, named, known in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
        assert (written[0], named[0], known) == ("sync", "rename", ("sync", "the folder"))
        assert written[1] == named[1]


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/none"])
def test_a_place_that_can_be_no_folder_is_refused(made: World, tmp_path: Path, name: str) -> None:
    made.write("orders", [ledger_of(3)])
    (tmp_path / "file").touch()

    with pytest.raises(Misuse, match="is no folder and cannot be made"):
        export_stream(made.tables["orders"], tmp_path / name)


def test_two_processes_do_not_export_to_one_folder(made: World, tmp_path: Path) -> None:
    made.write("orders", [ledger_of(3)])
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)

    with pytest.raises(Misuse, match="another process exports"):
        export_stream(made.tables["orders"], tmp_path)
    os.close(other)

    assert export_stream(made.tables["orders"], tmp_path).rows == 3


def test_the_command_exports_and_continues(tmp_path: Path) -> None:
    with Blocking(str(tmp_path / "tier")) as tier:
        tier.append("orders", [b"one", b"two"])
    said = ("export", tmp_path / "tier", "orders", tmp_path / "out", "--columns", "offset, value", "--json")

    first, again = offload(*said).document, offload(*said).document

    assert (first["rows"], again["rows"], again["place"]) == (2, 0, {"part": 1, "offset": 2})
    assert [path.name for path in exporting_files(tmp_path / "out")] == [f"1-{0:020}-{2:020}.parquet"]
    assert "take another folder" in offload(*said, "--format", "arrow").stderr


def exporting_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != exporting.SETTINGS_NAME]
