"""What the S3 backend really sends, and that it believes no reply that is short, shifted or damaged."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate, served
from offload_s3 import S3Store
from offload_s3.store import checksum_of
from s3_calls import (
    DIGITS,
    TAGGED,
    Call,
    answers,
    create,
    error_of,
    get,
    names,
    of_store,
    put,
    reading,
    refusal,
    upload,
)
from wire import Answer, Heard, Wire, wire

from offload import Body, Denied, OffloadError, OutcomeUnknown, Span, StoreDenied, Suffix, TryAgain


@pytest.fixture
def s3() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# One call is one request


def test_no_request_deletes_a_key_twice(s3: Wire) -> None:
    """Ceph's gateway 16.2.15 deletes the keys of one request side by side, and crashes where two are one."""
    of_store(s3.url, lambda store: store.delete(["b", "a", "b", "c", "a"]))

    [asked] = s3.heard
    assert re.findall(rb"<Key>(.*?)</Key>", asked.body) == [b"b", b"a", b"c"]


def test_a_large_body_goes_out_whole_without_asking_for_leave(s3: Wire) -> None:
    """A server that does not know `Expect: 100-continue` would be waited for until the deadline."""
    data = bytes(range(256)) * 4096

    of_store(s3.url, lambda store: store.put("key", Body.of(data)))

    [asked] = s3.of("PUT")
    assert "expect" not in {name.lower() for name in asked.headers}
    assert asked.body == data


@pytest.mark.parametrize(
    ("call", "method", "raised"),
    [(put, "PUT", OutcomeUnknown), (create, "PUT", OutcomeUnknown), (get, "GET", TryAgain)],
)
def test_a_connection_that_drops_is_not_asked_again(
    call: Call, method: str, raised: type[OffloadError]
) -> None:
    """The server may have stored it; a second request of the HTTP library's own would hide that."""

    def first_then_drop(heard: Heard) -> Answer:
        return Answer(drop=heard.method == method and "key" in heard.path)

    async def on_a_used_connection(store: S3Store) -> Any:
        await store.delete(["other"])
        return await call(store)

    with wire(lambda heard: answers(heard) if heard.method == "POST" else first_then_drop(heard)) as server:
        error = error_of(server.url, on_a_used_connection)

    assert type(error) is raised
    assert [heard.connection for heard in server.heard] == [1, 1]
    assert [heard.method for heard in server.heard] == ["POST", method]


@pytest.mark.parametrize("status", [500, 503, 429, 403, 404, 412])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    with wire(lambda heard: Answer(status)) as server:
        error_of(server.url, create)

    assert len(server.heard) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("call", [create, get])
def test_no_redirect_is_followed(s3: Wire, status: int, call: Call) -> None:
    """It could lead the bytes, the session token and a key of the caller's own to a stranger."""
    with wire(lambda heard: Answer(status, headers={"Location": f"{s3.url}/bucket/a/key"})) as server:
        error = error_of(server.url, call)

    assert type(error) is StoreDenied
    assert len(server.heard) == 1
    assert s3.heard == []


def test_a_create_says_so_on_the_wire(s3: Wire) -> None:
    of_store(s3.url, create)

    [heard] = s3.heard
    assert (heard.method, heard.path, heard.body) == ("PUT", "/bucket/a/key", DIGITS)
    assert heard.headers["if-none-match"] == "*"
    assert heard.headers["x-amz-checksum-crc32c"] == checksum_of(DIGITS)


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
def test_every_object_is_encrypted_as_asked_commits_too(
    s3: Wire, options: dict[str, Any], headers: dict[str, str]
) -> None:
    of_store(s3.url, create, **options)
    of_store(s3.url, put, **options)
    of_store(s3.url, upload, **options)

    begun = [heard for heard in s3.of("POST") if "uploads" in heard.query]
    for heard in (*s3.of("PUT")[:2], *begun):
        assert headers.items() <= heard.headers.items(), heard


def test_a_key_of_the_callers_own_goes_with_every_request_about_bytes(s3: Wire) -> None:
    """Parts, the completion (S3 wants it there where checksums are kept) and reads."""
    of_store(s3.url, upload, sse_c_key=KEY_OF_32_BYTES)
    of_store(s3.url, get, sse_c_key=KEY_OF_32_BYTES)

    assert [heard.headers.get("x-amz-server-side-encryption-customer-key") for heard in s3.heard] == [
        KEY_OF_32_BYTES
    ] * 4


def test_storage_class_tags_and_metadata_are_the_fragments_alone(s3: Wire) -> None:
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


def test_whoever_agrees_to_pay_says_so_every_time(s3: Wire) -> None:
    for call in (put, create, get, upload, names, lambda store: store.delete(["a"])):
        of_store(s3.url, call, requester_pays="true")

    assert {heard.headers.get("x-amz-request-payer") for heard in s3.heard} == {"requester"}


def test_without_credentials_nothing_is_signed(s3: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "HUSH")

    of_store(s3.url, get, anonymous="true", key=None, secret=None, token=None)
    of_store(s3.url, get)

    assert ["authorization" in heard.headers for heard in s3.heard] == [False, True]


