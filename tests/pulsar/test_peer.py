"""Tests beside Pulsar's own offloader, as released: each reads on a server what the other wrote there.

They need Java 17 and Maven, which fetches Pulsar's classes once. `peer/Peer.java` runs them without a broker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from campaign import campaign
from cloud.tiers import CloudTier
from command_line import offload
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey
from pulsar_sets import ListedEntries, pattern
from servers import Running, servers_of
from servers.places import ACCESS_KEY, SECRET_KEY, S3Place
from servers.session import REQUIRED

from offload import Session

FOLDER = Path(__file__).parent / "peer"
BLOCK_SIZE_BYTES = 5 * 2**20
"""The least that S3 takes."""

NAME = "public/default/persistent/orders-partition-0"
THEIRS, OURS = UUID(int=1), UUID(int=2)
LEDGERS = [7, 2**32 + 5, 2**63 - 1]
REAL_SERVERS = [each for each in servers_of("s3") if each.id != "moto"]

pytestmark = campaign("Pulsar's own classes; make test has what they wrote, stored, and their rule for more")


ENTRIES = [
    pattern("peer")[number : number + size]
    for number, size in enumerate(
        [0, 1, 11, *[7919 * number % 2048 for number in range(1000)], *[2**20] * 10, 0, 1]
    )
]
"""Some 11 MiB: empty entries, small ones, and large ones, in three blocks."""


def missing(why: str) -> None:
    """Skip the test, or fail it if servers are required."""
    (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(
        f"Pulsar's classes cannot be run here: {why}"
    )


class Pulsar:
    """Pulsar's offloader on a bucket."""

    def __init__(self, classes: str, place: S3Place) -> None:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        self._start = ["java", "-Xmx1g", quiet, "-cp", classes, str(FOLDER / "Peer.java")]
        self._place = [place.options["endpoint_url"], place.name, str(BLOCK_SIZE_BYTES)]

    def run(self, command: str, *words: object, data: bytes = b"") -> bytes:
        """Run one command, and return its output."""
        argv = [*self._start, command, *self._place, *map(str, words)]
        keys = {"ACCESS_KEY_ID": ACCESS_KEY, "ACCESS_KEY_SECRET": SECRET_KEY}
        done = subprocess.run(argv, input=data, capture_output=True, env=os.environ | keys, timeout=300)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return done.stdout

    def write(self, ledger_id: int, uid: UUID, entries: Sequence[bytes]) -> None:
        data = b"".join(piece for each in entries for piece in (len(each).to_bytes(4, "big"), each))
        self.run("write", ledger_id, uid, NAME, data=data)

    def read(self, ledger_id: int, uid: UUID) -> list[bytes]:
        data, at, found = self.run("read", ledger_id, uid, NAME), 0, list[bytes]()
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            found.append(data[at + 4 : end])
            at = end
        return found


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the class path of Pulsar's offloader."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            missing(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("peer")
    shutil.copy(FOLDER / "pom.xml", folder)
    said = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    if not any(f'version "{major}' in said for major in range(17, 30)):
        missing(f"Java 17 or newer is needed, not {said.splitlines()[0]}")
    found = folder / "classes.txt"
    argv = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    for more in (["-o"], []):  # without the network first, because Maven asks for new versions otherwise
        done = subprocess.run([*argv, *more], cwd=folder, capture_output=True, text=True, timeout=1800)
        if done.returncode == 0:
            return found.read_text().strip()
    missing(f"Maven cannot get them: {(done.stdout + done.stderr).strip().splitlines()[0]}")
    raise AssertionError


@pytest.fixture
def tier(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> CloudTier:
    return CloudTier(running_server.place(), monkeypatch)


def place_of(tier: CloudTier) -> S3Place:
    assert isinstance(tier.place, S3Place)
    return tier.place


async def offload_ours(url: str, ledger_id: int) -> None:
    async with Session() as session:
        bucket = PulsarBucket(session.store(url), block_size_bytes_max=BLOCK_SIZE_BYTES)
        names = BrokerNames(managed_ledger=NAME, cluster="tests", software_version="4.0.8")
        await bucket.offload(ListedEntries(ledger_id, ENTRIES), OURS, names=names)


async def read_ours(url: str, ledger_id: int, uid: UUID) -> list[bytes]:
    async with Session() as session:
        ledger = await PulsarBucket(session.store(url)).open(ledger_id, uid)
        found = list[bytes]()
        while len(found) <= ledger.last_entry:
            run = await ledger.entries(len(found), ledger.last_entry, size_bytes=2**20)
            found += [
                bytes(run.data[start:end])
                for start, end in zip(run.starts.tolist(), run.ends.tolist(), strict=True)
            ]
        return found


@pytest.mark.parametrize("running_server", REAL_SERVERS, indirect=True)
@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_pulsar_reads_what_our_writer_put(tier: CloudTier, classes: str, ledger_id: int) -> None:
    pulsar = Pulsar(classes, place_of(tier))

    asyncio.run(offload_ours(tier.place.url, ledger_id))

    assert pulsar.read(ledger_id, OURS) == ENTRIES


@pytest.mark.parametrize("running_server", REAL_SERVERS, indirect=True)
@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_ours_reads_what_pulsar_wrote(tier: CloudTier, classes: str, ledger_id: int) -> None:
    pulsar = Pulsar(classes, place_of(tier))

    pulsar.write(ledger_id, THEIRS, ENTRIES)

    assert asyncio.run(read_ours(tier.place.url, ledger_id, THEIRS)) == ENTRIES
    assert offload("pulsar", "verify", f"pulsar+{tier.place.url}").code == 0


@pytest.mark.parametrize("running_server", REAL_SERVERS, indirect=True)
def test_both_write_the_same_bytes_and_list_the_same_objects(tier: CloudTier, classes: str) -> None:
    pulsar, place = Pulsar(classes, place_of(tier)), place_of(tier)

    pulsar.write(7, THEIRS, ENTRIES)
    asyncio.run(offload_ours(tier.place.url, 7))

    theirs, ours = PulsarKey(THEIRS, 7), PulsarKey(OURS, 7)
    assert place.get(str(ours)) == place.get(str(theirs))
    listed = {line.split()[0]: line.split()[1:3] for line in pulsar.run("scan").decode().splitlines()}
    assert listed == {str(key): ["7", str(key.uid)] for each in (theirs, ours) for key in (each, each.index)}
    rows = [line.split("\t") for line in offload("pulsar", "scan", tier.place.url).lines[1:]]
    assert {row[2]: (row[0], row[5]) for row in rows} == {
        str(THEIRS): (NAME, "whole"),
        str(OURS): (NAME, "whole"),
    }


@pytest.mark.parametrize("running_server", REAL_SERVERS, indirect=True)
def test_pulsar_deletes_what_our_writer_put(tier: CloudTier, classes: str) -> None:
    asyncio.run(offload_ours(tier.place.url, 7))

    Pulsar(classes, place_of(tier)).run("delete", 7, OURS, NAME)

    assert place_of(tier).keys() == set()
