"""The fourth and later sets, written blind: their bugs, their odd but correct backends, and how to run both.

    python -m newcomers.fourth prove [NAME ...]        every proof, on the sound class and on the bug
    python -m newcomers.fourth run CHECKOUT OUT [NAME ...]  the command of that checkout on each

`python -m newcomers.fifth` does the same with the fifth set.

`run` uses the suite, the framework and the backends of `CHECKOUT` with the classes of this folder, and adds
each verdict to the JSON file `OUT`. Without names it runs whatever `OUT` lacks. With `1/2` and `2/2` for a
name, two processes share the work, and the file. "sound X" names a sound class.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from newcomers.registry import BUGS, Bug, Proof

TESTS: Final = Path(__file__).parents[1]
IN_FILES: Final = {"Folder", "FolderTier", "Ledgers", "Sqlite"}
FOLDERS: Final = (
    ".",
    "backends",
    "plugins",
    "conformance",
    "examples/offload-sqlite",
    "examples/offload-sqlite-ledger",
)
LIMIT_SECONDS: Final = 900
"""Longer than five clauses that hang, after which the command ends."""

SITE: Final = """
from newcomers.run import install
from conformance_box.installed import Site
from pathlib import Path
import importlib, sys
module, name, folder = sys.argv[1:]
install(getattr(importlib.import_module(module), name), Site(Path(folder)))
"""


def modules(which: str) -> list[str]:
    """Return the modules of a set, such as `fourth`."""
    return sorted(
        f"newcomers.{each.stem}"
        for each in (TESTS / "newcomers").glob(f"{which}_*.py")
        if each.stem not in (f"{which}_sound", f"{which}_odd")
    )


def bugs_of(which: str) -> dict[str, Bug]:
    """Return the bugs of the set."""
    names = modules(which)
    for name in names:
        importlib.import_module(name)
    return {name: each for name, each in BUGS.items() if each.backend.__module__ in names}


def odd(which: str) -> dict[str, type]:
    """Return the odd but correct backends."""
    module = importlib.import_module(f"newcomers.{which}_odd")
    return {each.__name__: each for each in module.ODD}


def place_of(sound: type, folder: Path) -> str:
    """Return the URL of a new place."""
    in_files = any(each.__name__ in IN_FILES for each in sound.__mro__)
    return f"newcomer://{folder / 'place' if in_files else folder.name}"


async def tried(proof: Proof, opens: Callable[[], Any]) -> None:
    """Run the proof within a minute, and close every client that it opened."""
    opened: list[Any] = []

    def open_() -> Any:
        opened.append(opens())
        return opened[-1]

    try:
        async with asyncio.timeout(60):
            await proof(open_)
    finally:
        for each in opened:
            with suppress(BaseException):
                async with asyncio.timeout(2):
                    await each.aclose()


def proved(each: Bug) -> str:
    """Return what is wrong with a proof, or nothing."""
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        try:
            asyncio.run(tried(each.proof, lambda: each.sound(place_of(each.sound, Path(one)))))
        except Exception:  # noqa: BLE001 - a mistake may show in any way
            return "fails on the sound class: " + traceback.format_exc()
        try:
            asyncio.run(tried(each.proof, lambda: each.backend(place_of(each.sound, Path(two)))))
        except Exception as exc:  # noqa: BLE001 - as above
            if isinstance(exc, NameError) or (isinstance(exc, AttributeError) and exc.obj is not None):
                return "stale: " + traceback.format_exc()
            print(f"    shown by {type(exc).__name__}: {str(exc)[:150]}".rstrip())
            return ""
        return "passes on the bug"


def judged(backend: type, sound: type, checkout: Path) -> dict[str, Any]:
    """Run the command of the checkout on a class, with default options."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        site, report = folder / "site", folder / "report.json"
        site.mkdir()
        python = checkout / ".venv/bin/python"
        python = python if python.exists() else Path(sys.executable)
        paths = [str(site), *(str(checkout / each) for each in FOLDERS), str(TESTS)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        install = (str(python), "-c", SITE, backend.__module__, backend.__name__, str(site))
        subprocess.run(install, env=env, check=True)
        program = (str(python), "-c", "from offload.cli.main import main; main()")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        running = subprocess.Popen(
            (*program, "conformance", place_of(sound, folder), "--report", str(report)),
            cwd=folder,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        said, code = "", None
        try:
            _, said = running.communicate(timeout=LIMIT_SECONDS)
            code = running.returncode
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        clauses = json.loads(report.read_text())["clauses"] if report.exists() else []
        return {
            "code": code,
            "failed": {each["id"]: each["message"] for each in clauses if each["outcome"] == "failed"},
            "clauses": len(clauses),
            "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
            "said": said[-1500:],
        }


def added(out: Path, verdicts: dict[str, Any]) -> dict[str, Any]:
    """Add verdicts to the file, and return all that it has."""
    with open(f"{out}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        if verdicts:
            found |= verdicts
            out.write_text(json.dumps(found, indent=1, sort_keys=True))
        return found


def main(which: str) -> int:
    """Run what the arguments name, of one set."""
    command, *rest = sys.argv[1:]
    bugs = bugs_of(which)
    if command == "prove":
        wrong = 0
        for name in rest or bugs:
            print(name, flush=True)
            if found := proved(bugs[name]):
                wrong += 1
                print(f"!!! {name} {found}", flush=True)
        print(f"{len(rest or bugs) - wrong} passed, {wrong} failed")
        return int(wrong > 0)
    checkout, out, wanted = Path(rest[0]).resolve(), Path(rest[1]), rest[2:]
    backends = {name: (each.backend, each.sound) for name, each in bugs.items()}
    backends |= {name: (each, each) for name, each in odd(which).items()}
    # Each sound class too: a clause that fails on it says nothing of the bugs that are made of it.
    backends |= {f"sound {each.sound.__name__}": (each.sound, each.sound) for each in bugs.values()}
    share = re.fullmatch("([0-9]+)/([0-9]+)", wanted[0] if wanted else "1/1")
    if share is not None:
        wanted = [*backends][int(share[1]) - 1 :: int(share[2])]
        wanted = [name for name in wanted if name not in added(out, {})]
    for name in wanted:
        backend, sound = backends[name]
        verdict = judged(backend, sound, checkout)
        facts = {"kind": sound.KIND, "sound": sound.__name__, "bug": name in bugs}  # type: ignore[attr-defined]
        added(out, {name: facts | verdict})
        print(name, verdict["code"], [*verdict["failed"]], verdict["cpu_seconds"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main("fourth"))
