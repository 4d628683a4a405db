"""Tests of options that become headers of every put of a fragment."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest
from cloud.azure import AZURE
from cloud.calls import Client, put
from cloud.s3 import S3
from wire import wire

KEY_OF_32_BYTES: Final = base64.b64encode(b"k" * 32).decode()
MD5_OF_DIGITS: Final = "eB5eJF1ptWaXm4bijSPyxw=="
AWS: Final = "x-amz-server-side-encryption"


@pytest.mark.parametrize(
    ("client", "options", "headers"),
    [
        (S3, {"sse": "AES256"}, {AWS: "AES256"}),
        (
            S3,
            {"sse": "aws:kms", "sse_kms_key_id": "alias/k", "sse_bucket_key": "true"},
            {AWS: "aws:kms", f"{AWS}-aws-kms-key-id": "alias/k", f"{AWS}-bucket-key-enabled": "true"},
        ),
        (S3, {"sse": "aws:kms:dsse"}, {AWS: "aws:kms:dsse"}),
        (
            S3,
            {"sse_c_key": KEY_OF_32_BYTES},
            {f"{AWS}-customer-algorithm": "AES256", f"{AWS}-customer-key": KEY_OF_32_BYTES},
        ),
        (S3, {"storage_class": "STANDARD_IA"}, {"x-amz-storage-class": "STANDARD_IA"}),
        (S3, {"tags": "team=a b"}, {"x-amz-tagging": "team=a+b"}),
        (S3, {"metadata": "written-by=us"}, {"x-amz-meta-written-by": "us"}),
        (S3, {"requester_pays": "true"}, {"x-amz-request-payer": "requester"}),
        (S3, {}, {"x-amz-security-token": "HUSH-TOKEN"}),
        (AZURE, {"access_tier": "Cool"}, {"x-ms-access-tier": "Cool"}),
        (AZURE, {"tags": "team=a"}, {"x-ms-tags": "team=a"}),
        (AZURE, {"metadata": "written_by=us"}, {"x-ms-meta-written_by": "us"}),
        (AZURE, {"encryption_scope": "scope"}, {"x-ms-encryption-scope": "scope"}),
        (AZURE, {"api_version": "2021-12-02"}, {"x-ms-version": "2021-12-02"}),
        (AZURE, {}, {"x-ms-blob-type": "BlockBlob", "content-md5": MD5_OF_DIGITS}),
    ],
)
def test_an_option_becomes_headers_of_a_put(
    client: Client, options: dict[str, Any], headers: dict[str, str]
) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, put, **options)

    [heard] = server.heard
    assert headers.items() <= heard.headers.items()
