"""The Azure clients on a server of a test, and a minimal imitation of Azure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from xml.sax.saxutils import escape

from cloud import calls
from cloud.calls import DIGITS, SECRET_IN_BASE64, Client, asked_range
from offload_azure import AzureOptions, AzureStore
from wire import Answer, Heard

KEY = SECRET_IN_BASE64
SPEAKS = {"x-ms-request-id": "r", "x-ms-version": "2026-02-06"}
TAGGED = SPEAKS | {
    "ETag": '"e"',
    "Last-Modified": "Sat, 21 Nov 2026 19:51:58 GMT",
    "x-ms-blob-type": "BlockBlob",
}
FOLDER = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>"
LOGIN = {"account_name": "acct", "account_key": KEY}


def part_of(data: bytes, heard: Heard, **headers: str) -> Answer:
    """Answer a GET of some bytes as Azure does."""
    sums = {"x-ms-blob-content-md5": base64.b64encode(hashlib.md5(data).digest()).decode()}
    of_part = sums if asked_range(heard) else {}
    return calls.part_of(data, heard, TAGGED | of_part | headers, beyond=refusal("InvalidRange", 416))


def answers(heard: Heard) -> Answer:
    """Answer every call of the port with success, as Azure does."""
    match heard.method:
        case "PUT":
            return Answer(201, headers=TAGGED)
        case "DELETE":
            return Answer(202, headers=SPEAKS)
        case "HEAD":
            return Answer(200, DIGITS, TAGGED)
    return page([]) if heard.query.get("comp") == ["list"] else part_of(DIGITS, heard)


def page(keys: Iterable[str], *, following: str = "", folders: Iterable[str] = ()) -> Answer:
    """Return a page of List Blobs. The blobs in `folders` have the mark of a folder."""
    rows = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>1</Content-Length></Properties>"
        f"{FOLDER if key in folders else '<Metadata/>'}</Blob>"
        for key in keys
    )
    inside = f"<Blobs>{rows}</Blobs><NextMarker>{following}</NextMarker>"
    text = f"<EnumerationResults>{inside}</EnumerationResults>"
    return Answer(200, text.encode(), SPEAKS | {"Content-Type": "application/xml"})


def refusal(code: str, status: int, message: str = "m", inside: str = "", **headers: str) -> Answer:
    """Return an error reply."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{inside}</Error>"
    of_azure = SPEAKS | {"Content-Type": "application/xml", "x-ms-error-code": code}
    return Answer(status, text.encode(), of_azure | headers)


AZURE = Client(
    open=lambda options: AzureStore(container="container", options=AzureOptions.of(options)),
    login=LOGIN,
    anonymous={"account_key": None, "anonymous": True},
    answers=answers,
    calls=(*Client.calls, calls.put_part),
)
of_store, error_of = AZURE.of_store, AZURE.error_of
