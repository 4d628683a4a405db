"""The export of a stream as files of Parquet or Arrow: a folder for a stream, a file for a range of offsets.

    _export.json                                             what is exported, and how
    1-00000000000000000000-00000000000001048576.parquet      part, first offset, next offset

A file appears under its name when it is whole and durable, by a rename. So the names say how far an export
has come: a run that was killed is continued, and a later run adds what was committed since. All other names
begin with an underscore, because programs that read a whole folder pass over such names.

Invariants: no row is in two files, and none that the tier has is left out. Rows that a trim took before they
were exported end a run with an error if the tier shows it, and are a hole of the result if it does not. A
folder has one stream in one format with the same columns, and does not lie in the tier. A file is never
changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from offload.ground.errors import Misuse, NotOffloaded, OffloadError
from offload.ground.outside import Unreadable, json_outside, read_outside
from offload.ground.urls import folder_named
from offload.local.files import explained
from offload.local.segment_writer import sync_folder
from offload.model.position import PartOffset
from offload.opening.tables import ArrowStream, RowPosition

__all__ = ["ExportFormat", "ExportedRows", "export_stream"]


SETTINGS_NAME: Final = "_export.json"
EXPORT_SIZE_BYTES: Final = 256 * 1024 * 1024
_NAME: Final = re.compile(r"([0-9]+)-([0-9]{20})-([0-9]{20})\.(?:parquet|arrow)")
_UNFINISHED: Final = ".unfinished"
_ROW_GROUP_ROWS: Final = 2**17
_ROW_GROUP_SIZE_BYTES: Final = 64 * 1024 * 1024


class ExportFormat(StrEnum):
    """The format of the files."""

    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRows:
    """The rows and files that a run has added, and the place behind the last file of the folder."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    place: PartOffset | None = None
    holes: tuple[tuple[int, int], ...] = ()
    """Offsets between two parts, behind the last file of the run before, that no part has: [first, next).

    The broker dropped these records before they were copied, or a trim took them before this run. The tier
    does not show which. Offsets that two parts have do not show that a trim took the beginning of the second.
    """


def export_stream(
    stream: ArrowStream,
    folder: Path,
    *,
    format: ExportFormat = ExportFormat.PARQUET,  # noqa: A002 - the name of the option
    start: RowPosition = None,
    end: RowPosition = None,
    columns: Iterable[str] | None = None,
    decode: str | None = None,
    file_size_bytes: int = EXPORT_SIZE_BYTES,
    progress: Callable[[ExportedRows], None] = lambda exported: None,
) -> ExportedRows:
    """Write the rows of a stream into a folder, behind those that it has. Return what this run added.

    `start` counts only for a folder without files. A file has about `file_size_bytes` of chunks, and ends
    with a fragment. `progress` is called after each. If the run stops anywhere, the files stay, and the next
    run continues behind them. Raises `Misuse` if the folder has files of another stream, format or columns,
    or if another process exports to it, or if it lies within the tier; `NotOffloaded` if rows behind its last
    file were trimmed; and as `ArrowStream.to_batches`.
    """
    schema = stream.to_batches("next", None, columns, decode).schema
    settings = {"stream": stream.name, "format": str(format), "columns": schema.names, "decode": decode}
    _refuse_tier(folder, stream.url)
    _make(folder)
    with _claimed(folder):
        done = ExportedRows(place=_end_of(folder))
        begin = start if done.place is None else done.place
        ranges = stream.split(begin, end, size_bytes=file_size_bytes)
        if done.place is not None:
            _check_trimmed(stream.name, done.place, stream.spans)
            done = replace(done, holes=_holes(done.place, stream.spans))
        _agree(folder, settings, stream.incarnations, is_begun=done.place is not None)
        for first, behind in ranges:
            path = folder / f"{first.part}-{first.offset:020}-{behind.offset:020}.{format}"
            batches = stream.to_batches(first, behind, schema.names, decode)
            with _appearing(path) as unfinished:
                rows = _write(unfinished, format, batches)
            done = replace(
                done,
                rows=done.rows + rows,
                files=done.files + 1,
                size_bytes=done.size_bytes + path.stat().st_size,
                place=behind,
            )
            progress(done)
    return done


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Hold the folder for this process. The system frees it when the process ends, however it ends."""
    with explained("open", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise Misuse(f"another process exports to {folder}") from exc
        for left in folder.glob(f"_*{_UNFINISHED}"):
            left.unlink()
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    try:
        with explained("make", folder):
            folder.mkdir(parents=True, exist_ok=True)
    except OffloadError as error:
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError | FileNotFoundError):
            raise Misuse(f"{folder} is no folder and cannot be made: take another folder") from error
        raise


def _agree(folder: Path, settings: dict[str, Any], incarnations: dict[str, str], *, is_begun: bool) -> None:
    """Record what is exported, or raise `Misuse` if it is not what the files of the folder have."""
    path, before = folder / SETTINGS_NAME, settings | {"parts": {}}
    if path.exists():
        recorded = _recorded(path, settings.keys())
        # A run that was refused, or had no rows, binds no later one.
        before = recorded if is_begun else before
    elif is_begun:
        raise Misuse(f"{folder} has files, but no {SETTINGS_NAME} that says of what: take another folder")
    for name, value in settings.items():
        if before[name] != value:
            raise Misuse(
                f"{folder} has an export with {name} {before[name]!r}, not {value!r}: take another folder"
            )
    for number, incarnation in incarnations.items():
        if before["parts"].get(number, incarnation) != incarnation:
            raise Misuse(
                f"stream {settings['stream']!r} was deleted and begun again since {folder} was written: take "
                "another folder"
            )
    if not incarnations.keys() <= before["parts"].keys():
        with _appearing(path) as unfinished:
            text = json.dumps(settings | {"parts": before["parts"] | incarnations}, indent=1)
            unfinished.write_text(text + "\n", encoding="utf-8")


def _check_trimmed(stream: str, place: PartOffset, spans: dict[int, tuple[int, int]]) -> None:
    """Raise `NotOffloaded` if the part of the last file begins behind its end by now, or is empty."""
    first, _ = spans.get(place.part, (place.offset, place.offset))
    if first > place.offset:
        raise NotOffloaded(
            f"stream {stream!r}: offsets [{place.offset}, {first}) were trimmed before they were "
            "exported: take another folder"
        )


def _holes(place: PartOffset, spans: dict[int, tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the offsets between the parts from that of the last file on."""
    later = [span for number, span in sorted(spans.items()) if number >= place.part]
    return tuple((end, first) for (_, end), (first, _) in pairwise(later) if end < first)


