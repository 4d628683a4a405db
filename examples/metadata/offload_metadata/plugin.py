"""The plugin: it declares both backends, and imports no client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload import Backend, RecordLimits, hookimpl

KIB: Final = 1024

ETCD_REQUEST_SIZE_BYTES_MAX: Final = 1536 * KIB
"""The largest request that etcd takes, unless its `--max-request-bytes` says otherwise."""

# A request has the key three times, each with the name of the records, and some 100 bytes around them.
ETCD: Final = RecordLimits(
    value_size_bytes_max=ETCD_REQUEST_SIZE_BYTES_MAX - 4 * KIB, delete_batch_max=60
)  # etcd's `--max-txn-ops` is 128, and each key takes two operations
POSTGRES: Final = RecordLimits(value_size_bytes_max=16 * KIB * KIB, delete_batch_max=1000)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare `etcd://HOST:PORT/NAME`, `etcds://` for TLS, and `postgresql://HOST:PORT/DATABASE/NAME`."""
    return [
        Backend(
            name="etcd",
            schemes=("etcd", "etcds"),
            target="offload_metadata.etcd:open_url",
            options=("user", "password", "cacert", "cert", "key", "timeout"),
            capabilities=ETCD.capabilities,
        ),
        Backend(
            name="postgresql",
            schemes=("postgresql",),
            target="offload_metadata.postgres:open_url",
            options=("user", "password", "timeout"),
            capabilities=POSTGRES.capabilities,
        ),
    ]
