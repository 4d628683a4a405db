"""Tests of the requests that the Azure backend sends, and of the replies that it refuses."""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from certificates import certificate, served
from cloud.azure import SPEAKS, TAGGED, answers, error_of, of_store, page, part_of, refusal
from cloud.calls import DIGITS, Call, asked_range, create, delete, get, names, put, reading, upload
from offload_azure import AzureStore
from wire import Answer, Heard, Wire, wire

from offload import (
    AlreadyExists,
    Body,
    Denied,
    Misuse,
    NotFound,
    Span,
    StoreDenied,
    Suffix,
    TryAgain,
)

CPK = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# One call, one request


# Writes


def test_a_create_sends_its_condition(azure: Wire) -> None:
    of_store(azure.url, create)

    [heard] = azure.heard
    assert (heard.method, heard.target, heard.body) == ("PUT", "/container/a/key", DIGITS)
    assert heard.headers["if-none-match"] == "*"
    assert heard.headers["x-ms-blob-type"] == "BlockBlob"
    assert heard.headers["content-md5"] == base64.b64encode(hashlib.md5(DIGITS).digest()).decode()


def test_a_put_sends_no_condition(azure: Wire) -> None:
    of_store(azure.url, put)

    [heard] = azure.heard
    assert not {"if-none-match", "if-match"} & heard.headers.keys()
    assert heard.headers["content-md5"]


@pytest.mark.parametrize("code", ["BlobAlreadyExists", "UnauthorizedBlobOverwrite", "ConditionNotMet"])
def test_a_create_that_meets_a_blob_raises_already_exists(code: str) -> None:
    """Azure sends the second code to credentials that may create and not overwrite."""
    with wire(lambda heard: refusal(code, 403 if "Un" in code else 409)) as server:
        error = error_of(server.url, create)

    assert type(error) is AlreadyExists
    assert error.key == "a/key"


def test_an_object_above_the_clients_limit_is_one_request(azure: Wire) -> None:
    """The client's default limit is 64 MiB."""
    data = bytes(64 * 2**20 + 1)

    of_store(azure.url, lambda store: store.put("k", Body.of(data)))

    [heard] = azure.heard
    assert "comp" not in heard.query
    assert heard.body == data


def test_a_large_object_is_sent_in_blocks_and_one_ordered_list(azure: Wire) -> None:
    sizes = [2**20] * 128 + [5]

    async def windows() -> Any:
        for size in sizes:
            yield bytes(size)

    body = Body(size_bytes=sum(sizes), windows=windows)
    of_store(azure.url, lambda store: store.put("k", body), part_size_bytes=64 * 2**20)

    *blocks, listed = azure.heard
    assert sorted(len(heard.body) for heard in blocks) == [5, 64 * 2**20, 64 * 2**20]
    assert all(heard.query["comp"] == ["block"] for heard in blocks)
    assert all(heard.headers["content-md5"] for heard in blocks)
    names = [node.text for node in fromstring(listed.body)]
    assert names == sorted(heard.query["blockid"][0] for heard in blocks)
    assert {len(base64.b64decode(name or "")) for name in names} == {40}


def test_two_uploads_of_one_key_share_no_block(azure: Wire) -> None:
    of_store(azure.url, upload)
    of_store(azure.url, upload)

    first, _, second, _ = azure.heard
    assert first.query["blockid"] != second.query["blockid"]


def test_an_upload_whose_blocks_were_dropped_may_be_tried_again() -> None:
    """Another write of the key dropped them, so this upload stored nothing."""

    def dropped(heard: Heard) -> Answer:
        if heard.query["comp"] == ["blocklist"]:
            return refusal("InvalidBlockList", 400)
        return answers(heard)

    with wire(dropped) as server:
        error = error_of(server.url, upload)

    assert type(error) is TryAgain


def test_an_aborted_upload_sends_no_request(azure: Wire) -> None:
    async def give_up(store: AzureStore) -> None:
        begun = await store.start_upload("k")
        await begun.abort()
        await begun.abort()

    of_store(azure.url, give_up)

    assert azure.heard == []


@pytest.mark.parametrize(("code", "status"), [("Md5Mismatch", 400), ("Crc64Mismatch", 400)])
def test_a_write_that_arrives_damaged_may_be_tried_again(code: str, status: int) -> None:
    with wire(lambda heard: refusal(code, status)) as server:
        assert type(error_of(server.url, put)) is TryAgain


