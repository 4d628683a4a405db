"""Signed reads of a bucket: URLs that the key of a service account signs (V4), without a request.

Other credentials cannot sign without a request to Google. To a server that takes no credentials, such as an
emulator, each read is a plain URL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["SECONDS_MAX", "signed_url"]

SECONDS_MAX: Final = 7 * 24 * 3600
"""The longest life of a signed request."""

ALGORITHM: Final = "GOOG4-RSA-SHA256"


def signed_url(
    endpoint: str,
    name: str,
    *,
    email: str,
    sign: Callable[[bytes], bytes],
    seconds: int,
    now: datetime,
) -> str:
    """Return a URL that reads the object `name`: its bucket, a slash and its key.

    `sign` signs by the private key of the service account `email`.
    """
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/auto/storage/goog4_request"
    path = "/" + quote(name, safe="/~")
    query = urlencode(
        {
            "X-Goog-Algorithm": ALGORITHM,
            "X-Goog-Credential": f"{email}/{scope}",
            "X-Goog-Date": moment,
            "X-Goog-Expires": str(seconds),
            "X-Goog-SignedHeaders": "host",
        },
        quote_via=quote,
        safe="~",
    )
    host = urlsplit(endpoint).netloc
    request = "\n".join(("GET", path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"))
    digest = hashlib.sha256(request.encode()).hexdigest()
    signature = sign(f"{ALGORITHM}\n{moment}\n{scope}\n{digest}".encode())
    return f"{endpoint}{path}?{query}&X-Goog-Signature={signature.hex()}"
