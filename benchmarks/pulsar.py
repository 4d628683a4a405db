"""Ledgers in Pulsar's objects, in a folder and on MinIO, beside a raw client and Pulsar's own offloader.

    python benchmarks/pulsar.py [--size-mib 1024] [--rounds 2] [--folder DIR] [--json]

One ledger has entries of 1 KiB, another has entries of 100 KiB, and each has `--size-mib` of them in blocks
of 64 MiB. The jobs of a round run one after the other:

    offload          write the ledger: data and index
    sequential       read it in runs of 100 entries
    random, cold     2,000 single entries of a ledger that was just opened (Pulsar's classes: 20 s at most)
    random, walked   2,000 single entries of blocks that were walked
    1, 2, 4 readers  so many sequential readers at once, each of the whole ledger
    native           the same entries as records of our own format: copied to a tier, and read from it

The raw client moves the same objects: a plain file, or boto3 with parts of 64 MiB and ranges of 4 MiB, one
at a time. Pulsar's classes run on MinIO alone, in a Java of their own (`tests/pulsar/peer`), each job warmed
up by a part of itself; their readers share one handle, as those of a broker do. All entries have the same
bytes.

CPU seconds are those of this process, so Java's are not known. Requests are those that were sent. Rates are
bytes of entries. Needs MinIO (`make servers`), and for Pulsar's rows Java 17 and Maven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import machine
import numpy as np
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey, PulsarLedger
from servers.catalogue import server
from servers.places import ACCESS_KEY, SECRET_KEY, S3Place
from stopwatch import Stopwatch

from offload import EntryLedger, EntryLedgerStream, EntryRun, Session
from offload.copy.copier import StreamCopier
from offload.copy.next_part import PartOnTier

MIB: Final = 2**20
BLOCK_SIZE_BYTES: Final = 64 * MIB
RANGE_SIZE_BYTES: Final = 4 * MIB
AT_ONCE: Final = 100
RANDOM: Final = 2000
LEDGER_ID: Final = 7
NAMES: Final = BrokerNames(managed_ledger="public/default/persistent/orders")
PEER: Final = Path(__file__).parent.parent / "tests" / "pulsar" / "peer"


class SameEntries(EntryLedger):
    """A ledger whose entries have the same bytes. A run is made of one buffer, without a copy."""

    is_sealed = True
    ledger_id = LEDGER_ID
    last_entry = length = 0

    def __init__(self, count: int, size: int) -> None:
        self.last_entry, self.length = count - 1, count * size
        self._size, self._most = size, -(-16 * MIB // size)
        self._data = random.Random(1).randbytes(size) * self._most

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return as many entries as are ready."""
        count = min(last - first + 1, self._most)
        ends = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(self._size)
        return EntryRun.packed(
            memoryview(self._data)[: count * self._size], ends, first=first, timestamps_ms=0
        )


