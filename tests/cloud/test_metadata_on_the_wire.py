"""Metadata of objects on the wire, by every client: signed, sent once, and read with suspicion."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from typing import Any, Final
from urllib.parse import unquote

import pytest
from cloud import azure, gcs, s3
from cloud.azure import AZURE
from cloud.calls import DIGITS, SECRET_IN_BASE64, Client
from cloud.clients import EACH_CLIENT
from cloud.gcs import GCS
from cloud.s3 import S3
from wire import Answer, Heard, wire

from offload import Body, Capabilities, Corrupt, Misuse, NotFound, ObjectStore
from offload.contracts.object_metadata import metadata_size

SENT: Final = {"Role": "data", "ManagedLedgerName": "public/default/persistent/t, 1"}


async def put(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(DIGITS, metadata=SENT))


async def upload(store: ObjectStore) -> None:
    begun = await store.start_upload("a/key", metadata=SENT)
    await begun.put_part(1, DIGITS)
    await begun.complete()


async def read(store: ObjectStore) -> Any:
    return await store.metadata_of("a/key")


def metadata_in(heard: Heard) -> dict[str, str]:
    """Return the metadata in the headers of a request, by lower-case names."""
    found = (re.fullmatch(r"x-(?:amz|ms)-meta-(.*)", name) for name in heard.headers)
    return {match[1]: heard.headers[match[0]] for match in found if match}


LOWER: Final = {name.lower(): value for name, value in SENT.items()}


@pytest.mark.parametrize("client", [S3, AZURE], ids=["s3", "azure"])
def test_a_put_sends_its_metadata_in_headers(client: Client) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, put)

    [heard] = server.heard
    assert metadata_in(heard) == LOWER
    assert heard.body == DIGITS


def test_the_signature_of_s3_covers_the_metadata() -> None:
    """Otherwise a proxy could change it, and AWS refuses the request."""
    with wire(S3.answers) as server:
        S3.of_store(server.url, put)
        S3.of_store(server.url, upload)

    put_, begin, *_ = server.heard
    for heard in (put_, begin):
        [signed] = re.findall(r"SignedHeaders=([^,]+)", heard.headers["authorization"])
        assert {f"x-amz-meta-{name}" for name in LOWER} <= {*signed.split(";")}


def test_the_signature_of_azure_covers_the_metadata() -> None:
    with wire(AZURE.answers) as server:
        AZURE.of_store(server.url, put)
        AZURE.of_store(server.url, upload)

    described = [heard for heard in server.heard if metadata_in(heard)]
    assert [heard.query.get("comp") for heard in described] == [None, ["blocklist"]]
    for heard in described:
        assert heard.headers["authorization"] == f"SharedKey acct:{shared_key(heard)}"


def shared_key(heard: Heard) -> str:
    """Return the signature of a request as Azure's reference describes it, made of what arrived."""
    headers = heard.headers
    plain = ["content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"]
    plain += ["if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"]
    ours = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    query = "".join(f"\n{name}:{unquote(heard.query[name][0])}" for name in sorted(heard.query))
    lines = [heard.method, *(headers.get(name, "") for name in plain), f"{ours}/acct{heard.path}{query}"]
    digest = hmac.new(base64.b64decode(SECRET_IN_BASE64), "\n".join(lines).encode(), hashlib.sha256)
    return base64.b64encode(digest.digest()).decode()


def test_an_upload_to_s3_has_its_metadata_from_its_beginning() -> None:
    with wire(S3.answers) as server:
        S3.of_store(server.url, upload)

    begin, *others = server.heard
    assert metadata_in(begin) == LOWER
    assert [metadata_in(heard) for heard in others] == [{}] * len(others)


@pytest.mark.parametrize("is_large", [False, True])
def test_gcs_gets_metadata_in_the_description(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_large:  # a resumable upload, as for an object of more than 128 MiB
        monkeypatch.setattr("offload_gcs.store.PUT_SIZE_BYTES_MAX", 5)

    def answers(heard: Heard) -> Answer:
        if heard.query.get("uploadType") == ["resumable"]:
            return Answer(headers={"Location": f"http://{heard.headers['host']}/session"})
        return gcs.answers(heard)

    with wire(answers) as server:
        GCS.of_store(server.url, put, metadata="role=constant,other=1")

    [described] = re.findall(rb'\{"name": "a/key".*?\}\}', server.heard[0].body)
    assert json.loads(described)["metadata"] == {"other": "1"} | LOWER


@EACH_CLIENT
def test_a_create_sends_no_metadata_and_a_put_without_any_sends_that_of_the_options(client: Client) -> None:
    async def both(store: ObjectStore) -> None:
        await store.create("a/key", DIGITS)
        await store.put("a/key", Body.of(DIGITS))

    with wire(client.answers) as server:
        client.of_store(server.url, both, metadata="constant=1")

    created, put_ = server.heard
    if client is GCS:
        assert b'"metadata"' not in created.body
        assert b'"metadata": {"constant": "1"}' in put_.body
    else:
        assert (metadata_in(created), metadata_in(put_)) == ({}, {"constant": "1"})


@pytest.mark.parametrize("client", [S3, AZURE], ids=["s3", "azure"])
def test_the_metadata_of_an_object_precedes_that_of_the_options(client: Client) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, put, metadata="role=constant,other=1")

    assert metadata_in(server.heard[0]) == {"other": "1"} | LOWER


