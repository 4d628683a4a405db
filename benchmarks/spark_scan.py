"""The speed of Spark on a stream of a tier, beside the same records as Parquet, by a UDF, and without Spark.

    python benchmarks/spark_scan.py [--size-gib 2] [--rounds 3] [--folder DIR] [--minio] [--jobs REGEX]
                                    [--slots N ...] [--json]

Most jobs answer one query: the bytes of all values, the largest offset and the latest time. Each round runs
every job once, in turn; one more round goes first and is not counted. There is one session with one slot, and
then one with two. `--jobs` names the jobs that run: all of them take long. `--minio` has the stream on MinIO
on this machine, and Parquet in a folder, because Spark has no file system for S3.

Seconds of CPU are those of all processes but MinIO, with planning in Python. The plain reader has one core,
and is the same in both. Files are in the page cache. The requests and bytes of pruned reads are counted at
the store, in this process and without Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import machine
import pyarrow as pa
import stream
from machine import minio

from offload import Blocking, ObjectStoreOffloader, Plugins
from offload.contracts.store import Span, Suffix
from offload.opening.by_url import open_store
from offload.store.stack import stacked_store
from offload.store.wrap import StoreDecorator

MIB = 1024 * 1024
COLUMNS = "offset,timestamp,value"
"""The columns of the Parquet files. By default the source also returns stream, ledger and key."""

QUERY = ("sum(length(value))", "max(offset)", "max(timestamp)")
FRAGMENT_HEAD_BYTES = 16


def main() -> None:
    """Parse arguments, make the data, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size-gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the data: needs 5 times the size"
    )
    parser.add_argument("--minio", action="store_true", help="the stream on a MinIO of this machine")
    parser.add_argument("--jobs", type=re.compile, default=re.compile(""), help="the jobs that run")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2], help="of Spark, in a session each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        name, *given = arguments.work
        print(json.dumps({"session": _session, "parquet": _parquet}[name](*given)))
        return
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        minio() if arguments.minio else nullcontext(f"{folder}/tier") as tier,
    ):
        rows, size_bytes = _make(Path(folder), tier, round(arguments.size_gib * 1024 * MIB))
        found: dict[str, Any] = machine.description() | {
            "rows": rows,
            "size_bytes": size_bytes,
            "rounds": arguments.rounds,
            "load": os.getloadavg()[0],
        }
        for slots in arguments.slots:
            seconds = _apart("session", slots, folder, tier, arguments.rounds, arguments.jobs.pattern)
            found[f"local[{slots}]"] = [_line(job, taken, rows, size_bytes) for job, taken in seconds.items()]
        if not arguments.minio:
            found["pruned"] = _pruned(Path(tier), rows)
    print(json.dumps(found, indent=2)) if arguments.json else _show(found)


def _make(folder: Path, place: str, size_bytes: int) -> tuple[int, int]:
    """Make a source, a tier of it, and the same records as Parquet in two ways."""
    rows = stream.write(folder / "source" / "orders", size_bytes)
    with Blocking(place) as tier:
        tier.run(tier.offloader.open(create=True))
        (report,) = tier.sync(f"rabbitmq://{folder / 'source'}")
        assert report.error is None
        stored_bytes = tier.load_manifest("orders").data_size_bytes
    shutil.rmtree(folder / "source")
    _apart("parquet", str(folder), place)
    return rows, stored_bytes


