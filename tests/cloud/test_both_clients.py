"""Tests of the client that moves fragments: its headers and errors are those of the fsspec client."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest
from campaign import few
from cloud import azure, s3
from cloud.azure import DIRECT_AZURE
from cloud.calls import Call, Client, get, put
from cloud.clients import DIRECT_S3
from wire import wire

KEY_OF_32_BYTES: Final = base64.b64encode(b"k" * 32).decode()
MD5_OF_DIGITS: Final = "eB5eJF1ptWaXm4bijSPyxw=="
AWS: Final = "x-amz-server-side-encryption"


@pytest.mark.parametrize(
    ("client", "options", "headers"),
    [
        (DIRECT_S3, {"sse": "AES256"}, {AWS: "AES256"}),
        (
            DIRECT_S3,
            {"sse": "aws:kms", "sse_kms_key_id": "alias/k", "sse_bucket_key": "true"},
            {AWS: "aws:kms", f"{AWS}-aws-kms-key-id": "alias/k", f"{AWS}-bucket-key-enabled": "true"},
        ),
        (DIRECT_S3, {"sse": "aws:kms:dsse"}, {AWS: "aws:kms:dsse"}),
        (
            DIRECT_S3,
            {"sse_c_key": KEY_OF_32_BYTES},
            {f"{AWS}-customer-algorithm": "AES256", f"{AWS}-customer-key": KEY_OF_32_BYTES},
        ),
        (DIRECT_S3, {"storage_class": "STANDARD_IA"}, {"x-amz-storage-class": "STANDARD_IA"}),
        (DIRECT_S3, {"tags": "team=a b"}, {"x-amz-tagging": "team=a+b"}),
        (DIRECT_S3, {"metadata": "written-by=us"}, {"x-amz-meta-written-by": "us"}),
        (DIRECT_S3, {"requester_pays": "true"}, {"x-amz-request-payer": "requester"}),
        (DIRECT_S3, {}, {"x-amz-security-token": "HUSH-TOKEN"}),
        (DIRECT_AZURE, {"access_tier": "Cool"}, {"x-ms-access-tier": "Cool"}),
        (DIRECT_AZURE, {"tags": "team=a"}, {"x-ms-tags": "team=a"}),
        (DIRECT_AZURE, {"metadata": "written_by=us"}, {"x-ms-meta-written_by": "us"}),
        (DIRECT_AZURE, {"encryption_scope": "scope"}, {"x-ms-encryption-scope": "scope"}),
        (DIRECT_AZURE, {"api_version": "2021-12-02"}, {"x-ms-version": "2021-12-02"}),
        (DIRECT_AZURE, {}, {"x-ms-blob-type": "BlockBlob", "content-md5": MD5_OF_DIGITS}),
    ],
)
def test_both_clients_send_the_same_headers(
    client: Client, options: dict[str, Any], headers: dict[str, str]
) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, put, **options)
        client.of_store(server.url, put, client="fsspec", **options)

    direct, plain = server.heard
    assert headers.items() <= direct.headers.items()
    assert headers.items() <= plain.headers.items()
    assert (direct.method, direct.path, direct.body) == (plain.method, plain.path, plain.body)


@few("refusals that both clients must report alike; make test has a third of them", 3)
@pytest.mark.parametrize("call", [put, get])
@pytest.mark.parametrize(
    ("client", "code", "status"),
    [
        (DIRECT_S3, "AccessDenied", 403),
        (DIRECT_S3, "InvalidAccessKeyId", 403),
        (DIRECT_S3, "SignatureDoesNotMatch", 403),
        (DIRECT_S3, "ExpiredToken", 400),
        (DIRECT_S3, "NoSuchBucket", 404),
        (DIRECT_S3, "InvalidObjectState", 403),
        (DIRECT_S3, "KMS.DisabledException", 400),
        (DIRECT_S3, "SlowDown", 503),
        (DIRECT_S3, "InternalError", 500),
        (DIRECT_S3, "QuotaExceeded", 403),
        (DIRECT_S3, "OperationAborted", 409),
        (DIRECT_S3, "InvalidTag", 400),
        (DIRECT_AZURE, "AuthorizationPermissionMismatch", 403),
        (DIRECT_AZURE, "AuthenticationFailed", 403),
        (DIRECT_AZURE, "ContainerNotFound", 404),
        (DIRECT_AZURE, "BlobArchived", 409),
        (DIRECT_AZURE, "ServerBusy", 503),
        (DIRECT_AZURE, "BlobUsesCustomerSpecifiedEncryption", 409),
        (DIRECT_AZURE, "InternalError", 500),
    ],
)
def test_both_clients_report_the_same_error(client: Client, call: Call, code: str, status: int) -> None:
    refusal = s3.refusal(code, status) if client is DIRECT_S3 else azure.refusal(code, status)
    with wire(lambda heard: refusal) as server:
        direct = client.error_of(server.url, call)
        plain = client.error_of(server.url, call, client="fsspec")

    assert (type(direct), str(direct)) == (type(plain), str(plain))
