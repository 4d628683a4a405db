"""From `s3://bucket/prefix` and options to a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.contracts.store import ObjectStore, check_key
from offload.ground.errors import Misuse
from offload.store.prefix import PrefixStore
from offload_s3.options import S3Options
from offload_s3.store import S3Store


def open_url(url: str, *, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store that a URL names. Raises `Misuse` if it names none, or if an option is wrong."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise Misuse("an s3:// URL holds no credentials; give them by environment, profile or options")
    if not bucket:
        raise Misuse(f"{url!r} names no bucket: use s3://bucket/prefix")
    store = S3Store(bucket=bucket, options=S3Options.of(options))
    prefix = prefix.strip("/")
    return PrefixStore(store, check_key(prefix)) if prefix else store
