"""The client behind a bucket: s3fs finds credentials and opens it, with our limits and none of its caches."""

from __future__ import annotations

from typing import Any

import s3fs
from offload_cloud.options import shown

from offload_s3.options import S3Options


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
        client_kwargs={"region_name": options.region, "verify": options.verify},
        config_kwargs=_configuration(options),
        **({"profile": options.profile} if options.profile else {}),
    )


def _configuration(options: S3Options) -> dict[str, Any]:
    return {
        "retries": {"total_max_attempts": 1},  # ours stand before the store, in one place
        "connect_timeout": options.connect_timeout_seconds,
        "read_timeout": options.read_timeout_seconds,
        "max_pool_connections": options.connections_max,
        "s3": {"addressing_style": options.addressing},
        "proxies": {"http": options.proxy, "https": options.proxy} if options.proxy else None,
        # We send CRC-32C ourselves, and check our own on the way back: servers differ in both.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
