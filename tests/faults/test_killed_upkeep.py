"""Tests of `offload trim`, `sweep`, `delete`, `rebuild` and `compact`, killed at any moment and run again.

On a server, SIGKILL comes before the server receives a request, or after it has answered. On a folder, it
comes before a call to the file system. The result is compared with that of the same command on a copy of the
tier, where nobody killed it. `OFFLOAD_SEED` repeats the moments. `OFFLOAD_CAMPAIGN=1` tries many more.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from campaign import CAMPAIGN, campaign
from command_line import Ran, calls_of, contents, finish, formula, offload, start_dying, sync
from faults.actors import Ground, ground_of, kill_at
from faults.rig import EVERYWHERE, PROBE, SEED, bare_store
from osiris_data import DATA, MANIFEST
from ready import ReadyCommand
from servers import Running, one_server_of

from offload import Blocking, Plugins, TierOptions
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.ground.env import Env
from offload.opening.by_url import open_tier
from offload.upkeep.sweep.tier import sweep

TIERS = 10 if CAMPAIGN else 1
KILLS_OF_A_TIER = 2
"""The kills before the command may end. The second kill meets the state that the first one left."""

STREAM, OTHER = "batches", "tiny"
BODIES = formula(MANIFEST["streams"][STREAM]["messages"])
BEFORE = 6937
"""The first offset of the third of four segments. Groups have two entries, so a whole group is trimmed."""

SMALL_SIZE_BYTES = 30_000
"""A fragment size so small that each segment is several fragments."""

GARBAGE = 10
HOURS_AGO_MS = 2 * 3_600_000
"""A time longer than the default grace of a sweep."""

Objects = dict[str, bytes]


@dataclass(frozen=True)
class Tier:
    """A tier, and the command line on it. A command that a test kills runs in a separate process."""

    ground: Ground

    @classmethod
    def of(cls, ground: Ground, objects: Objects) -> Tier:
        """Return a new tier with these objects."""
        tier = cls(ground.another())
        for key, data in objects.items():
            tier.ground.place.put(key, data)
        return tier

    def listed(self) -> set[str]:
        """Return all keys, found without the program under test, except those that a probe left."""
        return {key for key in self.ground.place.keys() if not key.startswith(PROBE)}  # noqa: SIM118

    def run(self, command: str, *arguments: object, may_fail: bool = False) -> Ran:
        """Run a command in this process, past the proxy."""
        ran = offload(command, self.ground.place.url, *arguments, *_options(self.ground.direct().options))
        assert may_fail or ran.code == 0, ran.stderr
        return ran

    def steps(self, command: str, *arguments: object) -> int:
        """Run the command to its end. Return the number of moments at which it could be killed."""
        url = self.ground.place.url
        if self.ground.proxy is None:
            return calls_of(finish(start_dying(0, command, self._folder, *arguments)))
        begun = self.ground.proxy.counts["requests"]
        ran = offload(command, url, *arguments, *_options(self.ground.stoppable().options))
        assert ran.code == 0, ran.stderr
        return self.ground.proxy.counts["requests"] - begun

    def killed(self, number: int, moment: str, command: str, *arguments: object) -> bool:
        """Kill the command at one of these moments. Return False if it ended before."""
        if self.ground.proxy is None:
            process = start_dying(number, command, self._folder, *arguments)
        else:
            options = _options(self.ground.stoppable().options)
            process = ReadyCommand(command, self.ground.place.url, *arguments, *options)
            kill_at(self.ground.proxy, number, moment, process)
        ran = finish(process)
        assert ran.code in (0, -signal.SIGKILL) or "nothing is lost" in ran.stderr, ran.stderr
        return ran.code == -signal.SIGKILL

    def totals(self) -> list[dict[str, Any]]:
        """Return the rows that `offload ls` reports."""
        return self.run("ls", "--json").objects

    def bodies(self) -> list[bytes]:
        """Return the bodies of the stream's messages."""
        return self.run("read", STREAM, "--decode", "amqp", "--format", "body").stdout.split(b"\n")[:-1]

    @property
    def _folder(self) -> Path:
        return Path(self.ground.place.url.removeprefix("file://"))

    def damages(self) -> list[dict[str, Any]]:
        """Return the damages that `offload verify` finds. It reads every byte."""
        damages: list[dict[str, Any]] = self.run("verify", "--json", may_fail=True).document["damages"]
        return damages


