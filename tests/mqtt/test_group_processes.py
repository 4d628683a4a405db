"""Tests of replay groups of real processes, `offload mqtt replay --group`, some of which are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from campaign import campaign
from command_line import SEED, offload
from mqtt_stream import MqttStream

MEMBER = """
import asyncio
from offload_mqtt import groups, output
from offload.cli.main import main

groups.LEASE_SECONDS, groups.SAVE_SECONDS, groups.LOOK_SECONDS = 1.5, 0.2, 0.1
groups.GroupMember.__init__.__kwdefaults__["chunks_max"] = 1
write = output.Printed.write

async def slowly(self, run):
    await asyncio.sleep(0.02)
    await write(self, run)

output.Printed.write = slowly
main()
"""
"""The program, with short leases, small units, and some work for each run."""


def sorted_stream(folder: Path, segment_records: int) -> MqttStream:
    """Return a stream with three sorted segments on a tier beside it, the last of them without an index."""
    made, random = MqttStream(folder / "telemetry"), Random(1)
    for _ in range(4):
        keys = [
            f"site.{random.randrange(40)}.line.{random.randrange(9)}.state" for _ in range(segment_records)
        ]
        made.segment(keys)
        tier = made.folder.parent / "tier"
        assert offload("sync", f"topics+rabbitmq://{made.folder}", tier).code == 0
        if len(made.cuts) == 3:
            assert offload("index", tier, "telemetry.topics", "--by", "ranges=mqtt:topic").code == 0
    return made


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> MqttStream:
    """A stream of nine units."""
    return sorted_stream(tmp_path_factory.mktemp("mqtt"), 2000)


@pytest.fixture(scope="module")
def long_stream(tmp_path_factory: pytest.TempPathFactory) -> MqttStream:
    """A stream of a hundred units."""
    return sorted_stream(tmp_path_factory.mktemp("mqtt"), 25_000)


def begun(stream: MqttStream, folder: Path, number: int, group: str) -> subprocess.Popen[bytes]:
    """Start a member that prints into a file."""
    words = "mqtt", "replay", stream.folder.parent / "tier", "telemetry.topics", "--filter", "site/+/line/+/#"
    with (folder / str(number)).open("wb") as lines:
        return subprocess.Popen(
            [sys.executable, "-c", MEMBER, *map(str, words), "--group", group], stdout=lines
        )


def share(stream: MqttStream, folder: Path, *, members: int, kills: int) -> Counter[int]:
    """Let members work, and kill some of them. Return how often each origin was printed."""
    random = Random(SEED)
    print("seed", SEED)
    running = [begun(stream, folder, number, folder.name) for number in range(members)]
    try:
        for killed in random.sample(running, kills):
            printed = sum(path.stat().st_size for path in folder.iterdir())
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and killed.poll() is None:
                time.sleep(0.01 + random.random() * 0.1)
                if sum(path.stat().st_size for path in folder.iterdir()) > printed:
                    break
            killed.kill()
        for process in running:
            process.wait(timeout=120)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert sum(process.returncode != 0 for process in running) <= kills
    found = Counter[int]()
    for path in folder.iterdir():
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # who was killed may have written half a line
        found.update(json.loads(line)["origin"] for line in whole.splitlines())
    return found


def wanted(stream: MqttStream) -> set[int]:
    return {offset for offset, (key, _) in stream.messages.items() if key and offset < stream.cuts[-1]}


def test_three_processes_share_a_replay_and_one_that_is_killed_loses_nothing(
    stream: MqttStream, tmp_path: Path
) -> None:
    found = share(stream, tmp_path, members=3, kills=1)

    assert found.keys() == wanted(stream)


@campaign("ten processes of a replay group, three of them killed; make test has three and one")
@pytest.mark.parametrize("time", range(3))
def test_ten_processes_share_a_replay_and_three_that_are_killed_lose_nothing(
    long_stream: MqttStream, tmp_path: Path, time: int
) -> None:
    found = share(long_stream, tmp_path, members=10, kills=3)

    assert found.keys() == wanted(long_stream)
    repeated = sum(count - 1 for count in found.values())
    print(f"{len(found)} messages, {repeated} repeated")
    assert repeated < len(found) / 2


def test_a_group_that_has_ended_hands_on_nothing_again(stream: MqttStream) -> None:
    tier, how = stream.folder.parent / "tier", ("--filter", "site/3/#", "--group", "once")
    first = offload("mqtt", "replay", tier, "telemetry.topics", *how)
    again = offload("mqtt", "replay", tier, "telemetry.topics", *how)

    assert (first.code, again.code) == (0, 0), first.stderr + again.stderr
    assert first.lines
    assert again.lines == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--group", "a/b"], "without / + #"),
        (["--group", "g", "--speed", "1"], "leave out --source, --origin, --speed and --resume"),
        (["--group", "g", "--resume", "m1.x"], "leave out"),
    ],
)
def test_a_wrong_group_is_one_clear_line(stream: MqttStream, given: list[str], said: str) -> None:
    ran = offload(
        "mqtt", "replay", stream.folder.parent / "tier", "telemetry.topics", "--filter", "#", *given
    )

    assert ran.code != 0
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
