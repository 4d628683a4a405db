"""The account and its credentials, found as adlfs finds them.

Options override the environment, and an account that an option names is never replaced by another one:
adlfs would let AZURE_STORAGE_CONNECTION_STRING override an account that was named to it. The instance of
adlfs is not kept: at exit it would close itself on an event loop that no longer exists.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from typing import Any

import adlfs
from azure.core.credentials import AzureSasCredential
from azure.core.utils import parse_connection_string
from offload_cloud.options import shown

from offload.ground.errors import Misuse
from offload_azure.options import AzureOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The service's URL and the credential for it, or a connection string that has both."""

    url: str = ""
    credential: Any = None
    """None: requests are anonymous."""

    connection_string: str | None = None


def account_of(options: AzureOptions) -> Account:
    """Return the account that options and environment name. Raises `Misuse` if none is, or if they disagree.

    Runs on the event loop that the credential is for.
    """
    found = _found_by_adlfs(options)
    connection_string = shown(options.connection_string) or (None if options.way else found.connection_string)
    if options.client_id and options.way is None and found.credential is None:
        raise Misuse(
            "azure: 'client_id' is given, but the environment holds another credential: unset "
            "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_TOKEN"
        )
    if connection_string:
        _make_sure_of_account(options, connection_string)
        return Account(connection_string=connection_string)
    return Account(url=_url(options, found.account_name), credential=_credential(options, found))


def _found_by_adlfs(options: AzureOptions) -> adlfs.AzureBlobFileSystem:
    identity = {}
    if options.way is None and options.client_id:
        identity = dict.fromkeys(
            ("managed_identity_client_id", "workload_identity_client_id"), options.client_id
        )
    try:
        found = adlfs.AzureBlobFileSystem(
            asynchronous=True,
            loop=asyncio.get_running_loop(),  # otherwise it starts a thread with its own event loop
            skip_instance_cache=True,
            use_listings_cache=False,
            account_name=options.account_name,
            connection_string=shown(options.connection_string),
            anon=True if options.way else None,  # True: it does not look for a credential
            **identity,
        )
    except ValueError as exc:
        if "Must provide" in str(exc):
            raise Misuse(
                "azure: no account is named: give the option 'account_name' or 'connection_string', "
                "or set AZURE_STORAGE_ACCOUNT_NAME"
            ) from None
        raise Misuse(
            "azure: the connection string, or what AZURE_STORAGE_CLIENT_ID, AZURE_STORAGE_CLIENT_SECRET and "
            "AZURE_STORAGE_TENANT_ID say, is incomplete or malformed"
        ) from None
    # Its finalizer would run at exit, on an event loop that is closed by then.
    for reference in weakref.getweakrefs(found):
        if isinstance(reference.__callback__, weakref.finalize):
            reference.__callback__.detach()
    return found


def _credential(options: AzureOptions, found: adlfs.AzureBlobFileSystem) -> Any:
    match options.way:
        case "account_key":
            return _shared_key(found.account_name, shown(options.account_key))
        case "sas_token":
            return _sas(shown(options.sas_token))
        case "client_secret":
            return _service_principal(options)
        case "anonymous":
            return None
    if found.credential is not None:
        return found.credential
    if found.account_key:
        return _shared_key(found.account_name, found.account_key)
    return _sas(found.sas_token) if found.sas_token else None


def _shared_key(name: str, key: str | None) -> dict[str, str | None]:
    return {"account_name": name, "account_key": key}


def _sas(token: str | None) -> AzureSasCredential:
    return AzureSasCredential((token or "").lstrip("?"))


def _service_principal(options: AzureOptions) -> Any:
    from azure.identity.aio import ClientSecretCredential

    assert options.tenant_id is not None
    assert options.client_id is not None
    secret = shown(options.client_secret)
    assert secret is not None
    return ClientSecretCredential(options.tenant_id, options.client_id, secret)


def _url(options: AzureOptions, name: str) -> str:
    if options.endpoint_url:
        return options.endpoint_url
    return f"https://{options.account_host or f'{name}.blob.core.windows.net'}"


def _make_sure_of_account(options: AzureOptions, connection_string: str) -> None:
    """Raise `Misuse` if an option names another account, or another host, than the connection string."""
    try:
        parts = parse_connection_string(connection_string, case_sensitive_keys=False)
    except ValueError:
        raise Misuse("azure: the connection string is malformed") from None
    named = parts.get("accountname") or _first_label(parts.get("blobendpoint", ""))
    if options.account_name and named and named != options.account_name:
        raise Misuse(
            f"azure: the account {options.account_name!r} is named, and the connection string is of "
            f"{named!r}; change one of them, or unset AZURE_STORAGE_CONNECTION_STRING"
        )
    if options.account_host or options.endpoint_url:
        raise Misuse(
            "azure: AZURE_STORAGE_CONNECTION_STRING names a host, as 'account_host' or 'endpoint_url' does; "
            "unset it, or give credentials as options"
        )


def _first_label(url: str) -> str:
    host = url.partition("://")[2]
    return host.partition(".")[0] if ".blob." in host else ""
