"""Tests of buckets with an object lock: every kind of write works there."""

from __future__ import annotations

import asyncio

import pytest
from offload_s3 import S3Options
from offload_s3.store import S3Store
from servers import Running, servers_of
from servers.places import S3Place

from offload import Body, ObjectStore
from offload.upkeep.check import CheckReport, check

LOCKED = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}}


async def written(store: ObjectStore) -> list[bytes]:
    try:
        await store.put("put", Body.of(b"fragment"))
        await store.create("create", b"commit")
        upload = await store.start_upload("upload")
        await upload.put_part(1, b"part")
        await upload.complete()
        return [await store.get(key) for key in ("put", "create", "upload")]
    finally:
        await store.aclose()


@pytest.mark.parametrize("running_server", servers_of("s3", chosen="moto"), indirect=True)
def test_every_write_carries_the_checksum_that_a_lock_demands(running_server: Running) -> None:
    """S3 and moto demand one. The other servers take writes without it."""
    place, bucket = locked(running_server)

    store = S3Store(bucket=bucket, options=S3Options.of(place.options))

    assert asyncio.run(written(store)) == [b"fragment", b"commit", b"part"]


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_a_check_reports_the_few_locked_versions_that_it_leaves(running_server: Running) -> None:
    place, bucket = locked(running_server)
    store = S3Store(bucket=bucket, options=S3Options.of(place.options))

    report = asyncio.run(checked(store))

    versions = place.boto.list_object_versions(Bucket=bucket)["Versions"]
    [cleaned] = [finding for finding in report.findings if finding.name == "clean up"]
    # rgw overwrites what it should create only if absent, in buckets with versions: the check says so.
    assert len(versions) == (4 if report.can("commit") else 5)
    assert "keeps deleted objects as versions" in cleaned.says
    assert "remove by hand all versions of what begins with 'tier.check." in cleaned.says


async def checked(store: ObjectStore) -> CheckReport:
    try:
        return await check(store)
    finally:
        await store.aclose()


def locked(running_server: Running) -> tuple[S3Place, str]:
    """Return a new bucket that locks each object for a day."""
    place = running_server.place()
    assert isinstance(place, S3Place)
    bucket = f"{place.name}-locked"
    place.boto.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    place.boto.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=LOCKED)
    return place, bucket
