"""The machine that a benchmark runs on: its description, and a check that servers write to a disk."""

from __future__ import annotations

import os
import platform
import tempfile
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
