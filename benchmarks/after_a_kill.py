"""`offload run` killed and started again beside a real RabbitMQ: the seconds until it copies again.

    python benchmarks/after_a_kill.py [--kills 20] [--rate 5000] [--lag 30] [--instance off]

Needs `rstream` and Debian's packages of RabbitMQ, which it fetches once. A client publishes messages
of 1 KB, RATE a second. `offload run` copies them to a folder, is killed with SIGKILL after some seconds, and
is started again at once. The time counts from the start of the new process to its first commit, that is the
start of Python included. Then `/metrics` is asked for the lag, and beside it is the age of the first message
that the tier does not hold. At the end every message is read back from the tier.

With `--instance off` the process has no identity, and waits for `takeover` after each kill. The benchmark
gave up then. The reason was not measured: the broker keeps 60 s of the stream, which may have had a gap.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import tempfile
import time
import urllib.request
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from beside_rabbitmq import OFFLOAD, Published, named, publish, quantile, read_back
from servers.processes import free_port
from servers.rabbitmq import RECIPE, Broker, rabbitmq

from offload import NotOffloaded, open_tier
from offload.model.manifest import Manifest

STREAM = "fast"
GIVE_UP_SECONDS = 300.0


@dataclass
class Kills:
    """The processes, and what was measured of each."""

    broker: Broker
    folder: Path
    lag: float
    instance: str
    published: Published = field(default_factory=lambda: Published(STREAM))
    seconds: list[float] = field(default_factory=list)
    lags: list[tuple[float, float]] = field(default_factory=list)
    """The lag by `/metrics`, and the true one."""
    port: int = field(default_factory=free_port)

    @property
    def tier(self) -> Path:
        """The folder of the tier."""
        return self.folder / "tier"

    async def start(self) -> Process:
        """Start a process."""
        (config := self.folder / "run.toml").write_text(
            f'source = "rabbitmq://{self.broker.streams}"\ntier = "{self.tier}"\nlisten = "{self.port}"\n'
            f'instance = "{self.instance}"\n[streams."*"]\nmax_lag = "{self.lag:g}s"\n'
        )
        with (self.folder / "run.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                OFFLOAD, "run", str(config), stderr=output, stdout=output
            )

    async def newest(self) -> Manifest | None:
        """Return the newest manifest."""
        with suppress(NotOffloaded):
            async with open_tier(str(self.tier)) as offloader:
                return await offloader.load_manifest(named(self.tier, STREAM))
        return None

    async def has_copied(self, before: Manifest | None) -> None:
        """Wait until a later writer than that of `before` has committed more."""
        epoch, end = (0, 0) if before is None else (before.epoch, before.next_offset)
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            manifest = await self.newest()
            if manifest is not None and manifest.epoch > epoch and manifest.next_offset > end:
                return
            await asyncio.sleep(0.05)
        raise TimeoutError("it does not copy")

    async def has_all(self) -> None:
        """Wait until everything that was published is on the tier."""
        async with asyncio.timeout(GIVE_UP_SECONDS):
            while (found := await self.newest()) is None or found.next_offset < len(self.published.times):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)

    async def note_lag(self) -> None:
        """Note the lag that the process shows, and the true one."""

        def asked() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as reply:
                return str(reply.read().decode())

        text = await asyncio.to_thread(asked)
        shown = re.search(r"^offload_lag_seconds\{[^}]*\} (\S+)$", text, re.MULTILINE)
        manifest, now = await self.newest(), time.monotonic()
        assert manifest is not None
        held = manifest.next_offset
        true = now - self.published.times[held] if held < len(self.published.times) else 0.0
        if shown is not None:
            self.lags.append((float(shown[1]), true))

    async def run(self, kills: int, stop_publishing: Callable[[], Awaitable[object]]) -> None:
        """Kill and start, again and again. Then wait until the tier has everything."""
        running, draw = await self.start(), random.Random(1)
        await self.has_copied(None)
        for number in range(1, kills + 1):
            await asyncio.sleep(draw.uniform(1, 5))
            running.kill()
            await running.wait()
            before, begun = await self.newest(), time.monotonic()
            running = await self.start()
            await self.has_copied(before)
            self.seconds.append(time.monotonic() - begun)
            print(f"kill {number}: copies again after {self.seconds[-1]:.2f} s", flush=True)
            await self.note_lag()
        await stop_publishing()
        await self.has_all()
        running.terminate()
        print(f"offload run ended with code {await running.wait()}")


async def until_done(kills: Kills, count: int, rate: float) -> None:
    """Publish for as long as it takes."""
    publishing = asyncio.create_task(publish(kills.broker, kills.published, rate, 1e9))
    while not kills.published.times:
        if publishing.done():
            publishing.result()
        await asyncio.sleep(0.1)

    async def stop() -> None:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)

    try:
        await kills.run(count, stop)
    finally:
        await stop()


async def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--lag", type=float, default=30)
    parser.add_argument("--instance", default="run.toml.instance")
    asked = parser.parse_args()
    await asyncio.to_thread(RECIPE.install)
    with tempfile.TemporaryDirectory(prefix="after-a-kill.") as scratch:
        (broker_folder := Path(scratch) / "broker").mkdir()
        with rabbitmq(broker_folder) as broker:
            print(f"RabbitMQ {broker.version}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
            kills = Kills(broker, Path(scratch), asked.lag, asked.instance)
            await until_done(kills, asked.kills, asked.rate)
            found = await read_back(kills.tier, kills.published)
    seconds = kills.seconds
    print(f"until it copies again: p50 {quantile(seconds, 0.5):.2f} s, most {max(seconds):.2f} s")
    print("lag by /metrics and true: " + ", ".join(f"{shown:.1f}/{true:.1f}" for shown, true in kills.lags))
    print(f"{found}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    asyncio.run(main())