@EACH_CLIENT
def test_the_metadata_of_the_options_leaves_less_to_each_object(client: Client) -> None:
    async def declared(store: ObjectStore) -> Capabilities:
        return store.capabilities

    alone = client.of_store(None, declared, endpoint_url="http://127.0.0.1:9")
    beside = client.of_store(None, declared, endpoint_url="http://127.0.0.1:9", metadata="constant=1")

    left = alone.metadata_size_bytes_max - metadata_size({"constant": "1"})
    assert beside.metadata_size_bytes_max == left


@EACH_CLIENT
@pytest.mark.parametrize(
    "metadata", [{"a-b": "c"}, {"name": "é"}, {"name": "a\r\nx-evil: 1"}, {"n": "v" * 9000}]
)
def test_metadata_that_cannot_be_kept_sends_nothing(client: Client, metadata: dict[str, str]) -> None:
    with wire(client.answers) as server:
        refused = client.error_of(
            server.url, lambda store: store.put("a/key", Body.of(DIGITS, metadata=metadata))
        )

    assert isinstance(refused, Misuse)
    assert server.heard == []


# Replies


def described_by(client: Client, metadata: list[tuple[str, str]]) -> Answer:
    """Return the reply of an object with this metadata. Repeated names keep the last value here."""
    if client is GCS:
        return gcs.said(metadata=dict(metadata))
    if client is S3:
        return Answer(headers=s3.TAGGED | {f"X-Amz-Meta-{name}": value for name, value in metadata})
    return Answer(headers=azure.TAGGED | {f"x-ms-meta-{name}": value for name, value in metadata})


@EACH_CLIENT
def test_metadata_is_read_by_one_request_with_names_in_lower_case(client: Client) -> None:
    reply = described_by(client, [("Role", "data"), ("S3ManagedLedgerOffloaderFormatVersion", "1")])
    with wire(lambda heard: reply) as server:
        found = client.of_store(server.url, read)

    assert found == {"role": "data", "s3managedledgeroffloaderformatversion": "1"}
    assert [heard.method for heard in server.heard] == ["GET" if client is GCS else "HEAD"]


@EACH_CLIENT
def test_an_object_without_metadata_has_empty_metadata(client: Client) -> None:
    reply = described_by(client, [])
    with wire(lambda heard: reply) as server:
        assert client.of_store(server.url, read) == {}


@EACH_CLIENT
def test_an_absent_object_is_not_found_and_its_key_is_named(client: Client) -> None:
    absent = Answer(404, headers={"x-ms-error-code": "BlobNotFound"})
    with wire(lambda heard: absent) as server:
        error = client.error_of(server.url, read)

    assert isinstance(error, NotFound)
    assert error.key == "a/key"


def test_bytes_of_a_value_that_are_no_text_are_replaced() -> None:
    """No store sends them, but a server may. Printing the value would fail far away."""
    broken = [("role", "\xe9")]  # one byte on the wire, as in Latin-1
    for client in (AZURE, S3):
        with wire(lambda heard, client=client: described_by(client, broken)) as server:
            assert client.of_store(server.url, read) == {"role": "\ufffd"}
    with wire(lambda heard: described_by(GCS, [("role", "\ud800")])) as server:
        assert GCS.of_store(server.url, read) == {"role": "\ufffd"}


def test_gcs_metadata_without_end_is_corrupt() -> None:
    """Headers have the limits of the transport. A JSON reply has none."""
    reply = described_by(GCS, [(f"n{number}", "v" * 1000) for number in range(200)])
    with wire(lambda heard: reply) as server:
        error = GCS.error_of(server.url, read)

    assert isinstance(error, Corrupt)
    assert error.where == "gs://bucket: 'a/key'"


@pytest.mark.parametrize("found", [[], "text", 1, {"a": 1}, {"a": None}, {"a": {"b": "c"}}])
def test_gcs_metadata_of_other_types_ends_with_text_or_an_error_of_ours(found: object) -> None:
    reply = gcs.said(metadata=found)

    async def main(store: ObjectStore) -> Any:
        try:
            return await store.metadata_of("a/key")
        except Corrupt as error:
            return error

    with wire(lambda heard: reply) as server:
        read = GCS.of_store(server.url, main)

    assert isinstance(read, Corrupt) or all(isinstance(value, str) for value in read.values())
