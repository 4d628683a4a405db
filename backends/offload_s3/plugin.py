"""What the S3 backend declares. Imports nothing of the store itself, and no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.plugin import Backend, hookimpl

OPTIONS: Final = (
    "client",
    "endpoint_url",
    "region",
    "profile",
    "key",
    "secret",
    "token",
    "anonymous",
    "addressing",
    "requester_pays",
    "verify",
    "proxy",
    "connect_timeout_seconds",
    "read_timeout_seconds",
    "connections_max",
    "sse",
    "sse_kms_key_id",
    "sse_bucket_key",
    "sse_c_key",
    "storage_class",
    "tags",
    "metadata",
    "part_size_bytes",
)
"""The fields of `S3Options`, whose module imports pydantic; a test holds one against the other."""

ADVICE: Final = (
    (
        "Give the bucket a lifecycle rule that aborts unfinished multipart uploads after seven days: a "
        "process that was killed leaves parts behind, which no listing shows and which are billed."
    ),
    (
        "Set no lifecycle rule that expires objects below this prefix, or moves roots and anchors to an "
        "archive: only `offload` knows which are needed."
    ),
    "Where the bucket keeps versions, let noncurrent ones expire: what is deleted stays billed until then.",
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Buckets, by `s3://bucket/prefix`."""
    return [
        Backend(
            name="s3",
            target="offload_s3.url:open_url",
            needs="ledger-offload[s3]",
            schemes=("s3",),
            options=OPTIONS,
            states={"server_checksum": "unknown"},  # servers that are not AWS's keep one, or do not
            advice=ADVICE,
        )
    ]
