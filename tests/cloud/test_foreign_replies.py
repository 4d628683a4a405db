"""Tests of replies of status 200 that are not the service's: no call takes one for a success.

A login page, a captive portal or a gateway under maintenance answers 200 to any request. Afterwards each call
is tried again, or its outcome is unknown. The error names the two options that may lead to the wrong server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from cloud.calls import DIGITS, Client, reading
from cloud.clients import CLIENTS
from wire import Answer, Heard, wire

from offload import Body, ObjectStore, OutcomeUnknown, Span, Suffix, TryAgain
from offload.contracts.store import Unfinished

NOT_FROM: Final = re.compile(r"the reply is not from .*; check `endpoint_url`.* and `proxy`$")
LOG_IN: Final = b"<html><body>Please log in</body></html>"
PAGES: Final = {
    "page": Answer(200, LOG_IN, {"Content-Type": "text/html"}),
    "page-as-xml": Answer(200, LOG_IN, {"Content-Type": "application/xml"}),
    "no-xml": Answer(200, b"<!doctype html><p>Please log in<br>", {"Content-Type": "text/html"}),
    "json": Answer(200, b'{"message": "Please log in"}', {"Content-Type": "application/json"}),
    "empty": Answer(200, b"", {"Content-Type": "text/html"}),
    "empty-xml": Answer(200, b"", {"Content-Type": "application/xml"}),
    "empty-without-type": Answer(200),
    "text-without-type": Answer(200, b"welcome"),
}


class Portal:
    """A service behind a portal, which answers in its place as soon as it is shut."""

    def __init__(self, client: Client, page: Answer) -> None:
        self.client, self.page, self.is_shut = client, page, False

    def __call__(self, heard: Heard) -> Answer:
        return self.page if self.is_shut else self.client.answers(heard)


Verb = Callable[[ObjectStore, Portal], Awaitable[Any]]


def of_upload(name: str, *arguments: Any) -> Verb:
    """Return a verb that calls a method of an upload that was begun before the portal was shut."""

    async def verb(store: ObjectStore, portal: Portal) -> None:
        portal.is_shut = False
        upload = await store.start_upload("a/key")
        await upload.put_part(1, DIGITS)
        portal.is_shut = True
        await getattr(upload, name)(*arguments)

    return verb


async def listed(store: ObjectStore, portal: Portal) -> list[Any]:
    return [row async for row in store.list("a/")]


async def level(store: ObjectStore, portal: Portal) -> list[str]:
    return [name async for name in store.level("a/")]


READS: Final[dict[str, Verb]] = {
    "get": lambda store, portal: store.get("a/key"),
    "get a span": lambda store, portal: reading(Span(2, 4))(store),
    "get an end": lambda store, portal: reading(Suffix(4))(store),
    "list": listed,
    "level": level,
    "metadata_of": lambda store, portal: store.metadata_of("a/key"),
}
OF_S3: Final[dict[str, Verb]] = {
    "stored_crc32c": lambda store, portal: store.stored_crc32c("a/key"),
    "retained": lambda store, portal: store.retained("a/key"),
    "start_upload": lambda store, portal: store.start_upload("a/key"),
    "unfinished_uploads": lambda store, portal: store.unfinished_uploads("a/"),
}
MUTATIONS: Final[dict[str, Verb]] = {
    "put": lambda store, portal: store.put("a/key", Body.of(DIGITS)),
    "create": lambda store, portal: store.create("a/key", DIGITS),
    "delete": lambda store, portal: store.delete(["a/key"]),
}
UPLOADS: Final[dict[str, Verb]] = {
    "put_part": of_upload("put_part", 2, DIGITS),
    "complete": of_upload("complete"),
}
ABORTS: Final[dict[str, Verb]] = {
    "abort": of_upload("abort"),
    "abort_upload": lambda store, portal: store.abort_upload(Unfinished("a/key", "u", 0)),
}
VERBS: Final[dict[str, tuple[dict[str, Verb], dict[str, Verb]]]] = {
    "s3": (READS | OF_S3, MUTATIONS | UPLOADS | ABORTS),
    "gcs": (READS | {"stored_crc32c": OF_S3["stored_crc32c"]}, MUTATIONS),
    "azure": (READS, MUTATIONS | UPLOADS),
}
"""The reads and mutations of each service that send a request."""


@pytest.mark.parametrize("name", CLIENTS)
def test_no_verb_takes_a_page_with_status_200_for_a_success(name: str) -> None:
    """One store for all verbs and pages: no page leaves it in a state that the next call meets."""
    client = CLIENTS[name]
    reads, mutations = VERBS[name]
    portal = Portal(client, Answer())
    wrong = []

    async def every_verb(store: ObjectStore) -> None:
        for said, portal.page in PAGES.items():
            for verb, call in (reads | mutations).items():
                portal.is_shut = True
                [found] = await asyncio.gather(call(store, portal), return_exceptions=True)
                expected = OutcomeUnknown if verb in mutations else TryAgain
                if type(found) is not expected or not NOT_FROM.search(str(found)):
                    wrong.append(f"{verb}, {said}: {found!r}")

    with wire(portal) as server:
        client.of_store(server.url, every_verb)

    assert not wrong, "\n".join(wrong)
