"""`offload sync` to each server, killed at any request: before the server hears of it, or after it answered.

A server can see nothing else of a kill. Then sync runs again, and everything is there once.
`OFFLOAD_SEED` repeats the moments; `OFFLOAD_CAMPAIGN=1` tries many more.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from command_line import SOURCE, Ran, finish, formula, offload, start
from faults.actors import kill_at
from faults.rig import CAMPAIGN, PROBE, SEED
from osiris_data import MANIFEST, STREAMS
from servers import Place, Running, real_servers
from servers.proxy import Proxy, Request, proxied

KILLS = 20 if CAMPAIGN else 2
EXPLAINED = re.compile(
    "its attempt (runs: an upload is under way|was dropped or superseded and can never)|left by a trial"
    "|nothing was ever committed to this stream"  # killed between its anchor and its first root
)


@dataclass
class Tier:
    """A new tier to be, and the command line on it; what is to be killed goes through the proxy."""

    place: Place
    proxy: Proxy

    def sync(self) -> subprocess.Popen[bytes]:
        """Begin a sync in a process of its own."""
        options = [self.proxy.before(option) for option in self._options]
        return start("sync", SOURCE, self.place.url, *options)

    def assert_sound(self) -> None:
        """No damage, and every object is named or explained."""
        if "tier.anchor" not in self.place.keys():  # noqa: SIM118 - a place is no mapping
            return  # killed before there was a tier
        ran = self._offload("verify", self.place.url, "--json")
        assert ran.document["damages"] == []
        for row in ran.document["unreferenced"]:
            assert EXPLAINED.match(row["reason"]), row

    def assert_complete(self) -> None:
        """Another sync ends the work; all messages are there once; and a third finds nothing to do."""
        ended = self._offload("sync", SOURCE, self.place.url, "--json")
        assert {report["stream"] for report in ended.objects} == set(STREAMS)
        self.assert_sound()
        for stream in STREAMS:
            read = self._offload("read", self.place.url, stream, "--decode", "amqp", "--format", "body")
            assert read.stdout.split(b"\n")[:-1] == formula(MANIFEST["streams"][stream]["messages"])
        again = self._offload("sync", SOURCE, self.place.url, "--json")
        assert [report["uploaded_bytes"] for report in again.objects] == [0] * len(STREAMS)

    @property
    def _options(self) -> list[str]:
        return [part for name, value in self.place.options.items() for part in ("-o", f"{name}={value}")]

    def _offload(self, *arguments: str) -> Ran:
        """In this process; it must end well."""
        ran = offload(*arguments, *self._options)
        assert ran.code == 0, ran.stderr
        return ran


@pytest.fixture
def proxy(running_server: Running) -> Iterator[Proxy]:
    with proxied(running_server.endpoint) as proxy:
        yield proxy


@pytest.mark.parametrize("running_server", real_servers(), indirect=True)
def test_killed_at_any_request_and_run_again(running_server: Running, proxy: Proxy) -> None:
    print(f"OFFLOAD_SEED={SEED}")
    moments = random.Random(f"{SEED} {running_server.server.name}")
    assert finish(Tier(running_server.place(), proxy).sync()).code == 0
    requests = proxy.counts["requests"]

    killed = 0
    for number in count(0, 2):
        if number >= KILLS and killed:
            break
        assert number < 10 * KILLS, "none was killed"
        tier = Tier(running_server.place(), proxy)
        for _ in range(2):
            at, moment = moments.randint(1, requests), moments.choice(("before", "after"))
            process = tier.sync()
            kill_at(proxy, at, moment, process)
            ran = finish(process)
            print(f"killed {moment} request {at} of {requests}: {ran.code}")
            assert ran.code in (0, -signal.SIGKILL), ran.stderr
            killed += ran.code == -signal.SIGKILL
            tier.assert_sound()
        tier.assert_complete()


@pytest.mark.parametrize("running_server", real_servers(), indirect=True)
def test_killed_in_the_middle_of_its_probe_it_does_not_lock_itself_out(
    running_server: Running, proxy: Proxy
) -> None:
    tier = Tier(running_server.place(), proxy)
    process = tier.sync()

    def watch(request: Request, now: str) -> None:
        if request.creates and now == "after" and process.poll() is None:
            process.kill()
            process.wait()

    proxy.watch = watch
    assert finish(process).code == -signal.SIGKILL
    assert all(key.startswith((PROBE, "tier.anchor")) for key in tier.place.keys())  # noqa: SIM118

    tier.assert_complete()
