"""Tests that `offload copy`, killed at a request to the target and run again, stores every message once.

`tests/protocol/test_upkeep.py` shows what a kill leaves at every change. These tests use the program itself
and stores of every kind. `OFFLOAD_SEED` repeats the moments. `OFFLOAD_CAMPAIGN=1` tries many more.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from command_line import Ran, calls_of, finish, formula, offload, start_dying_below
from faults.actors import Ground, ground_of, kill_at
from faults.rig import SEED
from faults.test_killed_upkeep import STREAM, finely_cut
from osiris_data import MANIFEST
from ready import ReadyCommand
from servers.session import Session

KILLS = 10 if CAMPAIGN else 1
WAY = ("folder", "minio", *(("fake-gcs-server", "azurite", "folder") if CAMPAIGN else ()))
BODIES = formula(MANIFEST["streams"][STREAM]["messages"])


@pytest.fixture
def grounds(running_servers: Session, tmp_path: Path) -> Iterator[list[Ground]]:
    """Yield a new place for each stop of the way."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ground_of(None if name == "folder" else running_servers.running(name), tmp_path / str(stop))
            )
            for stop, name in enumerate(WAY)
        ]


def options(ground: Ground, *, name: str, stoppable: bool = False) -> list[str]:
    where = ground.stoppable() if stoppable else ground.direct()
    return [word for key, value in where.options.items() for word in (name, f"{key}={value}")]


def words(source: Ground, target: Ground, *, stoppable: bool) -> list[str]:
    """Return the command line of a copy."""
    reads = options(source, name="--source-option")
    writes = options(target, name="--option", stoppable=stoppable)
    return ["copy", source.place.url, target.place.url, "--verify", *reads, *writes]


def folder_of(ground: Ground) -> Path:
    return Path(ground.place.url.removeprefix("file://"))


def steps(source: Ground, target: Ground) -> int:
    """Run a copy to its end. Return the number of moments at which it could be killed."""
    if target.proxy is None:
        return calls_of(
            finish(start_dying_below(folder_of(target), 0, *words(source, target, stoppable=True)))
        )
    begun = target.proxy.counts["requests"]
    assert offload(*words(source, target, stoppable=True)).code == 0
    return target.proxy.counts["requests"] - begun


def killed(source: Ground, target: Ground, number: int, moment: str) -> Ran:
    """Run a copy, and kill it at this moment unless it ends before."""
    line = words(source, target, stoppable=True)
    if target.proxy is None:
        process = start_dying_below(folder_of(target), number, *line)
    else:
        process = ReadyCommand(*line)
        kill_at(target.proxy, number, moment, process)
    return finish(process)


def sound(ground: Ground) -> None:
    """Assert that there is no damage, every record, each fragment once, and no job that runs."""
    given = options(ground, name="--option")
    url = ground.place.url
    assert offload("verify", url, "--json", *given).document["damages"] == []
    read = offload("read", url, STREAM, "--decode", "amqp", "--format", "body", *given)
    assert read.stdout.split(b"\n")[:-1] == BODIES
    assert offload("abandon", url, STREAM, "--json", *given).document["jobs"] == []
    assert offload("sweep", url, "--grace", "0", *given).code == 0
    [totals] = offload("ls", url, "--json", *given).objects
    fragments = [key for key in ground.place.keys() if key.endswith(".fragment")]  # noqa: SIM118 - no mapping
    assert len(fragments) == totals["fragments"]


def test_a_killed_copy_that_runs_again_stores_every_message_once(
    grounds: list[Ground], tmp_path: Path
) -> None:
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} copy")
    (tmp_path / "made").mkdir()
    for key, data in finely_cut(tmp_path / "made").items():
        grounds[0].place.put(key, data)

    source = grounds[0]
    for ground in grounds[1:]:
        requests, kills = steps(source, ground), 0
        while kills < KILLS:
            target = ground.another()
            number, moment = chance.randint(1, requests), chance.choice(("before", "after"))
            ran = killed(source, target, number, moment)
            print(f"{source.name} to {target.name}: killed {moment} {number} of {requests}: {ran.code}")
            assert ran.code in (0, -signal.SIGKILL), ran.stderr
            kills += ran.code == -signal.SIGKILL

            again = offload(*words(source, target, stoppable=False))

            assert again.code == 0, again.stderr
            sound(target)
            nothing = offload(*words(source, target, stoppable=False), "--json")
            assert [row["fragments"] for row in nothing.objects] == [0]
        source = target
