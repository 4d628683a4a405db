"""The command line on a bucket: what a user does, with credentials where the ecosystem looks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from osiris_data import DATA, body_of
from s3_servers import moto

OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]


class Bucket:
    """A fresh bucket, the environment that leads to it, and a look at it by boto3."""

    def __init__(self, endpoint: str) -> None:
        self.name = f"bucket-{uuid4()}"
        self.tier = f"s3://{self.name}/some/tier"
        self.environment = os.environ | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": endpoint,
        }
        self.boto: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.boto.create_bucket(Bucket=self.name)

    def offload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*OFFLOAD, *arguments], env=self.environment, capture_output=True, text=True)

    def objects(self) -> dict[str, str]:
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {
            row["Key"]: f"{row['ETag']} {row['LastModified']}" for p in pages for row in p.get("Contents", ())
        }


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    return Bucket(endpoint)


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


def test_a_second_sync_changes_nothing(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    before = bucket.objects()

    again = bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, "--json")

    assert json.loads(again.stdout)["uploaded_bytes"] == 0
    assert bucket.objects() == before


def test_damage_in_the_bucket_is_found(bucket: Bucket) -> None:
    bucket.offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    [victim] = [key for key in bucket.objects() if key.endswith(".fragment")]
    raw = bytearray(bucket.boto.get_object(Bucket=bucket.name, Key=victim)["Body"].read())
    raw[1000] ^= 1
    bucket.boto.put_object(Bucket=bucket.name, Key=victim, Body=bytes(raw))

    verified = bucket.offload("verify", bucket.tier, "--json")

    assert verified.returncode == 1
    assert [row["object"] for row in json.loads(verified.stdout)["damages"]] == [
        victim.removeprefix("some/tier/")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "s3://no-such-bucket-anywhere"), 1, "the bucket does not exist"),
        (("ls", "s3://"), 2, "names no bucket"),
        (("ls", "s3://bucket", "-o", "colour=red"), 2, "colour"),
        (("ls", "s3://bucket", "-o", "colour"), 2, "NAME=VALUE"),
        (("ls", "s3://bucket", "-o", "addressing=sideways"), 2, "addressing"),
        (("ls", "./folder", "-o", "region=x"), 2, "has no option 'region'"),
    ],
)
def test_what_is_wrong_is_one_plain_line(
    bucket: Bucket, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = bucket.offload(*arguments)

    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
