"""The client of a container, on the account that `account` found, with our limits and without retries.

Invariants: one call is one request (`transport`; the client's own retries, its switch to a secondary
host and its redirects are off); an object up to `PUT_SIZE_BYTES_MAX` is one Put Blob; a read of any length
is one GET.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from azure.core.pipeline.transport import AsyncHttpTransport
from azure.storage.blob.aio import BlobServiceClient, ContainerClient
from offload_cloud.options import shown

from offload.ground.errors import Misuse
from offload_azure.account import Account, account_of
from offload_azure.direct import DirectTransport
from offload_azure.failures import one_line
from offload_azure.options import AzureOptions
from offload_azure.transport import OneRequestTransport

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""The largest object that goes up as one Put Blob, which is atomic. The client's own limit is 64 MiB."""

GET_SIZE_BYTES_MAX: Final = 2**62
"""More than any object has. By default the client splits a read at 32 MiB and asks for the rest itself."""


@dataclass(frozen=True, slots=True)
class AzureClient:
    """Clients of one container, with the services and the account that are closed after them."""

    container: ContainerClient
    """Sends small requests: creates, listings, deletions."""

    data: ContainerClient
    """Moves fragments: another one if the option `client` says so."""

    services: tuple[BlobServiceClient, ...]
    account: Account

    async def aclose(self) -> None:
        """Close the connections, also those of the credential."""
        for service in self.services:
            await service.close()
        await _close(self.account.credential)


async def open_client(options: AzureOptions, container: str) -> AzureClient:
    """Return clients on the running event loop, without caches. Raises `Misuse` for wrong settings."""
    account = account_of(options)
    transports: list[AsyncHttpTransport[Any, Any]] = [
        OneRequestTransport(
            verify=options.verify,
            connections_max=options.connections_max,
            connect_timeout_seconds=options.connect_timeout_seconds,
            read_timeout_seconds=options.read_timeout_seconds,
            proxy=shown(options.proxy),
        )
    ]
    if options.client == "direct":
        transports.append(DirectTransport(options))
    try:
        services = tuple(_service(account, _settings(options, transport)) for transport in transports)
    except ValueError as exc:
        for transport in transports:
            await transport.close()
        await _close(account.credential)
        raise Misuse(f"azure: {one_line(exc)}") from None
    containers = [service.get_container_client(container) for service in services]
    return AzureClient(containers[0], containers[-1], services, account)


def _service(account: Account, settings: dict[str, Any]) -> BlobServiceClient:
    if account.connection_string:
        return BlobServiceClient.from_connection_string(account.connection_string, **settings)
    return BlobServiceClient(account.url, credential=account.credential, **settings)


def _settings(options: AzureOptions, transport: AsyncHttpTransport[Any, Any]) -> dict[str, Any]:
    return {
        "transport": transport,  # it also chooses the proxy
        "retry_total": 0,  # `RetryingStore` retries, for all clients in one place
        "retry_to_secondary": False,
        "permit_redirects": False,
        "max_single_put_size": PUT_SIZE_BYTES_MAX,
        "max_single_get_size": GET_SIZE_BYTES_MAX,
        "api_version": options.api_version,
    }


async def _close(credential: Any) -> None:
    if hasattr(credential, "close"):
        await credential.close()
