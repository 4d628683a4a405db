"""Buckets whose objects are locked for a time: every way of writing works there, by both clients."""

from __future__ import annotations

import asyncio

import pytest
from offload_s3 import S3Options
from offload_s3.url import open_bucket
from servers import Running, servers_of
from servers.places import S3Place

from offload import Body, ObjectStore

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


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_every_write_carries_the_checksum_that_a_lock_demands(running_server: Running, client: str) -> None:
    """S3 demands one, and so does moto; the real servers take writes without it."""
    place = running_server.place()
    assert isinstance(place, S3Place)
    bucket = f"{place.name}-locked"
    place.boto.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    place.boto.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=LOCKED)

    store = open_bucket(bucket, S3Options.of(place.options | {"client": client}))

    assert asyncio.run(written(store)) == [b"fragment", b"commit", b"part"]
