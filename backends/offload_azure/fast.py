"""A container's immutable objects by obstore: the place, account and credentials of the client behind.

Over TLS and over plain HTTP alike nothing is sent that the service could hold the bytes against: obstore
sends no MD5. `why_not_fast` speaks without obstore being installed; the rest imports it.
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
"""What obstore reads from the environment, cannot be told to leave, and no other client of Azure obeys."""

SCOPE: Final = "https://storage.azure.com/.default"
_FIELD: Final = re.compile(r"<(Code|Message)>([^<]*)</")


def why_not_fast(options: AzureOptions) -> str | None:
    """What of these options, and of the environment, obstore could not do exactly so; None: it can do all."""
    if isinstance(options.verify, str) and not is_the_systems(options.verify):
        return f"the option `verify` names authorities{TRUSTS_MORE}"
    if options.hierarchical_namespace:
        return "with `hierarchical_namespace` a folder must be told from an object, which takes more requests"
    if options.encryption_scope is not None:
        return "obstore cannot send the option `encryption_scope`"
    if options.api_version is not None:
        return "obstore speaks a version of its own, whatever the option `api_version` says"
    for name in OF_OBSTORE_ALONE:
        if name in os.environ:
            return f"{name} is set, which obstore alone would obey; use options instead"
    return None


def fast_store(store: AzureStore) -> FastStore:
    """`store` with its immutable objects by obstore."""
    from offload_cloud.fast import FastStore

    from offload_azure.store import check

    options = store.options

    def explain(status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        cause = _reply(status, body)
        if code_of(cause) == str(PLAIN_HTTP):
            return None  # no answer of a blob service: the client behind, which sees its headers, says why
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
        return None  # the client behind refuses to send the key where everybody can read it
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
        "timeout": timedelta(days=1),
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
            retry_config={"max_retries": 0},
            credential_provider=provider,
        )

    attributes = {"Storage-Class": options.access_tier} if options.access_tier else {}
    return Fast(
        reads=objects({**limits, "read_timeout": timedelta(seconds=options.read_timeout_seconds)}),
        writes=objects(limits),
        attributes=attributes | options.metadata,
        tags=options.tags,
        no_objects={FOLDER: "true"},
    )


def _credentials(account: Account) -> Callable[[], Coroutine[Any, Any, AzureCredential]] | None:
    """Asks as often as obstore wants credentials; None: requests are anonymous."""
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
            return {"access_key": key, "expires_at": None}
        if sas is not None:
            return {"sas_token": sas.lstrip("?"), "expires_at": None}
        token = await sign_in.get_token(SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return credentials


class _Reply:
    """An error reply as the client behind has it, so that one table tells what it means."""

    def __init__(self, status: int, body: str) -> None:
        said = dict(_FIELD.findall(body))
        self.status_code, self.reason = status, said.get("Message", "").partition("\n")[0]
        # obstore keeps no headers; nothing may be concluded from that.
        self.headers = {"x-ms-request-id": ""} | ({"x-ms-error-code": said["Code"]} if "Code" in said else {})

    def text(self, encoding: str | None = None) -> str:
        """No body: what it said is in the headers and the reason."""
        return ""


def _reply(status: int, body: str) -> HttpResponseError:
    reply: Any = _Reply(status, body)
    return HttpResponseError(message=reply.reason, response=reply)
