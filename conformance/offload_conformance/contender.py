"""A process that races with others: `python -m offload_conformance.contender`, started by `race`.

The first line of its input is JSON and says how to open the place. Each further line is a key, as JSON. The
process creates it, and answers `won` or `lost`. Its first answer is `ready`. It ends when its input ends.
Invariant: secrets are in the first line only, never in the arguments or the environment.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from offload.contracts.plugin import Backend
from offload.contracts.store import ObjectStore
from offload.ground.errors import AlreadyExists
from offload.opening.plugins import Plugins
from offload_conformance.patience import PatientStore
from offload_conformance.recording import Folder

ContenderTask = dict[str, Any]
"""The description of how to open the place, as JSON."""


def job_of(suite: object) -> ContenderTask:
    """Return how another process opens the place of an author's test: its class, and its plain attributes."""
    cls = type(suite)
    module = sys.modules[cls.__module__]
    return {
        "file": str(module.__file__),
        "module": cls.__module__,
        "class": cls.__qualname__,
        "plain": {name: value for name, value in vars(suite).items() if _is_plain(value)},
        "paths": {name: str(value) for name, value in vars(suite).items() if isinstance(value, Path)},
    }


def job_of_backend(name: str, url: str, options: Mapping[str, Any], folder: str) -> ContenderTask:
    """Return how another process opens a folder of the place that a backend opens at a URL."""
    return {"backend": name, "url": url, "options": dict(options), "folder": folder}


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool | int | float | None)


def opener(job: ContenderTask) -> Callable[[], ObjectStore]:
    """Return a function that opens a fresh client in this process."""
    if "backend" in job:
        return lambda: _opened_by_backend(job)
    found: Any = _module(job["module"], job["file"])
    for part in job["class"].split("."):
        found = getattr(found, part)
    suite = found.__new__(found)
    vars(suite).update(job["plain"], **{name: Path(path) for name, path in job["paths"].items()})
    opens: Callable[[], ObjectStore] = suite.open_store
    return opens


def _opened_by_backend(job: ContenderTask) -> ObjectStore:
    backend = Plugins.find().by_name("backend", job["backend"])
    assert isinstance(backend, Backend)
    store = Folder(backend.open(job["url"], job["options"]), job["folder"])
    return PatientStore(store, lambda: None)


def _module(name: str, file: str) -> ModuleType:
    """Return the author's module: by its name if that is the same file, otherwise from the file."""
    try:
        found = importlib.import_module(name)
        if found.__file__ == file:
            return found
    except ImportError:
        pass
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def contend(job: ContenderTask, answer: Callable[[str], None]) -> None:
    """Create each key of the input, until the input ends."""
    store = opener(job)()
    answer("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            await store.create(json.loads(line), job["bytes"].encode())
        except AlreadyExists:
            answer("lost")
        else:
            answer("won")
    await store.aclose()


def main() -> None:
    """Read the job and create keys. Output of the backend goes to standard error, not among the answers."""
    answers, sys.stdout = sys.stdout, sys.stderr
    job = json.loads(sys.stdin.readline())
    asyncio.run(contend(job, lambda text: print(text, file=answers, flush=True)))


if __name__ == "__main__":
    main()