@dataclass
class Bench:
    """The jobs of one ledger on one store, and the figures of each round by the name of the row."""

    count: int
    size: int
    session: Session
    rows: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    async def measure(self, name: str, job: Callable[[], Awaitable[Any]], *, moved: int) -> None:
        """Run one job, and note its rate, its CPU seconds for each GiB, and its requests."""
        before, watch = self.session.metrics.requests.total(), Stopwatch()
        shared = self.session.metrics.reads_shared
        await job()
        read = watch.read()
        sent = self.session.metrics.requests.total() - before
        self.note(
            name,
            seconds=read["seconds"],
            mib_per_second=moved / MIB / read["seconds"],
            cpu_seconds_per_gib=read["cpu_seconds"] * 2**30 / moved,
            requests=sent - (self.session.metrics.reads_shared - shared),
        )

    def note(self, name: str, **figures: float) -> None:
        """Add the figures of a round to a row."""
        figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.rows.setdefault(name, []).append(figures)

    async def ours(self, url: str) -> UUID:
        """Run our jobs, and return the attempt, which is left for the raw client."""
        store, uid, whole = self.session.store(url), uuid4(), self.count * self.size
        bucket = PulsarBucket(store, block_size_bytes_max=BLOCK_SIZE_BYTES)
        source = SameEntries(self.count, self.size)
        await self.measure("offload", lambda: bucket.offload(source, uid, names=NAMES), moved=whole)
        await self.measure("random, cold", lambda: self._single(bucket, uid), moved=RANDOM * self.size)
        bucket = PulsarBucket(store)
        await self.measure("sequential", lambda: self._walk(bucket, uid), moved=whole)
        await self.measure("random, walked", lambda: self._single(bucket, uid), moved=RANDOM * self.size)
        for readers in (1, 2, 4):
            several = PulsarBucket(store)
            await self.measure(
                f"{readers} readers",
                lambda bucket=several, readers=readers: asyncio.gather(  # type: ignore[misc]
                    *(self._walk(bucket, uid) for _ in range(readers))
                ),
                moved=readers * whole,
            )
        return uid

    async def native(self, url: str) -> None:
        """Copy the entries to a tier, and read its stream."""
        tier, whole = self.session.tier(url), self.count * self.size

        async def ledgers() -> list[EntryLedger]:
            return [SameEntries(self.count, self.size)]

        async def write() -> None:
            async with await EntryLedgerStream("orders", ledgers).snapshot() as taken:
                copier = StreamCopier(part=PartOnTier.first(tier, "orders"))
                await copier.compare(taken, known_to_be_new=True)
                await copier.copy(taken, taken.next_offset)

        async def read() -> None:
            reader, rows = await self.session.reader(tier, "orders"), 0
            async with aclosing(reader.windows(0)) as windows:
                async for window in windows:
                    rows += int(window.rows["records"].sum())
            assert rows == self.count

        await self.measure("offload, native", write, moved=whole)
        await self.measure("sequential, native", read, moved=whole)

    async def _walk(self, bucket: PulsarBucket, uid: UUID) -> None:
        ledger, at = await bucket.open(LEDGER_ID, uid), 0
        while at < self.count:
            stop = min(at + AT_ONCE, self.count)
            while at < stop:
                at += len((await ledger.entries(at, stop - 1, size_bytes=2**30)).starts)

    async def _single(self, bucket: PulsarBucket, uid: UUID) -> None:
        ledger: PulsarLedger = await bucket.open(LEDGER_ID, uid)
        draw = random.Random(2)
        for _ in range(RANDOM):
            entry = draw.randrange(self.count)
            run = await ledger.entries(entry, entry, size_bytes=1)
            assert int(run.ends[0] - run.starts[0]) == self.size

    async def raw_folder(self, folder: Path, uid: UUID) -> None:
        """Copy and read the data object as a plain file."""
        data, whole = folder / str(PulsarKey(uid, LEDGER_ID)), self.count * self.size
        copy = folder / "copy"

        async def write() -> None:
            with data.open("rb") as source, copy.open("wb") as target:
                while piece := source.read(RANGE_SIZE_BYTES):
                    target.write(piece)
                os.fsync(target.fileno())

        async def read() -> None:
            with copy.open("rb") as source:
                while source.read(RANGE_SIZE_BYTES):
                    pass

        await self.measure("offload, raw", write, moved=whole)
        await self.measure("sequential, raw", read, moved=whole)
        copy.unlink()

    async def raw_s3(self, place: S3Place, uid: UUID) -> None:
        """Upload the data object in parts and read it in ranges, one request at a time, by boto3."""
        key, whole, boto = str(PulsarKey(uid, LEDGER_ID)), self.count * self.size, place.boto
        where = {"Bucket": place.name, "Key": "copy"}
        size = boto.head_object(Bucket=place.name, Key=key)["ContentLength"]

        async def write() -> None:
            begun, parts, left = boto.create_multipart_upload(**where), [], size
            body = random.Random(1).randbytes(BLOCK_SIZE_BYTES)
            while left:
                piece = body[: min(left, BLOCK_SIZE_BYTES)]
                number = len(parts) + 1
                put = boto.upload_part(**where, UploadId=begun["UploadId"], PartNumber=number, Body=piece)
                parts.append({"ETag": put["ETag"], "PartNumber": number})
                left -= len(piece)
            ended = {"UploadId": begun["UploadId"], "MultipartUpload": {"Parts": parts}}
            boto.complete_multipart_upload(**where, **ended)

        async def read() -> None:
            for at in range(0, size, RANGE_SIZE_BYTES):
                span = f"bytes={at}-{min(at + RANGE_SIZE_BYTES, size) - 1}"
                boto.get_object(Bucket=place.name, Key=key, Range=span)["Body"].read()

        await self.measure("offload, raw", write, moved=whole)
        await self.measure("sequential, raw", read, moved=whole)
        boto.delete_object(**where)

    def pulsars(self, classes: str, place: S3Place) -> None:
        """Run the jobs of Pulsar's classes."""
        quiet, memory = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-XX:MaxDirectMemorySize=1g"
        command = ["java", "-Xmx2g", memory, quiet, "-cp", classes, str(PEER / "Peer.java"), "time"]
        words = [place.options["endpoint_url"], place.name, str(BLOCK_SIZE_BYTES), str(LEDGER_ID)]
        sizes = [str(uuid4()), NAMES.managed_ledger, str(self.count), str(self.size)]
        keys = {"ACCESS_KEY_ID": ACCESS_KEY, "ACCESS_KEY_SECRET": SECRET_KEY}
        done = subprocess.run(
            [*command, *words, *sizes], env=os.environ | keys, stdout=subprocess.PIPE, check=True, text=True
        )
        found = dict(line.split("\t") for line in done.stdout.splitlines())
        cold = int(found.pop("random, cold: entries"))
        for name, text in found.items():
            seconds, readers = float(text), int(name[0]) if name.endswith("readers") else 1
            entries = {"random, cold": cold, "random, walked": RANDOM}.get(name, readers * self.count)
            rate = entries * self.size / MIB / seconds
            if name == "random, cold":
                seconds *= RANDOM / cold  # the job ends early: this is what all entries would have taken
            self.note(f"{name}, Pulsar's classes", seconds=seconds, mib_per_second=rate)