def _options(options: dict[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]


@dataclass(frozen=True)
class Command:
    """A command, and a check of its result against that of the same command without a kill."""

    arguments: tuple[object, ...]
    ends: Callable[[Tier, Tier], None]
    streams: tuple[str, ...] = (STREAM,)


def trim_ends(tier: Tier, reference: Tier) -> None:
    """Assert that the trim counted once, deleted no object, and added one root."""
    [totals] = tier.totals()
    assert [totals] == reference.totals()
    assert totals["first_offset"] == BEFORE
    assert tier.listed() == reference.listed()
    assert tier.bodies() == BODIES[-totals["messages"] :]


def sweep_ends(tier: Tier, reference: Tier) -> None:
    """Assert that no garbage and no note is left, only a tombstone of the deleted stream, and live data."""
    assert tier.listed() == reference.listed()
    assert len([key for key in tier.listed() if key.startswith(f"{OTHER}/")]) == 2
    assert not [key for key in tier.listed() if "sighting" in key]
    [totals] = tier.totals()
    assert tier.bodies() == BODIES[-totals["messages"] :]


def delete_ends(tier: Tier, reference: Tier) -> None:
    """Assert that a tombstone is there, a sweep keeps only it and the anchors, and a sync begins again."""
    assert tier.listed() == reference.listed()
    assert tier.totals() == []
    tombstone = max(key for key in tier.listed() if "/root." in key)
    tier.run("sweep", "--grace", "0")
    assert tier.listed() == {TIER_ANCHOR, StreamKeys(STREAM).anchor, tombstone}
    ground = tier.ground
    again = offload(
        "sync", f"rabbitmq://{DATA / STREAM}", ground.place.url, *_options(ground.direct().options)
    )
    assert again.code == 0, again.stderr
    assert tier.bodies() == BODIES


def rebuild_ends(tier: Tier, reference: Tier) -> None:
    """Assert that all messages are back. Versions may differ, since each rebuild puts a fence."""

    def but_versions(tier: Tier) -> list[dict[str, Any]]:
        return [{**row, "version": 0} for row in tier.totals()]

    assert but_versions(tier) == but_versions(reference)
    assert tier.bodies() == BODIES


def compact_ends(tier: Tier, reference: Tier) -> None:
    """Assert that the same records are in the same few fragments, and that a sweep leaves nothing else."""

    def but_versions(tier: Tier) -> list[dict[str, Any]]:
        return [{**row, "version": 0} for row in tier.totals()]

    assert but_versions(tier) == but_versions(reference)
    assert tier.bodies() == BODIES
    tier.run("sweep", "--grace", "0")
    fragments = [key for key in tier.listed() if key.endswith(".fragment")]
    assert len(fragments) == tier.totals()[0]["fragments"]


COMMANDS = {
    "trim": Command((STREAM, "--before", BEFORE), trim_ends),
    "sweep": Command((), sweep_ends, (STREAM, OTHER)),
    "delete": Command((STREAM, "--yes"), delete_ends),
    "rebuild": Command((STREAM, "--yes"), rebuild_ends),
    "compact": Command((), compact_ends),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Objects]:
    """Return, for each command, the objects of a tier that has work for it."""
    tier = tmp_path_factory.mktemp("prepared") / "tier"
    tier.mkdir()
    (tier / TIER_ANCHOR).write_bytes(TierAnchor(branching_factor=2).encode())
    sync(DATA, tier)
    whole = _objects(tier, (STREAM,))
    roots = StreamKeys(STREAM).roots
    assert offload("trim", tier, STREAM, "--before", BEFORE).code == 0
    assert offload("delete", tier, OTHER, "--yes").code == 0
    for number in range(GARBAGE):
        name = StreamKeys(STREAM).fragment(number, UUID(int=number + 1))
        (tier / name).write_bytes(b"left by a crash")
    asyncio.run(_sweep_long_ago(tier))
    return {
        "compact": finely_cut(tmp_path_factory.mktemp("finely-cut")),
        "trim": whole,
        "sweep": _objects(tier, (STREAM, OTHER)),
        "delete": whole,
        "rebuild": {key: data for key, data in whole.items() if not key.startswith(roots)},
    }


def finely_cut(folder: Path) -> Objects:
    """Return the objects of a tier whose fragments are small."""
    how = TierOptions(fragment_size_bytes=SMALL_SIZE_BYTES)
    with Blocking.around(lambda: open_tier(f"file://{folder}", options=how), plugins=Plugins.find()) as tier:
        tier.run(tier.offloader.open(create=True))
        [report] = tier.sync(f"rabbitmq://{DATA}", only=[STREAM])
        assert report.error is None
    return _objects(folder, (STREAM,))


async def _sweep_long_ago(tier: Path) -> None:
    """Leave a note of all garbage, as a sweep hours ago would."""
    store = bare_store(f"file://{tier}", {})
    await sweep(store, env=Env(now_ms=lambda: time.time_ns() // 1_000_000 - HOURS_AGO_MS))
    await store.aclose()


def _objects(tier: Path, streams: tuple[str, ...]) -> Objects:
    prefixes = (TIER_ANCHOR, *(StreamKeys(stream).prefix for stream in streams))
    return {key: data for key, (data, _) in contents(tier).items() if key.startswith(prefixes)}


@pytest.fixture
def ground(running_server: Running | None, tmp_path: Path) -> Iterator[Ground]:
    with ground_of(running_server, tmp_path) as ground:
        yield ground


def cases() -> Iterator[Any]:
    """Yield each command on each store. `make test` kills one on a folder, and one on a server."""
    left = campaign("kills of four commands; make test kills them on a folder, at some calls (tests/cli)")
    kept = {("compact", "folder"), ("sweep", one_server_of("s3"))}
    for name, where in product(COMMANDS, EVERYWHERE):
        marks = where.marks if where.marks or (name, where.id) in kept else left
        yield pytest.param(name, *where.values, id=f"{name}-{where.id}", marks=marks)


@pytest.mark.parametrize(("name", "running_server"), [*cases()], indirect=["running_server"])
def test_a_command_that_is_killed_and_runs_again_ends_as_if_never_killed(
    name: str, ground: Ground, prepared: dict[str, Objects]
) -> None:
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} {ground.name} {name}")
    command, objects = COMMANDS[name], prepared[name]
    reference = Tier.of(ground, objects)
    steps = reference.steps(name, *command.arguments)
    stays = objects.keys() & reference.listed() if name == "sweep" else objects.keys()
    assert stays <= reference.listed(), "only a sweep deletes"

    killed = 0
    for tiers in count():
        if tiers >= TIERS and killed:
            break
        assert tiers < 10 * TIERS, "none was killed"
        tier = Tier.of(ground, objects)
        for _ in range(KILLS_OF_A_TIER):
            number, moment = chance.randint(1, steps), chance.choice(("before", "after"))
            happened = tier.killed(number, moment, name, *command.arguments)
            print(f"{ground.name}: {name} killed {moment} {number} of {steps}: {happened}")
            killed += happened
            assert stays <= tier.listed(), "an object was deleted that must stay"
            if name == "rebuild" and not happened:
                break  # it is rebuilt: there is nothing to kill
        ran = tier.run(name, *command.arguments, may_fail=name == "rebuild")
        assert ran.code == 0 or "nothing is lost" in ran.stderr, ran.stderr
        assert tier.damages() == []
        command.ends(tier, reference)
