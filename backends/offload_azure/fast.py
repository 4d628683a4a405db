"""A container's immutable objects by obstore, with the address, account and credentials of the SDK's client.

Obstore sends no MD5, so the service cannot check the bytes of a put, over TLS or plain HTTP. Each fragment
has checksums of its own. `why_not_fast` works without obstore. The other functions import it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.core.utils import parse_connection_string
from offload_cloud.choice import TRUSTS_MORE, is_the_systems

from offload.errors import OffloadError
from offload_azure.account import Account
from offload_azure.failures import PLAIN_HTTP, code_of, explained
from offload_azure.listing import FOLDER
from offload_azure.options import AzureOptions

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential, ClientConfig
    from offload_cloud.fast import Fast, FastStore

    from offload_azure.store import AzureStore

OF_OBSTORE_ALONE: Final = ("AZURE_CREDENTIAL_TYPE", "AZURE_ENCRYPTION_KEY")
"""Variables that obstore alone obeys, and always. No other client of Azure reads them."""

SCOPE: Final = "https://storage.azure.com/.default"
_FIELD: Final = re.compile(r"<(Code|Message)>([^<]*)</")


def why_not_fast(options: AzureOptions) -> str | None:
    """Return the first option or variable that obstore cannot honour exactly; None if it can honour all."""
    if isinstance(options.verify, str) and not is_the_systems(options.verify):
        return f"the option `verify` names authorities{TRUSTS_MORE}"
    if options.hierarchical_namespace:
        return "with `hierarchical_namespace` it takes more requests to distinguish folders from objects"
    if options.encryption_scope is not None:
        return "obstore cannot send the option `encryption_scope`"
    if options.api_version is not None:
        return "obstore always speaks its own version and ignores the option `api_version`"
    for name in OF_OBSTORE_ALONE:
        if name in os.environ:
            return f"{name} is set, which obstore alone would obey; use options instead"
    return None


def fast_store(store: AzureStore) -> FastStore:
    """Return `store` with its immutable objects moved by obstore."""
    from offload_cloud.fast import FastStore

    from offload_azure.store import check

    options = store.options

    def explain(status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        cause = _reply(status, body)
        # This reply refuses the request, so nothing was applied and it may be made again.
        if code_of(cause) == str(PLAIN_HTTP):
            return None  # not from a blob service: the SDK's client sees the headers, and says what is wrong
        return explained(cause, what=what, where=store.url, key=key, mutation=mutation)

    return FastStore(
        store,
        open_fast=lambda: _opened(store),
        explain=explain,
        stall_seconds=options.read_timeout_seconds,
        at_once=options.connections_max,
        check=check,
    )


async def _opened(store: AzureStore) -> Fast | None:
    from obstore.store import AzureStore as Objects
    from offload_cloud.fast import Fast

    options, client = store.options, await store.client()
    url = urlsplit(client.container.url)
    if url.scheme == "http" and options.cpk_key is not None:
        return None  # the SDK's client refuses to send the key unencrypted
    provider = _credentials(client.account)
    config: AzureConfig = {
        "account_name": client.service.account_name or "account",
        "endpoint": f"{url.scheme}://{url.netloc}{url.path.removesuffix(f'/{store.container}')}",
        "skip_signature": provider is None,
        "use_emulator": False,
        "use_fabric_endpoint": False,
        "use_azure_cli": False,
        "disable_tagging": False,
    }
    if options.cpk_key is not None:
        config["encryption_key"] = options.cpk_key.get_secret_value()
    limits: ClientConfig = {
        "allow_http": url.scheme == "http",
        "allow_invalid_certificates": options.verify is False,
        "connect_timeout": timedelta(seconds=options.connect_timeout_seconds),
        "timeout": timedelta(
            days=1
        ),  # its default would end a large transfer; stalls have limits of their own
    }
    if isinstance(options.verify, str):
        limits["root_certificate"] = await asyncio.to_thread(Path(options.verify).read_bytes)
    if options.proxy is not None:
        limits["proxy_url"] = options.proxy.get_secret_value()

    def objects(limits: ClientConfig) -> Objects:
        return Objects(
            store.container,
            config=config,
            client_options=limits,
            # A repeat by obstore could hide that the first request was applied. `RetryingStore` repeats.
            retry_config={"max_retries": 0},
            credential_provider=provider,
        )

    attributes = {"Storage-Class": options.access_tier} if options.access_tier else {}
    return Fast(
        reads=objects({**limits, "read_timeout": timedelta(seconds=options.read_timeout_seconds)}),
        writes=objects(limits),
        attributes=attributes | options.metadata,
        tags=options.tags,
        # Folders are recognized even if no option declares the account's hierarchical namespace.
        no_objects={FOLDER: "true"},
    )


def _credentials(account: Account) -> Callable[[], Coroutine[Any, Any, AzureCredential]] | None:
    """Return the function that obstore calls for credentials; None if requests are anonymous."""
    key: str | None = None
    sas: str | None = None
    sign_in: Any = None
    match account.credential:
        case {"account_key": found}:
            key = found
        case AzureSasCredential():
            sas = account.credential.signature
        case other:
            sign_in = other
    if account.connection_string:
        parts = parse_connection_string(account.connection_string, case_sensitive_keys=False)
        key, sas = parts.get("accountkey"), parts.get("sharedaccesssignature")
    if key is None and sas is None and sign_in is None:
        return None

    async def credentials() -> AzureCredential:
        if key is not None:
            # None means that obstore never asks again: keys and tokens from the options are not renewed.
            return {"access_key": key, "expires_at": None}
        if sas is not None:
            # A connection string may have the token with the `?` that begins a query.
            return {"sas_token": sas.lstrip("?"), "expires_at": None}
        token = await sign_in.get_token(SCOPE)
        # With its expiry, so that obstore asks again, and the sign-in gives it a new token.
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return credentials


class _Reply:
    """An error reply in the form of the SDK's client, so that one table translates both."""

    def __init__(self, status: int, body: str) -> None:
        said = dict(_FIELD.findall(body))
        self.status_code, self.reason = status, said.get("Message", "").partition("\n")[0]
        # obstore keeps no headers. Their absence must not look like a server that is no blob service.
        self.headers = {"x-ms-request-id": ""} | ({"x-ms-error-code": said["Code"]} if "Code" in said else {})

    def text(self, encoding: str | None = None) -> str:
        """Return no body: its content is in the headers and the reason."""
        return ""


def _reply(status: int, body: str) -> HttpResponseError:
    reply: Any = _Reply(status, body)
    return HttpResponseError(message=reply.reason, response=reply)
