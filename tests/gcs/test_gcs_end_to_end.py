"""The command line on a bucket of GCS: what a user does, led there as the ecosystem's tools are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from osiris_data import DATA, body_of
from servers import Running, servers_of

OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]

pytestmark = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)


class Bucket:
    """A fresh bucket, the environment that leads to it, and a look at it by other means."""

    def __init__(self, running: Running) -> None:
        self.place = running.place()
        self.tier = f"{self.place.url}/some/tier"
        self.environment = os.environ | {"STORAGE_EMULATOR_HOST": running.endpoint}

    def offload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*OFFLOAD, *arguments], env=self.environment, capture_output=True, text=True)

    def keys(self) -> set[str]:
        return self.place.keys()

    def objects(self) -> dict[str, bytes]:
        return {key: self.place.get(key) for key in sorted(self.keys())}


@pytest.fixture
def bucket(running_server: Running) -> Bucket:
    return Bucket(running_server)


def test_real_streams_go_to_a_bucket_and_come_back(bucket: Bucket) -> None:
    synced = bucket.offload("sync", f"rabbitmq://{DATA}", bucket.tier, "--json")
    read = bucket.offload("read", bucket.tier, "batches", "--decode", "amqp", "--format", "body")
    verified = bucket.offload("verify", bucket.tier, "--json")

    assert synced.returncode == 0, synced.stderr
    assert {json.loads(line)["stream"] for line in synced.stdout.splitlines()} == {
        "batches",
        "filtered",
        "tiny",
    }
    assert read.stdout.encode().splitlines() == [body_of(i) for i in range(12_240)]
    assert json.loads(verified.stdout)["damages"] == []
    assert json.loads(verified.stdout)["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in sorted(bucket.keys()))


def test_a_second_sync_changes_nothing(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    before = bucket.objects()

    again = bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, "--json")

    assert json.loads(again.stdout)["uploaded_bytes"] == 0
    assert bucket.objects() == before


def test_options_lead_to_the_bucket_as_the_environment_does(bucket: Bucket) -> None:
    del bucket.environment["STORAGE_EMULATOR_HOST"]
    options = [f"--option={name}={value}" for name, value in bucket.place.options.items()]

    synced = bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, *options)
    listed = bucket.offload("ls", bucket.tier, *options)

    assert (synced.returncode, listed.returncode) == (0, 0), synced.stderr + listed.stderr
    assert "tiny" in listed.stdout


def test_damage_in_the_bucket_is_found(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    [victim] = [key for key in sorted(bucket.keys()) if key.endswith(".fragment")]
    raw = bytearray(bucket.place.get(victim))
    raw[1000] ^= 1
    bucket.place.put(victim, bytes(raw))

    verified = bucket.offload("verify", bucket.tier, "--json")

    assert verified.returncode == 1
    assert [row["object"] for row in json.loads(verified.stdout)["damages"]] == [
        victim.removeprefix("some/tier/")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "gs://no-such-bucket-anywhere"), 1, "no-such-bucket-anywhere"),
        (("sync", f"rabbitmq://{DATA}/tiny", "gs://no-such-bucket-anywhere"), 1, "the bucket does not exist"),
        (("ls", "gs://"), 2, "names no bucket"),
        (("ls", "gs://bucket", "-o", "colour=red"), 2, "colour"),
        (("ls", "gs://bucket", "-o", "connections_max=0"), 2, "connections_max"),
        (("ls", "gs://bucket", "-o", "token=/no/such/file"), 2, "token"),
    ],
)
def test_what_is_wrong_is_one_plain_line(
    bucket: Bucket, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = bucket.offload(*arguments)

    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
