"""Tests of the client that moves fragments: its headers and errors are those of the fsspec client."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest
from cloud import azure, s3
from cloud.calls import Call, Client, get, put
from cloud.clients import DIRECT_S3, FAST_AZURE
from offload_azure.fast import OF_OBSTORE_ALONE as OF_AZURE
from wire import Heard, wire

from offload import Misuse

KEY_OF_32_BYTES: Final = base64.b64encode(b"k" * 32).decode()
AWS: Final = "x-amz-server-side-encryption"


def by_obstore(heard: Heard) -> bool:
    return heard.headers["user-agent"].startswith("object_store/")


@pytest.mark.parametrize(("client", "name"), [(FAST_AZURE, name) for name in OF_AZURE])
def test_a_variable_that_only_obstore_obeys_keeps_it_out(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv(name, "x")

    with wire(client.answers) as server:
        client.of_store(server.url, put, client="auto")
        with pytest.raises(Misuse, match=name):
            client.of_store(server.url, put)

    assert [by_obstore(heard) for heard in server.heard] == [False]


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
        (FAST_AZURE, {"access_tier": "Cool"}, {"x-ms-access-tier": "Cool"}),
        (FAST_AZURE, {"tags": "team=a"}, {"x-ms-tags": "team=a"}),
        (FAST_AZURE, {"metadata": "written_by=us"}, {"x-ms-meta-written_by": "us"}),
        (FAST_AZURE, {}, {"x-ms-blob-type": "BlockBlob"}),
    ],
)
def test_both_clients_send_the_same_headers(
    client: Client, options: dict[str, Any], headers: dict[str, str]
) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, put, **options)
        client.of_store(server.url, put, client="fsspec", **options)

    fast, plain = server.heard
    assert headers.items() <= fast.headers.items()
    assert headers.items() <= plain.headers.items()
    assert (fast.method, fast.path, fast.body) == (plain.method, plain.path, plain.body)


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
        (FAST_AZURE, "AuthorizationPermissionMismatch", 403),
        (FAST_AZURE, "AuthenticationFailed", 403),
        (FAST_AZURE, "ContainerNotFound", 404),
        (FAST_AZURE, "BlobArchived", 409),
        (FAST_AZURE, "ServerBusy", 503),
        (FAST_AZURE, "BlobUsesCustomerSpecifiedEncryption", 409),
        (FAST_AZURE, "InternalError", 500),
    ],
)
def test_both_clients_report_the_same_error(client: Client, call: Call, code: str, status: int) -> None:
    refusal = s3.refusal(code, status) if client is DIRECT_S3 else azure.refusal(code, status)
    with wire(lambda heard: refusal) as server:
        fast = client.error_of(server.url, call)
        plain = client.error_of(server.url, call, client="fsspec")

    assert (type(fast), str(fast)) == (type(plain), str(plain))
