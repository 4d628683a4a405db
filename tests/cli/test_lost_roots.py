"""A tier whose roots were removed, by hand or by accident, as an operator sees it through commands.

The stream `orders` loses roots, and `bills` is sound. The accident is the same on a folder and on every
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from campaign import CAMPAIGN, campaign
from command_line import Ran, offload
from osiris_writer import append_chunks, simple_chunks, write_stream
from servers import Running, servers_at_risk

from offload.formats.keys import StreamKeys
from offload.opening.by_url import open_store
from offload.opening.plugins import Plugins

LOST, SOUND = StreamKeys("orders"), StreamKeys("bills")
ROUNDS: Final = 10
SEGMENTS: Final = ROUNDS + 4
SEGMENT_RECORDS: Final = 6


@dataclass(frozen=True)
class Source:
    """A broker whose streams grow by a segment and lose their oldest one."""

    folder: Path
    ends: Iterator[int] = field(default_factory=lambda: count(SEGMENTS))

    def write(self) -> None:
        for keys in (LOST, SOUND):
            chunks = simple_chunks(2 * SEGMENTS, records=SEGMENT_RECORDS // 2)
            write_stream(self.folder / keys.stream, chunks, segment_chunks=2)

    def turn(self) -> None:
        """Append some chunks and delete the oldest segment, which the tier already has."""
        first_offset = next(self.ends) * SEGMENT_RECORDS
        for keys in (LOST, SOUND):
            chunks = simple_chunks(2, first_offset=first_offset, records=SEGMENT_RECORDS // 2)
            append_chunks(self.folder / keys.stream, chunks)
            oldest = min((self.folder / keys.stream).glob("*.segment"))
            oldest.with_suffix(".index").unlink()
            oldest.unlink()


@dataclass(frozen=True)
class Tier:
    """A tier, for commands and for direct access to its objects."""

    url: str
    options: dict[str, Any]

    def run(self, command: str, *arguments: object) -> Ran:
        """Run a command on this tier."""
        pairs = [word for pair in self.options.items() for word in ("--option", "=".join(pair))]
        return offload(command, *arguments, *pairs)

    def sync(self, source: Source) -> Ran:
        return self.run("sync", f"rabbitmq://{source.folder}", self.url)

    def objects(self, keys: StreamKeys) -> list[str]:
        """Return the keys of a stream's objects."""

        async def listed() -> list[str]:
            async with aclosing(self._store()) as store:
                return [row.key async for row in store.list(keys.prefix)]

        return asyncio.run(listed())

    def lose_roots(self, keys: StreamKeys, *, above: int = 0) -> None:
        """Remove every root, or every root above this number."""
        lost = [key for key in self.objects(keys) if (keys.parse_root(key) or 0) > above]

        async def delete() -> None:
            async with aclosing(self._store()) as store:
                await store.delete(lost)

        assert lost
        asyncio.run(delete())

    def _store(self) -> Any:
        return open_store(self.url, plugins=Plugins.find(), storage_options=self.options)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(tmp_path / "source")
    source.write()
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Tier:
    return Tier((tmp_path / "tier").as_uri(), {})


def advice(tier: Tier) -> str:
    """Return the command that every error names."""
    return f"run: offload rebuild {tier.url} {LOST.stream}"


def refuses(ran: Ran, tier: Tier) -> None:
    """Assert that the command failed with one helpful sentence on stderr."""
    [line] = [line for line in ran.stderr.split("\n") if LOST.stream in line]
    assert ran.code == 1
    assert "are lost" in line
    assert "Nothing was deleted" in line
    assert advice(tier) in line


def endure(tier: Tier, source: Source, *, rounds: int) -> None:
    """Lose all roots of one stream, let a cron of sync, sweep and verify continue, then rebuild it."""
    assert tier.sync(source).code == 0
    tier.lose_roots(LOST)
    before = tier.objects(LOST)

    for _ in range(rounds):
        source.turn()
        listed, synced = tier.run("ls", tier.url), tier.sync(source)
        swept, verified = tier.run("sweep", tier.url, "--grace", 0), tier.run("verify", tier.url)

        for ran in (listed, synced, swept):
            refuses(ran, tier)
        assert "bills\t" in listed.text
        assert "bills: " in synced.text
        assert verified.code == 1
        assert [advice(tier) in line for line in verified.lines if line.startswith("DAMAGE")] == [True]
        assert tier.objects(LOST) == before

    assert any(SOUND.parse_root(key) == 3 + 3 * rounds for key in tier.objects(SOUND)), "bills goes on"
    assert tier.run("rebuild", tier.url, LOST.stream, "--yes").code == 0
    assert tier.sync(source).code == 0
    assert tier.run("verify", tier.url).code == 0


def test_a_cron_loses_nothing_of_a_stream_without_roots(folder: Tier, source: Source) -> None:
    endure(folder, source, rounds=ROUNDS)


@campaign("a cron on a server whose stream lost its roots; make test has it on a folder")
@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_a_cron_loses_nothing_of_a_stream_without_roots_on_servers(
    running_server: Running, source: Source
) -> None:
    place = running_server.place()

    endure(Tier(place.url, dict(place.options)), source, rounds=ROUNDS if CAMPAIGN else 1)


@pytest.mark.parametrize("command", ["inspect", "read", "trim", "delete", "abandon"])
def test_a_command_about_a_stream_without_roots_says_what_to_do(
    command: str, folder: Tier, source: Source
) -> None:
    options = {"trim": ["--before", 12], "delete": ["--yes"]}
    folder.sync(source)
    folder.lose_roots(LOST)
    before = folder.objects(LOST)

    ran = folder.run(command, folder.url, LOST.stream, *options.get(command, []))

    refuses(ran, folder)
    assert folder.objects(LOST) == before


def test_a_cron_loses_nothing_of_a_stream_that_lost_its_newest_roots(folder: Tier, source: Source) -> None:
    """The source still has all of it. A sync could therefore continue, which would hide the loss from the
    sweep.
    """
    folder.sync(source)
    newest = max(LOST.parse_root(key) or 0 for key in folder.objects(LOST))
    source.turn()
    folder.sync(source)
    folder.lose_roots(LOST, above=newest)
    before = folder.objects(LOST)

    for _ in range(3):
        refuses(folder.sync(source), folder)
        refuses(folder.run("sweep", folder.url, "--grace", 0), folder)
        verified = folder.run("verify", folder.url, "--level", "manifest")

        assert verified.code == 1
        assert advice(folder) in verified.text
        assert folder.objects(LOST) == before


def test_a_stream_that_lost_its_anchor_as_well_is_reported(
    folder: Tier, source: Source, tmp_path: Path
) -> None:
    folder.sync(source)
    folder.lose_roots(LOST)
    (tmp_path / "tier" / LOST.anchor).unlink()

    for ran in (
        folder.run("ls", folder.url),
        folder.sync(source),
        folder.run("sweep", folder.url, "--grace", 0),
    ):
        refuses(ran, folder)
    assert advice(folder) in folder.run("verify", folder.url).text


def test_verify_does_not_call_a_tier_without_commits_sound(
    folder: Tier, source: Source, tmp_path: Path
) -> None:
    """The stream anchors remain, as after a crash before the first commit."""
    folder.sync(source)
    for keys in (LOST, SOUND):
        for key in {*folder.objects(keys)} - {keys.anchor}:
            (tmp_path / "tier" / key).unlink()

    ran = folder.run("verify", folder.url)

    assert ran.code == 0
    assert "sound" not in ran.text
    assert "0 streams" in ran.text
    assert "no stream was verified" in ran.text
