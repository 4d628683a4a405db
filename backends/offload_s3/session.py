"""The HTTP session of the SDK: every request of a bucket goes by the byte transport.

The SDK builds each request: address, headers of options, credentials, signature. It hands the request to an
HTTP session, and reads the reply from it. `TransportSession` is such a session over
`offload_cloud.transport`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from io import BytesIO
from ssl import SSLContext
from typing import Any, Final

from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from botocore.httpsession import get_cert_path
from offload_cloud.bodies import WindowsBody
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.ranges import PART, size_asked_for
from offload_cloud.transport import Transport, TransportReply

from offload.contracts.store import Buffer
from offload.ground.errors import TryAgain

__all__ = ["TransportSession", "reply_of", "safely_parsed"]

# A variable of the context, because the SDK lies between the caller and the session.
_opened: Final[ContextVar[list[TransportReply] | None]] = ContextVar("_opened", default=None)


class TransportSession(AIOHTTPSession):  # type: ignore[misc]  # its package ships no types
    """An HTTP session of the SDK that sends by the byte transport, and never by the SDK's HTTP library."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of the SDK's own session."""
        super().__init__(*args, **kwargs)
        self._transport = Transport(
            limits=TimeLimits(
                connect_seconds=self._timeout.sock_connect, stall_seconds=self._timeout.sock_read
            ),
            connections_max=self._max_pool_connections,
            context=lambda: self._build_ssl_contexts(None)[0],
        )

    def _build_ssl_contexts(self, proxy_url: str | None) -> Any:
        # A context that loads a certificate of its own is not shared: loading changes it.
        if not self._verify or self._cert_file or proxy_url:
            return super()._build_ssl_contexts(proxy_url)
        return _trusting(self._verify, os.stat(get_cert_path(self._verify)).st_mtime_ns), None

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
        await super().close()

    async def send(self, request: Any) -> AioAWSResponse:
        """Send a request, and return the head of its reply. A body that the SDK does not stream is read."""
        sent = Request(
            method=request.method,
            url=request.url,
            headers={name: _text(value) for name, value in request.headers.items()},
            body=_windows(request.body),
        )
        reply = await self._transport.ask(sent, proxy=self._proxy_config.proxy_url_for(request.url))
        try:
            asked = size_asked_for(sent.headers.get("Range", ""))
            reply.check_body(asked if reply.status == PART else None)
            response = AioAWSResponse(request.url, reply.status, reply.headers, _Raw(reply))
            if not request.stream_output:
                await response.content
        except BaseException:
            reply.close()
            raise
        if (opened := _opened.get()) is not None:
            opened.append(reply)
        return response


@lru_cache(maxsize=8)
def _trusting(verify: bool | str, modified_ns: int) -> SSLContext:
    """Return the context of all clients that trust these authorities, unless their file has changed.

    Parsing the file took a fifth of the CPU time in which a store opens, answers a few requests, and closes.
    """
    context: SSLContext = AIOHTTPSession(verify)._build_verify_context()
    return context


@contextmanager
def safely_parsed(where: str) -> Iterator[None]:
    """Close the replies to requests inside if an error ends the block.

    The SDK drops a reply whose headers it cannot parse, and leaves its body open. That is `TryAgain`.
    """
    opened: list[TransportReply] = []
    token = _opened.set(opened)
    try:
        yield
    except BaseException as exc:
        for reply in opened:
            reply.close()
        if opened and isinstance(exc, ValueError):
            raise TryAgain(f"{where}: the reply cannot be read: {exc}") from exc
        raise
    finally:
        _opened.reset(token)


def reply_of(body: Any) -> TransportReply:
    """Return the reply whose body the SDK hands to its caller. The SDK then reads none of it."""
    raw = getattr(body, "raw_stream", body)  # before aiobotocore 3, the body stands for the raw one itself
    reply = raw.reply
    assert isinstance(reply, TransportReply), "the SDK hands over another body than it was given"
    return reply


class _Raw:
    """The body of a reply, with the few methods that the SDK calls."""

    def __init__(self, reply: TransportReply) -> None:
        self.reply: Final = reply

    @property
    def content(self) -> _Raw:
        """The object that has `read`. The SDK expects it here for bodies that it streams."""
        return self

    async def read(self, size_bytes: int = -1) -> bytes:
        """Return the whole body. The SDK asks for all of it, because this backend does."""
        assert size_bytes == -1
        try:
            return await self.reply.read()
        finally:
            self.reply.close()

    def close(self) -> None:
        """Give the connection back."""
        self.reply.close()


def _windows(body: Any) -> list[Buffer]:
    """Return the windows of a body in memory: of our own kind, bytes, or bytes that the SDK made a file."""
    if isinstance(body, WindowsBody):
        return list(body.windows)
    if isinstance(body, BytesIO):
        return [body.getvalue()]
    return [body] if body else []


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
