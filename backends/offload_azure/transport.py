"""The transport of requests: it sends each of them once, and reads each reply to its end.

The HTTP library repeats a GET, PUT or DELETE whose connection drops. Azure's client repeats a read whose
body breaks off. Both would hide from the caller that a request was sent twice. Both are prevented here: the
library meets an error after which it repeats nothing, and the body is read where the request is sent, before
the client's own loop could ask again.

Invariant: no error that leaves this module has a URL's query in its text, because a token is in the query.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType
from azure.core.exceptions import ServiceResponseTimeoutError
from azure.core.pipeline.transport import AioHttpTransport
from offload_cloud.bodies import sliced, watched
from offload_cloud.proxies import proxy_for
from offload_cloud.slow import request_seconds

from offload.contracts.store import Buffer

NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors of connecting: the server received nothing."""


_CONTENT_RANGE: Final = re.compile(r"bytes [0-9]{1,20}-([0-9]{1,20}|-1)/[0-9]{1,20}")


class ProxyRefused(aiohttp.ClientError):
    """The proxy answered instead of the server."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


async def once(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request. Turn errors after which the library would send it again into others."""
    try:
        return await handler(request)
    except aiohttp.ConnectionTimeoutError:
        raise aiohttp.ConnectionTimeoutError(f"no connection to {request.url.host} in time") from None
    except aiohttp.ClientHttpProxyError as exc:
        raise ProxyRefused(exc.status) from None
    except aiohttp.ClientResponseError as exc:
        raise aiohttp.ClientConnectionError(f"the reply is not HTTP: {exc.message}") from None
    except aiohttp.ClientConnectorError:
        raise  # kept apart: nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise aiohttp.ClientConnectionError(f"{type(exc).__name__}: {exc}") from None


class OneRequestTransport(AioHttpTransport):  # type: ignore[misc]  # its package names it late, without types
    """A transport that reads every body at once. It belongs to the event loop on which it is made."""

    def __init__(
        self,
        *,
        verify: bool | str,
        connections_max: int,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
        proxy: str | None,
    ) -> None:
        session = aiohttp.ClientSession(
            # Not by `connection_verify`, which makes a TLS context, and so a connection, for every request.
            connector=aiohttp.TCPConnector(limit=connections_max, ssl=_tls(verify)),
            middlewares=(once,),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        super().__init__(
            session=session,
            session_owner=True,
            connection_timeout=connect_timeout_seconds,
            read_timeout=read_timeout_seconds,
        )
        self._stall_seconds, self._proxy = read_timeout_seconds, proxy

    async def send(
        self, request: Any, *, stream: bool = False, windows: Sequence[Buffer] | None = None, **config: Any
    ) -> Any:
        """Send a request and read its reply to the end, even if the caller asks for a stream.

        `windows` are the body, instead of that of the request.
        """
        body = request.data if windows is None else sliced(windows)
        request.data = watched(body, self._stall_seconds)
        proxy = proxy_for(request.url, self._proxy, backend="azure")
        seconds = request_seconds(
            self._stall_seconds, request.method, request.headers, range_header="x-ms-range"
        )
        try:
            async with asyncio.timeout(seconds):
                response = await super().send(request, stream=False, proxy=proxy, **config)
        except TimeoutError as exc:
            raise ServiceResponseTimeoutError("the whole request took too long", error=exc) from exc
        drop_odd_range(response.headers)
        return response


def drop_odd_range(headers: MutableMapping[str, str]) -> None:
    """Remove a header `Content-Range` that the SDK cannot read. It reports a missing one in a clear way."""
    if not _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "")):
        headers.pop("Content-Range", None)


def _tls(verify: bool | str) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
