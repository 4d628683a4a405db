"""Candidates for a transport of bytes, side by side, on the same objects (docs/adr/0042-one-transport.md).

    python benchmarks/transports.py [--server minio] [--tls] [--size-gib 1] [--rounds 5] [--json]
                                    [--job get --job get-8 ...] [--candidate NAME ...] [--buffer-kib 1024]

The jobs: `get` of whole objects of 64 MiB, `get-8` and `get-16` of them in ranges of 8 and 16 MiB, `put` of
64 MiB, `part` of 16 MiB of a multipart upload. Each round runs every candidate once, in turn; one more round
goes first and is not counted. The server runs on this machine and takes its share of the same cores. It
deletes replaced objects late: five rounds of `put` or `part` need up to 60 GiB of disk below `$TMPDIR`, which
may not be in memory. Seconds and CPU seconds are those of the transfer alone, in the client process. A ratio
is the median of the rounds' ratios to the fastest raw candidate of the same round. `obstore` has no call for
one part, and httpcore and pycurl are measured if they are installed. `--buffer-kib` is for the candidates
with pycurl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import machine
import stream  # noqa: F401 - puts the tests' servers on the path
from certificates import certificate
from servers.catalogue import server
from servers.places import ACCESS_KEY, REGION, SECRET_KEY
from servers.processes import free_port, process, wait_until_it_answers
from transport_clients import CANDIDATES
from transport_task import MIB, Piece

HERE: Final = Path(__file__).resolve().parent
OBJECT_SIZE_BYTES: Final = 64 * MIB
JOBS: Final = {"get": (64, 4), "get-8": (8, 8), "get-16": (16, 8), "put": (64, 4), "part": (16, 8)}
"""The MiB of a piece, and the pieces in flight."""

READS_ALONE: Final = {
    "boto3, 1 MiB pieces",
    "urllib3 readinto",
    "urllib3 beneath",
}
WRITES_ALONE: Final = {"boto3, unsigned", "obstore, signed", "obstore, crc64nvme"}
"""Candidates that differ from another one in reading alone, or in writing alone."""

NO_PARTS: Final = {"obstore, signed", "obstore, unsigned", "obstore, crc64nvme"}


@dataclass(frozen=True)
class Endpoint:
    """A running server: its URL, the file that TLS trusts, and a client for making the objects."""

    url: str
    authority: str
    version: str
    boto: Any


def main() -> None:
    """Parse arguments, store the objects, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="minio", choices=["minio", "rgw"])
    parser.add_argument("--tls", action="store_true", help="MinIO with TLS")
    parser.add_argument("--size-gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", action="append", choices=list(JOBS))
    parser.add_argument("--candidate", action="append", choices=["curl", *CANDIDATES])
    parser.add_argument("--buffer-kib", type=int, default=1024, help="how much libcurl moves at once: 1024")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with _running(arguments.server, is_tls=arguments.tls) as endpoint:
        count = max(1, round(arguments.size_gib * 2**30 / OBJECT_SIZE_BYTES))
        keys = _stored(endpoint, count)
        tables = {
            job: _measured(endpoint, job, keys, _candidates(job, arguments.candidate), arguments)
            for job in arguments.job or JOBS
        }
        _report(tables, endpoint, arguments)


@contextmanager
def _running(name: str, *, is_tls: bool) -> Iterator[Endpoint]:
    machine.require_disk()
    if not is_tls:
        with server(name).running() as running:
            yield Endpoint(running.endpoint, "", f"{name} {running.version}", _boto(running.endpoint, None))
        return
    if name != "minio":
        raise SystemExit("--tls: only MinIO is run with TLS")
    with tempfile.TemporaryDirectory() as folder:
        made, port = certificate(Path(folder)), free_port()
        program = server(name).recipe.folder / "bin" / "minio"
        where = ("--address", f"127.0.0.1:{port}", "--certs-dir", folder, Path(folder) / "data")
        env = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
        env |= {"MINIO_UPDATE": "off", "GOMEMLIMIT": "1GiB"}
        with process(program, "server", *where, log=Path(folder) / "log", env=env) as running:
            wait_until_it_answers(f"http://127.0.0.1:{port}", running, log=Path(folder) / "log")
            url = f"https://127.0.0.1:{port}"
            version = f"{name} {server(name).recipe.version} with TLS"
            yield Endpoint(url, str(made.path), version, _boto(url, str(made.path)))


def _boto(url: str, authority: str | None) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        verify=authority,
        config=Config(s3={"addressing_style": "path"}),
    )