def test_deleting_an_absent_blob_succeeds() -> None:
    with wire(lambda heard: refusal("BlobNotFound", 404)) as server:
        of_store(server.url, delete)

    assert server.heard[0].headers["x-ms-delete-snapshots"] == "include"


def test_one_failed_delete_of_many_raises() -> None:
    def one(heard: Heard) -> Answer:
        return refusal("BlobImmutableDueToPolicy", 409) if heard.path.endswith("/k7") else answers(heard)

    with wire(one) as server:
        error = error_of(server.url, lambda store: store.delete([f"k{n}" for n in range(40)]))

    assert type(error) is Denied
    assert "immutability" in str(error)


# Reads


@pytest.mark.parametrize(
    ("span", "asked", "found"),
    [
        (Span(3, 4), (3, 6), b"3456"),
        (Span(8, 5), (8, 12), b"89"),
        (Span(2, 0), (2, 2), b""),
        (Span(10, 1), (10, 10), b""),
        (Span(0, 2**40), (0, 2**40 - 1), DIGITS),
    ],
)
def test_a_span_is_one_request_for_a_range(
    azure: Wire, span: Span, asked: tuple[int, int], found: bytes
) -> None:
    assert of_store(azure.url, reading(span)) == found

    [heard] = azure.heard
    assert asked_range(heard) == asked


def test_a_read_above_the_clients_limit_is_one_request() -> None:
    """The client's default limit is 32 MiB."""
    data = bytes(33 * 2**20)

    with wire(lambda heard: part_of(data, heard)) as server:
        assert of_store(server.url, lambda store: store.get("k")) == data
        assert of_store(server.url, lambda store: store.get("k", Span(0, len(data)))) == data

    assert len(server.heard) == 2


def test_an_empty_object_is_one_request() -> None:
    """By default the client asks again without a range."""
    with wire(lambda heard: part_of(b"", heard)) as server:
        assert of_store(server.url, get) == b""

    assert len(server.heard) == 1


@pytest.mark.parametrize(("length", "asked"), [(3, (7, 9)), (10, (0, 9)), (99, (0, 9))])
def test_a_suffix_is_read_from_the_version_whose_size_is_known(
    azure: Wire, length: int, asked: tuple[int, int]
) -> None:
    found = of_store(azure.url, reading(Suffix(length)))

    head, read = azure.heard
    assert found == DIGITS[-length:]
    assert head.method == "HEAD"
    assert asked_range(read) == asked
    assert read.headers["if-match"] == '"e"'


def test_a_suffix_of_an_object_replaced_meanwhile_is_refused() -> None:
    """The result is an error, not bytes of the other version."""

    def replaced(heard: Heard) -> Answer:
        return refusal("ConditionNotMet", 412) if "if-match" in heard.headers else answers(heard)

    with wire(replaced) as server:
        error = error_of(server.url, reading(Suffix(3)))

    assert type(error) is TryAgain
    assert "replaced" in str(error)


@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("call", [get, reading(Span(0, 1)), reading(Suffix(1))])
def test_a_folder_of_a_hierarchical_namespace_is_no_object(call: Call, size: int) -> None:
    """The service stores it as a blob without bytes."""

    def folder(heard: Heard) -> Answer:
        marked = {"x-ms-meta-hdi_isfolder": "true"}
        if heard.method == "HEAD":
            return Answer(200, DIGITS[:size], TAGGED | marked)
        return part_of(DIGITS[:size], heard, **marked)

    with wire(folder) as server:
        assert type(error_of(server.url, call, hierarchical_namespace="true")) is NotFound


@pytest.mark.parametrize(
    ("content_range", "body"), [("bytes 0-8/10", DIGITS[:9]), ("bytes 1-9/10", DIGITS[1:])]
)
def test_a_part_is_no_whole_object(content_range: str, body: bytes) -> None:
    with wire(lambda heard: Answer(206, body, TAGGED | {"Content-Range": content_range})) as server:
        assert type(error_of(server.url, get)) is TryAgain


def test_the_services_checksum_is_compared_with_the_body() -> None:
    with wire(lambda heard: part_of(DIGITS, heard, **{"x-ms-blob-content-md5": "AAAA"})) as server:
        error = error_of(server.url, get)

    assert type(error) is TryAgain
    assert "damaged" in str(error)


# Listings


