"""Tests of the command line on a bucket: wrong arguments, and a sweep that aborts uploads."""

from __future__ import annotations

import pytest
from cloud.tiers import CloudTier
from command_line import offload
from osiris_data import DATA
from servers import Running, servers_of
from servers.places import S3Place


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
def test_a_wrong_argument_is_one_plain_line_before_any_request(arguments: tuple[str, ...], said: str) -> None:
    told = offload(*arguments)

    assert told.code == 2
    assert said in told.error


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_a_sweep_deletes_unused_objects_and_aborts_unfinished_uploads(
    running_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 begins the upload, as a crash leaves it. MinIO lists unfinished uploads only under exact keys.

    For moto every upload began in 2010, so the first sweep aborts it; on other servers the second does.
    """
    place = running_server.place()
    assert isinstance(place, S3Place)
    tier = CloudTier(place, monkeypatch)
    offload("sync", f"rabbitmq://{DATA}/tiny", tier.url)
    fragment = "some/tier/tiny/data/00000000000000000010.7f1d3c52-8a0e-4b6f-9c1d-2e3f4a5b6c7d.fragment"
    before = tier.objects()
    place.put(fragment, b"left by a crash")
    where = {"Bucket": place.name, "Key": fragment.replace("00010.", "00011.")}
    boto = place.boto
    begun = boto.create_multipart_upload(**where)
    boto.upload_part(**where, UploadId=begun["UploadId"], PartNumber=1, Body=b"part")
    listed = boto.list_multipart_uploads(Bucket=place.name, Prefix="some/tier/tiny/data/")

    young = offload("sweep", tier.url, "--json")
    swept = offload("sweep", tier.url, "--grace", "0", "--uploads-older-than", "0s", "--json")

    assert (young.code, swept.code) == (0, 0), young.stderr + swept.stderr
    assert tier.objects() == before
    aborted = [
        ran.document["streams"][0]["deleted"].get("an upload that nobody will finish", {"objects": 0})[
            "objects"
        ]
        for ran in (young, swept)
    ]
    assert sum(aborted) == len(listed.get("Uploads", ()))
    left = boto.list_multipart_uploads(Bucket=place.name, Prefix=where["Key"])
    assert len(left.get("Uploads", ())) == 1 - sum(aborted)
