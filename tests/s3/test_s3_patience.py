"""Tests of waiting: the command line reports a busy or absent server, waits for it, and sends nothing twice.

`tests/store/test_patience.py` tests the length of the wait, without waiting.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from command_line import SOURCE, finish, offload, start
from osiris_data import MANIFEST
from servers import Place, Running, servers_of
from servers.proxy import Fault, Plan, Proxy, Request, Rule, proxied

TINY = f"{SOURCE}/tiny"
BATCHES = f"{SOURCE}/batches"
OFFSET = re.compile(r"/data/(\d+)\.")
ON_ONE_SERVER = pytest.mark.parametrize("running_server", servers_of("s3")[:1], indirect=True)


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def proxy(running_server: Running, plan: Plan) -> Iterator[Proxy]:
    with proxied(running_server.endpoint, plan) as proxy:
        yield proxy


@pytest.fixture
def place(running_server: Running) -> Place:
    return running_server.place()


def options(place: Place, proxy: Proxy, **more: object) -> list[str]:
    given = proxy.options(place.options) | more
    return [part for name, value in given.items() for part in ("-o", f"{name}={value}")]


def note_of(process: subprocess.Popen[bytes]) -> str:
    """Return the next line on stderr."""
    assert process.stderr is not None
    return process.stderr.readline().decode()


@ON_ONE_SERVER
def test_a_command_reports_its_wait_unless_its_output_is_json(place: Place, proxy: Proxy, plan: Plan) -> None:
    assert offload("sync", TINY, place.url, *options(place, proxy)).code == 0
    plan.retry_after_seconds_min = plan.retry_after_seconds_max = 1

    plan.rules = [Rule(Fault.REFUSE, nth=1)]
    shown = offload("ls", place.url, *options(place, proxy))
    plan.rules = [Rule(Fault.REFUSE, nth=1)]
    silent = offload("ls", place.url, "--json", *options(place, proxy))

    assert (shown.code, silent.code) == (0, 0)
    assert re.match(rf"note: waiting for {place.url} for \d+ s of at most 120 s: cannot ", shown.error)
    assert shown.error.endswith(": SlowDown: on purpose")
    assert silent.stderr == ""


@ON_ONE_SERVER
def test_ctrl_c_ends_a_wait_at_once(place: Place, proxy: Proxy, plan: Plan) -> None:
    plan.retry_after_seconds_min = plan.retry_after_seconds_max = 100
    plan.rules = [Rule(Fault.REFUSE)]
    process = start("sync", TINY, place.url, *options(place, proxy))

    assert "waiting for s3://" in note_of(process)
    process.send_signal(signal.SIGINT)

    assert finish(process).code == 130


@ON_ONE_SERVER
def test_a_sync_survives_a_restart_of_the_server(place: Place, proxy: Proxy) -> None:
    uploading = threading.Event()

    def watch(request: Request, moment: str) -> None:
        if request.method == "PUT" and OFFSET.search(request.target):
            uploading.set()

    proxy.watch = watch
    process = start("sync", BATCHES, place.url, "--at-once", 1, *options(place, proxy))
    assert uploading.wait(60)

    proxy.leave()
    assert "waiting for s3://" in note_of(process)
    proxy.come_back()

    assert finish(process).code == 0
    read = offload("read", place.url, "batches", "--format", "raw", *options(place, proxy))
    assert read.code == 0


@ON_ONE_SERVER
def test_a_sync_that_gave_up_and_runs_again_sends_no_complete_fragment_twice(
    place: Place, proxy: Proxy, plan: Plan
) -> None:
    """`batches` has four fragments. The server refuses every request after the second."""
    complete: Counter[str] = Counter()

    def watch(request: Request, moment: str) -> None:
        found = OFFSET.search(request.target)
        if request.method == "PUT" and found and moment == "after":
            complete[found[1]] += 1
            if complete.total() == 2:
                plan.rules = [Rule(Fault.REFUSE)]

    proxy.watch = watch
    command = ("sync", BATCHES, place.url, "--at-once", 1, *options(place, proxy, patience_seconds=0.5))
    stopped = offload(*command)
    plan.rules = []
    again = offload(*command)

    assert (stopped.code, again.code) == (1, 0)
    assert len(complete) == len(MANIFEST["streams"]["batches"]["segments"])
    assert set(complete.values()) == {1}
