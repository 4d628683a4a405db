"""The command line on a bucket: what a user does, with credentials where the ecosystem looks for them."""

from __future__ import annotations

import pytest
from command_line import offload
from osiris_data import DATA, body_of
from servers import Running, servers_of
from servers.places import S3Place

SERVERS = pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)


class Bucket:
    """A fresh bucket, and a look at it by boto3. The environment leads the command line there."""

    def __init__(self, place: S3Place) -> None:
        self.place, self.tier = place, f"{place.url}/some/tier"

    def objects(self) -> dict[str, str]:
        """What tells whether an object was written again, by key."""
        pages = self.place.boto.get_paginator("list_objects_v2").paginate(Bucket=self.place.name)
        return {
            row["Key"]: f"{row['ETag']} {row['LastModified']}" for p in pages for row in p.get("Contents", ())
        }


@pytest.fixture
def bucket(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    place = running_server.place()
    assert isinstance(place, S3Place)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.options["secret"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", place.options["region"])
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", place.options["endpoint_url"])
    return Bucket(place)


@SERVERS
def test_real_streams_go_to_a_bucket_and_come_back(bucket: Bucket) -> None:
    synced = offload("sync", f"rabbitmq://{DATA}", bucket.tier, "--json")
    read = offload("read", bucket.tier, "batches", "--decode", "amqp", "--format", "body")
    verified = offload("verify", bucket.tier, "--json")

    assert synced.code == 0, synced.stderr
    assert {report["stream"] for report in synced.objects} == {"batches", "filtered", "tiny"}
    assert read.stdout.splitlines() == [body_of(i) for i in range(12_240)]
    assert verified.document["damages"] == []
    assert verified.document["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in bucket.objects())


@SERVERS
def test_a_second_sync_changes_nothing(bucket: Bucket) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    before = bucket.objects()

    again = offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, "--json")

    assert again.document["uploaded_bytes"] == 0
    assert bucket.objects() == before


@SERVERS
def test_damage_in_the_bucket_is_found(bucket: Bucket) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    [victim] = [key for key in bucket.objects() if key.endswith(".fragment")]
    raw = bytearray(bucket.place.get(victim))
    raw[1000] ^= 1
    bucket.place.put(victim, bytes(raw))

    verified = offload("verify", bucket.tier, "--json")

    assert verified.code == 1
    assert [row["object"] for row in verified.document["damages"]] == [victim.removeprefix("some/tier/")]


@SERVERS
def test_a_bucket_that_is_not_there_is_one_plain_line(bucket: Bucket) -> None:
    listed = offload("ls", f"s3://no-such-{bucket.place.name}")

    assert listed.code == 1
    assert "the bucket does not exist" in listed.error


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
    told = offload(*arguments)

    assert told.code == 2
    assert said in told.error


@SERVERS
def test_a_sweep_frees_the_bucket_and_aborts_what_nobody_will_finish(bucket: Bucket) -> None:
    """Begun by boto3, as a crash leaves it. MinIO lists unfinished uploads only under their exact keys.

    By moto every upload began in 2010, so the first sweep aborts it; by the others the second does.
    """
    offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    fragment = "some/tier/tiny/data/00000000000000000010.7f1d3c52-8a0e-4b6f-9c1d-2e3f4a5b6c7d.fragment"
    before = bucket.objects()
    bucket.place.put(fragment, b"left by a crash")
    where = {"Bucket": bucket.place.name, "Key": fragment.replace("00010.", "00011.")}
    boto = bucket.place.boto
    begun = boto.create_multipart_upload(**where)
    boto.upload_part(**where, UploadId=begun["UploadId"], PartNumber=1, Body=b"part")
    listed = boto.list_multipart_uploads(Bucket=bucket.place.name, Prefix="some/tier/tiny/data/")

    young = offload("sweep", bucket.tier, "--json")
    swept = offload("sweep", bucket.tier, "--grace", "0", "--uploads-older-than", "0s", "--json")

    assert (young.code, swept.code) == (0, 0), young.stderr + swept.stderr
    assert bucket.objects() == before
    aborted = [
        ran.document["streams"][0]["deleted"].get("an upload that nobody will finish", {"objects": 0})[
            "objects"
        ]
        for ran in (young, swept)
    ]
    assert sum(aborted) == len(listed.get("Uploads", ()))
    left = boto.list_multipart_uploads(Bucket=bucket.place.name, Prefix=where["Key"])
    assert len(left.get("Uploads", ())) == 1 - sum(aborted)
