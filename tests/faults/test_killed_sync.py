"""Tests that `offload sync`, killed at any request and run again, stores every message once on each server.

The kill comes before the server receives a request, or after it has answered. A server can see nothing else
of a kill. `OFFLOAD_SEED` repeats the moments. `OFFLOAD_CAMPAIGN=1` tries many more.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from campaign import CAMPAIGN
from command_line import SOURCE, Ran, finish, formula, offload
from faults.actors import kill_at
from faults.rig import PROBE, SEED
from osiris_data import MANIFEST, STREAMS
from ready import ReadyCommand
from servers import Place, Running, servers_at_risk
from servers.proxy import Proxy, Request, proxied

KILLS = 20 if CAMPAIGN else 2
EXPLAINED = re.compile(
    "its attempt runs: an upload is under way|trimmed, replaced by a copy"
    "|of a trial of the store"
    "|nothing was ever committed to this stream"  # killed between its anchor and its first root
)


@dataclass
class Tier:
    """A place for a new tier, and the command line on it. A process that a test kills uses the proxy."""

    place: Place
    proxy: Proxy

    def sync(self) -> ReadyCommand:
        """Start a sync in a separate process."""
        options = [self.proxy.before(option) for option in self._options]
        return ReadyCommand("sync", SOURCE, self.place.url, *options)

    def assert_sound(self) -> None:
        """Assert that there is no damage, and that every object is named or explained."""
        if "tier.anchor" not in self.place.keys():  # noqa: SIM118 - a place is no mapping
            return  # killed before there was a tier
        ran = self._offload("verify", self.place.url, "--json")
        assert ran.document["damages"] == []
        for row in ran.document["unreferenced"]:
            assert EXPLAINED.match(row["reason"]), row

    def assert_complete(self) -> None:
        """Assert that a sync completes the tier, with all messages once, and one more finds no work."""
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
        """Run a command in this process. It must succeed."""
        ran = offload(*arguments, *self._options)
        assert ran.code == 0, ran.stderr
        return ran


@pytest.fixture
def proxy(running_server: Running) -> Iterator[Proxy]:
    with proxied(running_server.endpoint) as proxy:
        yield proxy


@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_a_sync_that_is_killed_at_any_request_and_runs_again_is_complete(
    running_server: Running, proxy: Proxy
) -> None:
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


@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_a_sync_that_is_killed_within_its_probe_does_not_lock_itself_out(
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
