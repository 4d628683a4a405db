"""From `az://container/prefix` and options to a store.

`abfs` and `abfss` mean the same. The URL may name the account, in the form of adlfs and Spark:
`abfs://container@account.dfs.core.windows.net/prefix`. Requests go to its Blob endpoint all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from offload.contracts.store import ObjectStore
from offload.ground.errors import Misuse
from offload.store.prefix import PrefixStore
from offload_azure.options import AzureOptions
from offload_azure.store import AzureStore, check

FORM: Final = "use az://container/prefix or abfs://container@account.dfs.core.windows.net/prefix"
PUBLIC_CLOUD: Final = ".blob.core.windows.net"
_CONTAINER: Final = re.compile(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*")
_HOST: Final = re.compile(r"([a-z0-9]{3,24})\.(?:blob|dfs)\.([a-z0-9.-]+)")


def open_url(url: str, *, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store that a URL names. Raises `Misuse` if it names none, or if an option is wrong."""
    place, _, prefix = url.partition("://")[2].partition("/")
    container, at, host = place.partition("@")
    if ":" in place or "?" in url:
        raise Misuse(f"an az:// URL holds no login and no query: {FORM}, and give credentials as options")
    if not _CONTAINER.fullmatch(container):
        raise Misuse(f"{url!r} names no container: {FORM}")
    checked = AzureOptions.of(dict(options) | (_account(host, options) if at else {}))
    store = AzureStore(container=container, options=checked, place=place)
    prefix = prefix.strip("/")
    return PrefixStore(store, check(prefix)) if prefix else store


def _account(host: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the account that the host in a URL names, as options."""
    match = _HOST.fullmatch(host)
    if match is None:
        raise Misuse(f"{host!r} is not the host of an account: {FORM}")
    name, blob_host = match[1], f"{match[1]}.blob.{match[2]}"
    if options.get("account_name", name) != name:
        raise Misuse(f"the URL names the account {name!r}, and the option 'account_name' another: {FORM}")
    located = any(options.get(option) for option in ("account_host", "endpoint_url", "connection_string"))
    if located or blob_host.endswith(PUBLIC_CLOUD):
        return {"account_name": name}
    return {"account_name": name, "account_host": blob_host}