def _refuse_tier(folder: Path, url: str) -> None:
    """Raise `Misuse` for a folder of the tier itself, in which a sweep or a reader would meet the files."""
    tier = folder_named(url)
    if tier is None:
        return
    with explained("look at", folder):
        if folder.resolve().is_relative_to(tier.resolve()):
            raise Misuse(f"{folder} lies within the tier {url}: take a folder outside of it")


def _recorded(path: Path, names: Iterable[str]) -> dict[str, Any]:
    try:
        found = json_outside(read_outside(path))
        return {name: found[name] for name in names} | {"parts": dict(found["parts"])}
    except OSError:
        with explained("read", path):
            raise
    except (ValueError, TypeError, LookupError) as exc:
        why = f" ({exc})" if isinstance(exc, Unreadable) else ""
        raise Misuse(f"{path} is no record of an export{why}: take another folder") from exc


def _end_of(folder: Path) -> PartOffset | None:
    """Return the place behind the last file; None if there is none. Older files may have been moved away."""
    found = [match for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    ends = [(int(match[1]), int(match[3])) for match in found]
    return PartOffset(*max(ends)) if ends else None


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Yield a path to write to. At the end of the block the file is durable, and gets its name."""
    unfinished = path.with_name(f"_{path.name}{_UNFINISHED}")
    with explained("write", path):
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.rename(path)
    sync_folder(path.parent)


def _write(path: Path, format: ExportFormat, batches: pa.RecordBatchReader) -> int:  # noqa: A002 - as above
    rows = 0
    with (
        pq.ParquetWriter(path, batches.schema, compression="zstd")
        if format is ExportFormat.PARQUET
        else pa.ipc.new_file(path, batches.schema)
    ) as writer:
        for group in _groups(batches):
            writer.write_table(group)
            rows += group.num_rows
    return rows


def _groups(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield batches together, until a row group is full: a chunk with sub-batches is a batch of its own."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if (
            sum(each.num_rows for each in group) >= _ROW_GROUP_ROWS
            or sum(each.nbytes for each in group) >= _ROW_GROUP_SIZE_BYTES
        ):
            yield pa.Table.from_batches(group)
            group = []
    if group:
        yield pa.Table.from_batches(group)
