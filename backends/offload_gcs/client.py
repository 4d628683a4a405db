"""The requests of one store: gcsfs finds and renews credentials, and the byte transport sends.

Invariants:

- One call is one request on the wire, or none (`offload_cloud.exchange`). gcsfs would repeat a request six
  times, a conditional one too, so its calls are not used.
- Credentials go to the endpoint and to no other server.
- A partial reply has at most as many bytes as were asked for, or is an error before memory is taken for it.
- An error leaves no reply open.

gcsfs is imported here and nowhere earlier. If its support for zonal buckets is on, it asks over gRPC which
kind a bucket is, at the first use. An emulator or a plain proxy never answers that (60 s). This backend needs
no zonal buckets, so the support is off unless the environment turns it on. The class of `gcsfs.core` never
asks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import isfile
from typing import Any, Final

from google.auth.exceptions import GoogleAuthError, RefreshError
from google.oauth2.credentials import Credentials
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.long_reads import RangeReply, range_reply
from offload_cloud.options import shown
from offload_cloud.proxies import proxy_for
from offload_cloud.ranges import PART, range_of, size_asked_for
from offload_cloud.tls import trusting
from offload_cloud.transport import Transport, TransportReply

from offload.contracts.store import Buffer, Span
from offload.ground.errors import TryAgain
from offload.ground.outside import json_outside
from offload_gcs.failures import BEYOND_THE_END, NOT_FROM_GCS, Refused, Unusable
from offload_gcs.options import MODES, GcsOptions

# Before the import, because gcsfs reads the variable when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError

RESUME: Final = 308
"""The status of a resumable upload that waits for more bytes."""

BYTES: Final = "application/octet-stream"


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


def is_bytes(headers: Mapping[str, str]) -> bool:
    """Return True if a reply with these headers, in lower case, has the bytes of an object (`proofs`)."""
    return headers.get("content-type") == BYTES or any(name.startswith("x-goog-") for name in headers)


class GcsClient:
    """The client of one store. It finds its credentials at the first request, and may block meanwhile."""

    def __init__(self, options: GcsOptions) -> None:
        self.endpoint: Final = options.endpoint
        self._options = options
        self.proxy: Final = proxy_for(options.endpoint, shown(options.proxy), backend="gcs")
        """The proxy's URL, which may hold a login."""

        self._files: GCSFileSystem | None = None
        self._opening = asyncio.Lock()
        self._transport = Transport(
            limits=TimeLimits(
                connect_seconds=options.connect_timeout_seconds, stall_seconds=options.read_timeout_seconds
            ),
            connections_max=options.connections_max,
            context=lambda: trusting(options.verify, backend="gcs"),
        )

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
        async with await self._begun(method, url, headers or {}, body, may_resume) as reply:
            return GcsReply(reply.status, reply.headers, await reply.read())

    async def read(self, url: str, span: Span, *, where: str) -> RangeReply | None:
        """Send one GET for a span, and return its reply while the body is on its way.

        Returns None for a span beyond the object's end.
        """
        wanted = range_of(span)
        assert wanted is not None
        try:
            reply = await self._begun("GET", url, {"Range": wanted}, (), False)
        except Refused as exc:
            if exc.status == BEYOND_THE_END:
                return None
            raise
        if not is_bytes(reply.headers):
            reply.close()
            raise TryAgain(f"{where}: {NOT_FROM_GCS}")
        return range_reply(
            reply,
            span,
            status=reply.status,
            content_range=reply.headers.get("content-range"),
            size_bytes=reply.check_body(),
            where=where,
        )

    async def credentials(self) -> Any:
        """Return the credentials of the SDK; None if requests are anonymous."""
        return (await self._opened()).credentials.credentials

    async def aclose(self) -> None:
        """Close the connections. Idempotent; a later request opens new ones."""
        await self._transport.aclose()

    async def _begun(
        self, method: str, url: str, headers: Mapping[str, str], body: Sequence[Buffer], may_resume: bool
    ) -> TransportReply:
        """Send one request, and return the head of its reply. Raises `Refused` for an error reply."""
        sent = Request(method=method, url=url, headers=await self._headers_for(url, headers), body=body)
        reply = await self._transport.ask(sent, proxy=self.proxy)
        try:
            if not (200 <= reply.status < 300 or (may_resume and reply.status == RESUME)):
                refusal, retry_after = await reply.read(), reply.headers.get("retry-after", "")
                raise Refused(reply.status, refusal, retry_after=retry_after)
            reply.check_body(size_asked_for(headers.get("Range", "")) if reply.status == PART else None)
        except BaseException:
            reply.close()
            raise
        return reply

    async def _headers_for(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request, with the credentials if it goes to the endpoint."""
        files = await self._opened()
        sent = {"User-Agent": "ledger-offload", "Accept-Encoding": "identity", **headers}
        if url.startswith(f"{self.endpoint}/") and files.credentials.credentials is not None:
            await asyncio.to_thread(_authorize, files, sent)  # may renew them, and blocks meanwhile
        return sent

    async def _opened(self) -> GCSFileSystem:
        async with self._opening:
            if self._files is None:
                files = await asyncio.to_thread(_file_system, self._options)
                _make_sure_of_project(files, self._options)
                self._files = files
            return self._files


def _file_system(options: GcsOptions) -> GCSFileSystem:
    """Return a file system for this store alone. Its session stays closed."""
    try:
        return GCSFileSystem(
            project="",  # gcsfs ignores credentials of another project; `_make_sure_of_project` compares
            access="read_write",
            token=_token_of(options),
            endpoint_url=options.endpoint,
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
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
