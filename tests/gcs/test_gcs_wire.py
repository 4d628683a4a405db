"""Tests of the requests that the GCS backend sends, and of the replies that it refuses."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from email import message_from_bytes
from email.policy import HTTP
from typing import Any

import pytest
from cloud.calls import DIGITS, Call, create, delete, get, names, put, reading
from cloud.gcs import GCS, KMS_KEY, answers, error_of, of_store, said
from offload_gcs import GcsStore
from offload_gcs.reading import written
from wire import ANSWER_SECONDS_MAX, Answer, Heard, Wire, wire

from offload import Body, Denied, Misuse, Span, Suffix, TryAgain
from offload.formats.checksums import crc32c

OBJECT = "/storage/v1/b/bucket/o/a%2Fkey"
UPLOADS = "/upload/storage/v1/b/bucket/o"
PACKED = gzip.compress(DIGITS)


def sent(heard: Heard) -> tuple[dict[str, Any], bytes]:
    """Return description and bytes of an upload, parsed by another library than the backend's."""
    head = f"Content-Type: {heard.headers['content-type']}\r\n\r\n".encode()
    description, data = message_from_bytes(head + heard.body, policy=HTTP).iter_parts()
    assert data.get_content_type() == "application/octet-stream"
    return json.loads(description.get_payload(decode=True)), data.get_payload(decode=True)


async def stored_checksum(store: GcsStore) -> int | None:
    return await store.stored_crc32c("a/key")


@pytest.fixture
def gcs() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# One call is one request


def test_a_create_sends_its_condition(gcs: Wire) -> None:
    of_store(gcs.url, create)

    [heard] = gcs.heard
    assert (heard.method, heard.path) == ("POST", UPLOADS)
    assert heard.query == {"uploadType": ["multipart"], "ifGenerationMatch": ["0"]}
    described = {"name": "a/key", "crc32c": written(crc32c(DIGITS)), "cacheControl": "no-store"}
    assert sent(heard) == (described, DIGITS)


def test_a_put_sends_no_condition(gcs: Wire) -> None:
    of_store(gcs.url, put)

    assert gcs.heard[0].query == {"uploadType": ["multipart"]}
    assert sent(gcs.heard[0])[1] == DIGITS


def test_the_checksum_of_a_put_covers_all_windows_of_its_body(gcs: Wire) -> None:
    async def windows() -> AsyncIterator[bytes]:
        yield DIGITS[:3]
        yield DIGITS[3:]

    of_store(gcs.url, lambda store: store.put("a/key", Body(size_bytes=10, windows=windows)))

    description, data = sent(gcs.heard[0])
    assert (description["crc32c"], data) == (written(crc32c(DIGITS)), DIGITS)


def test_the_lines_of_an_upload_end_in_cr_lf(gcs: Wire) -> None:
    """Some servers refuse bare line feeds. gcsfs itself sends those."""
    of_store(gcs.url, create)

    assert re.search(rb"(?<!\r)\n", gcs.heard[0].body) is None


def test_a_checksum_has_the_form_that_the_service_documents() -> None:
    """`123456789` has the CRC-32C e3069283. The byte order is big-endian."""
    assert base64.b64decode(written(crc32c(b"123456789"))).hex() == "e3069283"


@pytest.mark.parametrize(
    "key", ["a b", "a%2Fb", "100%", "x?alt=json", "x#y", "a+b", "é/日本", "&userProject=me", "~"]
)
def test_every_character_of_a_key_stays_in_the_path(gcs: Wire, key: str) -> None:
    from urllib.parse import unquote

    async def touch(store: GcsStore) -> None:
        await store.get(key)
        await store.delete([key])

    of_store(gcs.url, touch)

    for heard in gcs.heard:
        assert unquote(heard.path.removeprefix("/storage/v1/b/bucket/o/")) == key
        assert heard.path.count("/") == OBJECT.count("/")
        assert set(heard.query) <= {"alt"}


