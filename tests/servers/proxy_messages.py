"""Heads of HTTP/1.1, as the fault proxy (`servers.proxy`) needs them: requests, framings and refusals.

Invariant: a head is kept as it was received, and every other value is derived from it.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

END_OF_HEAD: Final = b"\r\n\r\n"


class Chunked:
    """The framing of a body in chunks with their sizes."""


class UntilEnd:
    """The framing of a body that ends with the connection."""


CHUNKED: Final = Chunked()
UNTIL_END: Final = UntilEnd()
Framing = int | Chunked | UntilEnd
"""The framing of a body: a number of bytes, or one of the two classes above."""


@dataclass(frozen=True)
class Request:
    """The head of a request."""

    raw: bytes
    """The head as received, with the empty line that ends it."""

    number: int = 0
    """The number of this request among all requests of the proxy, from 1."""

    @cached_property
    def method(self) -> str:
        return self._first_line[0]

    @cached_property
    def target(self) -> str:
        """Return path and query without percent-escapes, for matching patterns."""
        return urllib.parse.unquote(self._first_line[1])

    @cached_property
    def headers(self) -> dict[str, str]:
        """Return the headers by name in lower case."""
        return headers_of(self.raw)

    @property
    def creates(self) -> bool:
        """Return True if the request is a create-if-absent."""
        return self.headers.get("if-none-match") == "*" or bool(re.search(_GENERATION, self.target))

    @property
    def body(self) -> Framing:
        """Return the framing of the body."""
        return framing_of(self.headers, otherwise=0)

    @property
    def expects(self) -> bool:
        """Return True if the client waits for `100 Continue` before it sends the body."""
        return self.headers.get("expect", "").lower() == "100-continue"

    def without_precondition(self) -> bytes:
        """Return the head without the condition, as if the server knew no create-if-absent."""
        raw = re.sub(rb"(?i)\r\nif-none-match:[^\r]*", b"", self.raw)
        line, rest = raw.split(b"\r\n", 1)
        line = re.sub(rb"[?&]ifGenerationMatch=0(?=&| )", b"", line)
        if b"?" not in line:
            line = line.replace(b"&", b"?", 1)
        return line + b"\r\n" + rest

    @cached_property
    def _first_line(self) -> tuple[str, str]:
        method, target, _ = self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        return method, target


_GENERATION: Final = r"[?&]ifGenerationMatch=0(&|$)"


def status_of(head: bytes) -> int:
    """Return the status of a reply."""
    return int(head.split(b" ", 2)[1])


def headers_of(head: bytes) -> dict[str, str]:
    """Return the headers by name in lower case."""
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def framing_of(headers: Mapping[str, str], *, otherwise: Framing) -> Framing:
    """Return the framing of the body behind these headers, `otherwise` if they do not say."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return CHUNKED
    length = headers.get("content-length")
    return otherwise if length is None else int(length)


def reply_framing(request: Request, reply: bytes) -> Framing:
    """Return the framing of the body of a reply."""
    if request.method == "HEAD" or status_of(reply) in (204, 304):
        return 0
    return framing_of(headers_of(reply), otherwise=UNTIL_END)


def closes(head: bytes) -> bool:
    """Return True if the connection ends with this message."""
    said = headers_of(head).get("connection", "").lower()
    old = b"HTTP/1.0" in head.split(b"\r\n", 1)[0]
    return said == "close" or (old and said != "keep-alive")


def page(request: Request, body: bytes, *, end: bool) -> bytes:
    """Return a reply of success that no object store sends, as a portal or a login does."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/html", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *["Connection: close"] * end]).encode() + END_OF_HEAD
    return head if request.method == "HEAD" else head + body


def refusal(request: Request, status: int, *headers: str, end: bool) -> bytes:
    """Return an error reply in the format of the request's protocol."""
    reason, s3, azure = {
        500: ("Internal Server Error", "InternalError", "InternalError"),
        503: ("Service Unavailable", "SlowDown", "ServerBusy"),
    }[status]
    if "x-ms-version" in request.headers:
        body = f"<?xml version='1.0'?><Error><Code>{azure}</Code><Message>on purpose</Message></Error>"
        lines = ["Content-Type: application/xml", f"x-ms-error-code: {azure}", *headers]
    elif re.match(r"(/upload|/download)?/storage/v1/", request.target):
        body = json.dumps({"error": {"code": status, "message": "on purpose", "errors": []}})
        lines = ["Content-Type: application/json", *headers]
    else:
        body = f"<?xml version='1.0'?><Error><Code>{s3}</Code><Message>on purpose</Message></Error>"
        lines = ["Content-Type: application/xml", *headers]
    lines += [f"Content-Length: {len(body)}"] + ["Connection: close"] * end
    head = "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines]).encode() + END_OF_HEAD
    return head if request.method == "HEAD" else head + body.encode()
