"""The requests of one store: gcsfs finds and renews credentials and opens the session; this module sends.

Invariants: one call of `send` is one request on the wire, or none; credentials go to the endpoint and to no
other server. Three repetitions are switched off for the first one:

    gcsfs repeats a request six times, a conditional one too     its calls are not used
    the HTTP library repeats a GET, PUT or DELETE that drops     the session has the middleware `_once`
    the HTTP library follows redirects                           `allow_redirects` is False

gcsfs is imported here and nowhere earlier. If its support for zonal buckets is on, it asks over gRPC which
kind a bucket is, at the first use. An emulator or a plain proxy never answers that (60 s). This backend needs
no zonal buckets, so the support is off unless the environment turns it on. The class of `gcsfs.core` never
asks.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import isfile
from typing import Any, Final

import aiohttp
from google.auth.exceptions import GoogleAuthError, RefreshError
from google.oauth2.credentials import Credentials
from offload_cloud.bodies import sliced, watched
from offload_cloud.options import shown
from offload_cloud.proxies import proxy_for
from offload_cloud.slow import request_seconds
from offload_cloud.tls import trusting
from yarl import URL

from offload.contracts.store import Buffer
from offload.ground.errors import Misuse
from offload.ground.outside import json_outside
from offload_gcs.failures import Refused, Unusable
from offload_gcs.options import MODES, GcsOptions

# Before the import, because gcsfs reads the variable when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError

RESUME: Final = 308
"""The status of a resumable upload that waits for more bytes."""


class DroppedByGcs(aiohttp.ClientConnectionError):
    """The connection ended without a reply. The request may or may not have been applied."""


@dataclass(frozen=True)
class GcsReply:
    """A complete reply."""

    status: int
    headers: Mapping[str, str]
    """The headers, by lower-case name. Values of a repeated header are joined by commas."""

    data: bytes

    @cached_property
    def said(self) -> Mapping[str, Any]:
        """The JSON object in the body; an empty one if there is none, which proves nothing (`proofs`)."""
        try:
            found = json_outside(self.data, size_bytes_max=len(self.data))  # the exchange bounds it
        except ValueError:  # a page, or a reply that is cut short
            return {}
        return found if isinstance(found, dict) else {}


def is_success(status: int, *, may_resume: bool) -> bool:
    """Return True if a reply of this status is no refusal."""
    return 200 <= status < 300 or (may_resume and status == RESUME)


class GcsClient:
    """The client of one store. It opens its session at the first request, on the running event loop."""

    def __init__(self, options: GcsOptions) -> None:
        self.endpoint: Final = options.endpoint
        self._options = options
        self.proxy: Final = proxy_for(options.endpoint, shown(options.proxy), backend="gcs")
        """The proxy's URL, which may hold a login."""

        self._files: GCSFileSystem | None = None
        self._opening = asyncio.Lock()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        may_resume: bool = False,
    ) -> GcsReply:
        """Send one request, and read its reply. `url` must be quoted already. `body` has windows of any size.

        `may_resume`: `RESUME` counts as success. For other requests it is a redirect, which is not followed.
        Raises `Refused` for an error reply, and the errors of `failures.FAILURES`.
        """
        sent = await self.headers_for(url, headers or {})
        session: aiohttp.ClientSession = await (await self._opened())._set_session()
        limits, sized = session.timeout, {**sent, "Content-Length": str(sum(map(len, body)))}
        total = request_seconds(self._options.read_timeout_seconds, method, sized)
        async with session.request(
            method,
            URL(url, encoded=True),
            headers=sent,
            data=watched(sliced(body), self._options.read_timeout_seconds) if body else None,
            proxy=self.proxy,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=total, sock_connect=limits.sock_connect, sock_read=limits.sock_read
            ),
        ) as reply:
            data = await reply.read()
        if not is_success(reply.status, may_resume=may_resume):
            raise Refused(reply.status, data, retry_after=reply.headers.get("Retry-After", ""))
        joined = {name.lower(): ", ".join(reply.headers.getall(name)) for name in reply.headers}
        return GcsReply(reply.status, joined, data)

    async def headers_for(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request, with the credentials if it goes to the endpoint."""
        files = await self._opened()
        sent = {"User-Agent": "ledger-offload", "Accept-Encoding": "identity", **headers}
        if url.startswith(f"{self.endpoint}/") and files.credentials.credentials is not None:
            await asyncio.to_thread(_authorize, files, sent)  # may renew them, and blocks meanwhile
        return sent

    async def credentials(self) -> Any:
        """Return the credentials of the SDK; None if requests are anonymous."""
        return (await self._opened()).credentials.credentials

    async def aclose(self) -> None:
        """Close the connections. Idempotent; a later request opens new ones."""
        async with self._opening:
            files, self._files = self._files, None
            if files is not None:
                session: aiohttp.ClientSession = await files._set_session()
                await session.close()

    async def _opened(self) -> GCSFileSystem:
        async with self._opening:
            if self._files is None:
                self._files = await self._open()
            return self._files

    async def _open(self) -> GCSFileSystem:
        """Return a file system for this store alone, without caches. Finding credentials may block."""
        options = self._options
        connector = aiohttp.TCPConnector(limit=options.connections_max, ssl=_trusted(options.verify))
        session = {
            "connector": connector,
            "timeout": aiohttp.ClientTimeout(
                total=None,
                sock_connect=options.connect_timeout_seconds,
                sock_read=options.read_timeout_seconds,
            ),
            "cookie_jar": aiohttp.DummyCookieJar(),
            "auto_decompress": False,  # a read returns the bytes as they were stored
            "middlewares": (_once,),
        }
        try:
            files = await asyncio.to_thread(_file_system, options, session)
            _make_sure_of_project(files, options)
        except BaseException:
            await connector.close()
            raise
        return files


def _file_system(options: GcsOptions, session: dict[str, Any]) -> GCSFileSystem:
    try:
        return GCSFileSystem(
            project="",  # gcsfs ignores credentials of another project; `_make_sure_of_project` compares
            access="read_write",
            token=_token_of(options),
            endpoint_url=options.endpoint,
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
            session_kwargs=session,
        )
    except GoogleAuthError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as exc:
        raise Unusable(f"their kind is not known here ({type(exc).__name__})") from exc


def _token_of(options: GcsOptions) -> Any:
    """Return the credentials in a form that gcsfs accepts.

    A bare access token becomes credentials here: gcsfs would first send it to another server, in a URL.
    """
    if options.is_anonymous:
        return "anon"
    said = shown(options.token) or "google_default"
    if said in MODES or isfile(said):
        return said
    return json_outside(said) if said.lstrip().startswith("{") else Credentials(said)  # type: ignore[no-untyped-call]


def _make_sure_of_project(files: GCSFileSystem, options: GcsOptions) -> None:
    credentials = files.credentials.credentials
    if credentials is None and not options.is_anonymous:
        raise Unusable("there are none")
    found = getattr(credentials, "project_id", None) or files.project
    if options.project and found and found != options.project:
        raise Unusable(
            f"they are of the project {found!r}, and the option `project` wants {options.project!r}"
        )


def _authorize(files: GCSFileSystem, sent: dict[str, str]) -> None:
    """Add the credentials' header. gcsfs wraps the errors of a renewal; their cause says what is wrong."""
    try:
        files.credentials.apply(sent)
    except (HttpError, NonRetryableError) as exc:
        retryable = getattr(exc.__cause__, "retryable", False)
        args = exc.__cause__.args if exc.__cause__ else ()
        raise RefreshError(*args, retryable=retryable) from exc  # type: ignore[no-untyped-call]


def _trusted(verify: bool | str) -> ssl.SSLContext | bool:
    """Return the context of a file of authorities. aiohttp has its own for the system's and for any."""
    try:
        return trusting(verify) if isinstance(verify, str) else verify
    except OSError as exc:
        raise Misuse(f"gcs: option 'verify': {verify!r} holds no readable certificates") from exc


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Turn the errors after which the HTTP library would send a request again into one that it raises.

    The server may have applied the first request, and a repeated create would meet its own object.
    """
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise  # kept apart: nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise DroppedByGcs(str(exc) or type(exc).__name__) from exc
