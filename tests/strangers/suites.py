"""Runs a stranger's tests in a process of their own, and says how each clause ended."""

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
"""Where syncing a file costs nothing, on Linux."""

NOT_ASKED = "the store declares that it takes no uploads in parts"
"""Why clauses about uploads do not ask most strangers. No other clause may be skipped."""


def environment(*folders: Path) -> dict[str, str]:
    """This process's own, with all that it can import and these folders before."""
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(*argv: object, cwd: Path, env: Mapping[str, str]) -> str:
    """What a command prints that must end well."""
    done = subprocess.run([*map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(folder: Path, *selection: object, paths: Sequence[Path] = ()) -> dict[str, str]:
    """Each test below `folder` that asked: `Class::name[case]`, and its error's first line, or empty."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    pytest = (sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
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
            assert NOT_ASKED in skipped.attrib["message"], f"{name} was skipped: {skipped.attrib['message']}"
            continue
        for trouble in (*case.findall("failure"), *case.findall("error")):
            found.setdefault(name, trouble.attrib["message"])
        found.setdefault(name, "")
    assert found, done.stdout + done.stderr
    return found


def refusing(found: Mapping[str, str]) -> set[str]:
    """The clauses that failed, without their cases: `puts_are_whole`."""
    return {
        name.partition("::test_")[2].partition("[")[0].partition(" ")[0]
        for name, error in found.items()
        if error
    }
