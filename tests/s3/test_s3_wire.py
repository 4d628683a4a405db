"""Tests of the requests that the S3 backend sends, and of the replies that it refuses."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate, served
from cloud.calls import DIGITS, Call, create, get, names, put, upload
from cloud.s3 import NO_LOGIN, TAGGED, answers, error_of, of_store, refusal, xml
from wire import Answer, Heard, Wire, wire

from offload import Body, ObjectStore, OutcomeUnknown, TryAgain

CRC32C_OF_DIGITS = "KAwGng=="
"""In the form that the service documents: base64 of four bytes, big-endian."""


@pytest.fixture
def s3() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# One call is one request


def test_no_request_deletes_a_key_twice(s3: Wire) -> None:
    """Ceph's gateway 16.2.15 deletes the keys of a request in parallel, and crashes if two are equal."""
    of_store(s3.url, lambda store: store.delete(["b", "a", "b", "c", "a"]))

    [asked] = s3.heard
    assert re.findall(rb"<Key>(.*?)</Key>", asked.body) == [b"b", b"a", b"c"]


def test_a_large_body_is_sent_without_expect_100_continue(s3: Wire) -> None:
    """If a server does not know the header, the client waits for it until the deadline."""
    data = bytes(range(256)) * 4096

    of_store(s3.url, lambda store: store.put("key", Body.of(data)))

    [asked] = s3.of("PUT")
    assert "expect" not in {name.lower() for name in asked.headers}
    assert asked.body == data


def test_a_create_sends_its_condition(s3: Wire) -> None:
    of_store(s3.url, create)

    [heard] = s3.heard
    assert (heard.method, heard.path, heard.body) == ("PUT", "/bucket/a/key", DIGITS)
    assert heard.headers["if-none-match"] == "*"
    assert heard.headers["x-amz-checksum-crc32c"] == CRC32C_OF_DIGITS


def test_only_puts_and_parts_leave_their_payload_to_the_checksum(s3: Wire) -> None:
    """A create is small, and decides commits: the signature covers its bytes too."""
    for call in (put, upload, create):
        of_store(s3.url, call)

    sent = s3.of("PUT")
    is_unsigned = [heard.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" for heard in sent]
    assert is_unsigned == [True, True, False]
    for heard in sent:
        assert heard.headers["x-amz-checksum-crc32c"]
        assert "x-amz-checksum-crc32c" in heard.headers["authorization"]  # among the signed headers
        assert "content-md5" not in heard.headers


# Options on the wire

KEY_OF_32_BYTES = base64.b64encode(b"k" * 32).decode()
ENCRYPTIONS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
    (
        {"sse": "aws:kms", "sse_kms_key_id": "alias/k", "sse_bucket_key": "true"},
        {
            "x-amz-server-side-encryption": "aws:kms",
            "x-amz-server-side-encryption-aws-kms-key-id": "alias/k",
            "x-amz-server-side-encryption-bucket-key-enabled": "true",
        },
    ),
    (
        {"sse_c_key": KEY_OF_32_BYTES},
        {
            "x-amz-server-side-encryption-customer-algorithm": "AES256",
            "x-amz-server-side-encryption-customer-key": KEY_OF_32_BYTES,
        },
    ),
]


@pytest.mark.parametrize(("options", "headers"), ENCRYPTIONS)
def test_every_object_and_commit_is_encrypted_by_the_options(
    s3: Wire, options: dict[str, Any], headers: dict[str, str]
) -> None:
    of_store(s3.url, create, **options)
    of_store(s3.url, put, **options)
    of_store(s3.url, upload, **options)

    begun = [heard for heard in s3.of("POST") if "uploads" in heard.query]
    for heard in (*s3.of("PUT")[:2], *begun):
        assert headers.items() <= heard.headers.items(), heard


def test_every_request_about_bytes_carries_the_callers_key(s3: Wire) -> None:
    """These are the parts, the completion (S3 demands it there if it keeps checksums) and reads."""
    of_store(s3.url, upload, sse_c_key=KEY_OF_32_BYTES)
    of_store(s3.url, get, sse_c_key=KEY_OF_32_BYTES)

    assert [heard.headers.get("x-amz-server-side-encryption-customer-key") for heard in s3.heard] == [
        KEY_OF_32_BYTES
    ] * 4


def test_only_fragments_have_storage_class_tags_and_metadata(s3: Wire) -> None:
    options = {"storage_class": "STANDARD_IA", "tags": "team=a b,cost=1", "metadata": "written-by=us"}
    written = {
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-tagging": "team=a+b&cost=1",
        "x-amz-meta-written-by": "us",
    }

    of_store(s3.url, put, **options)
    of_store(s3.url, upload, **options)
    of_store(s3.url, create, **options)

    fragment, begun, *_, commit = s3.heard
    assert written.items() <= fragment.headers.items()
    assert written.items() <= begun.headers.items()
    assert not written.keys() & commit.headers.keys()


def test_every_request_agrees_to_pay(s3: Wire) -> None:
    for call in (put, create, get, upload, names, lambda store: store.delete(["a"])):
        of_store(s3.url, call, requester_pays="true")

    assert {heard.headers.get("x-amz-request-payer") for heard in s3.heard} == {"requester"}


