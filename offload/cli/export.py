"""`offload export`: write a stream as files of Parquet or Arrow."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.names import meant
from offload.cli.kit.output import counted, print_json, print_note, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext, position_of
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload.opening.blocking import Blocking

if TYPE_CHECKING:
    from offload.opening.exporting import ExportedRows


class ExportKind(StrEnum):
    """The formats of the files. Those of `ExportFormat`, which needs pyarrow."""

    PARQUET = "parquet"
    ARROW = "arrow"


ExportFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of the files, for STREAM alone.")
]
Kind = Annotated[ExportKind, typer.Option("--format", help="The format of the files.")]
ExportFrom = Annotated[
    str, typer.Option("--from", metavar="SPEC", help="Where to begin, if FOLDER has no files yet.")
]
ExportTo = Annotated[
    str | None,
    typer.Option("--to", metavar="SPEC", help="Stop before this offset or time. Default: the end."),
]
ColumnNames = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="The columns, with commas between. Default: offset,timestamp,value,part. With --decode, what "
        "the decoder finds takes the place of value.",
    ),
]
DecodeRows = Annotated[
    str | None, typer.Option("--decode", metavar="NAME", help="A decoder of a plugin, such as amqp.")
]
FileSize = Annotated[
    str, typer.Option("--file-size", metavar="SIZE", help="Begin a new file after this much data.")
]


def export(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    folder: ExportFolder,
    kind: Kind = ExportKind.PARQUET,
    start: ExportFrom = "first",
    to: ExportTo = None,
    columns: ColumnNames = None,
    decode: DecodeRows = None,
    file_size: FileSize = "256MiB",
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Write STREAM to FOLDER as files of Parquet or Arrow. A later run adds only what is new.

    If it is killed, run the same command again: it continues behind the last whole file. Needs no Spark.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    how = {
        "start": position_of(start),
        "end": None if to is None else position_of(to),
        "columns": None if columns is None else [name.strip() for name in columns.split(",")],
        "decode": decode,
        "file_size_bytes": parse_size(file_size, option="--file-size"),
    }
    blocking = Blocking.around(lambda: state.catalogue(tier, option), plugins=state.plugins)
    with progress(json=json) as show:
        done = _exported(state, blocking, stream, folder, kind, how, show)
    if json:
        print_json({"stream": stream, **asdict(done)})
        return
    _note_holes(stream, done)
    behind = "" if done.place is None else f"; the export ends at offset {done.place.offset}"
    files = counted(done.files, "file")
    print(f"{stream}: {counted(done.rows, 'row')} in {files}, {size_text(done.size_bytes)}{behind}")


def _note_holes(stream: str, done: ExportedRows) -> None:
    for first, following in done.holes:
        print_note(
            f"{stream}: no part has the offsets [{first}, {following}): the broker dropped them before "
            "they were copied, or they were trimmed before they were exported"
        )


def _exported(
    state: CommandContext,
    blocking: Blocking,
    stream: str,
    folder: Path,
    kind: ExportKind,
    how: dict[str, Any],
    show: Show,
) -> ExportedRows:
    try:
        from offload.opening.exporting import ExportFormat, export_stream
        from offload.opening.tables import ArrowTier
    except ModuleNotFoundError as exc:
        raise Misuse(missing_text("offload export", "pyarrow", "ledger-offload[arrow]")) from exc
    with ArrowTier.around(blocking) as tables:
        rows = tables[meant([*tables], stream)]

        def seen(done: ExportedRows) -> None:
            total = done.rows + rows.count(done.place, how["end"])
            what, size = f"exporting {stream}", done.size_bytes
            show(CommandProgress(what=what, done=done.rows, total=total, size_bytes=size))

        try:
            return export_stream(rows, folder, format=ExportFormat(kind), progress=seen, **how)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"whole files stay in {folder}; run again to continue") from stop
        finally:
            blocking.run(state.session.aclose())
