"""The client behind a bucket: s3fs finds credentials and opens it, with our limits and none of its caches.

Invariant: one call is one request on the wire. The HTTP library would send a PUT or a GET again by
itself where a connection drops; that is switched off, so that a create goes out once, and so that an
error of connecting means that nothing was sent. One exception is the client's own: a request that is
refused because the bucket is in another region goes once more, there.
"""

from __future__ import annotations

from typing import Any

import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from offload_cloud.options import shown

from offload_s3.options import S3Options


class OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # its package ships no types
    """Sends each request once. The library has no public switch; a test on the wire holds this one."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


def file_system(options: S3Options) -> s3fs.S3FileSystem:
    """A file system of this store's own, bound to the running event loop; nothing is cached or shared."""
    return s3fs.S3FileSystem(
        asynchronous=True,
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
        **({"profile": options.profile} if options.profile else {}),
    )


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
