"""The client of a container, on the account that `account` found, with our limits and without retries.

Invariants: one call is one request (the client's own retries, its switch to a secondary host and its
redirects are off); an object up to `PUT_SIZE_BYTES_MAX` is one Put Blob; a read of any length is one GET.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from offload.ground.errors import Misuse, OffloadError
from offload_azure.account import Account, account_of
from offload_azure.failures import one_line
from offload_azure.options import AzureOptions
from offload_azure.transport import SdkTransport

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""The largest object that goes up as one Put Blob, which is atomic. The client's own limit is 64 MiB."""

GET_SIZE_BYTES_MAX: Final = 2**62
"""More than any object has. By default the client splits a read at 32 MiB and asks for the rest itself."""


@dataclass(frozen=True, slots=True)
class AzureClient:
    """The client of one container, with the service and the account that are closed after it."""

    container: ContainerClient
    service: BlobServiceClient
    account: Account

    async def aclose(self) -> None:
        """Close the connections, also those of the credential."""
        await self.service.close()
        await _close(self.account.credential)


async def open_client(options: AzureOptions, container: str) -> AzureClient:
    """Return a client on the running event loop, without caches. Raises `Misuse` for wrong settings."""
    account = account_of(options)
    try:
        service = _service(account, _settings(options))
    except OffloadError:
        await _close(account.credential)
        raise
    except ValueError as exc:
        await _close(account.credential)
        raise Misuse(f"azure: {one_line(exc)}") from None
    return AzureClient(service.get_container_client(container), service, account)


def _service(account: Account, settings: dict[str, Any]) -> BlobServiceClient:
    if account.connection_string:
        return BlobServiceClient.from_connection_string(account.connection_string, **settings)
    return BlobServiceClient(account.url, credential=account.credential, **settings)


def _settings(options: AzureOptions) -> dict[str, Any]:
    return {
        "transport": SdkTransport(options),  # it also chooses the proxy
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
