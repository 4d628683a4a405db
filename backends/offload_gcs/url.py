"""From `gs://bucket/prefix` and options to a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from offload.contracts.store import ObjectStore, check_key
from offload.ground.errors import Misuse
from offload.store.prefix import PrefixStore
from offload_gcs.options import GcsOptions
from offload_gcs.store import GcsStore

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_url(url: str, *, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store that a URL names. Raises `Misuse` if it names none, or if an option is wrong."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise Misuse("a gs:// URL holds no credentials; give them by environment or the option `token`")
    if not _BUCKET.fullmatch(bucket):
        raise Misuse(f"{url!r} names no bucket: use gs://bucket/prefix")
    store = GcsStore(bucket=bucket, options=GcsOptions.of(options))
    prefix = prefix.strip("/")
    return PrefixStore(store, check_key(prefix)) if prefix else store
