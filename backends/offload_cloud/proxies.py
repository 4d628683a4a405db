"""The proxy on the way to a server: that of the options, else that of the environment.

An HTTP library could read the environment itself, but would then also take logins from ~/.netrc.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from offload.ground.errors import Misuse

__all__ = ["proxy_for"]


def proxy_for(url: str, chosen: str | None, *, backend: str) -> str | None:
    """Return the proxy for `url`: `chosen`, else that of the environment. None if there is none.

    Raises `Misuse` if that of the environment speaks another protocol than HTTP.
    """
    address = urlsplit(url)
    if chosen is not None or proxy_bypass(address.netloc):
        return chosen
    found = getproxies().get(address.scheme)
    if found is None or found.startswith(("http://", "https://")):
        return found
    # Other tools accept an address without a scheme. None of our transports speaks another protocol.
    if "://" not in found:
        return f"http://{found}"
    scheme = found.partition("://")[0]
    raise Misuse(
        f"{backend}: the proxy of the environment begins with {scheme}://, and only http:// is supported"
    )
