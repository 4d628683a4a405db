"""Tests of the memory that a sync takes: 128 MiB for the program, and 64 MiB for each upload."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cloud.tiers import CloudTier
from osiris_writer import write_stream
from servers import Running, servers_of

from offload.formats.chunk_writer import build_chunk

MIB = 2**20
PROGRAM = """
import atexit, pathlib, sys
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
from offload.cli.main import main
main()
"""
"""`offload`, which prints its peak memory at its end. That of `wait4` has the memory of the tests in it."""


def written(folder: Path, size_bytes: int) -> str:
    """Write a stream with chunks of 1 MiB, and return its URL."""
    records = [bytes(MIB // 256)] * 256
    chunks = (
        build_chunk(records, offset=256 * number, timestamp_ms=number, epoch=1)
        for number in range(size_bytes // MIB)
    )
    write_stream(folder / "orders", chunks)
    return f"rabbitmq://{folder}"


@pytest.mark.parametrize(("options", "uploads"), [(["--at-once", "1"], 1), ([], 2)])
@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_a_sync_takes_64_mib_for_each_upload_and_256_mib_by_default(
    running_server: Running,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    uploads: int,
) -> None:
    tier = CloudTier(running_server.place(), monkeypatch)
    argv = [sys.executable, "-c", PROGRAM, "sync", written(tmp_path, 320 * MIB), tier.url, *options]

    ran = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    peak = re.search(r"VmHWM:\s*(\d+) kB", ran.stderr)
    assert peak is not None
    # Below the size of the uploads alone, nothing of this was measured.
    assert uploads * 64 * MIB < int(peak[1]) * 1024 <= 128 * MIB + uploads * 64 * MIB