def service(keys: list[str], *, size: int = 3, starts: bool = True) -> Any:
    """Return a List Blobs server of these keys, in this order. `starts`: it honours `startFrom`."""

    def answer(heard: Heard) -> Answer:
        query = {name: value[0] for name, value in heard.query.items()}
        rows = [key for key in keys if key.startswith(query.get("prefix", ""))]
        if starts and "startFrom" in query:
            at = next((n for n, key in enumerate(rows) if key >= query["startFrom"]), len(rows))
            rows = rows[at:]
        begin = int(query.get("marker", 0))
        more = str(begin + size) if begin + size < len(rows) else ""
        return page(rows[begin : begin + size], following=more)

    return answer


def listing(prefix: str, after: str = "") -> Call:
    async def call(store: AzureStore) -> list[str]:
        return [row.key async for row in store.list(prefix, after=after)]

    return call


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize(
    "after", ["", "r/a", "r/root.3", "r/root.35", "r/root.9", "r/root.99", "r/s", "z", "é"]
)
def test_a_listing_begins_after_a_key_on_every_service(after: str, *, starts: bool) -> None:
    """Some services ignore the name to start from."""
    keys = ["q", *(f"r/root.{n}" for n in range(10)), "r/z", "s"]

    with wire(service(keys, starts=starts)) as server:
        found = of_store(server.url, listing("r/root.", after))

    assert found == [key for key in keys if key.startswith("r/root.") and key > after]


def test_a_listing_that_starts_at_its_key_is_one_request() -> None:
    keys = [f"root.{n:03}" for n in range(100)]

    with wire(service(keys)) as server:
        assert of_store(server.url, listing("root.", "root.098")) == ["root.099"]
        assert of_store(server.url, listing("root.", "root.099")) == []

    assert [heard.query["startFrom"] for heard in server.heard] == [["root.098"], ["root.099"]]


def test_a_listing_that_starts_too_late_is_repeated_from_the_beginning() -> None:
    """A service might take the name for one within a folder. No key is missed even then."""
    keys = [f"root.{n}" for n in range(10)]

    def shifted(heard: Heard) -> Answer:
        return page(keys[7:]) if "startFrom" in heard.query else page(keys)

    with wire(shifted) as server:
        assert of_store(server.url, listing("root.", "root.4")) == keys[5:]


HIERARCHICAL = [
    "A",
    "A/dat1",
    "A-B",
    "A-B/dat2",
    "A-B-C",
    "A-C",
    "A.C",
    "A.C/dat3",
    "AB",
    "AB/AB",
    "AB/dat4",
    "AB.txt",
]
"""As an account with a hierarchical namespace lists: folder by folder."""


def test_a_listing_by_folders_is_refused_or_sorted_by_an_option() -> None:
    with wire(service(HIERARCHICAL)) as server:
        error = error_of(server.url, names)
        found = of_store(server.url, names, hierarchical_namespace="true")
        after = of_store(server.url, listing("A", "A-B/dat2"), hierarchical_namespace="true")

    assert type(error) is Denied
    assert "hierarchical_namespace=true" in str(error)
    assert found == sorted(HIERARCHICAL)
    assert after == [key for key in sorted(HIERARCHICAL) if key > "A-B/dat2"]


def test_a_listing_never_starts_where_the_orders_differ() -> None:
    """In the order of folders `a/x` precedes `a-b/x`, so a listing from there would miss it silently."""

    def hierarchical(heard: Heard) -> Answer:
        return page(["a-b/x", "a0"] if "startFrom" in heard.query else ["a/x", "a-b/x", "a0"])

    with wire(hierarchical) as server:
        error = error_of(server.url, listing("", "a-b/x"))

    assert type(error) is Denied


def test_folders_are_no_objects() -> None:
    with wire(lambda heard: page(["a", "a/x", "b"], folders=["a"])) as server:
        error = error_of(server.url, names)
        found = of_store(server.url, names, hierarchical_namespace="true")

    assert type(error) is Denied
    assert found == ["a/x", "b"]


def test_an_encoded_name_is_decoded() -> None:
    row = b'<Blob><Name Encoded="true">a%02%2525b</Name></Blob>'
    listed = b"<EnumerationResults><Blobs>" + row + b"</Blobs><NextMarker/></EnumerationResults>"

    with wire(lambda heard: Answer(200, listed, SPEAKS | {"Content-Type": "application/xml"})) as server:
        assert of_store(server.url, names) == ["a\x02%25b"]


# Options on the wire


@pytest.mark.parametrize("call", [put, create, upload])
def test_every_object_and_commit_is_encrypted_by_the_options(azure: Wire, call: Call) -> None:
    of_store(azure.url, call, encryption_scope="scope-1")

    assert {heard.headers.get("x-ms-encryption-scope") for heard in azure.heard} == {"scope-1"}


