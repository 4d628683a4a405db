"""The requests of one store: gcsfs finds credentials, renews them and opens the session; we send.

Invariant: one call of `send` is one request on the wire, or none. gcsfs would repeat a request six times, a
conditional one too, so its calls are passed by; the HTTP library would repeat a GET, PUT or DELETE whose
connection drops, so the session has a middleware that ends this; redirects are not followed. Credentials
are sent to the endpoint and to nobody else.

gcsfs is imported here and nowhere earlier. While its support for zonal buckets is on, it asks at the first
use of a bucket which kind it is, over gRPC, where an emulator or a plain proxy never answers (60 s). We need
none of it, so it is off unless the environment says otherwise; and the class of `gcsfs.core` never asks.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isfile
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from google.auth.exceptions import GoogleAuthError, RefreshError
from google.oauth2.credentials import Credentials
from offload_cloud.bodies import SlicedBody, watched
from offload_cloud.options import shown
from yarl import URL

from offload.errors import Misuse
from offload_gcs.failures import Refused, Unusable
from offload_gcs.options import MODES, GcsOptions

# Read when gcsfs is imported, so it stands before.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError

RESUME: Final = 308
"""What a resumable upload answers while it waits for more."""


class DroppedByGcs(aiohttp.ClientConnectionError):
    """The connection ended without a reply. Whether the request was applied, nobody knows."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was read to its end."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; what came more than once is joined by commas."""

    data: bytes


class GcsClient:
    """Made with the store; opens its session at the first request, on the event loop that asks."""

    def __init__(self, options: GcsOptions) -> None:
        self.endpoint: Final = options.endpoint
        self._options = options
        self._proxy = _proxy_of(options)
        self._files: GCSFileSystem | None = None
        self._opening = asyncio.Lock()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | SlicedBody | None = None,
        may_resume: bool = False,
    ) -> Reply:
        """Send one request, and read its reply. `url` is taken as it is: what it holds is quoted already.

        `may_resume`: `RESUME` is an answer too, and elsewhere it is a redirect, which we do not follow.
        Raises `Refused` for a reply that is no success, and what `failures.FAILURES` names.
        """
        files = await self._opened()
        sent = {"User-Agent": "ledger-offload", "Accept-Encoding": "identity", **(headers or {})}
        if url.startswith(f"{self.endpoint}/") and files.credentials.credentials is not None:
            await asyncio.to_thread(_authorize, files, sent)  # may renew them, and blocks meanwhile
        session: aiohttp.ClientSession = await files._set_session()
        async with session.request(
            method,
            URL(url, encoded=True),
            headers=sent,
            data=watched(data, self._options.read_timeout_seconds),
            proxy=self._proxy,
            allow_redirects=False,
        ) as reply:
            body = await reply.read()
        if 200 <= reply.status < 300 or (may_resume and reply.status == RESUME):
            joined = {name.lower(): ", ".join(reply.headers.getall(name)) for name in reply.headers}
            return Reply(reply.status, joined, body)
        raise Refused(reply.status, body, retry_after=reply.headers.get("Retry-After", ""))

    async def aclose(self) -> None:
        """Close the connections. Idempotent; a later request opens them anew."""
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
        """A file system of this store's own: nothing is cached or shared. Finding credentials may block."""
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
            "auto_decompress": False,  # bytes are handed on as they were stored
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
            project="",  # where it differs from that of the credentials, gcsfs would do without any
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
        raise Unusable(f"they are of no kind that is known here ({type(exc).__name__})") from exc


def _token_of(options: GcsOptions) -> Any:
    """The credentials as gcsfs takes them.

    A bare access token is made into them here: gcsfs would first send it, in a URL, to another server.
    """
    if options.is_anonymous:
        return "anon"
    said = shown(options.token) or "google_default"
    if said in MODES or isfile(said):
        return said
    return json.loads(said) if said.lstrip().startswith("{") else Credentials(said)  # type: ignore[no-untyped-call]


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
    """Add the header of the credentials. gcsfs wraps what renewing them raises; the cause says more."""
    try:
        files.credentials.apply(sent)
    except (HttpError, NonRetryableError) as exc:
        retryable = getattr(exc.__cause__, "retryable", False)
        args = exc.__cause__.args if exc.__cause__ else ()
        raise RefreshError(*args, retryable=retryable) from exc  # type: ignore[no-untyped-call]


def _trusted(verify: bool | str) -> ssl.SSLContext | bool:
    """Whom to trust: the system's authorities, those of a file, or (False) everybody."""
    try:
        return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
    except OSError as exc:
        raise Misuse(f"gcs: option 'verify': {verify!r} holds no certificates that can be read") from exc


def _proxy_of(options: GcsOptions) -> str | None:
    """The proxy of the options, else that of the environment.

    Asked here, because with the environment's proxies the HTTP library would take logins from ~/.netrc.
    """
    address = urlsplit(options.endpoint)
    if options.proxy is not None or proxy_bypass(address.netloc):
        return shown(options.proxy)
    return getproxies().get(address.scheme)


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Give the HTTP library's own repetition nothing that it would repeat."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise DroppedByGcs(str(exc) or type(exc).__name__) from exc
