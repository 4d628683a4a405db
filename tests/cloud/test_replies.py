"""Tests of replies: no client returns bytes of a reply that is short, shifted or of another range."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from campaign import few
from cloud.calls import DIGITS, Call, Client, get, names, reading
from cloud.clients import EACH_CLIENT
from cloud.gcs import GCS, OF_BYTES
from cloud.s3 import S3, TAGGED
from wire import Answer, Heard, wire

from offload import ObjectStore, Span, Suffix, TryAgain

EACH_THAT_CUTS: Final = pytest.mark.parametrize(
    "client",
    [S3, GCS],
    ids=["s3", "gcs"],
)
"""The clients that accept a whole object, or an object of unknown size, in reply to a range."""

RANGES: Final = ("range", "x-ms-range")


@few("replies that each client must refuse; make test has a fifth of them", 5)
@pytest.mark.parametrize("call", [get, reading(Span(0, 10)), reading(Suffix(10)), names])
@EACH_CLIENT
def test_a_body_that_is_cut_short_is_no_body(client: Client, call: Call) -> None:
    """The connection ends before the announced length. The client sends the request once."""
    with wire(client.answers) as server:
        client.of_store(server.url, call)
        complete = len(server.heard)
        size = len(client.answers(server.heard[-1]).body)
        for sent in (0, 1, size - 1):
            server.answer = lambda heard, sent=sent: replace(client.answers(heard), cut=sent)
            server.heard.clear()

            assert type(client.error_of(server.url, call)) is TryAgain
            assert len(server.heard) == complete


@EACH_CLIENT
def test_a_body_that_is_cut_short_without_a_length_is_no_body(client: Client) -> None:
    def chunked(heard: Heard) -> Answer:
        chunk = {"Transfer-Encoding": "chunked"}
        return Answer(200, b"a\r\n0123", client.answers(heard).headers | chunk, cut=100)

    with wire(chunked) as server:
        assert type(client.error_of(server.url, get)) is TryAgain


@EACH_THAT_CUTS
def test_a_server_that_ignores_ranges_is_noticed(client: Client) -> None:
    """It answers with the whole object, and the span is cut from that."""
    spans = (Span(3, 4), Span(8, 5), Span(10, 1), Span(2, 0), Suffix(3))

    def whole(heard: Heard) -> Answer:
        kept = {name: value for name, value in heard.headers.items() if name not in RANGES}
        return client.answers(replace(heard, headers=kept))

    async def found(store: ObjectStore) -> list[bytes]:
        return [await store.get("a/key", span) for span in spans]

    with wire(whole) as server:
        assert client.of_store(server.url, found) == [b"3456", b"89", b"", b"", b"789"]


@few("replies that each client must refuse; make test has a fifth of them", 5)
@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 0-3/10", b"0123"),
        ("bytes 3-5/10", b"345"),
        ("bytes 3-6/10", b"345"),
        ("bytes 3-7/10", b"34567"),
        ("pages 3-6/10", b"3456"),
        ("3-6/10", b"3456"),
        ("", b"3456"),
    ],
)
@EACH_CLIENT
def test_another_range_than_requested_is_refused(client: Client, content_range: str, body: bytes) -> None:
    def answer(heard: Heard) -> Answer:
        return Answer(206, body, client.answers(heard).headers | {"Content-Range": content_range})

    with wire(answer) as server:
        assert type(client.error_of(server.url, reading(Span(3, 4)))) is TryAgain


@EACH_THAT_CUTS
def test_a_range_of_an_object_of_unknown_size_is_compared_with_the_request(client: Client) -> None:
    for content_range, body in (("bytes 3-6/*", b"3456"), ("bytes 4-7/*", b"4567")):
        answer = Answer(206, body, TAGGED | OF_BYTES | {"Content-Range": content_range})
        with wire(lambda heard, answer=answer: answer) as server:
            if body == b"3456":
                assert client.of_store(server.url, reading(Span(3, 4))) == body
            else:
                assert type(client.error_of(server.url, reading(Span(3, 4)))) is TryAgain


@EACH_CLIENT
def test_a_partial_reply_that_is_longer_than_the_request_takes_no_memory(client: Client) -> None:
    def endless(heard: Heard) -> Answer:
        if heard.method == "HEAD":  # Azure has no ranges from the end, so its client asks for the size
            return client.answers(heard)
        announced = {"Content-Length": str(2**40), "Content-Range": "bytes 0-9/10"}
        return Answer(206, DIGITS, client.answers(heard).headers | announced)

    with wire(endless) as server:
        for span in (Span(0, 10), Suffix(10)):
            error = client.error_of(server.url, reading(span))
            assert type(error) is TryAgain
            assert "longer than it may be" in str(error)
