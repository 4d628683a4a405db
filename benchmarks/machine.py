"""The machine that a benchmark runs on: its description, a check of its disk, and MinIO on it."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

IN_MEMORY: Final = {"tmpfs", "ramfs"}


def description() -> dict[str, Any]:
    """Return what a reader of the figures must know about this machine."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": processor(),
    }


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def require_disk() -> None:
    """Exit if `$TMPDIR` is in memory: a server would fill it, and would be faster than it is."""
    folder = Path(tempfile.gettempdir()).resolve()
    mounted = Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else []
    kinds = {Path(where): kind for _, where, kind, *_ in map(str.split, mounted)}
    kind = next((kinds[each] for each in (folder, *folder.parents) if each in kinds), "")
    if kind in IN_MEMORY:
        raise SystemExit(f"TMPDIR is {folder}, a {kind}: set TMPDIR to a folder on a disk")


@contextmanager
def minio() -> Iterator[str]:
    """Run MinIO, with the credentials of its bucket in the environment."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from servers.catalogue import server
    from servers.places import S3Place

    with server("minio").running() as running:
        place = running.place()
        assert isinstance(place, S3Place)
        os.environ |= place.environment
        yield f"{place.url}/tier"