def test_requests_one_after_another_share_a_connection(gcs: Wire) -> None:
    calls = (put, get, reading(Span(0, 4)), reading(Suffix(4)), create, names, delete, stored_checksum)

    async def each(store: GcsStore) -> None:
        for call in calls:
            await call(store)

    of_store(gcs.url, each)

    assert [heard.connection for heard in gcs.heard] == [1] * len(calls)


# Options on the wire


@pytest.mark.parametrize("call", GCS.calls)
def test_every_request_names_the_payer(gcs: Wire, call: Call) -> None:
    of_store(gcs.url, call, user_project="payer")

    assert [heard.query["userProject"] for heard in gcs.heard] == [["payer"]]


@pytest.mark.parametrize("call", [put, create])
def test_every_object_and_commit_is_encrypted_by_the_options(gcs: Wire, call: Call) -> None:
    of_store(gcs.url, call, kms_key_name=KMS_KEY)

    assert gcs.heard[0].query["kmsKeyName"] == [KMS_KEY]


def test_only_fragments_have_storage_class_and_metadata(gcs: Wire) -> None:
    options = {"storage_class": "NEARLINE", "metadata": "written-by=us,cost=1"}
    kept = {"storageClass": "NEARLINE", "metadata": {"written-by": "us", "cost": "1"}}

    of_store(gcs.url, put, **options)
    of_store(gcs.url, create, **options)

    fragment, commit = (sent(heard)[0] for heard in gcs.heard)
    assert kept.items() <= fragment.items()
    assert not kept.keys() & commit.keys()


