"""Stores of clouds take the time and UUIDs of the environment that they are given."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest
from cloud import calls
from cloud.azure import AZURE
from cloud.gcs import GCS
from cloud.s3 import S3
from offload_azure import AzureOptions, AzureStore
from offload_gcs import GcsOptions, GcsStore
from offload_s3 import S3Options, S3Store
from wire import Answer, wire

from offload import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Throttled

NOW_MS: Final = 1_700_000_000_000  # 14 November 2023, 22:13:20
UID: Final = UUID("a1b2c3d4-0000-4000-8000-000000000001")
ENV: Final = Env(now_ms=lambda: NOW_MS, uuid=lambda: UID)
BUSY: Final = Answer(
    503,
    b"",
    {"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT", "x-amz-request-id": "r", "x-ms-request-id": "r"},
)

S3_THEN = replace(S3, open=lambda options: S3Store(bucket="bucket", options=S3Options.of(options), env=ENV))
GCS_THEN = replace(
    GCS, open=lambda options: GcsStore(bucket="bucket", options=GcsOptions.of(options), env=ENV)
)
AZURE_THEN = replace(
    AZURE,
    open=lambda options: AzureStore(container="container", options=AzureOptions.of(options), env=ENV),
)
EACH: Final = pytest.mark.parametrize("client", [S3_THEN, GCS_THEN, AZURE_THEN], ids=["s3", "gcs", "azure"])


@EACH
def test_a_date_to_retry_after_counts_from_the_time_of_the_environment(client: calls.Client) -> None:
    with wire(lambda heard: BUSY) as server:
        error = client.error_of(server.url, calls.get)

    assert isinstance(error, Throttled)
    assert error.pause_seconds == 30.0


@pytest.mark.parametrize(
    ("open_store", "options"),
    [
        (S3_THEN.open, {"key": "key", "secret": "secret"}),
        (AZURE_THEN.open, {"account_name": "account", "account_key": "a2V5"}),
        (GCS_THEN.open, {"anonymous": True}),
    ],
    ids=["s3", "azure", "gcs"],
)
def test_a_signed_read_ends_by_the_time_of_the_environment(
    open_store: Callable[[Mapping[str, Any]], ObjectStore], options: Mapping[str, Any]
) -> None:
    client = replace(S3, open=open_store, login=options, options={})

    reads = client.of_store(None, lambda store: store.signed_reads(["key"], seconds=60))

    assert reads.expires_ms == NOW_MS + 60_000


def test_the_blocks_of_an_azure_upload_have_a_uuid_of_the_environment() -> None:
    with wire(AZURE.answers) as server:
        AZURE_THEN.of_store(server.url, calls.put_part)

        [name] = [heard.query["blockid"][0] for heard in server.heard if "blockid" in heard.query]
    assert base64.b64decode(name).decode().startswith(UID.hex)


def test_the_boundary_of_a_gcs_upload_is_a_uuid_of_the_environment() -> None:
    with wire(GCS.answers) as server:
        GCS_THEN.of_store(server.url, calls.create)

        [boundary] = [heard.headers["content-type"].rpartition("=")[2] for heard in server.heard]
    assert boundary == UID.hex
