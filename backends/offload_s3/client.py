"""The client of a bucket: s3fs finds the credentials and opens it, with our limits and without its caches.

Invariant: one call is one request on the wire (`offload_cloud.exchange`), so a create is sent once, and an
error while connecting means that nothing was sent. There is one exception: if a reply refuses a request and
names another region, the client sends the request there once.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import md5
from typing import Any

import s3fs
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError
from botocore.loaders import Loader, create_loader
from offload_cloud.options import shown

from offload_s3.options import S3Options
from offload_s3.session import TransportSession


def file_system(
    options: S3Options, *, session: AioSession | None = None, signs_bodies: bool = True
) -> s3fs.S3FileSystem:
    """Return a file system for this store alone, bound to the running event loop, without any cache.

    `session` is that of another file system, to share its credentials. Without `signs_bodies` the SDK does
    not read the bodies of requests: each put has a CRC-32C in a signed header, which the server compares with
    the bytes.
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
        config_kwargs=_configuration(options, signs_bodies=signs_bodies),
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


def _configuration(options: S3Options, *, signs_bodies: bool) -> dict[str, Any]:
    proxy = shown(options.proxy)
    unsigned = {} if signs_bodies else {"payload_signing_enabled": False}
    return {
        "http_session_cls": TransportSession,
        "retries": {"total_max_attempts": 1},  # `RetryingStore` retries, for all clients in one place
        "connect_timeout": options.connect_timeout_seconds,
        "read_timeout": options.read_timeout_seconds,
        "max_pool_connections": options.connections_max,
        "s3": {"addressing_style": options.addressing, **unsigned},
        "proxies": {"http": proxy, "https": proxy} if proxy else None,
        # The store sends CRC-32C itself, and checks it after a read: servers differ in both.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
