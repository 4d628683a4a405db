"""The diagnosis of a failed TLS handshake: a server that is stopping, or a wrong server or URL."""

from __future__ import annotations

import ssl

__all__ = ["hung_up"]


def hung_up(exc: object) -> bool:
    """Return True if the server closed the connection during the handshake, as a stopping server does.

    The next attempt may succeed. After a handshake that either side refused, it cannot.
    """
    return isinstance(getattr(exc, "os_error", None), ssl.SSLEOFError | ssl.SSLZeroReturnError)
