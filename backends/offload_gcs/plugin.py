"""The declarations of the GCS backend. Imports nothing of the store itself, and no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.plugin import Backend, hookimpl

OPTIONS: Final = (
    "endpoint_url",
    "project",
    "anonymous",
    "token",
    "user_project",
    "kms_key_name",
    "storage_class",
    "metadata",
    "verify",
    "proxy",
    "connect_timeout_seconds",
    "read_timeout_seconds",
    "connections_max",
)
"""The fields of `GcsOptions`, whose module imports pydantic. A test compares the two."""

ADVICE: Final = (
    "New buckets have soft delete on: deleted objects are kept and billed for seven days, unless it is off.",
    "Set no lifecycle rule that deletes objects below this prefix: only `offload` knows which are needed.",
    "Set no retention policy or hold: an upload whose reply was lost is repeated, and replaces its object.",
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare buckets as tiers, by `gs://bucket/prefix`."""
    return [
        Backend(
            name="gcs",
            target="offload_gcs.url:open_url",
            needs="ledger-offload[gcs]",
            schemes=("gs", "gcs"),
            options=OPTIONS,
            advice=ADVICE,
        )
    ]
