"""Costs and savings of compression and encryption: sync, read, and one message, beside `zstd` and `openssl`.

    python benchmarks/compression.py [--size-mib 256] [--rounds 3] [--json]

The data are JSON orders (`units.py`), random bytes, and the same orders in sub-batches that a client has
compressed with gzip. Each codec is measured without and with encryption (`+aes`). Each round runs every job
once, in turn. The table has medians: the ratio of plain to
stored bytes, MiB of plain data a second, CPU seconds (user and system time of the whole process, with its
start) per GiB of plain data, the peak memory, and the bytes that a reader fetches for one message in the
middle, with the tail of its fragment. The last line is `openssl speed` of AES-256-GCM on blocks of 64 KiB.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import units
from throughput import OFFLOAD, SELF, Run, _timed

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # has the writer of osiris folders

from osiris_writer import write_stream

from offload import Plugins, StreamReader, open_tier
from offload.formats.blocks import BLOCK_SIZE_BYTES
from offload.formats.chunk_writer import build_chunk, seal_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch

MIB: Final = 2**20
CODECS: Final = ("none", "lz4", "zstd:1", "zstd:3", "zstd:9")
WAYS: Final = tuple(codec + aes for codec in CODECS for aes in ("", "+aes"))
LABEL: Final = "bench"


def random_bytes(size_bytes: int) -> Iterator[bytes]:
    """Yield chunks of 100 messages of 300 random bytes."""
    draw, offset = random.Random(3), 0
    for _ in range(-(-size_bytes // 30_000)):
        bodies = [draw.randbytes(300) for _ in range(100)]
        yield build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1)
        offset += 100


def gzip_batches(size_bytes: int) -> Iterator[bytes]:
    """Yield chunks of one sub-batch of 500 orders each, compressed with gzip by the client."""
    draw, written, offset = random.Random(7), 0, 0
    while written < size_bytes:
        bodies = [units.order(draw) for _ in range(500)]
        data = SubBatch.of(bodies, Codec.GZIP).encode()
        yield seal_chunk(data, entries=1, records=500, offset=offset, timestamp_ms=offset, epoch=1)
        written, offset = written + len(data), offset + 500


DATA: Final[dict[str, Callable[[int], Iterator[bytes]]]] = {
    "orders": lambda size_bytes: units.orders(130, size_bytes),
    "random": random_bytes,
    "gzip sub-batches": gzip_batches,
}


def main() -> None:
    """Make the data, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="offload-benchmark-keys-") as keys:
        key = Path(keys) / LABEL
        key.write_bytes(base64.b64encode(os.urandom(32)))
        key.chmod(0o600)
        os.environ["OFFLOAD_KEYS"] = f"keyfile:{keys}"
        for name, chunks in DATA.items():
            rows += _rows(name, chunks(given.size_mib * MIB), given.rounds)
    _print(rows, as_json=given.json)
    speed = ("openssl", "speed", "-elapsed", "-seconds", "2", "-bytes", str(BLOCK_SIZE_BYTES))
    done = subprocess.run([*speed, "-evp", "aes-256-gcm"], capture_output=True, text=True, check=True)
    print(done.stdout.splitlines()[-1])


def _rows(name: str, chunks: Iterator[bytes], rounds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="offload-benchmark-") as folder:
        return _measured(name, chunks, Path(folder), rounds)


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    heads = list(rows[0])
    print(" ".join(f"{head:>17}" for head in heads))
    for row in rows:
        print(" ".join(f"{row[head]:>17}" for head in heads))


def _measured(name: str, chunks: Iterator[bytes], folder: Path, rounds: int) -> list[dict[str, Any]]:
    source = folder / "source" / "stream"
    write_stream(source, chunks)
    files = sorted(source.glob("*.segment"))
    plain = sum(path.stat().st_size for path in files)
    jobs = {f"zstd -{level} -T1": _tool(files, folder, level) for level in (1, 3, 9)}
    for way in WAYS:
        jobs |= {f"sync {way}": _sync(folder, way), f"read {way}": _read(folder, way)}
    jobs["zstd -d"] = ["bash", "-c", f"zstd -q -d -c '{folder}'/zstd-3 > /dev/null"]
    runs: dict[str, list[Run]] = {job: [] for job in jobs}
    for number in range(rounds + 1):
        for job, argv in jobs.items():
            if job.startswith("sync"):
                shutil.rmtree(_tier(folder, job.split()[1]), ignore_errors=True)
            done = _timed(argv)
            if number:
                runs[job].append(done)
            print(f"{name}, round {number}, {job}: {done.seconds:.2f} s", file=sys.stderr)
    return [
        {
            "data": name,
            "job": job,
            "ratio": f"{_ratio(folder, job, plain):.2f}",
            "MiB/s": round(plain / MIB / statistics.median(run.seconds for run in done)),
            "CPU s/GiB": f"{statistics.median(run.cpu_seconds for run in done) * 2**30 / plain:.2f}",
            "peak MiB": round(max(run.peak_mib for run in done)),
            "one message KiB": f"{_one_message(_tier(folder, job.split()[1])) / 1024:.1f}"
            if job.startswith("read")
            else "",
        }
        for job, done in runs.items()
    ]


def _tier(folder: Path, way: str) -> Path:
    return folder / f"tier-{way.replace(':', '-')}"


def _sync(folder: Path, way: str) -> list[str]:
    source, (codec, aes, _) = f"rabbitmq://{folder / 'source'}", way.partition("+")
    encrypt = ["--encrypt", LABEL] if aes else []
    return [*OFFLOAD, "sync", source, str(_tier(folder, way)), "--compress", codec, *encrypt, "--json"]


def _read(folder: Path, way: str) -> list[str]:
    return [*SELF, "--read-chunks", str(_tier(folder, way))]


def _tool(files: list[Path], folder: Path, level: int) -> list[str]:
    names = " ".join(f"'{path}'" for path in files)
    return ["bash", "-c", f"cat {names} | zstd -q -{level} -T1 -f -o '{folder}'/zstd-{level}"]


def _ratio(folder: Path, job: str, plain: int) -> float:
    word = job.split()[1]
    if job.startswith("zstd"):
        level = word[1:] if word[1:].isdigit() else "3"
        return plain / (folder / f"zstd-{level}").stat().st_size
    stored = sum(path.stat().st_size for path in _tier(folder, word).rglob("*.fragment"))
    return plain / stored


def _one_message(tier: Path) -> int:
    """Return the bytes that a fresh reader gets from the store for one message, without roots and anchors."""

    async def main() -> int:
        async with open_tier(str(tier), plugins=Plugins.find(), keys=os.environ["OFFLOAD_KEYS"]) as offloader:
            reader = await StreamReader.open(offloader, "stream")
            middle = reader.manifest.next_offset // 2
            before = offloader.metrics.bytes_got
            windows = reader.windows(middle, until=middle + 1)
            assert await anext(windows)
            await windows.aclose()
            return int(offloader.metrics.bytes_got - before)

    return asyncio.run(main())


if __name__ == "__main__":
    main()