def _apart(work: str, *arguments: Any) -> Any:
    """Run the jobs in a process of its own: a process has one session, with one number of slots."""
    command = [sys.executable, str(Path(__file__).resolve()), "--work", json.dumps([work, *arguments])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def _started(slots: int) -> Any:
    from offload_spark import session

    return session(master=f"local[{slots}]", conf={"spark.driver.memory": "3g"}, java=True)


def _parquet(folder: str, tier: str) -> None:
    spark = _started(2)
    records = spark.read.format("offload").option("columns", COLUMNS).load(tier)
    for codec in ("uncompressed", "snappy"):
        records.write.option("compression", codec).parquet(f"{folder}/{codec}")
    spark.stop()


def _jobs(spark: Any, folder: str, tier: str) -> dict[str, Callable[[], object]]:
    files = f"{folder}/uncompressed"

    def offload(**options: str) -> Any:
        return spark.read.format("offload").options(**options).load(tier)

    def keys() -> int:
        return len(offload(decode="amqp", columns="key").groupBy("key").count().collect())

    return {
        "Java": lambda: _asked(offload()),
        "Python": lambda: _asked(offload()),
        "Python, Parquet's columns": lambda: _asked(offload(columns=COLUMNS)),
        "parquet uncompressed": lambda: _asked(spark.read.parquet(files)),
        "parquet snappy": lambda: _asked(spark.read.parquet(f"{folder}/snappy")),
        "binaryFile and a UDF": lambda: _asked(_by_udf(spark, tier)),
        "plain reader, one core": lambda: _plain(tier),
        "Java, all to noop": lambda: _drained(offload(columns=COLUMNS)),
        "parquet, all to noop": lambda: _drained(spark.read.parquet(files)),
        "Java, bytes of values": lambda: _bytes_of(offload(), "value"),
        "parquet, bytes of values": lambda: _bytes_of(spark.read.parquet(files), "value"),
        "Java, bytes of AMQP bodies": lambda: _bytes_of(offload(decode="amqp"), "body"),
        "Python, bytes of AMQP bodies": lambda: _bytes_of(offload(decode="amqp", columns="body"), "body"),
        "Java, rows by AMQP key": keys,
        "Python, rows by AMQP key": keys,
        "Java, count": lambda: offload().count(),
        "parquet, count": lambda: spark.read.parquet(files).count(),
        "Java, 1 % of the time": lambda: _asked(_between(offload(), tier)),
        "parquet, 1 % of the time": lambda: _asked(_between(spark.read.parquet(files), tier)),
        "Java, 1 % of the offsets": lambda: _asked(_narrowed(offload(), tier)),
        "Python, 1 % of the offsets": lambda: _asked(_narrowed(offload(), tier)),
        "parquet, 1 % of the offsets": lambda: _asked(_narrowed(spark.read.parquet(files), tier)),
    }


def _session(
    slots: int, folder: str, tier: str, rounds: int, wanted: str
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of every round of every job, and those of CPU."""
    spark = _started(slots)
    jobs = {job: work for job, work in _jobs(spark, folder, tier).items() if re.search(wanted, job)}
    found: dict[str, list[tuple[float, float]]] = {job: [] for job in jobs}
    answers = set[tuple[object, ...]]()
    for number in range(rounds + 1):
        for job, work in jobs.items():
            spark.conf.set("spark.offload.reader", "java" if job.startswith("Java") else "python")
            begun, cpu = time.perf_counter(), _cpu_seconds()
            answer = work()
            if number:
                found[job].append((time.perf_counter() - begun, _cpu_seconds() - cpu))
            if isinstance(answer, tuple) and "%" not in job:
                answers.add(answer)
    assert len(answers) <= 1, answers
    spark.stop()
    return found


def _cpu_seconds() -> float:
    """Return the CPU that this process, its descendants, and those of them that ended have taken."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def _drained(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _bytes_of(frame: Any, column: str) -> int:
    return int(frame.selectExpr(f"sum(length({column}))").first()[0])


def _asked(frame: Any) -> tuple[int, int, int]:
    size, offset, at = frame.selectExpr(*QUERY).first()
    return size, offset, round(at.timestamp() * 1000)


def _narrowed(frame: Any, tier: str) -> Any:
    """Return the rows of one hundredth of the offsets, from the middle on."""
    with Blocking(tier) as opened:
        end = opened.load_manifest("orders").next_offset
    return frame.where(f"offset >= {end // 2} and offset < {end // 2 + end // 100}")


def _between(frame: Any, tier: str) -> Any:
    """Return the rows of one hundredth of the time, from the middle on."""
    with Blocking(tier) as opened:
        entries = opened.load_manifest("orders").entries
    first_ms, last_ms = int(entries["first_timestamp_ms"].min()), int(entries["last_timestamp_ms"].max())
    begin_ms, span_ms = (first_ms + last_ms) // 2, (last_ms - first_ms) // 100
    at = [f"timestamp_millis({each})" for each in (begin_ms, begin_ms + span_ms)]
    return frame.where(f"timestamp >= {at[0]} and timestamp < {at[1]}")


def _plain(tier: str) -> tuple[int, int, int]:
    size, offset, at = 0, 0, 0
    with Blocking(tier) as opened:
        for batch in opened.read("orders"):
            size += sum(map(len, batch.bodies))
            offset, at = batch.offset + len(batch.bodies) - 1, max(at, batch.timestamp_ms)
    return size, offset, at


def _by_udf(spark: Any, tier: str) -> Any:
    """Read without this project: whole objects through Spark, and a loop over their chunks and entries."""
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    found = files.option("pathGlobFilter", "*.fragment").load(tier).select("content")
    return found.mapInArrow(_parsed, "offset long, timestamp timestamp, value binary")


def _parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    chunk = struct.Struct(">BBHIqQQIIIB3x")  # as docs/format.md has a chunk's header
    for batch in batches:
        for content in batch.column(0):
            data = content.as_py()
            at = FRAGMENT_HEAD_BYTES
            while data[at] == 0x50:
                _, kind, _, records, millis, _, offset, _, size, trailer, bloom = chunk.unpack_from(data, at)
                start = at + chunk.size + bloom
                at = start + size + trailer
                if kind == 0:
                    yield _rows(data, start, records, offset, millis)


def _rows(data: bytes, at: int, records: int, offset: int, millis: int) -> pa.RecordBatch:
    values = []
    for _ in range(records):
        stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
        values.append(data[at + 4 : stop])
        at = stop
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(offset, offset + records), pa.int64()),
            pa.array([millis * 1000] * records, pa.timestamp("us", tz="UTC")),
            pa.array(values, pa.binary()),
        ],
        names=["offset", "timestamp", "value"],
    )


