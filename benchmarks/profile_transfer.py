"""Where the CPU time of a sync and of a sequential read goes, by the samples of perf.

    python benchmarks/profile_transfer.py [--server minio] [--size-gib 2] [--json]

The server runs on this machine. This process is the client, so that no start of an interpreter is counted.
perf samples the functions that run on all processors, 999 times a second. Samples of other processes are left
out. `idle` is the share of samples in which a processor had nothing to do. Needs perf, and rights to sample
the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import machine
import stream
from our_clients import JOBS
from servers.catalogue import SERVERS, server
from stopwatch import running_children

KINDS: Final = (
    ("copies to and from sockets and files", r"copy.*(user|iter|page|folio)|rep_movs|skb_copy"),
    ("page clearing", r"clear_page|clear_huge|clear_folio"),
    ("CRC-32 and CRC-32C", r"crc32|crc_|isal"),
    ("switches of threads and waits", r"sched|switch|futex|wake|epoll|poll_|wait"),
    ("hashes of the server", r"md5|sha256|highwayhash|blake"),
    ("Python", r"python3|libpython"),
    ("other work of the kernel", r"\[kernel|\[guest"),
)
"""Kinds of work, by a pattern of the function and its file. The first that matches counts."""

SAMPLE: Final = re.compile(r"^\s*(?P<pid>\d+)\s+(?P<time>[\d.]+):\s+[0-9a-f]+ (?P<where>.*)$")


def main() -> None:
    """Parse arguments, make the data, profile both jobs, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [each.name for each in SERVERS if each.honours_create]
    parser.add_argument("--server", default="minio", choices=names)
    parser.add_argument("--size-gib", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine.require_disk()
    with tempfile.TemporaryDirectory() as folder, server(arguments.server).running() as running:
        source = Path(folder) / "source"
        stream.write(source / "stream", int(arguments.size_gib * 2**30))
        place = running.place()
        task = {
            "url": f"{place.url}/read",
            "options": place.options,
            "source": str(source),
            "size_bytes": sum(path.stat().st_size for path in (source / "stream").glob("*.segment")),
        }
        asyncio.run(JOBS["sync"](task, 4))  # not counted: it warms caches and fills the tier
        samples = Path(folder) / "perf.data"
        shares = {
            job: _profiled(job, task | {"url": f"{place.url}/{job}"}, samples) for job in ("read", "sync")
        }
    if arguments.json:
        print(json.dumps({"machine": machine.description(), "shares": shares}, indent=2))
        return
    print("| share in % |", " | ".join(shares), "|\n|---|" + "---|" * len(shares))
    for row in sorted({row for found in shares.values() for row in found}):
        print(f"| {row} |", " | ".join(str(found.get(row, "")) for found in shares.values()), "|")


def _profiled(job: str, task: dict[str, Any], samples: Path) -> dict[str, float]:
    """Return the shares in percent of client, server and idle processors, by kind of work."""
    roles = dict.fromkeys(running_children(), "server") | {os.getpid(): "client", 0: "idle"}
    argv = ["perf", "record", "-q", "-a", "-F", "999", "-e", "cpu-clock", "-k", "CLOCK_MONOTONIC"]
    with subprocess.Popen([*argv, "-o", str(samples)]) as recording:
        time.sleep(1)  # perf does not say when it has begun
        began = time.monotonic()
        asyncio.run(JOBS[job](task, 4))
        ended = time.monotonic()
        recording.send_signal(signal.SIGINT)
    script = ["perf", "script", "-i", str(samples), "-F", "pid,time,ip,sym,dso"]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [sample for line in lines if (sample := SAMPLE.match(line))]
    counts = Counter(
        f"{role}: {_kind(sample['where'])}" if role != "idle" else role
        for sample in found
        if began <= float(sample["time"]) <= ended and (role := roles.get(int(sample["pid"])))
    )
    return {name: round(count * 100 / counts.total(), 1) for name, count in counts.items()}


def _kind(where: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, where)), "other code of its own")


if __name__ == "__main__":
    main()
