"""Runs of a stranger's tests in their own process, with the outcome of each clause."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")
"""A folder on Linux in which syncing a file costs nothing."""

NOT_ASKED = (
    "declares no codings",
    "declares no metadata",
    "uploads in parts",
    "does not declare `unsized_put`",
)
"""The reasons for which clauses skip most strangers. No other clause may be skipped."""


def environment(*folders: Path) -> dict[str, str]:
    """Return this process's environment, with its import path and these folders first."""
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(*argv: object, cwd: Path, env: Mapping[str, str]) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run([*map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(folder: Path, *selection: object, paths: Sequence[Path] = ()) -> dict[str, str]:
    """Run the tests below `folder`.

    Return `Class::name[case]` of each, with the first line of its error or "".
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    pytest = (sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as places:
        done = subprocess.run(
            [*pytest, f"--junitxml={report}", f"--basetemp={places}/tests", *map(str, selection)],
            cwd=folder,
            env=environment(*paths),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
        if (skipped := case.find("skipped")) is not None:
            message = skipped.attrib["message"]
            assert any(reason in message for reason in NOT_ASKED), f"{name} was skipped: {message}"
            continue
        for trouble in (*case.findall("failure"), *case.findall("error")):
            found.setdefault(name, trouble.attrib["message"])
        found.setdefault(name, "")
    assert found, done.stdout + done.stderr
    return found


def refusing(found: Mapping[str, str]) -> set[str]:
    """Return the clauses that failed, without their cases, such as `puts_are_whole`."""
    return {
        name.partition("::test_")[2].partition("[")[0].partition(" ")[0]
        for name, error in found.items()
        if error
    }
