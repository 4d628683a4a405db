"""The client of a bucket: s3fs finds the credentials and opens it, with our limits and without its caches.

Invariant: one call is one request on the wire. By itself the HTTP library would send a PUT or a GET again
after a dropped connection, and follow redirects. Both are switched off. So a create is sent once, and an
error while connecting means that nothing was sent. There is one exception: if a reply refuses a request and
names another region, the client sends the request there once.
"""

from __future__ import annotations

import os
from base64 import b64encode
from functools import cache, lru_cache
from hashlib import md5
from ssl import SSLContext
from typing import Any

import aiohttp
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader, create_loader
from offload_cloud.bodies import watched
from offload_cloud.options import shown
from offload_cloud.slow import request_seconds

from offload_s3.options import S3Options


class DroppedByS3(aiohttp.ClientPayloadError):
    """The connection ended without a reply. The request may or may not have been applied."""


class OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # its package ships no types
    """A session that sends each request once. It follows no redirect, which could send secrets elsewhere."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Once(await super()._get_session(proxy_url))

    def _build_ssl_contexts(self, proxy_url: str | None) -> Any:
        # A context that loads a certificate of its own is not shared: loading changes it.
        if not self._verify or self._cert_file or proxy_url:
            return super()._build_ssl_contexts(proxy_url)
        return _trusting(self._verify, os.stat(get_cert_path(self._verify)).st_mtime_ns), None


@lru_cache(maxsize=8)
def _trusting(verify: bool | str, modified_ns: int) -> SSLContext:
    """Return the context of all clients that trust these authorities, unless their file has changed.

    Parsing the file took a fifth of the CPU time in which a store opens, answers a few requests, and closes.
    """
    context: SSLContext = AIOHTTPSession(verify)._build_verify_context()
    return context


class _Once:
    """A session whose requests the HTTP library does not repeat."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def request(self, method: str, *args: Any, data: Any = None, headers: Any, **kwargs: Any) -> Any:
        limits = self._session.timeout
        body = watched(data, limits.sock_read)
        total = request_seconds(limits.sock_read or 0.0, method, headers)
        return self._session.request(
            method,
            *args,
            data=body,
            headers=headers,
            allow_redirects=False,
            middlewares=(_once,),
            timeout=aiohttp.ClientTimeout(
                total=total, sock_connect=limits.sock_connect, sock_read=limits.sock_read
            ),
            **kwargs,
        )


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Turn the errors after which the HTTP library would send a request again into one that it raises.

    aiohttp repeats an idempotent request, PUT included, if a kept-alive connection drops. The server may
    have applied the first one, and the second would then meet its own object.
    """
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError):
        raise  # kept apart: the first two mean that nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise DroppedByS3(str(exc) or type(exc).__name__) from exc


def file_system(
    options: S3Options, *, session: AioSession | None = None, **configuration: Any
) -> s3fs.S3FileSystem:
    """Return a file system for this store alone, bound to the running event loop, without any cache.

    `session` is that of another file system, to share its credentials. `configuration` overrides ours.
    """
    return s3fs.S3FileSystem(
        asynchronous=True,
        session=session or _session(options.profile),
        skip_instance_cache=True,
        use_listings_cache=False,
        anon=options.anonymous,
        key=shown(options.key),
        secret=shown(options.secret),
        token=shown(options.token),
        endpoint_url=options.endpoint_url,
        client_kwargs={
            "region_name": options.region,
            "verify": None if options.verify is True else options.verify,
        },
        config_kwargs=_configuration(options) | configuration,
    )


def _session(profile: str | None) -> AioSession:
    """Return a session for this store alone. All of them share the SDK's description of S3, parsed once.

    Parsing it for each client took three quarters of the time in which a client opens.
    """
    session = AioSession(profile=profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


async def opened(files: s3fs.S3FileSystem) -> Any:
    """Return the client of a file system of ours, made on first use."""
    client = await files.set_session()
    client.meta.events.register_first("before-call.s3.HeadBucket", _look_no_further, unique_id="offload")
    client.meta.events.register_last("before-call.s3", _do_not_ask_to_go_on, unique_id="offload-expect")
    client.meta.events.register_last("before-call.s3.DeleteObjects", _sum, unique_id="offload-md5")
    return client


def _do_not_ask_to_go_on(params: dict[str, Any], **event: Any) -> None:
    """Send no `Expect: 100-continue`: the client would wait for a server that does not know the header.

    The client adds it to every body that reads like a file.
    """
    params["headers"].pop("Expect", None)


def _sum(params: dict[str, Any], **event: Any) -> None:
    """Send Content-MD5 with DeleteObjects: older and other servers refuse the request without it.

    The client sends a newer checksum alone, which they do not know. AWS takes both. The last to see the body:
    the client changes it once more for characters that XML cannot hold.
    """
    digest = md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = b64encode(digest).decode()


def _look_no_further(**event: Any) -> None:
    """Stop the client's own request for a bucket's region: each answer may make it ask again."""
    raise ClientError({"ResponseMetadata": {"HTTPHeaders": {}}}, "HeadBucket")


def _configuration(options: S3Options) -> dict[str, Any]:
    proxy = shown(options.proxy)
    return {
        "http_session_cls": OneRequestSession,
        "retries": {"total_max_attempts": 1},  # `RetryingStore` retries, for all clients in one place
        "connect_timeout": options.connect_timeout_seconds,
        "read_timeout": options.read_timeout_seconds,
        "max_pool_connections": options.connections_max,
        "s3": {"addressing_style": options.addressing},
        "proxies": {"http": proxy, "https": proxy} if proxy else None,
        # The store sends CRC-32C itself, and checks it after a read: servers differ in both.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