@pytest.mark.parametrize("is_named", [True, False], ids=["http://", "no scheme"])
def test_the_proxy_of_the_environment_is_used(
    is_named: bool, gcs: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", gcs.url if is_named else gcs.url.removeprefix("http://"))
    monkeypatch.delenv("no_proxy", raising=False)

    of_store("http://gcs.test", get, **GCS.anonymous)

    assert gcs.heard[0].target.startswith("http://gcs.test/")


def test_a_proxy_of_another_protocol_is_named_without_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://user:HUSH@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    error = error_of("http://gcs.test", get, **GCS.anonymous)

    assert type(error) is Misuse
    assert "socks5://" in str(error)


# Replies


def replying(
    data: bytes, status: int = 200, cut: int | None = None, **headers: str
) -> Callable[[Heard], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda heard: Answer(status, data, named, cut=cut)


def test_a_listing_that_is_no_json_may_be_tried_again() -> None:
    with wire(replying(b"<html>")) as server:
        assert type(error_of(server.url, names)) is TryAgain


@pytest.mark.parametrize(
    ("hashes", "believed"),
    [
        (f"crc32c={written(crc32c(DIGITS))}", True),
        (f"md5=AAAA==, crc32c={written(crc32c(DIGITS))}", True),
        ("md5=AAAA==", True),
        (f"crc32c={written(crc32c(DIGITS + b'!'))}", False),
        (f"crc32c={written(crc32c(DIGITS + b'!'))},md5=AAAA==", False),
    ],
)
def test_a_body_with_another_checksum_is_refused(hashes: str, believed: bool) -> None:
    with wire(replying(DIGITS, X_Goog_Hash=hashes)) as server:
        if believed:
            assert of_store(server.url, get) == DIGITS
        else:
            error = error_of(server.url, get)
            assert type(error) is TryAgain
            assert "damaged" in str(error)


@pytest.mark.parametrize("hashes", [("crc32c=AAAAAA==", "md5=AAAA=="), ("md5=AAAA==", "crc32c=AAAAAA==")])
def test_each_of_several_checksum_headers_is_compared(hashes: tuple[str, str]) -> None:
    """The service sends `x-goog-hash` twice, once for each checksum."""

    def twice(heard: Heard) -> Answer:
        return Answer(body=DIGITS, headers={"x-goog-hash": hashes[0], "X-Goog-Hash": hashes[1]})

    with wire(twice) as server:
        assert type(error_of(server.url, get)) is TryAgain


def test_the_checksum_of_a_decoded_object_is_not_compared() -> None:
    """The service decompresses an object that was stored compressed. Its checksum is of the stored bytes."""
    reply = replying(DIGITS, X_Goog_Hash="crc32c=AAAAAA==", X_Goog_Stored_Content_Encoding="gzip")
    with wire(reply) as server:
        assert of_store(server.url, get) == DIGITS
        assert server.heard[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("call", [get, reading(Span(0, len(PACKED))), reading(Suffix(len(PACKED)))])
def test_an_object_that_is_stored_compressed_is_never_decompressed(call: Call) -> None:
    """Listings have the compressed size. The service sends such bytes if the object has `no-transform`."""
    coded = {"Content_Encoding": "gzip", "X_Goog_Stored_Content_Encoding": "gzip"}
    with wire(replying(PACKED, **coded)) as server:
        assert of_store(server.url, call) == PACKED


@pytest.mark.parametrize("call", [get, reading(Span(0, 10)), reading(Suffix(10))])
def test_a_body_that_somebody_compressed_on_the_way_is_refused(call: Call) -> None:
    with wire(replying(PACKED, Content_Encoding="gzip", X_Goog_Stored_Content_Encoding="identity")) as server:
        error = error_of(server.url, call)

    assert type(error) is TryAgain
    assert "gzip, which nobody asked for" in str(error)


@pytest.mark.parametrize(
    ("span", "header"),
    [
        (Span(0, 10), "bytes=0-9"),
        (Span(5, 1), "bytes=5-5"),
        (Span(5, 0), "bytes=5-5"),
        (Suffix(7), "bytes=-7"),
        (Suffix(0), "bytes=-1"),
    ],
)
def test_a_span_becomes_a_range_header(gcs: Wire, span: Span | Suffix, header: str) -> None:
    """An empty span asks for one byte, because no header can express an empty range."""
    found = of_store(gcs.url, reading(span))

    assert gcs.heard[0].headers["range"] == header
    assert found == (
        DIGITS[span.start :][: span.length] if isinstance(span, Span) else DIGITS[10 - span.length :]
    )


async def names_behind(store: GcsStore) -> list[str]:
    return [row.key async for row in store.list("a/", after="a/k")]


def test_pages_follow_each_other_and_begin_after_a_key() -> None:
    """`startOffset` is inclusive. A server may ignore it."""

    def paged(heard: Heard) -> Answer:
        last = "pageToken" in heard.query
        rows = ["a/z"] if last else ["a/a", "a/k", "a/l"]
        page: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [{"name": name, "size": "1"} for name in rows],
        } | ({} if last else {"nextPageToken": "p&2"})
        return said(**page)

    with wire(paged) as server:
        assert of_store(server.url, names_behind) == ["a/l", "a/z"]

    first, second = (heard.query for heard in server.heard)
    assert first == {
        "prefix": ["a/"],
        "maxResults": ["1000"],
        "fields": ["kind,items(name,size),nextPageToken"],
        "startOffset": ["a/k"],
    }
    assert second == first | {"pageToken": ["p&2"]}


def test_deletes_run_at_once_and_end_at_the_first_failure() -> None:
    under_way: list[int] = []
    most = 0
    two = threading.Event()

    def slow(heard: Heard) -> Answer:
        nonlocal most
        under_way.append(1)
        most = max(most, len(under_way))
        if most >= 2:
            two.set()
        two.wait(ANSWER_SECONDS_MAX)
        under_way.pop()
        return Answer(403 if heard.path.endswith("key-20") else 204)

    with wire(slow) as server:
        error = error_of(server.url, lambda store: store.delete([f"key-{n}" for n in range(100)]))

    assert type(error) is Denied
    assert "storage.objects.delete" in str(error)
    assert error.__cause__ is not None
    assert 2 <= most <= 16
    assert len(server.heard) < 60