def test_the_profile_gives_the_credentials(s3: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile names a program here, as companies do."""
    said = '{"Version": 1, "AccessKeyId": "FROMPROGRAM", "SecretAccessKey": "HUSH", "SessionToken": "T"}'
    (tmp_path / "said").write_text(said)
    (tmp_path / "config").write_text(f"[profile company]\ncredential_process = cat {tmp_path}/said\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    of_store(s3.url, put, **NO_LOGIN, profile="company")

    [heard] = s3.heard
    assert "FROMPROGRAM" in heard.headers["authorization"]


def test_an_authority_from_the_environment_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(made.path))

    with wire(answers, tls=served(made)) as server:
        assert of_store(server.url, get) == DIGITS


def test_a_new_store_trusts_the_authorities_that_the_file_has_by_then(tmp_path: Path) -> None:
    for _ in range(2):
        made = certificate(tmp_path)
        with wire(answers, tls=served(made)) as server:
            for _ in range(2):
                assert of_store(server.url, get, verify=str(made.path)) == DIGITS


# Replies


def test_unfinished_uploads_are_those_of_all_pages() -> None:
    def pages(heard: Heard) -> Answer:
        number = int(heard.query.get("upload-id-marker", ["0"])[0]) + 1
        row = f"<Key>a/key</Key><UploadId>{number}</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated>"
        more = f"<NextKeyMarker>a/key</NextKeyMarker><NextUploadIdMarker>{number}</NextUploadIdMarker>"
        is_cut = f"<IsTruncated>{str(number < 3).lower()}</IsTruncated>"
        inside = f"<Bucket>bucket</Bucket>{is_cut}{more}<Upload>{row}</Upload>"
        return xml("ListMultipartUploadsResult", inside)

    with wire(pages) as server:
        found = of_store(server.url, lambda store: store.unfinished_uploads("a/"))

    assert [upload.upload_id for upload in found] == ["1", "2", "3"]


def test_the_stores_checksum_is_compared_with_the_body() -> None:
    wrong, parts = TAGGED | {"x-amz-checksum-crc32c": "4waSgw=="}, "x-amz-checksum-type"

    with wire(lambda heard: Answer(200, DIGITS, wrong | {parts: "FULL_OBJECT"})) as server:
        damaged = error_of(server.url, get)
    with wire(
        lambda heard: Answer(200, DIGITS, TAGGED | {"x-amz-checksum-crc32c": CRC32C_OF_DIGITS})
    ) as server:
        assert of_store(server.url, get) == DIGITS

    assert type(damaged) is TryAgain
    assert "damaged" in str(damaged)
    assert server.heard[0].headers["x-amz-checksum-mode"] == "ENABLED"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32c": "AAAAAA==-3"},
        {"x-amz-checksum-crc32c": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"},
    ],
)
def test_a_checksum_of_checksums_is_not_compared(headers: dict[str, str]) -> None:
    with wire(lambda heard: Answer(200, DIGITS, TAGGED | headers)) as server:
        assert of_store(server.url, get) == DIGITS


def test_the_client_compares_every_other_checksum() -> None:
    with wire(lambda heard: Answer(200, DIGITS, TAGGED | {"x-amz-checksum-crc32": "AAAAAA=="})) as server:
        assert type(error_of(server.url, get)) is TryAgain


@pytest.mark.parametrize("call", [put, create])
def test_a_request_for_another_region_is_repeated_there_once(call: Call) -> None:
    """The SDK does that. The refused request applied nothing. Later ones go there at once."""

    def elsewhere(heard: Heard) -> Answer:
        if "/eu-west-3/" in heard.headers["authorization"]:
            return answers(heard)
        return refusal("AuthorizationHeaderMalformed", 400, "<Region>eu-west-3</Region>")

    async def twice(store: ObjectStore) -> None:
        await call(store)
        await call(store)

    with wire(elsewhere) as server:
        of_store(server.url, twice)

    assert len(server.heard) == 3


# What proves a success


@pytest.mark.parametrize(
    "inside",
    [
        "<Name>other</Name><IsTruncated>false</IsTruncated>",
        "<Name>bucket</Name>",
        "<Name>bucket</Name><IsTruncated>true</IsTruncated>",
    ],
    ids=["another bucket", "perhaps more pages", "no way to the next page"],
)
def test_a_listing_that_does_not_say_how_it_goes_on_is_no_listing(inside: str) -> None:
    with wire(lambda heard: xml("ListBucketResult", inside)) as server:
        error = error_of(server.url, names)

    assert type(error) is TryAgain
    assert "not from an S3 server" in str(error)


@pytest.mark.parametrize("keys", [["a"], ["a", "b", "c"], ["a", "c"]])
def test_a_deletion_has_a_result_for_each_key_and_no_other(keys: list[str]) -> None:
    results = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
    with wire(lambda heard: xml("DeleteResult", results)) as server:
        error = error_of(server.url, lambda store: store.delete(["a", "b"]))

    assert type(error) is OutcomeUnknown
    assert "not from an S3 server" in str(error)


def test_a_deletion_carries_the_md5_of_its_body(s3: Wire) -> None:
    """Some servers answer MissingContentMD5 without it. The key has a character that XML must quote."""
    of_store(s3.url, lambda store: store.delete(["a\rb", "c"]))

    [asked] = s3.heard
    digest = base64.b64encode(hashlib.md5(asked.body).digest()).decode()
    assert asked.headers["content-md5"] == digest
    assert "content-md5" in asked.headers["authorization"]