@pytest.mark.parametrize(
    ("addressing", "url"),
    [
        ("path", "http://store.invalid/bucket/a/key"),
        ("virtual", "http://bucket.store.invalid/a/key"),
    ],
)
def test_a_proxy_is_asked_for_the_bucket_where_addressing_puts_it(
    s3: Wire, addressing: str, url: str
) -> None:
    """The name of the server resolves nowhere: only the proxy could have been asked."""
    proxy = s3.url.replace("://", "://user:HUSH@")

    of_store("http://store.invalid", get, addressing=addressing, proxy=proxy)

    [heard] = s3.heard
    assert heard.target.partition("?")[0] == url
    assert "proxy-authorization" in heard.headers


def test_certificates_are_checked_unless_told_otherwise(tmp_path: Path) -> None:
    made = certificate(tmp_path)

    with wire(answers, tls=served(made)) as server:
        untrusted = error_of(server.url, get)
        unchecked = of_store(server.url, get, verify="false")
        checked = of_store(server.url, get, verify=str(made.path))

    assert isinstance(untrusted, Denied)
    assert "not trusted" in str(untrusted)
    assert "`verify`" in str(untrusted)
    assert unchecked == checked == DIGITS


def test_an_authority_that_the_environment_names_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(made.path))

    with wire(answers, tls=served(made)) as server:
        assert of_store(server.url, get) == DIGITS


# Replies that lie


@pytest.mark.parametrize("sent", [0, 1, 9])
@pytest.mark.parametrize("call", [get, reading(Span(0, 10)), reading(Suffix(10))])
def test_a_body_that_is_cut_short_is_no_body(call: Call, sent: int) -> None:
    """Fewer bytes than the reply announced, then the connection ends."""

    def cut(heard: Heard) -> Answer:
        part = {"Content-Range": "bytes 0-9/10"} if "range" in heard.headers else {}
        return Answer(206 if part else 200, DIGITS, TAGGED | part, cut=sent)

    with wire(cut) as server:
        error = error_of(server.url, call)

    assert type(error) is TryAgain


def test_a_body_that_is_cut_short_without_a_length_is_no_body() -> None:
    def chunked(heard: Heard) -> Answer:
        return Answer(200, b"a\r\n0123", TAGGED | {"Transfer-Encoding": "chunked"}, cut=100)

    with wire(chunked) as server:
        assert type(error_of(server.url, get)) is TryAgain


@pytest.mark.parametrize(
    ("span", "found"),
    [(Span(3, 4), b"3456"), (Span(8, 5), b"89"), (Span(10, 1), b""), (Span(2, 0), b""), (Suffix(3), b"789")],
)
def test_a_server_that_ignores_ranges_is_seen_through(s3: Wire, span: Span | Suffix, found: bytes) -> None:
    """It answers 200 and the whole object, of which the span is cut here."""
    assert of_store(s3.url, reading(span)) == found


@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 0-3/10", b"0123"),
        ("bytes 3-5/10", b"345"),
        ("bytes 3-6/10", b"345"),
        ("bytes 3-7/10", b"34567"),
        ("bytes 4-7/*", b"4567"),
        ("pages 3-6/10", b"3456"),
        ("", b"3456"),
    ],
)
def test_another_range_than_was_asked_for_is_not_believed(content_range: str, body: bytes) -> None:
    with wire(lambda heard: Answer(206, body, TAGGED | {"Content-Range": content_range})) as server:
        assert type(error_of(server.url, reading(Span(3, 4)))) is TryAgain


def test_a_range_whose_whole_is_unknown_is_taken() -> None:
    with wire(lambda heard: Answer(206, b"3456", TAGGED | {"Content-Range": "bytes 3-6/*"})) as server:
        assert of_store(server.url, reading(Span(3, 4))) == b"3456"


def test_the_checksum_that_the_store_keeps_is_held_against_what_came() -> None:
    wrong, parts = TAGGED | {"x-amz-checksum-crc32c": checksum_of(b"others")}, "x-amz-checksum-type"

    with wire(lambda heard: Answer(200, DIGITS, wrong | {parts: "FULL_OBJECT"})) as server:
        damaged = error_of(server.url, get)
    with wire(
        lambda heard: Answer(200, DIGITS, TAGGED | {"x-amz-checksum-crc32c": checksum_of(DIGITS)})
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


def test_any_other_checksum_that_the_store_keeps_is_compared_by_the_client() -> None:
    with wire(lambda heard: Answer(200, DIGITS, TAGGED | {"x-amz-checksum-crc32": "AAAAAA=="})) as server:
        assert type(error_of(server.url, get)) is TryAgain


@pytest.mark.parametrize("call", [get, put, create])
def test_a_web_page_is_no_object(call: Call) -> None:
    """What answers 200 to anything, and is no S3 server, has stored nothing that we could rely on."""
    with wire(lambda heard: Answer(200, b"welcome")) as server:
        error = error_of(server.url, call)

    assert type(error) is (TryAgain if call is get else OutcomeUnknown)
    assert "S3 server" in str(error)


def test_a_request_that_another_region_must_answer_goes_there_once(s3: Wire) -> None:
    """The client does that by itself. The first was refused, so that no more than one is applied."""

    def elsewhere(heard: Heard) -> Answer:
        if "/eu-west-3/" in heard.headers["authorization"]:
            return answers(heard)
        return refusal("AuthorizationHeaderMalformed", 400, "<Region>eu-west-3</Region>")

    with wire(elsewhere) as server:
        of_store(server.url, create)

    assert len(server.heard) == 2
