"""Tests of stores on servers that answer wrongly: a call gives the right result or an error of the port."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
from campaign import keeping
from cloud.calls import DIGITS, Call, Client, get, put, put_part, reading
from cloud.clients import CLIENTS, EACH_CLIENT
from wire import Answer, Heard, wire

from offload import ObjectStore, OffloadError, OutcomeUnknown, Span, TryAgain

MARKS: Final = (
    b'ETag: "e"\r\nx-amz-request-id: r\r\nx-ms-request-id: r\r\nx-ms-version: 2026-02-06\r\n'
    b"x-ms-blob-type: BlockBlob\r\nLast-Modified: Sat, 21 Nov 2026 19:51:58 GMT\r\nConnection: close\r\n"
)
OK: Final = b"HTTP/1.1 200 OK\r\n" + MARKS
PART: Final = b"HTTP/1.1 206 Partial Content\r\n" + MARKS
LENGTH: Final = b"Content-Length: %d\r\n\r\n"
REDIRECT: Final = b"HTTP/1.1 307 Go\r\n" + MARKS + b"Location: http://127.0.0.1:1/\r\n"
CHUNKS: Final = b"a\r\n%s\r\n0\r\n\r\n" % DIGITS

NO_OBJECTS: Final = {
    "204": b"HTTP/1.1 204 No Content\r\n" + MARKS + b"\r\n",
    "202": b"HTTP/1.1 202 Accepted\r\n" + MARKS + LENGTH % 0,
    "206 without a range": PART + LENGTH % 10 + DIGITS,
    "206 of a part": PART + b"Content-Range: bytes 0-4/10\r\n" + LENGTH % 5 + DIGITS[:5],
    "a redirect": REDIRECT + LENGTH % 0,
    "two lengths": OK + b"Content-Length: 4\r\n" + LENGTH % 10 + DIGITS,
    "a length and chunks": OK
    + b"Transfer-Encoding: chunked\r\n"
    + LENGTH % 10
    + b"a\r\n%s\r\n0\r\n\r\n" % DIGITS,
    "2**63 bytes": OK + LENGTH % 2**63 + DIGITS,
    "-1 bytes": OK + LENGTH % -1 + DIGITS,
    "gzip": OK + b"Content-Encoding: gzip\r\n" + LENGTH % 10 + DIGITS,
    "1,000 headers of 1 KiB": OK
    + b"".join(b"X: %s\r\n" % (b"x" * 1000) for _ in range(1000))
    + LENGTH % 10
    + DIGITS,
    "interim replies": b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
}


def sent(answer: Answer, fields: bytes = b"") -> bytes:
    """Return the bytes of a reply, with more fields in its head."""
    named = {"Content-Length": str(len(answer.body)), "Connection": "close"} | answer.headers
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {answer.status} Fine\r\n{head}".encode() + fields + b"\r\n" + answer.body


@pytest.mark.parametrize("call", [get, reading(Span(0, 10))], ids=["whole", "span"])
@EACH_CLIENT
def test_a_reply_that_is_no_object_gives_no_bytes(client: Client, call: Call) -> None:
    """One request each, and the error is one line."""
    reply = b""

    async def all_of_them(store: ObjectStore) -> None:
        nonlocal reply
        for name, wrong in NO_OBJECTS.items():
            reply = wrong
            with pytest.raises(OffloadError) as caught:
                await call(store)
            assert str(caught.value).isprintable(), name
            assert "Traceback" not in str(caught.value), name
        reply = b""
        assert await call(store) == DIGITS

    with wire(lambda heard: Answer(raw=reply or sent(client.answers(heard), b"X: \x1b\r\n"))) as server:
        client.of_store(server.url, all_of_them)

    assert len(server.heard) == len(NO_OBJECTS) + 1


@EACH_CLIENT
def test_replies_that_the_sdk_cannot_parse_take_no_turns_of_others(client: Client) -> None:
    """There are more of them than connections. The SDK does not close their bodies."""
    odd = b"Last-Modified: yesterday\r\n"

    async def read(store: ObjectStore) -> bytes:
        nonlocal odd
        for call in (get, reading(Span(0, 10)), get):
            with suppress(TryAgain):
                await call(store)
        odd = b""
        return bytes(await get(store))

    def answer(heard: Heard) -> Answer:
        usual = client.answers(heard)
        fields = {name: value for name, value in usual.headers.items() if name != "Last-Modified" or not odd}
        return Answer(raw=sent(replace(usual, headers=fields), odd))

    with wire(answer) as server:
        assert client.of_store(server.url, read, connections_max=2) == DIGITS


@EACH_CLIENT
def test_bytes_beyond_the_promised_ones_are_never_received(client: Client) -> None:
    surplus = bytes(50 * 2**20)

    async def read(store: ObjectStore) -> list[bytes]:
        return [bytes(await call(store)) for call in (get, reading(Span(0, 10)), get)]

    with wire(lambda heard: Answer(raw=sent(client.answers(heard)) + surplus)) as server:
        assert client.of_store(server.url, read) == [DIGITS] * 3

    assert server.connections == 3


@pytest.mark.parametrize(
    "case",
    keeping(
        [("s3", put), ("gcs", put), ("azure", put)],
        [("s3", put), ("gcs", put), ("azure", put), ("s3", put_part), ("azure", put_part)],
        "puts, which send the same request",
        id_=lambda case: f"{case[0]}-{case[1].__name__}",
    ),
)
def test_a_write_succeeds_by_a_whole_reply_alone(case: tuple[str, Call]) -> None:
    """The connection ends behind each byte of the reply in turn. Then nobody knows if it was applied."""
    name, call = case
    client, cut = CLIENTS[name], 0

    def answer(heard: Heard) -> Answer:
        if "uploads" in heard.query:  # the beginning of an upload in parts
            return client.answers(heard)
        reply = sent(client.answers(heard))
        sizes.append(len(reply))
        return Answer(raw=reply[:cut])

    async def every_cut(store: ObjectStore) -> None:
        nonlocal cut
        cut = 10_000
        await call(store)
        for size_bytes in range(sizes[0]):
            cut = size_bytes
            with pytest.raises(OutcomeUnknown):
                await call(store)

    sizes: list[int] = []
    with wire(answer) as server:
        client.of_store(server.url, every_cut)
    gc.collect()  # a socket that is still open gives a ResourceWarning, which fails the test
