"""A listing in the order of the keys' bytes, whatever order the account lists in.

The service has two orders. A flat namespace lists by UTF-16, which differs from UTF-8 only among
characters beyond U+D7FF. A hierarchical namespace lists folder by folder (`a/x` before `a-b`), and lists
the folders too. So every row is compared with the one before it. A listing in another order, or one with
folders, is refused. With the option `hierarchical_namespace`, a listing is gathered whole and sorted here.

`after`: newer versions of the service take a name to start from. Others ignore it, and no account was
available to try it on. So a listing from a name counts only if its first row is that name, which proves that
nothing behind it was skipped. Otherwise the listing is made again from the beginning, and filtered here.

The rows are read from the reply's XML. The client's own model of a row takes 14 times as long to make, and
would block the event loop for two seconds with each page.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from azure.core.pipeline.policies import ContentDecodePolicy
from azure.storage.blob.aio import ContainerClient

from offload.contracts.store import Listed
from offload.ground.errors import Denied
from offload_azure.failures import not_from_azure

OK: Final = 200
ROOT: Final = b"EnumerationResults"
ROOT_WITHIN_BYTES: Final = 512
"""The root element begins so early in a page: only the declaration of XML precedes it."""

FOLDER: Final = "hdi_isfolder"
"""The metadata that marks a blob as a folder. The service and Hadoop's tools set it."""


class Listing:
    """The objects of a container below a prefix. `ask` awaits a request and explains its failure."""

    def __init__(
        self, container: ContainerClient, ask: Callable[[Any], Awaitable[Any]], *, where: str, sort: bool
    ) -> None:
        self._container, self._ask, self._where, self._sort = container, ask, where, sort

    async def rows(self, prefix: str, after: str) -> AsyncGenerator[Listed, None]:
        """Yield every object whose key begins with `prefix` and is greater than `after`, in order."""
        if self._sort:
            rows = [row async for row in self._listed(prefix) if row is not None and row.key > after]
            for row in sorted(rows, key=lambda row: row.key):
                yield row
            return
        async with aclosing(self._ascending(prefix, after)) as ascending:
            async for row in ascending:
                if row.key > after:
                    yield row

    async def level(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the keys and folders directly below `prefix`, gathered and sorted here."""
        found, marker = set(), None
        while True:
            page = await self._page(prefix, None, marker, delimiter="/")
            found |= {row.key for row in rows_of(page) if row is not None}
            found |= {_text_of(folder) for folder in page.iterfind("Blobs/BlobPrefix")}
            marker = page.findtext("NextMarker")
            if not marker:
                break
        for name in sorted(found):
            yield name

    async def _ascending(self, prefix: str, after: str) -> AsyncGenerator[Listed, None]:
        start = after if after and _is_safe_start(prefix, after) else None
        last = ""
        async with aclosing(self._listed(prefix, start)) as listed:
            async for row in listed:
                if row is None:
                    # A flat namespace has no folders, so the account lists in the other order.
                    raise self._out_of_order("lists folders")
                if start is not None and not last and row.key > start:
                    break  # `start` is gone, or rows behind it were skipped: both look the same
                # A row out of order means that others may be missing, also the newest root.
                if row.key <= last:
                    raise self._out_of_order(f"lists {last!r} before {row.key!r}")
                last = row.key
                yield row
            else:
                # No row at all behind a start proves nothing either.
                if last or start is None:
                    return
        async with aclosing(self._ascending(prefix, "")) as again:
            async for row in again:
                yield row

    async def _listed(self, prefix: str, start: str | None = None) -> AsyncGenerator[Listed | None, None]:
        """Yield the rows in the service's own order; None for a folder."""
        marker: str | None = None
        while True:
            page = await self._page(prefix, start, marker)
            for row in rows_of(page):
                yield row
            marker = page.findtext("NextMarker")
            if not marker:
                return

    async def _page(
        self, prefix: str, start: str | None, marker: str | None, *, delimiter: str | None = None
    ) -> Element:
        """Send one request. The client's own paging would take the prefix of the next page from the reply."""
        replies: list[Any] = []
        what = f"list {prefix!r}"

        def keep(reply: Any) -> None:
            # Before the client reads the reply: it fails in odd ways at a page or an empty body.
            said = reply.http_response
            if said.status_code == OK and ROOT not in said.body()[:ROOT_WITHIN_BYTES]:
                raise not_from_azure(what, where=self._where)
            replies.append(reply)

        begin: Any = {"start_from": start} if start else {}
        wanted: Any = {"name_starts_with": prefix or None, "include": ["metadata"], "raw_response_hook": keep}
        listed: Any = (
            self._container.list_blob_names(**wanted, **begin)
            if delimiter is None
            else self._container.walk_blobs(delimiter=delimiter, **wanted)
        )
        pages = listed.by_page(continuation_token=marker)
        await self._ask(anext(pages))
        page: Element = replies[-1].context[ContentDecodePolicy.CONTEXT_NAME]
        # A page of the service says which page follows, or that none does.
        if page.tag != ROOT.decode() or page.find("NextMarker") is None:
            raise not_from_azure(what, where=self._where)
        return page

    def _out_of_order(self, what: str) -> Denied:
        return Denied(
            f"{self._where}: the account {what}, as one with a hierarchical namespace does; set the option "
            "hierarchical_namespace=true, which sorts its listings"
        )


def rows_of(page: Element) -> Iterator[Listed | None]:
    """Yield the rows of a page of List Blobs; None for a folder."""
    for blob in page.iterfind("Blobs/Blob"):
        size_bytes = int(blob.findtext("Properties/Content-Length", "0"))
        yield None if _is_folder(blob) else Listed(_text_of(blob), size_bytes)


def _text_of(row: Element) -> str:
    """Return the name of a blob or of a folder."""
    name = row.find("Name")
    assert name is not None
    text = name.text or ""
    return unquote(text) if name.get("Encoded") == "true" else text


def _is_folder(blob: Element) -> bool:
    if blob.findtext("Properties/ResourceType") == "directory":
        return True
    marks = blob.iterfind("Metadata/*")
    return any(mark.tag.lower() == FOLDER and mark.text == "true" for mark in marks)


def _is_safe_start(prefix: str, after: str) -> bool:
    """Return True if the same names follow this one in every order that the service may have."""
    return after.isascii() and after.startswith(prefix) and "/" not in after[len(prefix) :]
