"""The declarations of the Azure backend. Imports nothing of the store itself, and no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.plugin import Backend, hookimpl

OPTIONS: Final = (
    "account_name",
    "account_key",
    "sas_token",
    "connection_string",
    "tenant_id",
    "client_id",
    "client_secret",
    "anonymous",
    "account_host",
    "endpoint_url",
    "api_version",
    "hierarchical_namespace",
    "verify",
    "proxy",
    "connect_timeout_seconds",
    "read_timeout_seconds",
    "connections_max",
    "encryption_scope",
    "cpk_key",
    "access_tier",
    "tags",
    "metadata",
    "part_size_bytes",
)
"""The fields of `AzureOptions`, whose module imports pydantic. A test compares the two."""

SCHEMES: Final = ("az", "abfs", "abfss")

ADVICE: Final = (
    "Blocks of an upload that a killed process left are invisible, and the service drops them after a week.",
    (
        "Set no lifecycle policy that deletes blobs below this prefix, or moves roots and anchors to the "
        "archive tier: only `offload` knows which are needed."
    ),
    "Soft delete and versioning keep deleted blobs, which are billed until their retention ends.",
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare containers as tiers, by `az://container/prefix` and its synonyms."""
    return [
        Backend(
            name="azure",
            target="offload_azure.url:open_url",
            needs="ledger-offload[azure]",
            schemes=SCHEMES,
            options=OPTIONS,
            advice=ADVICE,
        )
    ]
