"""The example for Redis, which was written from the guide alone, on a real server that this test starts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import campaign
from servers.processes import free_port, process
from servers.recipes import CannotBeHad, DebianPackages, PypiPackage
from servers.scratch import scratch_folder
from strangers.suites import ROOT, outcomes

EXAMPLE = ROOT / "examples" / "offload-redis"
SERVER = DebianPackages("redis", ("redis-server",))
CLIENT = PypiPackage("redis", "8.1.0")


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    """Yield the URL of a server on loopback. The server ends with the tests."""
    try:
        SERVER.install()
        CLIENT.install()
    except CannotBeHad as exc:
        if os.environ.get("OFFLOAD_SERVERS_REQUIRED"):
            raise
        pytest.skip(f"Redis cannot be had here: {exc}")
    port = free_port()
    libraries = ":".join(str(folder.parent) for folder in SERVER.folder.rglob("lib*.so.*"))
    with scratch_folder("redis") as scratch:
        log = scratch / "redis.log"
        argv = (SERVER.folder / "usr/bin/redis-server", "--port", str(port), "--bind", "127.0.0.1")
        quiet = ("--save", "", "--appendonly", "no", "--dir", scratch)
        with process(*argv, *quiet, log=log, env={"LD_LIBRARY_PATH": libraries}) as running:
            while running.poll() is None and "Ready to accept" not in log.read_text():
                time.sleep(0.02)  # a starting server sends no event to wait for
            assert running.poll() is None, log.read_text()
            yield f"redis://127.0.0.1:{port}/0"


@campaign("the example over Redis; the guide's over SQLite is asked the same clauses here")
def test_the_backend_keeps_the_contracts(redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_REDIS", redis)
    packages = next(CLIENT.folder.glob("lib/python*/site-packages"))

    found = outcomes(tmp_path, EXAMPLE / "tests", paths=[EXAMPLE, packages])

    assert {name: error for name, error in found.items() if error} == {}
    assert len(found) > 120


def test_the_example_is_short() -> None:
    """This counts the store and its declaration without blank lines."""
    code = [
        line for path in (EXAMPLE / "offload_redis").glob("*.py") for line in path.read_text().splitlines()
    ]

    assert len([line for line in code if line.strip()]) < 150
