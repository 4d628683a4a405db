"""What the GCS backend really sends, and that it believes no reply that is short, shifted or damaged."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from email import message_from_bytes
from email.policy import HTTP
from pathlib import Path
from typing import Any, TypeVar

import pytest
from certificates import certificate, served
from offload_gcs import GcsOptions, GcsStore
from offload_gcs.reading import written
from wire import ANSWER_SECONDS_MAX, Answer, Heard, Wire, silent, wire

from offload import Body, Denied, OffloadError, OutcomeUnknown, Span, StoreDenied, Suffix, TryAgain
from offload.formats.checksums import crc32c

T = TypeVar("T")
DIGITS = b"0123456789"
TOKEN = "ya29.HUSH"
KEY = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
OBJECT = "/storage/v1/b/bucket/o/a%2Fkey"
UPLOADS = "/upload/storage/v1/b/bucket/o"


def of_store(url: str, call: Callable[[GcsStore], Awaitable[T]], **options: Any) -> T:
    """What a call of a store with these options returns."""
    given = {"endpoint_url": url, "token": TOKEN} | options
    if given.get("anonymous"):
        del given["token"]

    async def main() -> T:
        store = GcsStore(bucket="bucket", options=GcsOptions.of(given))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def error_of(url: str, call: Callable[[GcsStore], Awaitable[Any]], **options: Any) -> OffloadError:
    """The error that a call raises, of which no text holds a secret."""
    with pytest.raises(OffloadError) as caught:
        of_store(url, call, **options)
    assert "HUSH" not in str(caught.value)
    return caught.value


async def put(store: GcsStore) -> None:
    await store.put("a/key", Body.of(DIGITS))


async def create(store: GcsStore) -> None:
    await store.create("a/key", DIGITS)


async def get(store: GcsStore) -> bytes:
    return await store.get("a/key")


async def delete(store: GcsStore) -> None:
    await store.delete(["a/key"])


async def names(store: GcsStore) -> list[str]:
    return [row.key async for row in store.list("a/", after="a/k")]


CALLS = [put, create, get, delete, names]


def reading(span: Span | Suffix) -> Callable[[GcsStore], Awaitable[bytes]]:
    return lambda store: store.get("a/key", span)


def answers(heard: Heard) -> Answer:
    """Enough of GCS for every call of the port to succeed."""
    if heard.method == "GET" and "alt" in heard.query:
        return Answer(body=DIGITS)
    return Answer(body=b"{}", headers={"Content-Type": "application/json"})


def sent(heard: Heard) -> tuple[dict[str, Any], bytes]:
    """Description and bytes of an upload, taken apart by another library than the one that made it."""
    head = f"Content-Type: {heard.headers['content-type']}\r\n\r\n".encode()
    description, data = message_from_bytes(head + heard.body, policy=HTTP).iter_parts()
    assert data.get_content_type() == "application/octet-stream"
    return json.loads(description.get_payload(decode=True)), data.get_payload(decode=True)


@pytest.fixture
def gcs() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# One call is one request


@pytest.mark.parametrize(
    ("call", "raised"),
    [
        (put, OutcomeUnknown),
        (create, OutcomeUnknown),
        (delete, OutcomeUnknown),
        (get, TryAgain),
        (names, TryAgain),
    ],
)
def test_a_connection_that_drops_is_not_asked_again(
    call: Callable[[GcsStore], Awaitable[Any]], raised: type[OffloadError]
) -> None:
    """The server may have applied it; a second request of the HTTP library's own would hide that."""

    def first_then_drop(heard: Heard) -> Answer:
        return answers(heard) if "first" in heard.path else Answer(drop=True)

    async def on_a_used_connection(store: GcsStore) -> Any:
        await store.delete(["first"])
        return await call(store)

    with wire(first_then_drop) as server:
        error = error_of(server.url, on_a_used_connection)

    assert type(error) is raised
    assert [heard.connection for heard in server.heard] == [1, 1]


