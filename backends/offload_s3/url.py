"""From `s3://bucket/prefix` and options to a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload_cloud.choice import takes_obstore

from offload.contracts.store import ObjectStore, check_key
from offload.errors import Misuse
from offload.store.prefix import PrefixStore
from offload_s3.fast import fast_store, why_not_fast
from offload_s3.options import S3Options
from offload_s3.store import S3Store


def open_url(url: str, *, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store that a URL names. Raises `Misuse` if it names none, or if an option is wrong."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise Misuse("an s3:// URL holds no credentials; give them by environment, profile or options")
    if not bucket:
        raise Misuse(f"{url!r} names no bucket: use s3://bucket/prefix")
    store = open_bucket(bucket, S3Options.of(options))
    prefix = prefix.strip("/")
    return PrefixStore(store, check_key(prefix)) if prefix else store


def open_bucket(bucket: str, options: S3Options) -> ObjectStore:
    """Return the store of a bucket. The options choose the client for its fragments."""
    store = S3Store(bucket=bucket, options=options)
    return fast_store(store) if takes_obstore(options.client, why_not_fast(options), backend="s3") else store
