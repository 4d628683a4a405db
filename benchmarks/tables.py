"""A stream as Arrow batches, beside the Parquet file that one would have made of it.

    python benchmarks/tables.py [--size-mib 2048] [--rounds 5] [--folder DIR] [--minio] [--json]

The stream has records of 115 bytes that do not compress, in chunks of 100 and of 4,000 records. The Parquet
files have the same columns: uncompressed, and snappy. Each round runs all jobs in turn:

    to_batches            all columns of `ArrowStream.to_batches`, every batch taken and dropped
    to_batches, NumPy     the same without the compiled loops
    parquet               `pyarrow.parquet.ParquetFile.iter_batches` over the file, one thread
    duckdb ...            `select count(*), sum(octet_length(value)), max("offset")`, over our reader and over
                          each file, with one thread
    read chunks           the stored chunks, checksums checked, without records

Seconds of CPU are those of this process, all threads. The figure is the least of all rounds; rates are rows
for each second of CPU. `--minio` has the stream on a MinIO of this machine, and the files in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import machine
import pyarrow.parquet as pq
from stopwatch import Stopwatch

from offload import Blocking, MemoryHandle, StreamReader, StreamWriter
from offload.formats.chunk_writer import build_chunk
from offload.ground import loops
from offload.opening.tables import ArrowStream, ArrowTier

MIB: Final = 2**20
RECORD_SIZE_BYTES: Final = 115
PER_CHUNK: Final = (100, 4000)
QUERY: Final = 'select count(*), sum(octet_length(value)), max("offset") from {}'


def write(tier: Blocking, stream: str, per_chunk: int, rows: int) -> None:
    """Fill a stream, in fragments of some 64 MiB."""
    pool = random.Random(1).randbytes(8 * MIB)  # Parquet looks back less far, so it finds no repetition
    bodies = [
        pool[at : at + RECORD_SIZE_BYTES] for at in range(0, len(pool) - RECORD_SIZE_BYTES, RECORD_SIZE_BYTES)
    ]
    at_once = 64 * MIB // (per_chunk * RECORD_SIZE_BYTES)

    async def fill() -> None:
        await tier.offloader.open(create=True)
        writer = await StreamWriter.claim(tier.offloader, stream)
        for first in range(0, rows, at_once * per_chunk):
            offsets = range(first, min(first + at_once * per_chunk, rows), per_chunk)
            chunks = [
                build_chunk(
                    bodies[(at := offset % (len(bodies) - per_chunk)) : at + per_chunk],
                    offset=offset,
                    timestamp_ms=offset,
                    epoch=1,
                )
                for offset in offsets
            ]
            await writer.offload([MemoryHandle(chunks)])

    tier.run(fill())


def files_of(stream: ArrowStream, folder: Path) -> dict[str, Path]:
    """Write the stream as Parquet, once for each compression."""
    paths = {name: folder / f"{name}.parquet" for name in ("none", "snappy")}
    for name, path in paths.items():
        batches = stream.to_batches()
        with pq.ParquetWriter(path, batches.schema, compression=name, use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return paths


@contextmanager
def without_loops() -> Iterator[None]:
    """Let NumPy do the work of the compiled loops."""
    kept = loops._loaded
    loops._loaded = lambda: (None, "")  # type: ignore[assignment]  # a plain function, without a cache
    try:
        yield
    finally:
        loops._loaded = kept


def jobs_of(tier: Blocking, stream: ArrowStream, files: dict[str, Path]) -> dict[str, Callable[[], int]]:
    """Return what is measured. Each job returns the number of its rows."""
    import duckdb

    def query(source: str, **given: Any) -> int:
        with duckdb.connect(config={"threads": 1}) as database:
            for name, value in given.items():
                database.register(name, value)
            return int(database.execute(QUERY.format(source)).fetchall()[0][0])

    def by_numpy() -> int:
        with without_loops():
            return sum(batch.num_rows for batch in stream.to_batches())

    async def chunks() -> int:
        reader, rows = await StreamReader.open(tier.catalogue, stream.name), 0
        windows = reader.windows(0)
        async for window in windows:
            rows += int(window.rows["records"].sum())
        await windows.aclose()
        return rows

    return {
        "to_batches": lambda: sum(batch.num_rows for batch in stream.to_batches()),
        "to_batches, NumPy": by_numpy,
        "parquet": lambda: sum(
            batch.num_rows for batch in pq.ParquetFile(files["none"]).iter_batches(2**17, use_threads=False)
        ),
        "duckdb over our stream": lambda: query("rows", rows=stream.to_batches()),
        "duckdb over Parquet": lambda: query(f"'{files['none']}'"),
        "duckdb over Parquet, snappy": lambda: query(f"'{files['snappy']}'"),
        "read chunks": lambda: tier.run(chunks()),
    }


def measured(url: str, folder: Path, size_bytes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the rows and the least seconds of each job, for each kind of chunks."""
    tables: dict[str, dict[str, Any]] = {}
    for per_chunk in PER_CHUNK:
        rows = size_bytes // RECORD_SIZE_BYTES // per_chunk * per_chunk
        with Blocking(url) as tier:
            write(tier, f"records-{per_chunk}", per_chunk, rows)
            stream = ArrowTier.around(tier)[f"records-{per_chunk}"]
            jobs, least = jobs_of(tier, stream, files_of(stream, folder)), dict[str, Any]()
            for _ in range(rounds):
                for name, job in jobs.items():
                    watch = Stopwatch()
                    assert job() == rows, name
                    found = watch.read()
                    kept = least.setdefault(name, found)
                    least[name] = {key: min(kept[key], found[key]) for key in found}
        tables[f"{per_chunk:,} records a chunk"] = {"rows": rows, "jobs": least}
    return tables


def main() -> None:
    """Parse arguments, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size-mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--minio", action="store_true", help="the stream on a MinIO of this machine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine.require_disk()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="tables.") as scratch:
        size, rounds, folder = arguments.size_mib * MIB, arguments.rounds, Path(scratch)
        if arguments.minio:
            with machine.minio() as url:
                tables = measured(url, folder, size, rounds)
        else:
            tables = measured(str(folder / "tier"), folder, size, rounds)
    about = machine.description() | {"load": os.getloadavg()[0], "loops": loops.loops_in_use()}
    if arguments.json:
        print(json.dumps({"machine": about, "tables": tables}, indent=2))
        return
    print(about)
    for name, table in tables.items():
        print(f"\n| {name} | seconds | CPU s | ns of CPU a row | million rows a CPU second |")
        print("|---|---|---|---|---|")
        for job, found in table["jobs"].items():
            each = found["cpu_seconds"] / table["rows"]
            print(
                f"| {job} | {found['seconds']:.2f} | {found['cpu_seconds']:.2f} | {each * 1e9:.0f} "
                f"| {1e-6 / each:.1f} |"
            )


if __name__ == "__main__":
    main()