@pytest.mark.parametrize("status", [301, 308, 400, 401, 403, 404, 408, 412, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_is_not_asked_again(call: Callable[[GcsStore], Awaitable[Any]], status: int) -> None:
    """Neither by gcsfs nor by the HTTP library, nor elsewhere where the reply says so."""
    with wire(lambda heard: Answer(status, headers={"Location": "http://127.0.0.1:1/"})) as server:
        if (call, status) == (delete, 404):
            of_store(server.url, call)
        else:
            error_of(server.url, call)

    assert len(server.heard) == 1


def test_a_create_says_so_on_the_wire(gcs: Wire) -> None:
    of_store(gcs.url, create)

    [heard] = gcs.heard
    assert (heard.method, heard.path) == ("POST", UPLOADS)
    assert heard.query == {"uploadType": ["multipart"], "ifGenerationMatch": ["0"]}
    described = {"name": "a/key", "crc32c": written(crc32c(DIGITS)), "cacheControl": "no-store"}
    assert sent(heard) == (described, DIGITS)


def test_a_put_carries_no_condition(gcs: Wire) -> None:
    of_store(gcs.url, put)

    assert gcs.heard[0].query == {"uploadType": ["multipart"]}
    assert sent(gcs.heard[0])[1] == DIGITS


def test_the_lines_of_an_upload_end_as_the_standard_says(gcs: Wire) -> None:
    """Some servers refuse bare line feeds, which is what gcsfs sends."""
    of_store(gcs.url, create)

    assert re.search(rb"(?<!\r)\n", gcs.heard[0].body) is None


def test_a_checksum_is_written_as_the_service_documents_it() -> None:
    """`123456789` has the CRC-32C e3069283, in the order of the network."""
    assert base64.b64decode(written(crc32c(b"123456789"))).hex() == "e3069283"


@pytest.mark.parametrize(
    "key", ["a b", "a%2Fb", "100%", "x?alt=json", "x#y", "a+b", "é/日本", "&userProject=me", "~"]
)
def test_no_character_of_a_key_escapes_from_the_address(gcs: Wire, key: str) -> None:
    from urllib.parse import unquote

    async def touch(store: GcsStore) -> None:
        await store.get(key)
        await store.delete([key])

    of_store(gcs.url, touch)

    for heard in gcs.heard:
        assert unquote(heard.path.removeprefix("/storage/v1/b/bucket/o/")) == key
        assert heard.path.count("/") == OBJECT.count("/")
        assert set(heard.query) <= {"alt"}


# Options on the wire


@pytest.mark.parametrize("call", CALLS)
def test_credentials_go_with_every_request(gcs: Wire, call: Callable[[GcsStore], Awaitable[Any]]) -> None:
    of_store(gcs.url, call)

    assert [heard.headers["authorization"] for heard in gcs.heard] == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize("call", CALLS)
def test_without_credentials_there_are_none_on_the_wire(
    gcs: Wire, call: Callable[[GcsStore], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even a login for this host from ~/.netrc."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password HUSH\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    of_store(gcs.url, call, anonymous=True)

    assert all("authorization" not in heard.headers for heard in gcs.heard)


@pytest.mark.parametrize("call", CALLS)
def test_who_pays_is_said_with_every_request(gcs: Wire, call: Callable[[GcsStore], Awaitable[Any]]) -> None:
    of_store(gcs.url, call, user_project="payer")

    assert [heard.query["userProject"] for heard in gcs.heard] == [["payer"]]


@pytest.mark.parametrize("call", [put, create])
def test_every_object_is_encrypted_as_asked_commits_too(
    gcs: Wire, call: Callable[[GcsStore], Awaitable[Any]]
) -> None:
    of_store(gcs.url, call, kms_key_name=KEY)

    assert gcs.heard[0].query["kmsKeyName"] == [KEY]


def test_storage_class_and_metadata_are_the_fragments_alone(gcs: Wire) -> None:
    options = {"storage_class": "NEARLINE", "metadata": "written-by=us,cost=1"}
    kept = {"storageClass": "NEARLINE", "metadata": {"written-by": "us", "cost": "1"}}

    of_store(gcs.url, put, **options)
    of_store(gcs.url, create, **options)

    fragment, commit = (sent(heard)[0] for heard in gcs.heard)
    assert kept.items() <= fragment.items()
    assert not kept.keys() & commit.keys()


def test_requests_go_through_the_proxy_with_its_login(gcs: Wire) -> None:
    proxy = gcs.url.replace("://", "://me:HUSH@")

    of_store("http://gcs.test", get, proxy=proxy, anonymous=True)

    [heard] = gcs.heard
    assert heard.target.startswith("http://gcs.test/storage/v1/b/bucket/o/a%2Fkey?")
    assert base64.b64decode(heard.headers["proxy-authorization"].split()[1]) == b"me:HUSH"


def test_the_proxy_of_the_environment_is_used(gcs: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", gcs.url)
    monkeypatch.delenv("no_proxy", raising=False)

    of_store("http://gcs.test", get, anonymous=True)

    assert gcs.heard[0].target.startswith("http://gcs.test/")


def test_a_proxy_that_is_not_there_is_no_doubt_and_no_secret() -> None:
    error = error_of("http://gcs.test", create, proxy="http://me:HUSH@127.0.0.1:1", anonymous=True)

    assert type(error) is TryAgain


def test_no_more_connections_than_asked_for(gcs: Wire) -> None:
    async def many(store: GcsStore) -> None:
        await asyncio.gather(*(store.get("a/key") for _ in range(20)))

    of_store(gcs.url, many, connections_max=2)

    assert len(gcs.heard) == 20
    assert gcs.connections <= 2


def test_a_server_that_says_nothing_is_not_waited_for_long() -> None:
    with silent() as server:
        error = error_of(server.url, create, read_timeout_seconds=0.2)

    assert type(error) is OutcomeUnknown
    assert "`read_timeout_seconds`" in str(error)


# TLS


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    made = certificate(tmp_path)

    with wire(answers, tls=served(made)) as server:
        error = error_of(server.url, create)
        assert server.heard == []
        of_store(server.url, create, verify=str(made.path))
        of_store(server.url, create, verify="false")

    assert type(error) is StoreDenied
    assert "`verify`" in str(error)
    assert len(server.heard) == 2


def test_a_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    made = certificate(tmp_path, days=-1)

    with wire(answers, tls=served(made)) as server:
        error = error_of(server.url, get, verify=str(made.path))

    assert type(error) is StoreDenied
    assert server.heard == []


def test_a_server_without_tls_is_no_doubt(gcs: Wire) -> None:
    error = error_of(gcs.url.replace("http:", "https:"), create)

    assert type(error) is StoreDenied


# Replies that are not believed


def replying(
    data: bytes, status: int = 200, cut: int | None = None, **headers: str
) -> Callable[[Heard], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda heard: Answer(status, data, named, cut=cut)


@pytest.mark.parametrize(("call", "data"), [(get, DIGITS), (names, b'{"items": []}')])
def test_a_body_that_is_cut_short_is_never_taken_for_whole(
    call: Callable[[GcsStore], Awaitable[Any]], data: bytes
) -> None:
    with wire(replying(data, cut=5)) as server:
        error = error_of(server.url, call)

    assert type(error) is TryAgain


def test_a_listing_that_is_no_json_is_asked_for_again() -> None:
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
def test_what_was_damaged_on_the_way_is_not_believed(hashes: str, believed: bool) -> None:
    with wire(replying(DIGITS, X_Goog_Hash=hashes)) as server:
        if believed:
            assert of_store(server.url, get) == DIGITS
        else:
            error = error_of(server.url, get)
            assert type(error) is TryAgain
            assert "damaged" in str(error)


def test_a_checksum_in_a_header_of_its_own_is_read_too() -> None:
    """The service sends `x-goog-hash` twice, once for each sum."""

    def twice(heard: Heard) -> Answer:
        return Answer(body=DIGITS, headers={"x-goog-hash": "md5=AAAA==", "X-Goog-Hash": "crc32c=AAAAAA=="})

    with wire(twice) as server:
        assert type(error_of(server.url, get)) is TryAgain


def test_the_checksum_of_what_was_decoded_on_the_way_is_not_compared() -> None:
    """What somebody stored compressed is unpacked by the service; its checksum is of what is stored."""
    reply = replying(DIGITS, X_Goog_Hash="crc32c=AAAAAA==", X_Goog_Stored_Content_Encoding="gzip")
    with wire(reply) as server:
        assert of_store(server.url, get) == DIGITS
        assert server.heard[0].headers["accept-encoding"] == "identity"


def test_bytes_are_handed_on_as_they_came() -> None:
    """The HTTP library would unpack them where the reply says that they are packed."""
    packed = gzip.compress(DIGITS)
    with wire(replying(packed, Content_Encoding="gzip")) as server:
        assert of_store(server.url, get) == packed


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
def test_a_span_is_the_header_that_asks_for_it(gcs: Wire, span: Span | Suffix, header: str) -> None:
    """And a server that does not know ranges answers with the whole, which is cut."""
    found = of_store(gcs.url, reading(span))

    assert gcs.heard[0].headers["range"] == header
    assert found == (
        DIGITS[span.start :][: span.length] if isinstance(span, Span) else DIGITS[10 - span.length :]
    )


@pytest.mark.parametrize(
    ("content_range", "data"),
    [("bytes 3-5/10", b"345"), ("bytes 2-5/10", b"234"), ("bytes 2-3/10", b"23"), ("", b"234")],
)
def test_another_range_than_asked_for_is_not_believed(content_range: str, data: bytes) -> None:
    headers = {"Content_Range": content_range} if content_range else {}
    with wire(replying(data, 206, **headers)) as server:
        assert type(error_of(server.url, reading(Span(2, 3)))) is TryAgain


def test_pages_follow_each_other_and_begin_behind_what_was_asked() -> None:
    """`startOffset` is inclusive, and a server that does not know it is none the worse."""

    def paged(heard: Heard) -> Answer:
        last = "pageToken" in heard.query
        rows = ["a/z"] if last else ["a/a", "a/k", "a/l"]
        page = {"items": [{"name": name, "size": "1"} for name in rows]} | (
            {} if last else {"nextPageToken": "p&2"}
        )
        return Answer(body=json.dumps(page).encode())

    with wire(paged) as server:
        assert of_store(server.url, names) == ["a/l", "a/z"]

    first, second = (heard.query for heard in server.heard)
    assert first == {
        "prefix": ["a/"],
        "maxResults": ["1000"],
        "fields": ["items(name,size),nextPageToken"],
        "startOffset": ["a/k"],
    }
    assert second == first | {"pageToken": ["p&2"]}


def test_deletions_go_out_some_at_once_and_end_at_the_first_failure() -> None:
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
