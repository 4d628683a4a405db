"""The real command, run in its own process against one class that is installed for it alone."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance_box.installed import Site

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    ".",
    "backends",
    "plugins",
    "conformance",
    "tests",
    "examples/offload-sqlite",
    "examples/offload-sqlite-ledger",
)
LIMIT_SECONDS: Final = 900
"""A command that takes longer is killed and counts as hanging. No claim depends on this limit."""

PROGRAM: Final = (sys.executable, "-c", "from offload.cli.main import main; main()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict of the command on a class."""

    code: int | None
    """The exit code, or None if the command exceeded the time limit."""

    failed: dict[str, str] = field(default_factory=dict)
    """Clauses that failed, with their messages."""

    cpu_seconds: float = 0.0
    said: str = ""
    """The command's errors on stderr."""


def judged(backend: type[Any], tail: str, folder: Path) -> Judged:
    """Install the class in `folder`, and run `offload conformance` with default options on a new place."""
    site, report = folder / "site", folder / "report.json"
    site.mkdir()
    install(backend, Site(site))
    paths = [str(site), *(str(ROOT / each) for each in FOLDERS)]
    argv = (*PROGRAM, "conformance", f"planted://{tail}", "--report", str(report))
    before = _cpu_seconds()
    running = subprocess.Popen(
        argv,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = running.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return Judged(code=None, cpu_seconds=_cpu_seconds() - before)
    clauses = json.loads(report.read_text())["clauses"] if report.exists() else []
    return Judged(
        code=running.returncode,
        failed={each["id"]: each["message"] for each in clauses if each["outcome"] == "failed"},
        cpu_seconds=_cpu_seconds() - before,
        said=said,
    )


def install(backend: type[Any], site: Site) -> None:
    """Install the class as the backend of `planted://`."""
    imported = f"from {backend.__module__} import {backend.__name__} as open_url"
    site.install("planted", f"{imported}\nDECLARES = {{'kind': {backend.KIND!r}}}\n")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
