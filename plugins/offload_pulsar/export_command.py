"""The command `offload pulsar export`."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from offload.cli.kit.arguments import Keys, Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, print_json, print_note, print_table
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Misuse
from offload_pulsar.bucket import PulsarBucket
from offload_pulsar.bucket_argument import AsJson, Bucket, opened, plain_url
from offload_pulsar.exporting import (
    DRIVERS,
    Export,
    ExportedLedger,
    ExportPlan,
    driver_metadata,
    plan_export,
)
from offload_pulsar.ledger_metadata import LedgerInfo, encode_managed_ledger_info
from offload_pulsar.names import BrokerNames

__all__ = ["export"]


DRIVER_OF: Final = {"s3": "aws-s3", "gs": "google-cloud-storage", "az": "azureblob"}
"""The driver that a broker uses for a bucket, by the scheme of its URL."""

MANAGED_LEDGER: Final = re.compile(r"[^/]+/[^/]+/persistent/[^/]+")

ManagedLedgerName = Annotated[
    str | None,
    typer.Option(
        "--managed-ledger",
        metavar="NAME",
        help="The topic partition in the metadata of the objects. Default: STREAM if it is such a name, else "
        "public/default/persistent/STREAM.",
    ),
]
Cluster = Annotated[str, typer.Option(metavar="NAME", help="The cluster in the metadata of the objects.")]
BlockSize = Annotated[
    str, typer.Option(metavar="SIZE", help="The size of a block, at most. S3 takes 5MiB or more.")
]
WithOldest = Annotated[
    bool,
    typer.Option("--oldest", help="Also export the oldest ledger of a stream that begins behind offset 0."),
]
WithNewest = Annotated[
    bool,
    typer.Option("--newest", help="Also export the newest ledger. Give it if nothing will be added to it."),
]
InBookkeeper = Annotated[
    bool, typer.Option("--in-bookkeeper", help="The records say that BookKeeper still has the ledgers.")
]
RecordDriver = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"The driver in the records: {', '.join(DRIVERS)}. Default: by the scheme of URL.",
    ),
]
RecordRegion = Annotated[str, typer.Option(metavar="NAME", help="The region in the records.")]
RecordEndpoint = Annotated[str, typer.Option(metavar="URL", help="The endpoint in the records.")]
RecordBucket = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        metavar="NAME",
        help="The bucket in the records: for a folder, the one to which you copy it. Default: that of URL.",
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FILE",
        help="Also write the records of all exported ledgers to FILE, as one ManagedLedgerInfo.",
    ),
]
BucketOptions = Annotated[
    list[str] | None,
    typer.Option("--bucket-option", metavar="NAME=VALUE", help="An option of the bucket. May be repeated."),
]


def export(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, as `offload ls` names it.")],
    url: Bucket,
    managed_ledger: ManagedLedgerName = None,
    cluster: Cluster = "",
    block_size: BlockSize = "64MiB",
    oldest: WithOldest = False,
    newest: WithNewest = False,
    in_bookkeeper: InBookkeeper = False,
    driver: RecordDriver = None,
    region: RecordRegion = "",
    endpoint: RecordEndpoint = "",
    bucket: RecordBucket = None,
    records: Records = None,
    keys: Keys = None,
    option: Options = None,
    bucket_option: BucketOptions = None,
    json: AsJson = False,
) -> int:
    """Write ledgers of STREAM as objects that Pulsar reads, and print the records for its metadata.

    Nothing is written to Pulsar's metadata store. To resume, run it again: ledgers that the bucket has
    are left alone. Exit code 1 if a ledger cannot be exported, or
    if all are left out.
    """
    state: CommandContext = context.obj.with_keys(keys)
    block_size_bytes = parse_size(block_size, option="--block-size")
    target = urlsplit(plain_url(url))
    driver, bucket = driver or DRIVER_OF.get(target.scheme.lower()), bucket or target.netloc
    if driver is None or not bucket:
        raise Usage(
            f"Pulsar reads no {plain_url(url)}: name the --driver and --bucket to which you copy the objects"
        )
    try:
        properties = driver_metadata(driver, bucket=bucket, region=region, endpoint=endpoint)
    except Misuse as error:
        raise Usage(f"--driver: {error}") from error
    managed_ledger = managed_ledger or _managed_ledger(stream)
    if MANAGED_LEDGER.fullmatch(managed_ledger) is None:
        raise Usage(f"--managed-ledger: {managed_ledger!r} is not TENANT/NAMESPACE/persistent/TOPIC")
    done = _Done()

    async def write(catalogue: Catalogue, show: Show) -> None:
        done.plan = await plan_export(await catalogue.view(stream), with_oldest=oldest, with_newest=newest)
        if later := await catalogue.parts(stream):
            print_note(f"{stream} continues in {counted(len(later), 'part')}: export each by its own name")
        exporting = Export(
            bucket=PulsarBucket(opened(state, url, bucket_option), block_size_bytes_max=block_size_bytes),
            tier=catalogue,
            stream=stream,
            names=BrokerNames(
                managed_ledger=managed_ledger,
                cluster=cluster,
                software_version="ledger-offload",
            ),
            driver=driver,
            properties=properties,
            in_bookkeeper=in_bookkeeper,
            env=state.session.env,
            progress=lambda entries, size: show(done.moved(stream, entries, size)),
        )
        async for each in exporting.ledgers(done.plan):
            done.ledgers.append(each)

    async def main() -> None:
        async with state.catalogue(tier, option) as catalogue:
            with progress(json=json) as show:
                await write(catalogue, show)

    try:
        run_async(main)
    finally:
        # Also after an error: what is durable needs its records.
        _tell(done, json=json, records=records)
    is_idle = done.plan.left_out and not done.ledgers
    return 1 if is_idle or any(each.is_refusal for each in done.plan.left_out) else 0


@dataclass(slots=True)
class _Done:
    """What an export has done so far."""

    plan: ExportPlan = field(default_factory=ExportPlan)
    ledgers: list[ExportedLedger] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0

    def moved(self, stream: str, entries: int, size: int) -> CommandProgress:
        """Count entries that were read, and return the progress. Each ledger is read twice."""
        self.entries += entries
        self.size_bytes += size
        total = 2 * sum(each.entries for each in self.plan.ledgers)
        return CommandProgress(
            what=f"exporting {stream}", done=self.entries, total=total or None, size_bytes=self.size_bytes
        )


def _managed_ledger(stream: str) -> str:
    return stream if "/persistent/" in stream else f"public/default/persistent/{stream}"


def _tell(done: _Done, *, json: bool, records: Path | None) -> None:
    for each in done.plan.left_out:
        print_note(f"ledger {each.ledger.ledger_id} is left out: {each.reason}")
    infos = [each.record for each in done.ledgers]
    if records is not None and infos:
        records.write_bytes(encode_managed_ledger_info(infos))
    if json:
        print_json({"ledgers": [_as_json(each) for each in done.ledgers]}, indent=2)
        return
    if not infos:
        print_note("no ledger was exported")
        return
    print_table(
        ["ledger", "entries", "bytes", "attempt", "LedgerInfo (base64)"],
        (
            [
                each.record.ledger_id,
                each.record.entries,
                each.record.length,
                _uid(each.record),
                base64.b64encode(each.record.raw).decode(),
            ]
            for each in done.ledgers
        ),
    )
    if there := sum(each.was_there for each in done.ledgers):
        print_note(f"{counted(there, 'ledger was', 'ledgers were')} in the bucket already")


def _uid(record: LedgerInfo) -> str:
    assert record.offloaded is not None
    return str(record.offloaded.uid)


def _as_json(each: ExportedLedger) -> dict[str, object]:
    record = each.record
    return {
        "ledger": record.ledger_id,
        "attempt": _uid(record),
        "entries": record.entries,
        "bytes": record.length,
        "was_there": each.was_there,
        "ledger_info": base64.b64encode(record.raw).decode(),
    }
