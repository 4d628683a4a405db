"""The declarations of the S3 backend. Imports nothing of the store itself, and no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.plugin import Backend, hookimpl

OPTIONS: Final = (
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
"""The fields of `S3Options`, whose module imports pydantic. A test compares the two."""

ADVICE: Final = (
    (
        "Give the bucket a lifecycle rule that aborts unfinished multipart uploads after seven days: a "
        "killed process leaves parts behind, which no listing shows and which are billed."
    ),
    (
        "Set no lifecycle rule that expires objects below this prefix, or moves roots and anchors to an "
        "archive: only `offload` knows which are needed."
    ),
    "If the bucket keeps versions, let noncurrent ones expire: deleted objects are billed until then.",
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare buckets as tiers, by `s3://bucket/prefix`."""
    return [
        Backend(
            name="s3",
            target="offload_s3.url:open_url",
            needs="ledger-offload[s3]",
            schemes=("s3",),
            options=OPTIONS,
            states={"server_checksum": "unknown"},  # some servers other than AWS keep none
            advice=ADVICE,
        )
    ]
