"""Signed reads of a container: URLs with a SAS token of the service that the account's key signs.

Other credentials cannot sign without a request (Entra ID), or would have to be handed over whole: a SAS token
of the options may permit writes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from azure.storage.blob import BlobSasPermissions, generate_blob_sas
from offload_cloud.options import shown
from offload_cloud.proxies import proxy_for

from offload.contracts.signing import SignedReads
from offload.ground.errors import Misuse

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

    from offload_azure.options import AzureOptions

__all__ = ["read_urls"]


def read_urls(
    container: ContainerClient,
    options: AzureOptions,
    keys: Sequence[str],
    *,
    seconds: int,
    where: str,
    now_ms: Callable[[], int],
) -> SignedReads:
    """Return signed reads of these keys. Raises `Misuse` if the account's key is not known, or not enough."""
    reasons = {
        "credentials that are no account key": not getattr(container.credential, "account_key", None),
        "a proxy": proxy_for(container.url, shown(options.proxy), backend="azure") is not None,
        "option 'verify'": options.verify is not True,
        "option 'cpk_key'": options.cpk_key is not None,
    }
    for reason in (name for name, holds in reasons.items() if holds):
        raise Misuse(f"{where}: reads are not signed, because of {reason}")
    until_ms = now_ms() + seconds * 1000
    urls = []
    for key in keys:
        token = generate_blob_sas(
            account_name=container.credential.account_name,
            container_name=container.container_name,
            blob_name=key,
            account_key=container.credential.account_key,
            permission=BlobSasPermissions(read=True),
            expiry=datetime.fromtimestamp(until_ms / 1000, UTC),
        )
        urls.append(f"{container.get_blob_client(key).url}?{token}")
    return SignedReads(
        urls=urls,
        seconds=seconds,
        expires_ms=until_ms,
        stall_seconds=options.read_timeout_seconds,
    )
