"""The S3 store, held against the port's contract on a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from offload_conformance import OffloaderConformance, StoreConformance
from offload_s3 import S3Options, S3Store
from s3_servers import moto

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader

CREDENTIALS: dict[str, Any] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto() as url:
        yield url


class _OnServer:
    endpoint: str
    bucket: str

    @pytest.fixture(autouse=True)
    def _bucket(self, endpoint: str) -> None:
        self.endpoint, self.bucket = endpoint, f"tier-{uuid4()}"
        self.boto().create_bucket(Bucket=self.bucket)

    def boto(self) -> Any:
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **CREDENTIALS)

    def s3_store(self) -> S3Store:
        options = {"endpoint_url": self.endpoint, "region": "us-east-1", "key": "test", "secret": "test"}
        return S3Store(bucket=self.bucket, options=S3Options.of(options))

    def keys_in_store(self) -> set[str]:
        """By boto3: another client than the store's own."""
        pages = self.boto().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {row["Key"] for page in pages for row in page.get("Contents", ())}


class TestS3Store(_OnServer, StoreConformance):
    def open_store(self) -> ObjectStore:
        return self.s3_store()


class TestS3Offloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(self.s3_store())
