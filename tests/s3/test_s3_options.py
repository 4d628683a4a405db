"""Tests of options of stored objects: boto3 reads what a server stored."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from certificates import certificate
from offload_s3 import S3Options
from offload_s3.store import S3Store
from servers import Running
from servers.catalogue import server
from servers.places import ACCESS_KEY, SECRET_KEY, S3Place
from servers.processes import free_port, process, wait_until_it_answers

from offload import Body, ObjectStore, OffloadError

MOTO = pytest.mark.parametrize("running_server", ["moto"], indirect=True)
"""The server that keeps every one of these properties, and shows them."""

KEPT = {
    "sse": "aws:kms",
    "sse_kms_key_id": "alias/tier",
    "storage_class": "STANDARD_IA",
    "tags": "team=logs,cost center=a/b",
    "metadata": "written-by=us",
}


async def write_three(store: ObjectStore) -> None:
    """Write a fragment in one put, one in parts, and a commit."""
    try:
        await store.put("put", Body.of(b"fragment"))
        upload = await store.start_upload("upload")
        await upload.put_part(1, b"fragment")
        await upload.complete()
        await store.create("create", b"commit")
    finally:
        await store.aclose()


@MOTO
def test_a_server_stores_objects_by_the_options(running_server: Running) -> None:
    place = running_server.place()
    assert isinstance(place, S3Place)

    options = S3Options.of(place.options | KEPT)
    asyncio.run(write_three(S3Store(bucket=place.name, options=options)))

    head = {key: place.boto.head_object(Bucket=place.name, Key=key) for key in ("put", "upload", "create")}
    tags = {key: place.boto.get_object_tagging(Bucket=place.name, Key=key)["TagSet"] for key in head}
    assert {each["ServerSideEncryption"] for each in head.values()} == {"aws:kms"}
    assert {each["SSEKMSKeyId"] for each in head.values()} == {"alias/tier"}
    for key in ("put", "upload"):
        assert head[key]["StorageClass"] == "STANDARD_IA"
        assert head[key]["Metadata"] == {"written-by": "us"}
        assert {tag["Key"]: tag["Value"] for tag in tags[key]} == {"team": "logs", "cost center": "a/b"}
    assert "StorageClass" not in head["create"]
    assert head["create"]["Metadata"] == {}
    assert tags["create"] == []


@pytest.fixture
def over_tls(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Run a MinIO with TLS, which it demands for keys of the caller, and yield the options for it."""
    if why := server("minio").missing():
        pytest.skip(f"minio cannot be run here: {why}")
    authority, port = certificate(tmp_path).path, free_port()
    program = server("minio").recipe.folder / "bin" / "minio"
    argv = (program, "server", "--address", f"127.0.0.1:{port}", "--certs-dir", tmp_path, tmp_path / "data")
    env = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
    with process(*argv, log=tmp_path / "log", env=env | {"MINIO_UPDATE": "off"}) as running:
        wait_until_it_answers(f"http://127.0.0.1:{port}", running, log=tmp_path / "log")
        url = f"https://127.0.0.1:{port}"
        login = {"endpoint_url": url, "region": "us-east-1", "key": ACCESS_KEY, "secret": SECRET_KEY}
        yield login | {"verify": str(authority)}


def test_only_the_callers_key_opens_an_object_encrypted_with_it(over_tls: dict[str, Any]) -> None:
    boto = boto3.client(
        "s3",
        endpoint_url=over_tls["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        verify=over_tls["verify"],
    )
    boto.create_bucket(Bucket="bucket")
    ours, others = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))

    def store(**options: Any) -> ObjectStore:
        return S3Store(bucket="bucket", options=S3Options.of(over_tls | options))

    async def read(store: ObjectStore, key: str) -> bytes:
        try:
            return await store.get(key)
        finally:
            await store.aclose()

    asyncio.run(write_three(store(sse_c_key=ours)))

    for key, data in (("put", b"fragment"), ("upload", b"fragment"), ("create", b"commit")):
        assert asyncio.run(read(store(sse_c_key=ours), key)) == data
        for other in ({}, {"sse_c_key": others}):
            with pytest.raises(OffloadError):
                asyncio.run(read(store(**other), key))
