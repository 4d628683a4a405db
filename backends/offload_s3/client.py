"""The client behind a bucket: s3fs finds credentials and opens it, with our limits and none of its caches.

Invariant: one call is one request on the wire. The HTTP library would send a PUT or a GET again by
itself where a connection drops, and follow redirects; that is switched off, so that a create goes out
once, and so that an error of connecting means that nothing was sent. One exception is the client's own:
a request that is refused by a reply which names another region goes once more, there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import aiohttp
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError
from botocore.loaders import Loader, create_loader
from offload_cloud.bodies import watched
from offload_cloud.options import shown

from offload_s3.options import S3Options


class DroppedByS3(aiohttp.ClientPayloadError):
    """The connection ended without a reply. Whether the request was applied, nobody knows."""


class OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # its package ships no types
    """Sends each request once and follows no redirect, which could lead secrets to a stranger."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Once(await super()._get_session(proxy_url))


class _Once:
    """A session whose requests are not repeated by the library itself."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def request(self, *args: Any, data: Any = None, **kwargs: Any) -> Any:
        body = watched(data, self._session.timeout.sock_read)
        return self._session.request(*args, data=body, allow_redirects=False, middlewares=(_once,), **kwargs)


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Give the HTTP library's own repetition nothing that it would repeat."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise DroppedByS3(str(exc) or type(exc).__name__) from exc


def file_system(options: S3Options) -> s3fs.S3FileSystem:
    """A file system of this store's own, bound to the running event loop; nothing is cached or shared."""
    return s3fs.S3FileSystem(
        asynchronous=True,
        session=_session(options.profile),
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
        config_kwargs=_configuration(options),
    )


def _session(profile: str | None) -> AioSession:
    """A session of this store's own; the SDK's description of S3 is read and parsed once for all of them.

    Parsing it for each client took three quarters of the time in which a client opens.
    """
    session = AioSession(profile=profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


async def opened(files: s3fs.S3FileSystem) -> Any:
    """The client of a file system of ours, made on first use."""
    client = await files.set_session()
    client.meta.events.register_first("before-call.s3.HeadBucket", _look_no_further, unique_id="offload")
    client.meta.events.register_last("before-call.s3", _do_not_ask_to_go_on, unique_id="offload-expect")
    return client


def _do_not_ask_to_go_on(params: dict[str, Any], **event: Any) -> None:
    """No `Expect: 100-continue` on bodies that read like files: a server that knows it not is waited for."""
    params["headers"].pop("Expect", None)


def _look_no_further(**event: Any) -> None:
    """Stop the client where it would ask for a bucket's region: each answer may make it ask again."""
    raise ClientError({"ResponseMetadata": {"HTTPHeaders": {}}}, "HeadBucket")


def _configuration(options: S3Options) -> dict[str, Any]:
    proxy = shown(options.proxy)
    return {
        "http_session_cls": OneRequestSession,
        "retries": {"total_max_attempts": 1},  # ours stand before the store, in one place
        "connect_timeout": options.connect_timeout_seconds,
        "read_timeout": options.read_timeout_seconds,
        "max_pool_connections": options.connections_max,
        "s3": {"addressing_style": options.addressing},
        "proxies": {"http": proxy, "https": proxy} if proxy else None,
        # We send CRC-32C ourselves, and check our own on the way back: servers differ in both.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