@pytest.mark.parametrize("call", [put, create, upload, get, reading(Span(0, 1)), reading(Suffix(1))])
def test_every_request_about_bytes_carries_the_callers_key(call: Call, tmp_path: Path) -> None:
    made = certificate(tmp_path)

    with wire(answers, tls=served(made)) as server:
        of_store(server.url, call, cpk_key=CPK, verify=str(made.path))

    digest = base64.b64encode(hashlib.sha256(b"k" * 32).digest()).decode()
    for heard in server.heard:
        assert heard.headers["x-ms-encryption-key"] == CPK
        assert heard.headers["x-ms-encryption-key-sha256"] == digest
        assert heard.headers["x-ms-encryption-algorithm"] == "AES256"


def test_the_callers_key_is_never_sent_without_tls(azure: Wire) -> None:
    error = error_of(azure.url, get, cpk_key=CPK)

    assert type(error) is Misuse
    assert "HTTPS" in str(error)
    assert azure.heard == []


def test_only_fragments_have_tier_tags_and_metadata(azure: Wire) -> None:
    options = {"access_tier": "Cool", "tags": "team=a b,cost=1", "metadata": "written_by=us"}
    written = {"x-ms-access-tier": "Cool", "x-ms-tags": "team=a%20b&cost=1", "x-ms-meta-written_by": "us"}

    of_store(azure.url, put, **options)
    of_store(azure.url, upload, **options)
    of_store(azure.url, create, **options)

    fragment, block, listed, commit = azure.heard
    assert written.items() <= fragment.headers.items()
    assert written.items() <= listed.headers.items()
    assert not written.keys() & (block.headers.keys() | commit.headers.keys())


def test_requests_have_the_api_version_of_the_option(azure: Wire) -> None:
    of_store(azure.url, get, api_version="2021-12-02")

    assert azure.heard[0].headers["x-ms-version"] == "2021-12-02"


def test_an_error_names_the_option_of_an_unknown_api_version() -> None:
    inside = "<HeaderName>x-ms-version</HeaderName><HeaderValue>2026-10-06</HeaderValue>"
    with wire(lambda heard: refusal("InvalidHeaderValue", 400, inside=inside)) as server:
        error = error_of(server.url, get)

    assert type(error) is StoreDenied
    assert "`api_version`" in str(error)


def test_connections_are_reused_with_an_authority_from_a_file(tmp_path: Path) -> None:
    """If the client itself opened the file, it would connect for each request."""
    made = certificate(tmp_path)

    async def thrice(store: AzureStore) -> None:
        for _ in range(3):
            await store.get("k")

    with wire(answers, tls=served(made)) as server:
        of_store(server.url, thrice, verify=str(made.path))

    assert {heard.connection for heard in server.heard} == {1}


# Keys


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a/b c", "/container/a/b%20c"),
        ("a%2Fb", "/container/a%252Fb"),
        ("?x=y", "/container/%3Fx%3Dy"),
        ("a#b", "/container/a%23b"),
        ("é", "/container/%C3%A9"),
        ("a//b", None),
        ("../other/key", None),
        ("a/../../other/key", None),
    ],
)
def test_no_key_leads_out_of_the_container(azure: Wire, key: str, path: str | None) -> None:
    async def call(store: AzureStore) -> None:
        await store.put(key, Body.of(b""))

    if path is None:
        assert type(error_of(azure.url, call)) is Misuse
    else:
        of_store(azure.url, call)

    assert [heard.target for heard in azure.heard] == ([path] if path else [])


def test_an_endpoint_may_have_a_path(azure: Wire) -> None:
    of_store(azure.url + "/acct", put)

    assert azure.heard[0].target == "/acct/container/a/key"


def test_closing_leaves_no_connection_and_no_thread(azure: Wire) -> None:
    """Nor at exit, when the event loop is closed: adlfs would close its client there."""
    import subprocess

    code = f"""
import asyncio, threading
from offload_azure import AzureOptions, AzureStore
async def main():
    options = {{"account_name": "acct", "account_key": "aGk=", "endpoint_url": {azure.url!r}}}
    store = AzureStore(container="container", options=AzureOptions.of(options))
    print(await store.get("k"))
    await store.aclose()
    print([each.name for each in threading.enumerate() if not each.name.startswith("offload-bytes")])
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)

    assert done.stderr == ""
    assert done.stdout.split("\n") == ["b'0123456789'", "['MainThread']", ""]
