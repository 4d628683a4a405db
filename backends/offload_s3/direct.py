"""A bucket's large bodies by the byte transport, signed and parsed by the same SDK as all other requests.

The SDK builds each request: address, headers of options, credentials, signature. It hands the request to an
HTTP session, and reads the reply from it. `DirectSession` is such a session over `offload_cloud.direct`. So
errors, regions, proxies and authorities are those of the fsspec client, and the same tests hold for both.

Only reads, puts of fragments and parts go this way. Their payload is not signed, because each put has a
CRC-32C in a signed header, which the server compares with the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from typing import Any, Final

import s3fs
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.session import AioSession
from offload_cloud.bodies import SlicedBody
from offload_cloud.direct import Direct, DirectReply
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.ranges import PART, size_asked_for

from offload.contracts.store import Buffer
from offload.ground.errors import TryAgain
from offload_s3.client import OneRequestSession, file_system
from offload_s3.options import S3Options

__all__ = ["DirectSession", "data_file_system", "reply_of", "safely_parsed"]

# A variable of the context, because the SDK lies between the caller and the session.
_opened: Final[ContextVar[list[DirectReply] | None]] = ContextVar("_opened", default=None)


def data_file_system(options: S3Options, session: AioSession) -> s3fs.S3FileSystem:
    """Return a file system whose requests go by the byte transport, with the credentials of `session`."""
    addressing = {"addressing_style": options.addressing}
    return file_system(
        options,
        session=session,
        http_session_cls=DirectSession,
        s3=addressing | {"payload_signing_enabled": False},
    )


class DirectSession(OneRequestSession):
    """An HTTP session of the SDK that sends by the byte transport, and never by its HTTP library."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of the SDK's own session."""
        super().__init__(*args, **kwargs)
        self._direct = Direct(
            limits=TimeLimits(
                connect_seconds=self._timeout.sock_connect, stall_seconds=self._timeout.sock_read
            ),
            connections_max=self._max_pool_connections,
            context=lambda: self._build_ssl_contexts(None)[0],
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._direct.aclose()
        await super().close()

    async def send(self, request: Any) -> AioAWSResponse:
        """Send a request, and return the head of its reply. A body that the SDK does not stream is read."""
        sent = Request(
            method=request.method,
            url=request.url,
            headers={name: _text(value) for name, value in request.headers.items()},
            body=_windows(request.body),
        )
        reply = await self._direct.ask(sent, proxy=self._proxy_config.proxy_url_for(request.url))
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


@contextmanager
def safely_parsed(where: str) -> Iterator[None]:
    """Close the replies to requests inside if an error ends the block.

    The SDK drops a reply whose headers it cannot parse, and leaves its body open. That is `TryAgain`.
    """
    opened: list[DirectReply] = []
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


def reply_of(body: Any) -> DirectReply:
    """Return the reply whose body the SDK hands to its caller. The SDK then reads none of it."""
    raw = getattr(body, "raw_stream", body)  # before aiobotocore 3, the body stands for the raw one itself
    reply = raw.reply
    assert isinstance(reply, DirectReply), "the SDK hands over another body than it was given"
    return reply


class _Raw:
    """The body of a reply, with the few methods that the SDK calls."""

    def __init__(self, reply: DirectReply) -> None:
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
    if isinstance(body, SlicedBody):
        return list(body.windows)
    if isinstance(body, BytesIO):
        return [body.getvalue()]
    return [body] if body else []


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
