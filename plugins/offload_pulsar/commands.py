"""The commands `offload pulsar …`: look into a bucket of Pulsar's, verify it, and write one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import Options
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import (
    counted,
    error_line,
    one_line,
    print_json,
    print_note,
    print_table,
    size_text,
)
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.events import DamageFound
from offload.ground.errors import NotOffloaded, OffloadError
from offload_pulsar.bucket import PulsarBucket
from offload_pulsar.bucket_argument import AsJson, Bucket, opened
from offload_pulsar.export_command import export
from offload_pulsar.ledger_metadata import METADATA_SIZE_BYTES_MAX, LedgerInfo, managed_ledger_info
from offload_pulsar.scanning import BucketScan, NamedAttempts, ScannedAttempt, scan_bucket
from offload_pulsar.verifying import BucketReport, verify_bucket

REPAIR: Final = (
    "to repair it: offload it again if BookKeeper has the ledger, or restore it from a backup of the bucket"
)

app = typer.Typer(help="Look into Pulsar's buckets, verify them, and write them.", no_args_is_help=True)


@app.command()
def scan(
    context: typer.Context,
    url: Bucket,
    metadata: Annotated[
        list[Path] | None,
        typer.Option(
            "--metadata",
            metavar="FILE",
            help="Compare with the ManagedLedgerInfo of a topic: the bytes of its record in Pulsar's "
            "metadata store, or the JSON of this message. May be repeated: give those of all topics.",
        ),
    ] = None,
    managed_ledger: Annotated[
        str | None,
        typer.Option(
            "--managed-ledger",
            metavar="NAME",
            help="Show only this topic partition, such as public/default/persistent/orders-partition-0.",
        ),
    ] = None,
    option: Options = None,
    json: AsJson = False,
) -> int:
    """List what is in a bucket, and compare it with Pulsar's metadata.

    Every attempt is listed, with what is missing. Exit code 1 if data is missing.
    """
    state: CommandContext = context.obj
    found = BucketScan(named=None if metadata is None else NamedAttempts(_records(metadata)))

    async def main() -> NotOffloaded | None:
        store = opened(state, url, option)
        if managed_ledger is not None and not PulsarBucket(store).keeps_metadata:
            raise Usage(f"--managed-ledger: {store.url} keeps no metadata, so no object has a name")
        with progress(json=json) as show:
            await scan_bucket(
                store, found, managed_ledger=managed_ledger, progress=lambda seen: show(_scanned(seen))
            )
        if not PulsarBucket(store).keeps_metadata:
            print_note(f"{store.url} keeps no metadata: the topics of its ledgers are not known")
        if found.attempts:
            return None
        return await PulsarBucket(store).nothing_there(
            "" if managed_ledger is None else f" of {managed_ledger}"
        )

    nothing = run_async(main)
    if json:
        print_json(found.as_json(), indent=2)
    elif nothing is None:
        _show_scan(found)
    if nothing is not None:
        raise nothing
    return 1 if found.is_bad else 0


@app.command()
def verify(context: typer.Context, url: Bucket, option: Options = None, json: AsJson = False) -> int:
    """Verify every object of a bucket: pairs, versions, sizes, block headers and entry headers.

    Every object is read whole. Pulsar's format has no checksums, so the report says what was not proved.
    Exit code 1 if something is damaged.
    """
    state: CommandContext = context.obj
    report = BucketReport(keeps_metadata=True)

    async def main() -> NotOffloaded | None:
        store = opened(state, url, option)
        report.keeps_metadata = PulsarBucket(store).keeps_metadata
        with progress(json=json) as show:
            await verify_bucket(store, report, lambda seen: show(_verified(seen)))
        is_there = report.attempts or report.damages or report.garbage or report.gone
        return None if is_there else await PulsarBucket(store).nothing_there()

    try:
        nothing = run_async(main)
    except (KeyboardInterrupt, OffloadError):
        if report.size_bytes:
            _tell(state, report, json=json, to_the_end=False)
            done, total = size_text(report.size_bytes), size_text(report.total_size_bytes)
            print_note(f"{done} of {total} were verified")
        raise
    if nothing is None or json:
        _tell(state, report, json=json)
    if nothing is not None:
        raise nothing
    return 1 if report.damages else 0


app.command()(export)


def _records(paths: Sequence[Path]) -> Iterator[LedgerInfo]:
    """Yield the records of all files. Raises `Usage` for a file that is none."""
    for path in paths:
        try:
            with path.open("rb") as file:
                raw = file.read(METADATA_SIZE_BYTES_MAX + 1)
            records = managed_ledger_info(raw, where=str(path))
        except OSError as error:
            raise Usage(f"--metadata: {path}: {error.strerror}") from error
        except OffloadError as error:
            raise Usage(f"--metadata: {error}") from error
        if not records:
            raise Usage(f"--metadata: {path} names no ledger: is it the ManagedLedgerInfo of a topic?")
        offloaded = sum(each.offloaded is not None for each in records)
        attempts = counted(offloaded, "attempt to offload", "attempts to offload")
        print_note(f"{path} names {counted(len(records), 'ledger')} and {attempts}")
        yield from records


def _scanned(found: BucketScan) -> CommandProgress:
    return CommandProgress(what="scanning", done=found.objects, total=None, size_bytes=found.size_bytes)


def _show_scan(found: BucketScan) -> None:
    has_metadata = found.named is not None
    heads = ["managed ledger", "ledger", "attempt", "data", "index", "finding"]
    print_table(
        [*heads, "metadata"] if has_metadata else heads,
        (
            [
                each.managed_ledger or "-",
                _ledger_text(each),
                each.uid,
                "-" if each.data_size_bytes is None else each.data_size_bytes,
                "-" if each.index_size_bytes is None else each.index_size_bytes,
                each.finding,
                *([each.named or "agrees"] if has_metadata else []),
            ]
            for each in found.attempts
        ),
    )
    _show_strangers(found.strangers, found.stranger_count)
    for key in found.unfinished_uploads:
        print_note(f"{key}: an upload that never ended, or that is running; its parts are stored")
    for name, count, size in found.totals():
        print_note(f"{counted(count, 'attempt')}, {size_text(size)}: {name}")
    if found.is_bad:
        print_note(REPAIR)


def _ledger_text(each: ScannedAttempt) -> str:
    return "V2: any" if each.ledger_id is None else str(each.ledger_id)


def _show_strangers(names: Sequence[str], count: int) -> None:
    for name in names:
        print_note(f"{name}: not an object of Pulsar's")
    if count > len(names):
        print_note(f"{counted(count - len(names), 'more object')} of others")


def _verified(report: BucketReport) -> CommandProgress:
    return CommandProgress(
        what="verifying",
        done=report.size_bytes,
        total=report.total_size_bytes or None,
        size_bytes=report.size_bytes,
        note=f" {report.what}" + (f", {len(report.damages)} damaged" if report.damages else ""),
    )


def _tell(state: CommandContext, report: BucketReport, *, json: bool, to_the_end: bool = True) -> None:
    for damage in report.damages:
        state.plugins.emit(DamageFound(damage=damage))
    if json:
        print_json(report.as_json(), indent=2)
        return
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    for each in report.garbage:
        print(f"GARBAGE {one_line(each.name)}: data without index, {size_text(each.data_size_bytes or 0)}")
    _show_strangers(report.strangers, report.stranger_count)
    for partial in report.partial:
        print_note(f"{partial}: the rest is not there, so `offload ls` and `sync` refuse the ledger")
    if report.gone:
        print_note(f"{counted(report.gone, 'attempt was', 'attempts were')} deleted meanwhile")
    if not report.keeps_metadata:
        print_note("the store keeps no metadata: no version was compared, and no topic is known")
    sound = "all of them sound" if to_the_end else "no damage so far"
    verdict = f"{len(report.damages)} damaged" if report.damages else sound
    print(
        f"{counted(report.ledgers, 'ledger')}, {counted(report.entries, 'entry', 'entries')}, "
        f"{size_text(report.size_bytes)}: {verdict if report.attempts or report.damages else 'no ledger'}"
    )
    if report.entries:
        print(_left_open(report))
    if report.damages:
        print_note(REPAIR)


def _left_open(report: BucketReport) -> str:
    """Return a sentence on what a verify without checksums cannot find."""
    checked, others = report.checked_entries, report.entries - report.checked_entries
    proved = f"{counted(checked, 'entry has', 'entries have')} a right checksum of the producer"
    if not others:
        return f"not proved: Pulsar's format has no checksums, but {proved}, so their payloads are sound"
    return (
        f"not proved: Pulsar's format has no checksums. {proved}. In {counted(others, 'other', 'others')} "
        "a changed byte of the payload is not found"
    )
