"""The command line on a bucket: what a user does, with credentials where the ecosystem looks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from osiris_data import DATA, body_of
from servers import Running, servers_of
from servers.places import S3Place

OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]

SERVERS = pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)


class Bucket:
    """A fresh bucket, the environment that leads to it, and a look at it by boto3."""

    def __init__(self, place: S3Place) -> None:
        self.place, self.tier = place, f"{place.url}/some/tier"
        self.environment = os.environ | {
            "AWS_ACCESS_KEY_ID": place.options["key"],
            "AWS_SECRET_ACCESS_KEY": place.options["secret"],
            "AWS_DEFAULT_REGION": place.options["region"],
            "AWS_ENDPOINT_URL_S3": place.options["endpoint_url"],
        }

    def offload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*OFFLOAD, *arguments], env=self.environment, capture_output=True, text=True)

    def objects(self) -> dict[str, str]:
        pages = self.place.boto.get_paginator("list_objects_v2").paginate(Bucket=self.place.name)
        return {
            row["Key"]: f"{row['ETag']} {row['LastModified']}" for p in pages for row in p.get("Contents", ())
        }


@pytest.fixture
def bucket(running_server: Running) -> Bucket:
    place = running_server.place()
    assert isinstance(place, S3Place)
    return Bucket(place)


@SERVERS
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
    assert all(key.startswith("some/tier/") for key in bucket.objects())


@SERVERS
def test_a_second_sync_changes_nothing(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    before = bucket.objects()

    again = bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, "--json")

    assert json.loads(again.stdout)["uploaded_bytes"] == 0
    assert bucket.objects() == before


@SERVERS
def test_damage_in_the_bucket_is_found(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    [victim] = [key for key in bucket.objects() if key.endswith(".fragment")]
    raw = bytearray(bucket.place.get(victim))
    raw[1000] ^= 1
    bucket.place.put(victim, bytes(raw))

    verified = bucket.offload("verify", bucket.tier, "--json")

    assert verified.returncode == 1
    assert [row["object"] for row in json.loads(verified.stdout)["damages"]] == [
        victim.removeprefix("some/tier/")
    ]


@SERVERS
def test_a_bucket_that_is_not_there_is_one_plain_line(bucket: Bucket) -> None:
    listed = bucket.offload("ls", "s3://no-such-bucket-anywhere")

    assert listed.returncode == 1
    assert "the bucket does not exist" in listed.stderr
    assert listed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls", "s3://"), "names no bucket"),
        (("ls", "s3://bucket", "-o", "colour=red"), "colour"),
        (("ls", "s3://bucket", "-o", "colour"), "NAME=VALUE"),
        (("ls", "s3://bucket", "-o", "addressing=sideways"), "addressing"),
        (("ls", "./folder", "-o", "region=x"), "has no option 'region'"),
    ],
)
def test_what_is_wrong_is_one_plain_line_before_any_server_is_asked(
    arguments: tuple[str, ...], said: str
) -> None:
    done = subprocess.run([*OFFLOAD, *arguments], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