class _Counting(StoreDecorator):
    """A store that counts the requests for fragments."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests = self.size_bytes = 0

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        raw = await self.inner.get(key, span)
        if key.endswith(".fragment"):
            self.requests += 1
            self.size_bytes += len(raw)
        return raw


def _pruned(tier: Path, rows: int) -> list[dict[str, Any]]:
    """Return what narrow reads fetch, and the chunks that hold the wanted records."""
    from offload_spark.bounds import ScanBounds

    with Blocking(str(tier)) as opened:
        manifest = opened.load_manifest("orders")
    end, first_ms = manifest.next_offset, int(manifest.entries["first_timestamp_ms"].min())
    span_ms = int(manifest.entries["last_timestamp_ms"].max()) - first_ms
    reads = {
        "1 % of the offsets": ScanBounds(first_offset=end // 2, next_offset=end // 2 + end // 100),
        "1 % of the time": ScanBounds(
            first_timestamp_ms=first_ms + span_ms // 2,
            last_timestamp_ms=first_ms + span_ms // 2 + span_ms // 100,
        ),
    }
    return [{"read": name, **_fetched(tier, bounds)} for name, bounds in reads.items()]


def _fetched(tier: Path, bounds: Any) -> dict[str, Any]:
    from offload_spark.columns import Columns, schema_of
    from offload_spark.options import ReadOptions
    from offload_spark.planning import plan
    from offload_spark.scan import Scan

    from offload.arrow.batches import BatchMaker
    from offload.ground.env import Env

    plugins = Plugins.find()
    counting = _Counting(stacked_store(open_store(str(tier), plugins=plugins), Env()))
    options = ReadOptions.of({"path": str(tier)})
    columns = Columns.of(schema_of(options, plugins), options, plugins)
    maker = BatchMaker(schema=columns.arrow, decoder=None, rows_max=2**14, size_bytes_max=8 * MIB)
    with Blocking.around(lambda: ObjectStoreOffloader(counting)) as opened:
        planned = opened.run(plan(opened.offloader, options, bounds))
        scan = Scan(tier=opened, maker=maker, fail_on_data_loss=True)
        rows = needed = 0
        for batch in (batch for parts in planned for batch in scan.batches(parts)):
            rows += batch.num_rows
            needed += batch.column("value").nbytes
    return {"rows": rows, "requests": counting.requests, "fetched": counting.size_bytes, "needed": needed}


def _line(job: str, taken: list[tuple[float, float]], rows: int, size_bytes: int) -> dict[str, Any]:
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*taken, strict=True))
    return {
        "job": job,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "rows_per_second": round(rows / seconds),
        "mib_per_second": round(size_bytes / MIB / seconds),
    }


def _show(found: dict[str, Any]) -> None:
    for name, value in found.items():
        if not isinstance(value, list):
            print(f"{name}: {value}")
    for name in (name for name in found if name.startswith("local")):
        print(f"\n{name:30}{'rows/s':>15}{'MiB/s':>8}{'seconds':>9}{'CPU s':>9}")
        for line in found[name]:
            whole = "%" not in line["job"]
            rates = (f"{line['rows_per_second']:,}", str(line["mib_per_second"])) if whole else ("", "")
            print(f"{line['job']:30}{rates[0]:>15}{rates[1]:>8}{line['seconds']:>9}{line['cpu_seconds']:>9}")
    if "pruned" in found:
        print(f"\n{'pruned read':20}{'rows':>6}{'requests':>10}{'fetched':>14}{'of values':>14}")
    for line in found.get("pruned", ()):
        sizes = (f"{line['fetched']:,}", f"{line['needed']:,}")
        print(f"{line['read']:20}{line['rows']:>6}{line['requests']:>10}{sizes[0]:>14}{sizes[1]:>14}")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    main()
