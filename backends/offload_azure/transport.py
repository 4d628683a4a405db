"""The transport of the SDK's pipeline: every request of a container goes by the byte transport.

The SDK builds each request: address, headers of options, credentials, signature. It hands the request to a
transport, and reads the reply from it. `SdkTransport` is such a transport over `offload_cloud.transport`. It
reads each body where the request is sent. So the SDK's own loop cannot repeat a read whose body breaks off.

The SDK joins the windows of a body, and the pieces of a reply. Two keywords of a call avoid both:

    blob.upload_blob(b"", length=size_bytes, windows=windows)         # the transport sends the windows
    blob.download_blob(offset=0, length=10, opened=replies.append)    # the caller receives the body

Invariant: no error that leaves this module has a URL's query in its text, because a token is in the query.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from http.client import responses
from types import TracebackType
from typing import Any, Final

from azure.core.pipeline.transport import AsyncHttpResponse, AsyncHttpTransport
from azure.core.utils import case_insensitive_dict
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.options import shown
from offload_cloud.proxies import proxy_for
from offload_cloud.ranges import PART, WHOLE, size_asked_for
from offload_cloud.tls import trusting
from offload_cloud.transport import Transport, TransportReply

from offload.contracts.store import Buffer
from offload_azure.options import AzureOptions

__all__ = ["SdkTransport"]

_CONTENT_RANGE: Final = re.compile(r"bytes [0-9]{1,20}-([0-9]{1,20}|-1)/[0-9]{1,20}")


class SdkTransport(AsyncHttpTransport[Any, Any]):
    """A transport of the SDK that sends by the byte transport. It belongs to one event loop."""

    def __init__(self, options: AzureOptions) -> None:
        self._proxy = shown(options.proxy)
        self._transport = Transport(
            limits=TimeLimits(
                connect_seconds=options.connect_timeout_seconds, stall_seconds=options.read_timeout_seconds
            ),
            connections_max=options.connections_max,
            context=lambda: trusting(options.verify, backend="azure"),
        )

    async def open(self) -> None:
        """Do nothing: connections open when they are needed."""

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def send(
        self,
        request: Any,
        *,
        windows: Sequence[Buffer] | None = None,
        opened: Callable[[TransportReply], None] | None = None,
        **_config: Any,
    ) -> AsyncHttpResponse:
        """Send a request, and return its reply with the whole body.

        With `opened`, a reply with bytes of an object goes there as soon as its head has arrived, and the SDK
        gets it without a body. The caller closes it, also if the SDK then raises an error.
        """
        _check_url(request.url)
        sent = Request(
            method=request.method,
            url=request.url,
            headers=dict(request.headers),
            body=_windows(request.data) if windows is None else windows,
        )
        proxy = proxy_for(request.url, self._proxy, backend="azure")
        reply = await self._transport.ask(sent, proxy=proxy)
        try:
            asked = size_asked_for(request.headers.get("x-ms-range", ""))
            reply.check_body(asked if reply.status == PART else None)
            if opened is not None and reply.status in {WHOLE, PART}:
                opened(reply)
                return _Response(request, reply, b"")
            response = _Response(request, reply, await reply.read())
        except BaseException:
            reply.close()
            raise
        reply.close()
        return response


class _Response(AsyncHttpResponse):
    """A reply whose body has arrived, in the form of the SDK."""

    def __init__(self, request: Any, reply: TransportReply, content: bytes) -> None:
        super().__init__(request, reply)
        self.status_code = reply.status
        self.headers = case_insensitive_dict(reply.headers)
        self.reason = responses.get(reply.status, "")
        self.content_type = reply.headers.get("content-type")
        self._content = content
        # The SDK cannot read an odd range, and reports a missing one in a clear way.
        if not _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", "")):
            self.headers.pop("Content-Range", None)

    def body(self) -> bytes:
        """Return the body."""
        return self._content

    def text(self, encoding: str | None = None) -> str:
        """Return the body as text. A refusal may come from any server, so wrong bytes are replaced."""
        return self._content.decode("utf-8-sig", errors="replace")

    async def read(self) -> bytes:
        """Return the body. The SDK calls this for refusals."""
        return self._content

    def stream_download(self, pipeline: Any, **_kwargs: Any) -> AsyncIterator[bytes]:
        """Return a stream without bytes. `AzureStore` takes the body from `opened` or `body`."""
        return _NoStream(self)


class _NoStream(AsyncIterator[bytes]):
    """The stream that the SDK's downloader reads, with the attributes that it uses."""

    content_length = 0
    properties: Any

    def __init__(self, response: _Response) -> None:
        self.response: Final = response

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


def _windows(data: Any) -> list[Buffer]:
    """Return the windows of the SDK's own bodies: documents in XML, as text or bytes."""
    return [data.encode() if isinstance(data, str) else data] if data else []


def _check_url(url: str) -> None:
    """Raise `ValueError` if a URL cannot be sent. The text does not repeat it, because a token is in it."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError("the URL holds a space or a control character; is one in the SAS token?")
