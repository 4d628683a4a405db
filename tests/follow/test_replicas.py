"""Tests of sidecars on replicas of one stream, as real processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from osiris_writer import append_chunks, write_stream

from offload import NotOffloaded, StreamReader, open_tier
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import StreamKeys
from offload.formats.root import decode_root
from offload.model.manifest import Manifest

SIDECAR = Path(__file__).with_name("sidecar.py")
WAIT_SECONDS = 60.0
RECORDS = 10


def chunk(offset: int) -> bytes:
    return build_chunk([b"%d" % (offset + i) for i in range(RECORDS)], offset=offset, timestamp_ms=1, epoch=1)


@dataclass
class Replicas:
    """Folders that hold the same stream, and grow alike."""

    folders: list[Path]
    next_offset: int = RECORDS
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for folder in self.folders:
            write_stream(folder, [chunk(0)])
        self._thread = threading.Thread(target=self._grow)
        self._thread.start()

    def _grow(self) -> None:
        while not self._stopping.wait(0.25):
            for folder in self.folders:
                append_chunks(folder, [chunk(self.next_offset)])
            self.next_offset += RECORDS

    def stop(self) -> None:
        """Grow no more."""
        self._stopping.set()
        self._thread.join()


@dataclass
class Sidecar:
    """A process, and the file with the epochs of its claims."""

    source: Path
    tier: Path
    log: Path
    instance: list[Path] = field(default_factory=list)
    """The file of its identity, if it has one."""
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, SIDECAR, self.source.parent, self.tier, *self.instance],
                stdout=output,
                stderr=output,
            )

    @property
    def epoch(self) -> int:
        """The epoch of its last claim, and 0 before the first."""
        epochs = [int(line) for line in self.log.read_bytes().splitlines() if line.isdigit()]
        return max(epochs, default=0)

    def kill(self) -> None:
        """Kill it, and begin again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def sleep_until(self, met: Callable[[], bool]) -> None:
        """Stop it as a sleeping machine does, until something has happened without it."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            until(met)
        finally:
            self.process.send_signal(signal.SIGCONT)


def until(met: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError("it took too long")
        time.sleep(0.05)


def roots(tier: Path) -> list[Manifest]:
    """Return all roots, in order of versions."""
    found = sorted(tier.glob(StreamKeys("orders").roots + "*"))
    return [decode_root(path.read_bytes(), where=path.name) for path in found]


async def messages(tier: Path) -> list[bytes]:
    async with open_tier(str(tier)) as offloader:
        reader = await StreamReader.open(offloader, "orders")
        return [body async for batch in reader.messages(0) for body in batch.bodies]


async def committed(tier: Path) -> int:
    async with open_tier(str(tier)) as offloader:
        with suppress(NotOffloaded):
            return (await offloader.load_manifest("orders")).next_offset
        return 0


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[list[Sidecar]]:
    found = [
        Sidecar(source=tmp_path / name / "orders", tier=tmp_path / "tier", log=tmp_path / f"{name}.log")
        for name in ("a", "b", "c")
    ]
    yield found
    for each in found:
        each.process.send_signal(signal.SIGCONT)
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("seed", range(10 if CAMPAIGN else 1))
def test_one_of_three_takes_over_from_each_leader_that_is_killed_or_sleeps(
    sidecars: list[Sidecar], seed: int
) -> None:
    """No record is lost or doubled, each takeover is one claim, and who wakes up commits nothing."""
    draw, tier = random.Random(seed), sidecars[0].tier
    replicas = Replicas([each.source for each in sidecars])
    try:
        for each in sidecars:
            each.start()
        until(lambda: any(each.epoch for each in sidecars) or sidecars[0].process.poll() is not None)
        assert sidecars[0].process.poll() is None, sidecars[0].log.read_text()
        ways = draw.choices(["kill", "sleep"], k=5) if CAMPAIGN else ["kill", "sleep"]
        for way in ways:
            leader = max(sidecars, key=lambda each: each.epoch)
            epoch = leader.epoch

            def is_led_by_another(epoch: int = epoch) -> bool:
                return any(each.epoch > epoch for each in sidecars)

            if way == "kill":
                leader.kill()
                until(is_led_by_another)
            else:
                leader.sleep_until(is_led_by_another)
    finally:
        replicas.stop()
    until(lambda: asyncio.run(committed(tier)) == replicas.next_offset)
    for each in sidecars:
        each.process.terminate()
    assert [each.process.wait(WAIT_SECONDS) for each in sidecars] == [0, 0, 0]

    assert asyncio.run(messages(tier)) == [b"%d" % offset for offset in range(replicas.next_offset)]
    history = roots(tier)
    assert [root.version for root in history] == list(range(1, len(history) + 1))
    assert history[-1].epoch == 1 + len(ways)
    assert history[-1].running == ()


def test_a_leader_that_is_killed_again_and_again_leads_again_each_time_and_nobody_else_does(
    sidecars: list[Sidecar],
) -> None:
    """No record is lost or doubled. Without an identity nobody would lead for an hour."""
    tier, kills = sidecars[0].tier, 6 if CAMPAIGN else 2
    replicas = Replicas([each.source for each in sidecars])
    try:
        for each in sidecars:
            each.instance = [each.log.with_suffix(".instance")]
            each.start()
        until(lambda: any(each.epoch for each in sidecars))
        leader = max(sidecars, key=lambda each: each.epoch)
        for epoch in range(2, 2 + kills):
            leader.kill()
            until(lambda epoch=epoch: leader.epoch == epoch)  # type: ignore[misc]  # mypy knows no lambda's default
    finally:
        replicas.stop()
    until(lambda: asyncio.run(committed(tier)) == replicas.next_offset)

    assert [each.epoch for each in sidecars if each is not leader] == [0, 0]
    assert asyncio.run(messages(tier)) == [b"%d" % offset for offset in range(replicas.next_offset)]