def pulsars_classes(folder: Path) -> str | None:
    """Return the class path of Pulsar's offloader, or None if it cannot be had here."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        return None
    shutil.copy(PEER / "pom.xml", folder)
    found = folder / "classes.txt"
    argv = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    for more in (["-o"], []):
        if subprocess.run([*argv, *more], cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            return found.read_text().strip()
    return None


async def measured(arguments: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Run all rounds, and return the rows of each ledger on each store."""
    tables: dict[str, dict[str, list[dict[str, float]]]] = {}
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="pulsar.") as scratch,
        server("minio").running() as running,
    ):
        classes = None if arguments.without_java else pulsars_classes(Path(scratch))
        for _ in range(arguments.rounds):
            for name, size in (("1 KiB", 1024), ("100 KiB", 102_400)):
                count = arguments.size_mib * MIB // size
                async with Session() as session:
                    folder = Path(scratch) / "bucket"
                    bench = Bench(count, size, session, tables.setdefault(f"{name}, folder", {}))
                    uid = await bench.ours(str(folder))
                    await bench.raw_folder(folder, uid)
                    await bench.native(str(folder / "tier"))
                    shutil.rmtree(folder)
                place = running.place()
                assert isinstance(place, S3Place)
                os.environ |= place.environment
                async with Session() as session:
                    bench = Bench(count, size, session, tables.setdefault(f"{name}, MinIO", {}))
                    uid = await bench.ours(place.url)
                    await bench.raw_s3(place, uid)
                    await bench.native(f"{place.url}/tier")
                    if classes is not None:
                        bench.pulsars(classes, place)
                for key in sorted(place.keys()):
                    place.boto.delete_object(Bucket=place.name, Key=key)
    return tables


def table(rows: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the medians of each row."""
    return [
        {"job": name, **{key: statistics.median(each[key] for each in found) for key in found[0]}}
        for name, found in sorted(rows.items())
    ]


def main() -> None:
    """Parse arguments, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size-mib", type=int, default=1024, help="bytes of all entries of a ledger")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the files, on a disk")
    parser.add_argument("--without-java", action="store_true", help="leave out the rows of Pulsar's classes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine.require_disk()
    load = os.getloadavg()[0]
    tables = {name: table(rows) for name, rows in asyncio.run(measured(arguments)).items()}
    found = {"machine": machine.description() | {"load": [load, os.getloadavg()[0]]}, "tables": tables}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(found["machine"])
    for name, rows in tables.items():
        print(f"\n| {name} | seconds | MiB/s | CPU s/GiB | requests | peak MiB |\n|---|---|---|---|---|---|")
        for row in rows:
            cpu, sent = row.get("cpu_seconds_per_gib"), row.get("requests")
            print(
                f"| {row['job']} | {row['seconds']:.2f} | {row['mib_per_second']:,.0f} "
                f"| {'' if cpu is None else f'{cpu:.2f}'} | {'' if sent is None else f'{sent:,.0f}'} "
                f"| {row['peak_mib']:,.0f} |"
            )


if __name__ == "__main__":
    main()