def _stored(endpoint: Endpoint, count: int) -> list[str]:
    endpoint.boto.create_bucket(Bucket="bucket")
    data = os.urandom(MIB) * (OBJECT_SIZE_BYTES // MIB)
    keys = [f"object/{number}" for number in range(count)]
    for key in keys:
        endpoint.boto.put_object(Bucket="bucket", Key=key, Body=data)
    return keys


def _candidates(job: str, chosen: list[str] | None) -> list[str]:
    names = chosen or ["curl", *CANDIDATES]
    left_out = (WRITES_ALONE if job.startswith("get") else READS_ALONE) | (
        NO_PARTS if job == "part" else set()
    )
    if find_spec("httpcore") is None:
        left_out |= {"httpcore"}
    if find_spec("pycurl") is None:
        left_out |= {name for name in names if name.startswith("pycurl")}
    return [name for name in names if name not in left_out]


def _measured(
    endpoint: Endpoint, job: str, keys: list[str], names: list[str], arguments: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(arguments.rounds + 1):
        for name in names:
            done = _run(endpoint, job, keys, name, arguments.buffer_kib)
            if number:
                runs[name].append(done)
            print(f"round {number} {job} {name}: {done['seconds']:.2f} s", file=sys.stderr)
    return runs


def _run(endpoint: Endpoint, job: str, keys: list[str], name: str, buffer_kib: int) -> dict[str, float]:
    size_mib, at_once = JOBS[job]
    size_bytes, upload = size_mib * MIB, {"Bucket": "bucket", "Key": "upload"}
    if job == "part":
        upload["UploadId"] = endpoint.boto.create_multipart_upload(**upload)["UploadId"]
    pieces = [
        Piece(key, start, size_bytes, size_bytes == OBJECT_SIZE_BYTES)
        for key in keys
        for start in range(0, OBJECT_SIZE_BYTES, size_bytes)
    ]
    if job == "put":
        pieces = [Piece(f"put/{number % 4}", 0, size_bytes, is_whole=True) for number in range(len(keys))]
    if job == "part":
        pieces = [
            Piece("upload", 0, size_bytes, True, upload["UploadId"], number % 32 + 1)
            for number in range(len(pieces))
        ]
    task = {
        "endpoint": endpoint.url,
        "authority": endpoint.authority,
        "bucket": "bucket",
        "key": ACCESS_KEY,
        "secret": SECRET_KEY,
        "at_once": at_once,
        "job": job,
        "buffer_kib": buffer_kib,
        "pieces": [asdict(piece) for piece in pieces],
    }
    argv = [sys.executable, str(HERE / "transport_clients.py"), name]
    ran = subprocess.run(argv, input=json.dumps(task).encode(), stdout=subprocess.PIPE, check=False)
    if ran.returncode:
        raise SystemExit(f"{name}, {job}: ended with {ran.returncode}")
    if job == "part":
        endpoint.boto.abort_multipart_upload(**upload)
    done: dict[str, float] = json.loads(ran.stdout)
    return done


def _report(tables: Any, endpoint: Endpoint, arguments: argparse.Namespace) -> None:
    about = {
        **machine.description(),
        "server": endpoint.version,
        "size_gib": arguments.size_gib,
        "rounds": arguments.rounds,
        "buffer_kib": arguments.buffer_kib,
    }
    rows = [row for job, runs in tables.items() for row in _rows(job, runs, arguments)]
    if arguments.json:
        print(json.dumps({"machine": about, "rows": rows}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    print("\n| job | candidate | ratio to the fastest | MiB/s | CPU s/GiB | peak MiB |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


def _rows(
    job: str, runs: dict[str, list[dict[str, float]]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    raw = [name for name in runs if not name.startswith("offload")]
    least = [min(runs[name][n]["seconds"] for name in raw or runs) for n in range(arguments.rounds)]
    for name, found in runs.items():
        seconds = statistics.median(run["seconds"] for run in found)
        cpu_seconds = statistics.median(run["cpu_seconds"] for run in found)
        ratios = [fastest / run["seconds"] for fastest, run in zip(least, found, strict=True)]
        yield {
            "job": job,
            "candidate": name,
            "ratio": f"{statistics.median(ratios):.2f}",
            "mib_per_second": round(arguments.size_gib * 1024 / seconds),
            "cpu_seconds_per_gib": f"{cpu_seconds / arguments.size_gib:.2f}",
            "peak_mib": round(max(run["peak_mib"] for run in found)),
        }


if __name__ == "__main__":
    main()
